"""The mutation score of a target's own source: what is drawn of it, what becomes of it, and what is told."""

from __future__ import annotations

import json
import os
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import msgspec
import pytest

from property_tests.support.command_line import specsim
from property_tests.support.known_releases import FEW
from property_tests.support.made_up_sources import MadeUpSource
from property_tests.support.pages import ROOT
from specsim.commands.score import Score
from specsim.lifting.planted import EDITS, edited
from specsim.lifting.probes import probed
from specsim.lifting.source import SourceTree
from specsim.selfcheck.source_hunt import Reached, ScoredMutant, Together, signatures_of, totals
from specsim.selfcheck.source_mutants import KINDS, SourceMutant, drawn
from specsim.world.forks import NotStarted, WantedSchedule
from specsim.world.planted import find

FILE = "srt/managers/queue_of_tests.py"
SOURCE = MadeUpSource(
    {
        FILE: """
            class Queue:
                def take(self, items, limit):
                    self.seen_count.clear()
                    count = limit - 1
                    if items and len(items) > limit:
                        count = 0
                    self.count = count
                    self.last = self.count
                    logger.info(limit - 1)
                    if self.enable_metrics:
                        self.count = limit
                    return dict(count=count,
                                limit=limit)

                def log_stats(self, count):
                    self.count = count - 1
                    return self.count
            """,
        "srt/managers/scheduler_metrics.py": "def take(count):\n    return count - 1\n",
    }
)
RAN = {FILE: range(1, 20), "srt/managers/scheduler_metrics.py": range(1, 3)}


def test_every_kind_of_mistake_is_drawn_and_each_once() -> None:
    mutants = drawn(SOURCE, "a target", RAN, 10_000, 0)
    assert {mutant.kind for mutant in mutants} == set(KINDS)
    assert len({mutant.id for mutant in mutants}) == len(mutants)
    assert {edit for edits in KINDS.values() for edit in edits} <= set(EDITS)
    for mutant in mutants:
        (defect,) = find(mutant.id, {})
        compile(edited(SOURCE.read(mutant.file), defect), mutant.file, "exec")


def test_what_tells_people_something_is_not_drawn_from() -> None:
    lines = {mutant.line for mutant in drawn(SOURCE, "a target", RAN, 10_000, 0) if mutant.file == FILE}
    assert lines == {4, 5, 6, 7, 8, 9, 13, 14}
    assert {mutant.file for mutant in drawn(SOURCE, "a target", RAN, 10_000, 0)} == {FILE}


def test_statements_that_did_not_run_are_not_drawn_from() -> None:
    lines = {mutant.line for mutant in drawn(SOURCE, "a target", {FILE: [5, 13]}, 10_000, 0)}
    assert lines == {5, 13, 14}


def test_a_line_counts_no_more_for_having_many_places() -> None:
    fields = " + ".join(f"self.field_{number}" for number in range(40))
    text = f"def take(self, a):\n    x = {fields}\n    y = a - 1\n    return y\n"
    source = MadeUpSource({FILE: text})
    first = [drawn(source, "a target", {FILE: range(1, 5)}, 1, seed)[0] for seed in range(200)]
    assert min(Counter(mutant.line for mutant in first).values()) > 40


def test_a_seed_and_a_target_decide_what_is_drawn() -> None:
    def ids(target: str, seed: int) -> list[str]:
        return [mutant.id for mutant in drawn(SOURCE, target, RAN, 8, seed)]

    assert ids("a target", 0) == ids("a target", 0)
    assert len({tuple(ids("a target", 0)), tuple(ids("a target", 1)), tuple(ids("another", 0))}) == 3
    assert [mutant.id for mutant in drawn(SOURCE, "a target", RAN, 20, 0)][:8] == ids("a target", 0)


def test_lines_that_are_run_beside_others_leave_these_in_their_order() -> None:
    fields = "\n".join(f"    field_{number} = a - {number}" for number in range(60))
    source = MadeUpSource({FILE: f"def take(self, a):\n{fields}\n"})
    few = drawn(source, "a target", {FILE: range(2, 62, 3)}, 20, 0)
    more = drawn(source, "a target", {FILE: range(2, 62)}, 60, 0)
    assert [mutant for mutant in more if mutant in few] == few


def test_a_mutant_is_hunted_by_the_schedules_that_run_its_statement() -> None:
    """Here one of a statement of two lines, on its second."""
    (mutant,) = (
        one for one in drawn(SOURCE, "a target", {FILE: [13]}, 100, 0) if one.line == 14 and "keyword" in one.id
    )
    assert (mutant.statement, mutant.line) == (13, 14)
    blocks = [
        Together("3", {FILE: [4, 5]}),
        Together("b", {"other.py": [13]}),
        Together("15", {FILE: [7, 13]}),
    ]
    seen = Reached(blocks, {})
    assert seen.schedules_of(mutant) == [0, 2, 4]
    assert seen.ran == {FILE: [4, 5, 7, 13], "other.py": [13]}


