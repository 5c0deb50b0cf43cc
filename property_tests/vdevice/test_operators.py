"""What PyTorch's operators give on the virtual device is what they give on a CPU, whenever they run."""

from __future__ import annotations

import copy
import warnings
from typing import Any

import pytest
import torch

from specsim.choices.chooser import replayed
from specsim.vdevice import simulate

# Of `a`, int64 [3, 4] with 0 to 11.
EXPRESSIONS = [
    "a.float().softmax(-1).argmax(-1).tolist()",
    "torch.where(a > 3, a, 0).tolist()",
    "a.t().contiguous().tolist()",
    "a.flatten().repeat_interleave(2).tolist()",
    "a.reshape(-1)[::2].tolist()",
    "torch.nonzero(a > 9).tolist()",
    "a.gather(1, torch.tensor([[0], [1], [2]], device=device)).tolist()",
    "[x.tolist() for x in a.split([1, 2])]",
    "[x.tolist() for x in torch.topk(a, 2)]",
    "a.masked_fill(a == 3, -1).tolist()",
    "a.cumsum(0).tolist()",
    "torch.searchsorted(a[0].contiguous(), torch.tensor([2], device=device)).tolist()",
    "torch.einsum('ij,kj->ik', a.float(), a.float()).tolist()",
    "a.new_zeros(2).tolist()",
    "torch.full_like(a, 3).sum().item()",
    "a.unique(return_counts=True)[1].tolist()",
    "torch.bincount(a[0]).tolist()",
    "(a.expand(2, 3, 4) + 1).sum().item()",
    "a.scatter(1, torch.zeros(3, 1, dtype=torch.int64, device=device), 9).tolist()",
    "torch.tensor([a[0, 1], a[2, 3]], device=device).tolist()",
    "a.to(torch.int32).to(device).dtype == torch.int32",
    "torch.stack([a[0], a[1]]).tolist()",
    "torch.arange(3, device=device).to('cpu').tolist()",
    "a.is_contiguous()",
    "a.T.is_contiguous()",
    "a.max(dim=1).indices.tolist()",
    "torch.equal(a, a.clone())",
    "torch.allclose(a.float(), a.float())",
    "len(a)",
    "3 in a",
    "a.sum(dtype=torch.int32).item()",
    "f'{a[0, 1]}'",
    "f'{a[0, 1].item():d}'",
    "range(10)[a[0, 2]]",
    "[1, 2, 3][a[0, 1]]",
    "[x.tolist() for x in torch.where(a > 9)]",
    "[x.tolist() for x in (a > 9).nonzero(as_tuple=True)]",
    "torch.argwhere(a > 9).tolist()",
    "a.to(torch.float16).tolist()",
    "a.float().mean(0).tolist()",
    "a.type(torch.float32).dtype",
    "torch.sum(a).item()",
    "a.tile(2).tolist()",
    "torch.zeros_like(a, dtype=torch.bool).any().item()",
    "torch.randperm(4, device=device).sort()[0].tolist()",
    "torch.linspace(0, 1, 3, device=device).tolist()",
    "torch.eye(2, device=device).tolist()",
    "torch.logical_and(a > 1, a < 5).sum().item()",
    "a.pow(2).tolist()",
    "(a // 2).tolist()",
    "(-a).tolist()",
    "(a % 3).tolist()",
    "(a[0] @ a[1]).item()",
    "a.float().matmul(a.float().T).tolist()",
    "torch.bmm(a.float()[None], a.float().T[None]).tolist()",
    "a.index_fill(0, torch.tensor([0], device=device), 4).tolist()",
    "a.take(torch.tensor([1], device=device)).tolist()",
    "a.chunk(2)[0].tolist()",
    "a.unfold(1, 2, 1).tolist()",
    "a.squeeze().shape",
    "a.unsqueeze(0).shape",
    "a.view(-1).tolist()",
    "(a + 1).unsqueeze_(1).shape",
    "(a + 1).t_().tolist()",
    "(a + 1).unsqueeze_(0).add_(1).squeeze_(0).tolist()",
    "torch.tensor([3, 4], pin_memory=device == 'cuda').to(device, non_blocking=True).unsqueeze_(1).tolist()",
    "(lambda b: (b.transpose_(0, 1), b.shape, b.sum().item()))(a.clone())[1:]",
    "a.movedim(0, 1).tolist()",
    "torch.meshgrid(a[0], a[1], indexing='ij')[0].tolist()",
    "a[1:, [0, 2]].tolist()",
    "a[[0, 1], [1, 2]].tolist()",
    "a[-1, -1].item()",
    "a[..., None].shape",
    "a[True].shape",
    "a[a[:, 0] > 3].tolist()",
    "a[:, a[0] > 1].tolist()",
    "torch.nn.functional.pad(a, (1, 0)).tolist()",
    "torch.nn.functional.one_hot(a[0], 5).tolist()",
    "a.kthvalue(1)[0].tolist()",
    "a.sort(descending=True, stable=True)[0].tolist()",
    "a.prod(1).tolist()",
    "torch.count_nonzero(a).item()",
    "a.cpu().numpy().tolist()",
    "torch.zeros(3, device=device).exponential_().shape",
    "torch.empty(0, device=device).numel()",
    "a[a.new_tensor([0, 2])].tolist()",
    "torch.isin(a, torch.tensor([1, 2], device=device)).sum().item()",
    "a.index_select(0, torch.tensor([1], device=device)).tolist()",
    "a.view(torch.int32).shape",
    "torch.as_tensor([1, 2], device=device).tolist()",
    "a.bitwise_and(1).tolist()",
    "torch.clamp(a, 2, 5).tolist()",
    "a.unbind(1)[0].tolist()",
    "a.diagonal().tolist()",
    "torch.cat((a, a), 1).shape",
    "a.roll(1).tolist()",
    "torch.triu(a).tolist()",
    "a.flip(0).tolist()",
    "torch.histc(a.float(), 3).tolist()",
    "a.any(1).tolist()",
]
POLICIES = [(0,), (1,)]


