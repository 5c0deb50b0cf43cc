"""The page of a finding, without a browser: what it holds is what the trace says, and nothing in it can run."""

from __future__ import annotations

import base64
import dataclasses
import hashlib
import json
import re
import shutil
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from property_tests.support.command_line import specsim
from property_tests.support.pages import (
    COMMAND,
    FIXTURE,
    HERE,
    HOSTILE,
    ROOT,
    Outline,
    longer,
    made_up_payload,
    made_up_schedule,
    op_answer,
    op_replay,
    payload_in,
    renamed,
    states_of,
)
from specsim import replay_file
from specsim.choices.chooser import replayed
from specsim.cli import main
from specsim.commands.pages import write_page
from specsim.commands.source_lines import LINES_MAX, source_of
from specsim.contracts.provider import MappingProvider
from specsim.contracts.registry import OPS
from specsim.lifting.cache import Cache
from specsim.report.page.payload import PageContext, payload_of
from specsim.report.page.plain import in_html, plain, visible
from specsim.report.page.render import html_of
from specsim.tiers.messages import Replay, Replayed, Request
from specsim.tiers.ops import answers as ops_answers
from specsim.tiers.ops.page import COLUMNS_MAX, ROWS_MAX, tensors_of
from specsim.tiers.ops.run import compared
from specsim.tiers.registry import TIERS
from specsim.tiers.states import changed, ranges
from specsim.tiers.tier import Page

BYTES_MAX = 2_000_000
CASE = ROOT / "fixtures" / "replays" / "bonus-token-stride.json"
HOSTILE_NAMES = {"r0": HOSTILE[0], "r1": HOSTILE[1], "host": HOSTILE[2]}


@dataclasses.dataclass
class Made:
    """The page of a schedule that is made up."""

    html: str
    payload: dict[str, Any]


@pytest.fixture(scope="module")
def made() -> Made:
    html = html_of(made_up_payload())
    return Made(html, payload_in(html))


# The states


def test_what_changed_is_all_that_is_new_or_gone() -> None:
    before: dict[str, dict[str, Any]] = {"a": {"1": 1, "2": 2}, "b": {"x": []}}
    now = {"a": {"1": 1, "2": 3}, "c": {"y": 0}}
    assert changed(before, now) == {"a": {"2": 3}, "b": {"x": None}, "c": {"y": 0}}
    assert changed(now, now) == {}


@given(st.lists(st.integers(0, 30)))
def test_ranges_say_the_numbers_in_their_order(numbers: list[int]) -> None:
    said = [part.split("-") for part in ranges(numbers).split()]
    assert [n for part in said for n in range(int(part[0]), int(part[-1]) + 1)] == numbers


# The payload


def test_the_page_has_the_lines_of_the_trace(made: Made) -> None:
    (trace,) = re.findall(r'<details class="trace" id="trace">.*?<pre.*?</pre>', made.html, re.DOTALL)
    text = re.sub("<[^>]+>", "", trace)
    for event in made.payload["play"]["events"]:
        assert event["line"].replace(">", "&gt;") in text


def test_the_page_says_what_the_finding_says(made: Made) -> None:
    stored, _answer = made_up_schedule()
    finding = made.payload["finding"]
    assert (finding["rule"], finding["signature"]) == (stored.rule, stored.signature)
    assert finding["rule_label"] == "content-read (I05)"
    assert finding["severity"] == "wrong-result"
    assert finding["verdict"] == "Reproduced, bit for bit."
    (violation,) = made.payload["violations"]
    assert (violation["event"], violation["rule"]) == (5, "I05")
    assert made.payload["command"] == COMMAND
    tables = {title: dict(rows) for title, rows in made.payload["tables"].items()}
    assert tables["Replay"]["setup"] == "pages of 1"
    assert "2 tokens for 2" in tables["What users do"]["r1"]


def test_the_states_say_what_was_read_at_the_event_that_breaks_the_rule(made: Made) -> None:
    before, after = states_of(made.payload)[-2:]
    assert before["slots"]["7"] == ["r1", 0, "r1@0", "r1@0"]
    assert after["slots"]["7"] == ["r1", 0, "r0@1", "r1@0"]
    assert after["request r1"]["committed"] == 3


