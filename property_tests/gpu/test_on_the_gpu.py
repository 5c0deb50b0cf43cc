"""What only a GPU can show of the kernels: compiled, in CUDA graphs, at production's sizes, with any number of warps.

`make test-gpu` runs these, and the tests of other files that use a GPU where there is one; all of them are skipped, and
counted, where there is none. Those that need tens of gigabytes are one group, so that they run one after the other, and
come first, for they take longest.
"""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from triton.runtime.jit import JITFunction

from specsim import kernels
from specsim.choices.chooser import seeded
from specsim.contracts.contract import Case, Op, Role, Tensors, differing
from specsim.contracts.registry import OPS, WITHOUT_A_KERNEL

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs CUDA"),
]

DEVICE = "cuda"
KERNEL_OPS = [op for op in OPS.values() if op.name not in WITHOUT_A_KERNEL]
every_op = pytest.mark.parametrize("op", KERNEL_OPS, ids=[op.name for op in KERNEL_OPS])
NUM_WARPS = (1, 2, 4, 8, 16)
RUNS = 10
SHAPES = 4
REQUESTS = {"logits": 512, "sampling": 512, "verify_logits": 512}  # of a batch; 4096 of other families
BATCHES = (1, 2, 64, 512)
NODES = 64
PACKED = ("build_tree_packed", "pack_tree_mask", "unpack_tree_mask")  # of 32 nodes at most


def kernel(op: Op) -> Callable[..., None]:
    function: Callable[..., None] = getattr(kernels, op.name)
    return function


def made(op: Op, count: int, number: int = 0, first: int = 0, **sizes: int) -> Case:
    """A case of that many requests, on the GPU."""
    shape = op.cases.draw_shape(seeded(1, op.name, number))
    ids = torch.arange(first, first + count, device=DEVICE)
    return op.cases.make(ids, shape | {name: size for name, size in sizes.items() if name in shape})


def run(op: Op, case: Case) -> Tensors:
    """The kernel's outputs, written to buffers that held something else."""
    tensors = {name: tensor.clone() for name, tensor in case.tensors.items()}
    for arg in op.tensor_args:
        if arg.role is Role.OUT:
            tensors[arg.name] = torch.full(arg.resolve_shape(case.sizes), 1, dtype=arg.dtype, device=DEVICE)
    return op.call(kernel(op), case.sizes, tensors)


def assert_right(op: Op, case: Case, results: Tensors) -> None:
    """Compared on the device."""
    expected = op.expected(case)
    for name, mask in op.defined(case, expected).items():
        assert_near(results[name][mask], expected[name][mask], op.tolerance.get(name, 0.0), name)


def assert_near(actual: torch.Tensor, expected: torch.Tensor, atol: float, name: str) -> None:
    torch.testing.assert_close(actual, expected, rtol=0, atol=atol, equal_nan=True, msg=name)


ROW_OPS = [op for op in KERNEL_OPS if "vocab_size" in op.cases.draw_shape(seeded(0, "rows", 0))]
row_op = pytest.mark.parametrize("op", ROW_OPS, ids=[op.name for op in ROW_OPS])
BASE = 4  # requests of which a large batch is copies
# Inputs that number what a batch has, and what that is.
NUMBERS = {"retrieve_index": "num_nodes", "indices": "num_nodes", "cu_num_draft_tokens": "num_drafts"}
SCALED = ("bs", "num_nodes", "num_indices", "num_drafts", "num_ends")
large = pytest.mark.xdist_group("large")


@pytest.fixture
def memory() -> Iterator[None]:
    """What a large test held is given back before the next one begins."""
    yield
    gc.collect()
    torch.cuda.empty_cache()


def copied(tensor: torch.Tensor, name: str, sizes: dict[str, int], times: int) -> torch.Tensor:
    """`times` copies of what the requests of a batch have, numbers as they are in the larger batch."""
    if tensor.shape[:1] == (1,) and name.startswith("threshold"):
        return tensor
    many = tensor.repeat(times, *[1] * (tensor.dim() - 1))
    if name in NUMBERS:
        copy = torch.arange(times, device=tensor.device).repeat_interleave(tensor.shape[0]).to(tensor.dtype)
        many += (copy * sizes[NUMBERS[name]]).view(-1, *[1] * (tensor.dim() - 1))
    return many


