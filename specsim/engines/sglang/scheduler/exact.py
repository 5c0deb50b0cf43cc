"""Every outcome of a release's own worker at a temperature, weighed exactly.

Two requests decode together: one greedily, one at a temperature. The models' probabilities are sixteenths that depend
on the whole prefix, which the models read from the KV that the worker selects (`attention`). Whatever the worker draws
is a choice with exact weights: a token from a row of probabilities, and, of the uniform draws that it hands to a
verification, the cell that they lie in (`specsim.contracts.enumeration`). A schedule is run once for each combination
of choices, so the outcomes' weights add up to 1.

What the operation of verification is given is the worker's: its probabilities, its tree, its indices. Its draws must be
uniform ones that it has drawn, each used once; DrawError says where they are not.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

import torch

from specsim.contracts.enumeration import (
    Distribution,
    Proposal,
    Tokens,
    cdf,
    output_distribution,
    target_distribution,
    target_only_thresholds,
    without,
)
from specsim.engines.sglang.scheduler.boot import REFERENCE, Booted
from specsim.engines.sglang.scheduler.release_worker import ReleaseWorker
from specsim.world.hash_model import EMPTY, FIRST_TOKEN, extended

VOCABULARY = 5  # tokens that have any probability: FIRST_TOKEN and those after it
SIXTEENTHS = ((8, 4, 2, 1, 1), (6, 5, 3, 1, 1), (1, 9, 4, 2, 0), (3, 0, 12, 1, 0))  # one of them the most likely
TEMPERATURE = 0.5
NEVER = -1e4  # logit of the other tokens

SAMPLED, GREEDY = "sampled", "greedy"
PROMPTS = {GREEDY: (11, 20, 21), SAMPLED: (12, 20, 21, 22, 23)}  # in the order of the batch

SNAP = 1 << 12
"""Probabilities are float32 by the time they are drawn from: the simplest fraction with a denominator below this one
within their rounding is what was meant."""
ITERATIONS_MAX = 200


class DrawError(Exception):
    """A worker's draws are not such that outcomes can be weighed."""


# ---- the models


def _sixteenths(state: int) -> list[int]:
    """The sixteenths of the target after a prefix of that hash."""
    row, turn = SIXTEENTHS[state % len(SIXTEENTHS)], (state >> 8) % VOCABULARY
    return [*row[turn:], *row[:turn]]


def _draft_sixteenths(state: int) -> list[int]:
    """Those of the draft model: the target's, or another one's."""
    return _sixteenths(state if state >> 16 & 1 else extended(state, 0))


def write_logits(state: int, is_draft: bool, out: Any) -> None:
    """Logits [vocabulary] after a prefix of that hash, of which a temperature of TEMPERATURE makes the target's
    sixteenths."""
    weights = torch.tensor(_draft_sixteenths(state) if is_draft else _sixteenths(state), dtype=torch.float64)
    logits = weights.log() * (1.0 if is_draft else TEMPERATURE)
    out.fill(NEVER)
    out[FIRST_TOKEN : FIRST_TOKEN + VOCABULARY] = logits.clamp(min=NEVER).numpy()


def _after(rid: str, tokens: Sequence[int]) -> int:
    state = EMPTY
    for token in (*PROMPTS[rid], *(FIRST_TOKEN + one for one in tokens)):
        state = extended(state, token)
    return state


def target(prefix: Tokens) -> list[Fraction]:
    """The distribution of the sampled request's next token after those [0, VOCABULARY) that it has."""
    return [Fraction(weight, 16) for weight in _sixteenths(_after(SAMPLED, prefix))]


def greedy(length: int) -> Tokens:
    """The tokens [0, VOCABULARY) of the greedy request."""
    tokens: list[int] = []
    for _ in range(length):
        weights = _sixteenths(_after(GREEDY, tokens))
        tokens.append(weights.index(max(weights)))
    return tuple(tokens)


# ---- the choices


class Choices:
    """Goes through all combinations of choices, run after run, the last choice first."""

    def __init__(self) -> None:
        self._taken: list[tuple[int, tuple[Fraction, ...]]] = []
        self.start()

    def start(self) -> None:
        """Begin a run."""
        self._at, self.weight = 0, Fraction(1)

    def choose(self, weights: Sequence[Fraction]) -> int:
        """The number of one of the positive weights, which add up to 1."""
        if self._at == len(self._taken):
            self._taken.append((0, tuple(weights)))
        number, known = self._taken[self._at]
        if known != tuple(weights):
            raise DrawError("two runs with the same choices differ")
        self.weight *= known[number]
        self._at += 1
        return number

    def advance(self) -> bool:
        """Whether there is another run."""
        del self._taken[self._at :]
        while self._taken:
            number, weights = self._taken.pop()
            if number + 1 < len(weights):
                self._taken.append((number + 1, weights))
                return True
        return False


@dataclass(frozen=True, slots=True)
class _DrawCells:
    """The cells of a verification's draws that differ in what is emitted: weights, and draws in each."""

    weights: tuple[Fraction, ...]
    draws: tuple[tuple[float, ...], ...]


