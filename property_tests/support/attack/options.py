"""Options: hostile values for the real options of every command, and a process in bad surroundings."""

from __future__ import annotations

import functools
import random
from dataclasses import replace
from typing import Any

from property_tests.support.attack import sources
from property_tests.support.attack.damage import TARGETS
from property_tests.support.attack.folder import Folder
from property_tests.support.attack.replays import FIXTURES
from property_tests.support.attack.runner import Attack, Output
from property_tests.support.attack.stores import STORE, whole

# A command that is short and finds nothing, for hostile options to be added to.
_CHECK = ("--only", "scheduler", "--schedules", "1", "--budget-seconds", "4", "--no-shrink")
BASES: dict[str, tuple[tuple[str, ...], ...]] = {
    "check": (("dev", "check", "model", *_CHECK), ("dev", "check", "mine:engine", *_CHECK)),
    "replay": (("replay", "replay.json"),),
    "report": (("report", "findings", "--budget-seconds", "10"), ("report", "--campaign", STORE)),
    "pin": (("pin", "replay.json"),),
    "shrink": (("shrink", "replay.json", "--attempts", "2", "--budget-seconds", "5"),),
    "targets": (("targets",), ("targets", sources.ENGINE)),
    "explore": (("explore", "--states", "30", "--budget-seconds", "2"),),
    "mutants": (("mutants", "A01", "--seeds", "1", "--schedules", "3", "--jobs", "1", "--budget-seconds", "3"),),
    "fuzz": (
        ("fuzz", "model", "--only", "scheduler", "--jobs", "1", "--budget-seconds", "3", "--store", "new.db"),
        ("fuzz", "--again", "0:3", "--store", STORE),
    ),
    "bisect": (("bisect", "replay.json", "--good", "HEAD~1", "--bad", "HEAD", "--repo", "engine"),),
    "template": (("template", "fill_bonus_tokens"),),
    "doctor": (("doctor",),),
    "bench": (("bench", "nosuchbenchmark"),),
}
NEVER_FINDING = ("check", "fuzz", "doctor", "template", "explore")
# They cost minutes, need a machine of their own, or start what has no end.
LEFT_OUT = {"--ray", "--ci", "--canary", "--full", "--bulk", "--help", "--peer", "--rounds", "--github"}
PATHS = (
    "file",
    "folder",
    "new/below/file.json",
    "fifo",
    "device/null",
    "device/full",
    "link",
    "dangling",
    "loop",
    "loop/x",
    "file/x",
    "replay.json",
    "n" * 300,
    "d/" * 3000 + "x",
    "",
    ".",
    "..",
    "-",
    "--",
    "-x",
    "/proc/specsim",
    "/sys/specsim/x",
    "~nosuchuser/x",
    "new line\n.json",
    "\x1b[2J.json",
    "\udcff.json",
    "\u202e.json",
    "é \U0001f600.json",
    "a:b",
    "http://127.0.0.1:1/x",
    "redis://127.0.0.1:1/0",
)
NUMBERS = (
    "",
    "0",
    "-1",
    "-0",
    "1",
    "3",
    "0.1",
    "1e-9",
    "1e3",
    "nan",
    "inf",
    "-inf",
    "1e308",
    "1e400",
    "0x10",
    "1_000",
    "\u0663",
    "²",
    "9" * 30,
    "9" * 5000,
    " 7 ",
    "7\n",
    "auto",
)
MANY = ("0", "-1", "", "nan", "auto", "x", "²", "1e1", "1", "2")  # how many processes: no more than a machine bears
TEXTS = (
    "",
    " ",
    "ops",
    "ops:",
    "ops:nosuch",
    "ops:fill_bonus_tokens",
    "scheduler",
    "accounting",
    "=",
    "A01",
    "I54",
    "0:3",
    "0:99999999999999999999",
    "-1:-1",
    "0/1",
    "1/0",
    "²/³",
    "0:²",
    "9" * 5000,
    "0:" + "9" * 5000,
    "cpu",
    "cuda",
    "deadbeef",
    "^HEAD",
    "HEAD..HEAD",
    "HEAD",
    "--all",
    "sglang==0.0.0..9.9.9",
    "sglang==1.0.0..1.0.0",
    "\x1b[2J\x07",
    "\x9b31m",
    "\udcff",
    "\u202e",
    "a\nb",
    "x" * 100_000,
    "[bold]x[/]",
)
_PATH_OPTIONS = {"--out", "--json", "--write", "--pin", "--junit", "--sarif", "--html", "--data"}
_PATH_OPTIONS |= {"--store", "--repo", "--cache-dir", "--campaign"}
_TARGET_OPTIONS = {"--target", "--provider", "--kernels", "--baseline", "--fetch", "--good", "--bad"}
_READ_OPTIONS = {"--data", "--campaign", "--repo", "--baseline"}  # they name what is read
MINE = """
from property_tests.support.own_engine import Engine

engine = Engine()
"""


@functools.cache
def _commands() -> dict[str, list[tuple[str, bool]]]:
    """The options of each command, and whether each takes a value."""
    from typer.main import get_command

    from specsim.cli import app

    group: Any = get_command(app)
    return {
        name: [
            (option, not parameter.is_flag)
            for parameter in command.params
            if parameter.param_type_name == "option"
            for option in (*parameter.opts, *parameter.secondary_opts)
            if option not in LEFT_OUT
        ]
        for name, command in sorted({**group.commands, **group.commands["dev"].commands}.items())
        if name in BASES
    }


