"""Every rule of the ops tier fires on an implementation that breaks it, on a smallest case, and on nothing else."""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import torch

from property_tests.naive import NAIVE
from specsim import kernels
from specsim.choices.chooser import replayed, seeded
from specsim.contracts.contract import Case, Implementation, Tensors
from specsim.contracts.provider import MappingProvider, NotCalledError, Subject
from specsim.contracts.registry import OPS, REFERENCE
from specsim.tiers.ops import rules
from specsim.tiers.ops.rules import BY_ID, RULES
from specsim.tiers.ops.run import LaunchHere, run_case
from specsim.tiers.ops.suite import SubjectResult, SuiteLimits, check_subject
from specsim.verdict import Rule

BONUS = OPS["fill_bonus_tokens"]


def subject_of(op: str, implementation: Implementation, **fields: Any) -> Subject:
    return Subject(op, "kernel", f"kernel:{op}", partial(OPS[op].call, implementation), **fields)


def checked(subject: Subject, cases: int = 40, seed: int = 1) -> SubjectResult:
    return check_subject(OPS[subject.op], subject, seed=seed, limits=SuiteLimits(cases))


def reads_the_last_column(predict: Any, accept_index: Any, accept_lens: Any) -> Any:
    return predict[accept_index[:, -1].long()]


def changes_an_input(predict: Any, accept_index: Any, accept_lens: Any) -> Any:
    tokens = REFERENCE["fill_bonus_tokens"](predict, accept_index, accept_lens)
    accept_lens -= 1
    return tokens


def writes_only_row_zero(predict: Any, accept_index: Any, accept_lens: Any, bonus_tokens: Any) -> None:
    bonus_tokens[:1] = REFERENCE["fill_bonus_tokens"](predict, accept_index, accept_lens)[:1]


def writes_behind_its_output(predict: Any, accept_index: Any, accept_lens: Any, bonus_tokens: Any) -> None:
    bonus_tokens.copy_(REFERENCE["fill_bonus_tokens"](predict, accept_index, accept_lens))
    wider = bonus_tokens.as_strided((len(bonus_tokens) + 1,), (1,))
    wider[-1] = 5


def returns_another_dtype(predict: Any, accept_index: Any, accept_lens: Any) -> Any:
    return REFERENCE["fill_bonus_tokens"](predict, accept_index, accept_lens).long()


def returns_another_shape(predict: Any, accept_index: Any, accept_lens: Any) -> Any:
    return REFERENCE["fill_bonus_tokens"](predict, accept_index, accept_lens)[None]


def returns_nothing(predict: Any, accept_index: Any, accept_lens: Any) -> None:
    return None


def raises(predict: Any, accept_index: Any, accept_lens: Any) -> Any:
    raise IndexError("no such row\nand more")


@pytest.mark.parametrize(
    ("implementation", "rule"),
    [
        (reads_the_last_column, rules.EQUALS_REFERENCE),
        (changes_an_input, rules.LEAVES_INPUTS),
        (writes_only_row_zero, rules.EQUALS_REFERENCE),
        (writes_behind_its_output, rules.STAYS_IN_BOUNDS),
        (returns_another_dtype, rules.FITS_CONTRACT),
        (returns_another_shape, rules.FITS_CONTRACT),
        (returns_nothing, rules.FITS_CONTRACT),
        (raises, rules.DOES_NOT_RAISE),
    ],
)
def test_a_wrong_implementation_breaks_its_rule(implementation: Implementation, rule: Rule) -> None:
    result = checked(subject_of("fill_bonus_tokens", implementation))
    assert result.counterexample is not None
    assert result.counterexample.rule is rule


