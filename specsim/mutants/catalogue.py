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
_DRAFT = "specsim.sim.draft"
_GRAMMAR = "specsim.sim.grammar"
_GRAPH = "specsim.sim.graph"
_LOGPROBS = "specsim.sim.logprobs"
_SAMPLING = "specsim.sim.sampling"
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
        line="return len(request.prompt) + visible",
        becomes="return len(request.prompt) + len(request.outputs)",
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
        "a turn that is aborted leaves its own memory as its session's",
        references=("sgl-project/sglang#22273", "sgl-project/sglang#21875"),
        module=_ACCOUNTING,
        line="if request.turn.session and not held.to_finish:",
        becomes="if request.turn.session:",
    ),
    Mutant(
        "A07",
        "a session protects all that it claims, and not the whole pages that the tree has of it",
        references=("sgl-project/sglang#20070",),
        module=_ACCOUNTING,
        line="slot = SessionSlot(held.row, claim, min(held.allocated, keep), held.protected, held.node, held.evicted)",
        becomes="slot = SessionSlot(held.row, claim, min(held.allocated, keep), claim, held.node, held.evicted)",
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
        "A20",
        "a launch reserves for one step, and not for the one in flight",
        references=("NVIDIA/TensorRT-LLM#16280",),
        module=_CONFIG,
        line="return 2 * self.alloc_len",
        becomes="return self.alloc_len",
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
        "C01",
        "keys of the radix cache are tokens although a drafter's KV depends on the next token too",
        references=("sgl-project/sglang#10846", "sgl-project/sglang#11231", "sgl-project/sglang#40681"),
        module=_RADIX,
        line="self._beyond = 1 if bigram else 0  # tokens that a run of keys needs beyond their number",
        becomes="self._beyond = 0",
    ),
    Mutant(
        "C05",
        "slots of a sliding window are given back although the next step may still read them",
        references=("sgl-project/sglang#34870", "sgl-project/sglang#34823"),
        module=_ACCOUNTING,
        line="held.evicted = swa.evict_window(slots, held.evicted, held.honest, self._memory.config.window)",
        becomes="held.evicted = swa.evict_window(slots, held.evicted, held.honest + 1, self._memory.config.window - 1)",
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
        "D02",
        "the bonus token is read with the stride of the tree instead of that of the accepted path",
        references=("sgl-project/sglang#26866", "sgl-project/sglang#26981", "sgl-project/sglang#15360"),
        module=_DEVICE,
        line="bonus = fill_bonus_tokens(accept_tokens, verified.accept_lens, width)",
        becomes="bonus = fill_bonus_tokens(accept_tokens, verified.accept_lens, ndt)",
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
        "D05",
        "the seed of the next drafts is read from the last row of the block, not from the last accepted one",
        references=("sgl-project/sglang#27545",),
        module=_DRAFT,
        line="select_index = [b * stride + accept_len - 1 for b, accept_len in enumerate(accept_lens)]",
        becomes="select_index = [b * stride + stride - 1 for b, accept_len in enumerate(accept_lens)]",
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
        "D12",
        "nodes stand at the position of their slot, not of their depth",
        references=("sgl-project/sglang-jax#1611", "sgl-project/sglang-jax#1112"),
        module=_TREE,
        line="positions.append(positions[parent] + 1)",
        becomes="positions.append(verified_seq_len + node)",
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
        "E09",
        "the results of pad rows are handed out with those of the batch",
        references=("NVIDIA/TensorRT-LLM#15708",),
        module=_DEVICE,
        line="result = DecodeResult([], verified.accept_lens[: len(rows)], ndt)",
        becomes="result = DecodeResult([], verified.accept_lens, ndt)",
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
        "G01",
        "a verification ignores penalties",
        references=("sgl-project/sglang#22049", "sgl-project/sglang#11762"),
        module=_SAMPLING,
        line="self._params = request.turn.sampling",
        becomes="self._params = SamplingParams(request.turn.sampling.temperature, request.turn.sampling.seed)",
    ),
    Mutant(
        "G01-nodes",
        "every node has the penalties of the root",
        references=("sgl-project/sglang#33643", "sgl-project/sglang#22049"),
        module=_SAMPLING,
        line="return {**counts, token: counts.get(token, 0) + 1}",
        becomes="return counts",
    ),
    Mutant(
        "G02",
        "only the last token of an accepted run is counted for penalties",
        references=("sgl-project/sglang#33643", "sgl-project/sglang#22049"),
        module=_DEVICE,
        line="emitted = run",
        becomes="emitted = run[-1:]",
    ),
    Mutant(
        "G02-retracted",
        "a retraction loses the outputs that penalties have counted",
        references=("sgl-project/sglang#33643",),
        module=_DEVICE,
        line="counts = bincount(row.tokens[len(request.prompt) :])",
        becomes="counts = {}",
    ),
    Mutant(
        "G04",
        "a verification is greedy whatever the temperature",
        references=("sgl-project/sglang#32922",),
        module=_SAMPLING,
        line="coin = coin_of(self._params.seed, position)",
        becomes="coin = 0",
    ),
    Mutant(
        "G12",
        "one coin is used for all nodes of a tree",
        references=("flashinfer-ai/flashinfer#424", "flashinfer-ai/flashinfer#425"),
        module=_SAMPLING,
        line="coin = coin_of(self._params.seed, position)",
        becomes="coin = coin_of(self._params.seed, position - len(self._paths[node]))",
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
        "I01-mask",
        "every node has the grammar's mask of the root",
        references=("sgl-project/sglang#13019", "sgl-project/sglang#11762"),
        module=_SAMPLING,
        line="allowed = self._matcher.allowed_after(self._paths[node]) if self._matcher is not None else None",
        becomes="allowed = self._matcher.allowed_after([]) if self._matcher is not None else None",
    ),
    Mutant(
        "I02-end",
        "a request goes on when its grammar has ended inside a run",
        references=("sgl-project/sglang#24082", "sgl-project/sglang#28682"),
        module=_ACCOUNTING,
        line="grammar_ends = request.matcher is not None and length == request.matcher.end",
        becomes="grammar_ends = False",
    ),
    Mutant(
        "I04-barrier",
        "masks are made before the results of the launch before are read",
        references=("sgl-project/sglang#28986", "sgl-project/sglang#27324"),
        module=_DEVICE,
        line="advance_grammar(earlier)",
        becomes="pass",
    ),
    Mutant(
        "I06-first",
        "a grammar does not read the token of the prefill",
        references=("sgl-project/sglang#25388",),
        module=_DEVICE,
        line="return self.first_tokens[i : i + 1]",
        becomes="return []",
    ),
    Mutant(
        "I07-rollback",
        "the drafts that a grammar has walked down are not rolled back",
        references=("sgl-project/sglang#24413", "sgl-project/sglang#24889"),
        module=_GRAMMAR,
        line="self.rollback(accepted)",
        becomes="pass",
    ),
    Mutant(
        "I10-stale",
        "a grammar reads the result of a request that was retracted",
        references=("vllm-project/vllm#30916",),
        module=_GRAMMAR,
        line="is_live = request.key == row.key and request.state in (State.PREFILLING, State.RUNNING)",
        becomes="is_live = True",
    ),
    Mutant(
        "J01",
        "only the first token of a run has a logprob",
        references=("sgl-project/sglang#17349", "sgl-project/sglang#21589"),
        module=_LOGPROBS,
        line="request.logprobs += result.logprobs[first : first + count]",
        becomes="request.logprobs += result.logprobs[first : first + 1]",
    ),
    Mutant(
        "J03",
        "hidden states are those of the first request of the batch",
        references=("sgl-project/sglang#26163",),
        module=_LOGPROBS,
        line="first = i * result.stride",
        becomes="first = 0",
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
        "N01",
        "the batch's counter of accepted drafts counts stale results",
        references=("sgl-project/sglang#15690", "sgl-project/sglang#18848"),
        module=_ACCOUNTING,
        line="result.accepted_drafts += accept_len - 1",
        becomes="result.accepted_drafts = sum(result.accept_lens) - len(batch)",
    ),
)
