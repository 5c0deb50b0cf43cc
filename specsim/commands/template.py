"""`specsim template`: an adapter of a user's own functions, ready to run, for the operations that are named."""

from __future__ import annotations

import textwrap
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from specsim.commands.invocation import output_file
from specsim.errors import UsageError, no_such
from specsim.files import STANDARD_OUTPUT, save_json, save_text

if TYPE_CHECKING:
    from specsim.contracts.contract import Op

_HEAD = '''"""Functions of your own, for `specsim check {module}:provider`.

Each takes its contract's arguments by name. It returns the outputs in the order below; or, as a launch of a Triton
kernel does, it names them as parameters, too, and writes them in place. Then they hold no values yet, but for those
that are "prefilled". Inputs are contiguous. Until you put yours in its place, each function is the reference.
"""

from specsim.contracts.registry import REFERENCE

'''


def template(
    operations: Annotated[
        list[str] | None, typer.Argument(metavar="OPERATION...", help="Operations to provide; without any, lists them.")
    ] = None,
    out: Annotated[Path, output_file("--out", help="The file to write; it must not be there.")] = Path("provider.py"),
    json_file: Annotated[Path | None, output_file("--json", help="Write what was written to this file.")] = None,
) -> None:
    """Write an adapter of functions of your own: run it as it is, then put yours in the reference's place."""
    from specsim.contracts.registry import OPS

    if not operations:
        _print_list()
        return
    for name in operations:
        if name not in OPS:
            raise no_such("operation", name, sorted(OPS))
    module = "provider" if out == STANDARD_OUTPUT else out.stem
    if out != STANDARD_OUTPUT and not (module.isidentifier() and out.suffix == ".py"):
        raise UsageError(f"--out {out} is not a module that Python imports", "name it for example provider.py")
    if out != STANDARD_OUTPUT and out.exists():
        raise UsageError(f"{out} is there already", "remove it, or name another file with --out")
    chosen = [OPS[name] for name in dict.fromkeys(operations)]
    save_text(out, source_of(module, chosen))
    typer.echo(f"{out}: {len(chosen)} of {len(OPS)} operations; try: specsim check --provider {module}:provider")
    if json_file is not None:
        save_json(json_file, {"file": str(out), "operations": [op.name for op in chosen]})


def source_of(module: str, chosen: list[Op]) -> str:
    """The adapter as text."""
    provider = "".join(f'    "{op.name}": {op.name},\n' for op in chosen)
    functions = "\n\n".join(map(_function, chosen))
    return f"{_HEAD.format(module=module)}\n{functions}\n\nprovider = {{\n{provider}}}\n"


def _function(op: Op) -> str:
    from specsim.contracts.contract import Role, documentation_of

    outs = [arg.name for arg in op.tensor_args if arg.role is Role.OUT]
    taken = [arg.name for arg in op.args if arg.name not in outs]
    body = textwrap.indent(documentation_of(op), "    ").strip()
    if outs:
        in_place = textwrap.fill(f"def {op.name}({', '.join([*taken, *outs])})", 96, subsequent_indent=" " * 8)
        body += f"\n\n    In place:\n\n{textwrap.indent(in_place, '        ')}"
    call = "".join(f"        {name}={name},\n" for name in taken)
    parameters = "".join(f"    {name},\n" for name in taken)
    return f'def {op.name}(\n{parameters}):\n    """{body}\n    """\n    return REFERENCE["{op.name}"](\n{call}    )\n'


def _print_list() -> None:
    """The operations that there are, by family."""
    from specsim.contracts.registry import OPS

    family = ""
    for op in OPS.values():
        if op.family != family:
            family = op.family
            typer.echo(f"{family}:")
        typer.echo(f"  {op.name:<40}  {op.summary[:1].lower()}{op.summary[1:]}")
