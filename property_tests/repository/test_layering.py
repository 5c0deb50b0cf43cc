"""The shape of the code: dependencies point one way, no file is dead, no release is named in code.

Imports are read by AST, inside functions too, so a lazy import counts as a dependency. A module that is named
in a string and imported by importlib does not: that is how a layer finds a provider above it.
"""

from __future__ import annotations

import ast
import io
import os
import re
import subprocess
import sys
import tokenize
import tomllib
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from property_tests.support.source_files import ROOT, imports_of, product, sources, tree_of

if TYPE_CHECKING:
    from collections.abc import Iterator


@dataclass(frozen=True, slots=True)
class Layer:
    """What the modules of one layer may import beside the standard library, one another and `specsim`."""

    ours: frozenset[str]
    foreign: frozenset[str]


def layer(ours: str = "", foreign: str = "") -> Layer:
    return Layer(frozenset(ours.split()), frozenset(foreign.split()))


LAYERS = {  # each may use only layers that stand before it in this table
    "errors": layer(),
    "deadline": layer(),
    "interrupts": layer("deadline"),
    "isolation": layer("errors interrupts", "msgspec"),
    "files": layer("errors"),
    "verdict": layer("errors"),
    "replay_file": layer("errors files"),
    "choices": layer("errors"),
    "reference": layer(foreign="torch"),
    "grammar": layer("reference", "torch"),
    "contracts": layer("errors verdict choices reference", "torch"),
    "kernels": layer("errors reference contracts", "torch triton"),
    "interpreter": layer("errors contracts", "torch triton numpy"),
    "vdevice": layer("errors choices interpreter", "torch triton numpy"),
    "lifting": layer("errors isolation files", "packaging torch triton"),
    "world": layer("errors isolation files verdict choices contracts vdevice lifting", "msgspec numpy"),
    "rules": layer("errors verdict world"),
    "model": layer("choices reference contracts kernels interpreter world", "torch numpy"),
    "engines": layer(
        "errors isolation files verdict choices contracts interpreter lifting vdevice world",
        "packaging torch triton numpy msgspec yaml",
    ),
    "mutation": layer("errors", "msgspec"),
    "tiers": layer(
        "deadline errors interrupts isolation files verdict replay_file choices reference contracts "
        "kernels interpreter lifting world rules model engines mutation",
        "torch triton msgspec",
    ),
    "bench": layer(
        "deadline errors interrupts verdict choices reference contracts kernels interpreter lifting world "
        "rules engines tiers",
        "torch triton",
    ),
    "findings": layer(
        "errors interrupts isolation files verdict replay_file choices contracts lifting world engines tiers",
        "packaging",
    ),
    "selfcheck": layer(
        "deadline errors interrupts isolation verdict choices contracts interpreter lifting world rules model engines "
        "mutation tiers findings",
        "torch msgspec",
    ),
    "fuzz": layer(
        "deadline errors interrupts isolation files verdict replay_file choices contracts lifting engines "
        "tiers findings",
        "msgspec ray",
    ),
    "report": layer("deadline errors interrupts files verdict replay_file tiers", "jinja2 markupsafe pygments rich"),
}
# A folder in two layers: a tier puts a mutant into the reference engine, and schedules of the tier hunt the mutants.
# The reference engine as a scheduler: of the engines the only one that is ours, and may import the reference.
LOWER = {
    **{f"specsim.selfcheck.{name}": "mutation" for name in ("mutation", "catalogue")},
    "specsim.engines.reference": "model",
}
TOP = {"cli", "commands", "__main__", "pytest_plugin", "testing", "strategies"}  # may import everything
# The modules that import Hypothesis, and those for test authors, which nothing else in the product imports.
STRATEGIES = {
    "specsim.choices.hypothesis_chooser",
    "specsim.contracts.hypothesis_cases",
}
PUBLIC = {
    "specsim.world.own",
    "specsim.pytest_plugin",
    "specsim.testing",
    "specsim.strategies",
    "specsim.contracts.hypothesis_cases",
    "specsim.interpreter.sanitize",
    "specsim.contracts.losslessness",
    "specsim.contracts.statistics",
}
HEAVY = ("torch", "triton", "hypothesis", "numpy")
MAY_NAME_RELEASES = ("specsim/engines/sglang/", "fixtures/")
RELEASE = re.compile(r"(?<![\d.])0\.5\.\d+")
ENGINE = re.compile(r"sglang|sgl_kernel|vllm|flashinfer", re.IGNORECASE)
PULL_REQUEST = re.compile(r"#\d{4,5}(?![0-9A-Za-z])")


