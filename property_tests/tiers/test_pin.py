"""What happens with a finding: pinned as a test, replayed twice, replayed after a change; and the canary."""

from __future__ import annotations

import ast
import dataclasses
import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from property_tests.support.command_line import specsim
from property_tests.support.wrong_providers import WRONG
from specsim import cli, replay_file, testing
from specsim.commands import check
from specsim.errors import NondeterministicError
from specsim.findings.pin import source_of_test
from specsim.replay_file import SchedulerReplay
from specsim.selfcheck.canary import sing
from specsim.selfcheck.mutation import find
from specsim.tiers import process, replaying
from specsim.tiers.messages import At, Replayed, Request

ROOT = Path(__file__).parents[2]
FIXTURES = ROOT / "fixtures" / "replays"


ENGINES = """
from property_tests.support.own_engine import Engine


def third(requests):
    if requests == 3:
        raise ValueError("three")


breaks, sound = Engine(third), Engine()
"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a finding of each tier."""
    folder = tmp_path_factory.mktemp("findings")
    (folder / "mine.py").write_text("\n".join(line[4:] for line in WRONG.splitlines()) + ENGINES)
    specsim(folder, "check", "mine:provider", "--cases", "5", "--device", "cpu", "--out", "case")
    specsim(folder, "check", "mine:breaks", "--only", "scheduler", "--schedules", "5", "--out", "schedule")
    return folder


def found(folder: Path, tier: str) -> str:
    return str(sorted((folder / tier).iterdir())[0])


def run_pytest(folder: Path, test: str) -> subprocess.CompletedProcess[str]:
    path = os.pathsep.join([str(ROOT), *filter(None, sys.path)])
    return subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-rs", "-p", "no:cacheprovider", "--noconftest", test],
        cwd=folder,
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
        env={**os.environ, "PYTHONPATH": path, "SPECSIM_CACHE_DIR": str(folder / "cache")},
    )


# Pinning


@pytest.mark.parametrize("tier", ["case", "schedule"])
@pytest.mark.slow(runs_one_in=5)
def test_a_pinned_finding_fails_while_it_is_there_and_with_still_it_passes(folder: Path, tier: str) -> None:
    for option, code in (([], 1), (["--still"], 0)):
        name = f"pinned/test_{tier}{len(option)}.py"
        ended = specsim(folder, "pin", found(folder, tier), "--trust", "--out", name, *option)
        assert ended.returncode == 0, ended.stderr
        ran = run_pytest(folder, name)
        assert ran.returncode == code, ran.stdout
    text = (folder / name).read_text()
    stored = json.loads((folder / name).with_suffix(".json").read_text())
    prose = " ".join((ast.get_docstring(ast.parse(text)) or "").split())
    assert stored["signature"] in prose
    assert f"Rule {stored['rule']}" in prose
    assert stored["title"][1:].replace('"', "'") in prose


def test_a_pinned_finding_passes_when_it_is_gone(folder: Path) -> None:
    stored = json.loads(Path(found(folder, "schedule")).read_text())
    (folder / "sound.json").write_text(json.dumps({**stored, "target": "mine:sound"}))
    specsim(folder, "pin", "sound.json", "--trust", "--out", "test_sound.py")
    ran = run_pytest(folder, "test_sound.py")
    assert (ran.returncode, "1 passed" in ran.stdout) == (0, True), ran.stdout


def test_pinned_tests_are_clean_for_ruff(tmp_path: Path) -> None:
    for file in sorted(FIXTURES.glob("*.json")):
        name = file.stem.replace("-", "_")
        (tmp_path / f"test_{name}.py").write_text(source_of_test(replay_file.load(file), "sglang@a/b", still=False))
    for command in (["check"], ["format", "--check"]):
        ended = subprocess.run(
            [sys.executable, "-m", "ruff", *command, "--no-cache", "--config", ROOT / "pyproject.toml", tmp_path],
            capture_output=True,
            text=True,
            check=False,
        )
        assert ended.returncode == 0, ended.stdout


HOSTILE = st.text(max_size=300) | st.sampled_from(
    [
        '"""\nimport os; os.abort()\n"""',
        "\\",
        '\\"',
        "\n\n# coding: utf-7\n",
        "# -*- coding: utf-7 -*-",
        "\x00\r\x0c\x1b]0;x\x07",
        "\ud800",
        "\u2028import os",
        "{__import__('os')}",
        "'); import os; ('",
        "test_" * 60,
        "",
    ]
)
TEXTS = ("target", "part", "where", "source_hash", "rule", "signature", "title", "digest", "mutant")


def names_in(text: str) -> set[str]:
    """Every module that a test imports, with the names that it takes from it."""
    imports = [node for node in ast.walk(ast.parse(text)) if isinstance(node, ast.Import | ast.ImportFrom)]
    return {
        f"{node.module}.{alias.name}" if isinstance(node, ast.ImportFrom) else alias.name
        for node in imports
        for alias in node.names
    }