def test_a_mutant_is_found_by_what_is_known_where_that_shows_more_often_than_chance_explains() -> None:
    """Of ten schedules two show it on the target as it is, and one that is none of these."""
    seen = Reached([], {"S1:request": f"{1 << 3 | 1 << 4 | 1 << 30:x}", "I05:input": "0"})
    indices = list(range(3, 13))

    def shown_in(*those: int) -> list[set[str]]:
        return [{"S1:request"} if index in those else set() for index in indices]

    assert seen.more_often(indices, shown_in(*indices)) == (5, "S1:request")
    assert seen.more_often(indices, shown_in(3, 4, 7)) == (-1, "")
    assert seen.more_often(indices, shown_in()) == (-1, "")
    always: list[set[str]] = [{"I05:input"} for _ in indices]
    assert seen.more_often(indices, always) == (3, "I05:input")


def test_a_setup_that_does_not_start_is_one_signature_and_another_setup_another() -> None:
    """A setup that the target refuses hid that another did not start with a mistake."""
    schedules = [WantedSchedule((row,), 0, index, 1.0) for row, index in ((3, 3), (3, 23), (4, 4), (4, 66))]
    found = [signatures_of(NotStarted("no memory"), schedule) for schedule in schedules]
    assert found == [["scheduler:start:3"], ["scheduler:start:3"], ["scheduler:start:4"], ["scheduler:start:4"]]


def mutant_of(kind: str, schedule: int = 0, *, quiet: bool = True, ended: bool = False) -> ScoredMutant:
    return ScoredMutant(f"{kind}{schedule}{quiet}{ended}", FILE, 1, kind, schedule, "", quiet, ended)


def test_a_score_counts_what_a_limit_ended_apart_from_what_was_found() -> None:
    of = [
        mutant_of("stale", 3),
        mutant_of("stale", 1, quiet=False),
        mutant_of("stale"),
        mutant_of("wrong", 7, quiet=False, ended=True),
    ]
    assert list(totals(of)) == [
        ("stale", "3", "2 of 3, 66.7 %", "0", "1", "0", "1 of 2, 50.0 %"),
        ("wrong", "1", "0 of 1, 0.0 %", "1", "0", "0", "none"),
        ("all", "4", "2 of 4, 50.0 %", "1", "1", "0", "1 of 2, 50.0 %"),
    ]


def test_what_changes_nothing_does_not_count_unless_it_is_found() -> None:
    of = [mutant_of("stale", 3), mutant_of("stale")]
    assert list(totals(of, {one.id for one in of}))[-1] == (
        "all",
        "2",
        "1 of 1, 100.0 %",
        "0",
        "0",
        "1",
        "1 of 1, 100.0 %",
    )


# The command


@pytest.mark.release(FEW[-1])
def test_a_score_is_of_drawn_mutants_and_goes_on_where_it_was_left(tmp_path: Path) -> None:
    target = f"sglang=={FEW[-1]}"
    asked = ["mutants", "--of", target, "--schedules", "2"]
    ended = specsim(tmp_path, *asked, "--count", "1", "--json", "one.json")
    assert ended.returncode == 0, ended.stdout + ended.stderr
    one = json.loads((tmp_path / "one.json").read_text())
    assert (one["target"], one["schedules"], one["drawn"], len(one["mutants"])) == (target, 2, 1, 1)
    lines = sum(len(lines) for block in one["reached"]["blocks"] for lines in block["ran"].values())
    assert lines > 1000
    assert f"{target}: 1 mistake in the {lines:,} statements" in ended.stdout

    was = {**one, "mutants": [{**one["mutants"][0], "schedule": 0, "signature": "as it was"}]}
    (tmp_path / "one.json").write_text(json.dumps(was))
    ended = specsim(tmp_path, *asked, "--count", "2", "--json", "both.json", "--resume", "one.json")
    assert ended.returncode == 0, ended.stdout + ended.stderr
    both = json.loads((tmp_path / "both.json").read_text())
    assert (both["drawn"], len(both["mutants"]), both["mutants"][0]) == (2, 2, was["mutants"][0])
    assert both["seconds"] > one["seconds"] > 0
    assert both["environment"]["cores"]
    assert f"not found: {was['mutants'][0]['file']}:{was['mutants'][0]['line']}" in ended.stdout
    ended = specsim(tmp_path, *asked, "--resume", "one.json", "--seed", "3")
    assert (ended.returncode, "one.json is of seed 0, and not 3" in ended.stderr) == (2, True), ended.stderr


