"""The table of kernels beside their peers: a row a kernel and shape, then what was not run, then who is slower."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from rich import box
from rich.markup import escape
from rich.table import Table

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from rich.console import Console

COLUMNS = ("kernel", "shape", "us", "peers: us (times specsim)", "bytes", "bound", "of it", "launches", "L2")
SHORT = {"num_draft_tokens": "nodes", "num_steps": "steps", "page_size": "page", "vocab_size": "vocab"}
UNSHIPPED = ("specsim", "PyTorch")
CEILING = "ceiling: "


def print_kernels(console: Console, benchmarks: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """Print the ceilings and the entries of `kernels`, if there are any. Returns the entries of other benchmarks."""
    entries = [entry for entry in benchmarks if "kernel" in entry]
    ceilings = [entry for entry in benchmarks if entry["name"].startswith(CEILING)]
    for entry in ceilings:
        measured, *others = entry["peers"]
        console.print(f"   {entry['name']}: {measured['median']:,.2f} {entry['unit']}", soft_wrap=True)
        for peer in others:
            console.print(f"   not run    {escape(peer['name'])}: {escape(peer['not_run'])}", soft_wrap=True)
    if entries:
        table = Table(title="kernels", title_justify="left", box=box.SIMPLE_HEAD, pad_edge=False)
        for column in COLUMNS:
            table.add_column(column, overflow="fold")
        for entry in entries:
            table.add_row(*_row(entry))
        console.print(table)
        for line in missing(entries):
            console.print(f"   not run    {escape(line)}", soft_wrap=True)
        for line in slower(entries):
            console.print(f"   slower     {escape(line)}", style="yellow", soft_wrap=True)
        console.print(f"   {escape(counts(entries))}", soft_wrap=True)
    return [entry for entry in benchmarks if entry not in entries and entry not in ceilings]


def _row(entry: dict[str, Any]) -> list[str]:
    ours, *others = entry["peers"]
    peers = [f"{peer['name']} {peer['median']:,.1f} ({peer['ratio']:.2f})" for peer in others if peer["ratio"]]
    launches = [str(peer["launches"]) for peer in entry["peers"] if peer["launches"] is not None]
    return [
        entry["kernel"],
        shape_text(entry["shape"]),
        "not run" if ours["median"] is None else f"{ours['median']:,.1f}",
        escape("\n".join(peers)),
        f"{entry['bytes']:,}",
        f"{entry['bound']}, {entry['bound_us']:,.1f} us",
        "" if entry["percent"] is None else f"{entry['percent']:.0f} %",
        " : ".join(launches),
        entry["l2"],
    ]


def shape_text(shape: dict[str, int]) -> str:
    return " ".join(f"{SHORT.get(name, name)}={size}" for name, size in shape.items())


def missing(entries: Iterable[dict[str, Any]]) -> list[str]:
    """Each kernel and peer that was not run with the reason, once for all shapes that share it."""
    reasons: dict[tuple[str, str, str], list[str]] = {}
    for entry in entries:
        for peer in entry["peers"]:
            if peer["not_run"]:
                key = (entry["kernel"], peer["name"], peer["not_run"])
                reasons.setdefault(key, []).append(shape_text(entry["shape"]))
    shapes = {entry["kernel"]: 0 for entry in entries}
    for entry in entries:
        shapes[entry["kernel"]] += 1
    return [
        f"{kernel}: {peer}: {why}"
        + ("" if len(where) == shapes[kernel] else f" ({len(where)} of {shapes[kernel]} shapes)")
        for (kernel, peer, why), where in reasons.items()
    ]


def shipped(entry: dict[str, Any]) -> list[dict[str, Any]]:
    """The peers that a release ships, and that were timed."""
    return [peer for peer in entry["peers"] if peer["name"] not in UNSHIPPED and peer["ratio"] is not None]


def slower(entries: Iterable[dict[str, Any]]) -> list[str]:
    """Where specsim is slower than a peer that ships, worst first."""
    found = [(peer["ratio"], entry, peer) for entry in entries for peer in shipped(entry) if peer["ratio"] < 1]
    return [
        f"{entry['kernel']} {shape_text(entry['shape'])}: {entry['peers'][0]['median']:,.2f} us, "
        f"{peer['name']} {peer['median']:,.2f} us ({ratio:.2f})"
        for ratio, entry, peer in sorted(found, key=lambda each: each[0])
    ]


def counts(entries: Sequence[dict[str, Any]]) -> str:
    compared = [entry for entry in entries if shipped(entry)]
    never = sum(all(peer["ratio"] >= 1 for peer in shipped(entry)) for entry in compared)
    kernels = len({entry["kernel"] for entry in entries})
    return (
        f"{kernels} kernels in {len(entries)} shapes; {len(compared)} have a peer that ships, and in {never} of them "
        "none is faster"
    )
