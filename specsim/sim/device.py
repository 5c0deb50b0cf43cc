"""The device: a stream of launches that compute on content.

A launch sees the rows as they were when it was launched: engines order later writes of a row behind the reads of
earlier launches (the write-after-read barrier), and so does this model. Launches run in order, each at a time that the
chooser picks, at the latest when the host waits for its result.

Target KV only; draft pools are not modelled yet.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field

from specsim.sim import model
from specsim.sim.accounting import DecodeResult
from specsim.sim.config import EngineConfig
from specsim.sim.relay import Left, Ring
from specsim.sim.request import Request
from specsim.sim.verify import fill_bonus_tokens, verify_tree_greedy


@dataclass(frozen=True, slots=True)
class DraftPlan:
    """What the drafter proposes to one request: the tree, and the nodes of it whose token is the one that the target
    will say.

    `parents[node]` is the parent of each node, -1 for the root, node 0.
    """

    parents: list[int]
    agreeing: frozenset[int]


@dataclass(slots=True)
class LaunchRow:
    """One request in a launch. `slots` are those of its `row` at launch; `tokens` and `prefix_len` are a prefill's;
    `relay_in` is where the launch before left the root of its tree, `relay_out` where it leaves the next.
    """

    request: Request
    key: tuple[str, int]
    slots: list[int]
    plan: DraftPlan | None = None
    tokens: list[int] = field(default_factory=list)
    prefix_len: int = 0
    row: int = 0
    is_middle: bool = False  # a part of a prefill, not the last: it gives no token
    relay_in: int = -1
    relay_out: int = -1


@dataclass(slots=True)
class Launch:
    """A batch on the device. `first_tokens` or `result` are set when it is done."""

    number: int
    kind: str  # "prefill" or "decode"
    rows: list[LaunchRow]
    num_steps: int = 0
    num_draft_tokens: int = 0
    done: bool = False
    first_tokens: list[int] = field(default_factory=list)
    result: DecodeResult | None = None

    @property
    def name(self) -> str:
        return f"{'P' if self.kind == 'prefill' else 'V'}{self.number}"

    @property
    def requests(self) -> list[Request]:
        return [row.request for row in self.rows]


@dataclass(slots=True)
class Sequence:
    """The device's own view of a request: fingerprints of the positions whose KV is written, the root of the next
    tree, and the recurrent state behind the last written position: what a layer without KV knows of the sequence.
    """

    chain: list[int]
    root: int
    state: int


@dataclass(frozen=True, slots=True)
class Step:
    """What a decode step did to one request, for the rules: device length before, nodes of the accepted path,
    tokens.
    """

    key: tuple[str, int]
    start: int
    path: list[int]
    tokens: list[int]
    parents: list[int]
    predicts: list[int]
    bonus: int
    slots: list[int]


@dataclass(frozen=True, slots=True)
class ContentError:
    """A position that was read and does not hold the KV of its request's token."""

    key: tuple[str, int]
    position: int
    slot: int


