"""Drafting in tensor functions: which candidates a step expands, which become nodes, what is made ready for a tree."""

from __future__ import annotations

import contextlib
from typing import Any

import torch

from specsim.contracts.contract import WrongResultError
from specsim.contracts.provider import NotCalledError
from specsim.contracts.registry import OPS
from specsim.engines.sglang.operations.functions import (
    Fields,
    FunctionNames,
    Lifted,
    TorchWithHigherTies,
    fast_topk,
)
from specsim.engines.sglang.stubs import OFF, nothing
from specsim.engines.sglang.where import places

_FULL_MASK, _PACKED = 0, 2  # of TreeMaskMode: FULL_MASK and QLEN_ONLY_BITPACKING

Tensor = torch.Tensor
_SelectOutputs = tuple[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor]


def _without_nan(topk_p: Tensor, scores: Tensor, topk: int) -> None:
    """A NaN sorts first in `torch.topk`; that it counts as -inf is specsim's own."""
    if bool((scores[:, :, None] * topk_p.view(-1, topk, topk)).isnan().any()):
        raise NotCalledError("a score is NaN, for which the release has no order")


def _select(lifted: Lifted, step: int, topk_p: Tensor, topk_index: Tensor, scores: Tensor) -> _SelectOutputs:
    bs, topk = scores.shape
    _without_nan(topk_p, scores, topk)
    rows = torch.arange(bs * topk, dtype=torch.float32)[:, None]  # hidden states that say which row they are
    input_ids, hidden, next_scores, (all_scores, all_tokens, parents) = lifted.value(
        step, topk_p, topk_index, rows, scores, topk
    )
    return input_ids, hidden[:, 0].long(), next_scores, all_scores.flatten(1), all_tokens, parents


def _by_step(scores: Tensor, tokens: Tensor, parents: Tensor, topk: int, num_steps: int) -> list[list[Tensor]]:
    """What drafting hands over, as it collects it: a list of scores, of tokens and of parents, by step."""
    cuts = [topk, *[topk**2] * (num_steps - 1)]
    return [
        [part.view(len(part), -1, topk) for part in torch.split_with_sizes(scores, cuts, 1)],
        list(torch.split_with_sizes(tokens, cuts, 1)),
        list(torch.split_with_sizes(parents, [topk + 1, *[topk] * (num_steps - 1)], 1)),
    ]


def _organized(found: tuple[Tensor, Tensor, Tensor]) -> tuple[Tensor, Tensor, Tensor]:
    parent_list, selected, tokens = found
    # An empty list of parents, which nothing reads, was float32 before 0.5.12.
    return parent_list.long() if parent_list.numel() == 0 else parent_list, selected, tokens


def _organize(
    lifted: Lifted, scores: Tensor, tokens: Tensor, parents: Tensor, topk: int, num_steps: int, num_draft_tokens: int
) -> tuple[Tensor, Tensor, Tensor]:
    return _organized(lifted.value(*_by_step(scores, tokens, parents, topk, num_steps), num_draft_tokens))


def _organize_any_ties(
    lifted: Lifted, scores: Tensor, tokens: Tensor, parents: Tensor, topk: int, num_steps: int, num_draft_tokens: int
) -> tuple[Tensor, Tensor, Tensor]:
    """With the order of ties that is the worst for it. As many best candidates, each with its parent, are as good as
    those that the operation takes, which are then its answer.
    """
    found = _organize(lifted, scores, tokens, parents, topk, num_steps, num_draft_tokens)
    right: tuple[Tensor, Tensor, Tensor] = OPS["organize_draft_results"].reference(
        scores, tokens, parents, topk, num_steps, num_draft_tokens
    )
    selected = found[1]
    if selected.shape != right[1].shape or not torch.equal(found[0], right[0]):
        return found
    is_best = torch.equal(scores.gather(1, selected).sort(1).values, scores.gather(1, right[1]).sort(1).values)
    is_whole = is_best and bool((selected.diff(dim=1) > 0).all()) and torch.equal(found[2], tokens.gather(1, selected))
    return right if is_whole and _have_their_parents(selected, parents, topk) else found


def _have_their_parents(selected: Tensor, parents: Tensor, topk: int) -> bool:
    """Whether the parent of each selected candidate is selected, or is the root."""
    groups = selected // topk
    of_group = parents.gather(1, groups)  # -1 for the root's successors
    held = (of_group[:, :, None] == selected[:, None, :]).any(dim=2)
    return bool((held | (groups == 0)).all())


# Building trees

_LINKS = ("retrieve_index", "retrieve_next_token", "retrieve_next_sibling")


