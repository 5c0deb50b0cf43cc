"""A release's own workers over a model that is none: `TpModelWorker`, its EAGLE worker, its attention backend's plans
and its pools of KV are the release's; a forward pass of a model is one launch of `attention`, and the compiled
operations are launches of the reference (`operations`).

So what the model reads is what the worker's code selects: through `req_to_token`, the plan's indices, the tree mask,
positions and hidden states; and what it writes lies where `set_kv_buffer` puts it. Beside that, what it reads is
compared with what the position should hold: a wrong key of the target's is a record, as the fake worker has it, and a
wrong one of the draft model's is a `Drafted`, which costs accepted drafts and no token.

Of a request whose logits are changed (by penalties, a bias or a grammar) a position should hold what its verifications
have accepted: whether those are the right tokens is seen in its answer. What penalties add to logits is compared when a
verification has them.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from types import ModuleType, SimpleNamespace
from typing import Any

import numpy as np
import torch

from specsim.engines.sglang.scheduler import attention
from specsim.engines.sglang.scheduler.attention import Row
from specsim.engines.sglang.scheduler.configuration import FULL_LAYER, TOY_LLAMA, WINDOW_LAYER
from specsim.engines.sglang.scheduler.modules import is_there, release_module
from specsim.engines.sglang.scheduler.options import Options
from specsim.engines.sglang.scheduler.transfers import elements_of
from specsim.engines.sglang.scheduler.worker import Seat, count_feed, penalized, penalties_of
from specsim.world.fakes import Answers, nothing
from specsim.world.hash_model import EMPTY, VOCABULARY, Prefixes, extended, next_token
from specsim.world.kv import UNWRITTEN, BadValue, DraftRead, Ints, NoSlot, Reports, wrong_content

HIDDEN_SIZE = int(TOY_LLAMA["hidden_size"])

OF_A_PLAIN_MODEL: Mapping[str, Any] = {
    "canary_manager": None,
    "capture_head_hooks": (),
    "capture_tail_hooks": (),
    "decode_cuda_graph_runner": None,
    "dcp_rank": 0,
    "dcp_size": 1,
    "device_timer": None,
    "dflash_draft_sampler": None,
    "dp_size": 1,
    "draft_attention_backend": None,
    "dtype": torch.float32,
    "enable_elastic_ep": False,
    "eplb_manager": None,
    "msprobe_debugger": None,
    "piecewise_cuda_graph_runner": None,
    "enable_hisparse": False,
    "graph_memory_usage": {},
    "graph_runner": None,
    "graph_time_usage": {},
    "gpu_id": 0,
    "hisparse_coordinator": None,
    "hybrid_gdn_config": None,
    "hybrid_lightning_config": None,
    "init_new_workspace": False,
    "is_generation": True,
    "is_hybrid_swa": False,
    "is_multimodal": False,
    "kimi_linear_config": None,
    "kv_cache_dtype": torch.int64,
    "layer_info": SimpleNamespace(start_layer=0, end_layer=1),
    "linear_attn_model_spec": None,
    "load_config": None,
    "loader": None,
    "lora_manager": None,
    "mamba2_config": None,
    "mambaish_config": None,
    "model_is_mrope": False,
    "mtp_draft_device_pools": (),
    "mtp_draft_mamba_pools": (),
    "prefill_aware_swa": False,
    "prefill_attention_backend_str": "triton",
    "decode_attention_backend_str": "triton",
    "preloaded_weights_bytes": 0,
    "prewarm_sampling": nothing,
    "pp_rank": 0,
    "pp_size": 1,
    "ps": SimpleNamespace(
        **dict.fromkeys(("attn_dcp_rank", "attn_dp_rank", "attn_tp_rank", "attn_cp_rank", "pp_rank", "tp_rank"), 0),
        **dict.fromkeys(("attn_dcp_size", "attn_dp_size", "attn_tp_size", "attn_cp_size", "pp_size", "tp_size"), 1),
        dp_size=1,
    ),
    "sampling_observer": None,
    "shared_read_done_event": None,
    "sliding_window_size": None,
    "support_pp": False,
    "swa_max_total_num_tokens": 0,
    "attn_dcp_rank": 0,
    "attn_dcp_size": 1,
    "tp_rank": 0,
    "tp_size": 1,
    "use_mla_backend": False,
    "use_ngram_embedding": False,
    "war_fastpath_read_done_event": None,
    "watermark_state": None,
    "weight_load_time": 0.0,
}
"""What a release reads of a ModelRunner whose model has one layer of plain attention, on one rank, without graphs."""


ANOTHER_STEP, TOKEN_AHEAD = OF_STEPS = ("KV-of-another-step", "token-ahead")
"""What the draft model of one step reads wrong beside what one alone may: KV of another step's, and its own KV beside
a token that did not follow. Its "row" is one that begins at another token of the pass than its request's."""


