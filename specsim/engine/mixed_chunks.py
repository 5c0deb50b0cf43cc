"""Mixed chunks: one launch with a part of a prefill and the decode rows that run meanwhile.

The decode rows verify their trees in the same launch. No engine is known that mixes with speculation: those that mix
let a decode row be a prefill of one token, and this is the same with a tree for the token. The tokens of all rows lie
in one flat batch, the prefill's first, and so do the slots that they are written to.
"""

from __future__ import annotations

from itertools import accumulate, pairwise


def cache_locations(extends: list[list[int]], trees: list[list[int]]) -> list[list[int]]:
    """The slots of each tree, read where the flat batch has them. `extends` are those of the prefill's rows."""
    flat = [slot for slots in (*extends, *trees) for slot in slots]
    extend_lens = [len(slots) for slots in extends]
    first = sum(extend_lens)
    ends = list(accumulate(map(len, trees), initial=first))
    return [flat[start:end] for start, end in pairwise(ends)]
