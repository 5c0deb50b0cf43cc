"""The page about the virtual device does what it says."""

from __future__ import annotations

import re
import runpy
from pathlib import Path
from typing import get_args

import pytest

from property_tests.support.source_files import ROOT
from specsim.vdevice import findings

PAGE = (ROOT / "docs" / "virtual-device.md").read_text()
BLOCKS = re.findall(r"^```(\w+)\n(.*?)^```$", PAGE, re.MULTILINE | re.DOTALL)
SNIPPETS = [text for kind, text in BLOCKS if kind == "python"]


def run(snippet: str, folder: Path) -> dict[str, object]:
    file = folder / "overlap.py"
    file.write_text(snippet)
    return runpy.run_path(str(file))


def test_the_race_prints_what_the_page_shows(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (shown,) = [text.partition("\n")[2] for kind, text in BLOCKS if kind == "console"]
    run(SNIPPETS[0], tmp_path)
    assert capsys.readouterr().out == shown


def test_with_the_wait_that_the_page_names_there_is_no_finding(tmp_path: Path) -> None:
    (wait,) = re.findall(r"`(copy_stream\.wait_stream\(.*?\))` before", PAGE)
    before = "    with torch.cuda.stream(copy_stream):"
    assert before in SNIPPETS[0]
    left = run(SNIPPETS[0].replace(before, f"    {wait}\n{before}"), tmp_path)
    assert vars(left["device"])["findings"] == []


def test_the_other_snippets_run(tmp_path: Path) -> None:
    for snippet in SNIPPETS[1:]:
        left = run(snippet, tmp_path)
        for seed in range(20):
            left.get("test_pipeline", lambda _: None)(seed)  # type: ignore[operator]


def test_every_kind_of_finding_is_listed() -> None:
    assert re.findall(r"^\| `([\w-]+)` \|", PAGE, re.MULTILINE) == list(get_args(findings.Kind))
