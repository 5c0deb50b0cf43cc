"""What the states of a schedule are on a page, whatever tier ran it.

A state is sections of plain values:

    slots          slot -> [owner, position, what it holds, what it should hold]; "" is nothing, or for the last nothing
                   yet. The position is -1 where none is known
    cells          "row,column" of `req_to_token` -> slot
    owners         name -> [row, committed, allocated, protected, KVready]: who owns a row
    lists          queues, free lists, counts
    request RID    its fields; `prompt` and `outputs` are tokens

An owner is a request, "session NAME", "tree", two names for a slot that two have; "freed" for a slot of an open free
group, "leaked" for one that is in nobody's hands and not free, "" for a free one. What a slot holds is named by the
sequence whose KV it is: "r0@4" is that of request r0 up to its position 4.

What an event changed of the state is all that a page keeps (`changed`).
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

Sections = dict[str, dict[str, Any]]


def changed(before: Sections, now: Sections) -> Sections:
    """What a state has that the one before it has not, section by section; None for what is gone."""
    found: Sections = {}
    for section in {**before, **now}:
        was, is_now = before.get(section, {}), now.get(section, {})
        news = {key: value for key, value in is_now.items() if key not in was or was[key] != value}
        news |= {key: None for key in was if key not in is_now}
        if news:
            found[section] = news
    return found


def ranges(numbers: Iterable[int]) -> str:
    """Numbers in their order, runs of neighbours as FIRST-LAST."""
    runs: list[list[int]] = []
    for number in numbers:
        if runs and number == runs[-1][1] + 1:
            runs[-1][1] = number
        else:
            runs.append([number, number])
    return " ".join(str(first) if first == last else f"{first}-{last}" for first, last in runs)
