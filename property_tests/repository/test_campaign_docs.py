"""The Job and the array of docs/campaigns-on-clusters.md can be used as they stand, and what docs/campaign-reports.md
names is there.
"""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import settings
from typer.main import get_command

from specsim.cli import app
from specsim.fuzz.merged import merged
from specsim.fuzz.metrics import Counts, text_of

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "campaigns-on-clusters.md").read_text()
REPORTS = (ROOT / "docs" / "campaign-reports.md").read_text()
(JOB,) = [yaml.safe_load(text) for text in re.findall(r"```yaml\n(.*?)```", PAGE, re.DOTALL)]
(ARRAY,) = re.findall(r"```bash\n(.*?)```", PAGE, re.DOTALL)
POD = JOB["spec"]["template"]["spec"]
(CONTAINER,) = POD["containers"]
SCRIPTS = {"kubernetes": CONTAINER["args"][0], "slurm": ARRAY}
BOTH = pytest.mark.parametrize("name", SCRIPTS)


def environment_of(name: str, folder: Path) -> dict[str, str]:
    """What the batch system sets, for shard 1, and two short parts."""
    path = os.pathsep.join([str(folder / "bin"), os.environ["PATH"]])
    given = {"PATH": path, "TARGETS": "model", "PARTS": "2", "SECONDS_OF_A_PART": "2"}
    if name == "kubernetes":
        return {**{entry["name"]: entry["value"] for entry in CONTAINER["env"]}, **given, "JOB_COMPLETION_INDEX": "1"}
    places = {"RESULTS": str(folder / "results"), "SLURM_TMPDIR": str(folder / "scratch")}
    return {**given, **places, "SLURM_ARRAY_TASK_ID": "1", "SLURM_SUBMIT_DIR": str(folder)}


def run(name: str, folder: Path) -> int:
    """Run a script with folders of its own."""
    for part in ("results", "scratch", "bin"):
        (folder / part).mkdir(exist_ok=True)
    command = folder / "bin" / "specsim"
    command.write_text(f'#!/bin/sh\nexec {shlex.quote(sys.executable)} -m specsim "$@"\n')
    command.chmod(0o755)
    script = SCRIPTS[name].replace("/results/", f"{folder}/results/").replace("/scratch/", f"{folder}/scratch/")
    found = os.pathsep.join(filter(None, [str(ROOT), *sys.path]))
    environment = {**os.environ, **environment_of(name, folder), "PYTHONPATH": found}
    return subprocess.run(["bash", "-euc", script], env=environment, cwd=folder, check=False, timeout=170).returncode


@BOTH
@pytest.mark.slow
def test_a_shard_goes_on_from_part_to_part_and_from_machine_to_machine(name: str, tmp_path: Path) -> None:
    assert run(name, tmp_path) == 0
    (store,) = (tmp_path / "results").glob("*.db")
    first = merged([store])
    assert {batch.shard for batch in first.batches} == {1}
    for left in (tmp_path / "scratch").iterdir():
        left.unlink()
    assert run(name, tmp_path) == 0
    assert {b.number for b in first.batches} < {b.number for b in merged([store]).batches}


@BOTH
def test_the_commands_of_the_scripts_are_accepted(name: str, tmp_path: Path) -> None:
    (line,) = re.findall(r"^ *(specsim fuzz .*?) &$", SCRIPTS[name], re.MULTILINE)
    environment = {
        **environment_of(name, tmp_path),
        "name": "shard.db",
        "resume": "--resume",
        "SCRATCH": "scratch",
        "RESULTS": "results",
    }
    filled = re.sub(r"\$\{?(\w+)(?::-\w+)?\}?", lambda found: environment[found[1]], line)
    arguments = shlex.split(filled)[1:]
    command = getattr(get_command(app), "commands")[arguments[0]]  # noqa: B009 - a click group, not typed by typer
    context = command.make_context(arguments[0], arguments[1:], resilient_parsing=False)
    assert context.params["shard"] == "1/16"
    assert subprocess.run(["bash", "-n", "-c", SCRIPTS[name]], check=False).returncode == 0


def test_every_index_of_the_job_is_a_shard_and_its_store_lies_on_a_local_disk() -> None:
    spec = JOB["spec"]
    shards = {entry["name"]: entry["value"] for entry in CONTAINER["env"]}["SHARDS"]
    assert (JOB["apiVersion"], JOB["kind"], spec["completionMode"]) == ("batch/v1", "Job", "Indexed")
    assert spec["completions"] == spec["parallelism"] == int(shards)
    assert POD["restartPolicy"] == "Never"  # what backoffLimitPerIndex and podFailurePolicy ask for
    volumes = {volume["name"]: volume for volume in POD["volumes"]}
    mounts = {mount["mountPath"]: volumes[mount["name"]] for mount in CONTAINER["volumeMounts"]}
    assert "emptyDir" in mounts["/scratch"]
    assert "persistentVolumeClaim" in mounts["/results"]
    assert '--store "/scratch/' in CONTAINER["args"][0]


def test_every_index_of_the_array_is_a_shard() -> None:
    options: dict[str, Any] = dict(re.findall(r"^#SBATCH --([\w-]+)=(\S+)", ARRAY, re.MULTILINE))
    first, last = options["array"].split("-")
    assert (first, int(last) + 1) == ("0", int(re.findall(r'--shard "\$SLURM_ARRAY_TASK_ID/(\d+)"', ARRAY)[0]))
    assert re.findall(r"--jobs (\d+)", ARRAY) == [options["cpus-per-task"]]


def test_the_documented_numbers_for_prometheus_are_those_that_are_served() -> None:
    served = set(re.findall(r"^# TYPE (\S+)", text_of(Counts(start=0.0)), re.MULTILINE))
    assert set(re.findall(r"`(specsim_\w+)`", REPORTS)) == served


def test_the_profile_that_hypofuzz_is_given_is_one_that_it_takes() -> None:
    (profile,) = re.findall(r"HYPOTHESIS_PROFILE=(\w+) hypothesis fuzz", REPORTS)
    named = settings.get_profile(profile)
    assert not named.derandomize
    assert named.database is not None
