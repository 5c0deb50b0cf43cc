"""A scenario with one item fewer, as a tape: what a shrinker of tapes finds hard, because the choices of the run that
follow stand for something else when there is one request fewer.

It knows no names of choices. A count is a choice above 0; its items are the blocks between repetitions of the first
label that comes again after it.
"""

from __future__ import annotations

from collections.abc import Iterator

from specsim.choices.chooser import RecordingChooser, Tape, replayed
from specsim.engine.workload import draw_scenario


def scenario_choices(tape: Tape) -> list[tuple[str, int]]:
    """Label and value of every choice of the tape's scenario; those of the run are left out."""
    source = replayed(tape)
    choices: list[tuple[str, int]] = []

    def chosen(bound: int, label: str) -> int:
        choices.append((label, source.choose(bound, label)))
        return choices[-1][1]

    draw_scenario(RecordingChooser(chosen))
    return choices


def without_one_item(tape: Tape) -> Iterator[Tape]:
    """The tapes of scenarios that have one item less of something; each is as long as its scenario has choices."""
    choices = scenario_choices(tape)
    labels = [label for label, _ in choices]
    values = [value for _, value in choices]
    for count, value in enumerate(values):
        if not value:
            continue
        for start, end in _blocks(labels, count + 1):
            yield (*values[:count], value - 1, *values[count + 1 : start], *values[end:])


def _blocks(labels: list[str], after: int) -> list[tuple[int, int]]:
    """The items that follow: from one occurrence of a label to its next, and the last to the first label that no item
    has.
    """
    repeated = next((label for label in labels[after:] if labels[after:].count(label) > 1), None)
    if repeated is None:
        return []
    starts = [index for index in range(after, len(labels)) if labels[index] == repeated]
    of_items = set(labels[starts[0] : starts[-1]])
    last = starts[-1] + 1
    while last < len(labels) and labels[last] in of_items:
        last += 1
    return list(zip(starts, [*starts[1:], last], strict=True))