class _TreeBuilder:
    """In place of the CUDA kernel that builds trees: writes what it writes, in the buffers that it is given.

    It leaves alone what the caller has to fill: links that are none, the columns before the tree, and of bits all but
    those that it sets; and it refuses links that are not filled with -1, which it would read.
    """

    def __call__(self, *arguments: Any) -> None:
        parents, selected, lens, mask, positions, *links, topk, num_steps, nodes, mode = arguments
        if not all(bool((link == -1).all()) for link in links):
            raise WrongResultError("the links are not filled with -1 before the tree is built")
        if int(mode) == _PACKED:
            tree = OPS["build_tree_packed"].reference(parents, selected, lens, topk, num_steps, nodes)
            mask.view(torch.uint8)[: tree.tree_mask.numel()] |= tree.tree_mask
        else:
            tree = OPS["build_tree"].reference(parents, selected, lens, topk, num_steps, nodes, int(mode))
            prefixes = lens.tolist() if int(mode) == _FULL_MASK else [0] * len(lens)
            start = 0
            for prefix in prefixes:
                end = start + nodes * (prefix + nodes)
                block = (nodes, prefix + nodes)
                mask[start:end].view(block)[:, prefix:] = tree.tree_mask[start:end].view(block)[:, prefix:]
                start = end
        positions.copy_(tree.positions)
        for link, name in zip(links, _LINKS, strict=True):
            made = getattr(tree, name)
            link[made != -1] = made[made != -1]


def _builder() -> dict[str, Any]:
    build = _TreeBuilder()
    return {"sgl_build_tree_kernel_efficient": build, "build_tree_kernel_efficient_func": build}


_BONUS_START, _TOKENS_START = 500_000, 1_000


def _build(
    lifted: Lifted,
    parent_list: Tensor,
    selected_index: Tensor,
    verified_seq_len: Tensor,
    topk: int,
    num_steps: int,
    num_draft_tokens: int,
    tree_mask_mode: int = _PACKED,
) -> tuple[Tensor, ...]:
    bs = len(verified_seq_len)
    bonus = torch.arange(_BONUS_START, _BONUS_START + bs, dtype=torch.int64)
    drafts = torch.arange(_TOKENS_START, _TOKENS_START + selected_index.numel()).view(selected_index.shape)
    mask, *rest, tokens = lifted.value(
        bonus,
        parent_list,
        selected_index,
        drafts,
        verified_seq_len,
        int(verified_seq_len.sum()),
        topk,
        num_steps,
        num_draft_tokens,
        tree_mask_mode,
    )
    wanted = torch.cat((bonus[:, None], drafts), dim=1).flatten()
    if not torch.equal(tokens, wanted):
        raise WrongResultError(f"the tokens of the nodes are {tokens.tolist()}, not {wanted.tolist()}")
    return mask.view(torch.uint8) if tree_mask_mode == _PACKED else mask, *rest


_RUNNING_REQUESTS_MAX = 3  # larger batches leave the way that the workers have for chains


# The worker's own loop: `draft_forward` on a draft model that answers what the case says


class _DraftModel:
    """In place of the draft model: remembers its inputs, and answers the n-th forward with the n-th logits."""

    def __init__(self, logits: list[Tensor], hidden_states: Tensor | None = None) -> None:
        self._logits = logits
        self._hidden_states = hidden_states
        self.inputs: list[tuple[Tensor, Tensor]] = []  # input_ids and hidden states of each forward

    @property
    def runner(self) -> Fields:
        config = Fields(hf_config=Fields(architectures=["LlamaForCausalLMEagle"]))
        return Fields(forward=self.forward, model_config=config)

    def forward(self, batch: Any, *_arguments: Any, **_named: Any) -> Any:
        self.inputs.append((batch.input_ids, batch.spec_info.hidden_states))
        logits = self._logits[len(self.inputs) - 1]
        return Fields(logits_output=Fields(next_token_logits=logits, hidden_states=self._hidden_states))


class _Answers:
    """In place of functions that `draft_forward` calls: what a call of this number is to return, and what it got."""

    def __init__(self) -> None:
        self.answers: list[Any] = []
        self.calls: list[tuple[Any, ...]] = []

    def set(self, answers: list[Any]) -> None:
        self.answers, self.calls = answers, []

    def __call__(self, *arguments: Any, **_named: Any) -> Any:
        self.calls.append(arguments)
        return self.answers[len(self.calls) - 1]


class _TopKOfLogits:
    """`fast_topk`: of probabilities, which have a number of columns of their own, what the case says next."""

    def __init__(self) -> None:
        self.columns = 0
        self.answers: list[tuple[Tensor, Tensor]] = []

    def __call__(self, values: Tensor, topk: int, dim: int = -1) -> tuple[Tensor, Tensor]:
        return self.answers.pop(0) if values.shape[1] == self.columns else fast_topk(values, topk, dim)


