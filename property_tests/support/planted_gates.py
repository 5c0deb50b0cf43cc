"""Run as a program: what a gate of pull requests says of each planted defect, of pairs of them, and of no change.

    python -m property_tests.support.planted_gates OUT [--release VERSION] [--jobs 2] [--only P07 pair seed ...]

Each line of the file OUT is a check by the scheduler tier of `specsim check --ci`: of a release with a defect, or two,
beside the release as it is; or of the release with another seed, beside its baseline file. A line that is there is not
made again. Then the sums.
"""

from __future__ import annotations

import argparse
import json
import random
import subprocess
import sys
import tempfile
from itertools import combinations
from pathlib import Path
from threading import Lock

from property_tests.support.kept_rows import Row, kept_rows
from property_tests.support.planted_findings import NEW, OLD, cases
from specsim.commands.limits import CI_SCHEDULES

SCHEDULES = CI_SCHEDULES
SEEDS = range(1, 21)
PAIRED = ("P04", "P07", "P08", "P12", "P13", "P19", "P26", "P29", "P30", "Q01", "Q02", "Q03", "Q04")
"""Defects that are found alone, in functions of their own."""
PAIRS = random.Random(1).sample([f"{one}+{two}" for one, two in combinations(PAIRED, 2)], 20)
_ONE = Lock()
"""Of those that ask for a baseline."""


def kinds(release: str) -> list[tuple[str, str]]:
    """(kind, what) of each check of a release."""
    found = [("defect", defect) for of, defect in cases() if of == release and defect]
    found += [("pair", pair) for pair in PAIRS if release == OLD]
    return found + [("seed", str(seed)) for seed in SEEDS]


def row(release: str, kind: str, what: str, folder: Path) -> Row:
    out = folder / f"{release}-{kind}-{what}"
    file = out.with_suffix(".json")
    options = ["--only", "scheduler", "--schedules", str(SCHEDULES), "--out", str(out), "--json", str(file)]
    if kind == "seed":
        options += ["--seed", what, "--no-shrink", "--baseline", str(base_of(release, folder))]
    else:
        options += ["--ci", "--mutant", what, "--baseline", f"sglang=={release}"]
    ended = checked(release, options)
    data: Row = json.loads(file.read_text(encoding="utf-8")) if file.exists() else {}
    compared = data.get("baseline", {})
    new = [*compared.get("new", ()), *compared.get("risen", ())]
    said = [one for one in data.get("findings", ()) if one["signature"] in new]
    return {
        "release": release,
        "kind": kind,
        "what": what,
        "exit": ended.returncode if data else None,
        "new": new,
        "known": [one["triage"] for one in said if one["triage"].startswith("known")],
        "said": "" if data else ended.stderr[-300:],
    }


def base_of(release: str, folder: Path) -> Path:
    """The baseline file of a release as it is, made when it is asked for first."""
    file, out = folder / f"base-{release}.json", folder / "base"
    options = ["--only", "scheduler", "--schedules", str(SCHEDULES), "--no-shrink", "--out", str(out)]
    with _ONE:
        if not file.exists():
            checked(release, [*options, "--baseline", str(file), "--update-baseline"])
    return file


def checked(release: str, options: list[str]) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "specsim", "dev", "check", f"sglang=={release}", *options]
    return subprocess.run(command, capture_output=True, text=True, check=False)


def sums(rows: list[Row]) -> list[str]:
    lines = []
    for kind in ("defect", "pair", "seed"):
        of = [one for one in rows if one["kind"] == kind]
        failed, known = sum(one["exit"] == 1 for one in of), sum(bool(one["known"]) for one in of)
        lines.append(f"{kind}: {failed} of {len(of)} exit 1, of {known} a new finding is called known")
    alone = {one["what"]: set(one["new"]) for one in rows if one["kind"] == "defect"}
    pairs = [one for one in rows if one["kind"] == "pair"]
    both = sum(all(alone.get(d, set()) & {*one["new"]} for d in one["what"].split("+")) for one in pairs)
    lines.append(f"pair: both causes reported in {both} of {len(pairs)}")
    return lines


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("out", type=Path)
    parser.add_argument("--release", choices=(OLD, NEW), default=OLD)
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--only", nargs="*", default=[])
    asked = parser.parse_args()
    wanted = [(asked.release, *one) for one in kinds(asked.release) if not asked.only or {*one} & {*asked.only}]
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        rows = kept_rows(
            asked.out, ("release", "kind", "what"), wanted, asked.jobs, lambda case: row(*case, folder=folder)
        )
    print("\n".join(sums(rows)))


if __name__ == "__main__":
    main()