@dataclass(frozen=True, slots=True)
class Call:
    """A call of the release's worker: the requests of its batch, and for each of them at which rank the draft model has
    the right token, step by step.
    """

    phase: str
    seats: tuple[Seat, ...]
    ranks: tuple[tuple[int, ...], ...]

    def rank(self, number: int, step: int) -> int:
        """Of a request, 0 where the batch is padded."""
        return self.ranks[number][min(step, len(self.ranks[number]) - 1)] if number < len(self.ranks) else 0


@dataclass(frozen=True, slots=True)
class VerifiedRequest:
    """A request in a verification: its tokens in KV, where its nodes lie in the pass, the hashes of their prefixes, and
    the logits float32 [nodes, vocabulary] of the pass, as the release has them.
    """

    seat: Seat
    length: int
    nodes: range
    states: list[int]
    logits: Any


VERIFICATIONS = ("verify_tree_greedy", "tree_speculative_sampling_target_only")


class ReleaseWorker:
    """What drives a release's workers and watches them. `pools` are those of KV, the target's first; `running` is the
    call whose passes the device runs: a graph that was captured once is replayed in many. Of the draws of where a draft
    has the right token, `right` more than one say that it is the most likely one.
    """

    def __init__(self, device: Any, steps: int, right: int, *, by_slot: bool = False) -> None:
        self.device, self._steps, self._right, self._by_slot = device, steps, right, by_slot
        self.pools: list[Any] = []
        self.reports = Reports()
        self.running = self.called = Call("extend", (), ())
        self.write_logits: Callable[[int, bool, Any], None] | None = None  # in place of the models' own; see `exact`
        self.restart(lambda _rid, bound: bound)

    def restart(self, accept: Callable[[str, int], int]) -> None:
        """Forget all KV and records. `accept(rid, bound)` draws from [1, bound]; bound is the draft at its best."""
        self.accept = accept
        self.reports.restart()
        self.verified: dict[
            int, VerifiedRequest
        ] = {}  # of the last pass of the target that verified, by number in the batch
        self._prefixes: dict[str, Prefixes] = {}
        self._fed: dict[str, int] = {}
        self.prefilled: dict[int, str] = {}  # by slot, whose prefill wrote the draft model's KV there last
        for pool in self.pools:
            if not self._by_slot:
                pool.k_buffer[0].memory.elements = None  # only while graphs are captured are halves of it told apart
            for buffer in (*pool.k_buffer, *pool.v_buffer):
                buffer.host_bytes.fill_(UNWRITTEN)

    def add_pool(self, pool: Any) -> None:
        self.pools.append(pool)
        keys, values = pool.k_buffer[0], pool.v_buffer[0]
        if values.memory is keys.memory:  # in 0.5.23: halves of one storage, which two streams write in a graph
            self.device.track_elements(keys, "KV", changes_only=self._by_slot)
        elif self._by_slot:
            for buffer in (keys, values):
                self.device.track_elements(buffer, "KV")

    def slot_content(self, slot: int) -> int:
        """The target's key in a slot."""
        return int(self.pools[0].k_buffer[0].host_bytes[slot])

    def window_content(self, slot: int) -> int:
        """The target's key in a slot of the sliding window's pool."""
        return int(self.pools[1].k_buffer[0].host_bytes[slot])

    def watch(self, worker: Any) -> None:
        """Note whose rows a pass has, at each call of the release's worker."""
        forward = worker.forward_batch_generation

        def noted(batch: Any, *arguments: Any, **named: Any) -> Any:
            seats = tuple(Seat(r, bool(r.finished() or r.is_retracted), self._prefixes_of(r)) for r in batch.reqs)
            ranks = tuple(tuple(self._rank(seat) for _ in range(self._steps)) for seat in seats)
            call = self.called = Call("extend" if batch.forward_mode.is_extend() else "verify", seats, ranks)
            for seat in seats:
                if call.phase == "extend":
                    self._fed[seat.request.rid] = 0
                else:
                    count_feed(seat, self._fed)
            said = [list(seat.request.output_ids) for seat in seats if call.phase == "extend"]
            self.device.launch(lambda _access: self._run(call, said), name="the next call's rows")
            return forward(batch, *arguments, **named)

        worker.forward_batch_generation = noted
        if not hasattr(worker, "verify"):  # that of n-grams has all in one
            return
        verify = worker.verify

        def verified(*arguments: Any, **named: Any) -> Any:
            """Of spec v1, it finishes requests, and what is left of the batch goes on."""
            rows = {id(seat): seat.request.finished() for seat in self.called.seats}
            result = verify(*arguments, **named)
            left = [i for i, seat in enumerate(self.called.seats) if seat.request.finished() == rows[id(seat)]]
            if len(left) < len(self.called.seats):
                seats, ranks = self.called.seats, self.called.ranks
                rest = replace(self.called, seats=tuple(seats[i] for i in left), ranks=tuple(ranks[i] for i in left))
                self.device.launch(lambda _access: self._run(rest, []), name="the rows that are left")
            return result

        worker.verify = verified

    def _rank(self, seat: Seat) -> int:
        if self.write_logits is not None:
            return 0
        drawn = max(0, attention.RANKED - self.accept(str(seat.request.rid), attention.RANKED + self._right))
        return drawn if drawn < attention.RANKED - 1 else attention.RANKED

    def _run(self, call: Call, said: list[list[int]]) -> None:
        """`said` are, of an extend, the tokens of its requests' answers: computed again after a retraction."""
        self.running = call
        for seat, tokens in zip(call.seats, said, strict=False):
            if is_changed(seat.request) and not seat.stale:
                seat.prefixes.say(len(seat.prefixes.prompt), tokens)

    def watch_operations(self, reference: ModuleType) -> None:
        """Note what the verifications of `reference` are given and accept."""
        for name in VERIFICATIONS:
            vars(reference)[name] = self._noted(getattr(reference, name))

    def _noted(self, verify: Callable[..., Any]) -> Callable[..., Any]:
        def noted(**given: Any) -> Any:
            is_watched = self.write_logits is None
            if is_watched:
                self._note_penalties()
            result = verify(**given)
            if is_watched:
                self._follow(given["predicts"].tolist(), given["accept_index"].tolist(), given["accept_token_num"])
            return result

        return noted

    def _note_penalties(self) -> None:
        """What has been added to the logits of a verification, and what they were scaled by."""
        for verified in self.verified.values():
            seat = verified.seat
            wanted = seat.request.sampling_params
            if not seat.is_read or seat.request.grammar is not None:
                continue
            bias = {int(token) for token in wanted.logit_bias or ()}
            raw = np.empty(VOCABULARY, np.float32)
            for node, state in zip(verified.nodes, verified.states, strict=True):
                attention.target_logits(state, raw)
                after = verified.logits[node]
                differ = [int(token) for token in np.flatnonzero(after != raw) if int(token) not in bias]
                scale = np.float32(wanted.repetition_penalty)
                scaled = {token: float(scale) for token in differ if scale != 1 and after[token] == raw[token] / scale}
                added = {token: float(after[token] - raw[token]) for token in differ if token not in scaled}
                if added or scaled or penalties_of(seat.request).are_some:
                    self.reports.add(penalized(seat, added, scaled))

    def _follow(self, predicts: list[int], accept_index: list[list[int]], accepted: Any) -> None:
        for number, (path, drafts) in enumerate(zip(accept_index, accepted.tolist(), strict=True)):
            verified = self.verified.get(number)
            if verified is not None and verified.seat.is_read and is_changed(verified.seat.request):
                tokens = [predicts[node] for node in path[: drafts + 1]]
                verified.seat.prefixes.say(verified.length + 1, tokens)

    # ---- what is wrong with what was read

    def check_room(self, seat: Seat, length: int, slots: Ints) -> None:
        """Of a verification: the slots that its tokens' KV goes to, of which 0 is nobody's."""
        if seat.is_read and not slots.all():
            position = length + int(np.argmin(slots))
            self.reports.add_first(seat.rid, "room", NoSlot(self.running.phase, seat.rid, position))

    def check_target(self, seat: Seat, row: Row, keys: Ints, own: list[int], width: int) -> None:
        """`keys` are those that the row read, `own` what it makes of its first `width` tokens, which are its own."""
        expected = seat.prefixes.first(len(keys))
        if not (keys == expected).all():
            bad = int(np.argmax(keys != expected))
            self._content(seat, "full", bad, int(row.slots[bad]), int(keys[bad]))
            return
        for j in range(width):
            should = seat.prefixes.of(len(keys) + j + 1)
            if own[j] != should:
                self._content(seat, "input", len(keys) + j, 0, own[j])
                return

    def check_window(self, seat: Seat, length: int, slots: Ints, keys: Ints, wanted: int) -> None:
        """`keys` of these slots are what a row of a prefix of this length has in its window of `wanted` positions."""
        low = length - len(keys)
        bad = np.flatnonzero(keys != seat.prefixes.first(length)[low:])
        if len(keys) < wanted:
            self.bad(seat, "window_kv_indptr", len(keys))
        elif len(bad):
            first = int(bad[0])
            self._content(seat, "window", low + first, int(slots[first]), int(keys[first]))

    def check_draft(
        self,
        seat: Seat,
        layer: int,
        slots: Ints,
        keys: Ints,
        hidden: list[int],
        position: list[int],
        is_first: bool,
        step: tuple[int, int] | None,
    ) -> None:
        """`keys` of the draft model of step `layer`, in these slots, are of the tokens that the request has; `hidden`
        and `position` of the first token of its own, no hidden state of a model that is given none. `step` is, of a
        step of a draft, the prefix that it goes on from and the token that the draft model has said there.
        """
        count = len(keys)
        ahead = seat.prefixes.first(count + 1)
        should = self._layer_keys(seat, layer, ahead) if layer else ahead[1:]
        if layer and position[:1] != position[1:2]:  # a window that would begin before the prompt begins with it twice
            own = seat.prefixes.of(position[0] + 1)
            if hidden[0] != own:
                self.drafted(seat, "hidden-state", position[0], own, hidden[0])
        for bad in np.flatnonzero(keys != should).tolist():
            name = self._of_what(layer, int(keys[bad]), int(ahead[bad]))
            if not hidden and bad < len(seat.prefixes.prompt) and self.prefilled.get(int(slots[bad])) != seat.rid:
                name = "KV-of-another-request"
            self.drafted(seat, name, bad, int(should[bad]), int(keys[bad]))
            if name not in OF_STEPS:
                return
        if is_first and hidden and hidden[0] != ahead[count]:
            self.drafted(seat, "hidden-state", count, int(ahead[count]), hidden[0])
        elif is_first and position and position[0] != count:
            self.drafted(seat, "position", count, count, position[0], is_content=False)
        elif step and not attention.drafts(*step):
            self.drafted(seat, "token", position[0], next_token(step[0]), step[1], is_content=False)

    def _layer_keys(self, seat: Seat, layer: int, ahead: Ints) -> Ints:
        tokens = [seat.prefixes.token(position + 1 + layer) for position in range(len(ahead) - 1)]
        made = [attention.layer_key(layer, int(ahead[i]), token) for i, token in enumerate(tokens)]
        return np.array(made, np.int64)

    def _of_what(self, layer: int, key: int, hidden: int) -> str:
        """What a wrong key is: "KV" that says no more, or of another step's model, or of another token ahead."""
        of = [one for one in range(1, self._steps) if attention.is_of_layer(one, key, hidden)]
        if not of and layer:
            of = [0 for token in range(VOCABULARY) if extended(hidden, token) == key]
        if not of:
            return "KV"
        return TOKEN_AHEAD if of[0] == layer else ANOTHER_STEP

    def twice(self, seat: Seat, position: int, count: int) -> None:
        """From a position on, `count` slots of a draft's extension are in its plan that the pass writes itself. What
        attention sees twice is near to what it should see, so that the drafts go on as if it were there once.
        """
        if seat.is_read:
            name = f"planned-twice:{_part(seat.request, position)}"
            self.reports.add_first(seat.rid, "twice", DraftRead(seat.rid, name, position, 0, count, is_content=False))

    def bad(self, seat: Seat, name: str, value: int) -> None:
        if seat.is_read:
            self.reports.add_first(seat.rid, name, BadValue(self.running.phase, seat.rid, name, value))

    def _content(self, seat: Seat, pool: str, position: int, slot: int, actual: int) -> None:
        if seat.is_read:
            record = wrong_content(self.running.phase, pool, seat.rid, position, slot, actual)
            self.reports.add_first(seat.rid, "content", record)

    def drafted(
        self, seat: Seat, name: str, position: int, expected: int, actual: int, *, is_content: bool = True
    ) -> None:
        kind = (
            name if name in (*OF_STEPS, "row", "hidden-state") else "draft"
        )  # what follows from the first says no more
        if seat.is_read:
            part = f"{name}:{_part(seat.request, position)}"
            self.reports.add_first(seat.rid, kind, DraftRead(seat.rid, part, position, expected, actual, is_content))

    def _prefixes_of(self, request: Any) -> Prefixes:
        prompt = list(request.origin_input_ids)
        prefixes = self._prefixes.get(request.rid)
        if prefixes is None or prefixes.prompt != prompt:
            prefixes = self._prefixes[request.rid] = Prefixes(prompt)
        return prefixes


