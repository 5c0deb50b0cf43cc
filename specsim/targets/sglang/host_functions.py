"""The host functions of one SGLang, lifted: which part of the seam is whose, and classes to make a run's objects of."""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import partial
from types import SimpleNamespace
from typing import Any

from specsim.sim.target import PARTS, SeamPart
from specsim.targets.lift import DriftError, LiftedFunction, Lifter, ParsedModule, TextStore, class_functions
from specsim.targets.sglang import host_names as names
from specsim.targets.sglang import host_objects as objects
from specsim.targets.sglang.host_names import HostFunction
from specsim.targets.source import SourceTree

# Parts that are the simulator's own for every release.
MODEL_PARTS = ("row width", "extend", "abort")
SESSION_PARTS = tuple(names.SESSION_ENTRIES.values())

# The attribute of an exception that names the part that raised it.
PART_OF_ERROR = "specsim_part"


@dataclass(slots=True)
class CurrentRun:
    """What lifted functions take from the process: set before each call, so that no run sees another's."""

    server_args: Any = None
    rows: Any = None


@dataclass(slots=True)
class HostFunctions:
    """Everything that a run needs of a release.

    `parts`           by name; a part that is real counts its calls
    `request_type`    `Req` with the release's methods, `request_fields` what its `__init__` sets
    `batch_type`      `ScheduleBatch`, `processor_type` the owner of `resolve`
    `tree_type`       the cache of requests without a radix tree; `session_type` wraps it, None when it is not run
    `missing`         parts without which nothing can be simulated, with the reasons
    """

    parts: dict[str, SeamPart]
    current: CurrentRun = field(default_factory=CurrentRun)
    missing: list[str] = field(default_factory=list)
    request_type: Any = None
    request_fields: dict[str, Any] = field(default_factory=dict)
    server_defaults: dict[str, Any] = field(default_factory=dict)
    batch_type: Any = None
    processor_type: Any = None
    tree_type: Any = None
    session_type: Any = None
    abort_type: Any = None
    prepare: Any = None
    release: Any = None
    finish_check: str = ""
    resolve: str = ""
    accepted_drafts: str = ""
    histogram: str = ""
    batch_accepted_drafts: str = ""
    fill_ids: tuple[str, ...] = ()

    def give_up(self, part: str, why: str) -> None:
        """Do not run a part; sessions need all of theirs, and the rest is needed by everybody."""
        self.parts[part] = SeamPart(part, "not run", why=why)
        if part not in SESSION_PARTS:
            self.missing.append(f"{part} ({why})")
            return
        self.session_type = None
        for other in SESSION_PARTS:
            if self.parts[other].kind == "real":
                self.parts[other] = SeamPart(other, "not run", why=f"sessions need {part}: {why}")


def lift_host_functions(source: SourceTree, store: TextStore) -> HostFunctions:
    """Lift the host functions of a source tree. What cannot be lifted is a part that is not run."""
    return _Lifting(source, store).run()


class _AlreadyGivenUpError(Exception):
    """A function is needed of a part that was found not to run."""


