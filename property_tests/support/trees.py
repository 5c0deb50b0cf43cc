"""Draft trees of one request."""

from __future__ import annotations


def parents_of(next_token: list[int], next_sibling: list[int]) -> list[int]:
    """The tree of one request from its links."""
    parents = [-1] * len(next_token)
    for node, first in enumerate(next_token):
        child = first
        while child != -1:
            parents[child] = node
            child = next_sibling[child]
    return parents