def _no_context(*_arguments: Any, **_named: Any) -> Any:
    return contextlib.nullcontext()


def _argmax_after(logits: Tensor, positions: Tensor, tokens: Tensor | None, column: int) -> tuple[Tensor, Tensor]:
    """In place of the kernel that 0.5.16 and later have for chains."""
    best = logits.argmax(dim=-1, keepdim=True)
    if tokens is not None:
        tokens[:, column : column + 1] = best
    positions.add_(1)
    return torch.ones_like(best, dtype=torch.float32), best


def _surroundings() -> dict[str, Any]:
    return {
        "contextlib": contextlib,
        "forward_context": _no_context,
        "ForwardContext": nothing,
        "IndexTopKShareState": Fields(mtp_iteration=_no_context),
        "get_spec": OFF,
        "get_exec": OFF,
        "get_schedule": lambda: Fields(max_running_requests=_RUNNING_REQUESTS_MAX),
        "get_server_args": OFF,
        "get_global_server_args": OFF,
        "draft_topk1_postprocess": _argmax_after,
        "draft_topk1_argmax_only": nothing,
        "renorm_draft_probs": lambda logits, *_arguments: torch.softmax(logits, dim=-1),
    }


def _around_selecting() -> dict[str, Any]:
    return {
        **_surroundings(),
        "fast_topk": _TopKOfLogits(),
        "organize_draft_results": lambda *_lists: (None, None, None),
    }


def _around_organizing() -> dict[str, Any]:
    return {**_surroundings(), "select_top_k_tokens": _Answers()}


def _draft_forward(
    lifted: Lifted, model: _DraftModel, topk_p: Tensor, topk_index: Tensor, num_steps: int, num_draft_tokens: int
) -> Any:
    bs, topk = topk_index.shape
    worker = Fields(
        topk=topk,
        speculative_num_steps=num_steps,
        speculative_num_draft_tokens=num_draft_tokens,
        draft_runner=model.runner,
        draft_model_runner=model.runner,
        draft_attn_backend=Fields(attn_backends=[None] * num_steps),
        server_args=Fields(max_running_requests=_RUNNING_REQUESTS_MAX),
        device=topk_index.device,
    )
    for _path, method in _CHAIN_BUFFERS:
        if method in lifted.given:
            lifted.bound(method, worker)()
            break
    batch = Fields(
        forward_mode=Fields(is_idle=lambda: False),
        spec_info=Fields(
            topk_p=topk_p, topk_index=topk_index, hidden_states=torch.arange(bs, dtype=torch.float32)[:, None]
        ),
        out_cache_loc=torch.zeros(bs * topk * num_steps, dtype=torch.int64),
        batch_size=bs,
        positions=torch.zeros(bs * topk, dtype=torch.int64),
        sampling_info=Fields(is_all_greedy=True),
    )
    return lifted.value(worker, batch)


def _select_in_loop(lifted: Lifted, step: int, topk_p: Tensor, topk_index: Tensor, scores: Tensor) -> _SelectOutputs:
    """The case is the second of three steps; the first hands it its scores, the third says what it handed on."""
    del step
    bs, topk = scores.shape
    _without_nan(topk_p, scores, topk)
    choose, select = lifted.given["fast_topk"], lifted.given["select_top_k_tokens"]
    choose.columns = topk**2 + 1
    choose.answers = [(topk_p, topk_index), (torch.ones_like(topk_p), torch.zeros_like(topk_index))]
    select.results.clear()
    rows = torch.arange(bs * topk, dtype=torch.float32)[:, None]
    model = _DraftModel([torch.zeros(bs * topk, choose.columns)] * 2, rows)
    roots = torch.arange(bs * topk).view(bs, topk) + _BONUS_START
    _draft_forward(lifted, model, scores, roots, 3, 4)
    (first_ids, first_hidden), (input_ids, hidden) = model.inputs
    whose = torch.arange(bs, dtype=torch.float32).repeat_interleave(topk)
    if not torch.equal(first_ids, roots.flatten()) or not torch.equal(first_hidden[:, 0], whose):
        raise WrongResultError("the first step expands other tokens than the root's successors, in their order")
    _ids, _hidden, next_scores, (all_scores, all_tokens, parents) = select.results[1]
    return input_ids, hidden[:, 0].long(), next_scores, all_scores.flatten(1), all_tokens, parents