class Device:
    """KV content by slot, and the stream of launches."""

    def __init__(self, config: EngineConfig) -> None:
        self._config = config
        self.content = [0] * (config.pool_slots + 2 * config.page_size)
        self.ring = Ring(config)
        self._output: list[int] = []  # the buffer that every verification writes its tokens to
        self.stream: deque[Launch] = deque()
        self.sequences: dict[tuple[str, int], Sequence] = {}
        self.steps: list[Step] = []
        self.content_errors: list[ContentError] = []
        self.short_rows: list[tuple[tuple[str, int], int, int]] = []
        self.relayed: list[tuple[tuple[str, int], Left | None]] = []

    def launch(self, launch: Launch) -> None:
        self.stream.append(launch)

    def execute_next(self) -> Launch:
        """Run the oldest launch. `steps`, `content_errors` and `short_rows` then hold what it showed."""
        launch = self.stream.popleft()
        self.steps, self.content_errors, self.short_rows, self.relayed = [], [], [], []
        if launch.kind == "prefill":
            launch.first_tokens = [self._prefill(row) for row in launch.rows]
        else:
            launch.result = self._decode(launch.rows, launch.num_steps, launch.num_draft_tokens)
        launch.done = True
        return launch

    def _prefill(self, row: LaunchRow) -> int:
        chain = model.fingerprints(row.tokens)
        self._read(row, chain[: row.prefix_len])
        if len(row.slots) < len(chain):
            self.short_rows.append((row.key, len(row.slots), len(chain)))
        for position in range(row.prefix_len, min(len(chain), len(row.slots))):
            self.content[row.slots[position]] = chain[position]
        token = model.next_token_after(chain[-1], len(chain), row.request.specials)
        self.sequences[row.key] = Sequence(chain, token, chain[-1])
        self.ring.entries[row.relay_out] = Left(row.key, token)
        return token

    def _read(self, row: LaunchRow, chain: list[int]) -> None:
        """Read the KV of the positions of `chain`, and note the first that is not what the sequence needs."""
        content = self.content
        read = [content[slot] for slot in row.slots[: len(chain)]]
        if read != chain:
            position = next((p for p, (r, c) in enumerate(zip(read, chain, strict=False)) if r != c), len(read))
            slot = row.slots[position] if position < len(row.slots) else -1
            self.content_errors.append(ContentError(row.key, position, slot))

    def _decode(self, rows: list[LaunchRow], num_steps: int, ndt: int) -> DecodeResult:
        config = self._config
        candidates: list[list[int]] = []
        targets: list[list[int]] = []
        trees: list[list[int]] = []
        prints: list[list[int]] = []
        for row in rows:
            sequence = self.sequences[row.key]
            left = self.ring.entries[row.relay_in]
            self.relayed.append((row.key, left))
            sequence.root = left.root if left is not None else 0
            self._read(row, sequence.chain)
            if len(row.slots) < len(sequence.chain) + config.alloc_len:
                self.short_rows.append((row.key, len(row.slots), len(sequence.chain) + config.alloc_len))
            tokens, node_prints, node_targets = self._run_target(row, sequence)
            candidates.append(tokens)
            targets.append(node_targets)
            prints.append(node_prints)
            assert row.plan is not None
            trees.append(row.plan.parents)
        verified = verify_tree_greedy(candidates, trees, targets, num_steps)
        width = num_steps + 1
        accept_tokens = [verified.predicts[node] for node in verified.accept_index]
        bonus = fill_bonus_tokens(accept_tokens, verified.accept_lens, width)
        sources = [verified.accept_index[entry] for entry in range(len(rows) * width)]
        self._output.clear()
        for b, row in enumerate(rows):
            path = [node - b * ndt for node in sources[b * width :][: verified.accept_lens[b]]]
            run = [verified.predicts[b * ndt + node] for node in path]
            self._output += run + [0] * (ndt - len(run))
            self._accept(row, path, prints[b], bonus[b], run)
        return DecodeResult(self._output.copy(), verified.accept_lens, ndt)

    def _run_target(self, row: LaunchRow, sequence: Sequence) -> tuple[list[int], list[int], list[int]]:
        """Token, fingerprint and target token of every node; the KV of all nodes is written from the sequence's end
        on.
        """
        assert row.plan is not None
        start = len(sequence.chain)
        parents = row.plan.parents
        tokens, depth = [sequence.root], [0]
        node_prints = [model.extend(sequence.state, sequence.root)]
        specials = row.request.specials
        targets = [model.next_token_after(node_prints[0], start + 1, specials)]
        for node in range(1, len(parents)):
            parent = parents[node]
            right = targets[parent]
            # A wrong draft differs from the right token and from its siblings' tokens.
            tokens.append(right if node in row.plan.agreeing else (right + node) % model.VOCABULARY + model.VOCABULARY)
            depth.append(depth[parent] + 1)
            node_prints.append(model.extend(node_prints[parent], tokens[node]))
            targets.append(model.next_token_after(node_prints[node], start + depth[node] + 1, specials))
        out_cache_loc = row.slots[start : start + self._config.num_draft_tokens]
        for slot, fingerprint in zip(out_cache_loc, node_prints, strict=False):
            self.content[slot] = fingerprint
        return tokens, node_prints, targets

    def _accept(self, row: LaunchRow, path: list[int], node_prints: list[int], bonus: int, run: list[int]) -> None:
        """Move the KV of the accepted path to the front of the block, and let the sequence go on from the bonus
        token.
        """
        sequence = self.sequences[row.key]
        start = len(sequence.chain)
        moved = [self.content[row.slots[start + node]] for node in path if start + node < len(row.slots)]
        for offset, fingerprint in enumerate(moved):
            self.content[row.slots[start + offset]] = fingerprint
        sequence.chain += [node_prints[node] for node in path]
        sequence.root = bonus
        sequence.state = node_prints[path[-1]]
        self.ring.entries[row.relay_out] = Left(row.key, bonus)
        assert row.plan is not None
        self.steps.append(Step(row.key, start, path, run, row.plan.parents, run, bonus, row.slots))
