"""How an implementation of vLLM is described: where it is, what its parameters are, and what calls it.

Uniform draws and noise are the case's: `torch` is given to what is lifted with its random functions changed.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch

from specsim.contracts.contract import Sizes
from specsim.engines.vllm.model_runner import V1

Tensor = torch.Tensor


class CoinTorch:
    """`torch`, whose `rand` gives the uniform draws of the case, and whose exponential noise is the case's.

    `uniform` [num_drafts] float64 and `race` [bs, V] are set before a call. Noise goes into whatever empty tensor of
    the race's shape is drawn for it.
    """

    def __init__(self) -> None:
        self.uniform = self.race = torch.empty(0)

    def __getattr__(self, name: str) -> Any:
        return getattr(torch, name)

    def rand(self, *_size: Any, dtype: torch.dtype | None = None, **_named: Any) -> Tensor:
        return self.uniform.to(dtype or torch.float32).clone()

    def empty(self, *size: Any, **named: Any) -> Tensor:
        return self._with_noise(torch.empty(*size, **named))

    def empty_like(self, tensor: Tensor, **named: Any) -> Tensor:
        return self._with_noise(torch.empty_like(tensor, **named))

    def _with_noise(self, made: Tensor) -> Tensor:
        race = self.race
        if made.shape == race.shape and made.is_floating_point():
            made.exponential_ = lambda *_rate, generator=None: made.copy_(race)  # type: ignore[method-assign]
        return made


@dataclass(frozen=True, slots=True)
class Names:
    """An implementation of an operation.

    `names`       it has had, newest first, in the file `path`, or in files, newest first
    `signatures`  its parameters, as they were: a tuple for each form, or their beginning, ended by ...
    `launch`      `launch(value, coins, **contract arguments)` calls it, and returns the outputs unless they are named
    `variant`     distinguishes it from another implementation of the same operation, "" for the first one
    `accepts`     the sizes that it is made for
    `prepare`     makes what is called of what was lifted. DriftError where it cannot
    `runner`      the model runner that calls it
    `beside`      other names of that file: `launch` gets all of them, in order
    `since`       the first release of which that is so, "" for all; a checkout of no release is newer
    """

    op: str
    names: tuple[str, ...]
    path: str | tuple[str, ...]
    signatures: tuple[tuple[str, ...], ...]
    launch: Callable[..., Any]
    variant: str = ""
    accepts: Callable[[Sizes], bool] = lambda _sizes: True
    cost: int = 3
    prepare: Callable[[Any], Any] = lambda value: value
    runner: str = V1
    beside: tuple[str, ...] = ()
    since: str = ""

    @property
    def paths(self) -> tuple[str, ...]:
        return (self.path,) if isinstance(self.path, str) else self.path

    @property
    def subject(self) -> str:
        return f"kernel:{self.op}:{self.variant}" if self.variant else f"kernel:{self.op}"


def power_of_two(count: int) -> int:
    """The power of two that `count`, 1 or more, fits in: what a block of that many lanes is made of."""
    return 1 << (count - 1).bit_length()