def is_changed(request: Any) -> bool:
    """Whether something changes its logits."""
    return bool(request.grammar is not None or request.sampling_params.logit_bias) or penalties_of(request).are_some


def _part(request: Any, position: int) -> str:
    """Where a position lies. The prompt of a turn of a session has the turns before it."""
    if getattr(request, "session", None) is not None:
        return "turn"
    return "prompt" if position < len(request.origin_input_ids) else "answer"


class Model:
    """In place of a model: it has no weights. `forward(input_ids, positions, forward_batch)` is one launch."""

    def __init__(self, forward: Callable[..., Any]) -> None:
        self.forward = forward
        self.hot_token_id = None
        self.lm_head = None
        self.config = SimpleNamespace()
        self.shared_experts_config = None

    def modules(self) -> tuple[()]:
        return ()

    def get_embed_and_head(self) -> tuple[str, str]:
        return "the target's embedding", "and its head"

    def set_embed_and_head(self, *_weights: Any) -> None: ...


def runner_class(module: ModuleType, watcher: ReleaseWorker, make: Any, answers: Answers, options: Options) -> type:
    """A class in place of the release's ModelRunner. `make(runner)` gives a runner its pools: (rows, allocator, KV)."""

    class Runner(module.ModelRunner):  # type: ignore[name-defined, misc]
        logical_max_total_num_tokens = effective_max_total_num_tokens = property(_slots)
        effective_logical_max_total_num_tokens = max_token_pool_size = property(_slots)

        def __init__(self, model_config: Any = None, **named: Any) -> None:
            self.model_config, self.server_args = model_config, named["server_args"]
            self.is_draft_worker = bool(named.get("is_draft_worker"))
            self.draft_layer = named.get("draft_model_idx") or 0
            self.memory_pool_config = named.get("memory_pool_config")
            self.req_to_token_pool = named.get("req_to_token_pool")
            self.token_to_kv_pool_allocator = named.get("token_to_kv_pool_allocator")
            self.device, self.page_size = "cuda", self.server_args.page_size
            algorithms = release_module("speculative.spec_info").SpeculativeAlgorithm
            self.spec_algorithm = algorithms.from_string(self.server_args.speculative_algorithm)
            stream: Any = torch.cuda.Stream()
            self.forward_stream = stream
            stream.name = "draft" if self.is_draft_worker else "forward"
            self.model = Model(self.run_model)
            self.tp_group = self.pp_group = release_module("distributed.parallel_state")._TP  # see `set_groups`
            self.forward_pass_id = 0
            if hasattr(module, "_EagerBufferRegistry"):
                self._eager_decode_registry = module._EagerBufferRegistry()
                self._eager_prefill_registry = module._EagerBufferRegistry()
            self.sampler = release_module("layers.sampler").Sampler()
            self.logits_processor = None if self.is_draft_worker else _logits_processor(watcher.device)
            self.sampler._sync_token_ids_across_tp = nothing  # of one rank
            self.layer, self.window_layer = _layer(FULL_LAYER), _layer(WINDOW_LAYER)
            if options.sliding_window and not self.is_draft_worker:
                self.is_hybrid_swa, self.sliding_window_size = True, options.sliding_window
                self.swa_max_total_num_tokens = options.window_slots
            self.spec_aux_config = SimpleNamespace(
                draft_model_config=model_config, eagle_use_aux_hidden_state=False, dflash_use_aux_hidden_state=False
            )
            self.ngram_embedding_manager = SimpleNamespace(
                enabled=False, prepare_for_forward=lambda batch, **_: batch, update_after_decode=nothing
            )
            if not hasattr(release_module("managers.tp_worker").TpModelWorker, "alloc_memory_pool"):
                self.alloc_memory_pool()
                self.init_attention_backends()
                self.init_device_graphs()

        def __getattr__(self, name: str) -> Any:
            if name.startswith("_"):
                raise AttributeError(name)
            if name in OF_A_PLAIN_MODEL:
                return OF_A_PLAIN_MODEL[name]
            return answers.of(f"model_runner.{name}")

        def alloc_memory_pool(self, memory_pool_config: Any = None, **_named: Any) -> None:
            self.req_to_token_pool, self.token_to_kv_pool_allocator, self.token_to_kv_pool = make(self)
            allocator = self.token_to_kv_pool_allocator
            self.max_total_num_tokens = self.full_max_total_num_tokens = options.max_total_tokens
            self.max_running_requests = self.req_to_token_pool.size
            self.memory_pool_config = memory_pool_config or SimpleNamespace(max_total_num_tokens=allocator.size)
            for pool in filter(None, kv_pools(self.token_to_kv_pool)):
                watcher.add_pool(pool)
            if hasattr(module.ModelRunner, "init_kv_index_translator"):
                self.init_kv_index_translator()

        def init_attention_backends(self) -> None:
            self.attn_backend = release_module("layers.attention.triton_backend").TritonAttnBackend(self)
            self.decode_attn_backend = self.attn_backend

        def run_model(self, input_ids: Any, _positions: Any, forward_batch: Any, **_named: Any) -> Any:
            one = Pass(watcher, self, _backend(self, forward_batch), forward_batch)
            if self.logits_processor is not None and forward_batch.return_logprob and not one.is_whole:
                all_of_them = type(forward_batch.capture_hidden_mode).FULL
                _logits, hidden = one.launch(all_of_them)
                return self.logits_processor(input_ids, hidden, None, forward_batch)
            logits, hidden = one.launch(forward_batch.capture_hidden_mode)
            chosen = getattr(forward_batch.spec_info, "select_index", None)  # of a draft's graph, which has them alone
            if chosen is not None:
                logits = logits[chosen]
                hidden = hidden if hidden is None or forward_batch.capture_hidden_mode.is_full() else hidden[chosen]
            made = release_module("layers.logits_processor").LogitsProcessorOutput
            return made(next_token_logits=logits, hidden_states=hidden)

    return Runner


