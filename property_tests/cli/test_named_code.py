"""A file does not choose which module is run: it is named on the command line, or the file is trusted."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from specsim import cli
from specsim.errors import UsageError
from specsim.findings.pin import Pinned
from specsim.testing import assert_gone, assert_still_there

FIXTURES = Path(__file__).parents[2] / "fixtures" / "replays"
EVIL = 'from pathlib import Path\n\nPath("ran").touch()\nprovider = {}\n'


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with a module that notes that it was imported, and a replay file that names it."""
    (tmp_path / "evil.py").write_text(EVIL)
    stored = json.loads((FIXTURES / "bonus-token-stride.json").read_text())
    (tmp_path / "case.json").write_text(json.dumps({**stored, "target": "evil:provider"}))
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    return tmp_path


def ran(capfd: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, str]:
    with pytest.raises(SystemExit) as ended:
        cli.main(list(arguments))
    said = capfd.readouterr()
    return int(ended.value.code or 0), said.out + said.err


@pytest.mark.parametrize(
    "arguments",
    [
        ["replay", "case.json"],
        ["shrink", "case.json"],
        ["pin", "case.json"],
    ],
)
def test_a_module_that_a_file_names_is_refused_before_it_is_run(
    folder: Path, arguments: list[str], capfd: pytest.CaptureFixture[str]
) -> None:
    code, said = ran(capfd, *arguments)
    assert code == 2, said
    assert "names evil:" in said
    assert "runs the code of that module" in said
    assert "give --trust" in said.lower()
    assert not (folder / "ran").exists()
    assert not list(folder.glob("test_*"))


def test_a_report_lists_the_file_that_names_a_module_and_makes_the_rest(
    folder: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    (folder / "run").mkdir()
    (folder / "case.json").rename(folder / "run" / "case.json")
    with pytest.raises(SystemExit):
        cli.main(["report", "run", "--json", "report.json"])
    (entry,) = json.loads((folder / "report.json").read_text())["entries"]
    assert "names evil:provider" in entry["why_not"]
    assert not (folder / "ran").exists()


def test_a_module_that_is_named_or_trusted_is_run(folder: Path, capfd: pytest.CaptureFixture[str]) -> None:
    for option in (["--trust"], ["--target", "evil:provider"]):
        code, said = ran(capfd, "replay", "case.json", *option)
        assert code == 2, said  # it has no such operation
        assert (folder / "ran").exists(), said
        (folder / "ran").unlink()
    assert "case.json names evil:provider: its code is run" not in said


def test_the_code_of_a_release_is_named_before_it_is_run(
    folder: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def nothing_yet(*_arguments: Any, **_options: Any) -> dict[str, Any]:
        raise UsageError(capfd.readouterr().err, "said before")

    monkeypatch.setattr("specsim.tiers.replaying.replay", nothing_yet)
    stored = json.loads((folder / "case.json").read_text())
    (folder / "checkout.json").write_text(json.dumps({**stored, "target": "sglang@gone\x85#rev"}))
    code, said = ran(capfd, "replay", "checkout.json")
    assert (code, "checkout.json names sglang@gone\\x85#rev: its code is run" in said) == (2, True), said


def test_an_assertion_that_names_the_module_counts_as_naming_it(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[str] = []

    def replayed(_file: Path, target: str, _seconds: float) -> Pinned:
        asked.append(target)
        return Pinned(True, False, "")

    monkeypatch.setattr("specsim.findings.pin.replay_pinned", replayed)
    assert_gone("case.json", "evil:provider")
    for assertion in (assert_gone, assert_still_there):
        with pytest.raises(UsageError, match=r"names evil:provider.*name it"):
            assertion("case.json")
    assert asked == ["evil:provider"]


def test_a_store_that_names_a_module_is_not_gone_on_with(folder: Path, capfd: pytest.CaptureFixture[str]) -> None:
    options = ["--store", "c.db", "--jobs", "1", "--budget-seconds", "1", "--only", "scheduler"]
    (folder / "evil.py").write_text(EVIL + "from property_tests.support.own_engine import Engine\nengine = Engine()\n")
    code, said = ran(capfd, "fuzz", "evil:engine", *options)
    assert code == 0, said
    (folder / "ran").unlink()
    for arguments in (["fuzz", "--resume", *options[:-2]], ["fuzz", "--again", "0:3", "--store", "c.db"]):
        code, said = ran(capfd, *arguments)
        assert code == 2, said
        assert "c.db names evil:engine" in said
        assert not (folder / "ran").exists()
    code, said = ran(capfd, "fuzz", "--resume", "--trust", *options[:-2])
    assert code == 0, said
    assert (folder / "ran").exists()


def test_the_command_that_a_finding_ends_in_names_its_module() -> None:
    from specsim.replay_file import command

    assert command("a b.json", "mine:provider", "mine:provider") == "specsim replay 'a b.json' --target mine:provider"
    for target in ("model", "sglang==1.2.3", "sglang@/a:b", "model with mutant A01"):
        assert command("f.json", target, target) == "specsim replay f.json"
