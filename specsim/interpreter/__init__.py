"""Implementations against the reference: cases, red zones, comparison; and a sanitizer for any Triton kernel."""

from specsim.interpreter.hooks import corners
from specsim.interpreter.sanitizer import Flaw, Report, sanitize

__all__ = ["Flaw", "Report", "corners", "sanitize"]
