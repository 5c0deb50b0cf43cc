"""A release that depends on addresses, hashes or equal times does the same in every process."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from property_tests.support.source_files import ROOT
from specsim.isolation.environment import of_target
from specsim.isolation.processes import end, start

IMPORTING = """
import json, sys
from pathlib import Path
from specsim.world.clock import Surroundings
from specsim.engines.sglang.scheduler.imports import PACKAGES
from specsim.world.packages import install
around = Surroundings()
install(Path(sys.argv[1]), "made", PACKAGES, around.modules, {}, None)
noise = [object() for _ in range(int(sys.argv[2]))]  # what is at which address differs
answers = {}
for name in sys.argv[3:]:
    module = __import__(f"made.{name}", fromlist=["ANSWER"])
    answers[name] = module.ANSWER
json.dump(answers, open(sys.argv[1] + "/answers.json", "w"))
"""
NODES = """
class Node:
    def __init__(self, name): self.name = name
nodes = [Node(i) for i in range(40)]
"""
TREES = {
    "a set of nodes": NODES + "ANSWER = [n.name for n in set(nodes)]",
    "the first of a set": NODES + "ANSWER = next(iter({*nodes})).name",
    "what a set pops": NODES + "left = set(nodes)\nANSWER = [left.pop().name for _ in range(20)]",
    "a difference of sets": NODES + "ANSWER = [n.name for n in set(nodes) - set(nodes[:9])]",
    "a frozen set": NODES + "ANSWER = [n.name for n in frozenset(nodes)]",
    "a set that shrank and grew": NODES
    + """
live = set(nodes)
for node in nodes[::3]: live.discard(node)
live |= {Node(i) for i in range(100, 120)}
ANSWER = [n.name for n in live]
""",
    "leaves after a collection": NODES
    + """
import gc
leaves = set(nodes[10:])
nodes = []
gc.collect()
leaves |= {Node(i) for i in range(200, 230)}
ANSWER = [n.name for n in leaves]
""",
    "objects with slots": """
class Node:
    __slots__ = ("name",)
    def __init__(self, name): self.name = name
ANSWER = [n.name for n in {Node(i) for i in range(40)}]
""",
    "objects of a base class": """
class Base: ...
class Node(Base):
    def __init__(self, name): self.name = name
ANSWER = [n.name for n in {Node(i) for i in range(40)}]
""",
    "objects of a made-up base class": """
from transformers import PretrainedConfig
class Node(PretrainedConfig):
    def __init__(self, name): self.name = name
ANSWER = [n.name for n in {Node(i) for i in range(40)}]
""",
    "data classes compared by identity": """
from dataclasses import dataclass
@dataclass(eq=False)
class Node: name: int
ANSWER = [n.name for n in {Node(i) for i in range(40)}]
""",
    "data classes with slots compared by identity": """
from dataclasses import dataclass
@dataclass(eq=False, slots=True, weakref_slot=True)
class Node: name: int
ANSWER = [n.name for n in {Node(i) for i in range(40)}]
""",
    "requests sorted by id": NODES + "ANSWER = [n.name for n in sorted(nodes, key=id)]",
    "ids in a set": NODES + "ids = {id(n): n.name for n in nodes}\nANSWER = [ids[i] for i in set(ids)]",
    "the smallest id": NODES + "ANSWER = min(nodes, key=lambda n: id(n) % 7).name",
    "ids of short-lived objects": NODES + "ANSWER = [id(Node(i)) % 11 for i in range(40)]",
    "hashes of nodes": NODES + "ANSWER = sorted(nodes, key=hash)[0].name",
    "names in a set": "ANSWER = list({f'r{i}' for i in range(40)})",
    "the hash of a name": "ANSWER = [hash(f'r{i}') % 8 for i in range(40)]",
    "members of an enumeration": """
from enum import Enum
Mode = Enum("Mode", [f"M{i}" for i in range(20)])
ANSWER = [mode.name for mode in set(Mode)]
""",
    "ties of a clock": NODES
    + """
import time
for node in nodes: node.last = time.monotonic()
ANSWER = [n.name for n in sorted(set(nodes), key=lambda n: n.last)]
""",
    "a set of functions": """
def step(): ...
made = [eval(f"lambda: {i}") for i in range(40)]
ANSWER = [f() for f in set(made)]
""",
    "a set of classes": "ANSWER = [t.__name__ for t in {type(f'T{i}', (), {}) for i in range(40)}]",
}
VALUES = """
import dataclasses
from dataclasses import dataclass
from enum import Enum
from typing import NamedTuple
@dataclass(frozen=True)
class Key: size: int
@dataclasses.dataclass(unsafe_hash=True)
class Other:
    size: int
class Pair(NamedTuple):
    size: int
class Mode(Enum):
    ONE = 1
class Own:
    def __eq__(self, other): return True
    def __hash__(self): return 3
@dataclass
class Plain: size: int
try:
    hash(Plain(1))
    plain = "hashed"
except TypeError:
    plain = "unhashable"
ANSWER = [Key(1) in {Key(1)}, Other(1) in {Other(1)}, Pair(1) in {Pair(1)} and Mode(1) in {Mode.ONE}, hash(Own()) == 3,
          plain]
"""
MODULES = {title: title.replace(" ", "_").replace("-", "_") for title in TREES}


def answers(folder: Path, trees: Mapping[str, str], noise: int = 0) -> dict[str, Any]:
    """What modules of a release say in a process that has so many other objects."""
    (folder / "made").mkdir(exist_ok=True)
    (folder / "made" / "__init__.py").touch()
    for name, source in trees.items():
        (folder / "made" / f"{name}.py").write_text(source)
    command = [sys.executable, "-c", IMPORTING, str(folder), str(noise), *trees]
    process = start(command, of_target(hash_seed="0"), stderr=subprocess.DEVNULL, cwd=ROOT)
    try:
        assert process.wait(120) == 0
    finally:
        end(process)
    read: dict[str, Any] = json.loads((folder / "answers.json").read_text())
    return read


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, Any]]:
    folder = tmp_path_factory.mktemp("release")
    trees = {name: TREES[title] for title, name in MODULES.items()}
    return [answers(folder, trees, noise) for noise in (0, 12_345, 0)]


OF_ADDRESSES = {"a set of functions", "a set of classes"}


@pytest.mark.parametrize("title", sorted(TREES.keys() - OF_ADDRESSES))
def test_a_tree_does_the_same_whatever_lies_at_which_address(runs: list[dict[str, Any]], title: str) -> None:
    one, two, _ = (run[MODULES[title]] for run in runs)
    assert one == two


@pytest.mark.parametrize("title", sorted(TREES))
def test_a_tree_does_the_same_in_the_same_process_twice(runs: list[dict[str, Any]], title: str) -> None:
    one, _, again = (run[MODULES[title]] for run in runs)
    assert one == again


def test_a_set_of_nodes_is_not_in_their_order_by_chance(runs: list[dict[str, Any]]) -> None:
    """Else a release that needs an order, and has none, would look as if it had one."""
    assert runs[0]["a_set_of_nodes"] != sorted(runs[0]["a_set_of_nodes"])


def test_what_is_compared_by_value_is_hashed_by_value(tmp_path: Path) -> None:
    assert answers(tmp_path, {"values": VALUES})["values"] == [True, True, True, True, "unhashable"]