class _Lifting:
    """One source tree on its way to `HostFunctions`."""

    def __init__(self, source: SourceTree, store: TextStore) -> None:
        self._lifter = Lifter(source, store, {})
        self._result = HostFunctions({name: SeamPart(name, "model") for name in PARTS})
        self._places: dict[HostFunction, tuple[str, str]] = {}
        self._given = self._supplied()

    def run(self) -> HostFunctions:
        result = self._result
        for part in (part for part in PARTS if part not in MODEL_PARTS):
            result.parts[part].kind = "real"
        for function in names.HOST_FUNCTIONS:
            self._guard(function.part, partial(self._find, function))
        self._guard("finish check", self._finish_reasons)
        self._guard("alloc length", self._alloc_length)
        self._guard("release", self._release)
        self._guard("prepare", self._prepare)
        self._guard("release", self._tree)
        self._guard("session save", self._sessions)
        self._guard("resolve", self._resolve)
        self._guard("finish check", self._request)
        self._guard("decode need", self._batch)
        return result

    # Finding

    def _guard(self, part: str, step: Callable[[], object]) -> None:
        """Take a step of lifting; when it fails, the part is not run, unless it failed for want of another part."""
        try:
            step()
        except _AlreadyGivenUpError:
            return
        except DriftError as error:
            if self._result.parts[part].kind == "real":
                self._result.give_up(part, str(error))

    def _find(self, function: HostFunction) -> None:
        """Look a function up, and note where it is; the lift is made later, with what it needs."""
        lifted: LiftedFunction | None = None
        for path, name in function.places:
            if self._defines(path, name):
                lifted = self._lifter.lift_method(path, name, _Anything(self._given))
                self._places[function] = (path, name)
                break
        if lifted is None and function.optional:
            return
        if lifted is None:
            wanted = " or ".join(f"{name} in {path}" for path, name in function.places)
            raise DriftError(f"not found: {wanted}")
        if function.signatures and lifted.parameters not in function.signatures:
            raise DriftError(f"signature changed: {lifted.where} {lifted.name}({', '.join(lifted.parameters)})")
        part = self._result.parts[function.part]
        if part.kind == "real" and not part.where:
            part.where, part.source_hash = lifted.where, lifted.body_hash

    def _defines(self, path: str, name: str) -> bool:
        if not self._lifter.source.exists(path):
            return False
        module = self._lifter.module(path)
        class_name, _, method = name.rpartition(".")
        return method in class_functions(module, class_name) if class_name else name in module.definitions

    def _place(self, function: HostFunction) -> tuple[str, str]:
        if function not in self._places:
            raise _AlreadyGivenUpError(function.part)
        return self._places[function]

    def _lift(self, function: HostFunction) -> Any:
        path, name = self._place(function)
        return self._lifter.lift_method(path, name, self._given).value

    def _counted(self, part: str, function: Callable[..., Any]) -> Callable[..., Any]:
        """The function of a part: counts its calls, and marks what it raises with the part."""
        seam_part = self._result.parts[part]

        def counted(*arguments: Any, **named: Any) -> Any:
            seam_part.calls += 1
            try:
                return function(*arguments, **named)
            except Exception as error:
                error.__dict__.setdefault(PART_OF_ERROR, part)
                raise

        return counted

    # What is given in place of the release's own

    def _supplied(self) -> dict[str, Any]:
        current = self._result.current
        return {
            "get_global_server_args": lambda: current.server_args,
            "envs": objects.Environment(),
            "logger": objects.SILENT,
            "get_last_loc": objects.last_locations,
            "assign_req_to_token_pool_func": lambda rows, _table, starts, ends, slots, _bs: objects.write_rows(
                current.rows, rows, starts, ends, slots
            ),
            "RadixKey": objects.radix_key,
            "HybridReqToTokenPool": objects.NotUsed,
            "SWATokenToKVPoolAllocator": objects.NotUsed,
            "DeepSeekV4HiSparseTokenToKVPoolAllocator": objects.NotUsed,
            "extend_mrope_positions_for_retracted_request": objects.NotUsed,
            "NewTokenRatioTracker": SimpleNamespace(estimate_new_token_ratio_after_retract=lambda _reqs: 1.0),
            names.TREE_BASE_CLASS: objects.PrefixCacheFields,
        }

    # Lifting

    def _finish_reasons(self) -> None:
        path, _ = names.REQUEST_CLASS
        found = [name for name in self._lifter.module(path).definitions if name.startswith(names.FINISH_CLASSES)]
        if names.ABORT_CLASS not in found:
            raise DriftError(f"not found: {names.ABORT_CLASS} in {path}")
        classes = self._lifter.lift_together(path, found, self._given)
        self._given.update({name: lifted.value for name, lifted in classes.items()})
        self._result.abort_type = self._given[names.ABORT_CLASS]

    def _alloc_length(self) -> None:
        self._given["get_alloc_len_per_decode"] = self._counted("alloc length", self._lift(names.ALLOC_LEN))
        if names.ALLOC_RESERVE in self._places:
            self._given["get_alloc_reserve_per_decode"] = self._lift(names.ALLOC_RESERVE)

    def _release(self) -> None:
        self._result.release = self._counted("release", self._lift(names.RELEASE))
        self._given["release_kv_cache"] = self._result.release

    def _prepare(self) -> None:
        self._place(names.ALLOC_LEN)
        self._result.prepare = self._counted("prepare", self._lift(names.PREPARE))

    def _tree(self) -> None:
        path, name = names.TREE_CLASS
        self._result.tree_type = self._lifter.lift_method(path, name, self._given).value

    def _sessions(self) -> None:
        for function in (names.NEXT_ROUND, names.SESSION_SAVE, names.SESSION_CLOSE):
            self._place(function)
        path, match = self._place(names.SESSION_MATCH)
        class_name = match.split(".")[0]
        self._lift(names.NEXT_ROUND)
        lifted = self._lifter.lift_method(path, class_name, self._given).value
        entries = {entry: self._counted(part, getattr(lifted, entry)) for entry, part in names.SESSION_ENTRIES.items()}
        self._result.session_type = type(class_name, (lifted,), entries)

    def _resolve(self) -> None:
        path, name = self._place(names.RESOLVE)
        class_name, _, self._result.resolve = name.partition(".")
        methods = self._methods((path, class_name), [self._result.resolve], objects.ResultProcessorFields)
        self._replace(methods, self._result.resolve, "resolve")
        self._result.processor_type = type(class_name, (objects.ResultProcessorFields,), methods)
        written = {node.attr for node in ast.walk(self._node(names.RESOLVE)) if isinstance(node, ast.Attribute)}
        self._result.batch_accepted_drafts = _first(
            names.RESULT_ACCEPTED_DRAFTS, written, "the batch's accepted drafts"
        )

    def _request(self) -> None:
        result = self._result
        path, class_name = names.REQUEST_CLASS
        module = self._lifter.module(path)
        result.finish_check = self._place(names.FINISH_CHECK)[1].split(".")[1]
        reset = self._place(names.RESET)[1].split(".")[1]
        methods = self._methods(names.REQUEST_CLASS, [result.finish_check, reset], objects.RequestFields)
        self._replace(methods, result.finish_check, "finish check")
        self._replace(methods, reset, "reset for retract")
        result.request_type = type(class_name, (objects.RequestFields,), methods)
        result.request_fields = _fields_set_by_init(module, class_name)
        result.accepted_drafts = _first(names.REQUEST_ACCEPTED_DRAFTS, result.request_fields, "accepted drafts")
        result.histogram = _first(names.REQUEST_HISTOGRAM, result.request_fields, "the histogram")
        result.fill_ids = tuple(name for name in names.REQUEST_FILL_IDS if name in result.request_fields)

    def _batch(self) -> None:
        _, class_name = names.BATCH_CLASS
        wanted = [self._place(function)[1].split(".")[1] for function in (names.NEED, names.RETRACT)]
        methods = self._methods(names.BATCH_CLASS, wanted, objects.BatchFields)
        for name, part in zip(wanted, ("decode need", "retract"), strict=True):
            self._replace(methods, name, part)
        self._result.batch_type = type(class_name, (objects.BatchFields,), methods)
        args_path, args_class = names.SERVER_ARGS_CLASS
        if self._lifter.source.exists(args_path):
            self._result.server_defaults = _class_defaults(self._lifter.module(args_path), args_class)

    def _replace(self, methods: dict[str, Any], name: str, part: str) -> None:
        methods[name] = self._counted(part, methods[name])

    def _node(self, function: HostFunction) -> ast.FunctionDef:
        path, name = self._place(function)
        class_name, _, method = name.rpartition(".")
        module = self._lifter.module(path)
        if class_name:
            return class_functions(module, class_name)[method][-1]
        return next(s for s in module.definitions[name] if isinstance(s, ast.FunctionDef))

    def _methods(self, place: tuple[str, str], wanted: list[str], ours: type) -> dict[str, Any]:
        """The methods of a class that the lifted functions may call, by what attributes they use; not those that are
        ours. One that cannot be lifted is left out, unless it is wanted.
        """
        path, class_name = place
        functions = class_functions(self._lifter.module(path), class_name)
        in_table = [name.rpartition(".") for file, name in self._places.values() if file == path]
        found = dict.fromkeys([*wanted, *(name for owner, _, name in in_table if owner == class_name)])
        todo: list[ast.AST] = [self._node(function) for function in self._places]
        while todo:
            for name in _attributes(todo.pop()):
                if name in functions and name not in found and not hasattr(ours, name):
                    found[name] = None
                    todo += functions[name]
        methods: dict[str, Any] = {}
        for name in found:
            try:
                methods[name] = self._lifter.lift_method(path, f"{class_name}.{name}", self._given).value
            except DriftError:
                if name in wanted:
                    raise
        return methods