def test_every_row_maps_to_slots_of_its_owner(made: Made) -> None:
    for state in states_of(made.payload):
        for name, (row, _, allocated, *_) in state.get("owners", {}).items():
            for position in range(allocated):
                slot = state["cells"][f"{row},{position}"]
                assert state["slots"][str(slot)][:2] == [name, position]


def test_a_checkouts_lines_are_read_where_it_lies(tmp_path: Path) -> None:
    body = [f"    x = {number}" for number in range(100)]
    (tmp_path / "srt").mkdir()
    (tmp_path / "srt" / "a.py").write_text("\n".join(["def before():", "    pass", "", "def f():", *body, "", "y = 1"]))
    cache = Cache(tmp_path / "cache")

    def lines(where: str) -> list[str] | None:
        source = source_of(f"sglang@{tmp_path}", "", where, cache)
        return source["lines"] if source else None

    assert lines("srt/a.py:2") == ["def before():", "    pass"]
    assert lines("srt/a.py:104") == [line.strip() for line in body[-15:]]
    assert len(lines("srt/a.py:4") or ()) == LINES_MAX
    for gone in ("srt/a.py:900", "srt/b.py:1", "../a.py:1", "srt/a.py", "", "/etc/passwd:1"):
        assert lines(gone) is None


# The file


def test_the_page_is_one_small_file_that_loads_nothing(made: Made) -> None:
    assert len(made.html) < BYTES_MAX / 10
    outline = Outline(made.html)
    assert [link for link in outline.links if not link.startswith(("#", "data:,"))] == []
    assert not {"iframe", "object", "embed", "base", "form"} & {tag for tag, _ in outline.elements}
    assert "@import" not in made.html
    assert "url(" not in made.html


def test_the_policy_of_the_page_allows_its_own_script_and_style_alone(made: Made) -> None:
    (policy,) = re.findall('http-equiv="Content-Security-Policy" content="([^"]+)"', made.html)
    scripts = re.findall("<script>(.*?)</script>", made.html, re.DOTALL)
    styles = re.findall("<style>(.*?)</style>", made.html, re.DOTALL)
    for kind, (text,) in (("script-src", scripts), ("style-src", styles)):
        digest = base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()
        assert f"{kind} 'sha256-{digest}'" in policy
    assert "default-src 'none'" in policy
    assert "unsafe" not in policy


def test_a_schedule_of_thousands_of_events_is_a_page_too(made: Made) -> None:
    long = longer(made.payload, 840)
    assert len(long["play"]["events"]) > 5000
    assert len(html_of(long)) < 4 * BYTES_MAX


# Hostile text


@given(st.lists(st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=20), max_size=6))
def test_any_value_comes_back_as_it_is_shown_and_is_no_markup(value: Any) -> None:
    text = in_html(plain(value))
    assert not set("<>&'") & set(text)
    assert json.loads(text) == plain(value)


@given(st.text(st.characters(), max_size=80))
def test_nothing_that_cannot_be_seen_is_left_in_a_text(text: str) -> None:
    shown = visible(text)
    shown.encode("utf-8")
    assert all(c == " " or c.isprintable() or not c.isascii() for c in shown)
    assert not set(shown) & set("\x00\x1b\x7f\x9b\u200b\u200f\u202e\u2066\ufeff\n\t")


def test_a_long_text_is_cut_and_says_so() -> None:
    assert visible("a" * 5000).endswith("... (1000 more characters)")


def test_integers_that_a_browser_would_round_are_texts() -> None:
    assert plain([2**53, 2**53 - 1, -(2**60), float("nan"), True]) == [
        str(2**53),
        2**53 - 1,
        str(-(2**60)),
        "nan",
        True,
    ]


