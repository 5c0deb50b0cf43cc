"""What the code blocks of docs/reference.md computed.

The page is the only place where the example stands: its `>>>` blocks are run as a doctest, and what they leave in their
variables is read off here. A page whose blocks do not print what it says has no example.
"""

from __future__ import annotations

import doctest
import re
from dataclasses import dataclass
from fractions import Fraction
from pathlib import Path
from typing import Any

from specsim.errors import UsageError

PAGE = Path(__file__).resolve().parents[3] / "docs" / "reference.md"


@dataclass(frozen=True, slots=True)
class Candidate:
    """A drafted token. `parent` is a flat id, -1 for the root; `node` its number in the tree, -1 if it was dropped."""

    flat_id: int
    word: str
    score: Fraction
    step: int
    parent: int
    node: int


@dataclass(frozen=True, slots=True)
class Node:
    """A node of the tree: `parent` is -1 for the root, `children` come in link order, `says` is the target's argmax.

    `law` has the words that are possible after the node, in the order of the vocabulary.
    """

    word: str
    parent: int
    depth: int
    children: tuple[int, ...]
    law: dict[str, Fraction]
    says: str
    slot: int


@dataclass(frozen=True, slots=True)
class Walk:
    """A verification: the accepted nodes, root first, and the word that follows each of them, the bonus last."""

    path: tuple[int, ...]
    emitted: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Example:
    """The worked tree. `before` and `after` say of each slot which word's KV it holds, "" for none; `moves` are pairs
    of slots, from and to, without padding; `seq_len` counts the tokens before the tree.
    """

    root: str
    num_steps: int
    candidates: tuple[Candidate, ...]
    nodes: tuple[Node, ...]
    greedy: Walk
    sampled: Walk
    coins: tuple[Fraction, ...]
    final_coin: Fraction
    before: tuple[str, ...]
    after: tuple[str, ...]
    moves: tuple[tuple[int, int], ...]
    seq_len: int


def example_of(page: Path) -> Example:
    """Run the page's code blocks. Raises UsageError without a page, and when a block does not print what it says."""
    if not page.is_file():
        raise UsageError(f"there is no {page}", "the picture can be made in a checkout, which has docs/")
    return _example_of(run_blocks(page))


def run_blocks(page: Path) -> dict[str, Any]:
    """The variables that the page's `>>>` blocks leave. Raises UsageError when one does not print what it says."""
    # Fences become blank lines, which end the expected output; line numbers stay those of the page.
    text = re.sub(r"^```.*$", "", page.read_text(encoding="utf-8"), flags=re.MULTILINE)
    variables: dict[str, Any] = {}
    test = doctest.DocTestParser().get_doctest(text, variables, page.name, str(page), 0)
    report: list[str] = []
    failed, _ = doctest.DocTestRunner(verbose=False).run(test, out=report.append, clear_globs=False)
    if failed:
        raise UsageError(f"{failed} examples of {page} do not give what it says:\n{''.join(report)}", "mend the page")
    return test.globs


def _example_of(page: dict[str, Any]) -> Example:
    words: list[str] = page["words"]
    tokens = [words[token] for token in page["candidates"][0].tolist()]
    nodes = _nodes(page, tokens)
    path = _walk(page["sampled"], words).path
    return Example(
        root=page["root"],
        num_steps=page["num_steps"],
        candidates=_candidates(page, words),
        nodes=nodes,
        greedy=_walk(page["greedy"], words),
        sampled=_walk(page["sampled"], words),
        coins=_exact(page["coins"][0]),
        final_coin=_exact(page["final_coin"])[0],
        before=tuple(_words_of_slots(page["kv_before"])),
        after=tuple(_words_of_slots(page["say"](page["kv"][:, 0]))),
        moves=tuple(zip(page["moved"].source.tolist(), page["moved"].target.tolist(), strict=True))[: len(path)],
        seq_len=int(page["seq_lens"][0]),
    )


def _candidates(page: dict[str, Any], words: list[str]) -> tuple[Candidate, ...]:
    topk, steps = page["topk"], page["steps"]
    parents = [parent for step in steps for parent in step.parents[0].tolist()]  # by flat id // topk
    kept = {flat_id: node for node, flat_id in enumerate(page["drafts"].selected_index[0].tolist(), start=1)}
    found: list[Candidate] = []
    for number, step in enumerate(steps):
        for token, score in zip(step.candidate_tokens[0].tolist(), _exact(step.candidate_scores[0]), strict=True):
            flat_id = len(found)
            found.append(
                Candidate(flat_id, words[token], score, number, parents[flat_id // topk], kept.get(flat_id, -1))
            )
    return tuple(found)


def _nodes(page: dict[str, Any], tokens: list[str]) -> tuple[Node, ...]:
    first_child, next_sibling = (
        page["tree"].retrieve_next_token[0].tolist(),
        page["tree"].retrieve_next_sibling[0].tolist(),
    )
    positions, slots = page["tree"].positions.tolist(), page["out_cache_loc"].tolist()
    words: list[str] = page["words"]
    children: list[tuple[int, ...]] = []
    for first in first_child:
        family, child = [], first
        while child != -1:
            family.append(child)
            child = next_sibling[child]
        children.append(tuple(family))
    parents = {child: parent for parent, family in enumerate(children) for child in family}
    return tuple(
        Node(
            word=word,
            parent=parents.get(number, -1),
            depth=positions[number] - positions[0],
            children=children[number],
            law={name: p for name, p in zip(words, _exact(page["target_probs"][0, number]), strict=True) if p},
            says=words[int(page["target_probs"][0, number].argmax())],
            slot=slots[number],
        )
        for number, word in enumerate(tokens)
    )


def _walk(verified: Any, words: list[str]) -> Walk:
    path = [node for node in verified.accept_index[0].tolist() if node != -1]
    return Walk(tuple(path), tuple(words[verified.predicts[node]] for node in path))


def _words_of_slots(said: str) -> list[str]:
    return ["" if word == "-" else word for word in said.split(" ")]


def _exact(values: Any) -> tuple[Fraction, ...]:
    """Dyadic numbers are exact as floats."""
    return tuple(Fraction(value) for value in values.tolist())
