"""specsim: deterministic simulation testing for speculative decoding in LLM inference."""

from specsim import aliases
from specsim.compiled import finder

__version__ = "0.1.0"

aliases.install()
finder.install()