def attack(random_: random.Random, folder: Folder) -> Attack:
    """A short command with hostile options added, in surroundings that may be bad too."""
    folder.write("mine.py", MINE)
    folder.write("replay.json", (FIXTURES / "slots-freed-under-a-running-request.json").read_bytes())
    folder.write("findings/one.json", (FIXTURES / "slots-freed-under-a-running-request.json").read_bytes())
    folder.write(STORE, whole())
    sources.write_engine(folder)
    name = random_.choices(sorted(BASES), [3 if name in ("check", "fuzz", "replay") else 2 for name in sorted(BASES)])[
        0
    ]
    arguments = [*random_.choice(BASES[name])]
    given: dict[str, str] = {}
    for option, has_value in random_.sample(_commands()[name], random_.choice((0, 1, 1, 1, 2, 3))):
        arguments.append(option)
        if has_value:
            given[option] = _value(random_, name, option)
            arguments.append(given[option])
    if random_.random() < 0.15:
        arguments.insert(1, random_.choice((*TARGETS, *TEXTS, *PATHS)))
        if name == "bench" and len(arguments) > 2:
            arguments.append("--nosuchoption")
    named = {path for option, path in given.items() if option in _PATH_OPTIONS and option not in _READ_OPTIONS}
    named |= {"linked"} if "link" in named else set()
    named |= {STORE, f"{STORE}-wal", f"{STORE}-shm"} if name == "fuzz" else set()
    if named & {".", "..", "", "./"}:
        named |= {"file", "folder", "replay.json"}
    if "--update-baseline" in arguments and "--baseline" in given:
        named |= {given["--baseline"], "linked"}
    quiet = name in NEVER_FINDING and not {"--mutant", "--baseline", "--kernels", "--only", "--again"} & {
        *arguments[1:]
    }
    what = f"{name} {' '.join(f'{option} {value!r:.40}' for option, value in given.items())}".strip()
    return _surrounded(random_, Attack(what, tuple(arguments), 30.0, frozenset(named), quiet, fifo_is_read=True))


def _value(random_: random.Random, command: str, option: str) -> str:
    anything = (*PATHS, *NUMBERS, *TEXTS, *TARGETS)
    if (command, option) == ("fuzz", "--budget-seconds"):  # nothing else ends a campaign
        return random_.choice(tuple(text for text in NUMBERS if text[:2] not in ("1e", "in", "1_", "99")))
    if option == "--jobs":
        return random_.choice(MANY)
    if option == "--hang-seconds":  # one that is short and allowed makes findings of a busy machine
        return random_.choice(tuple(text for text in NUMBERS if text not in ("1", "3")))
    if option in _PATH_OPTIONS:
        return random_.choice(PATHS)
    if option in _TARGET_OPTIONS:
        return random_.choice((*TARGETS, *TEXTS, *PATHS))
    return random_.choice(anything if random_.random() < 0.2 else (*NUMBERS, *TEXTS))


_ENVIRONMENT: tuple[dict[str, str | None], ...] = (
    {"HOME": None},
    {"HOME": "", "XDG_CACHE_HOME": "relative"},
    {"HOME": "file", "SPECSIM_CACHE_DIR": ""},
    {"SPECSIM_CACHE_DIR": "file"},
    {"SPECSIM_CACHE_DIR": "loop"},
    {"SPECSIM_CACHE_DIR": "n" * 300},
    {"SPECSIM_CACHE_DIR": "\x1b[2J"},
    {"SPECSIM_CACHE_DIR": "~nosuchuser"},
    {"TMPDIR": "nowhere"},
    {"PATH": ""},
    {"PATH": None},
    {"LC_ALL": "C", "PYTHONIOENCODING": "ascii", "PYTHONUTF8": "0"},
    {"TERM": "dumb", "COLUMNS": "0"},
    {"COLUMNS": "-1"},
    {"COLUMNS": "x"},
    {"NO_COLOR": "1"},
    {"PYTHONHASHSEED": "7"},
    {"SPECSIM_PYTHONS": "loop:/nowhere:"},
    {"GITHUB_ACTIONS": "true", "GITHUB_STEP_SUMMARY": "folder"},
    {"GITHUB_ACTIONS": "true", "GITHUB_WORKSPACE": "\x1b[2J"},
    {"CI": "true", "GITHUB_SHA": "x"},
    {"TRITON_INTERPRET": "0"},
    {"TRITON_INTERPRET": "x"},
    {"OMP_NUM_THREADS": "x"},
    {"LANG": "xx_XX.nosuch"},
)
_OUTPUTS: tuple[Output, ...] = ("closed", "full", "broken")


def _surrounded(random_: random.Random, attack: Attack) -> Attack:
    kind = random_.randrange(20)
    if kind < 5:
        environment = random_.choice(_ENVIRONMENT)
        said = " ".join(f"{name}={value}"[:40] for name, value in environment.items())
        return replace(attack, environment=environment, what=f"{attack.what} with {said}")
    if kind == 5:
        output = random_.choice(_OUTPUTS)
        return replace(attack, stdout=output, what=f"{attack.what}, its output {output}")
    if kind == 6:
        return replace(attack, cwd_removed=True, what=f"{attack.what}, its folder gone")
    if kind == 7:
        return replace(attack, descriptors=8, what=f"{attack.what}, with 8 descriptors")
    return attack