class Drawing:
    """Makes the choices where the worker draws. `rows` are the requests of the batch that is run."""

    def __init__(self, device: Any, verify: Callable[..., None], rows: Callable[[], list[str]], length: int) -> None:
        self.choices = Choices()
        self._device, self._verify, self._rows, self._length = device, verify, rows, length
        self._cells: dict[bytes, _DrawCells] = {}
        self.start()

    def start(self) -> None:
        self.choices.start()
        self._count = 0  # uniform draws so far
        self._used: set[int] = set()
        self._emitted = {SAMPLED: 0, GREEDY: 0}

    # ---- in the place of operators

    def multinomial(self, probs: Any, num_samples: int, *_arguments: Any, **_named: Any) -> Any:
        """In place of torch.multinomial, for one sample of each row."""
        if num_samples != 1:
            raise DrawError(f"torch.multinomial draws {num_samples} tokens of a row")
        made = torch.empty((*probs.shape[:-1], 1), dtype=torch.int64, device=probs.device)

        def run(access: Any) -> None:
            rows, out = access.host(probs).reshape(-1, probs.shape[-1]), access.host(made).view(-1)
            for i, row in enumerate(rows):
                out[i] = self._token_of(_exact(row))
            for rid in self._rows():
                self._emitted[rid] += 1

        self._device.launch(run, reads=[probs], writes=[made], name="multinomial")
        return made

    def _token_of(self, dist: Sequence[Fraction]) -> int:
        at = [token for token, weight in enumerate(dist) if weight]
        total = sum(dist, Fraction(0))
        return at[self.choices.choose([dist[token] / total for token in at])]

    def rand(self, *shape: Any, **named: Any) -> Any:
        """In place of torch.rand: a number of its own for each draw."""
        size = named.pop("size", shape[0] if len(shape) == 1 and not isinstance(shape[0], int) else shape)
        made = torch.empty(tuple(size), dtype=torch.float32, device=named.get("device", "cuda"))

        def run(access: Any) -> None:
            out = access.host(made).view(-1)
            for i in range(len(out)):
                self._count += 1
                out[i] = self._count / (1 << 24)  # exact

        self._device.launch(run, reads=[], writes=[made], name="rand")
        return made

    def rand_like(self, like: Any, **named: Any) -> Any:
        return self.rand(tuple(like.shape), device=named.get("device", like.device))

    def verify(self, **given: Any) -> None:
        """In place of tree_speculative_sampling_target_only: the same with draws in a cell that is chosen."""
        draws = given["uniform_samples"].clone(), given["uniform_samples_for_final_sampling"].clone()
        for draw in (*draws[0].view(-1).tolist(), *draws[1].tolist()):
            number = round(draw * (1 << 24))
            if not 0 < number <= self._count or number in self._used:
                raise DrawError("a verification uses a number that was not drawn for it, or not for it alone")
            self._used.add(number)
        rids = self._rows()
        for row, rid in enumerate(rids):
            cells = self._cells_of(row, given)
            # What comes after the last token is dropped, so that one way of it is enough.
            number = 0 if self._emitted[rid] >= self._length else self.choices.choose(cells.weights)
            draws[0][row] = torch.tensor(cells.draws[number][:-1])
            draws[1][row] = cells.draws[number][-1]
        given |= {"uniform_samples": draws[0], "uniform_samples_for_final_sampling": draws[1]}
        self._verify(**given)
        for row, rid in enumerate(rids):
            self._emitted[rid] += int(given["accept_token_num"][row]) + 1

    def _cells_of(self, row: int, given: dict[str, Any]) -> _DrawCells:
        of_row = {
            name: given[name][row : row + 1]
            for name in ("candidates", "retrive_next_token", "retrive_next_sibling", "target_probs")
        }
        key = b"".join(value.contiguous().numpy().tobytes() for value in of_row.values())
        if key not in self._cells:
            self._cells[key] = self._made_cells(of_row, given["accept_index"].shape[1], given)
        return self._cells[key]

    def _made_cells(self, of_row: dict[str, Any], width: int, given: dict[str, Any]) -> _DrawCells:
        nodes = of_row["candidates"].shape[1]
        drawn: dict[Tokens, tuple[float, ...]] = {}
        others = {name: given[name] for name in ("threshold_single", "threshold_acc") if name in given}

        def emitted(_drafted: None, coins: Any) -> list[Tokens]:
            count = len(coins)
            predicts = torch.full((count * nodes,), -1, dtype=torch.int32)
            index = torch.full((count, width), -1, dtype=torch.int32)
            lengths = torch.zeros(count, dtype=torch.int32)
            probs = of_row["target_probs"].repeat(count, 1, 1)
            coins = coins.to(torch.float32)
            self._verify(
                predicts=predicts,
                accept_index=index,
                accept_token_num=lengths,
                candidates=of_row["candidates"].repeat(count, 1),
                retrive_index=torch.arange(count * nodes, dtype=torch.int64).view(count, nodes),
                retrive_next_token=of_row["retrive_next_token"].repeat(count, 1),
                retrive_next_sibling=of_row["retrive_next_sibling"].repeat(count, 1),
                uniform_samples=coins[:, :-1].contiguous(),
                uniform_samples_for_final_sampling=coins[:, -1].contiguous(),
                target_probs=probs,
                draft_probs=torch.zeros_like(probs),
                **others,
            )
            paths = []
            for i, (row, accepted) in enumerate(zip(index.tolist(), lengths.tolist(), strict=True)):
                path = row[: accepted + 1]
                paths.append((*(at - i * nodes for at in path), int(predicts[path[-1]])))
                drawn.setdefault(paths[-1], tuple(coins[i].tolist()))
            return paths

        weights = output_distribution(emitted, [Proposal(Fraction(1), None, _thresholds(of_row))], find_thresholds=True)
        return _DrawCells(tuple(weights.values()), tuple(drawn[path] for path in weights))