def layer_of(module: str) -> str:
    """The layer of a module: the part of its name after `specsim.`; "" for specsim itself."""
    name = module.split(".")[1] if "." in module else ""
    return next((below for part, below in LOWER.items() if f"{module}.".startswith(f"{part}.")), name)


def layered_modules() -> Iterator[tuple[str, str, Layer]]:
    for module, path in product().items():
        name = layer_of(module)
        if name and name not in TOP and name in LAYERS:
            yield module, path, LAYERS[name]


def test_every_module_belongs_to_a_layer() -> None:
    known = {"", *LAYERS, *TOP}
    assert [module for module in product() if layer_of(module) not in known] == []


def test_the_table_of_layers_points_one_way() -> None:
    order = list(LAYERS)
    for name, allowed in LAYERS.items():
        assert allowed.ours <= set(order[: order.index(name)]), name


def test_the_table_of_folders_in_the_architecture_has_the_order_of_the_layers() -> None:
    table = re.findall(r"^\| \[`(?:specsim/)?(\w+)/`\]", (ROOT / "ARCHITECTURE.md").read_text(), re.MULTILINE)
    folders = [name for name in LAYERS if (ROOT / "specsim" / name).is_dir()]
    assert table == [*folders, "commands"]


def test_dependencies_point_one_way() -> None:
    wrong = []
    for module, path, allowed in layered_modules():
        used = {layer_of(name) for name in imports_of(path, module) if name.startswith("specsim.")}
        used -= {layer_of(module), "__version__", "DISTRIBUTION"}  # of specsim itself
        wrong += [f"{path} imports specsim.{name}" for name in sorted(used - allowed.ours)]
    assert wrong == []


def modules_imported_by(module: str) -> set[str]:
    """Inside functions and for type checking too; of a package only where a name in it is no module."""
    found = {name for name in imports_of(product()[module], module) if name in product()}
    return {name for name in found if not any(other.startswith(f"{name}.") for other in found)} - {module}


def test_no_module_imports_itself_through_others() -> None:
    imported = {module: modules_imported_by(module) for module in product()}
    while leaves := [module for module, names in imported.items() if not names & imported.keys()]:
        for module in leaves:
            del imported[module]
    cyclic = {name for names in imported.values() for name in names}  # and what such a cycle imports
    assert sorted(cyclic & imported.keys()) == []


def test_each_layer_imports_only_the_packages_that_it_is_given() -> None:
    wrong = []
    for module, path, allowed in layered_modules():
        foreign = {name.split(".")[0] for name in imports_of(path, module)} - {"specsim", "__future__"}
        foreign -= set(sys.stdlib_module_names) | allowed.foreign
        if module in STRATEGIES:
            foreign -= {"hypothesis"}
        wrong += [f"{path} imports {name}" for name in sorted(foreign)]
    assert wrong == []


def test_neither_reference_nor_kernels_is_imported_under_its_bare_name() -> None:
    wrong = []
    for path in sources():
        tops = {name.split(".")[0] for name in imports_of(path, "specsim.x")}
        wrong += [f"{path} imports {name}" for name in sorted(tops & {"reference", "kernels"})]
    assert wrong == []


@pytest.mark.parametrize("name", ["reference", "kernels"])
def test_the_folders_at_the_top_are_packages_by_tracked_symlinks(name: str) -> None:
    link = ROOT / "specsim" / name
    assert link.is_symlink()
    assert os.readlink(link) == f"../{name}"
    listed = subprocess.run(
        ["git", "-C", str(ROOT), "ls-files", "--stage", f"specsim/{name}", "specsim/__init__.py"],
        check=False,
        capture_output=True,
        text=True,
    )
    if not listed.stdout:
        pytest.skip("not in a git repository, or nothing is committed yet")
    assert [line.split()[0] for line in listed.stdout.splitlines() if line.endswith(f"\t{link.relative_to(ROOT)}")] == [
        "120000"
    ]


