"""SGLang's penalties at verification: its own penalizers and its own `sample`, on generated requests and trees.

Three probes. *Verification*: penalizers that were fed the whole history, then the tokens that the release's `sample`
hands to the greedy walk, against the exact distribution at each node, and the relaxed one, which penalises all nodes of
a tree alike. *Feed*: what the release feeds its penalizers before each launch of a schedule, against the outputs.
*Retraction*: what the penalizers still count when a request that was retracted runs again. Tokens are a few small
numbers; penalties are dyadic, so that no order of operations rounds. PR #22049 brought them to V2.
"""

from __future__ import annotations

import ast
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from itertools import pairwise
from types import SimpleNamespace
from typing import Any

import torch

from specsim.choices.chooser import Chooser, between, pick
from specsim.contracts.registry import OPS
from specsim.engine.rules.sampling import PenaltiesAfterRetraction, PenaltyCounts
from specsim.engine.rules.workers import NODE_PENALTIES, REQUEST_PENALTIES
from specsim.engines.probe import Broken, Probe, Shown
from specsim.engines.sglang.guards import Guards
from specsim.engines.sglang.stubs import OFF, Fields, Needed, SilentLogger, nothing
from specsim.lifting.lift import DriftError, LiftedFunction, Lifter, body_hash, class_functions, find_function
from specsim.verdict import NotRun

VERIFICATION = "penalties at verification"
FEED = "penalty feed"
RETRACTION = "penalties after a retraction"

_FOLDER = "srt/sampling/penaltylib"
_ORCHESTRATOR = f"{_FOLDER}/orchestrator.py"
_REPETITION = f"{_FOLDER}/repetition_penalty.py"
_PENALIZERS = {
    "BatchedFrequencyPenalizer": f"{_FOLDER}/frequency_penalty.py",
    "BatchedMinNewTokensPenalizer": f"{_FOLDER}/min_new_tokens.py",
    "BatchedPresencePenalizer": f"{_FOLDER}/presence_penalty.py",
    "BatchedRepetitionPenalizer": _REPETITION,
}
_INFO = ("srt/sampling/sampling_batch_info.py", "SamplingBatchInfo")
_SCHEDULE_BATCH = "srt/managers/schedule_batch.py"
_UTILS, _V2 = "srt/speculative/eagle_utils.py", "srt/speculative/eagle_info_v2.py"
# Newest place first.
_SAMPLE = ((_UTILS, "eagle_sample"), (_V2, "EagleVerifyInputV2Mixin.sample"))
_PREPARE = ((_UTILS, "eagle_prepare_for_decode"), (_V2, "EagleDraftInputV2Mixin.prepare_for_decode"))
_FEEDER = "cumulate_penalty_output_tokens"
_CUMULATE = "cumulate_output_tokens"
NOT_FED = "feeds no penalizers, and verification applies none"

VOCABULARY = 8
EOS = VOCABULARY - 1
EXACT, RELAXED = 0, 1


# The release's own classes


