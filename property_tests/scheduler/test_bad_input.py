"""Checkouts whose scheduler cannot be run: what moved is named, by file and line, and nothing of theirs is printed."""

from __future__ import annotations

import json
import shutil
import unittest
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from property_tests.support.known_releases import NEWEST
from property_tests.support.scheduler_checkouts import checkout, specsim
from property_tests.support.trees_between import root_of
from specsim.engines.sglang.scheduler.boot import HOOKS
from specsim.lifting.cache import Cache
from specsim.lifting.source import SourceTree
from specsim.testing import schedule
from specsim.world.fakes import AdapterDriftError, Answers, Fake

MODULES = {
    "server_args": "class ServerArgs:\n    def __init__(self, **_): ...\n"
    "def set_global_server_args_for_scheduler(_): ...\n",
    "distributed/parallel_state": "",
    "managers/overlap_utils": "_is_cuda = False\n",
}
"""What an adapter uses before it builds a Scheduler."""


def startable(root: Path, scheduler: str) -> Path:
    """A checkout that has all that is looked for before its Scheduler is built."""
    checkout(root, scheduler)
    package = root / "sglang" / "srt"
    for name, text in MODULES.items():
        path = package / f"{name}.py"
        path.parent.mkdir(exist_ok=True)
        (path.parent / "__init__.py").touch()
        path.write_text(text)
    return root


def not_run(root: Path, out: Path, *arguments: str) -> tuple[list[dict[str, Any]], str]:
    """What a check of one schedule says is not run, and what it prints on standard output."""
    ended = specsim("check", f"sglang@{root}", "--only", "scheduler", "--schedules", "1", "--json", out, *arguments)
    assert ended.returncode == 125, ended.stdout + ended.stderr
    (suite,) = json.loads(out.read_text())["suites"]
    assert suite["schedules"] == 0
    return suite["not_run"], ended.stdout


def test_what_a_fake_is_asked_for_must_be_on_the_list() -> None:
    answers = Answers({"worker.known": 7})
    worker = Fake("worker", answers, given=1)
    with answers.required():
        assert (worker.given, worker.known) == (1, 7)
    with pytest.raises(AdapterDriftError, match=r"reads worker\.first, worker\.second, which"), answers.required():
        assert (worker.second, worker.first) == (None, None)


def test_drift_is_said_even_where_something_fails_because_of_it() -> None:
    answers = Answers({})
    with pytest.raises(AdapterDriftError, match=r"reads worker\.size,"), answers.required():
        Fake("worker", answers).size + 1


def test_a_scheduler_that_has_moved_is_drift_attribute_by_attribute(tmp_path: Path) -> None:
    target = startable(tmp_path / "tree", "class Scheduler:\n    def run_event_loop(self): ...\n")
    (entry, *_), _ = not_run(target, tmp_path / "verdict.json")
    for hook in HOOKS:
        assert (f"Scheduler.{hook}" in entry["why"]) == (hook != "run_event_loop")
    assert entry["why"].startswith(("AdapterDriftError: drift: ", "drift: "))


@pytest.mark.parametrize(
    "name", ["Req.kv_allocated_len", "Scheduler.chunked_req", "SchedulerMetricsReporter.update_spec_metrics"]
)
def test_a_name_that_moved_is_drift_and_no_finding(
    name: str, release: Callable[[str], SourceTree], wheel_cache: Cache, tmp_path: Path
) -> None:
    """Of what only this adapter reads, and a checkout may well call something else."""
    release(NEWEST)
    tree = tmp_path / "tree"
    shutil.copytree(root_of(NEWEST) / "sglang", tree / "sglang")
    attribute = name.rpartition(".")[-1]
    for file in (tree / "sglang").rglob("*.py"):
        source = file.read_text(encoding="utf-8")
        if attribute in source:
            file.write_text(source.replace(attribute, "moved"), encoding="utf-8")
    written = schedule(f"sglang@{tree}", out=tmp_path / "found", cache_dir=wheel_cache.folder)
    written.start(3, 4)
    with pytest.raises(unittest.SkipTest, match=rf"not started so: its adapter fails: .*{name}\b"):
        written.check()


def test_a_release_that_fails_as_it_starts_is_not_run_with_file_and_line(tmp_path: Path) -> None:
    hooks = "".join(f"    def {hook}(self): ...\n" for hook in HOOKS)
    source = f"class Scheduler:\n{hooks}    def __init__(self, **given):\n        raise OSError('no NVIDIA driver')\n"
    entries, _ = not_run(startable(tmp_path / "tree", source), tmp_path / "verdict.json")
    assert all("no NVIDIA driver" in entry["why"] for entry in entries if entry["what"].startswith("setup"))
    assert entries[0]["why"].endswith(f"srt/managers/scheduler.py:{source.count(chr(10))}")


def test_a_folder_called_sglang_around_everything_is_none_of_the_release(tmp_path: Path) -> None:
    """Neither specsim's own engines/sglang nor a checkout's environment is blamed for what the release raises."""
    target = checkout(tmp_path / "sglang" / "work", "import yaml\nyaml.load = None\nimport sglang.srt.gone\n")
    (entry, *_), _ = not_run(target, tmp_path / "verdict.json")
    assert entry["why"].endswith("srt/managers/scheduler.py:3")


def test_what_a_release_prints_does_not_reach_standard_output(tmp_path: Path) -> None:
    noisy = "import os, sys\nprint('NOISE')\nos.write(1, b'NOISE')\nos.system('echo NOISE')\nraise OSError(2, 'gone')\n"
    target = checkout(tmp_path / "tree", noisy)
    ended = specsim("check", f"sglang@{target}", "--only", "scheduler", "--schedules", "1", "--json", "-")
    assert ended.returncode == 125
    assert "NOISE" not in ended.stdout
    assert json.loads(ended.stdout)["suites"][0]["name"] == "scheduler"


@pytest.mark.slow  # an import may take a minute and a half
def test_an_import_that_hangs_is_ended(tmp_path: Path) -> None:
    target = checkout(tmp_path / "tree", "import threading\nthreading.Event().wait()\n")
    out = tmp_path / "verdict.json"
    specsim(
        "check", f"sglang@{target}", "--only", "scheduler", "--schedules", "1", "--json", out,
        "--budget-seconds", "8", "--hang-seconds", "2", "--out", tmp_path / "out",
    )  # fmt: skip
    verdict = json.loads(out.read_text())
    said = [finding["signature"] for finding in verdict["findings"]]
    said += [entry["what"] for suite in verdict["suites"] for entry in suite["not_run"]]
    assert any("import" in text for text in said)
