"""The device: a stream of launches that compute on content.

A launch sees the rows as they were when it was launched: engines order later writes of a row behind the reads of
earlier launches (the write-after-read barrier), and so does this model. Launches run in order, each at a time that the
chooser picks, at the latest when the host waits for its result. With `specsim.engine.streams` a launch is several
operations that read what is there when they run, and the barrier is one of the waits between them.

The drafter's KV is `specsim.engine.draft`, padding is `specsim.engine.graph`; both run when the configuration has them.
What a sampled request outputs is `specsim.engine.sampling`.
"""

from __future__ import annotations

from array import array
from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass

from specsim.engine import model
from specsim.engine.config import EngineConfig
from specsim.engine.draft import Drafter, DraftMismatch, ExtendRow, expected_tags, extend_start
from specsim.engine.graph import GraphBuffers, write_pad_rows
from specsim.engine.launch import DecodeResult, Launch, LaunchRow, Sequence, Step, advance_grammar
from specsim.engine.locations import Locations, RowsAtLaunch, WrongSlots, wrong_copies, wrong_drafts
from specsim.engine.logprobs import write_rows
from specsim.engine.mixed_chunks import cache_locations
from specsim.engine.relay import Left, Ring
from specsim.engine.sampling import DistributionState, TreeDistribution, bincount, next_token, uniform_draw_of
from specsim.engine.sampling_params import Counts
from specsim.engine.scalar_tree import Attention, build_tree
from specsim.engine.scalar_verify import fill_bonus_tokens, verify_tree_greedy


@dataclass(frozen=True, slots=True)
class ContentError:
    """A position that was read and does not hold the KV of its request's token."""

    key: tuple[str, int]
    position: int
    slot: int