class ReleasePenalizers:
    """The release's penalizers and `SamplingBatchInfo`, lifted."""

    def __init__(self, lifter: Lifter) -> None:
        self.lifter = lifter
        self.given: dict[str, Any] = {
            "torch": torch,
            "F": torch.nn.functional,
            "logger": SilentLogger(),
            "is_pin_memory_available": lambda *_device: False,
            "get_global_server_args": OFF,
            "get_server_args": OFF,
            "get_exec": OFF,
            "get_spec": OFF,
            "TOP_K_ALL": 1 << 30,
            "ScheduleBatch": type("ScheduleBatch", (), {}),
            "SIMULATE_ACC_LEN": -1,
            "maybe_detect_nan": nothing,
            "maybe_detect_inf": nothing,
            "sanitize_nan_logits": nothing,
            # The device that the lifted code takes this machine for.
            "_is_npu": False,
            "_is_cpu": False,
            "_is_hip": False,
            "_is_xpu": False,
            "_is_cuda": True,
        }
        self._lift(_REPETITION, "apply_scaling_penalties")
        self._lift(_ORCHESTRATOR, "_BatchedPenalizer")
        self._lift(_ORCHESTRATOR, "BatchedPenalizerOrchestrator")
        names = [*_PENALIZERS, "BatchedPenalizerOrchestrator"]
        for name, path in _PENALIZERS.items():
            self._lift(path, name)
        self.given["penaltylib"] = SimpleNamespace(**{name: self.given[name] for name in names})
        self._lift(*_INFO, of_file=("merge_bias_tensor", "_rows_to_device_indices"))
        self.info_type = self.given["SamplingBatchInfo"]

    def _lift(self, path: str, name: str, of_file: tuple[str, ...] = ()) -> LiftedFunction:
        given = Needed(self.given, frozenset({name, *of_file}))
        lifted = self.lifter.lift_method(path, name, given)
        self.given[name] = lifted.value
        return lifted

    def info(self, reqs: list[Fields], batch: Fields, vocab_size: int = VOCABULARY) -> Any:
        """`SamplingBatchInfo` of a new batch, as the release makes it when a batch is prefilled."""
        batch.reqs, batch.device = reqs, torch.device("cpu")
        return self.info_type.from_schedule_batch(batch, vocab_size)


def sampling_request(prompt: list[int], outputs: list[int], **params: Any) -> Fields:
    known: dict[str, Any] = {
        "frequency_penalty": 0.0,
        "presence_penalty": 0.0,
        "repetition_penalty": 1.0,
        "min_new_tokens": 0,
        "temperature": 1.0,
        "top_p": 1.0,
        "top_k": 1,
        "min_p": 0.0,
        "stop_token_ids": set(),
    }
    return Fields(
        origin_input_ids=prompt,
        output_ids=outputs,
        sampling_params=Fields(**{**known, **params}),
        tokenizer=Fields(eos_token_id=EOS),
        eos_token_ids={EOS},
        kv_committed_len=0,
        kv_allocated_len=0,
        decode_batch_idx=0,
    )


# Verification


@dataclass(frozen=True, slots=True)
class _Tree:
    """A request at verification. Node 0 is the root, which is the last of `outputs`; `parents` of the other nodes."""

    outputs: list[int]
    tokens: list[int]
    parents: list[int]
    best: list[tuple[int, int, float]]
    params: dict[str, Any]

    def logits(self) -> torch.Tensor:
        """[nodes, V] float32: the best token of each node has 4, the second a little less, the others -8."""
        rows = torch.full((len(self.tokens), VOCABULARY), -8.0)
        for node, (best, second, gap) in enumerate(self.best):
            rows[node, second] = 4 - gap
            rows[node, best] = 4
        return rows

    def mask(self) -> torch.Tensor:
        """[nodes, nodes] bool: True at the ancestors of a node and at itself."""
        mask = torch.eye(len(self.tokens), dtype=torch.bool)
        for node, parent in enumerate(self.parents, 1):
            mask[node] |= mask[parent]
        return mask


def _draw_trees(chooser: Chooser) -> list[_Tree]:
    count, nodes = between(chooser, 1, 2, "bs"), between(chooser, 1, 4, "nodes")
    length = between(chooser, 1, 3, "outputs")
    trees = []
    for _ in range(count):
        outputs = [chooser.choose(EOS, "output") for _ in range(length)]
        params: dict[str, Any] = {
            "frequency_penalty": pick(chooser, (0.0, 0.5, 2.0), "frequency_penalty"),
            "presence_penalty": pick(chooser, (0.0, 1.0), "presence_penalty"),
            "repetition_penalty": pick(chooser, (1.0, 2.0), "repetition_penalty"),
            "min_new_tokens": pick(chooser, (0, length, length + 1, length + 3), "min_new_tokens"),
        }
        if chooser.choose(3, "has logit_bias"):
            params["logit_bias"] = {str(chooser.choose(VOCABULARY, "biased")): pick(chooser, (-8.0, 8.0), "logit_bias")}
        tokens = [outputs[-1], *(chooser.choose(EOS, "draft") for _ in range(nodes - 1))]
        parents = [chooser.choose(node, "parent") for node in range(1, nodes)]
        best = []
        for _node in range(nodes):
            first = chooser.choose(VOCABULARY, "best")
            second = (first + between(chooser, 1, VOCABULARY - 1, "second best")) % VOCABULARY
            best.append((first, second, pick(chooser, (0.25, 1.25), "gap")))
        trees.append(_Tree(outputs, tokens, parents, best, params))
    return trees


