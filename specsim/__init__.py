"""specsim: deterministic simulation testing for speculative decoding in LLM inference."""

from specsim.compiled.finder import install

__version__ = "0.1.0"

install()
