"""Red zones and poison: a stray access shows itself instead of being luck.

Every tensor argument is placed in the middle of a larger buffer, with a red zone of poison before and behind it. A
write outside the tensor changes a red zone; a read outside it returns poison, which is a plausible bit pattern and no
valid value. Outputs without a prefill start as poison too. Each case runs under two poisons: a result that changes
with the poison depends on undefined memory, even where one of them happens to be the right value (a boolean mask).
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

from specsim.ops.contract import Case, Op, Role, Tensors

RED_ZONE = 128  # elements on either side

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
    def around(cls, tensor: torch.Tensor, which: int, device: torch.device | str) -> GuardedTensor:
        poison = poison_value(tensor.dtype, which)
        count = tensor.numel()
        buffer = torch.full((count + 2 * RED_ZONE,), poison, dtype=tensor.dtype, device=device)
        view = buffer[RED_ZONE : RED_ZONE + count].view(tensor.shape)
        view.copy_(tensor)
        return cls(buffer, view, poison)

    def first_stray_write(self) -> int | None:
        """Element index, relative to the tensor, of the first changed element of a red zone; None if they are whole."""
        zones = torch.cat([self.buffer[:RED_ZONE], self.buffer[-RED_ZONE:]])
        if isinstance(self.poison, float) and self.poison != self.poison:
            changed = ~zones.isnan()
        else:
            changed = zones != self.poison
        if not changed.any():
            return None
        index = int(changed.nonzero()[0])
        return index - RED_ZONE if index < RED_ZONE else index - RED_ZONE + self.view.numel()


def guarded_arguments(op: Op, case: Case, which: int, device: torch.device | str) -> dict[str, GuardedTensor]:
    """Every tensor argument of the case in guarded memory; outputs hold their prefill, or poison."""
    guarded: dict[str, GuardedTensor] = {}
    for arg in op.tensor_args:
        if arg.role is Role.OUT:
            fill = poison_value(arg.dtype, which) if arg.prefill is None else arg.prefill
            tensor = torch.full(arg.resolve_shape(case.sizes), fill, dtype=arg.dtype)
        else:
            tensor = case.tensors[arg.name]
        guarded[arg.name] = GuardedTensor.around(tensor, which, device)
    return guarded


def views(guarded: dict[str, GuardedTensor]) -> Tensors:
    return {name: tensor.view for name, tensor in guarded.items()}
