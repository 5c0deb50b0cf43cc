"""Weighing outcomes: all choices, with weights that add up to 1, and a distance that a lossless answer has none of."""

from __future__ import annotations

import itertools
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from property_tests.support.toy_scheduler import ToyTarget
from specsim.choices.chooser import replayed
from specsim.contracts.enumeration import target_distribution
from specsim.contracts.registry import OPS
from specsim.engines.sgl_kernel_module import module_of
from specsim.engines.sglang.scheduler import exact
from specsim.engines.sglang.scheduler.exact import Choices, DrawError, Drawing
from specsim.errors import UsageError
from specsim.tiers.messages import End, Request, Weigh, Weighed
from specsim.tiers.scheduler import lossless
from specsim.vdevice import simulate
from specsim.world.hash_model import FIRST_TOKEN, VOCABULARY
from specsim.world.scheduler import Setup

HALF, THIRD = Fraction(1, 2), Fraction(1, 3)
NDT = 3  # a chain of two drafts


def test_choices_go_through_all_combinations() -> None:
    choices, seen = Choices(), []
    while True:
        choices.start()
        first = choices.choose([HALF, HALF])
        second = choices.choose([THIRD] * 3) if first else 0
        seen.append((first, second, choices.weight))
        if not choices.advance():
            break
    assert [taken[:2] for taken in seen] == [(0, 0), (1, 0), (1, 1), (1, 2)]
    assert sum(weight for *_, weight in seen) == 1


def test_runs_that_differ_by_themselves_are_refused() -> None:
    choices = Choices()
    choices.choose([HALF, HALF])
    assert choices.advance()
    choices.start()
    with pytest.raises(DrawError, match="same choices differ"):
        choices.choose([THIRD] * 3)


def test_logits_of_a_temperature_are_sixteenths() -> None:
    logits = np.empty(VOCABULARY, np.float32)
    for state in range(40):
        exact.write_logits(state, is_draft=False, out=logits)
        probs = (torch.tensor(logits) / exact.TEMPERATURE).softmax(-1)
        weights = [Fraction(float(p)).limit_denominator(exact.SNAP) * 16 for p in probs]
        assert sum(weights) == 16
        assert all(weight.denominator == 1 for weight in weights)
        inside = weights[FIRST_TOKEN : FIRST_TOKEN + exact.VOCABULARY]
        assert sum(inside) == 16
        assert inside.count(max(inside)) == 1


def test_what_is_expected_is_decoding_token_by_token() -> None:
    found = exact.expected(2)
    alone = target_distribution(exact.target, 2)
    assert {tokens[:2]: weight for tokens, weight in found.items()} == alone
    assert {tokens[2:] for tokens in found} == {exact.greedy(2)}


# ---- the draws of a verification


def given(drawing: Drawing, draws: list[float]) -> dict[str, Any]:
    """Arguments of the operation for one request, whose draft is its target's two most likely tokens."""
    probs = torch.zeros(1, NDT, VOCABULARY)
    probs[0, :, FIRST_TOKEN : FIRST_TOKEN + 5] = torch.tensor([8, 4, 2, 1, 1]) / 16
    return {
        "predicts": torch.full((NDT,), -1, dtype=torch.int32),
        "accept_index": torch.full((1, NDT), -1, dtype=torch.int32),
        "accept_token_num": torch.zeros(1, dtype=torch.int32),
        "candidates": torch.tensor([[9, FIRST_TOKEN, FIRST_TOKEN + 1]]),
        "retrive_index": torch.arange(NDT)[None],
        "retrive_next_token": torch.tensor([[1, 2, -1]]),
        "retrive_next_sibling": torch.full((1, NDT), -1),
        "uniform_samples": torch.tensor([draws[:-1]]),
        "uniform_samples_for_final_sampling": torch.tensor(draws[-1:]),
        "target_probs": probs,
        "draft_probs": torch.zeros_like(probs),
    }


def drawing_of(device: Any) -> Drawing:
    reference = module_of({name: op.reference for name, op in OPS.items()})
    return Drawing(device, reference.tree_speculative_sampling_target_only, lambda: [exact.SAMPLED], length=9)


def drawn(drawing: Drawing) -> list[float]:
    made = [drawing.rand(1, NDT, device="cuda").flatten(), drawing.rand((1,), device="cuda")]
    return [value for tensor in made for value in tensor.tolist()]


