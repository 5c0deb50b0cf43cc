"""The drafter's KV: a pool for each layer over the slot ids of the target, draft-extend, and the relay between steps.

At position k the first layer sees the token at k + 1 and the target's hidden state at k; what it leaves in its pool is
a function of the sequence alone. Layer i of a multi-layer drafter sees the token at k + 1 + i: the input ids are
rotated once more for each layer, and where the sequence has no token yet, the draft that an earlier layer made stands
there. The relay hands root and seeds of the next drafts from one step to the next; it is indexed by row of
`req_to_token`.

What is expected is computed request by request (`expected_tags`), what is written is computed over the flat batch.

The token behind the last reused position of a session's turn is the new turn's, so that position is extended again,
with the target's hidden state that the session kept of it.

Not checked: the reused positions of a session's turn in later layers, which may stand on drafts that were not accepted.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, NamedTuple

from specsim.engine import model
from specsim.engine.config import EngineConfig
from specsim.engine.launch import LaunchRow, Sequence

Key = tuple[str, int]

_LAYER = 0x2545F4914F6CDD1D
_REJECTED = 0x9E3779B9  # hidden state and token of a node that was not accepted: nobody reads what comes of it


def tag_of(layer: int, hidden: int, token: int) -> int:
    """What a draft layer leaves in its pool for a token and a hidden state of the target."""
    return model.extend(hidden ^ _LAYER * (layer + 1), token)


def draft_token_of(tag: int) -> int:
    """The draft that a layer makes at a position."""
    return model.next_token(tag)


def expected_tags(layers: int, hidden: list[int], tokens: list[int]) -> list[list[int]]:
    """The tags of every layer for positions with the hidden states `hidden`, which `tokens` follow, one each."""
    following = list(tokens)
    found = []
    for layer in range(layers):
        found.append([tag_of(layer, state, following[at + layer]) for at, state in enumerate(hidden)])
        following.append(draft_token_of(found[-1][-1]))
    return found


def extend_start(prefix_len: int) -> int:
    """Where draft-extend begins after a prefill: one position back, whose following token was not known before."""
    return max(prefix_len - 1, 0)


def rotate_input_ids(ids: list[int], extend_lens: list[int], stride: int, drafts: list[int]) -> list[int]:
    """`ids` [bs * stride], each request's first `extend_lens` shifted left by one, with its draft as the last."""
    rotated = list(ids)
    for b, (extend_len, draft) in enumerate(zip(extend_lens, drafts, strict=True)):
        first = b * stride
        rotated[first : first + extend_len] = [*ids[first + 1 : first + extend_len], draft]
    return rotated


class Relayed(NamedTuple):
    """What a step leaves for the next one of its request: who it was, its length, the next root, a seed for each
    layer.
    """

    key: Key
    length: int
    root: int
    seeds: list[int]


@dataclass(slots=True)
class ExtendRow:
    """A request in draft-extend. `hidden` and `tokens` are of its accepted positions, from `start` on."""

    row: LaunchRow
    sequence: Sequence
    start: int
    hidden: list[int]
    tokens: list[int]


# What a drafter finds wrong: what the step before left in the relay, the seed of the next drafts in it, or KV that it
# reads, which may be that of another layer's pool.
Mismatch = Literal["relay entry", "seed", "pool", "content"]


@dataclass(frozen=True, slots=True)
class DraftMismatch:
    """Something that the drafter found other than it must be for request `who`."""

    kind: Mismatch
    who: str
    expected: str
    actual: str


