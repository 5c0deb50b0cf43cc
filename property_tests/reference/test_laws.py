"""Rules of verification as laws: which keep the target's distribution, and that the page says it.

Every law is a distribution; two that say the same thing in two ways agree.
"""

from __future__ import annotations

import contextlib
import io
import re
from fractions import Fraction
from pathlib import Path

import pytest

from property_tests.support import distances_page
from property_tests.support.known_releases import RELEASES, SGLANG
from specsim.contracts import laws
from specsim.contracts.drafts import MODELS, Drafted, drawn_drafts
from specsim.contracts.enumeration import Tokens
from specsim.contracts.laws import LAWS, LOSSLESS, LOSSY, MISTAKES, SHAPES, Law, Outcomes, farthest, tokens_a_step
from specsim.engines.packages import cached_releases
from specsim.interpreter.triton_names import interpreted
from specsim.lifting.cache import Cache

ONE = Fraction(1)
PAGE = Path(__file__).parents[2] / "docs" / "distances.md"
every_law = pytest.mark.parametrize("name", LAWS)


def summed(outcomes: Outcomes) -> dict[Tokens, Fraction]:
    dist: dict[Tokens, Fraction] = {}
    for tokens, probability in outcomes:
        assert probability >= 0
        if probability:
            dist[tokens] = dist.get(tokens, Fraction(0)) + probability
    return dist


def drafts(shape: Tokens, *, replacement: bool = False) -> list[Drafted]:
    """What the drafters of the models of three tokens may draw."""
    names = ("three tokens", "zeros")
    return [one for name in names for _weight, one in drawn_drafts(*MODELS[name], shape, replacement=replacement)]


@every_law
def test_a_law_is_a_distribution_for_each_draft(name: str) -> None:
    law = LAWS[name]
    for drafted in drafts(SHAPES[law.drafts][-1], replacement=law.drafts == "repeated siblings"):
        assert sum(summed(law.outcomes(drafted)).values()) == 1


@pytest.mark.parametrize("name", LOSSLESS)
def test_what_is_called_lossless_has_the_targets_distribution_and_emits_more_than_a_token(name: str) -> None:
    assert distances_page.weighed(LOSSLESS[name]).off == 0
    assert tokens_a_step(LOSSLESS[name]) > 1


@pytest.mark.parametrize("name", [*LOSSY, *MISTAKES])
def test_what_is_called_lossy_has_not(name: str) -> None:
    assert distances_page.weighed(LAWS[name]).off > Fraction(1, 8)


@pytest.mark.parametrize("shape", [(1,), (2,), (3,), (2, 1, 1), (1, 2)])
def test_target_only_emits_what_sampling_and_matching_does(shape: Tokens) -> None:
    for drafted in drafts(shape):
        assert summed(laws.target_only(drafted)) == summed(laws.sample_and_match(drafted))


@pytest.mark.parametrize("shape", [(1,), (1, 1), (1, 1, 1)])
def test_on_a_chain_traversal_is_block_verification(shape: Tokens) -> None:
    for drafted in drafts(shape):
        assert summed(laws.traversal(drafted)) == summed(laws.block(drafted))


def test_of_one_child_each_every_rejection_is_the_chains() -> None:
    for drafted in drafts((1, 1)):
        found = summed(laws.rejection(drafted))
        assert found == summed(laws.rejection(drafted, again=True))
        assert found == summed(laws.rejection(drafted, renewed=False))
        assert found == summed(laws.k_sequential(drafted))


def test_block_verification_emits_no_fewer_tokens_than_rejection_and_traversal_no_fewer_than_recursive() -> None:
    assert tokens_a_step(LAWS["block verification"]) > tokens_a_step(LAWS["rejection"])
    walk, rejects = LAWS["traversal verification"], LAWS["recursive rejection without replacement"]
    assert tokens_a_step(walk) > tokens_a_step(rejects)


def test_the_trees_rule_with_a_threshold_is_off_by_its_closed_form() -> None:
    """Two children of 5/16 and 4/16 with threshold_acc 3/4 take 3/4 of the draw: a third more than they have."""
    shares = laws.target_only(Drafted((0, 0, 1), (-1, 0, 0), (sixteenths((5, 4, 7)),) * 3), acc=Fraction(3, 4))
    first: dict[int, Fraction] = {}
    for tokens, probability in shares:
        first[tokens[0]] = first.get(tokens[0], Fraction(0)) + probability
    assert first == {0: Fraction(5, 12), 1: Fraction(4, 12), 2: Fraction(3, 12)}


def sixteenths(numbers: Tokens) -> tuple[Fraction, ...]:
    return tuple(Fraction(weight, 16) for weight in numbers)


def test_the_farthest_model_and_drafts_are_named() -> None:
    found = farthest(Law(lambda drafted: laws.drawn(drafted.tokens[1:2], drafted.target[1], ONE), "chain"))
    assert (found.off, found.model, found.shape) == (Fraction(3, 4), "zeros", (1,))


def test_a_law_that_is_no_distribution_and_drafts_of_no_kind_are_refused() -> None:
    half = Law(lambda drafted: laws.drawn((), drafted.target[0], Fraction(1, 2)), "chain")
    with pytest.raises(ValueError, match=r"has the probabilities 1/2 in all; allowed: 1"):
        farthest(half)
    with pytest.raises(ValueError, match=r"there are no drafts 'tree'; allowed: chain, likeliest tokens, siblings"):
        farthest(Law(laws.rejection, "tree"))


def test_the_page_has_the_rules_as_they_are() -> None:
    assert PAGE.read_text(encoding="utf-8").startswith(distances_page.rules()), "run `make pages`"
    assert distances_page.longest() < 30


def test_the_example_of_the_page_runs_as_it_stands_there() -> None:
    (example,) = re.findall(r"```python\n(.*?)```", PAGE.read_text(encoding="utf-8"), re.DOTALL)
    with contextlib.redirect_stdout(io.StringIO()) as printed:
        exec(compile(example, str(PAGE), "exec"), {})
    assert printed.getvalue().startswith("Farthest(off=Fraction(")


@pytest.mark.slow
def test_the_page_has_the_distances_of_what_ships(wheel_cache: Cache) -> None:
    if RELEASES[-1] not in cached_releases("sglang", wheel_cache):
        pytest.skip(f"{SGLANG} {RELEASES[-1]} is not in the cache")
    if not interpreted():
        pytest.skip("Triton kernels are compiled here")
    assert PAGE.read_text(encoding="utf-8") == distances_page.page(wheel_cache), "run `make pages`"
