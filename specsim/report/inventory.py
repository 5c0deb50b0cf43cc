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
runs them.

*Compiled* are the functions that the same files import from packages of CUDA code or build from their own;
those that run on a GPU are compared there, as operations of [the packages](packages.md).
"""


def summary(entry: Mapping[str, Any]) -> str:
    """One line of a target: how many of its kernels run in an operation."""
    kernels = entry["kernels"]
    covered = sum(bool(kernel["operations"]) for kernel in kernels)
    called = sum(bool(kernel["callers"]) for kernel in kernels)
    share = f"{100 * covered / len(kernels):.0f} %" if kernels else "none"
    line = f"{entry['target']}: {covered} of {len(kernels)} kernels run in an operation ({share}), {called} as called"
    compiled = entry["compiled"]
    with_one = sum(bool(function["operations"]) for function in compiled)
    return f"{line}; {with_one} of {len(compiled)} compiled functions have one" if compiled else line


def page(entries: Sequence[Mapping[str, Any]], command: str) -> str:
    """The page, in Markdown. `entries` are the targets of the command's JSON."""
    lines = [INTRODUCTION, f"Made by `{command}`."]
    for entry in entries:
        lines += ["", f"## {entry['target']}", "", f"{summary(entry)}.", ""]
        lines += ["| kernel | file | operation | called |", "| -- | -- | -- | -- |"]
        lines += [_row(*_cells(kernel), _called(kernel)) for kernel in entry["kernels"]]
        if entry["compiled"]:
            lines += ["", "| compiled | used in | operation |", "| -- | -- | -- |"]
            lines += [_row(*_cells(function)) for function in entry["compiled"]]
    return "\n".join(lines) + "\n"


def _row(*cells: str) -> str:
    return f"| {' | '.join(cells)} |"


def _cells(kernel: Mapping[str, Any]) -> tuple[str, str, str]:
    operations = ", ".join(f"`{name}`" for name in kernel["operations"])
    return f"`{kernel['name']}`", f"`{kernel['where']}`", operations or left_out(kernel)


def left_out(kernel: Mapping[str, Any]) -> str:
    """Why a kernel is not covered."""
    return f"not covered: {kernel['why']}" if kernel["why"] else "not covered"


def _called(kernel: Mapping[str, Any]) -> str:
    return str(len(kernel["callers"])) if kernel["callers"] else "-"
