"""The workflows and the hook of docs/ci.md can be used as they stand: they parse, and every command is accepted."""

from __future__ import annotations

import json
import re
import shlex
from pathlib import Path
from typing import Any

import pytest
import yaml
from typer.main import get_command

from specsim.cli import app
from specsim.verdict import FINDING, INCOMPLETE, INTERRUPTED, NONDETERMINISM, NOT_CHECKED, PASS, USAGE

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "ci.md").read_text()
BLOCKS = [yaml.safe_load(text) for text in re.findall(r"```yaml\n(.*?)```", PAGE, re.DOTALL)]
WORKFLOWS = [block for block in BLOCKS if "jobs" in block]
HOOKS = yaml.safe_load((ROOT / ".pre-commit-hooks.yaml").read_text())
VALUES = {
    "github.run_id": "16012345678",
}


def steps(workflow: dict[str, Any]) -> list[dict[str, Any]]:
    return [step for job in workflow["jobs"].values() for step in job["steps"]]


def filled(text: str) -> str:
    """A command with the values that GitHub puts into it."""
    return re.sub(r"\$\{\{ (.+?) \}\}", lambda found: VALUES[found[1]], text)


def commands() -> list[list[str]]:
    """Every specsim command of the workflows, the hook and the console blocks."""
    texts = [
        filled(step["run"])
        for workflow in WORKFLOWS
        for step in steps(workflow)
        if step.get("run", "").startswith("specsim ")
    ]
    texts += [" ".join([hook["entry"], *map(shlex.quote, hook["args"])]) for hook in HOOKS]
    texts += re.findall(r"^\$ (?:git bisect run )?(specsim .*?)(?: +# .*)?$", PAGE, re.MULTILINE)
    return [shlex.split(text)[1:] for text in texts]


@pytest.mark.parametrize("arguments", commands(), ids=" ".join)
def test_every_command_is_accepted(arguments: list[str]) -> None:
    group = get_command(app)
    command = getattr(group, "commands")[arguments[0]]  # noqa: B009 - a click group, which typer does not type
    context = command.make_context(arguments[0], arguments[1:], resilient_parsing=False)
    assert not context.args


def test_there_are_commands_of_a_pull_request_of_a_night_and_of_a_hook() -> None:
    assert len(WORKFLOWS) == 3
    assert [arguments[0] for arguments in commands()].count("check") >= 5
    (hook,) = HOOKS
    assert {each["id"] for each in BLOCKS[-1]["repos"][0]["hooks"]} == {hook["id"]}


def test_a_pull_request_is_checked_by_the_action_and_cannot_reach_secrets() -> None:
    workflow, action = WORKFLOWS[0], yaml.safe_load((ROOT / "action.yml").read_text())
    assert "pull_request" in workflow[True]  # YAML 1.1 reads `on` as true
    assert "pull_request_target" not in workflow[True]
    checkout, check, *others = steps(workflow)
    assert checkout["with"] == {"fetch-depth": 0}
    assert check["uses"].startswith("example/specsim@v")
    assert check["with"].keys() <= action["inputs"].keys()
    table = PAGE.partition("| input of the action |")[2].partition("\n\n")[0]
    documented = re.findall(r"^\| `([\w-]+)` \|", table, re.MULTILINE)
    assert documented == list(action["inputs"])
    written = set(re.findall(r"--(?:junit|sarif|json) (\S+)", json.dumps(action)))
    used = json.dumps([step.get("with", {}) for step in (*others, *action["runs"]["steps"])])
    assert len(written) == 3
    assert all(name in used for name in written)


def test_a_campaign_goes_on_from_the_cache_and_is_saved_whatever_comes_of_it() -> None:
    (job,) = WORKFLOWS[2]["jobs"].values()
    named = {step.get("uses", step.get("name", "")).split("@")[0]: step for step in job["steps"]}
    order = list(named)
    restore, save = named["actions/cache/restore"], named["actions/cache/save"]
    assert order.index("actions/cache/restore") < order.index("specsim") < order.index("actions/cache/save")
    assert save["if"] == "always()"
    assert save["with"]["key"] == restore["with"]["key"]
    assert restore["with"]["key"].startswith(restore["with"]["restore-keys"])
    arguments = shlex.split(named["specsim"]["run"])
    store = Path(arguments[arguments.index("--store") + 1])
    assert "--nightly" in arguments
    assert store.parts[0] == restore["with"]["path"] == save["with"]["path"]
    assert float(arguments[arguments.index("--budget-seconds") + 1]) < 60 * job["timeout-minutes"]


def test_the_exit_codes_are_those_of_the_code() -> None:
    documented = [int(code) for code in re.findall(r"^\| (\d+) \|", PAGE, re.MULTILINE)]
    assert documented == [PASS, FINDING, USAGE, NONDETERMINISM, INCOMPLETE, NOT_CHECKED, INTERRUPTED]
