"""The mutants: each a line of the model, what it becomes, and the report of the bug that it re-creates.

A mutant re-creates the effect of a bug in the model's own convention, which is seldom the line that was wrong in an
engine. Ids follow the catalogue of bugs that the project started from; a word behind one tells apart two halves or
variants of a bug. References are "repository#number" of issues and pull requests.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Mutant:
    """A one-line change of the model.

    `title`       what is wrong, one sentence
    `references`  where the bug was reported or fixed
    `module`      import name of the module that is changed
    `line`        the line that is replaced, without its indentation; it occurs in the module exactly once
    `becomes`     what it is replaced by, one line, which gets the same indentation
    """

    id: str
    title: str
    references: tuple[str, ...]
    module: str
    line: str
    becomes: str


_ACCOUNTING = "specsim.sim.accounting"
_CONFIG = "specsim.sim.config"
_DEVICE = "specsim.sim.device"
_ENGINE = "specsim.sim.engine"
_RELAY = "specsim.sim.relay"
_DRAFT = "specsim.sim.draft"
_GRAPH = "specsim.sim.graph"
_TREE = "specsim.sim.tree"
_RADIX = "specsim.memory.radix"

CATALOGUE: tuple[Mutant, ...] = (
    Mutant(
        "A01",
        "a session is saved without the bonus token whose KV a launched verification writes",
        references=("sgl-project/sglang#22651", "sgl-project/sglang#19531", "sgl-project/sglang#28754"),
        module=_ACCOUNTING,
        line="claim = min(keep, held.kv_ready)",
        becomes="claim = min(keep, held.honest)",
    ),
    Mutant(
        "A02-finished",
        "a stale result is counted for a request that has finished",
        references=("sgl-project/sglang#23456", "sgl-project/sglang#18848", "sgl-project/sglang#15690"),
        module=_ACCOUNTING,
        line="if held.finished:",
        becomes="if False:",
    ),
    Mutant(
        "A02-retracted",
        "a stale result is counted for a request that was retracted",
        references=("sgl-project/sglang#23456", "sgl-project/sglang#18848", "sgl-project/sglang#15690"),
        module=_ACCOUNTING,
        line="if held.is_retracted:",
        becomes="if False:",
    ),
    Mutant(
        "A03",
        "a session keeps accepted tokens beyond the end of the answer",
        references=("sgl-project/sglang#22897",),
        module=_ACCOUNTING,
        line="keep = len(request.prompt) + visible",
        becomes="keep = len(request.prompt) + len(request.outputs)",
    ),
    Mutant(
        "A05",
        "a resumed session forgets the slots beyond what it reuses",
        references=("sgl-project/sglang#22862",),
        module=_ACCOUNTING,
        line="self._free(held, ceil_to(prefix_len, self._memory.config.page_size))",
        becomes="pass",
    ),
    Mutant(
        "A05-unaligned",
        "a resumed session frees the page that its reused prefix ends in",
        references=("sgl-project/sglang#22862",),
        module=_ACCOUNTING,
        line="self._free(held, ceil_to(prefix_len, self._memory.config.page_size))",
        becomes="self._free(held, prefix_len)",
    ),
    Mutant(
        "A06",
        "a turn that is aborted saves what it has over its session",
        references=("sgl-project/sglang#22273", "sgl-project/sglang#21875"),
        module=_ACCOUNTING,
        line="if request.turn.session and not held.to_finish:",
        becomes="if request.turn.session:",
    ),
    Mutant(
        "A07",
        "the protected length of a resumed session is what it reuses, not whole pages",
        references=("sgl-project/sglang#20070",),
        module=_ACCOUNTING,
        line="held.node, held.protected = slot.node, slot.protected",
        becomes="held.node, held.protected = slot.node, prefix_len",
    ),
    Mutant(
        "A08",
        "a turn that asks for logprobs of its prompt is matched with the part before them only",
        references=("sgl-project/sglang#20557",),
        module=_ENGINE,
        line="prefix_len = self._accounting.session_match(request, fill_len)",
        becomes="prefix_len = self._accounting.session_match("
        "request, [fill_len, request.turn.logprob_start + 1][request.turn.logprob_start >= 0])",
    ),
    Mutant(
        "A09",
        "memory is given back up to the length that is known, not up to the length that was allocated",
        references=("sgl-project/sglang#12224", "sgl-project/sglang-jax#994", "sgl-project/sglang-jax#70"),
        module=_ACCOUNTING,
        line="self._memory.allocator.free(self._memory.rows.read(held.row, start, held.allocated))",
        becomes="self._memory.allocator.free(self._memory.rows.read(held.row, start, held.kv_ready or held.allocated))",
    ),
    Mutant(
        "A10",
        "a retraction frees the claimed positions only",
        references=("sgl-project/sglang#11970", "sgl-project/sglang#11976", "sgl-project/sglang#11981"),
        module=_ACCOUNTING,
        line="self._take_back(retracted[-1].state_of_accounting)",
        becomes="held = retracted[-1].state_of_accounting; held.allocated = held.kv_ready; self._take_back(held)",
    ),
    Mutant(
        "A11",
        "the check for memory before a decode step counts one step, its allocation two",
        references=("sgl-project/sglang#14972",),
        module=_ACCOUNTING,
        line="ceil_to(self._next_allocated(held), page_size) - ceil_to(held.allocated, page_size)",
        becomes="ceil_to(max(held.allocated, held.honest + self._memory.config.alloc_len), page_size)"
        " - ceil_to(held.allocated, page_size)",
    ),
    Mutant(
        "A12",
        "fewer draft steps take back what was allocated for more",
        references=("sgl-project/sglang#23336",),
        module=_ACCOUNTING,
        line="return max(held.allocated, held.honest + self._memory.reserve)",
        becomes="return held.honest + self._memory.reserve",
    ),
    Mutant(
        "A14",
        "a row has room for one tree beyond the context, and not for the reserve",
        references=("sgl-project/sglang#26972",),
        module=_CONFIG,
        line="return self.context_len + self.reserve + self.page_size",
        becomes="return self.context_len + self.num_draft_tokens",
    ),
    Mutant(
        "A18",
        "slots are allocated and the allocated length is not recorded",
        references=("sgl-project/sglang-jax#1147",),
        module=_ACCOUNTING,
        line="held.allocated = end",
        becomes="pass",
    ),
    Mutant(
        "A19",
        "the ring of the relay has room for two batches",
        references=("sgl-project/sglang-jax#1487",),
        module=_RELAY,
        line="return (config.rows * launches + 2) * config.rows",
        becomes="return 2 * config.rows",
    ),
    Mutant(
        "A20",
        "a launch reserves for one step, and not for the one in flight",
        references=("NVIDIA/TensorRT-LLM#16280",),
        module=_CONFIG,
        line="return 2 * self.alloc_len",
        becomes="return self.alloc_len",
    ),
    Mutant(
        "A22",
        "the late result of a retracted request is taken as a fresh one",
        references=("vllm-project/vllm#49620", "vllm-project/vllm#41190"),
        module=_ENGINE,
        line="return row.request.state is State.RUNNING and row.request.key == row.key",
        becomes="return row.request.state is not State.FINISHED and row.request.key == row.key",
    ),
    Mutant(
        "A23",
        "the placeholder for the root of a request that comes back stays",
        references=(
            "vllm-project/vllm#46899",
            "vllm-project/vllm#40768",
            "vllm-project/vllm#43434",
            "vllm-project/vllm#37159",
        ),
        module=_DEVICE,
        line="tokens = [sequence.root]",
        becomes="tokens = [sequence.root if row.key[1] == 1 else -1]",
    ),
    Mutant(
        "A24",
        "a bigram key has as many entries as there are tokens",
        references=("sgl-project/sglang#40681",),
        module=_RADIX,
        line="keys = max(num_tokens - self._beyond, 0)",
        becomes="keys = max(num_tokens, 0)",
    ),
    Mutant(
        "B01",
        "a verification looks its row up when it runs, and not as it was at its launch",
        references=("sgl-project/sglang#18744", "sgl-project/sglang#18746"),
        module=_ENGINE,
        line="return seen.row, self._memory.rows.read(seen.row, 0, seen.allocated)",
        becomes="return seen.row, memoryview(self._memory.rows.buffer)[seen.row * self._memory.rows.width :]"
        "[: seen.allocated]",
    ),
    Mutant(
        "B04",
        "the plan of a verification is made from the length that the host knows",
        references=("sgl-project/sglang#28034", "sgl-project/sglang#22113", "sgl-project/sglang#21942"),
        module=_DEVICE,
        line="tree = build_tree(parents, start)",
        becomes="tree = build_tree(parents, min(start, row.request.honest_len))",
    ),
    Mutant(
        "B06",
        "the host waits for the newest launch before it takes the oldest result",
        references=("sgl-project/sglang#31072",),
        module=_ENGINE,
        line="yield oldest  # its result is due",
        becomes="yield self._unresolved[-1]",
    ),
    Mutant(
        "B08",
        "the host reads tokens from the device's output buffer, which the next step writes",
        references=("sgl-project/sglang#19761",),
        module=_DEVICE,
        line="return DecodeResult(self._output.copy(), verified.accept_lens[: len(rows)], ndt)",
        becomes="return DecodeResult(self._output, verified.accept_lens[: len(rows)], ndt)",
    ),
    Mutant(
        "C01",
        "the keys of the tree are tokens although the drafter's KV depends on the next one",
        references=("sgl-project/sglang#10846", "sgl-project/sglang#11231"),
        module=_ENGINE,
        line="tree = RadixCache(page_size, allocator, bigram=self._config.bigram, watcher=self._ledger)",
        becomes="tree = RadixCache(page_size, allocator, bigram=False, watcher=self._ledger)",
    ),
    Mutant(
        "C02",
        "the drafter's KV of a part of a prefill that is not the last stays unwritten",
        references=("sgl-project/sglang#19796", "sgl-project/sglang#19897"),
        module=_DRAFT,
        line="own_pool[slot] = tag",
        becomes="own_pool[slot] = 0 if row.row.is_middle else tag",
    ),
    Mutant(
        "C07",
        "the draft pool has half as many slots as the target's",
        references=("sgl-project/sglang#17630",),
        module=_DEVICE,
        line="self._drafter = Drafter(config, len(self.content)) if config.draft_layers else None",
        becomes="self._drafter = Drafter(config, len(self.content) // 2) if config.draft_layers else None",
    ),
    Mutant(
        "C11",
        "a launch reserves for four steps",
        references=("sgl-project/sglang#32459", "sgl-project/sglang#32574"),
        module=_CONFIG,
        line="return 2 * self.alloc_len",
        becomes="return 4 * self.alloc_len",
    ),
    Mutant(
        "C14",
        "a prefix can be found in the tree before its prefill has run",
        references=("vllm-project/vllm#41838",),
        module=_ENGINE,
        line="admitted.append(self._waiting.pop(0))",
        becomes="admitted.append(self._waiting.pop(0)); self._memory.tree and not has_session_row"
        " and self._accounting.cache_unfinished(request)",
    ),
    Mutant(
        "C15",
        "what the drafter keeps for a row outlives the request",
        references=("ggml-org/llama.cpp#27852",),
        module=_DRAFT,
        line="self.relay[row.row.row] = Relayed(row.row.key, len(sequence.chain), sequence.root, of_row)",
        becomes="self.relay.setdefault(row.row.row, Relayed(row.row.key, len(sequence.chain), sequence.root, of_row))",
    ),
    Mutant(
        "D01",
        "the KV of an accepted path that is no dense prefix of the tree is not moved to the front",
        references=(
            "sgl-project/sglang#26866",
            "sgl-project/sglang#15360",
            "sgl-project/sglang#11839",
            "sgl-project/sglang#14077",
        ),
        module=_DEVICE,
        line="self.content[row.slots[start + offset]] = fingerprint",
        becomes="pass",
    ),
    Mutant(
        "D01-hidden",
        "the hidden states of an accepted path that is no dense prefix of the tree are not gathered for the drafter",
        references=("sgl-project/sglang#26866", "sgl-project/sglang#15360"),
        module=_DEVICE,
        line="hidden = [prints[b][node] for node in path]",
        becomes="hidden = prints[b][: len(path)]",
    ),
    Mutant(
        "D02",
        "the bonus token is read with the stride of the tree instead of that of the accepted path",
        references=("sgl-project/sglang#26866", "sgl-project/sglang#26981", "sgl-project/sglang#15360"),
        module=_DEVICE,
        line="bonus = fill_bonus_tokens(accept_tokens, verified.accept_lens, width)",
        becomes="bonus = fill_bonus_tokens(accept_tokens, verified.accept_lens, ndt)",
    ),
    Mutant(
        "D03",
        "the move of accepted KV runs over an entry for every node of the trees",
        references=("sgl-project/sglang#26866",),
        module=_DEVICE,
        line="sources = [verified.accept_index[entry] for entry in range(len(rows) * width)]",
        becomes="sources = [verified.accept_index[entry] for entry in range(len(rows) * ndt)]",
    ),
    Mutant(
        "D05",
        "the seed of the next drafts is read from the last row of the block, not from the last accepted one",
        references=("sgl-project/sglang#27545",),
        module=_DRAFT,
        line="select_index = [b * stride + accept_len - 1 for b, accept_len in enumerate(accept_lens)]",
        becomes="select_index = [b * stride + stride - 1 for b, accept_len in enumerate(accept_lens)]",
    ),
    Mutant(
        "D06",
        "the recurrent state is that of node accept_len - 1 of the tree",
        references=("sgl-project/sglang#27463",),
        module=_DEVICE,
        line="sequence.state = node_prints[path[-1]]",
        becomes="sequence.state = node_prints[len(path) - 1]",
    ),
    Mutant(
        "D08",
        "the tree builder runs over one node more than there is",
        references=("sgl-project/sglang#36201",),
        module=_TREE,
        line="for node in range(1, len(parents)):",
        becomes="for node in range(1, len(parents) + 1):",
    ),
    Mutant(
        "D09",
        "the mask of a node leaves out its ancestors in the tree",
        references=("sgl-project/sgl-kernel-npu#146",),
        module=_TREE,
        line="masks.append(masks[parent] | 1 << verified_seq_len + node)",
        becomes="masks.append((1 << verified_seq_len) - 1 | 1 << verified_seq_len + node)",
    ),
    Mutant(
        "D11",
        "buffers of accepted tokens are sized for trees of two steps at least",
        references=("NVIDIA/TensorRT-LLM#10385",),
        module=_DEVICE,
        line="width = num_steps + 1",
        becomes="width = max(num_steps, 2) + 1",
    ),
    Mutant(
        "D12",
        "nodes stand at the position of their slot, not of their depth",
        references=("sgl-project/sglang-jax#1611", "sgl-project/sglang-jax#1112"),
        module=_TREE,
        line="positions.append(positions[parent] + 1)",
        becomes="positions.append(verified_seq_len + node)",
    ),
    Mutant(
        "E01",
        "the buffers of a graph are read although the batch ran without it",
        references=("sgl-project/sglang#22832",),
        module=_GRAPH,
        line="candidates += self.candidates[bs:size]",
        becomes="candidates[:] = self.candidates[:size]",
    ),
    Mutant(
        "E02",
        "the slots of pad rows are those that an earlier replay left",
        references=("sgl-project/sglang#22958", "sgl-project/sglang#18647"),
        module=_GRAPH,
        line="self.out_cache_loc[bs:size] = [[0] * self._ndt for _ in range(size - bs)]",
        becomes="pass",
    ),
    Mutant(
        "E05",
        "the drafter reads the hidden states that the step before left",
        references=("sgl-project/sglang#21424",),
        module=_DEVICE,
        line="hidden = [prints[b][node] for node in path]",
        becomes="hidden = self.sequences[row.key].chain[-len(path) :]",
    ),
    Mutant(
        "E06",
        "tokens are padded and the slots that they are written to are not",
        references=("sgl-project/sglang#17076", "sgl-project/sglang#24233"),
        module=_GRAPH,
        line="out_cache_loc += self.out_cache_loc[bs:size]",
        becomes="pass",
    ),
    Mutant(
        "E07",
        "a verification has cache locations for its steps, and not for every node",
        references=("sgl-project/sglang#30354",),
        module=_DEVICE,
        line="out_cache_loc = row.slots[start : start + self._config.num_draft_tokens]",
        becomes="out_cache_loc = row.slots[start : start + self._config.num_steps]",
    ),
    Mutant(
        "E09",
        "the results of pad rows are handed out with those of the batch",
        references=("NVIDIA/TensorRT-LLM#15708",),
        module=_DEVICE,
        line="return DecodeResult(self._output.copy(), verified.accept_lens[: len(rows)], ndt)",
        becomes="return DecodeResult(self._output.copy(), verified.accept_lens, ndt)",
    ),
    Mutant(
        "F01",
        "every layer of a drafter writes the first one's pool",
        references=("sgl-project/sglang#22954",),
        module=_DRAFT,
        line="own_pool = self.pools[layer]",
        becomes="own_pool = self.pools[0]",
    ),
    Mutant(
        "F02",
        "the drafter keeps what the turn before said behind the last reused position",
        references=("sgl-project/sglang#26800", "sgl-project/sglang#26329"),
        module=_DRAFT,
        line="return max(prefix_len - 1, 0)",
        becomes="return prefix_len",
    ),
    Mutant(
        "F02-shift",
        "after a prefill the drafter sees each position's own token, not the one behind it",
        references=("sgl-project/sglang#26329",),
        module=_DRAFT,
        line="tokens = [*row.tokens[start + 1 :], sequence.root]",
        becomes="tokens = row.tokens[start:]",
    ),
    Mutant(
        "F06",
        "every layer of a drafter reads the first layer's input",
        references=("vllm-project/vllm#36531",),
        module=_DRAFT,
        line="ids = rotate_input_ids(ids, accept_lens, stride, [draft_token_of(of_row[-1]) for of_row in seeds])",
        becomes="pass",
    ),
    Mutant(
        "H01",
        "the cap on new tokens is looked at before a stop token inside the same run",
        references=("sgl-project/sglang#33758", "sgl-project/sglang#31599", "sgl-project/sglang#31569"),
        module=_ACCOUNTING,
        line="stops = token == STOP or (token == EOS and not turn.ignore_eos)",
        becomes="stops = token in (STOP, EOS)[: 2 - turn.ignore_eos] and len(request.outputs) < turn.max_new_tokens",
    ),
    Mutant(
        "H02",
        "the finish check looks at the last token of a run alone",
        references=("sgl-project/sglang#11819",),
        module=_ACCOUNTING,
        line="for length in range(len(request.outputs) - new_tokens + 1, len(request.outputs) + 1):",
        becomes="for length in range(len(request.outputs), len(request.outputs) + 1):",
    ),
    Mutant(
        "H04",
        "the tokens that were accepted after the end stay in the answer",
        references=("ggml-org/llama.cpp#28049",),
        module=_ACCOUNTING,
        line="held.finished_len = length",
        becomes="held.finished_len = min(len(request.outputs), turn.max_new_tokens)",
    ),
    Mutant(
        "H06",
        "a full batch stays marked as full when a request ends with its prefill",
        references=("sgl-project/sglang#4185",),
        module=_ENGINE,
        line="self._batch_is_full = False  # somebody leaves",
        becomes="self._batch_is_full &= not request.resolved",
    ),
    Mutant(
        "H07",
        "a client that names no limit may fill the engine's own reserve",
        references=("NVIDIA/TensorRT-LLM#16826",),
        module=_ENGINE,
        line="room = self._config.context_len - len(turn.tokens)",
        becomes="room = self._config.row_width - len(turn.tokens)",
    ),
    Mutant(
        "I04",
        "the next batch is made without a look at who has finished",
        references=(
            "sgl-project/sglang#28986",
            "sgl-project/sglang#27324",
            "sgl-project/sglang#27325",
            "sgl-project/sglang#28312",
            "sgl-project/sglang#28484",
        ),
        module=_ENGINE,
        line="kept = [i for i, r in enumerate(batch) if r.state is not State.FINISHED]",
        becomes="kept = list(range(len(batch)))",
    ),
    Mutant(
        "K01",
        "what a request gets of a verification is read without its offset in the batch",
        references=("sgl-project/sglang#2730", "sgl-project/sglang#2723"),
        module=_ACCOUNTING,
        line="runs.append(result.next_token_ids[i * result.stride : i * result.stride + accept_len])",
        becomes="runs.append(result.next_token_ids[:accept_len])",
    ),
    Mutant(
        "K03",
        "the state of the batch is cut to the number of requests that are left",
        references=("sgl-project/sglang#14368", "sgl-project/sglang#14536"),
        module=_RELAY,
        line="self.indices = [self.indices[place] for place in kept]",
        becomes="self.indices = self.indices[: len(kept)]",
    ),
    Mutant(
        "K04",
        "an empty batch brings an entry of its own into a merge",
        references=("sgl-project/sglang#10090",),
        module=_RELAY,
        line="self.indices = [*self.indices, *other]",
        becomes="self.indices = [*(self.indices or [0]), *other]",
    ),
    Mutant(
        "L01",
        "a batch of zero reaches code that takes a maximum over it",
        references=("sgl-project/sglang#33892",),
        module=_DEVICE,
        line="self.longest = max((len(self.sequences[row.key].chain) for row in rows), default=0)",
        becomes="self.longest = max(len(self.sequences[row.key].chain) for row in rows)",
    ),
    Mutant(
        "L02",
        "a rank without a request leaves out the draft's collective",
        references=("sgl-project/sglang#29144",),
        module=_DEVICE,
        line='self.collectives.append("draft")',
        becomes='self.collectives += ["draft"] * bool(rows)',
    ),
    Mutant(
        "M01",
        "the recurrent state of accepted tokens is not committed",
        references=("sgl-project/sglang#26351",),
        module=_DEVICE,
        line="sequence.state = node_prints[path[-1]]",
        becomes="pass",
    ),
    Mutant(
        "N01",
        "the batch's counter of accepted drafts counts stale results",
        references=("sgl-project/sglang#15690", "sgl-project/sglang#18848"),
        module=_ACCOUNTING,
        line="result.accepted_drafts += accept_len - 1",
        becomes="result.accepted_drafts = sum(result.accept_lens) - len(batch)",
    ),
)
