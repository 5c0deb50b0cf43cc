"""The host functions of real releases, run inside the simulated engine: what is found in them, that it is gone when the
defect is edited away, and that what could not be run is said and never passes.

What is expected, and which edits are made, is data in `fixtures/`.
"""

from __future__ import annotations

import ast
import json
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from property_tests.support.known_releases import FIXTURES, NEWEST
from property_tests.support.made_up_sources import MadeUpSource, cache_in, edited
from property_tests.support.release_accounting import EXPECTED, OFTEN, Release, findings, run
from specsim.engine.accounting_target import MEMORY_PARTS, PARTS, TREE_PARTS, SeamPart
from specsim.engine.config import EngineConfig
from specsim.engine.request import Turn
from specsim.engine.workload import Scenario, Workload
from specsim.engines.sglang import accounting
from specsim.engines.sglang.accounting import FEATURES_OF_RELEASES, SglangHostTarget
from specsim.engines.sglang.guards import read_guards
from specsim.engines.sglang.host_functions import PARTS_TO_DO_WITHOUT
from specsim.engines.sglang.host_lifting import _Lifting
from specsim.lifting.cache import Cache
from specsim.lifting.lift import DriftError, Lifter, find_function, parse_module
from specsim.lifting.source import SourceTree

FLIPS = json.loads((FIXTURES / "accounting_flips.json").read_text())

Targets = Callable[[str], SglangHostTarget]


