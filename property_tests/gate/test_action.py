"""The GitHub Action, as a runner would run its steps; pip and GitHub are stood in for."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import yaml

from property_tests.support.engine_repository import EngineRepository
from property_tests.support.known_releases import NEWEST, SGLANG
from specsim.lifting.cache import Cache
from specsim.lifting.fetch import fetch_wheel

pytestmark = pytest.mark.release(NEWEST)

ROOT = Path(__file__).parents[2]
ACTION = yaml.safe_load((ROOT / "action.yml").read_text(encoding="utf-8"))
STEPS = {step["name"]: step for step in ACTION["runs"]["steps"] if "run" in step}
KERNEL = "srt/speculative/triton_ops/eagle.py"
LIMITS = "--only ops:fill_bonus_tokens --cases 2 --no-known --no-shrink"
STANDS_IN = r"""#!{python}
import json, os, pathlib, sys
arguments, state = sys.argv[1:], pathlib.Path({state!r})
name = os.path.basename(sys.argv[0])
with open(state / f"{{name}}.log", "a") as log:
    print(json.dumps(arguments), file=log)
if name == "python3" and arguments[:2] == ["-m", "venv"]:
    folder = pathlib.Path(arguments[2]) / "bin"
    folder.mkdir(parents=True, exist_ok=True)
    for tool in ("python", "specsim"):
        (folder / tool).unlink(missing_ok=True)
        (folder / tool).symlink_to(sys.argv[0])
elif name == "specsim":
    os.execv({python!r}, [{python!r}, "-m", "specsim", *arguments])
elif name == "gh":
    if os.environ["GH_TOKEN"] != "may-write" and ("--paginate" not in arguments or not os.environ["GH_TOKEN"]):
        sys.exit("HTTP 403: Resource not accessible by integration")
    file = state / "comments.json"
    comments = json.loads(file.read_text())
    fields = [one for one in arguments if one.startswith("body=@")]
    if fields:
        number = int(arguments[arguments.index("PATCH") + 1].rpartition("/")[2]) if "PATCH" in arguments else 0
        body = pathlib.Path(fields[0].removeprefix("body=@")).read_text()
        number = number or len(comments) + 1
        file.write_text(json.dumps({{**comments, str(number): body}}))
    elif arguments[-2:-1] == ["--jq"]:
        mark = arguments[-1].partition('startswith("')[2].partition('")')[0]
        print(*(number for number, body in comments.items() if body.startswith(mark)), sep="\n")
"""


@dataclass
class Runner:
    """Runs steps in a repository as GitHub's runner does, with what stands in for python3 and gh in `state`."""

    repository: EngineRepository
    state: Path

    def __post_init__(self) -> None:
        (self.state / "bin").mkdir(parents=True)
        tool = self.state / "bin" / "python3"
        tool.write_text(STANDS_IN.format(python=sys.executable, state=str(self.state)))
        tool.chmod(0o755)
        (self.state / "bin" / "gh").symlink_to(tool)
        (self.state / "comments.json").write_text('{"7": "somebody\'s own <!-- specsim -->"}')

    def run(self, name: str, context: Mapping[str, str]) -> subprocess.CompletedProcess[str]:
        """The step of that name, where `context` is what its expressions stand for, and `inputs` has its defaults."""
        values = {f"inputs.{key}": str(one["default"]) for key, one in ACTION["inputs"].items()} | dict(context)
        given = {
            key: re.sub(r"\$\{\{ (.+?) \}\}", lambda found: values[found[1]], text)
            for key, text in STEPS[name]["env"].items()
        }
        environment = {
            **{key: value for key, value in os.environ.items() if not key.startswith("GITHUB_")},
            "PATH": f"{self.state / 'bin'}{os.pathsep}{os.environ['PATH']}",
            "PYTHONPATH": os.pathsep.join([str(ROOT), *filter(None, sys.path)]),
            "SPECSIM_CACHE_DIR": str(self.state / "cache"),
            "RUNNER_TEMP": str(self.state),
            "GITHUB_ACTIONS": "true",
            "GITHUB_BASE_REF": "main",
            "GITHUB_OUTPUT": str(self.state / "output"),
            "GITHUB_STEP_SUMMARY": str(self.state / "summary.md"),
            "GITHUB_REPOSITORY": "an/engine",
            "GITHUB_WORKSPACE": str(self.repository.root),
            **given,
        }
        return subprocess.run(
            ["bash", "--noprofile", "--norc", "-eo", "pipefail", "-c", STEPS[name]["run"]],
            cwd=self.repository.root,
            env=environment,
            capture_output=True,
            text=True,
            check=False,
            timeout=600,
        )

    def check(self) -> tuple[int, str]:
        """The exit code of the check, and what it printed."""
        ended = self.run("check", {"inputs.arguments": LIMITS})
        assert (self.state / "output").read_text().split()[-1] == f"exit-code={ended.returncode}"
        return ended.returncode, ended.stdout + ended.stderr

    def comment(self, code: int, token: str = "may-write") -> tuple[str, dict[str, str]]:
        """What the step printed, and the comments that there are after it."""
        context = {
            "inputs.token": token,
            "steps.check.outputs.exit-code": str(code),
            "github.event.pull_request.number": "12",
        }
        ended = self.run("comment", context)
        assert ended.returncode == 0, ended.stderr
        comments: dict[str, str] = json.loads((self.state / "comments.json").read_text())
        return ended.stdout, comments


