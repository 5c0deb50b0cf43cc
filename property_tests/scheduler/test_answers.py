"""Everything that a user is told is compared, or it is said why not."""

from __future__ import annotations

import ast
import json
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace

import pytest

from property_tests.support.known_releases import FEW, RELEASES
from property_tests.support.told_answers import MISTAKES
from specsim.engines.sglang.scheduler.outputs import FIELDS, uneven, unknown_fields
from specsim.lifting.source import SourceTree
from specsim.rules.table import BY_ID

ROOT = Path(__file__).parents[2]
FOUND = {
    "another reason": "scheduler:I40:request:finish-reason",
    "another match": "scheduler:I40:request:finish-reason",
    "ends twice": "scheduler:I40:request:end",
    "never ends": "scheduler:S1:answer",
    "ends before its tokens": "scheduler:I40:request:end",
}


@pytest.mark.slow(runs_one_in=5)
@pytest.mark.parametrize("mistake", MISTAKES)
@pytest.mark.parametrize("version", [FEW[2], RELEASES[-1]])
def test_a_release_that_tells_users_something_else_is_found(
    release: Callable[[str], SourceTree], version: str, mistake: str
) -> None:
    release(version)  # or skips
    command = [sys.executable, "-m", "property_tests.support.told_answers", version, "6", mistake]
    ended = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True, timeout=400)
    assert FOUND[mistake] in json.loads(ended.stdout)


@pytest.mark.parametrize("version", RELEASES)
def test_every_field_of_an_answer_is_compared_or_it_is_said_why_not(
    release: Callable[[str], SourceTree], version: str
) -> None:
    classes = {
        node.name: node
        for node in ast.parse(release(version).read("srt/managers/io_struct.py")).body
        if isinstance(node, ast.ClassDef)
    }

    def fields_of(name: str) -> Iterator[str]:
        if name in classes:
            yield from (str(ast.unparse(n.target)) for n in classes[name].body if isinstance(n, ast.AnnAssign))
            for base in classes[name].bases:
                yield from fields_of(ast.unparse(base))

    assert set(fields_of("BatchTokenIDOutput")) <= FIELDS.keys()


def test_a_rule_that_compares_a_field_is_one_of_the_tier() -> None:
    for said in FIELDS.values():
        assert said.startswith(("not compared: ", "as ")) or said[:3].rstrip(",: ") in BY_ID


def test_a_field_that_a_release_adds_is_drift() -> None:
    class Message:
        rids: list[str]
        mood: list[str]

    assert unknown_fields(Message) == ["mood"]


def test_a_list_of_a_message_has_an_entry_for_each_request() -> None:
    message = SimpleNamespace(
        rids=["a", "b"],
        output_ids=[[1], [2]],
        retraction_counts=[0],
        cached_tokens=[1, 2, 3],
        input_token_logprobs_val=[],
        input_token_logprobs_idx=[[], []],
        output_top_logprobs_val=None,
        output_hidden_states=[[0.5]],
    )
    assert [(one.name, one.requests, one.elements) for one in uneven(message)] == [
        ("answers:cached_tokens", 2, 3),
        ("answers:input_token_logprobs_val", 2, 0),
        ("answers:retraction_counts", 2, 1),
    ]
    assert list(uneven(SimpleNamespace(rid="a"))) == []


def test_the_page_has_every_field() -> None:
    text = (ROOT / "docs" / "scheduler.md").read_text(encoding="utf-8")
    assert [f"| `{name}` | {said} |" for name, said in FIELDS.items() if f"| `{name}` | {said} |" not in text] == []
