"""Configuration guards of SGLang: who can reach a configuration.

Several historic defects sit behind a guard of their release: until overlap speculative decoding ("V2") allowed trees
with topk > 1 (0.5.13), `server_args` either refused that combination (0.5.10.post1) or fell back to the non-overlap
workers (0.5.11 to 0.5.12.post1). A guard is looked for in the source that is tested, not assumed from its version, so
a checkout that removed it is taken as what it is. The same holds of streaming sessions, which 0.5.10.post1 refuses
to open together with the overlap workers.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import dataclass

from specsim.contracts.contract import Sizes
from specsim.contracts.provider import Reach
from specsim.engines.sglang.where import CONFIGURATION, ENVIRONMENT, files
from specsim.lifting.lift import DriftError, ParsedModule, find_function, parse_module
from specsim.lifting.source import SourceTree

OVERLAP_SWITCH = "SGLANG_ENABLE_SPEC_V2"
SESSION_OPENER = "open_session"

# Words that a condition around the guard may contain without making the guard conditional on something else.
_NEUTRAL_WORDS = {"speculative_eagle_topk", "disable_overlap_schedule", "speculative_algorithm", OVERLAP_SWITCH, "get"}
_NEUTRAL_FOR_SESSIONS = {"speculative_algorithm", "disable_overlap_schedule", "server_args", "streaming"}


@dataclass(frozen=True, slots=True)
class Guards:
    """What the source says of its configurations.

    `tree_overlap`    FILE:LINE of the guard against topk > 1 with the overlap workers, "" if there is none
    `tree_is_default` some model gets topk > 1 without asking
    `overlap_is_default` the overlap workers are used without asking
    `session_overlap` FILE:LINE of the guard against streaming sessions with the overlap workers, "" if there is none
    """

    tree_overlap: str
    tree_is_default: bool
    overlap_is_default: bool
    session_overlap: str = ""

    def reach_of_overlap_worker(self, sizes: Sizes) -> Reach:
        """Who reaches the overlap workers (EAGLEWorkerV2) with these sizes."""
        if sizes["topk"] > 1 and self.tree_overlap:
            return f"guarded:{self.tree_overlap}"
        if not self.overlap_is_default or (sizes["topk"] > 1 and not self.tree_is_default):
            return "option"
        return "default"

    def reach_of_sessions(self, sizes: Sizes) -> Reach:
        """Who reaches streaming sessions on the overlap workers with these sizes. Sessions are never on unasked."""
        if self.session_overlap:
            return f"guarded:{self.session_overlap}"
        reach = self.reach_of_overlap_worker(sizes)
        return "option" if reach == "default" else reach


def read_guards(source: SourceTree) -> Guards:
    """Read the guards of a source tree. What cannot be found is taken as absent."""
    modules: list[ParsedModule] = []
    for path in CONFIGURATION:
        try:
            modules.append(parse_module(source, path))
        except DriftError:
            continue
    guard = next((f"{m.path}:{line}" for m in modules for line in _tree_overlap_guards(m.tree.body, [])), "")
    return Guards(
        tree_overlap=guard,
        tree_is_default=any(_chooses_trees(module) for module in modules),
        overlap_is_default=_switch_default(source),
        session_overlap=next(_session_guards(source), ""),
    )


def _session_guards(source: SourceTree) -> Iterator[str]:
    """FILE:LINE of an `if` in the function that opens sessions that refuses them with the overlap workers."""
    for path in files(SESSION_OPENER):
        try:
            module = parse_module(source, path)
        except DriftError:
            continue
        for node in ast.walk(module.tree):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and node.name == SESSION_OPENER:
                yield from (f"{path}:{line}" for line in _overlap_refusals(node.body, []))


def _overlap_refusals(body: list[ast.stmt], around: list[ast.expr]) -> Iterator[int]:
    """Lines of `if ... speculative_algorithm ... disable_overlap_schedule ...` that raise, under nothing but
    `if ... streaming`.
    """
    for statement in body:
        if not isinstance(statement, ast.If):
            continue
        tests = [*around, statement.test]
        words = {node.attr for node in ast.walk(statement.test) if isinstance(node, ast.Attribute)}
        neutral = all(_is_neutral(test, _NEUTRAL_FOR_SESSIONS) for test in tests)
        raises = any(isinstance(inner, ast.Raise) for inner in statement.body)
        if {"speculative_algorithm", "disable_overlap_schedule"} <= words and neutral and raises:
            yield statement.lineno
        yield from _overlap_refusals(statement.body, tests)


def _tree_overlap_guards(body: list[ast.stmt], around: list[ast.expr]) -> Iterator[int]:
    """Lines of `if ... topk > 1 ...` that refuse the configuration or turn the overlap schedule off."""
    for statement in body:
        if isinstance(statement, ast.If):
            tests = [*around, statement.test]
            if _tests_tree(statement.test) and all(map(_is_neutral, tests)) and _refuses(statement.body):
                yield statement.lineno
            yield from _tree_overlap_guards(statement.body, tests)
            yield from _tree_overlap_guards(statement.orelse, around)
        elif isinstance(statement, ast.FunctionDef | ast.ClassDef):
            yield from _tree_overlap_guards(statement.body, [])


def _tests_tree(test: ast.expr) -> bool:
    return any(
        isinstance(node, ast.Compare)
        and isinstance(node.left, ast.Attribute)
        and node.left.attr == "speculative_eagle_topk"
        and isinstance(node.ops[0], ast.Gt)
        and isinstance(node.comparators[0], ast.Constant)
        and node.comparators[0].value == 1
        for node in ast.walk(test)
    )


def _is_neutral(test: ast.expr, words: set[str] = _NEUTRAL_WORDS) -> bool:
    attributes = [node for node in ast.walk(test) if isinstance(node, ast.Attribute)]
    roots = {id(node.value) for node in attributes}
    bare = [node for node in ast.walk(test) if isinstance(node, ast.Name) and id(node) not in roots]
    return {node.attr for node in attributes} <= words and not bare


def _refuses(body: list[ast.stmt]) -> bool:
    for statement in body:
        if isinstance(statement, ast.Raise):
            return True
        if isinstance(statement, ast.Assign) and isinstance(statement.value, ast.Constant):
            target = statement.targets[0]
            if isinstance(target, ast.Attribute) and target.attr == "disable_overlap_schedule":
                return statement.value.value is True
    return False


def _chooses_trees(module: ParsedModule) -> bool:
    try:
        chooser = find_function(module, "auto_choose_speculative_params")
    except DriftError:
        return False
    for node in ast.walk(chooser):
        if isinstance(node, ast.Return) and isinstance(node.value, ast.Tuple) and len(node.value.elts) == 3:
            topk = node.value.elts[1]
            if isinstance(topk, ast.Constant) and isinstance(topk.value, int) and topk.value > 1:
                return True
    return False


def _switch_default(source: SourceTree) -> bool:
    """Whether the switch of the overlap workers is on by default; without a switch they are the only ones."""
    try:
        module = parse_module(source, ENVIRONMENT)
    except DriftError:
        return True
    for node in ast.walk(module.tree):
        if isinstance(node, ast.Assign) and any(
            isinstance(t, ast.Name) and t.id == OVERLAP_SWITCH for t in node.targets
        ):
            constants = [n.value for n in ast.walk(node.value) if isinstance(n, ast.Constant)]
            return True in constants
    return True
