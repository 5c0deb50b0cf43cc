"""Hypothesis strategies for suites of one's own: what a step of speculative decoding is given, and what goes wrong.

    from hypothesis import given
    from specsim.strategies import draft_trees, logits

    @given(draft_trees(topk_max=4), logits(rows=2, vocab_size=33))
    def test_my_kernel(tree, rows): ...

All draw by the generators that `specsim check` uses (`specsim.choices.chooser`) and shrink towards the simplest case:
one request, a chain, no page boundary, nothing wrong. Needs torch; nothing here launches a kernel.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from typing import TYPE_CHECKING, NamedTuple

import torch
from hypothesis import HealthCheck, settings

from specsim.choices.chooser import Chooser, between, pick
from specsim.choices.hypothesis_chooser import chosen
from specsim.contracts.contract import NUMBERS, Case, Op
from specsim.contracts.draws import ChosenDraws
from specsim.contracts.registry import OPS
from specsim.contracts.tree import DraftTree
from specsim.contracts.tree import draft_trees as make_draft_trees
from specsim.errors import UsageError, no_such
from specsim.world.hash_model import decoded
from specsim.world.schedule import plain_violation, run_schedule
from specsim.world.scheduler import Setup, rows_of
from specsim.world.workload import draw_workload, told

if TYPE_CHECKING:
    from hypothesis.strategies import SearchStrategy

    from specsim.choices.chooser import RecordingChooser
    from specsim.world.schedule import Record
    from specsim.world.scheduler import Facts, SchedulerTarget
    from specsim.world.workload import Decode, Workload

__all__ = [
    "CacheLayout",
    "batches",
    "cache_layouts",
    "cases",
    "draft_trees",
    "logits",
    "register_profiles",
    "schedules",
    "workloads",
]

NAN, INFINITY = float("nan"), float("inf")
LARGEST, SMALLEST = torch.finfo(torch.float32).max, 2.0**-149  # the smallest is subnormal


class CacheLayout(NamedTuple):
    """Where the KV of a batch lies.

    `page_size`         tokens of a page; slots of a page are consecutive and begin at a multiple of it
    `req_to_token`      [pool_rows, pool_len] int32, the slot of each position of each row; page 0 is in nobody's row
    `req_pool_indices`  [bs] int64, the row of each request, 0 for padding requests, which are the last ones
    `seq_lens`          [bs] int64, positions in use: at, one before and one after the start of a page; 0 for padding
    """

    page_size: int
    req_to_token: torch.Tensor
    req_pool_indices: torch.Tensor
    seq_lens: torch.Tensor


def cases(operation: str | Op) -> SearchStrategy[Case]:
    """Valid inputs of an operation: its `sizes` and its `tensors` by name, contiguous, on the CPU.

    Raises UsageError for a name that no operation has.
    """
    op = OPS.get(operation) if isinstance(operation, str) else operation
    if op is None:
        raise no_such("operation", str(operation), sorted(OPS))
    return chosen(op.generate).map(lambda drawn: drawn[0])


def draft_trees(
    *, topk_max: int = 8, num_steps_max: int = 6, num_draft_tokens_max: int = 64
) -> SearchStrategy[DraftTree]:
    """The tree of one request, of 2 to `num_draft_tokens_max` nodes, at most `num_steps_max` deep, with at most
    `topk_max` children a node: `parents` (-1 for the root, node 0), and `parent_list` and `selected_index` as drafting
    hands them over. With topk 1 it is a chain.

    Raises UsageError for limits that no tree keeps to.
    """
    limits = {"topk_max": (topk_max, 1), "num_steps_max": (num_steps_max, 1)}
    for name, (value, least) in {**limits, "num_draft_tokens_max": (num_draft_tokens_max, 2)}.items():
        if value < least:
            raise UsageError(f"{name}={value}", f"a tree has a root and a draft: {name} must be at least {least}")

    def draw(chooser: Chooser) -> DraftTree:
        topk = between(chooser, 1, topk_max, "topk")
        num_steps = between(chooser, 1, num_steps_max, "num_steps")
        if topk == 1:
            num_steps = min(num_steps, num_draft_tokens_max - 1)
            ndt = num_steps + 1
        else:
            ndt = between(
                chooser, 2, min(num_draft_tokens_max, 1 + topk + (num_steps - 1) * topk**2), "num_draft_tokens"
            )
        shape = {"topk": topk, "num_steps": num_steps, "num_draft_tokens": ndt}
        number = torch.tensor([chooser.choose(NUMBERS, "number of the tree")])
        return make_draft_trees(ChosenDraws(number, chooser), shape)[0]

    return chosen(draw).map(lambda drawn: drawn[0])


def batches() -> SearchStrategy[Case]:
    """Batches as greedy verification takes them: trees of one shape with their `candidates`, equal siblings among
    them, `retrieve_index`, `retrieve_next_token` and `retrieve_next_sibling` (-1 for none), and `target_predict`, the
    target's token after each node, which accepts nothing, a path or all; int64, [bs, num_draft_tokens].
    """
    return cases("verify_tree_greedy")


def cache_layouts() -> SearchStrategy[CacheLayout]:
    """Rows, slots and lengths of a batch whose pages are whole and out of order, padding requests among them."""

    def layout(case: Case) -> CacheLayout:
        names = ("req_to_token", "req_pool_indices", "prefix_lens")
        return CacheLayout(case.sizes["page_size"], *(case.tensors[name] for name in names))

    return cases("get_last_loc").map(layout)


# ---- logits


def _steps(chooser: Chooser, count: int) -> list[float]:
    start, step = chooser.choose(61, "logit of token 0"), chooser.choose(61, "logits, from token to token")
    return [((start + step * i + 30) % 61 - 30) / 8 for i in range(count)]


def _ties(chooser: Chooser, count: int) -> list[float]:
    """A maximum that several tokens share, the first and the last of the row among them."""
    every = between(chooser, 1, max(1, count - 1), "distance of the maxima")
    return [1.0 if i % every == 0 or i == count - 1 else 0.0 for i in range(count)]


def _one_ulp(chooser: Chooser, count: int) -> list[float]:
    """Neighbours in float32: a kernel that rounds takes them for equal."""
    above = torch.nextafter(torch.tensor(1.0), torch.tensor(2.0)).item()
    at = chooser.choose(count, "the larger one")
    return [above if i == at else 1.0 for i in range(count)]


def _zeros(chooser: Chooser, count: int) -> list[float]:
    """Zeros of both signs, which are equal."""
    every = between(chooser, 1, 3, "distance of positive zeros")
    return [0.0 if i % every == 0 else -0.0 for i in range(count)]


def _extremes(chooser: Chooser, count: int) -> list[float]:
    """The largest and smallest magnitudes: sums overflow, differences vanish."""
    shift = chooser.choose(4, "first extreme")
    return [(LARGEST, SMALLEST, -LARGEST, -SMALLEST)[(i + shift) % 4] for i in range(count)]


def _hidden(chooser: Chooser, count: int) -> list[float]:
    """-inf everywhere but at a few tokens, or at all but one, as grammars leave them."""
    kept, every = chooser.choose(count, "a token that is allowed"), between(chooser, 1, 4, "distance of hidden ones")
    return [value if i == kept or i % every else -INFINITY for i, value in enumerate(_steps(chooser, count))]


def _infinite(chooser: Chooser, count: int) -> list[float]:
    at = chooser.choose(count, "the infinite one")
    return [INFINITY if i == at else value for i, value in enumerate(_steps(chooser, count))]


def _nan(chooser: Chooser, count: int) -> list[float]:
    """A NaN at any place, or in the whole row."""
    at, whole = chooser.choose(count, "the NaN"), chooser.choose(4, "a row of NaN") == 1
    return [NAN if whole or i == at else value for i, value in enumerate(_steps(chooser, count))]


_KINDS: dict[str, Callable[[Chooser, int], list[float]]] = {
    "steps": _steps,
    "ties": _ties,
    "one ulp apart": _one_ulp,
    "signed zeros": _zeros,
    "extremes": _extremes,
}


def logits(
    rows: int = 1, vocab_size: int | None = None, *, allow_infinity: bool = True, allow_nan: bool = False
) -> SearchStrategy[torch.Tensor]:
    """[rows, vocab_size] float32 with what kernels get wrong: shared maxima, neighbours one ulp apart, zeros of both
    signs, the largest and subnormal magnitudes, -inf as a grammar's mask leaves it, +inf, and with `allow_nan` NaN.

    A `vocab_size` of None draws one beside powers of two, 1 to 4097. Raises UsageError for a number below 1.
    """
    for name, value in (("rows", rows), ("vocab_size", 1 if vocab_size is None else vocab_size)):
        if value < 1:
            raise UsageError(f"{name}={value}", f"{name} must be at least 1")
    kinds = {**_KINDS, **({"hidden": _hidden, "infinite": _infinite} if allow_infinity else {})}
    kinds |= {"nan": _nan} if allow_nan else {}

    def draw(chooser: Chooser) -> torch.Tensor:
        count = vocab_size or pick(chooser, (4, 1, 2, 31, 32, 33, 127, 128, 129, 1025, 4097), "vocab_size")
        made = [kinds[pick(chooser, tuple(kinds), "kind of row")](chooser, count) for _ in range(rows)]
        return torch.tensor(made, dtype=torch.float32)

    return chosen(draw).map(lambda drawn: drawn[0])


# ---- an engine of your own


def workloads(facts: Facts, setup: Setup | None = None, decode: Decode = decoded) -> SearchStrategy[Workload]:
    """What the users of an engine with these `facts` do: `turns`, each with the token ids of its prompt, the tokens of
    its answer, and the iterations of its arrival and abort; and iterations of what users do to all of them.

    `setup`   how the engine is started, None for the default: a prompt and its answer fit its pool
    `decode`  what the engine's model says, `decode(prompt, count, rank) -> tokens`: a stop is a token that it will say
    """
    of = setup or Setup()
    return chosen(lambda chooser: draw_workload(chooser, of, facts, decode)).map(lambda drawn: drawn[0])


def schedules(target: SchedulerTarget, *, known: Collection[str] = ()) -> SearchStrategy[Record]:
    """Schedules of an engine of your own, which run while they are drawn, as `specsim check` runs them:

        @given(schedules(MyEngine()))
        def test_my_engine(schedule): ...

    Hypothesis draws the setup, what users do and every choice of the run, and shrinks all three. A rule that is broken
    raises AssertionError, and so fails the test, with what broke and what users did; let pass are rules of severity
    metric, and the signatures in `known`. For what else must hold, what is drawn has the `workload` in plain JSON, the
    `choices` of the run by label, and `events`, a line for each launch.

    Each runs in this process, on a scheduler that `target.start` makes for it: a step that never ends holds up the
    test, and one that ends its process ends pytest. `specsim check` runs each in a process of its own.
    """
    from specsim.findings.by_hand import is_metric, text_of
    from specsim.rules.table import CHECKS

    setups = [target.setups[row] for row in rows_of(target.setups, Setup().worker)]

    def run(chooser: RecordingChooser) -> Record:
        __tracebackhide__ = True
        setup = pick(chooser, setups, "setup")
        record = run_schedule(target.start(setup), setup, CHECKS, chooser)
        violations = ({**plain_violation(one), "signature": one.signature} for one in record.violations)
        broken = [one for one in violations if not is_metric(one) and one["signature"] not in known]
        if broken:
            raise AssertionError(text_of(broken, [("setup", record.setup), *told(record.workload)]))
        return record

    return chosen(run).map(lambda drawn: drawn[0])


# ---- profiles

EXAMPLES = {"dev": 100, "ci": 300, "nightly": 3000, "gpu": 1000}
"""Of each profile; on a GPU a case is a launch, and they are cheap."""


def register_profiles(prefix: str = "") -> None:
    """Register the profiles PREFIXdev, PREFIXci, PREFIXnightly and PREFIXgpu with Hypothesis.

    They differ in their examples alone: no deadline, since the first launch compiles, other examples every time, and
    the lines that make a failure again are printed. Where `CI` is set Hypothesis makes its own derandomised profile the
    default that others inherit; these do not. Load one with `settings.load_profile`, or give pytest
    `--hypothesis-profile=specsim-ci` with the plugin, which registers them with the prefix `specsim-`.
    """
    for name, examples in EXAMPLES.items():
        settings.register_profile(
            f"{prefix}{name}",
            parent=settings.get_profile("default"),
            max_examples=examples,
            deadline=None,
            derandomize=False,
            print_blob=True,
            suppress_health_check=[HealthCheck.too_slow],
        )
