"""A replay file of an older simulator says so, whoever reads it, and fixtures are made anew by one command."""

from __future__ import annotations

import ast
import json
import re
import sys
from pathlib import Path

import pytest

from fixtures import remake as fixtures_of
from fixtures.remake import remake, state_of
from property_tests.support.replay_fixtures import FILES, Release
from specsim import cli, replay_file
from specsim.choices.chooser import replayed
from specsim.contracts.registry import OPS
from specsim.engine.accounting_target import ModelTarget
from specsim.replay_file import OpReplay
from specsim.tiers.accounting.model_code import code_of, model_hash, modules
from specsim.tiers.accounting.schedules import run_schedule
from specsim.tiers.ops.bulk import with_bulk_cases
from specsim.tiers.ops.finding import is_case_of
from specsim.tiers.process import ask

ROOT = Path(__file__).parents[2]
FIXTURES = ROOT / "fixtures" / "replays"


# ---- what gives a tape its meaning


def test_what_runs_schedules_gives_a_tape_no_meaning() -> None:
    named = {module.removeprefix("specsim.") for module in modules()}
    assert {
        "engine.loop",
        "engine.workload",
        "engine.accounting",
        "engine.memory.radix",
        "engine.rules.checker",
        "choices.chooser",
    } <= named
    assert not any(name.startswith(("tiers.", "bench.")) for name in named)


def test_every_module_of_the_simulator_that_a_schedule_runs_is_in_the_hash() -> None:
    """By what runs, and not by what is imported: a schedule of every fixture of the model."""
    folder = str(ROOT / "specsim" / "engine")
    ran: set[str] = set()

    def note(frame: object, event: str, _argument: object) -> None:
        if event == "call":
            ran.add(frame.f_code.co_filename)  # type: ignore[attr-defined]

    tapes = [json.loads(file.read_text())["tape"] for file in sorted(FIXTURES.glob("s*.json"))]
    before = sys.getprofile()
    sys.setprofile(note)
    try:
        for tape in tapes:
            run_schedule(ModelTarget(), replayed(tape))
    finally:
        sys.setprofile(before)
    inside = [Path(file).relative_to(ROOT) for file in ran if file.startswith(folder)]
    names = {path.with_suffix("").as_posix().replace("/", ".") for path in inside}
    assert "specsim.engine.loop" in names
    assert names <= set(modules())


def test_comments_and_docstrings_do_not_count_and_code_does() -> None:
    text = '"""Doc."""\n# comment\n\ndef f():\n    """Doc\n    # inside\n    """\n    return """\n# text\n"""\n'
    code = code_of(text, ast.parse(text))
    assert code == 'def f():\n    return """\n# text\n"""'
    other = text.replace("# text", "# texts")
    assert code_of(other, ast.parse(other)) != code


# ---- whoever reads a file says so


@pytest.mark.parametrize("command", ["replay", "shrink", "pin", "bisect", "report"])
def test_a_schedule_of_an_older_simulator_is_reported(
    command: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    stored = json.loads((FIXTURES / "session-tail-leak.json").read_text())
    arguments = {"report": ["run"], "bisect": ["old.json", "--good", "9.9.8", "--bad", "9.9.8"]}.get(
        command, ["old.json"]
    )
    (tmp_path / "run").mkdir()
    for model_hash_, is_said in (("0" * 16, True), (model_hash(), False)):
        for file in ("old.json", "run/old.json"):
            (tmp_path / file).write_text(json.dumps({**stored, "model_hash": model_hash_}))
        with pytest.raises(SystemExit) as ended:
            cli.main([command, *arguments])
        said = capsys.readouterr().err
        assert ("old.json was made before a change of the simulator" in said) is is_said, said
        assert ("makes it anew" in said) is is_said, ended


# ---- fixtures


def test_a_stale_fixture_is_made_anew_and_keeps_what_it_expects(tmp_path: Path) -> None:
    stored = json.loads((FIXTURES / "session-one-token-short.json").read_text())
    file = tmp_path / "old.json"
    file.write_text(json.dumps({**stored, "model_hash": "0" * 16, "digest": "another"}))
    state = state_of(file, ask)
    assert state.stale == "the simulator has changed, the digest is another"
    assert remake(state) == ""
    made = json.loads(file.read_text())
    assert (made["expect"], made["signature"], made["tape"]) == (stored["expect"], stored["signature"], stored["tape"])
    assert made["model_hash"] == model_hash()
    assert state_of(file, ask).stale == ""


def test_what_a_tape_does_not_show_any_more_is_looked_for_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fixtures_of, "SEARCH_SECONDS", 6.0)
    stored = json.loads((FIXTURES / "session-one-token-short.json").read_text())
    file = tmp_path / "old.json"
    file.write_text(json.dumps({**stored, "tape": []}))
    state = state_of(file, ask)
    assert (state.shown, state.stale) == (False, "its finding is not shown any more")
    assert remake(state) == ""
    assert state_of(file, ask).stale == ""


@pytest.mark.slow
def test_an_operation_whose_tape_stands_for_another_case_is_looked_for_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, release: Release
) -> None:
    name = "bonus-token-stride"
    stored = json.loads((FIXTURES / f"{name}.json").read_text())
    release(stored["target"].removeprefix("sglang=="))
    monkeypatch.setattr(fixtures_of, "SEARCH_SECONDS", 30.0)
    file = tmp_path / "old.json"
    file.write_text(json.dumps({**stored, "tape": []}))
    state = state_of(file, ask)
    assert (state.shown, state.stale) == (False, "its tape stands for another case")
    assert remake(state) == ""
    assert state_of(file, ask).stale == ""
    made = json.loads(file.read_text())
    assert all(made[key] == stored[key] for key in ("expect", "signature", "target"))


OF_OPERATIONS = [file for file in FILES if json.loads(file.read_text())["tier"] == "ops"]


@pytest.mark.parametrize("file", OF_OPERATIONS, ids=[file.stem for file in OF_OPERATIONS])
def test_the_tape_of_an_operations_fixture_gives_its_tensors(file: Path) -> None:
    stored = replay_file.load(file)
    assert isinstance(stored, OpReplay)
    op = OPS[stored.op]
    op = with_bulk_cases(op) if stored.generator == "bulk" else op
    assert is_case_of(stored, op.generate(replayed(stored.tape)))


def test_the_reports_to_engines_name_fixtures() -> None:
    pages = sorted((ROOT / "docs" / "upstream").glob("*.md"))
    named = {name for page in pages for name in re.findall(r"fixtures/replays/[\w.-]+\.json", page.read_text())}
    assert named
    assert all((ROOT / name).is_file() for name in named)


def test_continuous_integration_lists_stale_fixtures() -> None:
    assert "make stale" in (ROOT / ".ci" / "run").read_text()