@pytest.mark.release(FEW[-1])
def test_one_in_ten_may_change_nothing_and_says_why(release: Callable[[str], SourceTree], tmp_path: Path) -> None:
    target, source = f"sglang=={FEW[-1]}", release(FEW[-1])
    file = "srt/managers/schedule_batch.py"
    lines = {file: [first for first, _last in probed(source.read(file), file).spans]}
    mutants = drawn(source, target, lines, 20, 0)
    score = Score(
        target,
        0,
        420,
        Reached([Together("1", lines)], {}),
        20,
        [ScoredMutant(*one[:4], 0, "", True) for one in mutants],
    )
    (tmp_path / "score.json").write_bytes(msgspec.json.encode(score))
    asked = ("mutants", "--of", target, "--resume", "score.json", "--count", "20", "--equivalent", "equivalent.toml")

    (tmp_path / "equivalent.toml").write_text(
        f'"{mutants[3].id}" = "nothing reads it"\n"another" = "of more mistakes"\n'
    )
    ended = specsim(tmp_path, *asked, "--json", "after.json")
    assert ended.returncode == 0, ended.stdout + ended.stderr
    assert f"nothing reads it: {file}:{mutants[3].line} {mutants[3].id}" in ended.stdout
    assert "0 of 19, 0.0 %" in ended.stdout
    assert json.loads((tmp_path / "after.json").read_text())["equivalent"] == {mutants[3].id: "nothing reads it"}

    (tmp_path / "equivalent.toml").write_text("".join(f'"{one.id}" = "nothing reads it"\n' for one in mutants[:3]))
    ended = specsim(tmp_path, *asked)
    assert (ended.returncode, ended.stdout) == (2, "")
    assert "equivalent.toml has 3 of the 20 mistakes" in ended.stderr


DRAWN = 300
"""Of how many mistakes each score is that was measured, or is to be."""


@pytest.mark.parametrize("file", sorted((ROOT / "bench/results").glob("*-score-*.json")), ids=lambda file: file.stem)
def test_the_page_has_each_score_as_it_was_measured(file: Path) -> None:
    score, page = json.loads(file.read_bytes()), (ROOT / "docs/score.md").read_text()
    hunted = msgspec.convert(score["mutants"], list[ScoredMutant])
    assert score["drawn"] == DRAWN
    assert len(hunted) == DRAWN or f"the first {len(hunted)} of {DRAWN}" in page
    assert f"`{file.relative_to(ROOT)}`" in page
    for kind, mutants, found, _ended, _left, _equivalent, of_quiet in totals(hunted, score["equivalent"]):
        assert f"| {kind} | {mutants} | {found} | {of_quiet} |" in page


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("--of", "model"), "model has no scheduler of its own"),
        (("--of", "torch==2"), "torch"),
        (("--of", "vllm@.", "--only", "ops"), "--of with --only or --write"),
        (("--resume", "score.json"), "--resume without --of"),
        (("--of", "sglang@.", "--resume", "absent.json"), "cannot read absent.json"),
        (("--of", "sglang@.", "--resume", "odd.json"), "odd.json is no score"),
        (("--equivalent", "odd.json"), "--equivalent without --of"),
        (("--of", "sglang@.", "--equivalent", "absent.toml"), "cannot read absent.toml"),
        (("--of", "sglang@.", "--equivalent", "odd.json"), "odd.json is not TOML"),
        (("--of", "sglang@.", "--equivalent", "pipe"), "pipe is a FIFO, a socket or a device"),
        (("--of", "sglang@.", "--resume", "pipe"), "pipe is a FIFO, a socket or a device"),
        (("--of", "sglang@.", "--equivalent", "silent.toml"), "silent.toml does not say why 'x' changes nothing"),
    ],
)
def test_bad_input_is_one_clear_sentence_with_exit_code_2(
    tmp_path: Path, arguments: tuple[str, ...], said: str
) -> None:
    (tmp_path / "odd.json").write_text("[]")
    (tmp_path / "silent.toml").write_text("x = ''")
    os.mkfifo(tmp_path / "pipe")
    ended = specsim(tmp_path, "mutants", *arguments)
    assert (ended.returncode, ended.stdout) == (2, ""), ended.stdout
    assert said in ended.stderr
    assert "Traceback" not in ended.stderr


def test_a_score_has_what_a_mutant_is() -> None:
    assert SourceMutant._fields[:4] == ScoredMutant.__struct_fields__[:4]
