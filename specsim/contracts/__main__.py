"""The page of operations: `python -m specsim.contracts` prints it from the contracts."""

from __future__ import annotations

import inspect
import sys

from specsim.contracts.contract import Op, documentation_of
from specsim.contracts.registry import OPS, WITHOUT_A_KERNEL

_HEAD = """# Operations

For somebody who implements an operation, or wants to know what specsim compares: what each one
takes and returns.
`make pages` writes this page from the tables in `reference/`; a test requires that it is current.
`specsim.reference.argument_tables` explains the tables, [the reference](reference.md) the ideas.
"""


def page() -> str:
    """The page, in Markdown: the operations of each module of the reference, in the order of the registry."""
    parts = [_HEAD]
    modules: dict[str, list[Op]] = {}
    for op in OPS.values():
        modules.setdefault(op.reference.__module__, []).append(op)
    for module, ops in modules.items():
        head = (inspect.getdoc(sys.modules[module]) or "").partition("\n")[0]
        parts += [f"## {module.rpartition('.')[2]}\n", head + "\n", *(_section(op) for op in ops)]
    return "\n".join(parts)


def _section(op: Op) -> str:
    note = " specsim has no kernel of it." if op.name in WITHOUT_A_KERNEL else ""
    text = documentation_of(op)
    return f"### `{op.name}`\n\n```text\n{text}\n```\n\nCompared exactly{_within(op)}; {op.aliasing}.{note}\n"


def _within(op: Op) -> str:
    return "".join(f", but `{name}` within {value:.2g}" for name, value in op.tolerance.items())


if __name__ == "__main__":
    sys.stdout.write(page())
