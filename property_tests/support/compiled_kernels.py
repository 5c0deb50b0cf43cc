"""Run as a program: compile kernels for sm_90 on a machine without a GPU, and say what came of it, as JSON.

    python property_tests/support/compiled_kernels.py OPERATION[@NODES] ...

The host functions are called with tensors that have a shape and no memory, in production's sizes; what they would
launch is compiled instead. For each launch: registers and bytes of spills as ptxas reports them, and the widest loads
and stores of its PTX. Not under Triton's interpreter, which replaces what is compiled.
"""

from __future__ import annotations

import json
import re
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource
from triton.runtime.jit import JITFunction

from specsim import kernels
from specsim.contracts.contract import ScalarArg
from specsim.contracts.registry import OPS
from specsim.kernels import verify_sampled

TARGET = GPUTarget("cuda", 90, 32)
NUM_SMS = 132
ASSEMBLERS = (triton.knobs.nvidia.ptxas.path, triton.knobs.nvidia.ptxas_blackwell.path)  # for older and newer PTX
HIDDEN: tuple[str, ...] = ("hidden_states", "hidden_states_buf", "compacted_hidden_states", "buffer", "verify_hiddens")
HIDDEN += ("stash_hiddens", "src_hiddens", "old_hidden_states", "req_to_hidden_states_pool")