def test_every_cell_of_a_verification_is_weighed() -> None:
    with simulate(replayed(())) as device:
        drawing, found = drawing_of(device), dict[tuple[int, ...], Fraction]()
        while True:
            drawing.start()
            arguments = given(drawing, drawn(drawing))
            drawing.verify(**arguments)
            accepted = int(arguments["accept_token_num"][0])
            path = arguments["accept_index"][0, : accepted + 1].tolist()
            tokens = tuple(int(arguments["predicts"][node]) - FIRST_TOKEN for node in path)
            found[tokens] = found.get(tokens, Fraction(0)) + drawing.choices.weight
            if not drawing.choices.advance():
                break
    dist = [Fraction(weight, 16) for weight in (8, 4, 2, 1, 1)]
    expected: dict[tuple[int, ...], Fraction] = {}
    expected |= {(token,): weight for token, weight in enumerate(dist) if token != 0}
    expected |= {(0, token): dist[0] * weight for token, weight in enumerate(dist) if token != 1}
    expected |= {(0, 1, token): dist[0] * dist[1] * weight for token, weight in enumerate(dist)}
    assert found == expected


@pytest.mark.parametrize("draws", [lambda drawn: [*drawn[:2], drawn[0], drawn[3]], lambda drawn: [*drawn[:3], 0.75]])
def test_a_number_that_is_used_twice_or_was_not_drawn_is_refused(draws: Any) -> None:
    with simulate(replayed(())) as device:
        drawing = drawing_of(device)
        with pytest.raises(DrawError, match="not drawn for it"):
            drawing.verify(**given(drawing, draws(drawn(drawing))))


def test_a_token_of_a_prefill_is_drawn_by_its_probability() -> None:
    with simulate(replayed(())) as device:
        drawing, found = drawing_of(device), {}
        while True:
            drawing.start()
            probs = torch.tensor([[0.0, 0.25, 0.75]], device="cuda")
            token = drawing.multinomial(probs, num_samples=1).tolist()[0][0]
            found[token] = drawing.choices.weight
            if not drawing.choices.advance():
                break
    assert found == {1: Fraction(1, 4), 2: Fraction(3, 4)}


# ---- the distance


class Sent(list[Any]):
    send = list.append


class WithoutOverlap(ToyTarget):
    """Runs without overlap alone, or (a "wrong token") not at all."""

    def outcomes(self, setup: Setup, length: int) -> Any:
        if setup.overlap or self.defect:
            raise UsageError(f"refused with overlap={setup.overlap}", "use another setup")
        return super().outcomes(setup, length)


@pytest.mark.parametrize(("defect", "not_run"), [("", ""), ("wrong token", "refused with overlap=False")])
def test_what_is_refused_with_overlap_is_run_without(
    monkeypatch: pytest.MonkeyPatch, defect: str, not_run: str
) -> None:
    monkeypatch.setattr(lossless, "load_target", lambda _request: WithoutOverlap(defect))
    work = Weigh(drafts="tree")
    request = Request(tier="scheduler", target="t", cache="", seed=0, count=1, seconds=1.0, hang_seconds=1.0, work=work)
    sent = Sent()
    lossless.weigh(request, work, sent)  # type: ignore[arg-type]
    if not_run:
        assert isinstance(sent[-1], End)
        assert [row.why for row in sent[-1].not_run] == [not_run]
    else:
        assert isinstance(sent[-1], Weighed)
        assert sent[-1].off == "0"


@pytest.mark.parametrize(("defect", "off"), [("", "0"), ("wrong token", "1/16")])
def test_the_distance_of_a_worker_is_a_fraction(monkeypatch: pytest.MonkeyPatch, defect: str, off: str) -> None:
    monkeypatch.setattr(lossless, "load_target", lambda _request: ToyTarget(defect))
    work = Weigh(drafts="chain")
    request = Request(tier="scheduler", target="t", cache="", seed=0, count=1, seconds=1.0, hang_seconds=1.0, work=work)
    sent = Sent()
    lossless.weigh(request, work, sent)  # type: ignore[arg-type]
    assert isinstance(sent[-1], Weighed)
    assert (sent[-1].outcomes, sent[-1].off, sent[-1].why) == (2, off, "")


def test_the_page_says_what_is_not_run_and_why(tmp_path: Path) -> None:
    from specsim.report.lossless import page

    cells = itertools.product(("a", "b"), ("chain", "tree"))
    rows = [
        {"target": target, "drafts": drafts, "outcomes": 4, "off": "" if (target, drafts) == ("a", "tree") else "1/8"}
        | {"failed": "", "not_run": "a guard"}
        for target, drafts in cells
    ]
    text = page(rows, "specsim lossless")
    assert "| a | 4 | 1/8 | - | not run (1) |" in text
    assert "| b | 4 | 1/8 | 4 | 1/8 |" in text
    assert "1. a guard." in text