def _law(trees: list[_Tree], law: int) -> list[list[int]]:
    """The greedy token after each node of each tree, by the reference."""
    bias = torch.zeros(len(trees), VOCABULARY)
    for i, tree in enumerate(trees):
        for token, value in tree.params.get("logit_bias", {}).items():
            bias[i, int(token)] = value
    logits = torch.cat([tree.logits() for tree in trees])

    def of_request(name: str) -> torch.Tensor:
        return torch.tensor([tree.params[name] for tree in trees], dtype=torch.float32)

    OPS["apply_penalties"].reference(
        logits,
        torch.stack([torch.bincount(torch.tensor(t.outputs), minlength=VOCABULARY) for t in trees]).to(torch.int32),
        torch.tensor([len(tree.outputs) for tree in trees], dtype=torch.int32),
        torch.tensor([tree.tokens for tree in trees]),
        torch.stack([tree.mask() for tree in trees]),
        of_request("frequency_penalty"),
        of_request("presence_penalty"),
        of_request("repetition_penalty"),
        of_request("min_new_tokens").to(torch.int32),
        torch.full((len(trees), 1), EOS),
        bias,
        law,
    )
    tokens: list[list[int]] = logits.argmax(dim=1).reshape(len(trees), -1).tolist()
    return tokens


def _verification(release: ReleasePenalizers, sample: Any, walked: list[list[list[int]]], chooser: Chooser) -> Shown:
    trees = _draw_trees(chooser)
    batch = Fields()
    info = release.info([sampling_request([0], tree.outputs, **tree.params) for tree in trees], batch)
    for tokens in zip(*(tree.outputs for tree in trees), strict=True):
        info.penalizer_orchestrator.cumulate_output_tokens(torch.tensor(tokens))
    info.update_penalties()
    nodes = len(trees[0].tokens)
    verify_input = Fields(
        draft_token=torch.tensor([tree.tokens for tree in trees]).flatten(),
        draft_token_num=nodes,
        spec_steps=nodes - 1,
        max_tree_depth=nodes,
        topk=nodes,
        tree_topk=nodes,
    )
    worker_batch = Fields(
        forward_mode=SimpleNamespace(is_idle=lambda: False),
        seq_lens=torch.ones(len(trees), dtype=torch.int64),
        input_ids=verify_input.draft_token,
        sampling_info=info,
        device=torch.device("cpu"),
        return_logprob=False,
    )
    walked.clear()
    sample(verify_input, worker_batch, Fields(next_token_logits=torch.cat([tree.logits() for tree in trees])))
    (said,) = walked
    exact, relaxed = _law(trees, EXACT), _law(trees, RELAXED)
    raw = torch.cat([tree.logits() for tree in trees]).argmax(dim=1).reshape(len(trees), -1).tolist()
    case = {
        "trees": [{"outputs": t.outputs, "tokens": t.tokens, "parents": t.parents, "params": t.params} for t in trees]
    }
    return Shown(case, {"target_predict": said}, tuple(_violations_at_verification(trees, said, exact, relaxed, raw)))


