"""CUDA-graph padding: a batch is padded to the next captured size with rows that hold what an earlier replay left.

A pad row runs like any other: it writes KV where its `out_cache_loc` says, and its stale tokens are verified. So its
slots are reset to slot 0, which belongs to nobody, before every replay, and its results are cut off.
"""

from __future__ import annotations

from specsim.engine import model

_STALE_TOKEN = 7


class GraphBuffers:
    """The input buffers of the graphs of a decode step, one row for each request of the largest captured size."""

    def __init__(self, sizes: tuple[int, ...], num_draft_tokens: int) -> None:
        most = max(sizes)
        self._sizes = sizes
        self._ndt = num_draft_tokens
        self.candidates = [[_STALE_TOKEN] * num_draft_tokens for _ in range(most)]
        self.parents = [list(range(-1, num_draft_tokens - 1)) for _ in range(most)]
        self.targets = [[_STALE_TOKEN] * num_draft_tokens for _ in range(most)]
        self.out_cache_loc = [[0] * num_draft_tokens for _ in range(most)]

    def padded_size(self, bs: int) -> int:
        """The smallest captured size that the batch fits in; its own when it fits in none and runs without a graph."""
        return min((size for size in self._sizes if size >= bs), default=bs)

    def load(
        self,
        candidates: list[list[int]],
        parents: list[list[int]],
        targets: list[list[int]],
        out_cache_loc: list[list[int]],
    ) -> int:
        """Copy a batch into the first rows and pad the arguments with the rows behind them. Returns the padded size."""
        bs = len(candidates)
        size = self.padded_size(bs)
        if bs <= len(self.candidates):
            self.candidates[:bs] = candidates
            self.parents[:bs] = parents
            self.targets[:bs] = targets
            self.out_cache_loc[:bs] = out_cache_loc
            self.out_cache_loc[bs:size] = [[0] * self._ndt for _ in range(size - bs)]
        candidates += self.candidates[bs:size]
        parents += self.parents[bs:size]
        targets += self.targets[bs:size]
        out_cache_loc += self.out_cache_loc[bs:size]
        return size


def write_pad_rows(
    content: list[int], candidates: list[list[int]], out_cache_loc: list[list[int]], bs: int
) -> list[int]:
    """The KV that pad rows write. Returns the slots that they wrote."""
    written = []
    for tokens, slots in zip(candidates[bs:], out_cache_loc[bs:], strict=True):
        for token, slot in zip(tokens, slots, strict=True):
            content[slot] = model.extend(model.EMPTY, token)
            written.append(slot)
    return written
