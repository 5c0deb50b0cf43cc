"""The releases of SGLang that specsim knows, oldest first."""

from __future__ import annotations

from pathlib import Path

from specsim.engines.releases import load

RELEASES = load(Path(__file__).with_name("releases.txt").read_text(encoding="utf-8"))