def _violations_at_verification(
    trees: list[_Tree],
    said: list[list[int]],
    exact: list[list[int]],
    relaxed: list[list[int]],
    raw: list[list[int]],
) -> Iterator[Broken]:
    """`raw` are the tokens without penalties: relaxed ones are shown only where penalties change a token."""
    for rule, right in ((REQUEST_PENALTIES, relaxed), *([(NODE_PENALTIES, exact)] if relaxed != raw else [])):
        for request, tree in enumerate(trees):
            for node, (seen, wanted) in enumerate(zip(said[request], right[request], strict=True)):
                if seen != wanted:
                    params = ", ".join(f"{name}={value}" for name, value in tree.params.items())
                    path = _path(tree, node)
                    yield Broken(
                        rule.id,
                        f"request {request}, node {node}: the target's token is {seen}, with the penalties {wanted}",
                        f"token {wanted} after outputs {tree.outputs}{f' and path {path}' if path else ''}",
                        f"token {seen}",
                        (
                            f"request {request} has {params}",
                            f"the exact distribution gives {exact[request]} at its nodes",
                        ),
                    )
                    return


def _path(tree: _Tree, node: int) -> list[int]:
    path: list[int] = []
    while node:
        path.insert(0, tree.tokens[node])
        node = tree.parents[node - 1]
    return path


# Feed and retraction


@dataclass(frozen=True, slots=True)
class _Step:
    """A launch: whether the host lacks the result of the one before, whether the request was retracted before it, and
    the run that it accepts.
    """

    behind: bool
    retracted: bool
    run: list[int]


@dataclass(frozen=True, slots=True)
class _Launch:
    """What the penalizers counted at a launch, and the outputs with its root, which is the last of them."""

    counted: dict[int, int]
    outputs: list[int]
    after_retraction: bool


def _draw_steps(chooser: Chooser, retraction: bool) -> tuple[list[int], int, list[_Step]]:
    prompt = [chooser.choose(EOS, "prompt") for _ in range(between(chooser, 1, 2, "prompt length"))]
    first = chooser.choose(EOS, "first token")
    count = between(chooser, 1, 4, "launches")
    at = between(chooser, 1, count, "launch before the retraction") if retraction else count
    steps = [
        _Step(
            behind=chooser.choose(2, "host is behind") == 1,
            retracted=retraction and number == at,
            run=[chooser.choose(EOS, "accepted") for _ in range(between(chooser, 1, 3, "run"))],
        )
        for number in range(count + retraction)
    ]
    return prompt, first, steps


def _launches(
    release: ReleasePenalizers, feed: Any, prompt: list[int], first: int, steps: list[_Step]
) -> list[_Launch]:
    """Drive the release's feed over a schedule of one request."""
    outputs, known = [first], 1
    before = known - 1  # the prefill's result is late for whoever is behind
    request = sampling_request(prompt, outputs[:known], frequency_penalty=1.0)
    batch = Fields(batch_size=lambda: 1)
    info = release.info([request], batch)
    found = []
    for step in steps:
        if step.retracted:  # it is prefilled again, with all its outputs, and that prefill puts out a token
            outputs.append(step.run[0])
            known = len(outputs)
            before = known - 1
            batch = Fields(batch_size=lambda: 1)
            info = release.info([request], batch)
        request.output_ids = outputs[: before if step.behind else known]
        batch.sampling_info = info
        feed(batch)
        info.update_penalties()
        counts = {token: -int(value) for token, value in enumerate(info.acc_additive_penalties[0].tolist()) if value}
        found.append(_Launch(counts, list(outputs), step.retracted))
        before, outputs = known, [*outputs, *step.run]
        known = len(outputs)
    return found


