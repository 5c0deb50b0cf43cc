"""A sanitizer for any Triton kernel, memory checks and red zones, on Triton's interpreter."""

from specsim.interpreter.sanitizer import Flaw, Report, sanitize
from specsim.interpreter.triton_interpreter import corners

__all__ = ["Flaw", "Report", "corners", "sanitize"]