@pytest.mark.parametrize("still", [False, True])
def test_a_pinned_test_uses_public_names_alone(still: bool) -> None:
    text = source_of_test(replay_file.load(FIXTURES / "slots-freed-under-a-running-request.json"), "model", still)
    ours = {name for name in names_in(text) if name.startswith("specsim")}
    (name,) = ours
    assert name.removeprefix("specsim.testing.") in testing.__all__


@given(texts=st.fixed_dictionaries(dict.fromkeys(TEXTS, HOSTILE)), target=HOSTILE, still=st.booleans())
def test_a_value_of_a_replay_file_never_becomes_code(texts: dict[str, str], target: str, still: bool) -> None:
    """Whatever the values are, a pinned test is the same statements with another docstring, target and name."""
    stored = replay_file.load(FIXTURES / "slots-freed-under-a-running-request.json")
    expected = ast.parse(source_of_test(stored, "model", still))
    text = source_of_test(SchedulerReplay(**{**vars_of(stored), **texts}), target, still)
    written = text.encode("utf-8", errors="backslashreplace")
    shape = ast.parse(written)
    function = shape.body[-1]
    assert isinstance(function, ast.FunctionDef)
    assert function.name.isidentifier()
    assert function.name.startswith("test_")
    (assigned,) = [node for node in shape.body if isinstance(node, ast.Assign) and "TARGET" in ast.unparse(node)]
    assert ast.literal_eval(assigned.value) == target
    assigned.value, function.name = ast.Constant("model"), "test_it"
    (benign,) = [node for node in expected.body if isinstance(node, ast.FunctionDef)]
    benign.name = function.name
    assert isinstance(shape.body[0], ast.Expr)
    assert isinstance(shape.body[0].value, ast.Constant)
    assert ast.dump(ast.Module(shape.body[1:], [])) == ast.dump(ast.Module(expected.body[1:], []))


def test_a_hostile_replay_file_is_pinned_as_the_finding_that_it_is(folder: Path) -> None:
    stored = json.loads(Path(found(folder, "schedule")).read_text())
    hostile = '"""\nopen("code", "w")\n"""'
    texts = {"title": hostile, "digest": hostile, "where": hostile, "events": [hostile, hostile]}
    (folder / "hostile.json").write_text(json.dumps({**stored, **texts}))
    specsim(folder, "pin", "hostile.json", "--trust", "--out", "test_hostile.py")
    ran = run_pytest(folder, "test_hostile.py")
    assert (ran.returncode, "1 failed" in ran.stdout) == (1, True), ran.stdout
    assert not (folder / "code").exists()


def vars_of(stored: Any) -> dict[str, Any]:
    return {name: getattr(stored, name) for name in (field.name for field in dataclasses.fields(stored))}


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["pin", "absent.json"], "cannot read absent.json"),
        (["pin", "{schedule}", "--trust", "--out", "mine.py"], "not a file that pytest collects"),
        (["pin", "{schedule}", "--trust", "--out", "test_there.py"], "test_there.py is there already"),
        (["pin", "{schedule}", "--target", "tensorrt==1.0"], "tensorrt==1.0"),
        (["dev", "check", "mine:provider", "--canary"], "--canary with mine:provider"),
    ],
)
def test_bad_input_is_one_clear_sentence_with_exit_code_2(folder: Path, arguments: list[str], words: str) -> None:
    (folder / "test_there.py").write_text("")
    ended = specsim(folder, *[argument.format(schedule=found(folder, "schedule")) for argument in arguments])
    assert ended.returncode == 2, ended.stdout
    assert words in ended.stderr
    assert len(ended.stderr.strip().splitlines()) == 2 + ("--trust" in arguments)  # whose code would run


# Twice


@pytest.mark.parametrize("tier", ["case", "schedule"])
@pytest.mark.slow(runs_one_in=2)
def test_verify_runs_a_replay_twice_and_says_that_both_were_the_same(folder: Path, tier: str) -> None:
    ended = specsim(folder, "replay", found(folder, tier), "--verify", "--trust")
    assert (ended.returncode, "same in two processes" in ended.stdout) == (1, True), ended.stdout + ended.stderr


def answers(*messages: dict[str, Any]) -> Callable[..., dict[str, Any]]:
    remaining = iter(messages)
    return lambda *_arguments, **_options: next(remaining)


def twice(tier: str, monkeypatch: pytest.MonkeyPatch, *messages: dict[str, Any]) -> None:
    """Compare these answers as the two runs of a replay."""
    monkeypatch.setattr(replaying, "replay", answers(*messages))
    of_it: dict[str, Any] = {"tier": tier, "target": "model", "cache": "", "seed": 0, "count": 1}
    replaying.replay_twice(Request(**of_it, seconds=1.0, hang_seconds=1.0), Path())


