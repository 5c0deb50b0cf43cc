"""Random programs of streams, events, copies and writes in place, against a sequential model and a graph of their own.

The graph says which operations happen before which, from edges alone and without clocks. A program in which every two
accesses that conflict are ordered gives what the sequential model gives, under every policy. In any program, what is
reported is exactly what the graph leaves unordered: the memories, and for each the pairs of streams.
"""

from __future__ import annotations

import hashlib
import os
import subprocess
import sys
from dataclasses import dataclass, field

import torch
from hypothesis import given
from hypothesis import strategies as st

from property_tests.support.source_files import ROOT
from specsim.choices.chooser import replayed, seeded
from specsim.vdevice import Finding, simulate

BUFFERS = ("a", "b", "c")
PINNED = ("p", "q")
STREAMS = ("default", "one", "two")
EVENTS = 2

streams = st.integers(0, len(STREAMS) - 1)
buffers, pinned = st.sampled_from(BUFFERS), st.sampled_from(PINNED)
events, values = st.integers(0, EVENTS - 1), st.integers(1, 9)
STEP = st.one_of(
    st.tuples(st.just("set"), streams, buffers, values),
    st.tuples(st.just("add"), streams, buffers, buffers),
    st.tuples(st.just("copy"), streams, buffers, buffers),
    st.tuples(st.just("download"), streams, pinned, buffers),
    st.tuples(st.just("upload"), streams, buffers, pinned),
    st.tuples(st.just("record"), streams, events),
    st.tuples(st.just("wait event"), streams, events),
    st.tuples(st.just("wait stream"), streams, streams),
    st.tuples(st.just("host waits for a stream"), streams),
    st.tuples(st.just("host waits for an event"), events),
    st.tuples(st.just("host waits for all")),
    st.tuples(st.just("host writes"), pinned, values),
    st.tuples(st.just("host reads"), pinned),
)
PROGRAMS = st.lists(STEP, min_size=1, max_size=24)
Program = list[tuple[object, ...]]
Races = set[tuple[str, frozenset[str]]]
POLICIES = [[0], [1], [2, 0], [2, 1], [2, 2]]


@dataclass
class Graph:
    """Nodes in the order of the program, and of each the set of those that happen before it."""

    before: list[frozenset[int]] = field(default_factory=list)
    last: dict[str, int] = field(default_factory=dict)  # by stream, and "host"
    recorded: dict[int, int] = field(default_factory=dict)
    accesses: list[tuple[int, str, str, bool]] = field(default_factory=list)  # node, queue, memory, is a write

    def node(self, queue: str, *others: int) -> int:
        """What `queue` does next: after what it did, after what the host did and after `others`."""
        direct = [self.last[of] for of in {queue, "host"} if of in self.last] + list(others)
        self.before.append(frozenset(direct).union(*(self.before[of] for of in direct)))
        self.last[queue] = len(self.before) - 1
        return self.last[queue]

    def access(self, queue: str, reads: str, writes: str) -> None:
        at = self.node(queue)
        self.accesses += [(at, queue, memory, False) for memory in reads]
        self.accesses += [(at, queue, memory, True) for memory in writes]

    def races(self) -> Races:
        return {
            (memory, frozenset({queue, other_queue}))
            for i, (at, queue, memory, writes) in enumerate(self.accesses)
            for other, other_queue, other_memory, other_writes in self.accesses[:i]
            if memory == other_memory and (writes or other_writes)
            if at != other and other not in self.before[at]
        }


def graph_of(program: Program) -> Graph:
    graph = Graph()
    for step in program:
        match step:
            case ["set", int(s), str(x), _]:
                graph.access(STREAMS[s], "", x)
            case ["add", int(s), str(x), str(y)]:
                graph.access(STREAMS[s], x + y, x)
            case ["copy" | "download" | "upload", int(s), str(x), str(y)]:
                graph.access(STREAMS[s], y, x)
            case ["record", int(s), int(e)]:
                graph.recorded[e] = graph.node(STREAMS[s])
            case ["wait event", int(s), int(e)] if e in graph.recorded:
                graph.node(STREAMS[s], graph.recorded[e])
            case ["wait stream", int(s), int(other)] if STREAMS[other] in graph.last:
                graph.node(STREAMS[s], graph.last[STREAMS[other]])
            case ["host waits for a stream", int(s)] if STREAMS[s] in graph.last:
                graph.node("host", graph.last[STREAMS[s]])
            case ["host waits for an event", int(e)] if e in graph.recorded:
                graph.node("host", graph.recorded[e])
            case ["host waits for all"]:
                graph.node("host", *(at for of, at in graph.last.items() if of != "host"))
            case ["host writes", str(x), _]:
                graph.access("host", "", x)
            case ["host reads", str(x)]:
                graph.access("host", x, "")
    return graph


def sequentially(program: Program) -> list[int]:
    """What the host reads, and what memory holds at the end."""
    held = dict.fromkeys((*BUFFERS, *PINNED), 0)
    seen = []
    for step in program:
        match step:
            case ["set", _, str(x), int(value)] | ["host writes", str(x), int(value)]:
                held[x] = value
            case ["add", _, str(x), str(y)]:
                held[x] += held[y]
            case ["copy" | "download" | "upload", _, str(x), str(y)]:
                held[x] = held[y]
            case ["host reads", str(x)]:
                seen.append(held[x])
    return seen + list(held.values())


