"""`specsim template`: an adapter of a user's own functions, ready to run, for the operations that are named."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from specsim.commands.invocation import output_file
from specsim.commands.options import NoBudgetOption, NoSeedOption, accept_seed
from specsim.errors import UsageError, no_such
from specsim.files import STANDARD_OUTPUT, save_json, save_text

if TYPE_CHECKING:
    from specsim.contracts.contract import Op

_HEAD = '''"""Functions of your own, for `specsim check {module}:provider`.

Each takes its contract's arguments by name and returns the outputs in the order below, or names outputs as parameters
too and writes them in place. Until you put yours in its place, each is the reference.
"""

from specsim.contracts.registry import REFERENCE

'''


def template(
    operations: Annotated[list[str], typer.Argument(metavar="OPERATION...", help="Operations to provide.")],
    out: Annotated[Path, output_file("--out", help="The file to write; it must not be there.")] = Path("provider.py"),
    json_file: Annotated[Path | None, output_file("--json", help="Write what was written to this file.")] = None,
    seed: NoSeedOption = "0",
    budget_seconds: NoBudgetOption = None,
) -> None:
    """Write an adapter of functions of your own: run it as it is, then put yours in the reference's place."""
    from specsim.contracts.registry import OPS

    accept_seed(seed)
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
    functions = "\n".join(map(_function, chosen))
    return f"{_HEAD.format(module=module)}\n{functions}\n\nprovider = {{\n{provider}}}\n"


def _function(op: Op) -> str:
    from specsim.contracts.contract import Role, TensorArg

    lines = [f"    {arg.name}: {_described(arg)}" for arg in op.args]
    outs = {arg.name for arg in op.tensor_args if arg.role is Role.OUT}
    taken = [arg.name for arg in op.args if not isinstance(arg, TensorArg) or arg.name not in outs]
    passed = ", ".join(f"{name}={name}" for name in taken)
    parameters = ", ".join(taken)
    return (
        f'def {op.name}({parameters}):\n    """{op.summary[:1].upper()}{op.summary[1:]}.\n\n'
        + "\n".join(lines)
        + f'\n    """\n    return REFERENCE["{op.name}"]({passed})\n\n'
    )


def _described(arg: object) -> str:
    from specsim.contracts.contract import TensorArg

    if not isinstance(arg, TensorArg):
        return f"int: {getattr(arg, 'doc', '')}"
    shape = ", ".join(map(str, arg.shape))
    return f"{arg.role.value} [{shape}] {str(arg.dtype).removeprefix('torch.')}: {arg.doc}"
