"""A user's own provider that does what it should not: named in one sentence, as what is not run or as a finding."""

from __future__ import annotations

import textwrap
from pathlib import Path

import pytest

from property_tests.support.forked_target import forked
from specsim.errors import UsageError
from specsim.tiers.checking import run_suite
from specsim.tiers.messages import Request
from specsim.verdict import OTHER_CALL

PROVIDERS = """
    import os, sys, time
    import torch
    from specsim.contracts.registry import REFERENCE

    right = REFERENCE["fill_bonus_tokens"]

    def prints(predict, accept_index, accept_lens):
        print('{"event": "end"}')
        os.write(1, b"raw")
        return right(predict, accept_index, accept_lens)

    def exits(predict, accept_index, accept_lens):
        sys.exit(3)

    def leaves(predict, accept_index, accept_lens):
        sys.exit()

    def leaves_at_once(predict, accept_index, accept_lens):
        os._exit(0)

    def hangs(predict, accept_index, accept_lens):
        time.sleep(1000)

    def raises(predict, accept_index, accept_lens):
        raise KeyError("lost")

    def converts(predict, accept_index, accept_lens):
        return right(predict, accept_index, accept_lens).long()

    def cuts(predict, accept_index, accept_lens):
        return right(predict, accept_index, accept_lens)[:0]

    def tells(predict, accept_index, accept_lens):
        return "well"

    def doubles(predict, accept_index, accept_lens):
        return (right(predict, accept_index, accept_lens),) * 2

    def writes(predict, accept_index, accept_lens):
        found = right(predict, accept_index, accept_lens)
        predict += 1
        return found

    def resizes(predict, accept_index, accept_lens):
        found = right(predict, accept_index, accept_lens)
        predict.resize_(0)
        return found

    def other(predict):
        return predict

    for name, value in list(globals().items()):
        if callable(value) and getattr(value, "__module__", "") == __name__:
            globals()["p_" + name] = {"fill_bonus_tokens": value}
    p_lacks = {}
    p_names_another = {"fill_bonus_token": right}
    p_names_none = {3: right}
    p_holds_a_number = {"fill_bonus_tokens": 7}
    number = 7
"""
MODULES = {
    "mine": PROVIDERS,
    "raising": "raise RuntimeError('not today')",
    "exiting": "import sys\nsys.exit(5)",
    "broken": "def (:",
    "needing": "import nothing_like_this",
    "printing": """
        print('{"event": "end"}')
        from specsim.contracts.registry import REFERENCE
        p = {"fill_bonus_tokens": REFERENCE["fill_bonus_tokens"]}
    """,
}

# What is said of each: "error", the rule of a finding, "not run" of the operation or of what is named, or "ok".
TOLD = {
    "nowhere:p": ("error", "there is no module 'nowhere'"),
    "mine:absent": ("error", "mine has no 'absent'"),
    "mine:number": ("error", "mine:number is a int"),
    "raising:p": ("error", "raising cannot be imported (RuntimeError: not today)"),
    "exiting:p": ("error", "exiting cannot be imported (SystemExit: 5)"),
    "broken:p": ("error", "broken cannot be imported (SyntaxError: invalid syntax"),
    "needing:p": ("error", "needing needs the module nothing_like_this, which is not installed"),
    "printing:p": ("ok", ""),
    "mine:p_lacks": ("not run", "operations: mine:p_lacks provides none"),
    "mine:p_names_another": ("not run", "fill_bonus_token: specsim has no operation of this name"),
    "mine:p_names_none": ("not run", "3: specsim has no operation of this name"),
    "mine:p_holds_a_number": ("not run", f"fill_bonus_tokens: {OTHER_CALL}7 is a int, not a function"),
    "mine:p_other": ("not run", f"fill_bonus_tokens: {OTHER_CALL}other(predict)"),
    "mine:p_prints": ("ok", ""),
    "mine:p_exits": ("O8", "ends its process (exit code 3)"),
    "mine:p_leaves": ("O8", "ends its process (exit code 0)"),
    "mine:p_leaves_at_once": ("O8", "ends its process (exit code 0)"),
    "mine:p_hangs": ("O7", "does not end within"),
    "mine:p_raises": ("O6", "raises KeyError: 'lost'"),
    "mine:p_converts": ("O5", "bonus_tokens has dtype torch.int64, the contract says torch.int32"),
    "mine:p_cuts": ("O5", "bonus_tokens has shape [0], the contract says [1]"),
    "mine:p_tells": ("O5", "bonus_tokens is a str, the contract says a tensor"),
    "mine:p_doubles": ("O5", "returned 2 values where the contract has 1 outputs"),
    "mine:p_writes": ("O3", "input predict[0] is changed"),
    "mine:p_resizes": ("O3", "input predict has another shape afterwards"),
}


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    for name, text in MODULES.items():
        (tmp_path / f"{name}.py").write_text(textwrap.dedent(text))
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr("specsim.tiers.process.ask", forked)
    return tmp_path


@pytest.mark.parametrize("target", list(TOLD))
@pytest.mark.slow(runs_one_in=4)
def test_what_a_provider_does_wrong_is_reported_in_one_sentence(target: str, folder: Path) -> None:
    kind, words = TOLD[target]
    request = Request(
        tier="ops",
        target=target,
        cache=str(folder),
        seed=0,
        count=2,
        seconds=30.0,
        hang_seconds=1.0 if kind == "O7" else 30.0,
    )
    if kind == "error":
        with pytest.raises(UsageError) as told:
            run_suite(request, folder / "found", lambda _subject, _cases: None)
        assert words in told.value.problem
        assert "\n" not in told.value.problem
        return
    suite, findings = run_suite(request, folder / "found", lambda _subject, _cases: None)
    if kind == "not run":
        assert not suite.judged
        assert any(f"{entry.what}: {entry.why}".startswith(words) for entry in suite.not_run)
    else:
        expected = [] if kind == "ok" else [(kind, True)]
        assert [(finding.rule, words in finding.title) for finding in findings] == expected
        assert {checked.op for checked in suite.judged} == {"fill_bonus_tokens"}
        assert not any(entry.what.startswith("fill_bonus_tokens") for entry in suite.not_run)
