"""The CUDA operations of sglang-kernel: how each is called, and what a wheel or one file of it provides.

One file is enough: `common_ops.abi3.so`, in wheels below `sgl_kernel/sm90/` (Hopper) and `sgl_kernel/sm100/` (others),
which needs torch's libraries and nothing else of its package. It is loaded by `torch.ops.load_library`, in the process
that tests; no Python of the package runs. Without a GPU nothing of it can run.
"""

from __future__ import annotations

import hashlib
import os
import zipfile
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from specsim.contracts.contract import Sizes, Tensors
from specsim.contracts.provider import Subject
from specsim.contracts.registry import OPS
from specsim.engines.packages import located
from specsim.engines.target import Checkout
from specsim.errors import UsageError
from specsim.lifting.archive import ArchiveError, copy_member, open_archive
from specsim.lifting.checksums import note, require_noted
from specsim.lifting.nvcc import gpu_architecture
from specsim.verdict import NotRun

if TYPE_CHECKING:
    from specsim.engines.target import Release
    from specsim.lifting.cache import Cache

LIBRARY = "common_ops.abi3.so"
NEEDS_A_GPU = "it is CUDA code and needs a CUDA device"

Call = Callable[[], Tensors]
Launch = Callable[[Any, Sizes, Tensors], Call]
"""`launch(operation, sizes, tensors)` makes a call of a CUDA operation; outputs hold the contract's prefill."""


def _writes(call: Callable[[], object], tensors: Tensors) -> Call:
    def run() -> Tensors:
        call()
        return tensors

    return run


def _tree(mode: int | None, operation: Any, sizes: Sizes, t: Tensors) -> Call:
    named = ("parent_list", "selected_index", "verified_seq_len", "tree_mask", "positions")
    links = ("retrieve_index", "retrieve_next_token", "retrieve_next_sibling")
    arguments = [t[name] for name in (*named, *links)]
    mask_mode = sizes["tree_mask_mode"] if mode is None else mode
    numbers = (sizes["topk"], sizes["num_steps"], sizes["num_draft_tokens"], mask_mode)
    return _writes(lambda: operation(*arguments, *numbers), t)


_VERIFIED = ("predicts", "accept_index", "accept_token_num", "candidates", "retrieve_index", "retrieve_next_token")


def _walk(operation: Any, _sizes: Sizes, t: Tensors) -> Call:
    arguments = [t[name] for name in (*_VERIFIED, "retrieve_next_sibling", "target_predict")]
    return _writes(lambda: operation(*arguments), t)


def _sampling(operation: Any, _sizes: Sizes, t: Tensors) -> Call:
    more = ("retrieve_next_sibling", "uniform_samples", "uniform_final", "target_probs")
    arguments = [t[name] for name in (*_VERIFIED, *more)]
    rejected = torch.empty_like(t["target_probs"])  # the operation's scratch, which must arrive as zeros
    thresholds = [float(t[name]) for name in ("threshold_single", "threshold_acc")]

    def run() -> None:
        rejected.zero_()
        operation(*arguments, rejected, *thresholds, True)

    return _writes(run, t)


def _reconstruct(operation: Any, sizes: Sizes, t: Tensors) -> Call:
    named = ("tree_mask", "verified_seq_len", "positions", "retrieve_index", "retrieve_next_token")
    arguments = [t[name] for name in (*named, "retrieve_next_sibling")]
    return _writes(lambda: operation(*arguments, sizes["bs"], sizes["num_draft_tokens"]), t)


def _renorm(argument: str, operation: Any, _sizes: Sizes, t: Tensors) -> Call:
    values = t[argument] if argument == "top_p" else t[argument].to(torch.int32)
    return _writes(lambda: operation(t["probs"], t["renorm_probs"], values, 0), t)


def _mask_tokens(operation: Any, _sizes: Sizes, t: Tensors) -> Call:
    return _writes(lambda: operation(t["logits"], t["bitmask"], t["indices"]), t)


def _pack(operation: Any, sizes: Sizes, t: Tensors) -> Call:
    """A node's row is a segment: its bits begin at every `packed_bytes`-th byte, and the bytes of no bit stay 0."""
    ndt, rows = sizes["num_draft_tokens"], sizes["bs"] * sizes["num_draft_tokens"]
    begins = torch.arange(rows + 1, dtype=torch.int32, device=t["packed"].device)
    source, ends = t["tree_mask"].flatten(), begins * t["packed"].shape[-1]
    begins = begins * ndt

    def run() -> None:
        t["packed"].zero_()
        stream = torch.cuda.current_stream().cuda_stream
        operation(source, begins, ends, t["packed"].view(-1), rows, stream)

    return _writes(run, t)


