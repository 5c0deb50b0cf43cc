"""specsim in a pytest of one's own. Installed with specsim; without an installation, `pytest -p specsim.pytest_plugin`.

    pytest --specsim-target=sglang@.          adds a test for each tier of the target; may be repeated
    pytest --specsim-replays=FOLDER           adds a test for each replay file: its finding is gone
    pytest --specsim-budget-seconds=60        of each target
    pytest --specsim-interpreter              runs Triton kernels on the CPU, in lockstep, and fails a test for what
                                              they do wrong; --specsim-interpreter-plain without checks
    pytest --hypothesis-profile=specsim-ci    one of the profiles of `specsim.strategies.register_profiles`

`-k specsim` keeps to the tests that are added. A failure ends in the command that replays it. The fixtures are
`holds_contract` and `specsim_target`, the target of the command line.

Nothing but pytest is imported until one of these is used.
"""

from __future__ import annotations

from collections.abc import Callable, Generator
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from pathlib import Path

    from specsim.interpreter.session import Session

Hold = Callable[..., None]

BUDGET_SECONDS = 60.0


def pytest_addoption(parser: pytest.Parser) -> None:
    from specsim.engines.registry import MAIN

    group = parser.getgroup("specsim", "speculative decoding (specsim)")
    target = f"a TARGET whose tiers are tested: model, {MAIN}==VERSION, {MAIN}@PATH[#REV], module:object"
    group.addoption("--specsim-target", action="append", default=[], metavar="TARGET", help=target)
    files = "a replay file, or a folder of them; their findings must be gone"
    group.addoption("--specsim-replays", action="append", default=[], metavar="PATH", help=files)
    for name, way, checks in (
        ("--specsim-interpreter", "checked", "checked for bounds, races and undefined lanes"),
        ("--specsim-interpreter-plain", "plain", "checked for bounds alone"),
    ):
        what = f"run every launch of a Triton kernel on the CPU, {checks}"
        group.addoption(name, action="store_const", const=way, dest="specsim_interpreter", help=what)
    group.addoption(
        "--specsim-budget-seconds",
        type=float,
        default=BUDGET_SECONDS,
        metavar="S",
        help=f"of each target ({BUDGET_SECONDS:g})",
    )


@pytest.hookimpl(tryfirst=True)
def pytest_configure(config: pytest.Config) -> None:
    """Before Hypothesis' own plugin loads the profile that was asked for, and before modules of tests are imported."""
    way = config.getoption("specsim_interpreter", None)
    if way is not None:
        from specsim.interpreter.session import Session

        config.pluginmanager.register(_Interpreter(Session(way)), "specsim-interpreter")
    if str(config.getoption("hypothesis_profile", None) or "").startswith("specsim-"):
        from specsim.strategies import register_profiles

        register_profiles("specsim-")


class _Interpreter:
    """Hooks of a session whose launches run in lockstep. A test fails for what its launches do wrong."""

    def __init__(self, session: Session) -> None:
        self.session = session
        self.told: list[str] = []  # by processes of pytest-xdist

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_setup(self, item: pytest.Item) -> Generator[None, object, object]:
        return (yield from self._failing(item, "setup"))

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_call(self, item: pytest.Item) -> Generator[None, object, object]:
        return (yield from self._failing(item, "call"))

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_teardown(self, item: pytest.Item) -> Generator[None, object, object]:
        return (yield from self._failing(item, "teardown"))

    def _failing(self, item: pytest.Item, when: str) -> Generator[None, object, object]:
        """Fail for flaws; beside another failure they are told."""
        try:
            result = yield
        except BaseException:
            if flaws := self.session.flaws():
                item.add_report_section(when, "specsim", "\n".join(flaws))
            raise
        if flaws := self.session.flaws():
            pytest.fail("\n".join(flaws), pytrace=False)  # pytest's line of the test has the first
        return result

    def pytest_sessionfinish(self, session: pytest.Session) -> None:
        if hasattr(session.config, "workeroutput"):
            session.config.workeroutput["specsim-interpreter"] = self.session.told()

    @pytest.hookimpl(optionalhook=True)
    def pytest_testnodedown(self, node: Any) -> None:
        self.told += getattr(node, "workeroutput", {}).get("specsim-interpreter", [])

    def pytest_terminal_summary(self, terminalreporter: Any) -> None:
        for line in self.told or self.session.told():
            terminalreporter.write_line(f"specsim: {line}")

    def pytest_unconfigure(self) -> None:
        self.session.close()


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(session: pytest.Session, config: pytest.Config, items: list[pytest.Item]) -> None:
    """Before `-k` looks at them."""
    targets, paths = config.getoption("specsim_target"), config.getoption("specsim_replays")
    if not targets and not paths:
        return
    from specsim.errors import UsageError

    try:
        added = [item for target in targets for item in _tiers_of(session, target)]
        added += [item for path in paths for item in _files_of(session, config.rootpath, path, targets)]
    except UsageError as error:
        raise pytest.UsageError(f"specsim: {error.problem}; {error.remedy}") from None
    report = pytest.CollectReport("specsim", "passed", None, list(added))
    session.ihook.pytest_collectreport(report=report)  # so that they are counted
    items += added