def assert_large_is_right(op: Op, bs: int, nodes: int, vocab_size: int) -> None:
    """A batch of copies of a few requests gives copies of what these give."""
    is_chain = op.name.startswith("verify_chain")
    tree = {"topk": 1, "num_steps": nodes - 1} if is_chain else {"topk": 8, "num_steps": 6 if nodes > 8 else 2}
    count = min(bs, BASE)
    case = made(op, count, 1, num_draft_tokens=nodes, vocab_size=vocab_size, **tree)
    expected, times = op.expected(case), bs // count
    defined = op.defined(case, expected)
    sizes = case.sizes | {name: case.sizes[name] * times for name in SCALED if name in case.sizes}
    tensors = {name: copied(tensor, name, case.sizes, times) for name, tensor in case.tensors.items()}
    tensors |= op.allocate_outputs(Case(sizes, tensors), DEVICE)
    results = op.call(kernel(op), sizes, tensors)
    for name, mask in defined.items():
        parts = results[name].view(times, *expected[name].shape)
        for number, part in enumerate(parts):
            moved = number * case.sizes["num_nodes"] if name == "accept_index" else 0
            right = expected[name]
            if moved:
                right = torch.where(right >= 0, right + moved, right)
            # A sum over a vocabulary rounds by more than one over the contract's small ones does.
            assert_near(part[mask], right[mask], 10 * op.tolerance.get(name, 0.0), f"{name}, copy {number}")


@large
@row_op
@pytest.mark.parametrize(
    ("bs", "nodes", "vocab_size"), [(1, 4, 128_256), (64, 32, 128_256), (512, 4, 151_936), (16, 64, 151_936)]
)
def test_rows_of_todays_vocabularies_are_right(op: Op, bs: int, nodes: int, vocab_size: int, memory: None) -> None:
    assert_large_is_right(op, bs, nodes, vocab_size)


@large
@row_op
def test_a_batch_whose_elements_need_64_bits_is_right(op: Op, memory: None) -> None:
    """16,384 rows of 151,936: the last rows begin beyond 2^31 elements."""
    assert_large_is_right(op, 256, 64, 151_936)


@large
@pytest.mark.parametrize("num_moves", [1, 100, 3_000, 5_000, 9_000])
def test_kv_at_the_end_of_a_large_pool_moves(num_moves: int, memory: None) -> None:
    """Slots beyond 2^31 bytes, and 2^31 elements, from the start of their buffer; ranges that overlap."""
    slots, width = 1_200_000, 2048
    buffers = [torch.empty(slots, width, dtype=torch.bfloat16, device=DEVICE) for _ in range(2)]
    tail = 16_384
    for number, buffer in enumerate(buffers):
        buffer[-tail:] = ((torch.arange(tail, device=DEVICE) + number) % 251)[:, None]
    target = torch.arange(slots - tail, slots - tail + num_moves, device=DEVICE)
    source = target + 7
    expected = [buffer[source] for buffer in buffers]
    kernels.move_kv_of_buffers(kernels.kv_buffers(buffers), target, source)
    for buffer, moved in zip(buffers, expected, strict=True):
        assert torch.equal(buffer[target], moved)
    again = [buffer[target] for buffer in buffers]
    kernels.move_kv(buffers[0], source, target)
    assert torch.equal(buffers[0][source], again[0])
    assert torch.equal(buffers[1][target], again[1])


@every_op
@pytest.mark.parametrize("number", range(SHAPES))
def test_thousands_of_cases_are_right(op: Op, number: int) -> None:
    count = REQUESTS.get(op.family, 4096)
    case = made(op, count, number)
    assert_right(op, case, run(op, case))


@every_op
@pytest.mark.parametrize("bs", BATCHES)
def test_batches_of_any_size_are_right(op: Op, bs: int) -> None:
    case = made(op, bs, 1, first=1_000 + bs)
    assert_right(op, case, run(op, case))


@every_op
def test_the_largest_tree_is_right(op: Op) -> None:
    shape = op.cases.draw_shape(seeded(1, op.name, 0))
    is_chain = all(op.cases.draw_shape(seeded(2, op.name, number)).get("topk", 1) == 1 for number in range(9))
    nodes = 32 if op.name in PACKED else NODES
    tree = {"topk": 1, "num_steps": nodes - 1} if is_chain else {"topk": 8, "num_steps": 6}
    wide = {"vocab_size": 140} if "vocab_size" in shape else {}  # a node's children are different tokens
    case = op.cases.make(torch.arange(64, device=DEVICE), shape | tree | wide | {"num_draft_tokens": nodes})
    assert_right(op, case, run(op, case))


