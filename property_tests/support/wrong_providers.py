"""Providers with a bug, as the source of a user's module."""

from __future__ import annotations

WRONG = """
    def fill_bonus_tokens(predict, accept_index, accept_lens):
        return predict[accept_index[:, -1].long()]  # the last column is padding for most requests

    provider = {"fill_bonus_tokens": fill_bonus_tokens}
"""
