"""Random numbers as a function of a counter: the same on every device, for one case or for a million at once.

The bulk generators draw everything of request b from its case number `ids[b]` and from the name of what is drawn, so
that a case out of a batch of thousands can be made again alone, on a CPU. The function is SplitMix64's finalizer
(Steele et al., OOPSLA 2014) over 64-bit integers that wrap; it has no state.
"""

from __future__ import annotations

import zlib

import torch
from torch import Tensor

_GOLDEN = 0x9E3779B97F4A7C15 - 2**64  # as signed 64-bit integers, which is what torch has
_MIX_1 = 0xBF58476D1CE4E5B9 - 2**64
_MIX_2 = 0x94D049BB133111EB - 2**64


def _shifted(words: Tensor, count: int) -> Tensor:
    """A logical shift to the right; torch's is arithmetic."""
    return (words >> count).bitwise_and_((1 << (64 - count)) - 1)


def _mixed(words: Tensor) -> Tensor:
    words = _shifted(words, 30).bitwise_xor_(words).mul_(_MIX_1)
    words.bitwise_xor_(_shifted(words, 27)).mul_(_MIX_2)
    return words.bitwise_xor_(_shifted(words, 31))


def _state(ids: Tensor, what: str) -> Tensor:
    return _mixed(ids * _GOLDEN + zlib.crc32(what.encode()))


def words(ids: Tensor, what: str, columns: int | None = None) -> Tensor:
    """Numbers from 0 to 2^63 - 1, [n], or [n, columns] if `columns` is given.

    ids   [n] int64: the case numbers
    what  names what is drawn; different names give independent numbers
    """
    state = _state(ids, what)
    if columns is None:
        return _mixed(state + _GOLDEN).bitwise_and_(2**63 - 1)
    column = torch.arange(1, columns + 1, dtype=torch.int64, device=ids.device) * _GOLDEN  # [columns]
    return _mixed(state[:, None] + column).bitwise_and_(2**63 - 1)


def words_by_column(ids: Tensor, what: str, columns: int) -> Tensor:
    """The numbers of `words`, with all of a column together in memory [columns, n]."""
    column = torch.arange(1, columns + 1, dtype=torch.int64, device=ids.device) * _GOLDEN  # [columns]
    return _mixed(_state(ids, what) + column[:, None]).bitwise_and_(2**63 - 1)


def below(ids: Tensor, what: str, bound: Tensor | int, columns: int | None = None) -> Tensor:
    """Numbers from 0 to `bound` - 1, of the shape of `words`; `bound`, 1 to 2^31, may be a tensor that broadcasts.

    Taking the remainder favours small numbers by less than 2^-32.
    """
    return words(ids, what, columns) % bound


def uniform(ids: Tensor, what: str, columns: int | None = None) -> Tensor:
    """Multiples of 2^-24 from 0 to 1 - 2^-24, float32, of the shape of `words`."""
    return _shifted(words(ids, what, columns), 39).to(torch.float32) * 2.0**-24