def on_the_device(program: Program, tape: list[int]) -> tuple[list[int], list[Finding]]:
    reported: list[Finding] = []
    seen = []
    with simulate(replayed(tape)) as device:
        device.add = reported.append  # type: ignore[method-assign, assignment]  # each pair, not one of each place
        held = {name: torch.zeros(1, dtype=torch.int64, device="cuda") for name in BUFFERS}
        held |= {name: torch.zeros(1, dtype=torch.int64, pin_memory=True) for name in PINNED}
        for name, tensor in held.items():
            device.name(tensor, name)
        one = torch.cuda.Stream()
        two = torch.cuda.Stream()
        on = [torch.cuda.default_stream(), one, two]
        marks = [torch.cuda.Event() for _ in range(EVENTS)]
        torch.cuda.synchronize()
        for step in program:
            match step:
                case ["set", int(s), str(x), int(value)]:
                    with torch.cuda.stream(on[s]):
                        held[x].fill_(value)
                case ["add", int(s), str(x), str(y)]:
                    with torch.cuda.stream(on[s]):
                        held[x].add_(held[y])
                case ["copy" | "download" | "upload", int(s), str(x), str(y)]:
                    with torch.cuda.stream(on[s]):
                        held[x].copy_(held[y], non_blocking=True)
                case ["record", int(s), int(e)]:
                    marks[e].record(on[s])
                case ["wait event", int(s), int(e)]:
                    on[s].wait_event(marks[e])
                case ["wait stream", int(s), int(other)]:
                    on[s].wait_stream(on[other])
                case ["host waits for a stream", int(s)]:
                    on[s].synchronize()
                case ["host waits for an event", int(e)]:
                    marks[e].synchronize()
                case ["host waits for all"]:
                    torch.cuda.synchronize()
                case ["host writes", str(x), int(value)]:
                    held[x].fill_(value)
                case ["host reads", str(x)]:
                    seen.append(held[x].item())
        torch.cuda.synchronize()
        seen += [tensor.item() for tensor in held.values()]
    return seen, reported  # type: ignore[return-value]


def races_of(findings: list[Finding]) -> Races:
    return {(found.memory, frozenset({found.first.stream, found.second.stream})) for found in findings}


@given(PROGRAMS, st.integers(0, 99))
def test_what_is_reported_is_what_nothing_orders(program: Program, seed: int) -> None:
    expected = graph_of(program).races()
    chooser = seeded(seed)
    for tape in (*POLICIES, [3, *(chooser.choose(5, "tape") for _ in range(60))]):
        values, reported = on_the_device(program, tape)
        assert races_of(reported) == expected, tape
        if not expected:
            assert values == sequentially(program), tape


@given(PROGRAMS)
def test_a_program_that_waits_after_each_step_is_sequential(program: Program) -> None:
    ordered: Program = [step for each in program for step in (each, ("host waits for all",))]
    for tape in POLICIES:
        values, reported = on_the_device(ordered, tape)
        assert values == sequentially(program)
        assert reported == []


@given(PROGRAMS)
def test_a_program_whose_streams_wait_for_each_other_is_sequential(program: Program) -> None:
    ordered: Program = []
    for step in program:
        match step:
            case ["set" | "add" | "copy" | "download" | "upload", int(s), *_]:
                ordered += [("wait stream", s, other) for other in range(len(STREAMS)) if other != s]
            case ["host writes" | "host reads", *_]:
                ordered.append(("host waits for all",))
        ordered.append(step)
    for tape in (*POLICIES, [3, 1, 1, 2, 2, 1, 3, 1, 2, 3, 4, 1]):
        values, reported = on_the_device(ordered, tape)
        assert values == sequentially(program)
        assert reported == []


def test_the_oracle_knows_a_race_and_an_order() -> None:
    racy: Program = [("set", 1, "a", 3), ("copy", 2, "b", "a")]
    assert graph_of(racy).races() == {("a", frozenset({"one", "two"}))}
    ordered: Program = [racy[0], ("record", 1, 0), ("wait event", 2, 0), racy[1]]
    assert graph_of(ordered).races() == set()


DIGEST = """
import hashlib
from property_tests.vdevice.test_random_programs import digest_material
print(hashlib.sha256(digest_material().encode()).hexdigest())
"""


def digest_material() -> str:
    """Findings in words, without the folder of the checkout, and values of some programs under each kind of policy."""
    lines = []
    for seed in range(8):
        chooser = seeded(seed, "determinism")
        kinds = ["set", "add", "copy", "download", "upload", "record", "wait event", "host reads", "host writes"]
        program: Program = []
        for _ in range(30):
            kind = kinds[chooser.choose(len(kinds), "kind")]
            s, x, y = chooser.choose(3, "stream"), chooser.choose(3, "x"), chooser.choose(3, "y")
            p = PINNED[y % 2]
            second = {"download": p, "record": x % 2, "wait event": x % 2}.get(kind, BUFFERS[x])
            third = {"set": y + 1, "upload": p}.get(kind, BUFFERS[y])
            step = (kind, p, y) if kind.startswith("host") else (kind, s, second, third)
            program.append(step[:3] if kind in ("record", "wait event") else step[:2] if kind == "host reads" else step)
        tape = [seed % 4, *(chooser.choose(4, "tape") for _ in range(80))]
        values, reported = on_the_device(program, tape)
        lines += [str(values), *(str(found).replace(str(ROOT), "") for found in reported)]
    return "\n".join(lines)


def test_another_process_with_another_hash_seed_says_the_same() -> None:
    material = digest_material()
    ended = subprocess.run(
        [sys.executable, "-c", DIGEST],
        cwd=ROOT,
        env={**os.environ, "PYTHONHASHSEED": "7"},
        check=True,
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert ended.stdout.strip() == hashlib.sha256(material.encode()).hexdigest()
    assert "race" in material