def _logits_processor(device: Any) -> Any:
    """The release's, which makes the logprobs of prompts. Its model's head takes hidden states by their hash."""

    class Processor(release_module("layers.logits_processor").LogitsProcessor):  # type: ignore[misc]
        def _get_logits(self, hidden_states: Any, *_arguments: Any, **_named: Any) -> Any:
            logits = torch.empty((len(hidden_states), VOCABULARY), dtype=torch.float32, device="cuda")

            def run(access: Any) -> None:
                given, out = access.host(hidden_states).numpy(), access.host(logits).numpy()
                for row, state in zip(out, attention.hashes_of(given), strict=True):
                    attention.target_logits(state, row)

            device.launch(run, reads=[hidden_states], writes=[logits], name="logits")
            return logits

    return Processor(SimpleNamespace(vocab_size=VOCABULARY), skip_all_gather=True)


def _layer(number: int) -> Any:
    return SimpleNamespace(layer_id=number, k_scale=None, v_scale=None, k_scale_float=None)


def kv_pools(pool: Any) -> tuple[Any, Any]:
    """(the pool of full attention, that of the sliding window or None) in a release's pool of KV."""
    return getattr(pool, "full_kv_pool", pool), getattr(pool, "swa_kv_pool", None)


def _slots(runner: Any) -> int:
    return int(runner.max_total_num_tokens)