def _feed(release: ReleasePenalizers, feed: Any, chooser: Chooser) -> Shown:
    prompt, first, steps = _draw_steps(chooser, retraction=False)
    launches = _launches(release, feed, prompt, first, steps)
    broken = []
    for number, launch in enumerate(launches, 1):
        if launch.counted != Counter(launch.outputs):
            other = _launches(
                release, feed, prompt, first, [_Step(not step.behind, step.retracted, step.run) for step in steps]
            )
            seen = ", ".join(str(_sorted(entry.counted)) for entry in (launch, other[number - 1]))
            broken.append(
                Broken(
                    PenaltyCounts.rule.id,
                    f"launch {number}: the penalizers count {_sorted(launch.counted)}, "
                    f"the outputs are {_sorted(Counter(launch.outputs))}",
                    f"counts {_sorted(Counter(launch.outputs))} of outputs {launch.outputs}",
                    f"counts {_sorted(launch.counted)}",
                    (f"with these results, and with each early or late the other way: {seen}", f"prompt {prompt}"),
                )
            )
            break
    return Shown(
        _schedule(prompt, first, steps), {"counts": [_sorted(entry.counted) for entry in launches]}, (*broken,)
    )


def _retraction(release: ReleasePenalizers, feed: Any, where: str, source_hash: str, chooser: Chooser) -> Shown:
    prompt, first, steps = _draw_steps(chooser, retraction=True)
    launches = _launches(release, feed, prompt, first, steps)
    broken = []
    for number, (was, now) in enumerate(pairwise(launches), 2):
        lost = {token: count for token, count in was.counted.items() if now.counted.get(token, 0) < count}
        if now.after_retraction and lost:
            broken.append(
                Broken(
                    PenaltiesAfterRetraction.rule.id,
                    f"launch {number}, after a retraction: the penalizers count {_sorted(now.counted)}, "
                    f"before it {_sorted(was.counted)}",
                    f"counts of at least {_sorted(was.counted)}",
                    f"counts {_sorted(now.counted)}",
                    (f"the outputs are {now.outputs}",),
                    where,
                    source_hash,
                )
            )
            break
    return Shown(
        _schedule(prompt, first, steps), {"counts": [_sorted(entry.counted) for entry in launches]}, (*broken,)
    )


def _sorted(counts: dict[int, int]) -> dict[str, int]:
    """Counts as JSON has them: keys are text."""
    return {str(token): counts[token] for token in sorted(counts)}


def _schedule(prompt: list[int], first: int, steps: list[_Step]) -> dict[str, Any]:
    return {
        "prompt": prompt,
        "first": first,
        "launches": [{"behind": s.behind, "retracted": s.retracted, "run": s.run} for s in steps],
    }


# Lifting


def _find(lifter: Lifter, places: tuple[tuple[str, str], ...]) -> tuple[str, str]:
    for path, name in places:
        if lifter.source.exists(path):
            class_name, _, method = name.rpartition(".")
            module = lifter.module(path)
            if method in (class_functions(module, class_name) if class_name else module.definitions):
                return path, name
    raise DriftError(f"not found: {' or '.join(f'{name} in {path}' for path, name in places)}")


def _lift_sample(release: ReleasePenalizers, walked: list[list[list[int]]]) -> LiftedFunction:
    def walk(**named: Any) -> tuple[Any, Any, Any]:
        walked.append(named["target_predict"].tolist())
        return named["predicts"], named["accept_index"], torch.zeros_like(named["accept_token_num"])

    given = {**release.given, "verify_tree_greedy_func": walk}
    return release.lifter.lift_method(
        *_find(release.lifter, _SAMPLE), Needed(given, frozenset({"_verify_uses_greedy"}))
    )


