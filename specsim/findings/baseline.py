"""Baselines: the signatures that are known, so that a check fails for new ones only.

A baseline is a file that `specsim check --baseline FILE --update-baseline` writes, or the JSON of a verdict. In it is
what a reader of a diff wants to see: each signature, sorted, with its rule and where it was; and a line for each thing
that was run, so that a later check can say what it could not run any more. Nothing in it changes from run to run.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from pathlib import Path
from typing import Any

import specsim
from specsim.errors import UsageError
from specsim.files import read_json, write_json
from specsim.findings.comparison import Baseline, Reach, drawn_alike, reach_of
from specsim.tiers.not_run import is_absent
from specsim.verdict import FORMAT as VERDICT_FORMAT

FORMAT = "specsim.baseline/2"
REMEDY = "give a file that `specsim check --baseline FILE --update-baseline` or `specsim check --json FILE` wrote"


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
    if kind == VERDICT_FORMAT:
        return Baseline.of_verdict(str(path), data)
    own, followed = (
        frozenset(one["signature"] for one in data["findings"] if bool(one.get("follows")) is follows)
        for follows in (False, True)
    )
    hits = {one["signature"]: one["hits"] for one in data["findings"] if "hits" in one}
    schedules = data.get("schedules", {})
    counts = [*hits.values(), *(schedules.values() if isinstance(schedules, dict) else [schedules])]
    if not all(type(count) is int and count >= 0 for count in counts):
        raise UsageError(f"the baseline {path}: schedules and hits are no counts", REMEDY)
    return Baseline(str(path), own, _reach(path, data), followed, hits, schedules)


def _reach(path: Path, data: Mapping[str, Any]) -> Reach:
    for name in ("ran", "not_run"):
        if not isinstance(data.get(name), list) or not all(isinstance(one, str) for one in data[name]):
            raise UsageError(f"the baseline {path}: field {name!r} is not a list of texts", REMEDY)
    reasons: dict[str, dict[str, str]] = {}
    for entry in data["not_run"]:
        tier, _, what = entry.partition(":")
        reasons.setdefault(tier, {})[what] = "it was not run"
    return Reach(frozenset(data["ran"]), reasons)


def save(path: Path, verdict: Mapping[str, Any], kept: Iterable[str]) -> None:
    """Write the findings of a verdict as a baseline, with the signatures `kept`, which could not be checked."""
    entries = [{"signature": signature} for signature in kept]
    schedules = drawn_alike({suite["name"]: suite["schedules"] for suite in verdict["suites"]})
    entries += [_entry(found, schedules) for found in (*verdict["findings"], *verdict.get("symptoms", ()))]
    entries.sort(key=lambda entry: str(entry["signature"]))
    reach = reach_of(verdict["suites"])
    skipped = [f"{tier}:{what}" for tier, what, why in reach.reasons if not is_absent(why)]
    about = {"format": FORMAT, "specsim": specsim.__version__, "target": verdict["target"]}
    ran = {"ran": sorted(reach.ran), "not_run": sorted(skipped), "schedules": schedules}
    write_json(path, {**about, **ran, "findings": entries})


def _entry(found: Mapping[str, Any], schedules: Collection[str]) -> dict[str, Any]:
    entry = {name: found[name] for name in ("signature", "rule", "title", "where")}
    if found.get("follows"):
        entry["follows"] = found["follows"]
    if found["signature"].partition(":")[0] in schedules:
        entry["hits"] = found["count"]
    return entry
