"""Text of a target is shown and never obeyed: not by a terminal, not by the runner of a workflow."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from specsim.commands.options import tell
from specsim.commands.pages import free_name, write_report
from specsim.report.junit import junit_of
from specsim.report.live import live
from specsim.report.page.plain import visible
from specsim.report.terminal import console_of, escape

FIXTURES = Path(__file__).parents[2] / "fixtures" / "replays"
HOSTILE = "a\x1b]0;x\x07\r\n::error::b ##[error]c ###[group]d \u202e\x9b2J"
CONTROLS = "\x1b\x07\r\x9b\u202e"


def is_harmless(printed: str) -> bool:
    lines = printed.splitlines()
    return not any(
        "##[" in line or line.lstrip().startswith("::") or any(control in line for control in CONTROLS)
        for line in lines
    )


@given(st.lists(st.sampled_from(["#", "##[", "[", "::", ":", " ", "error", "]", "\n", "\x1b", "\t"]), max_size=12))
def test_visible_text_is_no_command_of_a_runner(parts: list[str]) -> None:
    for text in (visible("".join(parts)), escape("".join(parts)).replace("\\[", "[")):
        assert is_harmless(text), text


def test_text_that_is_no_command_stays_as_it_is() -> None:
    for text in ("a # b", "sglang@.#main", "#[derive]", "a::b", "## title"):
        assert visible(text) == text


def test_a_line_that_is_reported_is_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    tell(HOSTILE)
    tell(HOSTILE, err=True)
    printed = capsys.readouterr()
    for text in (printed.out, printed.err):
        assert is_harmless(text)
        assert len(text.splitlines()) == 1


def test_a_signature_has_no_emoji(capsys: pytest.CaptureFixture[str]) -> None:
    signature = "scheduler:S1:request:running:"
    console_of().print(escape(signature))
    with live("fuzzing", 1.0) as line:
        line.say(signature)
    printed = capsys.readouterr()
    assert (printed.out, printed.err) == (f"{signature}\n", f"{signature}\n")


def test_what_a_campaign_says_beside_its_live_line_is_harmless(capsys: pytest.CaptureFixture[str]) -> None:
    with live("fuzzing", 1.0) as line:
        line.say(f"new: {HOSTILE}")
    printed = capsys.readouterr()
    assert "new: a\\x1b" in printed.out + printed.err
    assert is_harmless(printed.out)
    assert is_harmless(printed.err)


def test_junit_holds_no_control_character() -> None:
    finding = {
        **dict.fromkeys(("rule", "sentence", "title", "signature", "severity", "reach", "where"), HOSTILE),
        "expected": HOSTILE,
        "actual": HOSTILE,
        "tier": "ops",
        "count": 1,
        "details": [HOSTILE],
        "replay": HOSTILE,
    }
    suite = {"name": "ops", "judged": [], "schedules": 0, "not_run": [], "seconds": 1.0, "cases": 1, "events": 0}
    text = junit_of([{"target": HOSTILE, "suites": [suite], "findings": [finding]}])
    assert is_harmless(text.replace("\n::", ""))


# ---- pages


def test_two_replays_never_share_a_page(tmp_path: Path) -> None:
    stored = (FIXTURES / "bonus-token-stride.json").read_text()
    names = ["a b", "a-b", "A-B", "index", "Index", "\u00e9", "\u00e8", "..", "a-b-2"]
    for name in names:
        (tmp_path / f"{name}.json").write_text(stored)
    told = {
        "subject": "s",
        "where": "",
        "digest": "",
        "explanation": "",
        "violations": [],
        "inputs": {},
        "expected": {},
    }
    recorded = {"judged": True, "same_source": True, **told}
    write_report(tmp_path, tmp_path / "html", tmp_path, lambda _stored, _file: recorded, None, tmp_path / "r")
    entries = json.loads((tmp_path / "r").read_text())["entries"]
    pages = [entry["page"] for entry in entries]
    assert len(pages) == len(names)
    assert len({page.casefold() for page in pages}) == len(names)
    assert all((tmp_path / "html" / page).is_file() for page in pages)
    assert "index.html" not in pages


def test_a_name_that_is_taken_gets_a_number() -> None:
    taken = {"index"}
    assert [free_name(name, taken) for name in ("a", "A", "a", "a-2", "index", "")] == [
        *("a", "A-2", "a-3", "a-2-2", "index-2", "page"),
    ]
