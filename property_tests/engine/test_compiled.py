"""The compiled simulator is the simulator in Python, with the same digests, for those who built it and nobody else.

Building takes minutes, so what needs a build runs when SPECSIM_TEST_COMPILED is set, as `make test-compiled` does.
"""

from __future__ import annotations

import ast
import hashlib
import importlib.util
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import specsim
from specsim.compiled import build as building
from specsim.compiled.build import build, find_build
from specsim.compiled.finder import (
    FOLDER,
    MANIFEST,
    PACKAGE,
    Finder,
    RefusedBuildError,
    install,
    installed,
    key,
    read_build,
    uninstall,
)
from specsim.compiled.sources import IN_MACHINE_INTEGERS, modules, rewritten
from specsim.errors import UsageError
from specsim.lifting.cache import Cache

needs_build = pytest.mark.skipif(
    not os.environ.get("SPECSIM_TEST_COMPILED"), reason="compiling takes minutes: `make test-compiled` does it"
)

# What a process prints: how its simulator runs, digests of schedules of the model, of an accounting with a defect and
# of another order of steps.
PROGRAM = """
import json
from specsim.tiers.accounting.decisive_pair import _again, _first_run, _Orders
from specsim.tiers.accounting.schedules import chooser_of, run_schedule, simulate
from specsim.compiled.finder import in_use
from specsim.engine import loop
from specsim.engine.accounting import ModelAccounting
from specsim.engine.accounting_target import ModelTarget

class Forgetful(ModelAccounting):
    def release(self, request):
        if request.rid != "r2":
            super().release(request)

class ForgetfulTarget(ModelTarget):
    def make(self, memory):
        return Forgetful(memory)

digests = []
targets = [ModelTarget(), ForgetfulTarget()]
for target in targets:
    for index in range(120):
        schedule = run_schedule(target, chooser_of(3, index))
        signatures = [violation.signature for violation in schedule.run.violations]
        digests.append([schedule.run.digest, *signatures, *sorted(schedule.run.marks)])
tape = run_schedule(targets[0], chooser_of(3, 1)).tape
ran = _again(targets[0], _first_run(targets[0], tape, ""), "", _Orders(results_first=frozenset([2])))
digests.append([ran.run.digest, len(ran.engine.steps)])
found = simulate(targets[1], seed=0, schedules=20, deadline=float("inf"), on_schedule=lambda _index: None).findings
digests.append([(finding.signature, finding.schedule.tape, finding.count, str(finding.order)) for finding in found])
print(json.dumps({"in use": in_use(), "file": loop.__file__, "digests": digests}))
"""


def ran(cache: Path, switch: str, program: str = PROGRAM) -> str:
    environ = {
        **os.environ,
        "SPECSIM_CACHE_DIR": str(cache),
        "SPECSIM_COMPILED": switch,
        "PYTHONPATH": str(PACKAGE.parent),
    }
    ended = subprocess.run([sys.executable, "-c", program], env=environ, capture_output=True, text=True, check=False)
    assert ended.returncode == 0, ended.stderr
    return ended.stdout


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Cache:
    cache = Cache(tmp_path_factory.mktemp("compiled"))
    build(cache, opt_level="0")
    return cache


@needs_build
def test_digests_and_findings_are_those_of_python(built: Cache) -> None:
    compiled = json.loads(ran(built.folder, "1"))
    in_python = json.loads(ran(built.folder, "0"))
    assert compiled.pop("in use").startswith("compiled by mypyc")
    assert in_python.pop("in use") == "in Python"
    assert Path(compiled.pop("file")).suffix != ".py"
    assert Path(in_python.pop("file")).suffix == ".py"
    assert compiled == in_python


@needs_build
def test_machine_integers_wrap_as_masks_do(built: Cache) -> None:
    edges = [0, 1, 2**31, 2**32 - 1, 2**32, 2**62 - 1, 2**62, 2**63 - 1, 2**63, 2**64 - 1]
    pairs = [(a ^ b, token) for a in edges for b in edges for token in (-1, 0, 7, 2**20, 2**40)]
    program = f"""
from specsim.engine.model import extend
print([extend(fingerprint, token) for fingerprint, token in {pairs}])
"""
    assert ran(built.folder, "1", program) == ran(built.folder, "0", program)


