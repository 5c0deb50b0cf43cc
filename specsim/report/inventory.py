"""The page of `specsim targets --kernels`: which kernels for speculation run in an operation, target by target."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

INTRODUCTION = """\
# Which kernels are covered

For whoever asks what specsim does *not* check of an engine's operations. After this page you know
each Triton kernel for speculation that a release has, and which operation runs it.

A kernel is covered when an implementation that `check --only ops` compares with the reference launches
it. No table says so: each implementation runs on a few generated cases in the interpreter, and what it
launches is noted. *Called* counts the places in the engine whose own call of it is compared with the
documented launch. What kernels of one file call is a part of those. Kernels that speculation shares with
everything else (attention, allocation, sampling without drafts) are not listed, even where an operation
runs them; CUDA code is in [packages.md](packages.md).
"""


def summary(entry: Mapping[str, Any]) -> str:
    """One line of a target: how many of its kernels run in an operation."""
    kernels = entry["kernels"]
    covered = sum(bool(kernel["operations"]) for kernel in kernels)
    called = sum(bool(kernel["callers"]) for kernel in kernels)
    share = f"{100 * covered / len(kernels):.0f} %" if kernels else "none"
    return f"{entry['target']}: {covered} of {len(kernels)} kernels run in an operation ({share}), {called} as called"


def page(entries: Sequence[Mapping[str, Any]], command: str) -> str:
    """The page, in Markdown. `entries` are the targets of the command's JSON."""
    lines = [INTRODUCTION, f"Made by `{command}`."]
    for entry in entries:
        lines += ["", f"## {entry['target']}", "", f"{summary(entry)}.", ""]
        lines += ["| kernel | file | operation | called |", "| -- | -- | -- | -- |"]
        for kernel in entry["kernels"]:
            operations = ", ".join(f"`{name}`" for name in kernel["operations"])
            cells = (f"`{kernel['name']}`", f"`{kernel['where']}`", operations or left_out(kernel), _called(kernel))
            lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines) + "\n"


def left_out(kernel: Mapping[str, Any]) -> str:
    """Why a kernel is not covered."""
    return f"not covered: {kernel['why']}" if kernel["why"] else "not covered"


def _called(kernel: Mapping[str, Any]) -> str:
    return str(len(kernel["callers"])) if kernel["callers"] else "-"