@pytest.fixture(scope="module")
def runner(release: Any, wheel_cache: Cache, tmp_path_factory: pytest.TempPathFactory) -> Runner:
    release(NEWEST)
    root = tmp_path_factory.mktemp("engine")
    return Runner(EngineRepository(root / "e", fetch_wheel(SGLANG, NEWEST, wheel_cache), "python", ""), root / "runner")


def test_a_pull_request_is_checked_beside_its_base_and_gets_one_comment(runner: Runner) -> None:
    context = {"github.action_path": str(ROOT), "inputs.torch-index-url": "https://example.org/cpu"}
    installed = runner.run("install", context)
    assert installed.returncode == 0, installed.stderr
    torch, package = [json.loads(line) for line in (runner.state / "python.log").read_text().splitlines()]
    assert torch[-3:-1] == ["--index-url", "https://example.org/cpu"]
    assert torch[-1] in (ROOT / "constraints.txt").read_text().splitlines()
    assert package[-1] == str(ROOT)

    runner.repository.replace(KERNEL, "accept_len - 1", "accept_len - 2")
    code, printed = runner.check()
    assert code == 1, printed
    assert f"::error file=python/sglang/{KERNEL},line=19," in printed
    assert all((runner.repository.root / f"specsim.{kind}").stat().st_size for kind in ("json", "xml", "sarif"))
    printed, comments = runner.comment(code, token="may-read")
    assert list(comments) == ["7"]
    assert "::notice::specsim: no comment" in printed  # a fork's pull request
    printed, comments = runner.comment(code)
    assert list(comments) == ["7", "2"]
    assert comments["2"].startswith("<!-- specsim -->\n### specsim: fail, ")
    assert "origin/main" in comments["2"]
    assert comments["2"].partition("\n")[2] in (runner.state / "summary.md").read_text()

    runner.repository.restore()
    code, printed = runner.check()
    assert code == 0, printed
    printed, comments = runner.comment(code)
    assert list(comments) == ["7", "2"]
    assert "### specsim: pass, " in comments["2"]
    assert comments["7"] == "somebody's own <!-- specsim -->"
    (runner.state / "comments.json").write_text("{}")
    assert runner.comment(code) == ("", {})  # it passes, and nobody was told that it does not


def test_what_cannot_be_checked_fails_the_step_and_says_why(runner: Runner) -> None:
    runner.run("install", {"github.action_path": str(ROOT)})
    ended = runner.run("check", {"inputs.target": "sglang@nowhere"})
    assert ended.returncode == 2
    assert "nowhere" in ended.stderr
    assert "Traceback" not in ended.stderr
    assert (runner.state / "output").read_text().split()[-1] == "exit-code=2"


def test_every_input_is_used_and_no_expression_stands_in_a_script() -> None:
    used = set(re.findall(r"inputs\.([\w-]+)", json.dumps(ACTION["runs"])))
    assert used == set(ACTION["inputs"])
    assert all(one["description"].endswith(".") for one in ACTION["inputs"].values())
    assert not any("${{" in step["run"] for step in STEPS.values())  # which a branch's name could be put into