def sizes(ndt: int = 8, topk: int = 4, num_steps: int = 5, bs: int = 64) -> dict[str, int]:
    """Every size that a contract names, as a server of a large model has them."""
    chosen = {
        "bs": bs,
        "num_draft_tokens": ndt,
        "topk": topk,
        "num_steps": num_steps,
        "step": 2,
        "page_size": 64,
        "vocab_size": 151936,
        "hidden_size": 4096,
        "row_width": 1024,
        "num_slots": 1 << 20,
        "pool_rows": 257,
        "pool_len": 131072,
        "tree_mask_mode": 0,
        "law": 0,
        "nan_policy": 0,
        "set_valid": 0,
        "front": 4,
        "pool_size": 4,
        "num_stop_tokens": 4,
        "num_indices": 64,
        "buffer_rows": 257,
        "num_free_pages": 4096,
        "num_biases": 16,
        "num_masks": 64,
        "has_draft_probs": 1,
    }
    nodes = bs * ndt
    derived = {
        "num_nodes": nodes,
        "num_selected": ndt - 1,
        "accept_width": num_steps + 1,
        "num_draft_locs": bs * topk * num_steps,
        "num_accept_entries": bs * (num_steps + 1),
        "num_moves": bs * (num_steps + 1),
        "num_rows": bs * topk,
        "num_bounds": bs * topk + 1,
        "num_kv": 1 << 22,
        "num_copies": 512,
        "num_locs": nodes,
        "num_tokens": nodes,
        "mask_numel": 1 << 24,
        "mask_bytes": nodes * (1 if ndt <= 8 else 2 if ndt <= 16 else 4),
        "packed_bytes": 1 if ndt <= 8 else 2 if ndt <= 16 else 4,
        "num_words": -(-151936 // 32),
        "num_candidates": topk * topk,
        "total": topk + (num_steps - 1) * topk**2,
        "num_targets": 256,
        "num_freed": 256,
        "parent_width": topk * (num_steps - 1) + 1,
        "parent_list_width": topk * (num_steps - 1) + 1,
        "num_kept": 128,
        "num_prefix": 4096,
        "num_old": nodes,
        "num_new": nodes + bs,
        "num_src_rows": nodes,
        "num_window": bs * (4 + ndt),
        "num_ends": bs,
        "num_drafts": bs * num_steps,
    }
    return chosen | derived


def sizes_of(op: str, ndt: int, bs: int = 64) -> dict[str, int]:
    """The sizes of a case of an operation, some of which relate them otherwise than the others do."""
    if op.startswith("verify_chain") or op == "build_chain_tree":
        return sizes(ndt=6, num_steps=5, bs=bs) | {"mask_numel": bs * 36}
    case = sizes(ndt=ndt, bs=bs) if ndt <= 8 else sizes(ndt=ndt, topk=8, num_steps=8, bs=bs)
    if op == "organize_draft_results":
        case["parent_width"] = case["topk"] * case["num_steps"] + 1
    return case


@contextmanager
def compiling() -> Iterator[list[dict[str, Any]]]:
    """Launches are compiled and recorded while active, and not made."""
    found: list[dict[str, Any]] = []
    run = JITFunction.run

    def compile_instead(self: JITFunction[Any], *args: Any, grid: Any, warmup: bool, **kwargs: Any) -> None:
        found.append(_compiled(self, args, kwargs))

    JITFunction.run = compile_instead
    try:
        yield found
    finally:
        JITFunction.run = run


def _compiled(fn: JITFunction[Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> dict[str, Any]:
    options = {name: value for name, value in kwargs.items() if name not in fn.arg_names}
    values = dict(zip(fn.arg_names, args, strict=False)) | {n: v for n, v in kwargs.items() if n in fn.arg_names}
    signature: dict[str, Any] = {}
    constants: dict[tuple[int, ...], Any] = {}
    attributes: dict[tuple[int, ...], Any] = {}
    for i, param in enumerate(fn.params):
        value = values[param.name]
        if param.is_constexpr:
            signature[param.name], constants[(i,)] = "constexpr", value
        else:
            signature[param.name] = _type_of(value, (i,), attributes)
    source = ASTSource(fn, signature, constants, attributes)
    compiled = triton.compile(source, target=TARGET, options=options)
    specialized = [
        p.name for p in fn.params if not p.is_constexpr and not p.do_not_specialize and signature[p.name] == "i32"
    ]
    return {"kernel": fn.__name__, "specialized": specialized, **_assembled(compiled.asm["ptx"])}


def _type_of(value: Any, place: tuple[int, ...], attributes: dict[tuple[int, ...], Any]) -> Any:
    """Triton's name of an argument's type, of a tuple one of names; the tensors among them are aligned."""
    if isinstance(value, torch.Tensor):
        attributes[place] = [["tt.divisibility", 16]]
        return triton.runtime.jit.mangle_type(value)
    if isinstance(value, tuple):
        names = [_type_of(item, (*place, i), attributes) for i, item in enumerate(value)]
        return type(value)(*names) if hasattr(value, "_fields") else tuple(names)
    return "i32"


def _assembled(ptx: str) -> dict[str, Any]:
    """What ptxas reports, and the widest vectors of the PTX, in bytes."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "kernel.ptx")
        path.write_text(ptx)
        arguments = ["-v", "--gpu-name=sm_90a", str(path), "-o", str(path.with_suffix(".o"))]
        for assembler in ASSEMBLERS:
            done = subprocess.run([assembler, *arguments], capture_output=True, text=True, check=False)
            if done.returncode == 0:
                break
        else:
            raise RuntimeError(f"no ptxas of this triton accepts its PTX: {done.stderr}")
    report = done.stderr
    spills = re.search(r"(\d+) bytes spill stores, (\d+) bytes spill loads", report)
    registers = re.search(r"Used (\d+) registers", report)
    return {
        "spill_bytes": sum(map(int, spills.groups())) if spills else 0,
        "registers": int(registers.group(1)) if registers else 0,
        "load_bytes": _widest(r"ld\.global(?:\.\w+)*?(?:\.v(\d))?\.b(\d+)", ptx),
        "store_bytes": _widest(r"st\.global(?:\.\w+)*?(?:\.v(\d))?\.b(\d+)", ptx),
        "barriers": len(re.findall(r"bar(?:rier)?\.sync", ptx)),
    }


def _widest(pattern: str, ptx: str) -> int:
    return max((int(count or 1) * int(bits) // 8 for count, bits in re.findall(pattern, ptx)), default=0)


def compile_moves_of_buffers(
    num_moves: int = 384, row_bytes: int = 1152, num_buffers: int = 61
) -> list[dict[str, Any]]:
    """The move of a pool of many layers, which is no operation of its own."""
    shape = (1 << 20, row_bytes // 2)
    buffers = [torch.empty(shape, dtype=torch.bfloat16, device="meta") for _ in range(num_buffers)]
    moves = torch.empty(num_moves, dtype=torch.int64, device="meta")
    with compiling() as found:
        kernels.move_kv_of_buffers(kernels.kv_buffers(buffers), moves, moves)
    return found


def arguments_of(name: str, case: dict[str, int]) -> dict[str, Any]:
    """Tensors without memory, and numbers, for a call of the operation."""
    arguments: dict[str, Any] = {}
    for arg in OPS[name].args:
        if isinstance(arg, ScalarArg):
            arguments[arg.name] = case[arg.name]
        else:
            dtype = torch.bfloat16 if arg.name in HIDDEN else arg.dtype
            arguments[arg.name] = torch.empty(arg.resolve_shape(case), dtype=dtype, device="meta")
    return arguments


def compile_operation(name: str, ndt: int = 8) -> list[dict[str, Any]]:
    if name == "move_kv_of_buffers":
        return compile_moves_of_buffers()
    verify_sampled.num_sms_of = lambda _device: NUM_SMS  # type: ignore[assignment, attr-defined] # by which programs that wait for each other are launched
    with compiling() as found:
        getattr(kernels, name)(**arguments_of(name, sizes_of(name, ndt)))
    return found


if __name__ == "__main__":
    asked = [(argument, *argument.partition("@")[::2]) for argument in sys.argv[1:]]
    print(json.dumps({key: compile_operation(name, int(ndt or 8)) for key, name, ndt in asked}))