def test_the_command_line_starts_without_heavy_imports() -> None:
    modules = [name for name in ("specsim.cli", "specsim.lifting.source") if name in product()]
    program = f"import sys, {', '.join(modules)}; print([name for name in {HEAVY!r} if name in sys.modules])"
    ended = subprocess.run(
        [sys.executable, "-c", program], cwd=ROOT, check=True, capture_output=True, text=True, timeout=60
    )
    assert ended.stdout.strip() == "[]"


def test_no_test_module_imports_another() -> None:
    tests = re.compile(r"property_tests(\.\w+)*\.(test_\w+|conftest)$")
    assert [
        f"{path} imports {name}: move what both use to property_tests/support"
        for path in sources()
        for name in sorted(imports_of(path))
        if tests.match(name)
    ] == []


def test_no_file_is_dead() -> None:
    if "specsim.cli" not in product():
        pytest.skip("there is no command line yet that could use the files")
    configuration = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    tables = [configuration.get("scripts", {}), *configuration.get("entry-points", {}).values()]
    used = {value.split(":")[0] for table in tables for value in table.values()} | PUBLIC
    for module, path in product().items():
        named = {text for text in strings_of(path) if text in product()}  # importlib's tables, python -m
        used |= {name for name in imports_of(path, module) | named if name != module}
    dead = [
        path
        for module, path in product().items()
        if module not in used and not path.endswith(("/__init__.py", "/__main__.py"))
    ]
    assert dead == []


def strings_of(path: str) -> set[str]:
    return {
        node.value for node in ast.walk(tree_of(path)) if isinstance(node, ast.Constant) and isinstance(node.value, str)
    }


def prose_lines(path: str) -> set[int]:
    """The lines on which a docstring begins, and those of `source=` and `references=`, which are citations."""
    owners = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
    lines: set[int] = set()
    for node in ast.walk(tree_of(path)):
        if isinstance(node, owners) and ast.get_docstring(node, clean=False) is not None:
            lines.add(node.body[0].lineno)
        elif isinstance(node, ast.keyword) and node.arg in ("source", "references") and node.end_lineno is not None:
            lines |= set(range(node.lineno, node.end_lineno + 1))
    return lines


def tokens_that_match(path: str, pattern: re.Pattern[str], *, prose: bool) -> list[str]:
    """FILE:LINE of each string or number, and with `prose` of each comment and docstring, that matches."""
    prose_starts = prose_lines(path)
    text = sources()[path].read_text(encoding="utf-8")
    kinds = {tokenize.STRING, tokenize.NUMBER, getattr(tokenize, "FSTRING_MIDDLE", tokenize.STRING)}
    found = []
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        is_code = token.type in kinds and not (token.type == tokenize.STRING and token.start[0] in prose_starts)
        is_prose = token.type in (tokenize.COMMENT, tokenize.STRING) and not is_code
        if (is_code or (prose and is_prose)) and pattern.search(token.string):
            found.append(f"{path}:{token.start[0]}")
    return found


def test_only_the_tables_of_releases_name_a_release() -> None:
    named = [
        place
        for path in sources()
        if not path.startswith(MAY_NAME_RELEASES)
        for place in tokens_that_match(path, RELEASE, prose=True)
    ]
    assert named == []


def test_lifting_and_what_surrounds_a_scheduler_name_no_engine() -> None:
    named = [
        place
        for path in sources()
        if path.startswith(("specsim/lifting/", "specsim/world/", "specsim/rules/", "specsim/tiers/scheduler/"))
        for place in tokens_that_match(path, ENGINE, prose=False)
    ]
    assert named == []


def test_pull_requests_are_cited_in_prose_and_never_in_code() -> None:
    named = [
        place
        for path in sources()
        if not path.startswith(MAY_NAME_RELEASES)
        for place in tokens_that_match(path, PULL_REQUEST, prose=False)
    ]
    assert named == []