def _thresholds(of_row: dict[str, Any]) -> tuple[tuple[Fraction, ...], ...]:
    """Where the draws of a verification may flip: one for each node, and the final one."""
    tokens, first, sibling = (
        of_row[name][0].tolist() for name in ("candidates", "retrive_next_token", "retrive_next_sibling")
    )
    nodes, final = [], []
    for node, row in enumerate(of_row["target_probs"][0]):
        dist, child = _exact(row), first[node]
        family: list[int] = []
        while 0 <= child < len(tokens) and len(family) < len(tokens):
            family.append(tokens[child])
            child = sibling[child]
        nodes.append(target_only_thresholds(dist, family))
        final += [*cdf(dist), *cdf(without(dist, family))]
    return (*nodes, tuple(final))


def _exact(row: Any) -> list[Fraction]:
    """The distribution [vocabulary] that float32 probabilities are meant to be."""
    return [Fraction(value).limit_denominator(SNAP) if value else Fraction(0) for value in row.tolist()]


# ---- the runs


@contextmanager
def _drawn_by(drawing: Drawing, reference: Any) -> Iterator[None]:
    names = ("multinomial", "rand", "rand_like")
    before = {name: getattr(torch, name) for name in names}
    operation = reference.tree_speculative_sampling_target_only
    os.environ["SGLANG_OPT_USE_GUMBEL_SAMPLE"] = "0"  # draws an exponential number a token; the same distribution
    for name in names:
        setattr(torch, name, getattr(drawing, name))
    reference.tree_speculative_sampling_target_only = drawing.verify
    try:
        yield
    finally:
        for name, value in before.items():
            setattr(torch, name, value)
        reference.tree_speculative_sampling_target_only = operation
        del os.environ["SGLANG_OPT_USE_GUMBEL_SAMPLE"]


def outcomes(booted: Booted, length: int) -> Iterator[tuple[Tokens, Fraction]]:
    """The tokens [0, VOCABULARY) of both requests, the sampled one's `length` first, and the weight of each run; tokens
    of other values where the worker makes such. DrawError for draws that have no exact weight; what the release raises
    passes through.
    """
    worker = booted.worker
    assert isinstance(worker, ReleaseWorker)
    drawing = Drawing(
        booted.device,
        REFERENCE.tree_speculative_sampling_target_only,
        lambda: [str(seat.request.rid) for seat in worker.running.seats],
        length,
    )
    _in_order(booted)
    with _drawn_by(drawing, REFERENCE):
        while True:
            drawing.start()
            worker.write_logits = write_logits
            _decode(booted, length)
            sent = booted.outputs()
            tokens = [token - FIRST_TOKEN for rid in (SAMPLED, GREEDY) for token in sent[rid].token_ids]
            yield tuple(tokens), drawing.choices.weight
            if not drawing.choices.advance():
                return
            booted.reset(lambda _rid, bound: bound)


def _in_order(booted: Booted) -> None:
    """Have a pass end before the next begins: orders of streams are not what is weighed."""
    draft = booted.scheduler.draft_worker
    forward = draft.forward_batch_generation

    def ended(*arguments: Any, **named: Any) -> Any:
        result = forward(*arguments, **named)
        torch.cuda.synchronize()
        return result

    draft.forward_batch_generation = ended


def _decode(booted: Booted, length: int) -> None:
    requests = [
        booted.generate(rid, prompt, length, temperature=TEMPERATURE if rid == SAMPLED else 0.0)
        for rid, prompt in PROMPTS.items()
    ]

    def script(booted: Booted, iteration: int) -> list[Any] | None:
        if iteration > ITERATIONS_MAX:
            raise DrawError(f"two requests have not ended after {ITERATIONS_MAX} iterations")
        return None if iteration and booted.idle() else ([] if iteration else requests)

    booted.run(script)


def expected(length: int) -> Distribution:
    """The distribution of the `outcomes` of a lossless worker."""
    other = greedy(length)
    return {(*tokens, *other): weight for tokens, weight in target_distribution(target, length).items()}