class _Anything(Mapping[str, Any]):
    """What is given, and None for every other name: a look at a function before what it needs is lifted."""

    def __init__(self, given: Mapping[str, Any]) -> None:
        self._given = given

    def __contains__(self, _name: object) -> bool:
        return True

    def __getitem__(self, name: str) -> Any:
        return self._given.get(name)

    def __iter__(self) -> Iterator[str]:
        return iter(self._given)

    def __len__(self) -> int:
        return len(self._given)


def _first(candidates: Iterable[str], present: Iterable[str], what: str) -> str:
    there = set(present)
    for name in candidates:
        if name in there:
            return name
    raise DriftError(f"not found: {what} under any of the names {', '.join(candidates)}")


def _attributes(node: ast.AST) -> list[str]:
    return [child.attr for child in ast.walk(node) if isinstance(child, ast.Attribute)]


def _fields_set_by_init(module: ParsedModule, class_name: str) -> dict[str, Any]:
    """The attributes that `__init__` sets on self: the literal where it is one, else None."""
    fields: dict[str, Any] = {}
    for function in class_functions(module, class_name).get("__init__", ()):
        for node in ast.walk(function):
            if isinstance(node, ast.Assign | ast.AnnAssign) and node.value is not None:
                targets = node.targets if isinstance(node, ast.Assign) else [node.target]
                for target in targets:
                    if isinstance(target, ast.Attribute) and getattr(target.value, "id", "") == "self":
                        fields[target.attr] = _literal(node.value)
    return fields


def _class_defaults(module: ParsedModule, class_name: str) -> dict[str, Any]:
    """The literal defaults of a dataclass' fields; None where the default is not a literal."""
    classes = [s for s in module.definitions.get(class_name, ()) if isinstance(s, ast.ClassDef)]
    return {
        statement.target.id: _literal(statement.value)
        for statement in (classes[-1].body if classes else ())
        if isinstance(statement, ast.AnnAssign) and isinstance(statement.target, ast.Name) and statement.value
    }


def _literal(value: ast.expr) -> Any:
    try:
        return ast.literal_eval(value)
    except ValueError:
        return None
