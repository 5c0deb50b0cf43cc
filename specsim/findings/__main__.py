"""Prints docs/bugs.md."""

from __future__ import annotations

from specsim.findings.bugs import page

if __name__ == "__main__":
    print(page(), end="")