def test_verify_names_the_first_launch_that_differs(monkeypatch: pytest.MonkeyPatch) -> None:
    one = {"events": ["   1  extend  r0", "   2  decode  r0"], "violations": [], "digest": "a"}
    two = {"events": ["   1  extend  r0", "   2  decode  r1"], "violations": [], "digest": "b"}
    with pytest.raises(NondeterministicError, match="launch 2 was '2 decode r0', then '2 decode r1'"):
        twice("scheduler", monkeypatch, one, two)
    with pytest.raises(NondeterministicError, match="digest was a, then b"):
        twice("scheduler", monkeypatch, one, {**one, "digest": "b"})


def test_verify_of_a_case_names_what_differs(monkeypatch: pytest.MonkeyPatch) -> None:
    one = {"violations": [{"title": "wrong"}], "digest": "a"}
    with pytest.raises(NondeterministicError, match=r"\['wrong'\], then no violation"):
        twice("ops", monkeypatch, one, {**one, "violations": []})


@pytest.mark.slow
def test_a_target_that_depends_on_the_hash_seed_ends_with_exit_code_3(folder: Path) -> None:
    (folder / "hashed.py").write_text(
        "def fill_bonus_tokens(predict, accept_index, accept_lens):\n"
        "    return predict[accept_index[:, -1].long()] + hash('a') % 1000003\n\n\n"
        'provider = {"fill_bonus_tokens": fill_bonus_tokens}\n'
    )
    specsim(folder, "check", "hashed:provider", "--cases", "3", "--device", "cpu", "--out", "hashed")
    ended = specsim(folder, "replay", found(folder, "hashed"), "--verify", "--trust")
    assert (ended.returncode, "nondeterministic" in ended.stderr) == (3, True), ended.stdout + ended.stderr


def test_a_replay_that_hangs_is_not_checked_and_never_a_finding_that_is_gone(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def hang(request: Request, *_limits: Any) -> Any:
        text = "does not end within 20 s"
        yield At(subject="s")  # the child lives when the process of the target does not
        told = {"rule": "O7", "sentence": "", "title": text, "expected": "", "actual": text}
        answer = {"judged": True, "same_source": True, "subject": "s", "where": "", "digest": "", "explanation": ""}
        yield Replayed(answer={**answer, "violations": [told], "inputs": {}, "expected": {}})

    monkeypatch.setattr(process, "ask", hang)
    with pytest.raises(SystemExit) as ended:
        cli.main(["replay", str(FIXTURES / "bonus-token-stride.json")])
    assert (ended.value.code, "not checked on" in capsys.readouterr().out) == (125, True)


def test_a_file_without_the_newer_fields_is_read(folder: Path) -> None:
    stored = json.loads(Path(found(folder, "schedule")).read_text())
    older = {name: value for name, value in stored.items() if name not in ("mutant", "events")}
    (folder / "older.json").write_text(json.dumps(older))
    ended = specsim(folder, "replay", "older.json", "--trust")
    assert (ended.returncode, "bit for bit" in ended.stdout) == (1, True)
    (folder / "odd.json").write_text(json.dumps({**stored, "events": [3]}))
    ended = specsim(folder, "replay", "odd.json", "--trust")
    assert (ended.returncode, "events must hold lines of text" in ended.stderr) == (2, True)


# The canary


def test_the_canary_is_found_and_a_blind_simulator_is_noticed(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    few = [find("A01"), find("D02")]
    found = list(sing(few))
    assert [hunted.found for hunted in found] == [1, 1]
    monkeypatch.setattr("specsim.selfcheck.canary.sing", lambda: sing(few, schedules_max=1))
    assert check._sing() == 1
    assert "A01             NOT FOUND" in capsys.readouterr().out
    monkeypatch.setattr("specsim.selfcheck.canary.sing", lambda: found)
    assert check._sing() == 0
    assert "pass: each is found" in capsys.readouterr().out


def test_continuous_integration_runs_the_canary() -> None:
    assert "dev check model --canary" in (ROOT / ".ci" / "run").read_text()


@pytest.mark.slow
def test_a_finding_and_its_smallest_schedule_are_the_same_under_every_hash_seed(folder: Path) -> None:
    written = []
    for hash_seed in ("1", "2"):
        arguments = ["--only", "scheduler", "--schedules", "5", "--out", hash_seed]
        ended = specsim(folder, "check", "mine:breaks", *arguments, PYTHONHASHSEED=hash_seed)
        assert ended.returncode == 1, ended.stderr
        written.append({path.name: path.read_bytes() for path in (folder / hash_seed).iterdir()})
    assert written[0] == written[1]
    assert written[0]
