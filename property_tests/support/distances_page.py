"""Run as a program: print docs/distances.md, how far every rule of verification and what ships of it is off.

python -m property_tests.support.distances_page

The newest releases that the tests read must be in the cache.
"""

from __future__ import annotations

import inspect
import json
from collections.abc import Iterator, Mapping
from fractions import Fraction
from functools import cache, partial
from pathlib import Path

import torch

from property_tests.support.known_releases import RELEASES, VLLM_NEW
from specsim import kernels
from specsim.contracts import laws
from specsim.contracts.drafts import Drafted
from specsim.contracts.enumeration import Distribution, Proposal, Tokens, output_distribution
from specsim.contracts.laws import LOSSLESS, LOSSY, MISTAKES, Law, farthest, tokens_a_step
from specsim.contracts.losslessness import NAMES, distance, off, trials
from specsim.contracts.provider import Subject
from specsim.contracts.registry import OPS
from specsim.engines.packages import open_source
from specsim.engines.sglang.provider import SglangProvider
from specsim.engines.target import Release
from specsim.engines.vllm.provider import VllmProvider
from specsim.interpreter.triton_names import interpreted
from specsim.lifting.cache import Cache, open_cache

HEAD = """\
# Lossless? The exact distance of every rule

For whoever chooses or writes a rule of verification. After this page you know which rules keep the
target model's distribution, what the others cost it, and how to try one of your own.

Every rule is weighed in fractions, with no sampling and no tolerance: all that a drafter can draw,
all that the rule then emits, each with its probability. *Off* is the total variation between three
emitted tokens and three tokens of the target: the largest difference in the probability of any
event, with the model and the drafts that show most of it. 0 is lossless on all that is tried: six
pairs of models of three to five tokens, whose probabilities are sixteenths that depend on the tokens
before, with zeros, with drafters that are certain, and with drafters that equal the target. *Tokens a
step* is what one of the pairs gives: two drafts in a row, or four in a tree of which two follow the
root and one each those. Rules of one kind of drafts compare; 1 is decoding token by token.

```python
{example}```

A rule is a generator of tokens and probabilities. The ones below are
[specsim/contracts/laws.py](../specsim/contracts/laws.py), each of {lines} lines at most.
"""
EXAMPLE = '''\
from specsim.contracts.laws import Law, drawn, farthest


def my_rule(drafted):
    """The first draft is taken, whatever it is."""
    yield from drawn(drafted.tokens[1:2], drafted.target[1], 1)


print(farthest(Law(my_rule, "chain")))
'''
SHIPPED = """\
## What ships

The same, of code: it is called with every uniform draw that makes a difference, and what it emits is
weighed by how large the cells of those draws are ([testing.md](testing.md) does so with yours). Of
{sglang} and {vllm}, as they are, and of specsim's kernels, in the interpreter. vLLM's is
given what it emits after a rejection: that is of another kernel, and is weighed here in fractions.

What draws by noise, of a random number for each token and not one for each row, has no such cells:
vLLM's second runner and DSpark of SGLang. Their tokens are counted, by tens of thousands of draws
(`chain_frequencies`, `cut_chain_frequencies` and `markov_frequencies` of [operations.md](operations.md)).

*us* is the median on an H200, in CUDA graphs, of {requests} requests with seven drafts each or trees of eight
nodes, 128,256 tokens (`bench/results/`: {times}).
What vLLM launches for a batch, of which {ragged} is a part, takes {theirs:.0f} us there, and
specsim's kernel for it {ours:.0f}. More is in [kernels.md](kernels.md).
"""
SHIPS = {  # which engines have a rule, and by which option
    "rejection": "SGLang; vLLM, `standard`",
    "rejection of certain drafts": "vLLM without `draft_probs`",
    "block verification": "SGLang, `speculative_use_block_verification`; vLLM, `block`",
    "target-only": "SGLang, sglang-kernel",
    "recursive rejection without replacement": "specsim, `verify_tree_rejection`",
    "target-only, threshold_acc 3/4": "SGLang, `speculative_accept_threshold_acc`",
    "target-only, threshold_single 1/2": "SGLang, `speculative_accept_threshold_single`",
    "rejections put off, entropy 0.3, window 1": "vLLM, `fly`",
    "acceptance at a rate of 3/4": "vLLM, `synthetic`",
}
RAGGED, WHOLE = "verify_ragged_rejection", "verify_ragged_sampled"
TIMES = ("2026-12-01-h200-rules.json", "2026-12-01-h200-verify_tree_rejection.json")  # of two times the last counts
REQUESTS = 64
RESULTS = Path(__file__).parents[2] / "bench" / "results"
COLUMNS = ("rule", "published", "ships in", "drafts", "off", "most of it", "tokens a step")

weighed = cache(farthest)


def _row(name: str, law: Law) -> tuple[str, ...]:
    found = weighed(law)
    most = f"{found.model}, {' and '.join(map(str, found.shape))}" if found.off else ""
    emitted = f"{float(tokens_a_step(law)):.3f}"
    return (name, law.source, SHIPS.get(name, ""), law.drafts, str(found.off), most, emitted)


def _table(table: Mapping[str, Law]) -> str:
    rows = [COLUMNS, ("--",) * len(COLUMNS), *(_row(name, law) for name, law in table.items())]
    return "\n".join(f"| {' | '.join(row)} |" for row in rows)


def longest() -> int:
    """Lines of the longest rule, its docstring with it."""
    rules = {getattr(law.outcomes, "func", law.outcomes) for law in laws.LAWS.values()}
    return max(len(inspect.getsource(rule).rstrip().splitlines()) for rule in rules)