@needs_build
def test_a_mutant_runs_in_python_and_is_found(built: Cache) -> None:
    program = """
from specsim.selfcheck.mutation import apply, find
apply(find("A01"))
from specsim.engine import loop
from specsim.selfcheck.hunt import _hunt
assert loop.__file__.endswith(".py")
from specsim.engine.rules.table import RULES
print(_hunt(0, 400, 60.0, RULES).signatures)
"""
    assert ran(built.folder, "1", program) == ran(built.folder, "0", program) != "()\n"


@needs_build
def test_a_build_is_one_folder_and_nothing_beside_it(built: Cache) -> None:
    assert find_build(built) == built.folder / FOLDER / key()
    assert [path.name for path in built.folder.iterdir()] == [FOLDER]
    assert [path.name for path in (built.folder / FOLDER).iterdir()] == [key()]


MODULE = b"a library"


def written(cache: Path, name: str, text: str = "", file: str = "engine.so") -> Path:
    folder = cache / FOLDER / name
    folder.mkdir(parents=True)
    (folder / "engine.so").write_bytes(MODULE)
    entry = {"file": file, "sha256": hashlib.sha256(MODULE).hexdigest()}
    (folder / MANIFEST).write_text(text or json.dumps({"mypyc": "0", "files": {"specsim.engine.loop": entry}}))
    return folder


def refusal(folder: Path) -> str:
    with pytest.raises(RefusedBuildError) as refused:
        read_build(folder)
    return str(refused.value)


def test_only_the_build_of_these_sources_is_used(tmp_path: Path) -> None:
    environ = {"SPECSIM_CACHE_DIR": str(tmp_path)}
    before = list(sys.meta_path)
    try:
        install(environ)
        written(tmp_path, "0" * 24)
        install(environ)
        assert installed() is None
        written(tmp_path, key())
        install({**environ, "SPECSIM_COMPILED": "0"})
        assert installed() is None
        install(environ)
        finder = installed()
        assert isinstance(finder, Finder)
        spec = finder.find_spec("specsim.engine.loop", None)
        assert spec is not None
        assert spec.origin == str(tmp_path / FOLDER / key() / "engine.so")
        assert finder.find_spec("specsim.cli", None) is None
    finally:
        uninstall()
    assert sys.meta_path == before


@pytest.mark.parametrize("text", ["{", "[]", '{"mypyc": "0"}', '{"mypyc": "0", "files": {"a": "b.so"}}', "[" * 200_000])
def test_a_manifest_that_cannot_be_read_is_no_build(tmp_path: Path, text: str) -> None:
    written(tmp_path, key(), text)
    install({"SPECSIM_CACHE_DIR": str(tmp_path)})
    assert installed() is None


@pytest.mark.parametrize("file", ["../../../evil.so", "/evil.so", "a/../../evil.so", "", 7, None])
def test_a_manifest_may_only_name_files_in_its_folder(tmp_path: Path, file: Any) -> None:
    folder = written(tmp_path, key(), file=file)
    (tmp_path.parent / "evil.so").write_bytes(MODULE)
    assert str(folder) in refusal(folder)
    install({"SPECSIM_CACHE_DIR": str(tmp_path)})
    assert installed() is None


def test_a_module_that_was_changed_or_is_a_link_is_not_imported(tmp_path: Path) -> None:
    folder = written(tmp_path, key())
    (folder / "engine.so").write_bytes(b"another library")
    assert "SHA-256" in refusal(folder)
    (folder / "engine.so").unlink()
    assert "cannot be read" in refusal(folder)
    (tmp_path / "elsewhere.so").write_bytes(MODULE)
    (folder / "engine.so").symlink_to(tmp_path / "elsewhere.so")
    assert "neither a file nor a folder" in refusal(folder)