def _organize_in_loop(
    lifted: Lifted, scores: Tensor, tokens: Tensor, parents: Tensor, topk: int, num_steps: int, num_draft_tokens: int
) -> tuple[Tensor, Tensor, Tensor]:
    bs = tokens.shape[0]
    # The drafter's logits have a column for each token: as many as there are distinct ones.
    vocabulary, tokens = torch.unique(tokens, return_inverse=True)
    score_list, token_list, parents_list = _by_step(scores, tokens, parents, topk, num_steps)
    ids = torch.zeros(bs * topk, dtype=torch.int64)
    lifted.given["select_top_k_tokens"].set(
        [(ids, None, None, parts) for parts in zip(score_list, token_list, parents_list, strict=True)]
    )
    logits = [torch.zeros(bs * topk, topk) for _ in range(num_steps - 1)]
    if topk == 1:
        logits = [torch.nn.functional.one_hot(t.flatten(), len(vocabulary)).float() for t in token_list[1:]]
    found = _draft_forward(lifted, _DraftModel(logits), score_list[0][:, 0], token_list[0], num_steps, num_draft_tokens)
    parent_list, selected, draft_tokens = _organized(found[:3])
    return parent_list, selected, vocabulary[draft_tokens]


_SELECT_PARAMETERS = (("i", "topk_p", "topk_index", "hidden_states", "scores", "topk"),)
_BUILD_PARAMETERS = (
    *("parent_list", "top_scores_index", "draft_tokens", "seq_lens", "seq_lens_sum", "topk"),
    *("spec_steps", "num_verify_tokens", "tree_mask_mode", "tree_mask_buf"),
)
_BUILD_SIGNATURES = (
    ("bonus_tokens", *_BUILD_PARAMETERS, "fill_prefix_mask"),
    ("bonus_tokens", *_BUILD_PARAMETERS, "position_buf"),
    ("verified_id", *_BUILD_PARAMETERS, "position_buf"),
)
_BUILD = "function:build_tree_kernel_efficient"
_DRAFT_FORWARD = places("EagleDraftWorker.draft_forward")
_CHAIN_BUFFERS = places("_rebuild_topk1_chain_buffers")

FUNCTIONS: tuple[FunctionNames, ...] = (
    FunctionNames(
        "select_top_k",
        "function:select_top_k_tokens",
        places("select_top_k_tokens"),
        _SELECT_PARAMETERS,
        _select,
        follow=frozenset({"_select_top_k_tokens_first", "_select_top_k_tokens_later"}),
    ),
    FunctionNames(
        "select_top_k",
        "caller:EagleDraftWorker.draft_forward, selecting",
        _DRAFT_FORWARD,
        (("self", "forward_batch"),),
        _select_in_loop,
        stubs=_around_selecting,
        follow=frozenset(
            {
                "_select_top_k_tokens_first",
                "_select_top_k_tokens_later",
                "per_step_draft_out_cache_loc",
            }
        ),
        along=places("select_top_k_tokens"),
        role="caller",
        # With one candidate a step the worker takes the argmax, and the first step is none of these cases.
        accepts=lambda sizes: sizes["topk"] > 1 and sizes["step"] == 1,
    ),
    FunctionNames(
        "organize_draft_results",
        "function:organize_draft_results",
        places("organize_draft_results"),
        (("score_list", "token_list", "parents_list", "num_draft_token"),),
        _organize,
    ),
    FunctionNames(
        "organize_draft_results",
        "function:organize_draft_results, ties",
        places("organize_draft_results"),
        (("score_list", "token_list", "parents_list", "num_draft_token"),),
        _organize_any_ties,
        stubs=lambda: {"torch": TorchWithHigherTies()},
        accepts=lambda sizes: sizes["topk"] > 1,
    ),
    FunctionNames(
        "organize_draft_results",
        "caller:EagleDraftWorker.draft_forward, organizing",
        _DRAFT_FORWARD,
        (("self", "forward_batch"),),
        _organize_in_loop,
        stubs=_around_organizing,
        follow=frozenset({"organize_draft_results", "per_step_draft_out_cache_loc"}),
        along=_CHAIN_BUFFERS,
        role="caller",
        # A chain has a node for each step: the release sets num_draft_tokens so.
        accepts=lambda sizes: sizes["topk"] > 1 or sizes["num_draft_tokens"] == sizes["num_steps"] + 1,
    ),
    FunctionNames(
        "build_tree",
        _BUILD,
        places("build_tree_kernel_efficient"),
        _BUILD_SIGNATURES,
        _build,
        stubs=_builder,
        follow=frozenset({"TreeMaskMode"}),
    ),
    FunctionNames(
        "build_tree_packed",
        f"{_BUILD}, packed",
        places("build_tree_kernel_efficient"),
        _BUILD_SIGNATURES,
        _build,
        stubs=_builder,
        follow=frozenset({"TreeMaskMode"}),
    ),
)