def rules() -> str:
    """What the page says of the rules themselves."""
    parts = [HEAD.format(example=EXAMPLE, lines=longest())]
    parts += ["## Lossless", "", _table(LOSSLESS), ""]
    parts += ["## Lossy, and meant to be", "", _table(LOSSY), ""]
    parts += ["## Lossy by a mistake", "", _table(MISTAKES), ""]
    return "\n".join(parts)


def _ragged(subject: Subject, num_steps: int, drafted: Drafted, coins: torch.Tensor) -> list[Tokens]:
    """A rule over `num_steps` drafts whose token after i accepted ones is `vocab_size + i`, to be told from drafts."""
    bs, vocab_size = len(coins), len(drafted.target[0])
    rows = [
        torch.tensor([[float(weight) for weight in row] for row in model])
        for model in (drafted.drafter, drafted.target)
    ]
    draft_probs, target_probs = (model[:num_steps].repeat(bs, 1) for model in rows)
    op = OPS[subject.op]
    sizes = {"bs": bs, "num_steps": num_steps, "num_drafts": bs * num_steps, "num_ends": bs, "vocab_size": vocab_size}
    tensors = {
        "cu_num_draft_tokens": torch.arange(1, bs + 1, dtype=torch.int32) * num_steps,
        "draft_token_ids": torch.tensor(drafted.tokens[1:], dtype=torch.int32).repeat(bs),
        "draft_probs": draft_probs,
        "target_probs": target_probs,
        "bonus_token_ids": torch.full((bs,), vocab_size + num_steps, dtype=torch.int32),
        "recovered_token_ids": torch.arange(vocab_size, vocab_size + num_steps, dtype=torch.int32).repeat(bs),
        "uniform_probs": coins.flatten().to(torch.float64),
        "is_greedy": torch.zeros(bs, dtype=torch.bool),
    }
    (out,) = op.outputs
    tensors[out.name] = torch.full(out.resolve_shape({**sizes, "accept_width": num_steps + 1}), -1, dtype=out.dtype)
    found = subject.run({**sizes, "accept_width": num_steps + 1, "has_draft_probs": 1}, tensors)[out.name].tolist()
    return [tuple(token for token in row if token >= 0) for row in found]


def ragged_distance(subject: Subject) -> Fraction:
    """How far an implementation of RAGGED is off, where what is drawn after a rejection is of the
    residual, and the bonus token of the target.
    """
    worst = Fraction(0)
    for _where, trial in trials("verify_chain_rejection", quick=True):
        dist: Distribution = {}
        rule = partial(_ragged, subject, trial.length - 1)
        for each in trial.proposals:
            one = Proposal(Fraction(1), each.drafted, each.thresholds[:-1])
            for tokens, probability in output_distribution(rule, [one], find_thresholds=True).items():
                rest = laws.left(each.drafted, len(tokens) - 1)
                for emitted, part in laws.drawn(tokens[:-1], rest, each.weight * probability):
                    dist[emitted] = dist.get(emitted, Fraction(0)) + part
        worst = max(worst, off(dist, trial.target, trial.length))
    return worst


def _called(subject: Subject) -> str:
    """Its operation; of a caller the function that calls it."""
    caller = subject.name.partition(":")[2].partition(",")[0]
    return f"`{subject.op}` in `{caller}`" if subject.role == "caller" else f"`{subject.op}`"


def times() -> dict[tuple[str, str], float]:
    """Median microseconds of each kernel that was timed, by operation and whose it is."""
    found: dict[tuple[str, str], float] = {}
    for file in TIMES:
        of_file: dict[tuple[str, str], float] = {}
        for row in json.loads((RESULTS / file).read_text())["benchmarks"]:
            for peer in row["peers"]:
                if row["shape"].get("bs") == REQUESTS and peer["median"] is not None:
                    of_file.setdefault((row["kernel"], peer["name"].partition("==")[0]), peer["median"])
        found |= of_file
    return found


def shipped(cache: Cache) -> Iterator[tuple[str, str, Fraction, float | None]]:
    """What is called, where it stands, how far it is off, and its microseconds."""
    timed = times()
    source = open_source(Release("sglang", RELEASES[-1]), cache)
    for op in NAMES:
        for subject in SglangProvider(source, cache, op).subjects()[0]:
            if subject.op == op and subject.far is None:
                took = None if subject.role == "caller" else timed.get((op, "sglang"))
                yield f"SGLang, {_called(subject)}", f"`{subject.where}`", distance(op, subject, quick=True), took
    source = open_source(Release("vllm", VLLM_NEW), cache)
    subject = next(each for each in VllmProvider(source, cache).subjects()[0] if each.name == f"kernel:{RAGGED}")
    yield f"vLLM, {_called(subject)}", f"`{subject.where}`", ragged_distance(subject), None
    for op in NAMES:
        ours = distance(op, getattr(kernels, op), quick=True)
        yield f"specsim, `{op}`", f"`specsim.kernels.{op}`", ours, timed[op, "specsim"]


def page(cache: Cache) -> str:
    """The whole page. Triton kernels must be interpreted."""
    assert interpreted()
    names = {
        "sglang": f"SGLang {RELEASES[-1]}",
        "vllm": f"vLLM {VLLM_NEW}",
        "ragged": f"`{RAGGED}`",
        "times": ", ".join(f"`{file}`" for file in TIMES),
    }
    names["requests"] = str(REQUESTS)
    whole = {"theirs": times()[WHOLE, "vllm"], "ours": times()[WHOLE, "specsim"]}
    lines = [rules(), SHIPPED.format(**names, **whole), "| what | where | off | us |", "| -- | -- | -- | -- |"]
    for what, where, far, took in shipped(cache):
        lines.append(f"| {what} | {where} | {far} | {'' if took is None else f'{took:.0f}'} |")
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    print(page(open_cache()), end="")
