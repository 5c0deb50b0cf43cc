"""Set-up of the suite: Triton's interpreter where there is no GPU, Hypothesis' profiles, and the releases in the cache.

No test uses the network. A test that needs a release takes the `release` fixture and is skipped, and counted, when its
wheel is not in the cache; `make test` fetches the wheels once, before pytest starts.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from hypothesis import settings

if not torch.cuda.is_available():
    os.environ["TRITON_INTERPRET"] = "1"
torch.set_num_threads(1)

from property_tests.support.known_releases import FEW, RELEASES, VLLM_NEW, VLLM_OLD
from specsim.engines.packages import open_source
from specsim.engines.target import Release
from specsim.lifting.cache import Cache, open_cache
from specsim.lifting.source import SourceTree
from specsim.strategies import register_profiles

# `fast` is what `make test` runs: the same examples each time, so that a change fails by what it changed, and few. The
# others are those of users (dev, ci, nightly, gpu), with other examples each time; `make nightly` takes `nightly`.
register_profiles()
settings.register_profile(
    "fast", parent=settings.get_profile("dev"), max_examples=20, derandomize=True, database=None, print_blob=False
)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "fast"))


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--all-releases", action="store_true", help="test every release that is in the cache")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leave out slow tests, which run by `make nightly`, with `--all-releases` and on a GPU, and those of releases that
    only `make test-releases` reads. Of those with parameters and `slow(runs_one_in=N)`, every run takes one in N.
    """
    every_release = config.getoption("--all-releases")
    is_slow_too = os.environ.get("HYPOTHESIS_PROFILE") == "nightly" or every_release or torch.cuda.is_available()
    seen: Counter[str] = Counter()
    left_out = []
    for item in items:
        mark = item.get_closest_marker("slow")
        if not every_release and _is_of_another_release(item):
            left_out.append(item)
        elif mark is not None and not is_slow_too:
            function, runs_one_in = item.nodeid.split("[")[0], mark.kwargs.get("runs_one_in", 0)
            if not runs_one_in or seen[function] % runs_one_in:
                left_out.append(item)
            seen[function] += 1
    if left_out:
        names = {item.nodeid for item in left_out}
        items[:] = [item for item in items if item.nodeid not in names]
        config.hook.pytest_deselected(items=left_out)


def _is_of_another_release(item: pytest.Item) -> bool:
    """Whether a test reads a release that is not one of the few."""
    parameters = item.callspec.params if isinstance(item, pytest.Function) and hasattr(item, "callspec") else {}
    version = parameters.get("version")
    return "release" in getattr(item, "fixturenames", ()) and version in RELEASES and version not in FEW


@pytest.fixture(scope="session", autouse=True)
def state_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where this run notes the checksums of what it stores: not among the user's own."""
    folder = tmp_path_factory.mktemp("state")
    os.environ["XDG_STATE_HOME"] = str(folder)
    return folder


@pytest.fixture(scope="session")
def wheel_cache() -> Cache:
    """The cache that `make test` filled."""
    return open_cache()


@pytest.fixture(scope="session")
def release(wheel_cache: Cache, pytestconfig: pytest.Config) -> Callable[[str], SourceTree]:
    """Opens a release that is in the cache; skips the test when it is not, or is of `make test-releases` alone."""
    from specsim.engines.packages import cached_releases

    available = set(cached_releases("sglang", wheel_cache))
    opened: dict[str, SourceTree] = {}

    every_release = pytestconfig.getoption("--all-releases")

    def open_release(version: str) -> SourceTree:
        if version not in FEW and not every_release:
            pytest.skip(f"sglang=={version} is tested by `make test-releases`")
        if version not in available:
            made_by = "make test" if version in FEW else "make test-releases"
            pytest.skip(f"the wheel of sglang=={version} is not in the cache; `{made_by}` fetches it")
        if version not in opened:
            opened[version] = open_source(Release("sglang", version), wheel_cache)
        return opened[version]

    return open_release


@pytest.fixture(scope="session")
def vllm_release(wheel_cache: Cache) -> str:
    """The newest release of vLLM; skips the test when that or an old one is not in the cache."""
    from specsim.engines.packages import cached_packages

    for version in (VLLM_OLD, VLLM_NEW):
        if ("vllm", version) not in cached_packages(wheel_cache):
            pytest.skip(f"vllm=={version} is not in the cache; `make test` fetches it")
    return VLLM_NEW


MUST_RUN = "SPECSIM_MUST_RUN"
"""Names a folder of tests, of which one that is skipped for want of something fails the run: `.ci/run` sets it."""


@pytest.hookimpl(trylast=True)
def pytest_sessionfinish(session: pytest.Session) -> None:
    """Fail a run that could not do what it had to."""
    folder = os.environ.get(MUST_RUN)
    reporter = session.config.pluginmanager.get_plugin("terminalreporter")
    if not folder or reporter is None or hasattr(session.config, "workerinput"):
        return
    reasons = {report.nodeid: str(report.longrepr) for report in reporter.stats.get("skipped", [])}
    lacking = [name for name, why in reasons.items() if f"/{folder}/" in name and "cache" in why]
    if lacking:
        reporter.write_line(
            f"{len(lacking)} tests of {folder} were skipped, which {MUST_RUN} forbids: {lacking[0]} ..."
        )
        session.exitstatus = pytest.ExitCode.TESTS_FAILED


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Say how much was skipped for want of a release or a GPU."""
    skipped = [str(report.longrepr) for report in terminalreporter.stats.get("skipped", [])]
    for word, what in (
        ("is not in the cache", "a release in the cache"),
        ("CUDA", "a GPU"),
        ("specsim-llm[grammar]", "a grammar library (pip install 'specsim-llm[grammar]')"),
        ("specsim-llm[browser]", "a browser (pip install 'specsim-llm[browser]', apt-get install chromium)"),
    ):
        count = sum(word in reason for reason in skipped)
        if count:
            terminalreporter.write_line(f"{count} tests need {what} and were skipped")