def _backend(runner: Any, forward_batch: Any) -> Any:
    """The attention backend of a pass, where the release puts it."""
    if is_there("model_executor.forward_context"):
        context = release_module("model_executor.forward_context")
        if context.has_forward_context():
            return context.get_forward_context().attn_backend
        return runner.attn_backend
    return getattr(forward_batch, "attn_backend", None) or runner.attn_backend


class Pass:
    """One forward pass of the target or of the draft model, over the plan that its attention backend has made."""

    def __init__(self, watcher: ReleaseWorker, runner: Any, backend: Any, batch: Any) -> None:
        self.watcher, self.runner, self.batch = watcher, runner, batch
        # A step of a draft puts others into the batch, before the device comes to this one.
        self.tokens, self.positions, self.lengths = batch.input_ids, batch.positions, batch.seq_lens
        self.plan, mode = backend.forward_metadata, batch.forward_mode
        self.is_draft, self.is_decode = runner.is_draft_worker, mode.is_decode()
        self.is_verify = mode.is_target_verify()
        self.is_whole = self.is_decode or self.is_verify or _is_draft_extend_v2(mode)
        # Backends that hold no pool take the batch's.
        self.pool = getattr(backend, "token_to_kv_pool", None) or batch.token_to_kv_pool
        self.windowed = kv_pools(self.pool)[1]
        # By the release's own functions, which wait for what is copied from the host.
        self.keys, self.values = self.pool.get_kv_buffer(FULL_LAYER)
        self.window_keys = None if self.windowed is None else self.pool.get_key_buffer(WINDOW_LAYER)
        self.layer = runner.draft_layer
        self.extended, self.written = batch.extend_seq_lens, batch.out_cache_loc
        self.reads_slots = not self.is_whole or (self.is_verify and not self.is_draft)
        self.requests = len(batch.req_pool_indices)
        self.step = self.layer or (_draft_step(runner, backend) if self.is_draft else 0)
        self.hidden = getattr(batch.spec_info, "hidden_states", None) if self.is_draft else None

    def launch(self, capture: Any) -> tuple[Any, Any]:
        """(logits float32 [rows, vocabulary], hidden states float32 [rows or tokens, hidden size] or None, as `capture`
        says). The rows are all tokens, but of a prefill, and of spec v1 of a draft's extension, the last token of each
        request.
        """
        count, batch = len(self.tokens), self.batch
        rows = count if self.is_whole else self.requests
        keys, values = (torch.empty((count, 1, 1), dtype=torch.int64, device="cuda") for _ in range(2))
        logits = torch.empty((rows, VOCABULARY), dtype=torch.float32, device="cuda")
        states = None
        if capture.need_capture():
            length = count if capture.is_full() else rows
            states = torch.empty((length, HIDDEN_SIZE), dtype=torch.float32, device="cuda")

        def run(access: Any) -> None:
            self._compute(access, keys, values, logits, states)

        plan = self.plan
        given = [self.tokens, self.positions, self.lengths, plan.kv_indptr, plan.kv_indices, self.hidden]
        if not self.is_decode:
            given += [plan.qo_indptr, plan.custom_mask, plan.mask_indptr]
        if self.layer:
            given.append(batch.extend_start_loc)
        if not self.is_whole:
            given.append(self.extended)
        if self.reads_slots:
            given.append(self.written)
        if self.windowed is not None:
            given += [plan.window_kv_indptr, plan.window_kv_indices]
        reads = [tensor for tensor in given if tensor is not None]
        written = [tensor for tensor in (keys, values, logits, states) if tensor is not None]
        name = self._name()
        self.watcher.device.launch(run, reads=reads, writes=written, name=name)
        where, named = _write_loc(batch, plan)
        self.pool.set_kv_buffer(self.runner.layer, *where, keys, values, **named)
        if self.windowed is not None:
            self.pool.set_kv_buffer(self.runner.window_layer, *where, keys, values, **named)
        return logits, states

    def _name(self) -> str:
        kind = "decode" if self.is_decode else "verify" if self.is_verify else "extend"
        return f"draft {kind}" if self.is_draft else kind

    def _rows(self, access: Any) -> Iterator[Row]:
        plan = self.plan
        indptr, indices = access.host(plan.kv_indptr).tolist(), _from(access.host(plan.kv_indices)).numpy()
        if self.is_decode:
            return attention.decode_rows(indptr[: len(self.tokens) + 1], indices)
        qo = access.host(plan.qo_indptr).tolist()[: self.requests + 1]
        mask = None if plan.custom_mask is None else access.host(plan.custom_mask).numpy()
        starts = None if plan.mask_indptr is None else access.host(plan.mask_indptr).tolist()
        return attention.extend_rows(qo, indptr, indices, mask, starts)

    def _compute(
        self,
        access: Any,
        keys: Any,
        values: Any,
        logits: Any,
        states: Any,
    ) -> None:
        pool = len(self.keys)
        tokens, positions, lengths = (access.host(of).tolist() for of in (self.tokens, self.positions, self.lengths))
        all_keys, all_values, out_keys, out_values = (
            access.host(of).numpy().reshape(-1) for of in (self.keys, self.values, keys, values)
        )
        out_logits = access.host(logits).numpy()
        out_states = None if states is None else access.host(states).numpy()
        given = None if self.hidden is None else attention.hashes_of(access.host(self.hidden).numpy())
        branches = max(1, len(tokens) // max(1, self.requests)) if self.is_decode else 1
        written = access.host(self.written).numpy() if self.reads_slots else None
        windows = None if self.windowed is None else self._windows(access)
        found: dict[int, tuple[int, int]] = {}  # of a token (the number of its row, its state)
        if self.is_verify and not self.is_draft:
            self.watcher.verified.clear()
        for planned in self._rows(access):
            row = planned
            seat = self._seat(row.number // branches)
            slots = row.slots
            if row.tokens.stop > len(tokens):  # a plan for other batches
                if seat is not None:
                    self.watcher.bad(seat, "qo_indptr", row.tokens.stop)
                row = replace(row, tokens=row.tokens[: max(0, len(tokens) - row.tokens.start)])
                if not row.tokens:
                    continue
            if outside := [int(slot) for slot in slots if not 0 <= slot < pool]:
                if seat is not None:
                    self.watcher.bad(seat, "kv_indices", outside[0])
                slots = np.where((slots >= 0) & (slots < pool), slots, 0)
            before = slots[:-1] if row.own_last else slots
            if not self.is_whole and written is not None and (twice := np.isin(before, written)).any():
                if seat is not None:
                    self.watcher.twice(seat, int(np.argmax(twice)), int(twice.sum()))
                before = before[~twice]
            for buffer in (self.keys, self.values):
                _read(access, seat, buffer, before)
            read = all_keys[before]
            prefix = attention.linked(read, all_values[before], self._before(seat))
            if windows is not None:
                prefix = self._in_window(access, windows, seat, row.number, read, prefix)
            own = [int(tokens[t]) for t in row.tokens]
            hidden = None if given is None else [given[t] for t in row.tokens]
            if self.layer:
                assert hidden is not None
                made = attention.states_of_layer(self.layer, read, all_values[before], row, own, hidden)
                own_keys, own_values, own_states = made
            else:
                own_keys, own_values = attention.states_of(prefix, row, own, hidden)
                own_states = own_keys
            where = [int(positions[t]) for t in row.tokens]
            for j, t in enumerate(row.tokens):
                depth = len(before) + (j if row.visible is None else int(row.visible[j, :j].sum()))
                if where[j] != depth:  # as a rotation by another position would be
                    own_keys[j] = attention.mixed([own_keys[j], where[j]])
                out_keys[t], out_values[t] = own_keys[j], own_values[j]
            if self.is_draft and written is not None and seat is not None:
                slots_written = written[row.tokens.start : row.tokens.stop].tolist()
                self.watcher.prefilled.update(dict.fromkeys(slots_written, seat.rid))
            if self.is_verify and not self.is_draft and seat is not None:
                assert written is not None
                self.watcher.check_room(seat, len(before), written[row.tokens.start : row.tokens.stop])
                verified = VerifiedRequest(seat, len(before), row.tokens, own_keys, out_logits)
                self.watcher.verified[row.number] = verified
                if is_changed(seat.request) and seat.is_read and seat.prefixes.count == len(before):
                    seat.prefixes.say(len(before), own[:1])  # the token of its prefill
            if self.watcher.write_logits is None and seat is not None:
                step = (prefix, own[0]) if self.is_decode else None
                self._check(access, seat, row, before, read, own_keys, hidden, where, lengths, branches, step)
            found.update({t: (row.number // branches, state) for t, state in zip(row.tokens, own_states, strict=True)})
        self._write(access, found, len(tokens), out_logits, out_states)

    def _windows(self, access: Any) -> tuple[list[int], Ints, Ints]:
        """(where each row's slots begin, the slots, the keys in the window's pool) of the window's layer."""
        slots: Ints = _from(access.host(self.plan.window_kv_indices)).numpy()
        keys: Ints = access.host(self.window_keys).numpy().reshape(-1)
        return access.host(self.plan.window_kv_indptr).tolist(), slots, keys

    def _in_window(
        self,
        access: Any,
        windows: tuple[list[int], Ints, Ints],
        seat: Seat | None,
        number: int,
        read: Ints,
        prefix: int,
    ) -> int:
        """The prefix that a row makes of what both layers read: that of the full one, where the window's has the same
        at each position that the row's first token attends to.
        """
        indptr, indices, keys = windows
        slots = indices[indptr[number] : indptr[number + 1]]
        outside = (slots < 0) | (slots >= len(keys))
        wanted = min(len(read), self.runner.sliding_window_size - 1)
        inside = np.where(outside, 0, slots)[max(0, len(slots) - wanted) :]
        _read(access, seat, self.window_keys, inside)
        found = keys[inside]
        if len(found) == wanted and (found == read[len(read) - wanted :]).all():
            return prefix
        if seat is not None:
            self.watcher.check_window(seat, len(read), slots[len(slots) - len(found) :], found, wanted)
        return attention.mixed([prefix, *found.tolist()])

    def _check(
        self,
        access: Any,
        seat: Seat,
        row: Row,
        before: Ints,
        read: Ints,
        own: list[int],
        hidden: list[int] | None,
        where: list[int],
        lengths: list[int],
        branches: int,
        step: tuple[int, int] | None,
    ) -> None:
        if not self.is_draft:
            width = 1 if self.is_verify else len(own)
            self.watcher.check_target(seat, Row(row.number, row.tokens, before), read, own, width)
            return
        if is_changed(seat.request):  # what it will say is not known yet
            return
        start = self._start(access, row.number)
        if start is not None and start != row.tokens.start:
            position = int(access.host(self.positions)[start])
            self.watcher.drafted(seat, "row", position, start, row.tokens.start, is_content=False)
            return
        committed = min(len(read), lengths[row.number // branches]) if self.is_decode else len(read)
        is_first = len(read) == committed
        if branches > 1 and not is_first:  # a release's branches keep their slots when two have one parent
            step = None
        kept, slots = read[:committed], before[:committed]
        self.watcher.check_draft(seat, self.layer, slots, kept, hidden or [], where, is_first, step)

    def _before(self, seat: Seat | None) -> int | None:
        """The prefix before the first position of a row; None where each token is given it, as its hidden state."""
        if not self.is_draft:
            return EMPTY
        if self.hidden is not None or seat is None:
            return None
        return seat.prefixes.of(1)  # releases hand a draft model the tokens from the second on

    def _start(self, access: Any, number: int) -> int | None:
        """Where the tokens of a request begin in a pass, as its batch has it; None where it does not say."""
        starts = self.batch.extend_start_loc
        if self.layer and starts is not None:
            return int(access.host(starts)[number])
        return None if self.is_whole else sum(access.host(self.extended).tolist()[:number])

    def _write(
        self, access: Any, found: Mapping[int, tuple[int, int]], count: int, out_logits: Any, out_states: Any
    ) -> None:
        """`found` has no token of rows by which a graph's batch is padded and that no plan reaches."""
        tokens = range(count)
        kept: Sequence[int] = tokens
        if not self.is_whole:
            kept = [end - 1 for end in itertools.accumulate(access.host(self.extended).tolist())]
        write = self.watcher.write_logits
        for at, token in enumerate(kept[: len(out_logits)]):
            if token not in found:
                continue
            number, state = found[token]
            if write is not None:
                write(state, self.is_draft, out_logits[at])
            elif self.is_draft:
                attention.draft_logits(state, self.watcher.running.rank(number, self.step), out_logits[at])
            else:
                attention.target_logits(state, out_logits[at])
        if out_states is None:
            return
        for at, token in enumerate(tokens if len(out_states) == count else kept[: len(out_states)]):
            if token in found:
                out_states[at] = 0.0
                out_states[at, : len(attention.DIGITS)] = attention.digits_of(found[token][1])

    def _seat(self, number: int) -> Seat | None:
        """The request of a row, None where a batch is padded."""
        seats = self.watcher.running.seats
        return seats[number] if number < len(seats) else None


def _read(access: Any, seat: Seat | None, buffer: Any, slots: Ints) -> None:
    """A row reads these slots of a layer's keys or values."""
    access.read(buffer, elements_of(buffer, slots), None if seat is None else seat.matters)


def _from(view: torch.Tensor) -> torch.Tensor:
    """What a kernel can read by a pointer to the first element of a view: a graph's is as long as what it was captured
    with.
    """
    start = view.storage_offset()
    return view.as_strided((view.untyped_storage().nbytes() // view.element_size() - start,), (1,), start)


def _draft_step(runner: Any, backend: Any) -> int:
    """The step of a draft whose tokens come of a pass: 0 of the one that follows a prefill or a verification."""
    backends = getattr(vars(runner).get("draft_attn_backend"), "attn_backends", ())
    return next((i + 1 for i, one in enumerate(backends) if one is backend), 0)


def _is_draft_extend_v2(mode: Any) -> bool:
    return bool(getattr(mode, "is_draft_extend_v2", bool)())


def _write_loc(batch: Any, plan: Any) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Where a pass writes its KV, as the release's backends say it: arguments of `set_kv_buffer`."""
    made = getattr(release_module("mem_cache.memory_pool"), "KVWriteLoc", None)
    window = getattr(plan, "swa_out_cache_loc", None)
    named = {} if window is None else {"swa_loc": window}
    if made is None:
        return (batch.out_cache_loc,), named
    loc = made.for_batch(batch, **named) if hasattr(made, "for_batch") else made(batch.out_cache_loc, **named)
    return (loc,), {}