def is_copied_by_a_cpu(dtype: torch.dtype) -> bool:
    try:
        torch.zeros(3, dtype=dtype).clone()
    except NotImplementedError:
        return False
    return True


with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # of half precision in complex numbers
    DTYPES = {value for value in vars(torch).values() if isinstance(value, torch.dtype)}
    DTYPES = {dtype for dtype in DTYPES if not str(dtype).startswith(("torch.q", "torch.bits", "torch.complex32"))}
    COPIED = sorted(filter(is_copied_by_a_cpu, DTYPES), key=str)


def values_of(expression: str, device: str) -> object:
    a = torch.arange(12, device=device).view(3, 4)
    value = eval(expression, {"torch": torch, "copy": copy}, {"a": a, "device": device})
    return value.tolist() if isinstance(value, torch.Tensor) else value


@pytest.mark.parametrize("tape", POLICIES)
@pytest.mark.parametrize("expression", EXPRESSIONS)
def test_an_operator_gives_what_it_gives_on_a_cpu(expression: str, tape: tuple[int, ...]) -> None:
    expected = values_of(expression, "cpu")
    with simulate(replayed(tape)) as device:
        assert values_of(expression, "cuda") == expected
    assert device.findings == []


@pytest.mark.parametrize("tape", POLICIES)
def test_a_default_device_is_that_of_tensors_without_one(tape: tuple[int, ...]) -> None:
    with simulate(replayed(tape)):
        with torch.device("cuda"):
            made = [torch.zeros(2), torch.full((2,), 0.0), torch.tensor([0.0, 0.0]), torch.as_tensor([0.0, 0.0])]
            there = torch.zeros(2, device="cpu")
        assert [(one.device.type, one.tolist()) for one in made] == [("cuda", [0.0, 0.0])] * 4
        assert [there.device.type, torch.zeros(2).device.type] == ["cpu", "cpu"]


@pytest.mark.parametrize("tape", POLICIES)
def test_an_operator_on_lists_gives_what_its_schema_says(tape: tuple[int, ...]) -> None:
    with simulate(replayed(tape)):
        into = [torch.zeros(2, device="cuda"), torch.zeros(3, device="cuda")]
        torch._foreach_copy_(into, [torch.ones(2, device="cuda"), torch.full((3,), 2.0, device="cuda")])
        assert [one.tolist() for one in into] == [[1.0, 1.0], [2.0, 2.0, 2.0]]


@pytest.mark.parametrize("tape", POLICIES)
def test_a_size_may_be_a_tensor_of_the_device(tape: tuple[int, ...]) -> None:
    with simulate(replayed(tape)):
        count: Any = torch.tensor(3, device="cuda")
        assert torch.zeros(count, device="cuda").shape == torch.zeros((count,), device="cuda").shape == (3,)


def test_the_usual_types_are_among_them() -> None:
    assert {torch.bool, torch.int8, torch.uint64, torch.bfloat16, torch.float8_e4m3fn} <= set(COPIED)


@pytest.mark.parametrize("dtype", COPIED, ids=str)
@pytest.mark.parametrize("tape", POLICIES)
def test_every_type_that_a_cpu_copies_has_poison_and_values(dtype: torch.dtype, tape: tuple[int, ...]) -> None:
    held = bytes(torch.zeros(3, dtype=dtype).untyped_storage())
    with simulate(replayed(tape)):
        before = bytes(torch.empty(3, dtype=dtype, device="cuda").untyped_storage())
        zeros = torch.zeros(3, dtype=dtype, device="cuda")
        torch.cuda.synchronize()
        assert bytes(zeros.untyped_storage()) == held != before