@pytest.fixture(autouse=True)
def short_rehearsal(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(accounting, "_REHEARSALS", 12)


@pytest.fixture(scope="module")
def target(release: Release, wheel_cache: Cache, pytestconfig: pytest.Config) -> Targets:
    """The target of a release, lifted once."""
    made: dict[str, SglangHostTarget] = {}

    def target_of(version: str) -> SglangHostTarget:
        if version not in OFTEN and not pytestconfig.getoption("--all-releases"):
            pytest.skip(f"sglang=={version} is tested by `make test-releases`")
        if version not in made:
            made[version] = SglangHostTarget(release(version), wheel_cache)
        return made[version]

    return target_of


@pytest.mark.parametrize("version", list(EXPECTED))
@pytest.mark.slow(runs_one_in=2)
def test_a_release_has_the_defects_that_it_is_known_for_and_no_other(version: str, target: Targets) -> None:
    assert findings(target(version)) == EXPECTED[version]["findings"]


@pytest.mark.parametrize("version", list(EXPECTED))
def test_every_part_is_the_releases_own_or_said_to_be_ours(version: str, target: Targets, release: Release) -> None:
    parts = {part.name: part for part in target(version).parts}
    assert list(parts) == [*PARTS, *TREE_PARTS, *MEMORY_PARTS]
    assert target(version).missing == []
    for kind, of_it in (("model", "ours"), ("not run", "not_run")):
        assert {name for name, part in parts.items() if part.kind == kind} == set(EXPECTED[version][of_it])
    for part in parts.values():
        if part.kind == "real":
            path, line = part.where.split(":")
            text = release(version).read(path).splitlines()[int(line) - 1].lstrip()
            inline = part.name in EXPECTED[version]["inline"]
            assert text.startswith(("extra_max_context_len =", "if ") if inline else ("def ", "class "))
            assert len(part.source_hash) == 16


# A session whose turn is answered without a step of it in flight, so that even a release that keeps too little or too
# much in sessions comes to the session's end.
QUIET_SESSION = Scenario(
    EngineConfig(pool_slots=200, rows=3, context_len=40),
    Workload((Turn("s", (3, 4, 5), 1, session="s"), Turn("r", (6, 7), 3), Turn("q", (8, 9), 3))),
)


@pytest.mark.parametrize("version", list(EXPECTED))
@pytest.mark.slow(runs_one_in=2)
def test_every_part_that_is_the_releases_own_is_called(version: str, target: Targets) -> None:
    lifted = target(version)
    before = {part.name: part.calls for part in lifted.parts}
    for index in range(100):
        run(lifted, index)
        run(lifted, index, QUIET_SESSION)
    idle = [part.name for part in lifted.parts if part.kind == "real" and part.calls == before[part.name]]
    assert idle == []


@pytest.mark.parametrize("version", list(EXPECTED))
@pytest.mark.slow
def test_a_schedule_run_twice_is_the_same_schedule(
    version: str, release: Release, target: Targets, wheel_cache: Cache
) -> None:
    other = SglangHostTarget(release(version), wheel_cache)
    for index in range(25):
        one, two = run(target(version), index), run(other, index)
        assert (one and one[1].digest) == (two and two[1].digest)
        assert one == two


def test_a_release_says_that_its_rehearsal_goes_on(release: Release, wheel_cache: Cache) -> None:
    calls = []
    SglangHostTarget(release(next(iter(EXPECTED))), wheel_cache, lambda: calls.append(1))
    assert len(calls) > 10


@pytest.mark.parametrize("version", list(EXPECTED))
def test_without_overlap_a_release_that_has_other_workers_then_is_not_checked(version: str, target: Targets) -> None:
    scenario = Scenario(EngineConfig(overlap=False), Workload((Turn("r", (3, 4), 4),)))
    assert (run(target(version), 0, scenario) is not None) == EXPECTED[version]["runs_without_overlap"]


@pytest.mark.parametrize("version", list(EXPECTED))
def test_what_a_release_runs_is_what_its_source_has(version: str, target: Targets) -> None:
    assert sorted(target(version).features - FEATURES_OF_RELEASES) == EXPECTED[version]["more_features"]


@pytest.mark.parametrize("flip", FLIPS, ids=[flip["name"] for flip in FLIPS])
@pytest.mark.slow
def test_editing_the_defect_in_or_out_flips_the_finding(
    flip: dict[str, Any], release: Release, wheel_cache: Cache
) -> None:
    source = release(flip["release"])
    for edit in flip["edits"]:
        source = edit_loop(source, edit)
    expected = (set(EXPECTED[flip["release"]]["findings"]) - set(flip["gone"])) | set(flip["new"])
    assert set(findings(SglangHostTarget(source, wheel_cache))) == expected


def edit_loop(source: SourceTree, edit: dict[str, Any]) -> MadeUpSource:
    """The source with statements of a function's loop over requests dropped, moved or put in.

    A statement is named by what it assigns to, or by `if` and its test.
    """
    module = parse_module(source, edit["path"])
    named = {statement_name(s): s for loop in loops(find_function(module, edit["function"])) for s in loop.body}
    lines: list[str] = module.text.splitlines(keepends=True)
    moved: list[str] = []
    for name in [*edit.get("move", ()), *edit.get("drop", ())]:
        span = slice(named[name].lineno - 1, named[name].end_lineno)
        if name in edit.get("move", ()):
            moved += lines[span]
        lines[span] = [""] * len(lines[span])
    if "before" in edit:
        at = named[edit["before"]]
        inserted = [f"{' ' * at.col_offset}{line}\n" for line in edit["insert"]]
        lines[at.lineno - 1] = "".join([*inserted, *moved, lines[at.lineno - 1]])
    return MadeUpSource({edit["path"]: "".join(lines)}, base=source)


def loops(function: ast.FunctionDef) -> list[ast.For]:
    return [node for node in ast.walk(function) if isinstance(node, ast.For)]


def statement_name(statement: ast.stmt) -> str:
    if isinstance(statement, ast.If):
        return f"if {ast.unparse(statement.test)}"
    if isinstance(statement, ast.AugAssign):
        return ast.unparse(statement.target)
    return ast.unparse(statement)


def replace_body(source: SourceTree, path: str, function: str, body: str) -> MadeUpSource:
    """The source with the whole body of a function replaced by one line."""
    module = parse_module(source, path)
    node = find_function(module, function)
    lines = module.text.splitlines(keepends=True)
    first, last = node.body[0], node.body[-1]
    lines[first.lineno - 1 : last.end_lineno] = [f"{' ' * first.col_offset}{body}\n"]
    return MadeUpSource({path: "".join(lines)}, base=source)


def place_of(target: SglangHostTarget, part: str, source: SourceTree) -> tuple[str, str]:
    """The file, and Class.function of a part, by the line where it begins."""
    where = next(p.where for p in target.parts if p.name == part)
    path, line = where.split(":")
    tree = ast.parse(source.read(path))
    owners: list[ast.Module | ast.ClassDef] = [tree, *(node for node in tree.body if isinstance(node, ast.ClassDef))]
    for owner in owners:
        for node in owner.body:
            if isinstance(node, ast.FunctionDef) and node.lineno == int(line):
                return path, f"{owner.name}.{node.name}" if isinstance(owner, ast.ClassDef) else node.name
    raise AssertionError(where)


REAL = [part for part in PARTS if part not in (*EXPECTED[NEWEST]["ours"], *EXPECTED[NEWEST]["inline"])]
SESSION = ("session match", "session save", "session close")


@pytest.mark.slow
def test_a_release_that_takes_the_result_of_a_request_that_has_ended_is_found(
    release: Release, target: Targets, wheel_cache: Cache
) -> None:
    source = release(NEWEST)
    path, _ = place_of(target(NEWEST), "result handling", source)
    unskipped = edited(source, path, r"\(self\.enable_overlap or [\w.]+\) and \(", "False and (")
    new = findings(SglangHostTarget(unskipped, wheel_cache), 60).keys() - EXPECTED[NEWEST]["findings"].keys()
    assert {"accounting:I31:result handling", "accounting:I32:result handling"} <= new


@pytest.mark.parametrize("version", list(EXPECTED))
def test_the_lines_of_a_function_that_ran_are_counted(version: str, target: Targets) -> None:
    lifted = target(version)
    for index in range(30):
        run(lifted, index)
    parts = {part.name: part for part in lifted.parts if part.kind == "real"}
    assert all(part.lines_run <= part.lines for part in parts.values())
    for name in ("row width", "alloc length", "prepare", "resolve", "result handling", "finish check", "release"):
        assert parts[name].lines / 3 < parts[name].lines_run


def not_run_of(target: SglangHostTarget) -> set[str]:
    return {part.name for part in target.parts if part.kind == "not run"}


@pytest.mark.parametrize("body", ["pass", "...", '"""Nothing is left."""'])
@pytest.mark.parametrize("part", ["prepare", "resolve"])
@pytest.mark.slow(runs_one_in=3)
def test_a_deleted_body_is_not_run_and_does_not_pass(
    part: str, body: str, release: Release, target: Targets, wheel_cache: Cache
) -> None:
    source = release(NEWEST)
    changed = SglangHostTarget(replace_body(source, *place_of(target(NEWEST), part, source), body), wheel_cache)
    before = not_run_of(target(NEWEST))
    (gone,) = [p for p in changed.parts if p.kind == "not run" and p.name not in before]
    assert gone.name == part
    assert "has no body" in gone.why
    assert changed.missing == [f"{part} ({gone.why})"]


@pytest.mark.parametrize("part", REAL)
@pytest.mark.slow(runs_one_in=8)
def test_a_part_that_is_gone_is_not_run_and_nothing_is_simulated_without_it(
    part: str, release: Release, target: Targets, wheel_cache: Cache
) -> None:
    source = release(NEWEST)
    path, function = place_of(target(NEWEST), part, source)
    name = function.split(".")[-1]
    renamed = source.read(path).replace(f"def {name}(", "def gone(")
    changed = SglangHostTarget(MadeUpSource({path: renamed}, base=source), wheel_cache)
    before = not_run_of(target(NEWEST))
    not_run = {p.name: p.why for p in changed.parts if p.kind == "not run" and p.name not in before}
    assert "not found" in not_run[part]
    if part in SESSION:
        assert set(not_run) == set(SESSION)
        assert changed.missing == []
        assert run(changed, 0, QUIET_SESSION) is None
    elif part in PARTS_TO_DO_WITHOUT:  # the engine calls what it would have called, the device reads the rows itself
        assert set(not_run) == {part}
        assert changed.missing == []
        assert findings(changed, 30) == findings(target(NEWEST), 30)
    else:
        assert len(changed.missing) == 1


def test_a_part_with_other_parameters_is_not_run(release: Release, target: Targets, wheel_cache: Cache) -> None:
    source = release(NEWEST)
    path, function = place_of(target(NEWEST), "prepare", source)
    text = source.read(path).replace(
        f"def {function.split('.')[1]}(self: EagleDraftInput, ", "def prepare_for_decode(self, more, "
    )
    changed = SglangHostTarget(MadeUpSource({path: text}, base=source), wheel_cache)
    assert [why for why in changed.missing if "signature changed" in why and "more" in why]


def test_what_our_objects_do_not_have_is_not_run_and_no_finding(
    release: Release, target: Targets, wheel_cache: Cache
) -> None:
    source = release(NEWEST)
    path, function = place_of(target(NEWEST), "finish check", source)
    made = replace_body(source, path, function, "self.a_field_of_a_later_release.touch()")
    elsewhere = "srt/managers/elsewhere.py"
    declared = MadeUpSource({elsewhere: "def enter(req):\n    req.a_field_of_a_later_release = Field()\n"}, base=made)
    (why,) = SglangHostTarget(declared, wheel_cache).missing
    assert why.startswith("finish check (StubError: our Req has no a_field_of_a_later_release at srt/managers/")


def test_an_attribute_that_nothing_in_the_release_defines_is_a_finding(
    release: Release, target: Targets, wheel_cache: Cache
) -> None:
    source = release(NEWEST)
    path, function = place_of(target(NEWEST), "finish check", source)
    changed = SglangHostTarget(replace_body(source, path, function, "self.a_mistyped_field.touch()"), wheel_cache)
    assert changed.missing == []
    assert {v for v in findings(changed, 20) if ":X1:" in v} == {"accounting:X1:finish check"}


@pytest.mark.parametrize("part", REAL)
@pytest.mark.slow(runs_one_in=8)
def test_a_host_function_that_raises_is_a_finding_with_its_part_and_line(
    part: str, release: Release, target: Targets, wheel_cache: Cache
) -> None:
    source = release(NEWEST)
    path, function = place_of(target(NEWEST), part, source)
    changed = SglangHostTarget(replace_body(source, path, function, "raise ValueError('made up')"), wheel_cache)
    violations = [
        v for index in range(120) for checked in [run(changed, index)] if checked for v in checked[1].violations
    ]
    raised = {(v.signature, v.actual) for v in violations if v.rule.id == "X1"}
    line = find_function(parse_module(source, path), function).body[0].lineno
    assert raised == {(f"accounting:X1:{part}", f"ValueError: made up at {path}:{line}")}


@pytest.mark.parametrize("version", list(EXPECTED))
def test_sessions_behind_a_guard_are_reported_as_guarded(version: str, target: Targets) -> None:
    assert target(version).reach(EngineConfig(), "session save") == EXPECTED[version]["sessions"]


def opener(condition: str, then: str = "raise ValueError('no')") -> MadeUpSource:
    text = f"""
    class Mixin:
        async def open_session(self, obj):
            if obj.streaming:
                if {condition}:
                    {then}
    """
    return MadeUpSource({"srt/managers/tokenizer_control_mixin.py": text})


BOTH = "self.server_args.speculative_algorithm is not None and not self.server_args.disable_overlap_schedule"


@pytest.mark.parametrize(
    ("source", "reach"),
    [
        (opener(BOTH), "guarded:srt/managers/tokenizer_control_mixin.py:5"),
        (opener(BOTH, "pass"), "option"),
        (opener(f"{BOTH} and self.server_args.page_size > 1"), "option"),
        (opener("not self.server_args.enable_streaming_session"), "option"),
    ],
)
def test_a_guard_of_sessions_is_read_from_the_source(source: MadeUpSource, reach: str) -> None:
    assert read_guards(source).reach_of_sessions({"topk": 1}) == reach


HOST_SOURCE = {
    "srt/host.py": '''
        """Made up."""
        from dataclasses import dataclass

        import flashinfer
        import torch
        from sglang.srt.lengths import *
        from sglang.srt.registry import register

        STEP = 3


        def grow(x):
            return x + STEP


        @dataclass
        class Slot(flashinfer.Base):
            kept: NoSuchType = STEP

            def doubled(self):
                return double(self.kept)


        class Row:
            @property
            def width(self):
                return self._width

            @width.setter
            def width(self, value):
                self._width = value

            @staticmethod
            def count() -> NoSuchType:
                return 1

            @register("x")
            def step(self, x: NoSuchType):
                from sglang.srt.lengths import double

                return double(grow(x))

            def grow(self, x):
                return grow(x)

            def device(self):
                return flashinfer.device()

            def shared(self):
                from sglang.srt.elsewhere import STEP

                return STEP

            def emptied(self):
                """Does a lot."""
                ...
    ''',
    "srt/lengths.py": """
        def double(x):
            return 2 * x
    """,
    "srt/registry.py": """
        raise RuntimeError("the release is executed")
    """,
}


@pytest.fixture
def lifter(tmp_path: Path) -> Lifter:
    return Lifter(MadeUpSource(HOST_SOURCE), cache_in(tmp_path), {})


def test_a_method_is_a_plain_function_that_knows_its_line(lifter: Lifter) -> None:
    lifted = lifter.lift_method("srt/host.py", "Row.step", {})
    assert lifted.value(None, 4) == 14
    assert lifted.parameters == ("self", "x")
    line = MadeUpSource(HOST_SOURCE).read("srt/host.py").splitlines().index("    def step(self, x: NoSuchType):") + 1
    assert lifted.where == f"srt/host.py:{line}"
    assert (lifted.value.__code__.co_filename, lifted.value.__code__.co_name) == ("srt/host.py", "step")
    assert lifted.value.__code__.co_firstlineno == line


def test_what_is_given_wins_and_a_method_does_not_hide_a_function_of_its_name(lifter: Lifter) -> None:
    assert lifter.lift_method("srt/host.py", "Row.step", {"double": lambda x: -x}).value(None, 4) == -7
    assert lifter.lift_method("srt/host.py", "Row.grow", {}).value(None, 4) == 7


def test_properties_and_static_methods_stay_what_they_are(lifter: Lifter) -> None:
    names = ("width", "count")
    methods = {name: lifter.lift_method("srt/host.py", f"Row.{name}", {}).value for name in names}
    row = type("Row", (), methods)()
    row.width = 5
    assert (row.width, row.count()) == (5, 1)


def test_a_class_is_lifted_whole_on_the_base_that_is_given(lifter: Lifter) -> None:
    lifted = lifter.lift_method("srt/host.py", "Slot", {"flashinfer": SimpleNamespace(Base=object)})
    assert lifted.value(3).kept == 3
    assert lifted.value(3).doubled() == 6


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("Row.absent", "not found: Row.absent in srt/host.py"),
        ("Absent.step", "not found: Absent.step in srt/host.py"),
        ("Row.emptied", "has no body: Row.emptied in srt/host.py"),
        ("Row.device", "needs flashinfer, which specsim does not import"),
        ("Slot", "needs flashinfer, which specsim does not import"),
        ("Row.shared", "imports STEP, which the module defines too"),
    ],
)
def test_what_cannot_be_lifted_is_named(lifter: Lifter, name: str, message: str) -> None:
    with pytest.raises(DriftError, match=message):
        lifter.lift_method("srt/host.py", name, {})


def test_an_exception_of_the_compiled_simulator_passes_through_a_release_as_it_is() -> None:
    """mypyc's exceptions have no `__dict__`: marking one raised AttributeError, which was taken for the release's."""

    class Compiled(Exception):  # noqa: N818 - as RunStopped
        def __setattr__(self, name: str, _value: object) -> None:
            raise AttributeError(name)

        @property
        def __dict__(self) -> Any:  # type: ignore[override]
            raise AttributeError("__dict__")

    part = SeamPart("resolve", "real")
    lifting: Any = SimpleNamespace(_result=SimpleNamespace(parts={"resolve": part}))

    def stops() -> None:
        raise Compiled

    with pytest.raises(Compiled):
        _Lifting._counted(lifting, "resolve", stops)()
    assert part.calls == 1
