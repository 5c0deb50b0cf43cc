"""Run as a program: how many findings each planted defect is, beside those of the release as it is.

    python -m property_tests.support.planted_findings OUT [--schedules 100] [--jobs 2] [--only P07 ...]

Each line of the file OUT is a release with a defect, or none in it; a line that is there is not made again. Then the
table: things seen that the release does not show by itself, and what of them a check says beside the release as its
baseline: new findings, and those that are met more often.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from pathlib import Path

from property_tests.support.findings import found
from property_tests.support.kept_rows import Row, kept_rows
from property_tests.support.known_releases import FEW, RELEASES
from specsim.engines.load import load_scheduler
from specsim.engines.sglang.scheduler.planted import planted
from specsim.engines.sglang.scheduler.setups import SETUPS
from specsim.engines.target import Release
from specsim.findings.comparison import Baseline, bring_forward, compare
from specsim.isolation.environment import of_target
from specsim.lifting.cache import open_cache
from specsim.rules.table import CHECKS
from specsim.tiers.scheduler.answers import ScheduleCounts, look_behind_races
from specsim.verdict import NotRun, Suite, Verdict
from specsim.world.forks import Starters, wanted

OLD, NEW = FEW[2], RELEASES[-1]
SECONDS = 60.0


def cases() -> list[tuple[str, str]]:
    """(release, defect) of those that the fake worker runs; of each release itself first."""
    of_fakes = [defect for name, defect in planted().items() if defect.worker == "fake"]
    found = [(OLD, ""), (NEW, "")]
    for defect in of_fakes:
        name = f"{defect.id}+{defect.covered_by}" if defect.covered_by else defect.id
        found.append((OLD if defect.id[0] in "PQ" else NEW, name))
    return found


def measured(release: str, defect: str, schedules: int) -> Row:
    target = load_scheduler(Release("sglang", release), open_cache(None), defect)
    assert not isinstance(target, NotRun), target
    counts, starters = ScheduleCounts(), Starters(target, CHECKS)
    try:
        for index in range(schedules):
            schedule = wanted(SETUPS, 0, index, SECONDS)
            counts.take(schedule, starters.run(schedule))
        look_behind_races(starters, counts, SECONDS)
    finally:
        starters.close()
    follows = {signature: counts.follows(signature) for signature in sorted(counts.hits)}
    hits = {signature: counts.hits[signature].count for signature in follows}
    waits = {signature: wait for signature in follows if (wait := counts.hits[signature].violation.wait)}
    shown = {"hits": hits, "follows": follows, "waits": waits}
    return {"release": release, "defect": defect, "schedules": counts.schedules, **shown}


def verdict_of(row: Row) -> Verdict:
    """What a check says of it."""
    findings = [
        found(signature, count=row["hits"][signature], follows=follows, wait=row["waits"].get(signature, ""))
        for signature, follows in row["follows"].items()
    ]
    return Verdict(
        row["release"],
        0,
        [Suite("scheduler", schedules=row["schedules"])],
        [one for one in findings if not one.follows],
        symptoms=[one for one in findings if one.follows],
    )


def beside(row: Row, base: Row) -> tuple[list[str], list[str]]:
    """What a row shows that the release itself does not, and what of it is a finding beside it as the baseline, or was
    met more often than on it.
    """
    here, baseline = verdict_of(row), Baseline.of_verdict("", verdict_of(base).to_json())
    bring_forward(here, baseline, is_counted=True)
    compared = compare(here, baseline)
    return [signature for signature in row["follows"] if signature not in base["follows"]], [
        *compared.new,
        *compared.risen,
    ]


def table(rows: list[Row]) -> list[str]:
    bases = {row["release"]: row for row in rows if not row["defect"]}
    lines, totals = ["| defect | release | seen | findings |", "| -- | -- | -- | -- |"], []
    for row in rows:
        if row["defect"] and row["release"] in bases:
            seen, findings = beside(row, bases[row["release"]])
            totals.append((len(seen), len(findings)))
            lines.append(f"| {row['defect']} | {row['release']} | {len(seen)} | {', '.join(findings) or 'none'} |")
    shown = [total for total in totals if total[1]]
    sums = [sum(total[part] for total in shown) for part in (0, 1)]
    lines.append(f"{len(shown)} of {len(totals)} defects are found: {sums[0]} things seen, {sums[1]} findings")
    return lines


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("out", type=Path)
    parser.add_argument("--schedules", type=int, default=100)
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--only", nargs="*", default=[])
    parser.add_argument("--one", nargs=2, metavar=("RELEASE", "DEFECT"))
    asked = parser.parse_args()
    if asked.one:
        release, defect = asked.one
        print(json.dumps(measured(release, defect, asked.schedules)))
        return
    wanted_cases = [case for case in cases() if not asked.only or not case[1] or case[1] in asked.only]
    if asked.only:
        releases = {release for release, defect in wanted_cases if defect}
        wanted_cases = [case for case in wanted_cases if case[0] in releases]

    def run(case: tuple[str, str]) -> Row:
        command = [sys.executable, "-m", __spec__.name, str(asked.out), "--schedules", str(asked.schedules)]
        ended = subprocess.run([*command, "--one", *case], env=of_target(), capture_output=True, text=True, check=False)
        assert ended.returncode == 0, f"{case}: {ended.stderr[-2000:]}"
        row: Row = json.loads(ended.stdout.splitlines()[-1])
        return row

    rows = kept_rows(asked.out, ("release", "defect"), wanted_cases, asked.jobs, run)
    print("\n".join(table(rows)))


if __name__ == "__main__":
    main()