def test_a_mask_left_at_its_poison_is_seen_under_one_poison_or_the_other() -> None:
    """A boolean output that is never written equals one of the two poisons everywhere, and the other nowhere."""
    op = OPS["build_tree"]

    def forgets_the_mask(**arguments: Any) -> None:
        right = REFERENCE["build_tree"](
            **{a.name: arguments[a.name] for a in op.args if not (hasattr(a, "role") and a.role.value == "out")}
        )
        for name, value in zip([a.name for a in op.outputs], right, strict=True):
            if name != "tree_mask":
                arguments[name].copy_(value)

    forgets_the_mask.__signature__ = _signature([a.name for a in op.args])  # type: ignore[attr-defined]
    result = checked(subject_of("build_tree", forgets_the_mask))
    assert result.counterexample is not None


def _signature(names: list[str]) -> Any:
    import inspect

    return inspect.Signature([inspect.Parameter(n, inspect.Parameter.KEYWORD_ONLY) for n in names])


def test_the_counterexample_is_the_smallest_case_that_shows_the_defect() -> None:
    result = checked(subject_of("fill_bonus_tokens", reads_the_last_column))
    assert result.counterexample is not None
    sizes = result.counterexample.case.sizes
    assert (sizes["bs"], sizes["topk"], sizes["num_steps"]) == (1, 1, 1)
    assert result.counterexample.case.tensors["accept_lens"].tolist() == [1]


def test_the_same_seed_finds_the_same_and_another_seed_draws_other_cases() -> None:
    subject = subject_of("fill_bonus_tokens", reads_the_last_column)
    first, again, other = checked(subject), checked(subject), checked(subject, seed=2)
    assert first.failures == again.failures
    assert [f.tape for f in first.failures] != [f.tape for f in other.failures]
    assert first.counterexample is not None
    assert again.counterexample is not None
    assert first.counterexample.outcome is not None
    assert again.counterexample.outcome is not None
    assert first.counterexample.outcome.digest == again.counterexample.outcome.digest


def test_undefined_output_elements_are_never_compared() -> None:
    op = OPS["verify_tree_greedy"]

    def fills_undefined_entries(**inputs: Any) -> tuple[torch.Tensor, ...]:
        predicts, accept_index, accept_token_num = REFERENCE["verify_tree_greedy"](**inputs)
        noise = torch.full_like(predicts, 77)
        visited = accept_index[accept_index >= 0].long()
        noise[visited] = predicts[visited]
        return noise, accept_index, accept_token_num

    names = [a.name for a in op.args if a.name not in {o.name for o in op.outputs}]
    fills_undefined_entries.__signature__ = _signature(names)  # type: ignore[attr-defined]
    assert checked(subject_of("verify_tree_greedy", fills_undefined_entries)).failures == []


OF_ANY_TOKEN = ["sample_recovered_tokens", "verify_ragged_sampled", "verify_tree_target_only"]
OF_ANY_TOKEN += ["verify_chain_rejection", "verify_tree_rejection"]


@pytest.mark.parametrize("name", OF_ANY_TOKEN)
@pytest.mark.parametrize(("told", "is_found"), [("none", True), ("one too many", True), ("the first", False)])
def test_what_is_taken_for_a_token_is_one_where_any_may_be(name: str, told: str, is_found: bool) -> None:
    """Where nothing is left of a distribution, and of a row of NaN."""
    op = OPS[name]

    def tells(**inputs: Any) -> Any:
        returned = REFERENCE[name](**inputs)
        values = returned if isinstance(returned, tuple) else (returned,)
        results = {arg.name: value for arg, value in zip(op.outputs, values, strict=True)}
        sizes = {each: value for each, value in inputs.items() if isinstance(value, int)}
        tensors = {each: value for each, value in inputs.items() if isinstance(value, torch.Tensor)}
        value = {"none": -1, "one too many": inputs["target_probs"].shape[-1], "the first": 0}[told]
        for output, is_any in op.tokens(Case(sizes, tensors), results).items():
            results[output] = torch.where(is_any, value, results[output])
        return tuple(results.values())

    names = [arg.name for arg in op.args if arg.name not in {out.name for out in op.outputs}]
    tells.__signature__ = _signature(names)  # type: ignore[attr-defined]
    result = checked(subject_of(name, tells))
    assert bool(result.failures) == is_found
    if is_found:
        assert result.counterexample is not None
        assert result.counterexample.rule is rules.EQUALS_REFERENCE


