"""A checkout has the version that its files state, else that of the nearest tag in its history."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from property_tests.support.known_releases import RELEASES
from property_tests.support.scheduler_checkouts import checkout
from specsim.engines.packages import version_of
from specsim.engines.target import Checkout, Release
from specsim.lifting.cache import Cache

OLD, LATER = RELEASES[0].removesuffix(".post1"), RELEASES[1]


def git(folder: Path, *arguments: str) -> None:
    named = ("-c", "user.name=n", "-c", "user.email=n@example.org", "-c", "commit.gpgsign=false")
    subprocess.run(["git", "-C", str(folder), *named, *arguments], check=True, capture_output=True)


def version_in(folder: Path, revision: str | None = None) -> str:
    return version_of(Checkout("sglang", str(folder), revision), Cache(folder.parent / "cache"))


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    """A checkout of two commits, the first of which has a tag."""
    folder = checkout(tmp_path / "tree", "import os\n")
    (folder / "sglang" / "version.py").unlink(missing_ok=True)
    git(folder, "init", "-q")
    git(folder, "add", "-A")
    git(folder, "commit", "-qm", "first")
    git(folder, "tag", f"v{OLD}")
    git(folder, "commit", "-qm", "second", "--allow-empty")
    return folder


def test_a_release_is_its_own() -> None:
    assert version_of(Release("sglang", OLD), Cache(Path())) == OLD


def test_a_checkout_comes_after_the_last_tag_behind_it(tree: Path) -> None:
    assert version_in(tree) == OLD
    git(tree, "tag", "gateway-v9.9.9")
    git(tree, "tag", f"v{LATER}rc1")
    assert version_in(tree) == LATER
    assert version_in(tree, "HEAD~1") == OLD


def test_what_its_files_state_goes_before(tree: Path) -> None:
    (tree / "sglang" / "version.py").write_text(f'__version__ = "{RELEASES[-1]}.dev3+g1234567"\n')
    assert version_in(tree) == RELEASES[-1]


def test_without_a_tag_and_a_statement_nothing_is_known(tree: Path, tmp_path: Path) -> None:
    git(tree, "tag", "-d", f"v{OLD}")
    assert version_in(tree) == ""
    assert version_in(checkout(tmp_path / "plain", "import os\n")) == ""


def test_a_tree_that_only_lies_in_a_repository_has_not_its_tag(tree: Path) -> None:
    (tree / ".gitignore").write_text("vendor\n")
    assert version_in(checkout(tree / "vendor", "import os\n")) == ""