class Device:
    """KV content by slot, and the stream of launches. `has_distributions`: some requests are sampled, or want logprobs.
    `locations` say where drafts and nodes go in place of this model's own rows.
    """

    def __init__(
        self,
        config: EngineConfig,
        *,
        has_distributions: bool = False,
        locations: Locations | None = None,
    ) -> None:
        self._config = config
        self._locations_of_target = locations
        self._has_distributions = has_distributions
        self.content = [0] * (config.pool_slots + 2 * config.page_size)
        self.swa_content = [0] * (len(self.content) if config.window else 0)
        self._drafter = Drafter(config, len(self.content)) if config.draft_layers else None
        self._graph = GraphBuffers(config.graph_sizes, config.num_draft_tokens) if config.graph_sizes else None
        self.ring = Ring(config)
        self._output: list[int] = []  # the buffer that every verification writes its tokens to
        self.stream: deque[Launch] = deque()
        self.sequences: dict[tuple[str, int], Sequence] = {}
        self.steps: list[Step] = []
        self.content_errors: list[ContentError] = []
        self.short_rows: list[tuple[tuple[str, int], int, int]] = []
        self.relayed: list[tuple[tuple[str, int], Left | None]] = []
        self.pad_writes: list[int] = []
        self.collectives: list[str] = []
        self.longest = 0
        self.distribution_states: list[DistributionState] = []
        self._unread: list[Launch] = []
        self._written: dict[tuple[str, int], list[int]] = {}  # by the trees of the launch
        self._to_extend: tuple[tuple[ExtendRow, ...], int] = ((), 0)
        self._locations: dict[tuple[str, int], list[int]] = {}  # of the trees of a mixed chunk
        self._drafted: dict[tuple[str, int], list[int]] = {}  # where the target's own functions put drafts,
        self._verified: dict[tuple[str, int], list[int]] = {}  # and nodes
        self.wrong_slots: list[WrongSlots] = []

    @property
    def mismatches(self) -> list[DraftMismatch]:
        """What the drafter of the launch found other than it must be."""
        return self._drafter.mismatches if self._drafter else []

    def launch(self, launch: Launch) -> None:
        self.stream.append(launch)

    def execute_next(self) -> Launch:
        """Run the oldest launch. `steps`, `content_errors` and `short_rows` then hold what it showed."""
        launch = self.stream.popleft()
        self.steps, self.content_errors, self.short_rows, self.relayed = [], [], [], []
        self.pad_writes, self.collectives, self.distribution_states = [], [], []
        for earlier in self._unread:
            advance_grammar(earlier)
        self._unread = launch.parts if self._has_distributions and not self._config.streams else []
        if launch.kind == "prefill":
            chains = [self._read_prefix(row) for row in launch.rows]
            launch.first_tokens = [self._prefill(row, chain) for row, chain in zip(launch.rows, chains, strict=True)]
            launch.first_hidden_states = tuple(self.sequences[row.key].chain[-1] for row in launch.rows)
            if launch.beside is not None:
                self._decode_beside(launch.rows, launch.beside)
        else:
            if self._locations_of_target is not None and launch.table is not None and launch.rows:
                self._locate(self._locations_of_target, launch, launch.table)
            launch.result = self._decode(launch.rows, launch.num_steps, launch.num_draft_tokens)
        launch.done = True
        return launch

    def _locate(self, locations: Locations, launch: Launch, table: array[int]) -> None:
        """Ask the target where a step's drafts and nodes go, and hold the drafts against the rows."""
        keys = [row.key for row in launch.rows]
        lengths = [len(self.sequences[key].chain) for key in keys]
        rows = RowsAtLaunch(table, [row.row for row in launch.rows], lengths)
        self.wrong_slots = []
        self._drafted, self._verified = {}, {}
        if locations.draft is not None:
            slots, copies = locations.draft(rows, launch.num_steps)
            self._drafted = dict(zip(keys, slots, strict=True))
            requests = [(row.key, row.slots, length) for row, length in zip(launch.rows, lengths, strict=True)]
            for key, of_row, length in requests:
                seen = self._drafted[key]
                self.wrong_slots += wrong_drafts(self._config, key, of_row, length, launch.num_steps, seen)
            self.wrong_slots += wrong_copies(self._config, requests, launch.num_steps, copies)
            if self._drafter:
                self._drafter.copy(copies)
        if locations.verify is not None:
            self._verified = dict(zip(keys, locations.verify(rows, launch.num_draft_tokens), strict=True))

    def _decode_beside(self, prefilled: list[LaunchRow], beside: Launch) -> None:
        """Verify the decode rows of a mixed chunk."""
        ndt = beside.num_draft_tokens
        starts = [len(self.sequences[row.key].chain) for row in beside.rows]
        trees = [row.slots[start : start + ndt] for row, start in zip(beside.rows, starts, strict=True)]
        locations = cache_locations([row.slots[row.prefix_len : len(row.tokens)] for row in prefilled], trees)
        self._locations = {row.key: own for row, own in zip(beside.rows, locations, strict=True)}
        beside.result = self._decode(beside.rows, beside.num_steps, ndt)
        beside.done = True
        self._locations.clear()

    def _read_prefix(self, row: LaunchRow) -> list[int]:
        """Read what a prefill reuses: no row of a launch sees what another row of it writes."""
        chain = model.fingerprints(row.tokens)
        self._read(row, chain[: row.prefix_len])
        return chain

    def _prefill(self, row: LaunchRow, chain: list[int]) -> int:
        if len(row.slots) < len(chain):
            self.short_rows.append((row.key, len(row.slots), len(chain)))
        for position in range(row.prefix_len, min(len(chain), len(row.slots))):
            self._write(row, position, chain[position])
        counts: Counts = {}
        if row.is_middle or row.request.turn.sampling is None:  # the token behind a middle part is nobody's
            token = model.next_token_after(chain[-1], len(chain), row.request.specials)
        else:
            token, counts = self._first_token(row, chain)
        sequence = self.sequences[row.key] = Sequence(chain, token, chain[-1], counts=counts)
        self.ring.entries[row.relay_out] = Left(row.key, token)
        if self._drafter:
            self._drafter.extend_prefill(row, sequence)
            start = extend_start(row.prefix_len)
            self._expect(sequence, start, [*row.tokens[start + 1 :], token])
        return token

    def _first_token(self, row: LaunchRow, chain: list[int]) -> tuple[int, Counts]:
        """The first token of a sampled request, and the counts of its outputs with it."""
        request = row.request
        assert request.turn.sampling is not None
        counts: Counts = {}
        if not self._config.relaxed_penalties:
            counts = bincount(row.tokens[len(request.prompt) :])
        allowed = request.matcher.allowed_after([]) if request.matcher else None
        draw = uniform_draw_of(request.turn.sampling.seed, len(chain))
        token = next_token(chain[-1], len(chain), draw, request.specials, request.turn.sampling, counts, allowed)
        self._note_distribution(row, [([], counts)])
        return token, {**counts, token: counts.get(token, 0) + 1}

    def _note_distribution(self, row: LaunchRow, nodes: list[tuple[list[int], Counts]]) -> None:
        matcher = row.request.matcher
        self.distribution_states.append(
            DistributionState(row.request, row.key, nodes, list(matcher.states) if matcher else None)
        )

    def _expect(self, sequence: Sequence, start: int, tokens: list[int]) -> None:
        """The drafter's pools should hold what the tokens behind the positions from `start` on make."""
        right = expected_tags(self._config.draft_layers, sequence.chain[start:], tokens)
        for layer, new in enumerate(right):
            sequence.draft_tags[layer] += new

    def _read(self, row: LaunchRow, chain: list[int]) -> None:
        """Read the KV of the positions of `chain`, and note the first that is not what the sequence needs."""
        content = self.content
        read = [content[slot] for slot in row.slots[: len(chain)]]
        if read != chain:
            position = next((p for p, (r, c) in enumerate(zip(read, chain, strict=False)) if r != c), len(read))
            slot = row.slots[position] if position < len(row.slots) else -1
            self.content_errors.append(ContentError(row.key, position, slot))

        if row.swa_slots and chain:
            first = max(0, len(chain) - self._config.window)
            for position, swa_slot in enumerate(row.swa_slots[first : len(chain)], first):
                if not swa_slot or self.swa_content[swa_slot] != chain[position]:
                    self.content_errors.append(ContentError(row.key, position, swa_slot))
                    return

    def _write(self, row: LaunchRow, position: int, fingerprint: int) -> None:
        self.content[row.slots[position]] = fingerprint
        if row.swa_slots:
            self.swa_content[row.swa_slots[position]] = fingerprint

    def _decode(self, rows: list[LaunchRow], num_steps: int, ndt: int) -> DecodeResult:
        config = self._config
        candidates: list[list[int]] = []
        targets: list[list[int]] = []
        trees: list[list[int]] = []
        prints: list[list[int]] = []
        # Ranks meet in collectives, so those without a request run batches of zero.
        self.collectives.append("draft")
        self.longest = max((len(self.sequences[row.key].chain) for row in rows), default=0)
        for row in rows:
            sequence = self.sequences[row.key]
            left = self.ring.entries[row.relay_in]
            self.relayed.append((row.key, left))
            sequence.root = left.root if left is not None else 0
            self._read(row, sequence.chain)
            if self._drafter:
                self._drafter.draft(row, sequence, self._drafted.get(row.key))
            reach = len(sequence.chain) + (ndt if config.topk == 1 else config.alloc_len)
            if len(row.slots) < reach:
                self.short_rows.append((row.key, len(row.slots), reach))
            tokens, node_prints, node_targets = self._run_target(row, sequence)
            candidates.append(tokens)
            targets.append(node_targets)
            prints.append(node_prints)
            assert row.plan is not None
            trees.append(row.plan.parents)
        if self._graph and not self._locations:  # there is no graph of a mixed chunk
            self._replay_graph(rows, candidates, trees, targets)
        self.collectives.append("verify")
        verified = verify_tree_greedy(candidates, trees, targets, num_steps)
        width = num_steps + 1
        accept_tokens = [verified.predicts[node] for node in verified.accept_index]
        bonus = fill_bonus_tokens(accept_tokens, verified.accept_lens, width)
        sources = [verified.accept_index[entry] for entry in range(len(rows) * width)]
        self._output.clear()
        result = DecodeResult([], verified.accept_lens[: len(rows)], ndt)
        returns_rows = self._has_distributions and any(row.request.turn.return_logprob for row in rows)
        extended: list[ExtendRow] = []
        for b, row in enumerate(rows):
            path = [node - b * ndt for node in sources[b * width :][: verified.accept_lens[b]]]
            run = [verified.predicts[b * ndt + node] for node in path]
            self._output += run + [0] * (ndt - len(run))
            if returns_rows:
                write_rows(result, [prints[b][node] for node in path], run)
            if self._drafter:
                hidden = [prints[b][node] for node in path]
                sequence = self.sequences[row.key]
                extended.append(ExtendRow(row, sequence, len(sequence.chain), hidden, run))
            self._accept(row, path, prints[b], bonus[b], run)
        self.collectives.append("draft extend")
        if config.streams:
            self._to_extend = (tuple(extended), ndt)
        else:
            self._draft_extend(extended, ndt)
        result.next_token_ids = self._output.copy()
        self._written.clear()
        return result

    def draft_extend(self) -> None:
        """Run the drafter over what the last verification accepted: streams do it as an operation of its own."""
        self._draft_extend(*self._to_extend)

    def _draft_extend(self, extended: Iterable[ExtendRow], stride: int) -> None:
        if self._drafter:
            self._drafter.extend(list(extended), stride)
            for extend in extended:
                self._expect(extend.sequence, extend.start, extend.tokens)

    def _replay_graph(
        self, rows: list[LaunchRow], candidates: list[list[int]], trees: list[list[int]], targets: list[list[int]]
    ) -> None:
        """Pad the batch to a captured size; pad rows write their KV too."""
        assert self._graph is not None
        ndt = self._config.num_draft_tokens
        out_cache_loc = []
        for row in rows:
            start = len(self.sequences[row.key].chain)
            out_cache_loc.append([*row.slots[start : start + ndt], *[0] * ndt][:ndt])
        self._graph.load(candidates, trees, targets, out_cache_loc)
        self.pad_writes = write_pad_rows(self.content, candidates, out_cache_loc, len(rows))

    def _run_target(self, row: LaunchRow, sequence: Sequence) -> tuple[list[int], list[int], list[int]]:
        """Token, fingerprint and target token of every node; the KV of all nodes is written from the sequence's end
        on.
        """
        assert row.plan is not None
        start = len(sequence.chain)
        parents = row.plan.parents
        planned_len = start if row.planned_len < 0 else row.planned_len
        tree = build_tree(parents, planned_len)
        run_node = Attention(sequence.chain, sequence.state).node
        specials = row.request.specials
        distribution = self._distribution_of(row, sequence) if row.request.turn.sampling else None
        tokens = [sequence.root]
        node_prints: list[int] = []
        targets: list[int] = []
        for node, (mask, position) in enumerate(zip(tree.masks, tree.positions, strict=True)):
            if node:
                right = targets[parents[node]]
                # A wrong draft differs from the expected token and from its siblings' tokens.
                if node in row.plan.agreeing:
                    tokens.append(right)
                elif distribution is None:
                    tokens.append((right + node) % model.VOCABULARY + model.VOCABULARY)
                else:
                    tokens.append(distribution.wrong_draft(node, right))
            node_prints.append(run_node(tokens[node], mask, position))
            if distribution is None:
                targets.append(model.next_token_after(node_prints[node], position + 1, specials))
            else:
                targets.append(distribution.target(node, tokens[node], node_prints[node], position + 1))
        if distribution is not None:
            self._note_distribution(row, distribution.nodes)
        out_cache_loc = row.slots[start : start + self._config.num_draft_tokens]
        if self._locations:
            out_cache_loc = self._locations[row.key]
        elif self._verified:
            out_cache_loc = self._verified[row.key]
        self._written[row.key] = out_cache_loc
        for slot, fingerprint in zip(out_cache_loc, node_prints, strict=False):
            self.content[slot] = fingerprint
        for slot, fingerprint in zip(row.swa_slots[start:], node_prints, strict=False):
            self.swa_content[slot] = fingerprint
        return tokens, node_prints, targets

    def _distribution_of(self, row: LaunchRow, sequence: Sequence) -> TreeDistribution:
        assert row.plan is not None
        relaxed = row.counts is not None
        counts = sequence.counts if row.counts is None else row.counts
        return TreeDistribution(row.request, row.plan.parents, counts, relaxed)

    def _accept(self, row: LaunchRow, path: list[int], node_prints: list[int], bonus: int, run: list[int]) -> None:
        """Move the KV of the accepted path to the front of the block, and let the sequence go on from the bonus
        token.
        """
        sequence = self.sequences[row.key]
        start = len(sequence.chain)
        moved = [self.content[row.slots[start + node]] for node in path if start + node < len(row.slots)]
        for offset, fingerprint in enumerate(moved):
            self.content[row.slots[start + offset]] = fingerprint
        if row.swa_slots:
            reach = [start + node for node in path if start + node < len(row.slots)]
            for offset, fingerprint in enumerate([self.swa_content[row.swa_slots[at]] for at in reach]):
                self.swa_content[row.swa_slots[start + offset]] = fingerprint
        sequence.chain += [node_prints[node] for node in path]
        root, sequence.root = sequence.root, bonus
        sequence.state = node_prints[path[-1]]
        self.ring.entries[row.relay_out] = Left(row.key, bonus)
        if row.request.turn.sampling is not None:
            emitted = run
            for token in emitted:
                sequence.counts[token] = sequence.counts.get(token, 0) + 1
        assert row.plan is not None
        self.steps.append(
            Step(row.key, start, path, run, row.plan.parents, run, bonus, row.slots, root, self._written[row.key])
        )
