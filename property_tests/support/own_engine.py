"""A user's own engine, as small as one can be: it answers each request in the iteration in which it arrives. Before
that it calls the test's `step` with the number of requests so far, which does what the test is about.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

from specsim.choices.chooser import Chooser
from specsim.world.own import OwnEngine, OwnScheduler
from specsim.world.scheduler import Answer, Facts, Launch, Load, Pools, RequestState, Seen, Setup, Turn

Step = Callable[[int], object]

FACTS = Facts(
    features=frozenset(),
    context=120,
    answer_room=1,
    priorities=(),
    timeout=0.0,
    leap=0.0,
    ahead=0,
    late=0,
    patience=4,
    keeps_last=False,
)


class Scheduler(OwnScheduler):
    is_idle = True

    def __init__(self, setup: Setup, step: Step) -> None:
        self.setup, self.facts, self.seen = setup, FACTS, Seen()
        self._step = step
        self._turns: list[Turn] = []

    def generate(self, turn: Turn) -> Turn:
        return turn

    def run(self, chooser: Chooser, script: Callable[[int], Sequence[Turn] | None]) -> None:
        iteration = 0
        while (turns := script(iteration)) is not None:
            for turn in turns:
                self._step(len(self._turns) + 1)
                self.seen.launches.append(Launch(iteration, "extend", (turn.rid,)))
                self._turns.append(turn)
            iteration += 1

    def load(self) -> Load:
        return Load((), 0, self.setup.slots, self.setup.rows, (), FACTS.context)

    def requests(self) -> Iterator[RequestState]:
        for answer, turn in zip(self.answers(), self._turns, strict=True):
            yield RequestState(turn.rid, turn.prompt, answer.tokens, answer.reason, 0, 0, -1, 0)

    def answers(self) -> Iterator[Answer]:
        for turn in self._turns:
            yield Answer(turn.rid, tuple(self.decode(turn.prompt, turn.answer)), "length", matched=turn.answer)

    def pools(self) -> Pools:
        return Pools(self.setup.slots, self.setup.slots, 0, self.setup.rows, self.setup.rows)


class Engine(OwnEngine):
    def __init__(self, step: Step = lambda _requests: None) -> None:
        self.step = step

    def start(self, setup: Setup) -> Scheduler:
        return Scheduler(setup, self.step)
