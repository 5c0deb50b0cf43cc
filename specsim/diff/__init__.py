"""Implementations against the reference: cases, red zones, comparison; and a sanitizer for any Triton kernel."""

from specsim.diff.hooks import corners
from specsim.diff.sanitizer import Flaw, Report, sanitize

__all__ = ["Flaw", "Report", "corners", "sanitize"]