@pytest.fixture
def with_warps(monkeypatch: pytest.MonkeyPatch) -> Callable[[int], None]:
    """Every launch of a kernel of specsim with so many warps; of one whose programs wait for each other with its own at
    most, since more would not all be on the device at once.
    """
    launch = JITFunction.run

    def use(num_warps: int) -> None:
        def run_with(self: JITFunction[Any], *args: Any, **kwargs: Any) -> Any:
            most = kwargs["num_warps"] if kwargs.get("launch_cooperative_grid") else num_warps
            return launch(self, *args, **(kwargs | {"num_warps": min(num_warps, most)}))

        monkeypatch.setattr(JITFunction, "run", run_with)

    return use


@every_op
def test_any_number_of_warps_gives_the_same(op: Op, with_warps: Callable[[int], None]) -> None:
    """Where it does not, something was right by the layout of its lanes alone."""
    case = made(op, 8, 1)
    expected = op.expected(case)
    defined = op.defined(case, expected)
    first = run(op, case)
    for num_warps in NUM_WARPS:
        with_warps(num_warps)
        results = run(op, case)
        for name, mask in defined.items():
            atol = op.tolerance.get(name, 0.0)  # sums of floats are taken in another order
            assert_near(results[name][mask], first[name][mask], atol, f"{name} with {num_warps} warps")


@every_op
def test_the_same_bits_come_out_every_time(op: Op) -> None:
    case = made(op, 256, 1)
    defined = op.defined(case, op.expected(case))
    first = run(op, case)
    for _ in range(RUNS):
        results = run(op, case)
        for name, mask in defined.items():
            assert not bool(differing(results[name], first[name])[mask].any()), name


@every_op
def test_a_graph_of_a_large_batch_replays_on_other_requests(op: Op) -> None:
    """Operations whose sizes follow from the requests are captured on small batches, in another test."""
    shape = next(number for number in range(1, 20) if all(t.numel() for t in made(op, 256, number).tensors.values()))
    cases = [made(op, 256, shape, first=256 * number) for number in range(3)]
    if any(case.sizes != cases[0].sizes for case in cases):
        pytest.skip("its sizes follow from what the requests hold")
    tensors = {name: tensor.clone() for name, tensor in cases[0].tensors.items()}
    tensors |= op.allocate_outputs(cases[0], DEVICE)
    op.call(kernel(op), cases[0].sizes, dict(tensors))
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        op.call(kernel(op), cases[0].sizes, dict(tensors))
    for case in (*cases[1:], cases[0]):
        for name, tensor in case.tensors.items():
            tensors[name].copy_(tensor)
        graph.replay()
        assert_right(op, case, tensors)


@pytest.mark.parametrize("name", ["verify_logits_greedy", "verify_logits_sampled"])
def test_graphs_of_growing_batches_replay_in_any_order(name: str) -> None:
    """Programs talk through scratch: a later graph, replayed first, and one from before it grew."""
    op, graphs = OPS[name], []
    for bs in (4, 64, 512):
        case = made(op, bs, 1)
        tensors = {name: tensor.clone() for name, tensor in case.tensors.items()} | op.allocate_outputs(case, DEVICE)
        if bs != 64:  # one is captured without a warm-up
            op.call(kernel(op), case.sizes, dict(tensors))
        torch.cuda.synchronize()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            op.call(kernel(op), case.sizes, dict(tensors))
        graphs.append((graph, case, tensors))
    for graph, case, tensors in (*reversed(graphs), *graphs):
        graph.replay()
        assert_right(op, case, tensors)


@pytest.mark.parametrize("row_bytes", [512, 1152, 4096, 16384])
@pytest.mark.parametrize("num_moves", [40, 400, 4_600])
def test_the_same_slots_of_61_layers_move_in_a_graph(row_bytes: int, num_moves: int) -> None:
    generator = torch.Generator(DEVICE).manual_seed(num_moves)
    pool = torch.randint(0, 127, (61, 5_000, row_bytes), dtype=torch.int8, device=DEVICE, generator=generator)
    slots = torch.randperm(5_000, device=DEVICE, generator=generator)
    target, source = slots[:num_moves].clone(), slots.roll(1)[:num_moves].clone()
    buffers = kernels.kv_buffers(pool.unbind(0))
    kernels.move_kv_of_buffers(buffers, target, target)  # moves nothing, and compiles
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        kernels.move_kv_of_buffers(buffers, target, source)
    for _ in range(2):
        target.copy_(target.roll(1))
        expected = pool.clone()
        expected[:, target] = pool[:, source]
        graph.replay()
        assert torch.equal(pool, expected)