def test_a_build_that_others_own_or_may_write_is_not_imported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = written(tmp_path, key())
    assert read_build(folder) is not None
    (folder / "engine.so").chmod(0o666)
    assert "written by everybody" in refusal(folder)
    (folder / "engine.so").chmod(0o644)
    folder.chmod(0o777)
    assert "written by everybody" in refusal(folder)
    folder.chmod(0o755)
    if os.geteuid() == 0:
        os.chown(folder / MANIFEST, 12345, -1)
    else:
        monkeypatch.setattr(os, "geteuid", lambda: 12345)
    assert "belongs to another user" in refusal(folder)


def test_how_the_simulator_runs_says_why_a_build_is_refused(tmp_path: Path) -> None:
    folder = written(tmp_path, key(), file="../engine.so")
    environment = {**os.environ, "SPECSIM_CACHE_DIR": str(tmp_path), "SPECSIM_COMPILED": "1"}
    command = [sys.executable, "-c", "from specsim.compiled.finder import in_use; print(in_use())"]
    ended = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
    assert ended.stdout.startswith(f"in Python: {folder / MANIFEST} names '../engine.so'")


def test_the_key_is_of_every_source(tmp_path: Path) -> None:
    copy = tmp_path / "specsim"
    for path in PACKAGE.glob("engine/*.py"):
        (copy / "engine").mkdir(parents=True, exist_ok=True)
        (copy / "engine" / path.name).write_bytes(path.read_bytes())
    before = key(copy)
    (copy / "engine" / "model.py").write_text((copy / "engine" / "model.py").read_text() + "\n")
    assert key(copy) != before


def test_all_that_runs_in_the_step_loop_is_compiled() -> None:
    named = set(modules(PACKAGE))
    assert {
        "specsim.engine.loop",
        "specsim.engine.rules.checker",
        "specsim.engine.memory.radix",
        "specsim.choices.chooser",
    } <= named
    assert {name.split(".")[1] for name in named} == {"choices", "engine"}
    assert (
        not {
            "specsim.tiers.accounting.schedules",
            "specsim.tiers.accounting.decisive_pair",
            "specsim.choices.hypothesis_chooser",
        }
        & named
    )


def test_what_mypyc_reads_is_what_python_reads() -> None:
    """The rewritten sources run in Python too, and only gain methods."""
    for module, path in modules(PACKAGE).items():
        source = path.read_text(encoding="utf-8")
        tree = ast.parse(rewritten(source, module))
        for old, new in zip(_functions(ast.parse(source)), _functions(tree), strict=True):
            assert ast.dump(old) == ast.dump(new), path


def _functions(tree: ast.Module) -> list[ast.FunctionDef]:
    replaced = {name for functions in IN_MACHINE_INTEGERS.values() for name in functions}
    known = [n for n in ast.walk(tree) if isinstance(n, ast.FunctionDef)]
    left_out = {"__init__", "__copy__"} | replaced
    return sorted((n for n in known if n.name not in left_out), key=lambda n: (n.name, ast.dump(n)))


@pytest.mark.parametrize(
    ("environ", "says"),
    [
        ({"CC": "no-such-compiler"}, "the C compiler 'no-such-compiler' is not there; install one"),
        ({}, "not installed"),
    ],
)
def test_what_is_missing_is_reported_in_one_sentence(
    environ: dict[str, str], says: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in environ.items():
        monkeypatch.setenv(name, value)
    if not environ:
        monkeypatch.setattr(importlib.util, "find_spec", lambda _name: None)
    with pytest.raises(UsageError, match=says):
        build(Cache(tmp_path))
    assert list(tmp_path.iterdir()) == []


def test_a_build_that_fails_or_is_interrupted_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("mypyc")
    monkeypatch.setattr(building, "modules", lambda _package: {"specsim": Path(specsim.__file__)})
    monkeypatch.setattr(building, "rewritten", lambda _source, _module: "x: int = ''\n")
    with pytest.raises(UsageError, match=r"compiling failed: .*Incompatible types"):
        build(Cache(tmp_path))
    assert list(tmp_path.iterdir()) == []

    def interrupted(*_arguments: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(building, "_run", interrupted)
    with pytest.raises(KeyboardInterrupt):
        build(Cache(tmp_path))
    assert list(tmp_path.iterdir()) == []