def _tiers_of(session: pytest.Session, text: str) -> list[pytest.Item]:
    from specsim.engines.target import parse_target
    from specsim.tiers.registry import TIERS

    target = parse_target(text).text
    return [_added(TierItem, session, f"{target}::{tier}", target=target, tier=tier) for tier in TIERS]


def _files_of(session: pytest.Session, root: Path, named: str, targets: list[str]) -> list[pytest.Item]:
    from pathlib import Path

    from specsim.testing import replays

    path = root / named
    files = [path] if path.is_file() else replays(path)
    of = [(file, target) for file in files for target in (targets or [""])]
    names = [f"{Path(named) if path.is_file() else Path(named) / file.name}" for file, _target in of]
    return [
        _added(ReplayItem, session, f"{name}::{target}" if target else name, file=file, target=target)
        for name, (file, target) in zip(names, of, strict=True)
    ]


def _added(kind: type[pytest.Item], session: pytest.Session, name: str, **fields: Any) -> pytest.Item:
    item: pytest.Item = kind.from_parent(session, name=f"specsim {name}", nodeid=f"specsim::{name}", **fields)
    return item


class TierItem(pytest.Item):
    """A tier of a target, as a test; a target that has no such tier skips it."""

    def __init__(self, *, target: str, tier: str, **of_pytest: Any) -> None:
        super().__init__(**of_pytest)
        self.target, self.tier = target, tier

    def runtest(self) -> None:
        from specsim.replay_file import FINDINGS
        from specsim.testing import check_target, told_findings
        from specsim.tiers.registry import TIERS

        verdict = check_target(
            self.target,
            only=self.tier,
            budget_seconds=max(1.0, self.config.getoption("specsim_budget_seconds") * TIERS[self.tier].budget_share),
            seed=0,
            cases=100,
            schedules=500,
            device="auto",
            out=self.config.rootpath / FINDINGS,
            cache_dir=None,
        )
        if verdict.findings:
            raise AssertionError(told_findings(verdict, verdict.findings))
        if verdict.verdict == "error":
            reasons = [f"{entry.what}: {entry.why}" for suite in verdict.suites for entry in suite.not_run]
            pytest.skip(f"not run: {'; '.join(reasons[:2]) or 'nothing to check'}")

    def repr_failure(self, excinfo: pytest.ExceptionInfo[BaseException], *_style: Any) -> Any:
        return _shown(excinfo) or super().repr_failure(excinfo)

    def reportinfo(self) -> tuple[str, None, str]:
        return "specsim", None, self.name


class ReplayItem(pytest.Item):
    """A replay file on a target, "" for the one that it was found on, as a test: its finding is gone."""

    def __init__(self, *, file: Path, target: str, **of_pytest: Any) -> None:
        super().__init__(**of_pytest)
        self.file, self.target = file, target

    def runtest(self) -> None:
        from specsim.testing import assert_gone

        assert_gone(self.file, self.target)

    def repr_failure(self, excinfo: pytest.ExceptionInfo[BaseException], *_style: Any) -> Any:
        return _shown(excinfo) or super().repr_failure(excinfo)

    def reportinfo(self) -> tuple[str, None, str]:
        return "specsim", None, self.name


def _shown(excinfo: pytest.ExceptionInfo[BaseException]) -> str:
    """A finding or an error for the reader without a traceback; "" for what is neither."""
    from specsim.errors import UsageError

    error = excinfo.value
    return str(error) if isinstance(error, AssertionError | UsageError) else ""


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """A test that takes `specsim_target` runs once for each target of the command line."""
    if "specsim_target" in metafunc.fixturenames and (targets := metafunc.config.getoption("specsim_target")):
        metafunc.parametrize("specsim_target", targets)


@pytest.fixture
def specsim_target() -> str:
    """The TARGET of the command line, for `specsim.testing.assert_no_finding`; skips the test where none is given."""
    pytest.skip("no target: give --specsim-target=TARGET")


@pytest.fixture
def holds_contract() -> Hold:
    """`holds_contract(operation, function, cases=100, seed=0, device="cpu")` fails with the smallest case on which the
    function is not what the operation's contract says, or with the reason why it cannot be called.
    """

    def hold(operation: str, function: Any, cases: int = 100, seed: int = 0, device: str = "cpu") -> None:
        from specsim.errors import UsageError
        from specsim.testing import assert_matches

        problem = ""
        try:
            assert_matches(operation, function, cases=cases, seed=seed, device=device)
        except (AssertionError, UsageError) as error:
            problem = str(error)
        if problem:
            pytest.fail(problem, pytrace=False)

    return hold