OPERATIONS: Mapping[str, tuple[str, Launch]] = {
    "build_tree": ("build_tree_kernel_efficient", partial(_tree, None)),
    "build_tree_packed": ("build_tree_kernel_efficient", partial(_tree, 2)),
    "verify_tree_greedy": ("verify_tree_greedy", _walk),
    "verify_tree_target_only": ("tree_speculative_sampling_target_only", _sampling),
    "reconstruct_tree": ("reconstruct_indices_from_tree_mask", _reconstruct),
    "top_k_renorm_probs": ("top_k_renorm_probs", partial(_renorm, "top_k")),
    "top_p_renorm_probs": ("top_p_renorm_probs", partial(_renorm, "top_p")),
    "apply_token_bitmask": ("apply_token_bitmask_inplace_cuda", _mask_tokens),
    "pack_tree_mask": ("segment_packbits", _pack),
}
"""By operation of specsim's: the CUDA operation's name, and how it is called."""


def sgl_kernel_provider(target: Release | Checkout, cache: Cache, _op: str) -> SglKernelProvider:
    """The provider of sglang-kernel's CUDA operations."""
    if isinstance(target, Checkout):
        located(target, cache)  # a path that does not exist is bad input on every machine
    return SglKernelProvider(target.text, lambda: located(target, cache), cache)


class SglKernelProvider:
    """The ops tier of a library of CUDA operations. `locate()` says where it lies, and may have to fetch it."""

    def __init__(self, name: str, locate: Callable[[], Path], cache: Cache) -> None:
        self.name = name
        self._locate = locate
        self._cache = cache

    def subjects(self) -> tuple[list[Subject], list[NotRun]]:
        others = [NotRun(op, f"{self.name} has no such operation") for op in OPS if op not in OPERATIONS]
        if os.environ.get("TRITON_INTERPRET") == "1":
            return [], [*(NotRun(op, NEEDS_A_GPU) for op in OPERATIONS), *others]
        library = find_library(self._locate(), self._cache)
        why = _load(library)
        if why:
            return [], [*(NotRun(op, why) for op in OPERATIONS), *others]
        digest = hashlib.sha256(library.read_bytes()).hexdigest()[:16]
        found: list[Subject] = []
        missing: list[NotRun] = []
        for op, (name, launch) in OPERATIONS.items():
            if not hasattr(torch.ops.sgl_kernel, name):
                missing.append(NotRun(op, f"{library.name} has no operation {name}"))
                continue
            operation = getattr(torch.ops.sgl_kernel, name).default
            run = partial(_run, op, operation, launch)
            where = f"{library.parent.name}/{library.name}: {name}"
            found.append(Subject(op, "kernel", f"kernel:{op}", run, where=where, source_hash=digest))
        return found, missing + others


def _run(op: str, operation: Any, launch: Launch, sizes: Sizes, tensors: Tensors) -> Tensors:
    launch(operation, sizes, tensors)()
    return {arg.name: tensors[arg.name] for arg in OPS[op].outputs}


def _load(library: Path) -> str:
    """Load a library; why it cannot be loaded, "" when it is."""
    try:
        torch.ops.load_library(str(library))
    except Exception as error:  # a file of binaries fails in its own ways: OSError, RuntimeError
        text = str(error.__cause__ or error).strip().splitlines()
        return f"{library} cannot be loaded: {type(error).__name__}: {text[0] if text else 'no reason given'}"
    return ""


def find_library(path: Path, cache: Cache) -> Path:
    """The library of operations for this machine's GPU: `path` itself, in the folder `path`, or, unpacked into the
    cache, in the wheel `path`. Raises UsageError when there is none.
    """
    remedy = f"give a {LIBRARY}, a folder with sgl_kernel/sm90/{LIBRARY} in it, or a wheel of sglang-kernel"
    if not path.exists():
        raise UsageError(f"the path {path} does not exist", remedy)
    folders = (f"sgl_kernel/{_architecture()}/", f"{_architecture()}/", "sgl_kernel/", "")
    if path.is_dir():
        found = next((path / f / LIBRARY for f in folders if (path / f / LIBRARY).is_file()), None)
        if found is None:
            raise UsageError(f"{path} has no {folders[0]}{LIBRARY}", remedy)
        return found
    if not zipfile.is_zipfile(path):
        return path
    try:
        with open_archive(path) as wheel:
            names = set(wheel.namelist())
            entry = next((f + LIBRARY for f in folders if f + LIBRARY in names), None)
            if entry is None:
                raise UsageError(f"{path} has no {folders[0]}{LIBRARY}", remedy)
            info = wheel.getinfo(entry)
            place = f"libraries/{info.CRC:08x}-{info.file_size}/{LIBRARY}"
            unpacked = cache.path(place)
            if unpacked.is_file():
                require_noted(unpacked, unpacked)
                return unpacked
            with cache.scratch() as scratch:
                copy_member(wheel, entry, scratch / LIBRARY)
                cache.store_file(place, scratch / LIBRARY)
                note(unpacked, unpacked)
            return unpacked
    except ArchiveError as error:
        raise UsageError(f"{path} is no wheel of sglang-kernel: {error}", remedy) from error


def _architecture() -> str:
    """The folder of a wheel for this machine's first GPU."""
    return "sm90" if gpu_architecture() in ("", "sm_90") else "sm100"
