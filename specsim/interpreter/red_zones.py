"""Red zones and poison: a stray access shows itself instead of being luck.

Every tensor argument is placed in the middle of a larger buffer, with a red zone of poison before and behind it. A
write outside the tensor changes a red zone; a read outside it returns poison, which is a plausible bit pattern and no
valid value. Outputs without a prefill start as poison too. Each case runs under two poisons: a result that changes
with the poison depends on undefined memory, even where one of them happens to be the right value (a boolean mask).
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch

from specsim.contracts.contract import Case, Op, Role, Tensors

RED_ZONE = 128  # elements on either side
ROW_GAP = 3
"""Elements between two rows of an argument whose strides an implementation asks for, under the second poison."""

# Token ids, slots and indices are far below these; both fit an int32.
POISONS = (1_777_777_777, 1_888_888_888)


def poison_value(dtype: torch.dtype, which: int) -> int | float | bool:
    """The poison of a dtype; `which` is 0 or 1."""
    if dtype is torch.bool:
        return bool(which)
    if dtype.is_floating_point:
        return (float("nan"), 1e30)[which]
    bits = torch.iinfo(dtype).bits
    return POISONS[which] if bits >= 32 else (0x55, 0x2A)[which]


@dataclass(frozen=True, slots=True)
class GuardedTensor:
    """A tensor with red zones: `view` is what the implementation gets."""

    buffer: torch.Tensor
    view: torch.Tensor
    poison: int | float | bool

    @classmethod
    def around(cls, tensor: torch.Tensor, which: int, device: torch.device | str, gap: int = 0) -> GuardedTensor:
        """`gap`: so many elements of poison lie between two rows of a tensor of two dimensions or more."""
        poison = poison_value(tensor.dtype, which)
        apart = [*tensor.shape[:-1], tensor.shape[-1] + gap] if tensor.dim() > 1 else list(tensor.shape)
        count = math.prod(apart)
        buffer = torch.full((count + 2 * RED_ZONE,), poison, dtype=tensor.dtype, device=device)
        view = buffer[RED_ZONE : RED_ZONE + count].view(apart)
        view = view[..., : tensor.shape[-1]] if tensor.dim() > 1 else view
        view.copy_(tensor)
        return cls(buffer, view, poison)

    def first_stray_write(self) -> int | None:
        """Element index, relative to the tensor, of the first changed element of a red zone or between rows; None if
        they are whole.
        """
        outside = torch.ones_like(self.buffer, dtype=torch.bool)
        torch.as_strided(outside, self.view.shape, self.view.stride(), RED_ZONE).fill_(False)
        is_poison = self.buffer.isnan() if self.poison != self.poison else self.buffer == self.poison
        changed = outside & ~is_poison
        return int(changed.nonzero()[0]) - RED_ZONE if changed.any() else None


def guarded_arguments(
    op: Op, case: Case, which: int, device: torch.device | str, strided: frozenset[str] = frozenset()
) -> dict[str, GuardedTensor]:
    """Every tensor argument of the case in guarded memory; outputs hold their prefill, or poison. Rows of those named
    in `strided` lie apart under the second poison.
    """
    guarded: dict[str, GuardedTensor] = {}
    for arg in op.tensor_args:
        if arg.role is Role.OUT:
            fill = poison_value(arg.dtype, which) if arg.prefill is None else arg.prefill
            tensor = torch.full(arg.resolve_shape(case.sizes), fill, dtype=arg.dtype)
        else:
            tensor = case.tensors[arg.name]
        gap = ROW_GAP if which == 1 and arg.name in strided else 0
        guarded[arg.name] = GuardedTensor.around(tensor, which, device, gap)
    return guarded


def views(guarded: dict[str, GuardedTensor]) -> Tensors:
    return {name: tensor.view for name, tensor in guarded.items()}
