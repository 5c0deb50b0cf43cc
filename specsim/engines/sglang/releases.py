"""The releases of SGLang that specsim knows, oldest first: the one list of them.

A release that is not in the list can be checked all the same; between two releases, these are the steps.
"""

from __future__ import annotations

RELEASES = (
    "0.5.10.post1",
    "0.5.11",
    "0.5.12",
    "0.5.12.post1",
    "0.5.13",
    "0.5.13.post1",
    "0.5.14",
    "0.5.15",
    "0.5.15.post1",
    "0.5.16",
    "0.5.17",
    "0.5.18",
    "0.5.19",
    "0.5.20",
    "0.5.21",
    "0.5.22",
    "0.5.23",
)