def _lift_feed(release: ReleasePenalizers) -> tuple[LiftedFunction, Any]:
    """The function that feeds the penalizers before a launch, and a call of it with a batch."""
    lifter = release.lifter
    path, name = _find(lifter, _PREPARE)
    prepare = find_function(lifter.module(path), name)
    called = {node.attr for node in ast.walk(prepare) if isinstance(node, ast.Attribute)}
    if _FEEDER in called:
        lifted = lifter.lift_method(_SCHEDULE_BATCH, f"ScheduleBatch.{_FEEDER}", Needed(release.given))
        return lifted, lifted.value
    if _CUMULATE not in called:
        raise DriftError(f"{path}:{prepare.lineno} {name} {NOT_FED}")
    given = {
        **release.given,
        "get_alloc_len_per_decode": lambda *_arguments: 4,
        "get_alloc_reserve_per_decode": lambda *_arguments: 8,
        "alloc_token_slots": lambda _tree, count: torch.arange(count),
        "assign_req_to_token_pool_func": nothing,
    }
    lifted = lifter.lift_method(path, name, Needed(given))

    def feed(batch: Fields) -> None:
        batch.maybe_evict_swa = batch.maybe_wait_verify_done = nothing
        batch.token_to_kv_pool_allocator = SimpleNamespace(page_size=1)
        batch.req_to_token_pool = SimpleNamespace(req_to_token=None)
        batch.seq_lens = batch.seq_lens_cpu = torch.ones(1, dtype=torch.int64)
        lifted.value(Fields(), batch)

    return lifted, feed


def _remake(lifter: Lifter) -> tuple[str, str]:
    """FILE:LINE and hash of where a prefill makes penalizers anew."""
    prefill = find_function(lifter.module(_SCHEDULE_BATCH), "ScheduleBatch.prepare_for_extend")
    for node in ast.walk(prefill):
        if isinstance(node, ast.Attribute) and node.attr == "from_schedule_batch":
            return f"{_SCHEDULE_BATCH}:{node.lineno}", body_hash(prefill)
    raise DriftError(f"not found: where {_SCHEDULE_BATCH} makes penalizers for a prefill")


def knows_outputs(lifter: Lifter) -> bool:
    """Whether penalizers that are made for a request count the outputs that it has, as it does after a retraction; or
    its prefill feeds them itself, whatever it feeds.
    """
    prefill = find_function(lifter.module(_SCHEDULE_BATCH), "ScheduleBatch.prepare_for_extend")
    if {_CUMULATE, _FEEDER} & {node.attr for node in ast.walk(prefill) if isinstance(node, ast.Attribute)}:
        return True
    request = sampling_request([0], [1, 2], frequency_penalty=1.0)
    info = ReleasePenalizers(lifter).info([request], Fields(batch_size=lambda: 1))
    info.update_penalties()
    counts = info.acc_additive_penalties
    return counts is not None and bool(counts.any())


def penalty_probes(lifter: Lifter, guards: Guards) -> Iterator[Probe | NotRun]:
    """The probes of penalties, or why one is not run."""
    # A request brings penalties; a server has none by default.
    reach = guards.reach_of_overlap_worker({"topk": 1})
    reach = "option" if reach == "default" else reach
    try:
        release = ReleasePenalizers(lifter)
    except DriftError as error:
        yield from (NotRun(name, str(error)) for name in (VERIFICATION, FEED, RETRACTION))
        return
    walked: list[list[list[int]]] = []
    try:
        sample = _lift_sample(release, walked)
        run = partial(_verification, release, sample.value, walked)
        yield Probe(VERIFICATION, sample.name, sample.where, sample.body_hash, reach, _draw_trees, run)
    except DriftError as error:
        yield NotRun(VERIFICATION, str(error))
    try:
        lifted, feed = _lift_feed(release)
        draw = partial(_draw_steps, retraction=False)
        run = partial(_feed, release, feed)
        yield Probe(FEED, lifted.name, lifted.where, lifted.body_hash, reach, draw, run)
        where, source_hash = _remake(lifter)
        run = partial(_retraction, release, feed, where, source_hash)
        draw = partial(_draw_steps, retraction=True)
        yield Probe(RETRACTION, "ScheduleBatch.prepare_for_extend", where, source_hash, reach, draw, run)
    except DriftError as error:
        yield from (NotRun(name, str(error)) for name in (FEED, RETRACTION))
