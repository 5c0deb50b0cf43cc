"""The page of `specsim lossless`: how far the answers of each release's worker are off, target by target."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

INTRODUCTION = """\
# Lossless, worker by worker

For whoever wants to know whether speculative decoding changes what a release answers. After this
page you can read the exact distance for each release, and compute it for a checkout.

Speculative sampling is lossless when its answers have the distribution of decoding token by token.
Of rules alone that is [another page](distances.md), and of your own a test (`assert_lossless`,
[testing.md](testing.md)); here it is computed for the whole worker of a release: its own scheduler,
`TpModelWorker`, EAGLE worker, draft, tree, attention plan, KV pools, verification and sampler, as
they import and call each other.

Two requests decode four tokens each in one batch, the first greedily, the second at a temperature
of 0.5, over a target model and a draft model whose probabilities are sixteenths that depend on the
whole prefix, over five tokens. What a model reads is the KV that the worker's plan selects, so a
wrong slot, row, position or mask changes the probabilities. Every draw is enumerated: a token of the
prefill, and each cell of the uniform draws in which a verification emits something else. The weights
of the outcomes are fractions that add up to 1. Chains are of topk 1 and two steps, with 3 draft
tokens; trees of topk 2 and two steps, with 5. Batches overlap, but where a release refuses that: an
older one runs trees on its worker of spec v1.

The number is the total variation between the answers of both requests and decoding token by token:
the largest difference in the probability of any event. 0 is lossless, exactly; no sampling, no
tolerance. Compiled operations are the reference ([operations.md](operations.md)), so a kernel's own
arithmetic is not in this; the [kernels](kernels.md) are compared with the reference elsewhere.
"""
UNKNOWN = "-"


def page(rows: Sequence[Mapping[str, Any]], command: str) -> str:
    """The page, in Markdown. `rows` are those of the command's JSON."""
    kinds = list(dict.fromkeys(row["drafts"] for row in rows))
    lines = [INTRODUCTION, f"Made by `{command}`.", ""]
    lines += [f"| target |{''.join(f' {kind}: outcomes | {kind}: off |' for kind in kinds)}"]
    lines += ["| -- |" + " -- | -- |" * len(kinds)]
    notes: list[str] = []
    for target in dict.fromkeys(row["target"] for row in rows):
        cells = []
        for kind in kinds:
            row = next(row for row in rows if (row["target"], row["drafts"]) == (target, kind))
            cells += [f"{row['outcomes']:,}" if row["off"] else UNKNOWN, _off(row, notes)]
        lines.append(f"| {target} | {' | '.join(cells)} |")
    for number, note in enumerate(notes, start=1):
        lines += ["", f"{number}. {note}."]
    return "\n".join(lines) + "\n"


def _off(row: Mapping[str, Any], notes: list[str]) -> str:
    """The fraction, or why there is none, as the number of a note."""
    if row["off"]:
        return str(row["off"])
    word, why = ("fails", row["failed"]) if row["failed"] else ("not run", row["not_run"])
    if why not in notes:
        notes.append(why)
    return f"{word} ({notes.index(why) + 1})"
