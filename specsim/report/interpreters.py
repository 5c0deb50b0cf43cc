"""The table of `bench interpreter`: a row a kernel and case, then means, and what lockstep leaves to Triton."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

from rich import box
from rich.markup import escape
from rich.table import Table

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from rich.console import Console

NAME = "interpreter"
MANY = 64
"""Programs of a grid that counts as large."""
WAYS = ("plain", "checked")
COLUMNS = (
    *("kernel", "programs", "plain: Triton's ms", "lockstep", "times faster"),
    *("checked: Triton's ms", "lockstep", "times faster"),
)


def print_interpreters(console: Console, benchmarks: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """Print the entries of `interpreter`, if there are any. Returns the entries of other benchmarks."""
    entries = [entry for entry in benchmarks if entry["name"] == NAME and "programs" in entry]
    providers = list(dict.fromkeys(entry["shape"]["provider"] for entry in entries))
    for provider in providers:
        _print_provider(console, provider, [entry for entry in entries if entry["shape"]["provider"] == provider])
    if len(providers) > 1:
        console.print(f"interpreter: {' and '.join(map(escape, providers))}")
        _print_summary(console, entries)
    return [entry for entry in benchmarks if entry not in entries]


def _print_provider(console: Console, provider: str, entries: list[dict[str, Any]]) -> None:
    table = Table(title=f"interpreter: {provider}", title_justify="left", box=box.SIMPLE_HEAD, pad_edge=False)
    for column in COLUMNS:
        table.add_column(column, overflow="fold", justify="left" if column == "kernel" else "right")
    rows: dict[tuple[str, str], dict[str, dict[str, Any]]] = {}
    for entry in entries:
        shape = entry["shape"]
        rows.setdefault((shape["kernel"], shape["case"]), {})[shape["way"]] = entry
    for (kernel, _case), by_way in rows.items():
        cells = [cell for way in WAYS for cell in _cells(by_way[way])]
        table.add_row(kernel, str(by_way[WAYS[0]]["programs"]), *cells)
    console.print(table)
    _print_summary(console, entries)


def _print_summary(console: Console, entries: Sequence[dict[str, Any]]) -> None:
    for line in summary(entries):
        console.print(f"   {escape(line)}", soft_wrap=True)


def _cells(entry: dict[str, Any]) -> list[str]:
    theirs, ours = entry["peers"]
    if ours["median"] is None:
        return ["not run", escape(ours["not_run"]), ""]
    return [f"{theirs['median']:,.2f}", f"{ours['median']:,.2f}", f"{ours['ratio']:.1f}"]


def summary(entries: Iterable[dict[str, Any]]) -> list[str]:
    """Geometric means and the least, by way; what compiling takes; which kernels Triton runs, and why."""
    entries = list(entries)
    lines = [line for way in WAYS for line in _means(way, [e for e in entries if e["shape"]["way"] == way])]
    compiling = {_kernel(e): e["compiling_ms"] for e in entries}
    lines.append(f"compiled once, a kernel: {sum(compiling.values()) / len(compiling):.1f} ms, on average")
    lacking = {_kernel(e): e["lacks"] for e in entries if e["lacks"]}
    lines.append(f"left to Triton: {len(lacking) or 'none'} of {len(compiling)} kernels")
    lines += [f"left to Triton: {kernel}, for {lacks}" for (_, kernel), lacks in lacking.items()]
    return lines


def _kernel(entry: dict[str, Any]) -> tuple[str, str]:
    return entry["shape"]["provider"], entry["shape"]["kernel"]


def _means(way: str, entries: Sequence[dict[str, Any]]) -> list[str]:
    timed = [entry for entry in entries if _ratio(entry) is not None]
    if not timed:
        return []
    least = min(timed, key=_ratio)
    groups = {
        "all cases": timed,
        "as `check` draws them": [entry for entry in timed if entry["shape"]["case"].startswith("drawn")],
        f"{MANY} programs and more": [entry for entry in timed if entry["programs"] >= MANY],
    }
    told = [f"{name} {_mean(some):.1f} ({len(some)})" for name, some in groups.items() if some]
    return [
        f"{way}, geometric means: {', '.join(told)}",
        f"{way}, least: {_ratio(least):.2f} ({least['shape']['kernel']}, {least['programs']} programs)",
    ]


def _ratio(entry: dict[str, Any]) -> Any:
    return entry["peers"][1]["ratio"]


def _mean(entries: Sequence[dict[str, Any]]) -> float:
    return math.exp(sum(math.log(_ratio(entry)) for entry in entries) / len(entries))
