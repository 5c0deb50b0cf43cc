"""A warm child answers as a fresh one does, one question after the other, and survives whatever it is asked to run."""

from __future__ import annotations

import os
import socket
import textwrap
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

from property_tests.support.known_releases import FEW
from specsim import replay_file
from specsim.engines.target import Target
from specsim.errors import UsageError
from specsim.isolation.conversation import envelope
from specsim.isolation.fork_server import ForkServer
from specsim.isolation.questions import Question, Questions
from specsim.lifting.cache import open_cache
from specsim.tiers import process
from specsim.tiers.fork_server_child import TargetHolder
from specsim.tiers.messages import Alive, At, Replayed, Request, Search
from specsim.tiers.process import ask, ask_again, fork_server
from specsim.tiers.replaying import replay, request_of
from specsim.tiers.scheduler import loading

REPLAYS = Path(__file__).parents[2] / "fixtures" / "replays"
OF_A_SCHEDULER: dict[str, Any] = {
    "tier": "scheduler",
    "target": "model",
    "cache": "",
    "seed": 0,
    "count": 1,
    "seconds": 1,
    "hang_seconds": 0.5,
}

TARGETS = """
    import os
    import sys
    import time

    seen = []

    def right(predict, accept_index, accept_lens):
        seen.append(1)
        at = accept_index.gather(1, (accept_lens - 1).long()[:, None]).long()
        return predict[at[:, 0]]

    def once(predict, accept_index, accept_lens):
        return right(predict, accept_index, accept_lens) + (1 if len(seen) > 30 else 0)

    def hangs(predict, accept_index, accept_lens):
        time.sleep(1000)

    def dies(predict, accept_index, accept_lens):
        print("a last word", file=sys.stderr, flush=True)
        os.abort()

    def reads(predict, accept_index, accept_lens):
        assert sys.stdin.read() == ""
        return right(predict, accept_index, accept_lens)

    providers = {f.__name__: {"fill_bonus_tokens": f} for f in (right, once, hangs, dies, reads)}
    class Named:
        pass
    for name, provider in providers.items():
        setattr(Named, name, provider)
"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("targets")
    (path / "warm_targets.py").write_text(textwrap.dedent(TARGETS))
    return path


@pytest.fixture(scope="module")
def warm(folder: Path) -> Iterator[ForkServer]:
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        child = fork_server("0")
        yield child
        child.close()


def question(folder: Path, name: str, **fields: Any) -> Request:
    of_it: dict[str, Any] = {"tier": "ops", "target": f"warm_targets:Named.{name}", "cache": str(folder / "cache")}
    limits = {"seed": 0, "count": 3, "seconds": 20, "hang_seconds": 20, "work": Search(what="fill_bonus_tokens")}
    return Request(**{**of_it, **limits, **fields})


def last(messages: Iterator[Any]) -> dict[str, Any]:
    answer = list(messages)[-1]
    assert isinstance(answer, Replayed)
    return answer.answer


@pytest.mark.slow
def test_it_answers_as_a_fresh_child_does(warm: ForkServer, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(folder)
    fresh = last(ask(question(folder, "right"), 20))
    assert last(warm.ask(question(folder, "right"), 20)) == fresh
    assert fresh["subjects"][0]["cases"] == 3


def test_no_question_sees_what_another_left_behind(warm: ForkServer, folder: Path) -> None:
    for _ in range(8):  # each calls it several times, and all together more than thirty times
        assert last(warm.ask(question(folder, "once"), 20))["subjects"][0]["rule"] == ""


def test_what_a_target_reads_is_not_the_next_question(warm: ForkServer, folder: Path) -> None:
    assert last(warm.ask(question(folder, "reads"), 20))["subjects"][0]["rule"] == ""


def test_a_target_that_dies_or_hangs_ends_its_question_and_no_other(warm: ForkServer, folder: Path) -> None:
    with pytest.raises(UsageError, match="SIGABRT"):
        last(warm.ask(question(folder, "dies"), 20))
    assert last(warm.ask(question(folder, "right"), 20))["subjects"][0]["rule"] == ""
    with pytest.raises(UsageError, match="does not end within 1 s"):
        last(warm.ask(question(folder, "hangs", hang_seconds=1), 20))
    assert last(warm.ask(question(folder, "right"), 20))["subjects"][0]["rule"] == ""


def test_bad_input_is_reported_and_the_child_goes_on(warm: ForkServer, folder: Path) -> None:
    with pytest.raises(UsageError, match=r"has no 'Named\.missing'"):
        last(warm.ask(question(folder, "missing"), 20))
    assert last(warm.ask(question(folder, "right"), 20))["subjects"][0]["cases"] == 3


def test_who_stops_listening_does_not_hear_the_rest_later(warm: ForkServer, folder: Path) -> None:
    messages = warm.ask(question(folder, "right", count=5), 20)
    assert isinstance(next(messages), At)
    messages.close()  # type: ignore[attr-defined]
    told = [m for m in warm.ask(question(folder, "right", count=1), 20) if not isinstance(m, Alive)]
    assert [type(message) for message in told] == [At, Replayed]


def replayed(child: ForkServer, name: str) -> dict[str, Any]:
    file = REPLAYS / f"{name}.json"
    stored = replay_file.load(file)
    return replay(request_of(stored, stored.target, open_cache(None).folder, 60), file, ask=child.ask)


def test_what_is_held_of_one_target_says_nothing_of_the_next(warm: ForkServer) -> None:
    """Each of these has another mutant in the engine, which is imported once in a process."""
    for name in ("session-tail-leak", "session-keeps-the-overshoot", "session-tail-leak"):
        stored = replay_file.load(REPLAYS / f"{name}.json")
        for _ in range(2):
            answer = replayed(warm, name)
            assert answer["digest"] == stored.digest
            assert stored.signature in [violation["signature"] for violation in answer["violations"]]


def test_a_target_is_loaded_once_for_the_questions_of_a_process(monkeypatch: pytest.MonkeyPatch) -> None:
    loaded = list[str]()

    def load(target: Target, *_options: object) -> Target:
        loaded.append(target.text)
        return target

    monkeypatch.setattr("specsim.engines.load.load_scheduler", load)
    monkeypatch.setattr(loading, "_held", {})
    one, other = (Request(**{**OF_A_SCHEDULER, "target": f"sglang=={version}"}) for version in FEW[:2])
    loading.hold(one)
    assert loading.load_target(one) is loading.load_target(msgspec.structs.replace(one, seed=3))
    loading.load_target(other)
    loading.load_target(msgspec.structs.replace(one, lines={"a.py": [1]}))
    assert loaded == [one.target, other.target, one.target]


@pytest.mark.parametrize("ends", [lambda _: os._exit(3), lambda _: time.sleep(60), lambda _: 1 / 0])
def test_a_holder_that_cannot_load_its_target_answers_nothing(
    ends: Callable[[Request], Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(loading, "hold", ends)
    ours, theirs = os.pipe(), socket.socketpair()
    with open(ours[0]), open(ours[1], "w"), theirs[1]:
        question = Question(envelope(Request(**OF_A_SCHEDULER), b"nonce"), ours[1])
        holder = TargetHolder(question, "held", Questions(theirs[0].detach()))
        assert holder.answered(question) is None
        holder.close()


@pytest.mark.parametrize(
    ("target", "hash_seed", "stays"),
    [
        (f"sglang=={FEW[0]}", "", True),
        (f"sglang=={FEW[0]}", "1", False),
        ("sglang@.", "", False),
        ("mine:engine", "", False),
        ("model", "", False),
    ],
)
def test_a_release_is_asked_by_a_child_that_stays_and_what_may_change_meanwhile_by_one_of_its_own(
    monkeypatch: pytest.MonkeyPatch, target: str, hash_seed: str, stays: bool
) -> None:
    def answers(name: str) -> Callable[..., Iterator[str]]:
        return lambda *_question: iter([name])

    monkeypatch.setattr(process, "ask", answers("a child of its own"))
    monkeypatch.setattr(process, "_staying", lambda: answers("the one that stays"))
    request = Request(**{**OF_A_SCHEDULER, "target": target})
    assert list(ask_again(request, 1.0, hash_seed)) == ["the one that stays" if stays else "a child of its own"]