class Drafter:
    """The drafter's pools and relay. `mismatches` are what the launch found other than it must be."""

    def __init__(self, config: EngineConfig, slots: int) -> None:
        self._layers = config.draft_layers
        self._drafted = config.num_steps * config.topk if self._layers == 1 else 0
        self.pools = [[0] * slots for _ in range(self._layers)]
        self.relay: dict[int, Relayed] = {}
        self.mismatches: list[DraftMismatch] = []

    def copy(self, copies: list[tuple[int, int]]) -> None:
        """Copy the KV of the (target, source) slots, sources before targets."""
        pool = self.pools[0]
        moved = [(target, pool[source]) for target, source in copies]
        for target, tag in moved:
            pool[target] = tag

    def draft(self, row: LaunchRow, sequence: Sequence, slots: list[int] | None = None) -> None:
        """Draft from the relay's entry. Reads the KV of the whole sequence, and leaves that of the drafts behind it, or
        in `slots`.
        """
        entry = self.relay.pop(row.row, None)
        length = len(sequence.chain)
        if entry is None or (entry.key, entry.length) != (row.key, length):
            seen = "none" if entry is None else f"{entry.key} at {entry.length}"
            self.mismatches.append(
                DraftMismatch("relay entry", row.key[0], f"the entry of {row.key} at {length}", seen)
            )
            return
        sequence.root = entry.root
        for layer, tags in enumerate(sequence.draft_tags):
            self._read(row, sequence, layer)
            if entry.seeds[layer] != tags[-1]:
                right = f"the draft of layer {layer} at position {length - 1}"
                self.mismatches.append(DraftMismatch("seed", row.key[0], right, "another"))
        pool = self.pools[0]
        own = row.slots[length : length + self._drafted] if slots is None or not self._drafted else slots
        for slot in own:
            pool[slot] = _REJECTED

    def _read(self, row: LaunchRow, sequence: Sequence, layer: int) -> None:
        pool = self.pools[layer]
        tags = sequence.draft_tags[layer]
        read = [pool[slot] for slot in row.slots[: len(tags)]]
        if read == tags:
            return
        at = next((p for p, (r, t) in enumerate(zip(read, tags, strict=False)) if r != t), len(read))
        others = [other[at] for number, other in enumerate(sequence.draft_tags) if number != layer]
        is_of_another_pool = at < len(read) and (read[at] in others or (layer > 0 and not read[at]))
        kind: Mismatch = "pool" if is_of_another_pool else "content"
        right = f"draft KV of layer {layer} at position {at}"
        self.mismatches.append(DraftMismatch(kind, row.key[0], right, "something else"))

    def extend_prefill(self, row: LaunchRow, sequence: Sequence) -> None:
        """Draft-extend over a prefill: the prompt shifted by one, with the first token at its end."""
        start = extend_start(row.prefix_len)
        tokens = [*row.tokens[start + 1 :], sequence.root]
        for layer in range(self._layers):
            reused = [self.pools[layer][slot] for slot in row.slots[:start]]
            if not layer and start:
                reused = expected_tags(1, sequence.chain[:start], row.tokens[1 : start + 1])[0]
            sequence.draft_tags.append(reused)
        self._extend([ExtendRow(row, sequence, start, sequence.chain[start:], tokens)], len(tokens))

    def extend(self, rows: list[ExtendRow], stride: int) -> None:
        """Draft-extend after a verification, over all positions of the block; the accepted ones come first."""
        self._extend(rows, stride)

    def _extend(self, rows: list[ExtendRow], stride: int) -> None:
        ids: list[int] = []
        hidden: list[int] = []
        for row in rows:
            rejected = [_REJECTED] * (stride - len(row.tokens))
            ids += row.tokens + rejected
            hidden += row.hidden + rejected
        accept_lens = [len(row.tokens) for row in rows]
        select_index = [b * stride + accept_len - 1 for b, accept_len in enumerate(accept_lens)]
        seeds: list[list[int]] = [[] for _ in rows]
        for layer in range(self._layers):
            own_pool = self.pools[layer]
            tags = [tag_of(layer, state, token) for state, token in zip(hidden, ids, strict=True)]
            for b, row in enumerate(rows):
                for slot, tag in zip(row.row.slots[row.start :], tags[b * stride : (b + 1) * stride], strict=False):
                    own_pool[slot] = tag
                seeds[b].append(tags[select_index[b]])
            ids = rotate_input_ids(ids, accept_lens, stride, [draft_token_of(of_row[-1]) for of_row in seeds])
        for row, of_row in zip(rows, seeds, strict=True):
            sequence = row.sequence
            self.relay[row.row.row] = Relayed(row.row.key, len(sequence.chain), sequence.root, of_row)
