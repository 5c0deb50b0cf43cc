"""Baselines: the signatures that are known, so that a check fails for new ones only.

A baseline is a file that `specsim check --baseline FILE --update-baseline` writes, or the JSON of a verdict. What is in
it is what a reader of a diff wants to see: a line a signature, sorted, with its rule and where it was; nothing that
changes from run to run.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import specsim
from specsim.errors import UsageError
from specsim.files import read_json, write_json
from specsim.verdict import FORMAT as VERDICT_FORMAT

FORMAT = "specsim.baseline/1"
REMEDY = "give a file that `specsim check --baseline FILE --update-baseline` or `specsim check --json FILE` wrote"


@dataclass(frozen=True, slots=True)
class Baseline:
    """What is known. `name` is the file or target that it comes from."""

    name: str
    signatures: frozenset[str]


def load(path: Path) -> Baseline:
    """Read a baseline. UsageError for a file that is missing, is damaged or is something else."""
    if not path.exists():
        raise UsageError(f"cannot read the baseline {path}: there is none", "write it first: add --update-baseline")
    data = read_json(path, REMEDY, what="the baseline", nan=True)
    kind = data.get("format") if isinstance(data, dict) else None
    if kind not in (FORMAT, VERDICT_FORMAT):
        raise UsageError(
            f"the baseline {path} has format {kind!r}, this specsim reads {FORMAT!r} and {VERDICT_FORMAT!r}", REMEDY
        )
    if not isinstance(data.get("findings"), list):
        raise UsageError(f"the baseline {path}: field 'findings' is not a list", REMEDY)
    for number, finding in enumerate(data["findings"]):
        if not isinstance(finding, dict) or not isinstance(finding.get("signature"), str):
            raise UsageError(f"the baseline {path}: findings[{number}] has no signature", REMEDY)
    return Baseline(str(path), frozenset(finding["signature"] for finding in data["findings"]))


def save(path: Path, target: str, findings: Iterable[Mapping[str, Any]], kept: Iterable[str]) -> int:
    """Write the findings of a verdict as a baseline, with the signatures `kept`, which could not be checked; returns
    how many there are.
    """
    entries = [{"signature": signature} for signature in kept]
    entries += [{name: found[name] for name in ("signature", "rule", "title", "where")} for found in findings]
    entries.sort(key=lambda entry: str(entry["signature"]))
    write_json(path, {"format": FORMAT, "specsim": specsim.__version__, "target": target, "findings": entries})
    return len(entries)
