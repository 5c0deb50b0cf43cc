"""How long requests wait, who need not wait again or holds what others wait for, and what users are told of it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from itertools import count
from math import ceil
from operator import itemgetter

from specsim.verdict import Rule, Severity
from specsim.world.rule import Check, Lie, Run, Violation
from specsim.world.scheduler import KEEP, Answer, Facts, Launch, Load, Seen, Setup
from specsim.world.users import LATENCY, Moment


class Admission(Check):
    """A batch that was full is so no more when one of its requests has ended. From then on whoever fits beside all that
    run, should all answers come to their longest, is admitted within some iterations, one after the other.
    """

    rule = Rule("S9", "admission", "a request that fits is admitted", Severity.METRIC)
    defects = (Lie("admits nobody", "load", lambda load: replace(load, waiting=(("waits", 1),))),)

    def __init__(self, setup: Setup, facts: Facts) -> None:
        super().__init__(setup, facts)
        self._margin = _margin(setup, facts)
        self._waiting: set[str] = set()
        self._left = 0
        self._is_armed = False
        self._quiet = 0

    def while_running(self, moment: Moment) -> Iterator[Violation]:
        load = moment.load
        waiting = {rid for rid, _length in load.waiting}
        is_admitted = bool(self._waiting - waiting)
        self._is_armed = moment.left > self._left or (self._is_armed and not is_admitted)
        self._waiting, self._left = waiting, moment.left
        if not (self._is_armed and self._fits(load)) or moment.is_paused or load.chunked:
            self._quiet = 0
            return
        self._quiet += 1
        patience = self.facts.patience
        if self._quiet == patience:
            actual = f"it waits for {patience} iterations beside {load.free} free slots and {load.free_rows} rows"
            yield self.broken("waiting", load.waiting[0][0], self.rule.sentence, actual)

    def _fits(self, load: Load) -> bool:
        need = max((length for _rid, length in load.waiting), default=0) + load.running + self._margin
        return bool(load.waiting) and load.free_rows > 0 and need <= load.free


def _margin(setup: Setup, facts: Facts) -> int:
    """Slots that requests may have beside those of their tokens: each may be some steps ahead, and each page begun."""
    return setup.rows * (facts.ahead * setup.draft_tokens + setup.page_size)


def _by_turns(says: Callable[[int, Load], Load]) -> Callable[[Load], Load]:
    """A lie of loads with somebody who runs, that is told the number of each, from 0 on."""
    times = count()
    return lambda load: says(next(times), load) if load.lengths else load


def _takes_one_of_two(time: int, load: Load) -> Load:
    """Of two that come first, and together, one runs and the other one waits."""
    if time > 1 or len(load.lengths) < 2:
        return load
    waiting = tuple((rid, 1) for rid, *_ in load.lengths[time:])
    return replace(load, waiting=waiting, lengths=load.lengths[:time])


class Packing(Check):
    """Where some of those who wait begin, all do, if there is room for all of them: rows, tokens of a prefill, and
    slots, should all answers come to their longest. Not looked at are turns of sessions, requests with a grammar, which
    is to be compiled, who has run before, and where somebody began beside them who came meanwhile.
    """

    rule = Rule("S21", "packing", "a prefill takes all who wait and fit", Severity.METRIC)
    reads_past = True
    defects = (Lie("takes one of two", "load", _by_turns(_takes_one_of_two)),)

    def __init__(self, setup: Setup, facts: Facts) -> None:
        super().__init__(setup, facts)
        self._margin = _margin(setup, facts) + ceil(setup.watermark * setup.slots)
        self._could: tuple[str, ...] = ()
        """Those that wait, where all of them have room."""
        self._ran: set[str] = set()
        self._begun: set[str] = set()
        self._left: list[tuple[int, tuple[str, ...], tuple[str, ...], int]] = []
        """In which iteration which ones began and which ones did not, who had room for all, beside so many that ran."""

    def while_running(self, moment: Moment) -> Iterator[Violation]:
        load, waiting = moment.load, dict(moment.load.waiting)
        runs = {rid for rid, *_ in load.lengths}
        begin = tuple(rid for rid in self._could if rid in runs)
        left = tuple(rid for rid in self._could if rid in waiting)
        others = runs.difference(self._ran, self._could)  # who came meanwhile, and may be more urgent
        if begin and left and not others and not moment.is_disturbed:
            self._left.append((moment.iteration, begin, left, len(self._ran)))
        self._begun |= runs
        need = sum(waiting.values()) + load.running + self._margin
        fits = len(waiting) <= load.free_rows and need <= load.free and not moment.is_disturbed and not load.chunked
        self._could = tuple(waiting) if fits and not self._begun.intersection(waiting) else ()
        self._ran = runs
        return iter(())

    def after(self, run: Run) -> Iterator[Violation]:
        turns, page = {turn.rid: turn for turn in run.users.workload.turns}, max(self.setup.pages)
        for iteration, begin, left, running in self._left:
            waited = [turns[rid] for rid in (*begin, *left)]
            tokens = sum(-(-len(turn.prompt) // page) * page for turn in waited) + running * self.setup.draft_tokens
            if tokens <= self.setup.chunk and not any(turn.session or turn.grammar for turn in waited):
                actual = f"it waits beside {', '.join(begin)}"
                yield self.broken("left-out", left[0], f"to begin with {', '.join(begin)}", actual, when=iteration)
                return


def spare(setup: Setup, facts: Facts) -> int:
    """Slots that a running request may have beside those of its tokens: of the steps that it is ahead, of the next one,
    and of pages that it has begun, of which each branch of a tree has its own.
    """
    page = max(setup.pages)
    branch = -(-(page - 1 + setup.steps) // page) * page
    step = max(setup.draft_tokens, setup.topk * branch if setup.topk > 1 else 0)
    return (facts.ahead + 1) * step + (setup.topk + 1) * page


def _now_and_then(time: int, load: Load) -> Load:
    """Who runs waits, every other time."""
    return load if time % 2 else replace(load, waiting=tuple((rid, 1) for rid, *_ in load.lengths), lengths=())


class Retraction(Check):
    """Looked at where the pool had room before, and has it without what was taken, for whatever all that ran may need
    in their next steps. A pause, a reset of the cache, one who is more urgent, and KV from outside may take it
    nevertheless.
    """

    rule = Rule("S14", "retraction", "nobody who runs is retracted while there is room", Severity.METRIC)
    reads_past = True
    defects = (Lie("retracts all", "load", _by_turns(_now_and_then)),)

    def __init__(self, setup: Setup, facts: Facts) -> None:
        super().__init__(setup, facts)
        self._go_on: dict[str, int] = {}
        """Those that ran and had room to go on, and how many slots each had."""
        self._need = 0
        """Slots that all of them might have needed then."""

    def while_running(self, moment: Moment) -> Iterator[Violation]:
        load, went_on, need = moment.load, self._go_on, self._need
        next_steps = len(load.lengths) * spare(self.setup, self.facts) + load.chunked * self.setup.chunk
        self._need = next_steps * len(self.setup.pages)
        is_looked_at = not (moment.is_disturbed or self.setup.priorities or self.setup.connector)
        has_room = is_looked_at and load.free >= self._need
        self._go_on = {rid: has for rid, _claimed, has in load.lengths} if has_room else {}
        if moment.is_disturbed:
            return
        waiting = {rid for rid, _length in load.waiting}
        for rid, has in went_on.items():
            room = load.free - has
            if rid in waiting and has >= 0 and room >= need:
                actual = f"it waits again, beside {room} free slots and {len(went_on)} who ran"
                yield self.broken("room", rid, "to go on", actual)


def _one_waits(time: int, load: Load) -> Load:
    """One of those that run waits, each time another one, and there is no room."""
    at = time % len(load.lengths)
    others = (*load.lengths[:at], *load.lengths[at + 1 :])
    return replace(load, waiting=((load.lengths[at][0], 1),), lengths=others, free=0)


class GivingWay(Check):
    """Where a running request has to wait again, it is one of the least urgent ones. What a pause or a reset of the
    cache takes is not looked at, nor an engine that does not start requests in their order.
    """

    rule = Rule("S20", "giving-way", "of those that run the least urgent one gives way", Severity.WRONG_RESULT)
    reads_past = True
    defects = (Lie("lets anybody give way", "load", _by_turns(_one_waits)),)

    def __init__(self, setup: Setup, facts: Facts) -> None:
        super().__init__(setup, facts)
        self._ran: tuple[str, ...] = ()
        self._gave_way: list[tuple[int, str, tuple[str, ...]]] = []
        """In which iteration who did, and who went on."""

    def while_running(self, moment: Moment) -> Iterator[Violation]:
        ran, load = self._ran, moment.load
        self._ran = tuple(rid for rid, *_ in load.lengths)
        if self.setup.priorities and self.facts.in_order and not moment.is_disturbed:
            waiting = {rid for rid, _length in load.waiting}
            went_on = tuple(rid for rid in ran if rid in self._ran)
            self._gave_way += [(moment.iteration, rid, went_on) for rid in ran if rid in waiting]
        return iter(())

    def after(self, run: Run) -> Iterator[Violation]:
        if not self._gave_way:
            return  # an engine may have no priorities
        rank = self.facts.priorities.index
        urgency = {turn.rid: rank(turn.priority) for turn in run.users.workload.turns}
        for iteration, rid, went_on in self._gave_way:
            least = min(went_on, key=urgency.__getitem__, default=rid)
            if urgency[least] < urgency[rid]:
                actual = f"{rid} waits, of a higher one"
                yield self.broken("urgent", rid, f"{least} waits, of a lower priority", actual, when=iteration)
                return


def _much_more(load: Load) -> Load:
    return replace(load, lengths=tuple((rid, claimed, claimed + 40) for rid, claimed, _has in load.lengths))


def _its_past(load: Load) -> Load:
    return replace(load, windows=tuple(9 * claimed + 99 for _rid, claimed, _has in load.lengths))


class Holding(Check):
    """It has slots for the steps that it is ahead, and for its next one; of layers with a sliding window, beside the
    steps whose results have not come yet, for the window and for what its engine lets slide out of it. KV from outside
    has its slots before it is claimed, and is not looked at.
    """

    rule = Rule("S16", "holding", "a running request has no more slots than its next steps need", Severity.METRIC)
    defects = (Lie("has many more", "load", _much_more), Lie("has its past", "load", _its_past))

    def __init__(self, setup: Setup, facts: Facts) -> None:
        super().__init__(setup, facts)
        self._claims: dict[str, list[int]] = {}
        """What each one claimed, from one launch to the next."""

    def while_running(self, moment: Moment) -> Iterator[Violation]:
        load, need = moment.load, spare(self.setup, self.facts)
        for rid, claimed, has in load.lengths if not self.setup.connector else ():
            if has > claimed + need:
                yield self.broken("slots", rid, f"{claimed + need} slots at most: {need} beyond its claim", str(has))
        for (rid, claimed, _has), has in zip(load.lengths, load.windows, strict=False):
            behind = (self.setup.window_lag or self.facts.window_lag) + claimed - self._handled(rid, claimed)
            most = need + self.setup.window + max(self.setup.pages) + behind
            if has > most:
                yield self.broken("window", rid, f"{most} slots of the window's layers at most", str(has))

    def _handled(self, rid: str, claimed: int) -> int:
        """Of how many positions at least the results had come by its last launch: those of the launch that it cannot be
        ahead of any more, but for drafts.
        """
        drafts = (self.facts.ahead + 1) * self.setup.draft_tokens
        claims = self._claims.setdefault(rid, [])
        if claims and claimed < claims[-1] - drafts:
            claims.clear()  # it was retracted
        if not claims or claimed != claims[-1]:
            claims.append(claimed)
        del claims[: -(self.facts.ahead + 2)]
        return max(0, claims[0] - drafts) if len(claims) == self.facts.ahead + 2 else 0


def _goes_on(seen: Seen) -> Seen:
    more = (Launch(at, "decode", ("another",)) for at in range(max((at for at, *_ in seen.launches), default=0)))
    return replace(seen, launches=sorted([*seen.launches, *more]))


class Paused(Check):
    """From the second iteration of a pause to its end nothing is launched of what a pause keeps where it is, and where
    it lets go on what runs, of nobody who had not run.
    """

    rule = Rule("S11", "paused", "a paused scheduler runs nobody whom it should not", Severity.WRONG_RESULT)
    defects = (Lie("goes on", "seen", _goes_on),)

    def after(self, run: Run) -> Iterator[Violation]:
        launches = run.started.seen.launches
        for pause, start, end in run.users.paused:
            until = end if end >= 0 else run.users.iterations
            had_run: set[str] = set()
            for launch in launches:
                if launch.iteration <= start + LATENCY:
                    had_run.update(launch.rids)
                elif launch.iteration < until and (new := [rid for rid in launch.rids if rid not in had_run]):
                    yield self.broken("start", new[0], "to wait until the pause is over", f"it starts in {launch.line}")
                    return
                elif launch.iteration < until and pause.mode == KEEP:
                    yield self.broken("kept", launch.rids[0], "to stay where it is", f"it runs in {launch.line}")
                    return


def _backwards(seen: Seen) -> Seen:
    """Each request starts with its last launch."""
    return replace(seen, launches=seen.launches[::-1])


class Order(Check):
    """Of two requests that wait, the one that is more urgent starts first; of two that are as urgent, the one that came
    first. They start together, too. Those with a
    grammar wait for that in a queue of their own.
    """

    rule = Rule("S12", "order", "requests start in the order of their priorities and arrivals", Severity.WRONG_RESULT)
    defects = (Lie("starts the last one first", "seen", _backwards),)

    def after(self, run: Run) -> Iterator[Violation]:
        if not self.facts.in_order:
            return
        started: dict[str, int] = {}
        for launch in run.started.seen.launches:
            for rid in launch.rids:
                started.setdefault(rid, launch.iteration)
        turns = {turn.rid: turn for turn in run.users.workload.turns}
        rank = self.facts.priorities.index
        sent = {rid: (rank(turns[rid].priority), at + turns[rid].compiling) for rid, at in run.users.sent_at.items()}
        stays = sent.keys() - run.users.aborted.keys() - run.users.refusable
        stays = {rid for rid in stays if not turns[rid].grammar}
        for rid, at in sorted(started.items(), key=itemgetter(1)):
            if rid in turns and turns[rid].grammar:
                continue
            priority, arrival = sent.get(rid, (len(self.facts.priorities), 0))
            for other in filter(stays.__contains__, sent):
                other_priority, other_arrival = sent[other]
                has_waited = other_arrival + LATENCY < at and started.get(other, run.users.iterations + 1) > at
                came_first = other_priority == priority and other_arrival + LATENCY < arrival
                if has_waited and (came_first or other_priority > priority):
                    part = "arrival" if came_first else "priority"
                    yield self.broken(part, other, "to start no later", f"{rid} starts in iteration {at}, before it")
                    return


def _less_and_less(answer: Answer) -> Answer:
    parts = tuple(part._replace(waited=1.0 / number) for number, part in enumerate(answer.parts, 1))
    return replace(answer, parts=parts)


class QueueTime(Check):
    """With each part of an answer its user is told how long the request has waited. One that was retracted waits again,
    and so for longer.
    """

    rule = Rule("S10", "queue-time", "a request's time in the queue never goes backwards", Severity.METRIC)
    defects = (Lie("waits less and less", "answers", lambda answers: [_less_and_less(one) for one in answers]),)

    def at_rest(self, run: Run) -> Iterator[Violation]:
        for _told, answer in run.answered:
            waited = 0.0
            for part in answer.parts:
                if part.waited is not None and part.waited < waited:
                    expected, actual = f"{waited:.6f} seconds at least", f"{part.waited:.6f}"
                    yield self.broken("answer", answer.rid, expected, actual)
                    break
                waited = part.waited or waited
