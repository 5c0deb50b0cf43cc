"""What the modules of a release see of the environment: packages made up, a virtual clock, an edit on the way in."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from property_tests.support.source_files import ROOT
from specsim.world.clock import Surroundings

IMPORTING = """
import json, sys
from pathlib import Path
from specsim.world.clock import Surroundings
from specsim.engines.sglang.scheduler.imports import PACKAGES
from specsim.world.packages import install
around = Surroundings()
install(Path(sys.argv[1]), "made", PACKAGES, around.modules, {}, EDIT)
import made.module
print(json.dumps(made.module.ANSWER))
"""


@pytest.fixture
def answer(tmp_path: Path) -> Any:
    """What ANSWER of a made-up release's module is, with `edit`, the source of a function, on the way in."""

    def of(source: str, edit: str = "None") -> Any:
        package = tmp_path / "made"
        package.mkdir()
        (package / "__init__.py").touch()
        (package / "module.py").write_text(source)
        program = IMPORTING.replace("EDIT", edit)
        ended = subprocess.run(
            [sys.executable, "-c", program, str(tmp_path)], cwd=ROOT, capture_output=True, text=True, check=False
        )
        assert ended.returncode == 0, ended.stderr
        return json.loads(ended.stdout)

    return of


def test_a_class_can_derive_from_made_up_classes_with_keywords_and_generics(answer: Any) -> None:
    source = """
from transformers import PretrainedConfig
from transformers.models.any import Any as Model, deco
class Config(PretrainedConfig, Model[int], key=1):
    pass
@deco
def same(): return 7
@deco(option=2)
class Kept: value = 8
ANSWER = [isinstance(Config(a=1), Model), same(), Kept.value, isinstance(3, Config | Model)]
"""
    assert answer(source) == [True, 7, 8, False]


def test_the_configuration_of_any_path_is_the_toys(answer: Any) -> None:
    source = """
from transformers import AutoConfig
ANSWER = AutoConfig.from_pretrained("/nowhere", trust_remote_code=True).architectures
"""
    assert answer(source) == ["LlamaForCausalLM"]


@pytest.mark.parametrize("package", ["pytest", "flashinfer", "no_such_package"])
def test_a_package_that_is_neither_made_up_nor_allowed_is_absent_even_where_it_is_installed(
    answer: Any, package: str
) -> None:
    source = f"""
try:
    import {package}
    ANSWER = "there"
except ModuleNotFoundError as error:
    ANSWER = error.name
"""
    assert answer(source) == package


def test_the_clock_and_the_draws_of_a_release_are_virtual_and_those_of_others_are_not(answer: Any) -> None:
    source = """
import random, sys, time, uuid
from time import monotonic
ANSWER = [time.time(), monotonic(), random.random(), str(uuid.uuid4()), time is sys.modules["time"]]
"""
    modules = Surroundings().modules
    expected = [modules["time"].time(), modules["time"].monotonic(), modules["random"].random()]
    assert answer(source) == [*expected, str(modules["uuid"].uuid4()), False]


def test_every_reading_of_the_clock_is_later_than_the_one_before() -> None:
    around = Surroundings()
    clock = around.modules["time"]
    readings = [clock.time(), clock.monotonic(), clock.perf_counter()]
    clock.sleep(2)
    around.next_iteration()
    readings.append(clock.time_ns() / 1e9)
    assert readings == sorted(set(readings))
    assert readings[-1] - readings[-2] > 2


def test_an_edit_changes_what_is_run_and_no_file(answer: Any, tmp_path: Path) -> None:
    edit = 'lambda name, source: source.replace("1 + 1", "3") if name == "made.module" else source'
    assert answer("ANSWER = 1 + 1\n", edit) == 3
    assert (tmp_path / "made" / "module.py").read_text() == "ANSWER = 1 + 1\n"


LISTED = """
import json, sys
from pathlib import Path
from specsim.world.packages import Packages, install
packages = Packages(frozenset(), frozenset(), imported=("made.core", "made.one"))
install(Path(sys.argv[1]), "made", packages, {}, {})
from made.core.loop import ANSWER
import made.once, made
print(json.dumps([ANSWER, made.__file__, made.once.__file__, sys.modules["made.one"].VALUE]))
"""


def test_of_a_release_with_a_list_of_modules_any_other_is_made_up_be_it_there_or_not(tmp_path: Path) -> None:
    files = {
        "__init__.py": "raise ImportError('half of the release')",
        "once.py": "raise ImportError('begins as one does')",
        "one.py": "VALUE = 1",
        "core/__init__.py": "",
        "core/loop.py": "from made.one import VALUE\nfrom made.kernels.gone import Base\n"
        "class Loop(Base): value = VALUE + 1\nANSWER = Loop.value",
    }
    for name, text in files.items():
        path = tmp_path / "made" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    ended = subprocess.run(
        [sys.executable, "-c", LISTED, str(tmp_path)], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert ended.returncode == 0, ended.stderr
    assert json.loads(ended.stdout) == [2, "<fabricated>", "<fabricated>", 1]


PROBING = """
import json, sys
from pathlib import Path
from specsim.world.clock import Surroundings
from specsim.engines.sglang.scheduler.imports import PACKAGES
from specsim.world.packages import Probes, install
probes = Probes(("mod",))
install(Path(sys.argv[1]), "made", PACKAGES, Surroundings().modules, {}, None, probes)
import made.module, made.other
said = [made.module.f(True), probes.lines(), made.other.f(), made.module.f(False), probes.lines()]
probes.clear()
said.append(probes.lines())
made.module.f(False)
probes.started()
made.module.f(True)
probes.clear()
print(json.dumps([*said, probes.lines(), probes.spans]))
"""


def test_the_statements_of_the_files_that_are_asked_about_are_noted_when_they_run(tmp_path: Path) -> None:
    (tmp_path / "made").mkdir()
    (tmp_path / "made" / "__init__.py").touch()
    source = "def f(is_so):\n    if is_so:\n        return 1\n    else:\n        return 2\n"
    (tmp_path / "made" / "module.py").write_text(source)
    (tmp_path / "made" / "other.py").write_text("def f():\n    return 3\n")
    ended = subprocess.run(
        [sys.executable, "-c", PROBING, str(tmp_path)], cwd=ROOT, capture_output=True, text=True, check=True
    )
    first, second = {"module.py": [1, 2, 3]}, {"module.py": [1, 2, 3, 5]}
    spans = {"module.py": [[line, line] for line in (1, 2, 3, 5)]}
    assert json.loads(ended.stdout) == [1, first, 3, 2, second, {}, {"module.py": [1, 2, 5]}, spans]
