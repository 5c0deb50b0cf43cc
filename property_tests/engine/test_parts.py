"""Each part of the engine works by itself, over a stub of what it reports to."""

from __future__ import annotations

from typing import Any

from specsim.choices.chooser import replayed
from specsim.engine.accounting import ModelAccounting, make_memory
from specsim.engine.arrivals import Arrivals
from specsim.engine.batch import Batch
from specsim.engine.config import EngineConfig
from specsim.engine.event_log import EventLog
from specsim.engine.launch import LaunchRow, RowCopies
from specsim.engine.lifecycle import State
from specsim.engine.request import Request, Turn, make_request
from specsim.engine.request_table import RequestTable
from specsim.engine.seam import Seam
from specsim.engine.workload import Workload

CONFIG = EngineConfig()


class Silent:
    """An observer to whom nothing matters, and a watcher of memory."""

    events = 0

    def __getattr__(self, _name: str) -> Any:
        return lambda *_arguments, **_named: None


def seam() -> Seam:
    observer: Any = Silent()
    memory = make_memory(CONFIG, observer, observer)
    return Seam(CONFIG, memory, ModelAccounting(memory), observer, EventLog(observer, set()))


def turn(rid: str, session: str = "") -> Turn:
    return Turn(rid, (10, 11, 12), 4, session=session)


def arrivals(given: Seam, *turns: Turn, aborts: int = 0) -> tuple[Arrivals, RequestTable, Batch]:
    requests = RequestTable()
    batch = Batch(given, requests, retractions_max=0, has_distributions=False)
    return Arrivals(given, Workload(turns, aborts), requests, batch), requests, batch


def test_a_turn_of_a_session_arrives_when_the_one_before_it_is_answered() -> None:
    given = seam()
    part, requests, _batch = arrivals(given, turn("a", "s"), turn("b", "s"))
    part.receive(replayed(()))
    assert [request.rid for request in requests.waiting] == ["a"]
    requests.everybody[0].state = State.FINISHED
    requests.histories["s"] = [1, 2]
    part.receive(replayed(()))
    assert [request.prompt for request in requests.everybody] == [[10, 11, 12], [1, 2, 10, 11, 12]]
    assert requests.open_sessions == ["s"]
    assert [(event.event, event.who) for event in given.log.events] == [("arrive", "a"), ("arrive", "b")]


def test_a_request_that_waits_leaves_the_queue_when_it_is_aborted_and_makes_room() -> None:
    part, requests, batch = arrivals(seam(), turn("a"), aborts=1)
    batch.is_full = True
    part.receive(replayed((0, 1)))
    assert requests.waiting == []
    assert requests.everybody[0].state is State.FINISHED
    assert (part.aborts_left, batch.is_full) == (0, False)


def running(*rids: str) -> tuple[Batch, list[Request]]:
    """A batch of requests whose launches left the relay entries 1, 2 and so on."""
    batch = Batch(seam(), RequestTable(), retractions_max=0, has_distributions=False)
    requests = [make_request(turn(rid), []) for rid in rids]
    for number, request in enumerate(requests, 1):
        request.state = State.RUNNING
        batch.running.append(request)
        batch.futures.indices.append(number)
    return batch, requests


def test_who_has_finished_leaves_the_batch_with_its_relay_entry_and_who_was_prefilled_joins() -> None:
    batch, (first, second) = running("a", "b")
    third = make_request(turn("c"), [])
    third.state = State.PREFILLING
    batch.merging, batch.merging_rows = [third], [LaunchRow(third, third.key, [], relay_out=7)]
    first.state = State.FINISHED
    batch.merge()
    assert batch.running == [second, third]
    assert batch.futures.indices == [2, 7]
    assert batch.merging == []


def test_a_copy_of_a_batch_changes_without_the_original() -> None:
    batch, requests = running("a", "b")
    copies = {request: make_request(request.turn, []) for request in requests}
    copied = batch.fork(seam(), RequestTable(), RowCopies(copies))
    assert copied.running == list(copies.values())
    for request in copies.values():
        request.state = State.FINISHED
    copied.merge()
    assert (copied.running, copied.futures.indices) == ([], [])
    assert (batch.running, batch.futures.indices) == (requests, [1, 2])


def test_two_logs_have_one_digest_exactly_when_their_events_are_the_same() -> None:
    one, two = seam().log, seam().log
    for log in (one, two):
        log.record("host", "arrive", "a", "")
    assert one.digest == two.digest
    two.record("host", "arrive", "b", "")
    assert one.digest != two.digest