def test_a_hostile_replay_file_makes_no_element_either(made: Made) -> None:
    stored, answer = made_up_schedule()
    bad = "".join(HOSTILE)
    violation = {**answer["violations"][0], **dict.fromkeys(("part", "where", "who", "expected", "actual"), bad)}
    stored = dataclasses.replace(stored, title=bad, rule=bad, target=bad)
    shown = PageContext(bad, bad, bad, bad, source={"where": bad, "first": 1, "line": 1, "lines": [bad], "note": bad})
    html = html_of(payload_of(stored, {**answer, "digest": bad, "setup": bad, "violations": [violation]}, shown))
    assert {tag for tag, _ in Outline(html).elements} <= {tag for tag, _ in Outline(made.html).elements}
    assert all(link.startswith(("#", "data:,")) for link in Outline(html).links)
    assert len(html) < BYTES_MAX


def test_hostile_text_makes_no_element_and_no_attribute(made: Made) -> None:
    payload = plain(renamed(made.payload, HOSTILE_NAMES))
    for name in ("title", "sentence", "target", "where", "who", "expected", "actual", "verdict", "rule", "signature"):
        payload["finding"][name] = visible(HOSTILE[0])
    payload["source"]["lines"] = [visible(text) for text in HOSTILE] * 3
    payload["notes"] = [visible(text) for text in HOSTILE]
    usual, hostile = Outline(made.html), Outline(html_of(payload))
    assert set(hostile.elements) <= set(usual.elements)
    assert hostile.links == usual.links


# The other tiers


def test_the_page_of_a_case_marks_the_elements_that_differ() -> None:
    html = html_of(payload_of(op_replay(), op_answer(), HERE))
    assert html.count('class="differs"') == 1
    assert "<b>7</b><span><i>not</i> 5</span>" in html
    assert html.count('class="undefined"') == 1
    assert "out <small>output, [3], 1 differs</small>" in html
    assert html.count('class="panel tensor output wrong"') == 1
    assert '<p class="what">model</p>' in html
    assert 'class="s0 padding">-1' in html
    assert "the caller is wrong" in html


def test_what_lies_between_no_two_numbers_is_marked_as_odd() -> None:
    odd = {"shape": [4], "data": [1.5, float("nan"), float("-inf"), -1]}
    html = html_of(payload_of(op_replay(), op_answer(inputs={"x": odd}), HERE))
    assert re.findall(r'class="odd">(\S+?)<', html) == ["nan", "-inf"]


@pytest.mark.parametrize("wrong_from", [1, 2, 9])
def test_outputs_are_those_of_the_first_run_that_differs(wrong_from: int) -> None:
    op, calls = OPS["fill_bonus_tokens"], []

    def luck(predict: Any, accept_index: Any, accept_lens: Any) -> Any:
        calls.append(1)
        return op.reference(predict, accept_index, accept_lens) + int(len(calls) >= wrong_from)

    (subject,) = MappingProvider("luck", {op.name: luck}).subjects()[0]
    shown = compared(op, subject, op.generate(replayed(())))
    assert bool(shown["bonus_tokens"].differs.any()) == (wrong_from < 9)


def test_a_case_that_raised_shows_what_was_expected() -> None:
    payload = payload_of(op_replay(), op_answer(outputs={}), HERE)
    assert [(t["name"], t["role"]) for t in payload["tensors"]] == [("given", "input"), ("out", "expected")]
    html_of(payload)


@given(st.data())
def test_the_window_of_a_large_tensor_holds_the_first_difference(data: st.DataObject) -> None:
    shape = data.draw(st.lists(st.integers(1, 90), min_size=1, max_size=2))
    size = shape[0] * (shape[1] if len(shape) > 1 else 1)
    at = data.draw(st.integers(0, size - 1))
    differs = [index == at for index in range(size)]
    output = {"actual": {"shape": shape, "data": list(range(size))}, "defined": [True] * size, "differs": differs}
    (shown,) = tensors_of(
        {"expected": {"x": {"shape": shape, "data": [0] * size}}, "outputs": {"x": output}, "inputs": {}}
    )
    assert len(shown["values"]) <= ROWS_MAX
    assert all(len(row) <= COLUMNS_MAX for row in shown["values"])
    values, marks = ([each for row in shown[name] for each in row] for name in ("values", "differs"))
    assert [value for value, mark in zip(values, marks, strict=True) if mark] == [at]
    assert bool(shown["note"]) == (size > sum(map(len, shown["values"])))