def test_the_checks_of_names_would_notice(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    release, number = "0.5" + ".9", "#" + "12345"
    lines = [
        f'"""Cites {number} and {release}."""',
        f"# see {number}, {release}",
        f'A = "{number}"',
        f'B = f"sglang=={release} {{A}}"',
        f'C = Op(source="PR {number}")',
        'D = ("0.6.5.1", "#' + '333333", 10.5)',
    ]
    (tmp_path / "x.py").write_text("\n".join(lines) + "\n")
    for module in (sys.modules[__name__], sys.modules[tree_of.__module__]):
        monkeypatch.setattr(module, "sources", lambda: {"x.py": tmp_path / "x.py"})
    tree_of.cache_clear()
    assert tokens_that_match("x.py", PULL_REQUEST, prose=False) == ["x.py:3"]
    assert tokens_that_match("x.py", RELEASE, prose=False) == ["x.py:4"]
    assert tokens_that_match("x.py", RELEASE, prose=True) == ["x.py:1", "x.py:2", "x.py:4"]
    tree_of.cache_clear()


ROOMS = tuple(f"specsim/engines/{name}" for name in ("sglang/", "vllm/", "flashinfer/", "sgl_kernel", "registry.py"))


def test_an_engine_is_named_in_its_room_and_in_the_registry_alone() -> None:
    """In texts, docstrings aside, and in imports. Everything else takes what the registry has of a target's engine; the
    reference and the kernels cite where a contract comes from.
    """
    naming = set()
    for path in (path for path in product().values() if path.startswith("specsim/")):
        docstrings = {id(node.value) for node in ast.walk(tree_of(path)) if isinstance(node, ast.Expr)}
        for node in ast.walk(tree_of(path)):
            is_text = isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in docstrings
            text = str(node.value) if is_text and isinstance(node, ast.Constant) else ""
            text += f"{node.module}." if isinstance(node, ast.ImportFrom) else ""
            if re.search(r"sglang|vllm|engines\.flashinfer", text, re.IGNORECASE) and not path.startswith(ROOMS):
                naming.add(path)
    assert naming == set()


MAY_SHARE_A_NAME = {
    "Finding": "of the tool, and of the virtual device, which users import it from",
    "Matcher": "what is used of each of two libraries",
}


def test_one_name_of_a_class_is_one_thing() -> None:
    """Adapters of two engines have the same parts. The reference engine has the words of the field, as whoever reads it
    alone expects.
    """
    found: dict[str, list[str]] = {}
    for path in product().values():
        names = {node.name for node in ast.walk(tree_of(path)) if isinstance(node, ast.ClassDef)}
        for name in names if path != "reference/engine.py" else ():
            found.setdefault(name, []).append(path)
    adapters = [re.compile(rf"specsim/engines/{engine}/") for engine in ("sglang", "vllm", "flashinfer")]
    shared = {
        name
        for name, paths in found.items()
        if len(paths) > 1
        and (len(paths), *sorted(sum(map(bool, map(each.match, paths))) for each in adapters)) != (2, 0, 1, 1)
    }
    assert shared == set(MAY_SHARE_A_NAME)


ADDRESSES = "specsim/engines/sglang/where.py"


def paths_of_sglang(path: str) -> list[str]:
    """The texts of a file, docstrings aside, that have a path below the package of SGLang."""
    docstrings = {id(node.value) for node in ast.walk(tree_of(path)) if isinstance(node, ast.Expr)}
    texts = [node for node in ast.walk(tree_of(path)) if isinstance(node, ast.Constant) and id(node) not in docstrings]
    return [str(node.value) for node in texts if re.search(r"\b(srt|kernels)/\w", str(node.value))]


def test_an_address_of_sglang_is_written_once_and_in_the_table_of_addresses() -> None:
    """A function that a release has moved is one line there: see the page on adding a release."""
    room = [path for path in product().values() if path.startswith("specsim/engines/sglang/")]
    assert {path: found for path in room if path != ADDRESSES and (found := paths_of_sglang(path))} == {}
    written = paths_of_sglang(ADDRESSES)
    assert len(written) > 50
    assert [path for path in written if written.count(path) > 1] == []
