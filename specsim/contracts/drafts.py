"""Small models of exact probabilities, and all that a drafter may draw from one, with the probability that it does.

Probabilities are sixteenths, so that float32 holds them exactly. Models are small: 3 to 5 tokens, and distributions
that depend on the tokens before, with zeros, with rows that leave nothing to chance, and with drafters that equal the
target.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from fractions import Fraction

from specsim.contracts.enumeration import Target, Tokens, Weights, normalised, without

Row = tuple[Fraction, ...]
ONE = Fraction(1)


def of_prefix(rows: Sequence[Sequence[int]]) -> Target:
    """A model of sixteenths: its distribution after a prefix is one of `rows`, turned by the tokens before."""
    exact = [tuple(Fraction(weight, 16) for weight in row) for row in rows]

    def dist(prefix: Tokens) -> Row:
        row = exact[(len(prefix) + sum(prefix)) % len(exact)]
        turn = sum((i + 2) * token for i, token in enumerate(prefix)) % len(row)
        return row[turn:] + row[:turn]

    return dist


SKEWED: Row = tuple(Fraction(n, 16) for n in (5, 4, 3, 2, 2))  # the toy target, the same after every prefix
EAGER: Row = tuple(Fraction(n, 16) for n in (8, 4, 2, 1, 1))  # and its drafter


def _skewed(_prefix: Tokens) -> Row:
    return SKEWED


def _eager(_prefix: Tokens) -> Row:
    return EAGER


TOY: tuple[Target, Target] = (_skewed, _eager)
MODELS: dict[str, tuple[Target, Target]] = {  # target and drafter
    "three tokens": (of_prefix([(9, 5, 2), (4, 4, 8), (1, 12, 3)]), of_prefix([(4, 8, 4), (10, 2, 4), (8, 4, 4)])),
    "zeros": (of_prefix([(9, 7, 0), (0, 16, 0), (8, 0, 8)]), of_prefix([(4, 0, 12), (5, 5, 6), (8, 8, 0)])),
    "four tokens": (of_prefix([(6, 5, 4, 1), (0, 2, 6, 8)]), of_prefix([(4, 8, 2, 2), (7, 3, 3, 3)])),
    "equal": (of_prefix([(9, 5, 2)]), of_prefix([(9, 5, 2)])),
    "certain drafts": (of_prefix([(9, 5, 2), (4, 4, 8)]), of_prefix([(16, 0, 0), (0, 0, 16)])),
}
TREES: dict[str, tuple[Tokens, Tokens]] = {  # tokens and parents, distinct among siblings; for the target-only rule
    "two by two": ((0, 0, 1, 1, 2), (-1, 0, 0, 1, 1)),
    "chain": ((0, 2, 1), (-1, 0, 1)),
    "every token": ((0, 2, 0, 1), (-1, 0, 0, 0)),
    "last child has the children": ((0, 1, 0, 2, 1), (-1, 0, 0, 2, 2)),
}
FAMILIES: dict[str, Tokens] = {  # how many children the root and the nodes after it get; for tree rejection
    "one child": (1,),
    "two children": (2,),
    "three children": (3,),
    "one, then two": (1, 2),
    "two, then one each": (2, 1, 1),
}


@dataclass(frozen=True, slots=True)
class Drafted:
    """Drafts, and the distributions of both models after each node; node 0 is the root.

    `tokens`   of each node
    `parents`  of each node, an earlier one; -1 for the root. Siblings are linked in the order of their numbers
    `target`   the target model's distribution after each node
    `drafter`  the distribution from which each node's children were drawn, trees; of each draft, chains; empty if it is
               not used
    """

    tokens: Tokens
    parents: Tokens
    target: tuple[Row, ...]
    drafter: tuple[Row, ...] = ()

    def children(self, node: int) -> list[int]:
        return [child for child, parent in enumerate(self.parents) if parent == node]

    def path(self, node: int) -> Tokens:
        """The drafted tokens on the way to a node, the root's left out."""
        return (*self.path(self.parents[node]), self.tokens[node]) if node else ()


def prefixes(tokens: Tokens, parents: Tokens) -> list[Tokens]:
    """The drafted tokens on the way to each node, the root's left out."""
    found: list[Tokens] = [()]
    for token, parent in zip(tokens[1:], parents[1:], strict=True):
        found.append((*found[parent], token))
    return found


def _drawn_siblings(dist: Weights, count: int, *, replacement: bool) -> Iterator[tuple[Tokens, Fraction]]:
    """Ordered tuples of tokens with their probabilities; without replacement fewer than `count` where the distribution
    has fewer.
    """
    if count == 0 or not any(dist):
        yield (), ONE
        return
    for token, weight in enumerate(normalised(dist)):
        if weight > 0:
            left = dist if replacement else without(dist, [token])
            for rest, probability in _drawn_siblings(left, count - 1, replacement=replacement):
                yield (token, *rest), weight * probability


def drawn_drafts(
    target: Target, drafter: Target, families: Tokens, *, replacement: bool = False
) -> Iterator[tuple[Fraction, Drafted]]:
    """Every tree that the drafter can draw, with its probability: node i, from the root on, has `families[i]` children,
    drawn one after the other with or without `replacement`. A chain has one child in each family.
    """
    trees: list[tuple[Tokens, Tokens, Fraction]] = [((0,), (-1,), ONE)]
    for node, count in enumerate(families):
        grown = []
        for tokens, parents, weight in trees:
            if node >= len(tokens):  # the distribution has fewer tokens than wanted
                grown.append((tokens, parents, weight))
                continue
            dist = drafter(prefixes(tokens, parents)[node])
            for drawn, probability in _drawn_siblings(dist, count, replacement=replacement):
                grown.append(((*tokens, *drawn), (*parents, *(node for _ in drawn)), weight * probability))
        trees = grown
    for tokens, parents, weight in trees:
        where = prefixes(tokens, parents)
        p, q = (tuple(tuple(model(at)) for at in where) for model in (target, drafter))
        yield weight, Drafted(tokens, parents, p, q)