@pytest.mark.parametrize("shape", [[], [0], [2, 0], [0, 3]])
def test_tensors_without_elements_or_extents_are_shown(shape: list[int]) -> None:
    tensor = {"shape": shape, "data": [] if 0 in shape else [5]}
    html_of(payload_of(op_replay(), op_answer(inputs={"x": tensor}), HERE))


# The commands


def test_a_page_can_be_made_of_a_users_own_function(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    lines = ["def f(predict, accept_index, accept_lens):", "    return predict[accept_index[:, -1].long()]"]
    (tmp_path / "theirs.py").write_text("\n".join([*lines, 'provider = {"fill_bonus_tokens": f}']) + "\n")
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    file, target = CASE, "theirs:provider"
    answers: list[dict[str, Any]] = []

    class Heard:
        def send(self, message: Any) -> None:
            answers.extend([message.answer] if isinstance(message, Replayed) else [])

    of_it: dict[str, Any] = {"tier": "ops", "target": target, "cache": str(tmp_path), "seed": 0, "count": 1}
    request = Request(**of_it, seconds=20.0, hang_seconds=20.0)
    ops_answers.replay(request, Replay(file=str(file), record=True), Heard())  # type: ignore[arg-type]
    out = tmp_path / "out.html"
    write_page(replay_file.load(file), file, json.loads(json.dumps(answers[-1])), target, tmp_path, out)
    payload = payload_in(out.read_text())
    assert (payload["kind"], payload["finding"]["severity"]) == ("case", "wrong-result")
    assert payload["command"].endswith(f"--target {target}")
    assert payload["source"]["where"] == "theirs.py:1"
    assert payload["source"]["lines"] == lines
    assert sum(tensor["count"] for tensor in payload["tensors"]) == 2


def test_an_output_that_cannot_be_written_is_refused_before_anything_runs(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "file").write_text("")
    for option, output in (("--html", "."), ("--html", "file/out.html")):
        with pytest.raises(SystemExit, match="2"):
            main(["replay", str(FIXTURE), option, str(tmp_path / output)])
        said = capsys.readouterr()
        assert said.err.startswith(f"specsim: {option} ")
        assert said.out == ""


def test_a_report_links_a_page_for_each_finding_and_says_why_one_has_none(tmp_path: Path) -> None:
    (tmp_path / "findings").mkdir()
    shutil.copy(CASE, tmp_path / "findings")
    (tmp_path / "findings" / "bad <b>.json").write_text("{")
    ended = specsim(tmp_path, "report", "findings", "--html", "out", "--data", str(ROOT))
    assert ended.returncode == 0, ended.stderr
    index = (tmp_path / "out" / "index.html").read_text()
    outline = Outline(index)
    assert outline.links == ["data:,", f"{CASE.stem}.html"]
    assert payload_in((tmp_path / "out" / f"{CASE.stem}.html").read_text())["finding"]["rule"] == "O1"
    assert "bad &lt;b&gt;.json" in index
    assert "ops:ops:" not in index
    for text in ("1 finding<", "Which release has which bug", "Historic bugs put back", "Speed", "A02-retracted"):
        assert text in index


def test_a_finding_that_is_gone_keeps_its_own_rule_and_place(monkeypatch: pytest.MonkeyPatch) -> None:
    stored = replay_file.load(FIXTURE)
    other = {"rule": "S3", "sentence": "another rule", "where": "other.py:1", "actual": "5"}
    monkeypatch.setattr(type(TIERS[stored.tier]), "page", lambda *_arguments: Page("probe", other, {}))
    finding = payload_of(stored, {}, PageContext("sglang@.", "specsim replay x.json", "gone"))["finding"]
    assert finding["sentence"] == TIERS[stored.tier].rules[stored.rule].sentence
    assert (finding["where"], finding["actual"]) == (stored.where, "")