def test_a_defect_is_reported_for_the_users_who_are_hit_first() -> None:
    """When it shows in a guarded and in a default configuration, the default one is reported."""

    def reach(sizes: Any) -> str:
        return "guarded:server.py:1" if sizes["num_steps"] == 1 else "default"

    result = checked(subject_of("fill_bonus_tokens", reads_the_last_column, reach=reach))
    assert result.counterexample is not None
    assert result.counterexample.reach == "default"
    assert result.counterexample.case.sizes["num_steps"] == 2


def test_configurations_that_are_not_accepted_are_not_checked() -> None:
    def accepts_chains_and_fails(predict: Any, accept_index: Any, accept_lens: Any) -> Any:
        raise AssertionError("never called")

    subject = subject_of("fill_bonus_tokens", accepts_chains_and_fails, accepts=lambda _sizes: False)
    result = checked(subject)
    assert (result.cases, result.failures) == (0, [])


def test_a_call_that_is_not_made_is_not_checked() -> None:
    def does_not_call(_sizes: Any, _tensors: Tensors) -> Tensors:
        raise NotCalledError("idle")

    result = checked(Subject("fill_bonus_tokens", "caller", "caller:none", does_not_call))
    assert (result.cases, result.failures) == (0, [])


def test_a_spent_budget_stops_after_one_case() -> None:
    subject = subject_of("fill_bonus_tokens", REFERENCE["fill_bonus_tokens"])
    result = check_subject(
        BONUS, subject, seed=0, limits=SuiteLimits(50, deadline=time.monotonic() + 0.001, first_round=1)
    )
    assert result.cases == 1
    assert result.cut_short


@pytest.mark.parametrize("implementations", [REFERENCE, NAIVE], ids=["reference", "naive"])
@pytest.mark.parametrize("op", list(OPS))
@pytest.mark.slow(runs_one_in=3)
def test_reference_and_naive_implementation_have_no_finding(
    op: str, implementations: dict[str, Implementation]
) -> None:
    assert checked(subject_of(op, implementations[op]), cases=30).failures == []


@pytest.mark.parametrize("op", [subject.op for subject in kernels.provider().subjects()[0]])
@pytest.mark.slow(runs_one_in=3)
def test_the_own_kernels_have_no_finding(op: str) -> None:
    subjects, not_run = kernels.provider().subjects()
    assert {s.op for s in subjects} | {entry.what for entry in not_run} == set(OPS)
    (subject,) = [s for s in subjects if s.op == op]
    device = "cuda" if torch.cuda.is_available() else "cpu"
    result = check_subject(OPS[op], subject, seed=3, limits=SuiteLimits(4), launcher=LaunchHere(device))
    assert (result.cases, result.failures) == (4, [])


def test_a_mapping_says_what_it_does_not_provide() -> None:
    subjects, not_run = MappingProvider("mine", {"fill_bonus_tokens": raises, "unknown_op": raises}).subjects()
    assert [s.op for s in subjects] == ["fill_bonus_tokens"]
    assert {n.what for n in not_run} == {"unknown_op", *OPS} - {"fill_bonus_tokens"}


def test_rules_are_ordered_and_found_by_their_id() -> None:
    assert len(BY_ID) == len(RULES) == len({rule.sentence for rule in RULES})


def corrupt(change: Callable[[Tensors], None]) -> str:
    case = BONUS.generate(seeded(5, "digest"))
    if change is not None:
        change(case.tensors)
    return run_case(BONUS, subject_of("fill_bonus_tokens", REFERENCE["fill_bonus_tokens"]), case).digest


def test_the_digest_covers_the_inputs() -> None:
    def other_token(tensors: Tensors) -> None:
        tensors["predict"][0] += 1

    assert corrupt(lambda _tensors: None) == corrupt(lambda _tensors: None) != corrupt(other_token)


def test_all_zero_choices_give_the_simplest_case() -> None:
    for op in OPS.values():
        sizes = op.generate(replayed(())).sizes
        assert sizes["bs"] == 1
