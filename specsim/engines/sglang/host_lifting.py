"""How the host functions of one SGLang are lifted: part by part, each with what it needs of the others."""

from __future__ import annotations

import ast
import contextlib
import dataclasses
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from functools import lru_cache, partial
from types import SimpleNamespace
from typing import Any

from specsim.engine.accounting_target import SeamPart
from specsim.engines.sglang import host_names as names
from specsim.engines.sglang import host_objects as objects
from specsim.engines.sglang import locations, row_pool, session_classes, stubs
from specsim.engines.sglang import memory_classes as memory
from specsim.engines.sglang import pool_sizes as sizes
from specsim.engines.sglang.drift import attribute_is_declared
from specsim.engines.sglang.host_functions import (
    ALL_PARTS,
    MODEL_PARTS,
    PART_OF_ERROR,
    PARTS_TO_DO_WITHOUT,
    HostFunctions,
    PenaltyFeed,
)
from specsim.engines.sglang.host_names import HostFunction
from specsim.engines.sglang.host_objects import Field
from specsim.engines.sglang.penalties import NOT_FED, knows_outputs
from specsim.engines.sglang.radix_classes import VirtualClock, calls, lift_radix
from specsim.engines.sglang.session_classes import lift_session
from specsim.lifting.function_lines import assignments, lines_of
from specsim.lifting.lift import (
    DriftError,
    LiftedFunction,
    Lifter,
    ParsedModule,
    TextStore,
    body_hash,
    class_functions,
    find_definitions,
    is_emptied,
)
from specsim.lifting.source import SourceTree


def lift_host_functions(source: SourceTree, store: TextStore) -> HostFunctions:
    """Lift the host functions of a source tree. What cannot be lifted is a part that is not run."""
    return _Lifting(source, store).run()


class _AlreadyGivenUpError(Exception):
    """A function is needed of a part that was found not to run."""


@dataclass(slots=True)
class _Duck:
    """A class of ours that gets methods of the release's class of the same meaning: those that lifted code names."""

    path: str
    name: str
    ours: type
    made: type
    seen: set[str] = field(default_factory=set)


class _Lifting:
    """One source tree on its way to `HostFunctions`."""

    def __init__(self, source: SourceTree, store: TextStore) -> None:
        self._lifter = Lifter(source, store, {})
        self._result = HostFunctions({name: SeamPart(name, "model") for name in ALL_PARTS})
        self._result.lines_run = self._lifter.lines_run
        signs = names.FEATURE_SIGNS.items()
        self._result.has_signs_of = frozenset(name for name, place in signs if self._defines(*place))
        self._result.declares = lru_cache(partial(attribute_is_declared, source))
        self._places: dict[HostFunction, tuple[str, str]] = {}
        self._parameters: dict[HostFunction, tuple[str, ...]] = {}
        self._ducks: list[_Duck] = []
        self._given = self._supplied()
        if self._defines(*names.RADIX_KEY):
            self._given[names.RADIX_KEY[1]] = self._lifter.lift_method(*names.RADIX_KEY, self._given).value

    def run(self) -> HostFunctions:
        result = self._result
        for part in (part for part in ALL_PARTS if part not in MODEL_PARTS):
            result.parts[part].kind = "real"
        for function in names.HOST_FUNCTIONS:
            self._guard(function.part, partial(self._find, function))
        self._guard("finish check", self._finish_reasons)
        self._guard("finish check", self._record)
        self._guard("alloc length", self._alloc_length)
        self._guard("row width", self._row_width)
        self._guard(names.POOL_SIZE.part, self._pool_sizes)
        self._guard("release", self._release)
        self._guard("prepare", self._prepare)
        self._guard("release", self._memory)
        for name in names.SLOT_ALLOCATORS:
            self._guard(name, partial(self._slots, name))
        self._guard("window allocator", self._window)
        self._guard(row_pool.PART, self._rows)
        self._guard("radix cache", self._radix)
        self._guard("session save", self._sessions)
        self._guard("resolve", self._resolve)
        self._guard(names.PROCESS.part, self._process)
        self._guard("finish check", self._request)
        self._guard("decode need", self._batch)
        self._guard(session_classes.PART, self._controller)
        self._guard(names.PENALTY_FEED.part, self._penalty_feed)
        self._methods_of_ducks()
        self._guard(names.DRAFT_LOCATIONS.part, partial(self._locations, names.DRAFT_LOCATIONS))
        self._guard(names.VERIFY_LOCATIONS.part, partial(self._locations, names.VERIFY_LOCATIONS))
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
                lifted = self._lifter.look(path, name)
                break
        if lifted is None and function.optional:
            return
        if lifted is None:
            wanted = " or ".join(f"{name} in {path}" for path, name in function.places)
            raise DriftError(f"not found: {wanted}")
        if function.signatures and lifted.parameters not in function.signatures:
            raise DriftError(f"signature changed: {lifted.where} {lifted.name}({', '.join(lifted.parameters)})")
        self._places[function], self._parameters[function] = (path, name), lifted.parameters
        self._note(function.part, path, lifted, self._node(function))

    def _note(self, part_name: str, path: str, lifted: LiftedFunction, node: ast.AST) -> None:
        """Note where the first function of a part is, and the lines of all of them."""
        part = self._result.parts[part_name]
        if part.kind == "real" and not part.where:
            part.where, part.source_hash = lifted.where, lifted.body_hash
        self._result.lines_of_parts.setdefault(part_name, {}).setdefault(path, set()).update(lines_of(node))

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
                # A compiled exception takes no attribute: it is the simulator's own, whose part nobody reads.
                with contextlib.suppress(AttributeError):
                    setattr(error, PART_OF_ERROR, getattr(error, PART_OF_ERROR, part))
                raise

        return counted

    # What is given in place of the release's own

    def _supplied(self) -> dict[str, Any]:
        current = self._result.current
        getters = [
            name
            for path in names.CONFIGURATION
            if self._lifter.source.exists(path)
            for name in self._lifter.module(path).definitions
            if name.startswith("get_")
        ]
        has_events = self._lifter.source.exists(names.EVENTS_FILE)
        defined = self._lifter.module(names.EVENTS_FILE).definitions if has_events else ()
        events = [name for name in defined if name[0].isupper()]
        return {
            **dict.fromkeys([names.CONFIGURATION_BEFORE, *getters], lambda: current.server_args),
            "envs": objects.Environment(),
            "logger": objects.SILENT,
            "log_info_on_rank0": stubs.nothing,
            "get_last_loc": objects.last_locations,
            "assign_req_to_token_pool_func": lambda rows, _table, starts, ends, slots, _bs: objects.write_rows(
                current.rows, rows, starts, ends, slots
            ),
            "SpeculativeAlgorithm": objects.Eagle(),
            # The numbers of steps that a server with adaptive steps may take; the maximum is what matters.
            "resolve_candidate_steps_from_config": lambda **_named: (current.steps_max,),
            "time": VirtualClock(),
            **dict.fromkeys(events, objects.NotUsed),
            "HybridReqToTokenPool": objects.NotUsed,
            "SWATokenToKVPoolAllocator": objects.NotUsed,
            "DeepSeekV4HiSparseTokenToKVPoolAllocator": objects.NotUsed,
            "extend_mrope_positions_for_retracted_request": objects.NotUsed,
            "NewTokenRatioTracker": SimpleNamespace(estimate_new_token_ratio_after_retract=lambda _reqs: 1.0),
            "page_interleave_shard_size": lambda _allocator: 1,
            "is_npu": lambda: False,
            "is_hip": lambda: False,
            "get_bool_env_var": lambda _name, _default="false": False,
            # A machine without Triton; a release that does not check launches its kernel.
            "alloc_decode_kernel": objects.NotUsed,  # of decoding without drafts
            "current_platform": SimpleNamespace(capabilities=SimpleNamespace(supports_triton=False)),
            "configured_pp_size": lambda: 1,
            "get_world_group": objects.NotUsed,
            "is_pin_memory_available": lambda *_device: False,
            "_is_npu": False,
            "_alloc_paged_token_slots_extend_npu": objects.NotUsed,
            "mamba_extra_buffer_lazy_enabled": lambda: False,
            "BaseSpecWorker": objects.NotUsed,
            "AbortReq": objects.NotUsed,
            # Of requests that search with beams, of which there are none.
            "num_beam_member_rows": lambda _reqs: 0,
            "beam_retraction_order": lambda order, _reqs: order,
            "free_member_rows": objects.NotUsed,
            # Of servers that only decode.
            "retraction_backup": objects.NotUsed,
            "backup_kv_cache": objects.NotUsed,
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

    def _record(self) -> None:
        path, class_name = names.KV_RECORD
        fields: dict[str, Any] = {}
        if class_name in self._lifter.module(path).definitions:
            fields = _class_fields(self._lifter.module(path), class_name)
            record = self._lifter.lift_method(path, class_name, self._given).value
            self._given[class_name] = record
            needed = [f.name for f in dataclasses.fields(record) if _is_required(f)]
            self._result.record_type = lambda: record(**dict.fromkeys(needed, 0))
        for meaning, name in names.RECORD_FIELDS.items():
            setattr(self._result, meaning, Field(name, name in fields))

    def _alloc_length(self) -> None:
        alloc_len = self._counted("alloc length", self._lift(names.ALLOC_LEN))
        self._given["get_alloc_len_per_decode"] = self._result.alloc_len = alloc_len
        if names.ALLOC_RESERVE in self._places:
            self._given["get_alloc_reserve_per_decode"] = self._lift(names.ALLOC_RESERVE)

    def _row_width(self) -> None:
        if names.ROW_WIDTH in self._places:
            self._place(names.ALLOC_LEN)
            width = self._counted("row width", self._lift(names.ROW_WIDTH))
            takes_options = bool(self._parameters[names.ROW_WIDTH])
            self._result.row_width = width if takes_options else lambda _server_args: width()
            return
        path, function, variable = names.ROW_WIDTH_LOCAL
        if not self._defines(path, function):
            wanted = " or ".join(f"{name} in {where}" for where, name in (*names.ROW_WIDTH.places, (path, function)))
            raise DriftError(f"not found: {wanted}")
        lifted = self._lifter.lift_local(path, function, variable, self._given)
        owner = find_definitions(self._lifter.module(path), function)[-1]
        self._note("row width", path, lifted, ast.Module(assignments(owner, variable), []))
        width = self._counted("row width", lifted.value)
        self._result.row_width = lambda server_args: width(objects.StrictFields("ModelRunner", server_args=server_args))

    def _pool_sizes(self) -> None:
        path, name = self._place(names.POOL_SIZE)
        class_name, _, method = name.partition(".")
        sizer: Any = self._duck((path, class_name), sizes.SizerFields)
        if self._lifter.source.exists(names.POOL_CONFIGURATOR[0]):
            base = self._duck(names.POOL_CONFIGURATOR_BASE, sizes.AnyConfigurator)
            configurator = self._duck(names.POOL_CONFIGURATOR, sizes.ConfiguratorFields, base)
            self._given["create_memory_pool_configurator"] = lambda _sizer: configurator()
        self._put(sizer, path, class_name, method, names.POOL_SIZE.part)
        size = getattr(sizer, method)
        self._result.pool_sizes = lambda options, config: sizes.pool_sizes(
            lambda own: size(own, 0), sizer(config, options), config
        )

    def _release(self) -> None:
        release = self._counted("release", self._lift(names.RELEASE))

        def releasing(req: Any, *arguments: Any, **named: Any) -> None:
            steps = self._result.current.steps
            if steps is not None:
                steps.releasing(req)
            release(req, *arguments, **named)
            if steps is not None:
                steps.released(req)

        self._given["release_kv_cache"] = releasing
        parameters = self._parameters[names.RELEASE]
        at_the_end = {name: value for name, value in names.AT_THE_END.items() if name in parameters}
        self._result.release = partial(release, **at_the_end)
        self._result.drop = partial(release, **dict.fromkeys(at_the_end, False))

    def _prepare(self) -> None:
        self._place(names.ALLOC_LEN)
        prepare = self._counted("prepare", self._lift(names.PREPARE))
        is_method = self._parameters[names.PREPARE][0] == "self"
        self._result.prepare = partial(prepare, objects.StrictFields("EagleDraftInput")) if is_method else prepare

    def _memory(self) -> None:
        """The cache without a tree, on the base class that its release has, and the allocator."""
        base = self._duck(names.CACHE_BASE, objects.PrefixCacheFields)
        self._given[names.CACHE_BASE[1]] = base
        for place in names.ALLOCATOR_BASES:
            if self._lifter.source.exists(place[0]):
                self._result.allocator_type = self._duck(place, objects.SlotAllocator)
                break
        else:
            raise DriftError(f"not found: {' or '.join(path for path, _ in names.ALLOCATOR_BASES)}")
        for cache in names.CACHES:
            if self._lifter.source.exists(cache.path):
                break
        else:
            raise DriftError(f"not found: {' or '.join(cache.path for cache in names.CACHES)}")
        self._result.tree_has_sessions = cache.has_sessions
        if not cache.has_sessions:
            self._result.make_tree = self._lifter.lift_method(cache.path, cache.name, self._given).value
            return
        match_type = self._lifter.lift_method(*names.MATCH_RESULT, self._given).value
        no_match = match_type(0, None, None, None)
        methods = self._lifter.lift_method
        tree = self._duck((cache.path, cache.name), objects.DisabledTreeFields, base)
        for name in names.CACHE_WITH_SESSIONS:
            setattr(tree, name, methods(cache.path, f"{cache.name}.{name}", self._given).value)
        self._result.make_tree = partial(tree, no_match=no_match)

    def _slots(self, part: str) -> None:
        released = memory.lift_slots(
            self._lifter, part, self._given, self._result.current, partial(self._counted, part)
        )
        self._note_class(part, released.path, released.lifted)
        self._result.slot_types[part] = released.slots

    def _window(self) -> None:
        place = next((f"{path}: {name}" for path, name in names.WINDOW_ALLOCATORS if self._defines(path, name)), "")
        raise DriftError(
            f"{place or 'no such class'}: sliding windows of releases are not simulated; that needs its two pools "
            "under our ledgers, and the release's own eviction and cache of a window"
        )

    def _rows(self) -> None:
        released = row_pool.lift_rows(self._lifter, self._given, partial(self._counted, row_pool.PART))
        self._note_class(row_pool.PART, released.path, released.lifted)
        self._result.row_type = released.pool

    def _note_class(self, part: str, path: str, lifted: LiftedFunction) -> None:
        self._note(part, path, lifted, find_definitions(self._lifter.module(path), lifted.name)[-1])

    def _controller(self) -> None:
        sessions = lift_session(self._lifter, self._given, partial(self._counted, session_classes.PART))
        self._note_class(session_classes.PART, sessions.path, sessions.lifted)
        self._result.sessions = sessions

    def _radix(self) -> None:
        path, class_name = names.RADIX_CACHE
        radix = lift_radix(self._lifter, self._given, self._counted)
        self._note_class("radix cache", path, radix.lifted)
        for part, method in names.TREE_ENTRIES.items():
            self._note_class(part, path, self._lifter.look(path, f"{class_name}.{method}"))
        self._result.radix = radix

    def _sessions(self) -> None:
        for function in (names.NEXT_ROUND, names.SESSION_SAVE, names.SESSION_CLOSE):
            self._place(function)
        path, match = self._place(names.SESSION_MATCH)
        class_name = match.split(".")[0]
        self._lift(names.NEXT_ROUND)
        lifted = self._lifter.lift_method(path, class_name, self._given).value
        entries = {}
        for part, candidates in names.SESSION_ENTRIES.items():
            entry = _first(candidates, vars(lifted), f"{part} of {class_name}")
            entries[entry] = self._counted(part, getattr(lifted, entry))
        self._result.session_type = type(class_name, (lifted,), entries)

    def _resolve(self) -> None:
        path, name = self._place(names.RESOLVE)
        class_name, _, self._result.resolve = name.partition(".")
        owner = self._duck((path, class_name), objects.ResultProcessorFields)
        self._put(owner, path, class_name, self._result.resolve, "resolve")
        setattr(owner, self._result.resolve, self._with_steps(getattr(owner, self._result.resolve), after="resolved"))
        self._result.processor_type = owner
        written = {node.attr for node in ast.walk(self._node(names.RESOLVE)) if isinstance(node, ast.Attribute)}
        self._result.batch_accepted_drafts = _first(
            names.RESULT_ACCEPTED_DRAFTS, written, "the batch's accepted drafts"
        )

    def _process(self) -> None:
        owner = self._result.processor_type
        path, name = self._place(names.PROCESS)
        if self._place(names.RESOLVE)[0] != path or owner is None:
            raise DriftError(f"{name} is not where {names.RESOLVE.part} is")
        class_name, _, method = name.partition(".")
        self._put(owner, path, class_name, method, names.PROCESS.part)
        self._result.process = method
        self._result.groups_prefills = any(
            calls(self._lifter, place, names.FREE_GROUP) for place in names.PREFILL_RESULT if self._defines(*place)
        )

    def _with_steps(self, function: Callable[..., Any], before: str = "", after: str = "") -> Callable[..., Any]:
        """The function, reported to the loop before and after, while the release handles a result."""
        current = self._result.current

        def reported(*arguments: Any) -> Any:
            if before and current.steps is not None:
                getattr(current.steps, before)(*arguments)
            answer = function(*arguments)
            if current.steps is not None:
                getattr(current.steps, after)(arguments[0] if before else answer)
            return answer

        return reported

    def _penalty_feed(self) -> None:
        path, name = self._place(names.PREPARE)
        prepare, part = self._node(names.PREPARE), names.PENALTY_FEED.part
        seam_part, batch = self._result.parts[part], self._result.batch_type
        if batch is None:
            raise _AlreadyGivenUpError(part)
        if names.PENALTY_FEED in self._places:
            own_path, own_name = self._place(names.PENALTY_FEED)
            class_name, _, feeder = own_name.partition(".")
            if all(node.attr != feeder for node in ast.walk(prepare) if isinstance(node, ast.Attribute)):
                raise DriftError(f"{path}:{prepare.lineno} {name} does not call {feeder}")
            self._put(batch, own_path, class_name, feeder, part)
        else:
            own = [node for node in prepare.body if isinstance(node, ast.If) and names.CUMULATE in ast.dump(node)]
            if not own:
                raise DriftError(f"{path}:{prepare.lineno} {name} {NOT_FED}")
            found = LiftedFunction(name, None, f"{path}:{own[0].lineno}", (), body_hash(own[0]))
            self._note(part, path, found, ast.Module([*own], []))

            def count() -> None:
                seam_part.calls += 1

            batch.when_fed = staticmethod(count)
        self._result.penalty_feed = PenaltyFeed(knows_outputs(self._lifter.again()))

    def _locations(self, function: HostFunction) -> None:
        exists, module = self._lifter.source.exists, self._lifter.module
        self._given.update(locations.supplied(lambda path: module(path) if exists(path) else None))
        value = self._counted(function.part, self._lift(function))
        setattr(self._result, PARTS_TO_DO_WITHOUT[function.part], (value, self._parameters[function]))

    def _request(self) -> None:
        result = self._result
        path, class_name = names.REQUEST_CLASS
        module = self._lifter.module(path)
        result.finish_check = self._place(names.FINISH_CHECK)[1].split(".")[1]
        reset = self._place(names.RESET)[1].split(".")[1]
        result.request_type = self._duck(names.REQUEST_CLASS, objects.RequestFields)
        self._put(result.request_type, path, class_name, result.finish_check, "finish check")
        check = getattr(result.request_type, result.finish_check)
        setattr(result.request_type, result.finish_check, self._with_steps(check, "appended", "checked"))
        self._put(result.request_type, path, class_name, reset, "reset for retract")
        result.request_fields = _fields_set_by_init(module, class_name)
        result.accepted_drafts = _first(names.REQUEST_ACCEPTED_DRAFTS, result.request_fields, "accepted drafts")
        result.histogram = _first(names.REQUEST_HISTOGRAM, result.request_fields, "the histogram")
        result.prefix = _first(names.REQUEST_PREFIX, result.request_fields, "the prefix of a request")
        result.fill_ids = tuple(name for name in names.REQUEST_FILL_IDS if name in result.request_fields)

    def _batch(self) -> None:
        path, class_name = names.BATCH_CLASS
        batch = self._duck(names.BATCH_CLASS, objects.BatchFields)
        for function in (names.NEED, names.RETRACT):
            self._put(batch, path, class_name, self._place(function)[1].split(".")[1], function.part)
        self._result.batch_type = batch
        self._result.retract_takes_server_args = len(self._parameters[names.RETRACT]) > 1
        self._result.server_defaults = self._options()
        if names.RETRACT_ALL in self._places:
            self._place(names.RELEASE)
            retract_all = self._counted("retract", self._lift(names.RETRACT_ALL))
            accepted = set(self._parameters[names.RETRACT_ALL])
            self._result.retract_all = lambda **named: retract_all(
                **{name: value for name, value in named.items() if name in accepted}
            )

    def _options(self) -> dict[str, Any]:
        """The options of the server with their defaults."""
        path, class_name = names.SERVER_ARGS_CLASS
        source = self._lifter.source
        options = _class_fields(self._lifter.module(path), class_name) if source.exists(path) else {}
        for group in source.paths(names.SERVER_ARGS_FOLDER):
            if group.endswith(".py"):
                module = self._lifter.module(group)
                for class_name in (s.name for s in module.tree.body if isinstance(s, ast.ClassDef)):
                    options |= _class_fields(module, class_name)
        return options

    # Classes of ours with methods of the release

    def _duck(self, place: tuple[str, str], *ours: type) -> Any:
        """A class of its own with what `ours` have, and later the methods of the release's class that are needed."""
        path, name = place
        made = type(name, ours, {})
        self._ducks.append(_Duck(path, name, ours[0], made))
        return made

    def _put(self, made: type, path: str, class_name: str, name: str, part: str) -> None:
        method = self._lifter.lift_method(path, f"{class_name}.{name}", self._given).value
        setattr(made, name, self._counted(part, method))

    def _methods_of_ducks(self) -> None:
        """Give each duck the methods of its class that lifted code names, and that are not ours; and those that these
        name. One that cannot be lifted is skipped: calling it is an error of our object, with its name.
        """
        self._lifter.attributes.update(name.rpartition(".")[2] for _, name in self._places.values())
        grown = True
        while grown:
            grown = False
            for duck in self._ducks:
                functions = self._functions_of(duck)
                for name in sorted(self._lifter.attributes & functions.keys() - duck.seen):
                    duck.seen.add(name)
                    if hasattr(duck.ours, name) or name in vars(duck.made):
                        continue
                    with contextlib.suppress(DriftError):
                        setattr(duck.made, name, self._method_of(duck, name, functions[name][-1]))
                        grown = True

    def _functions_of(self, duck: _Duck) -> dict[str, list[ast.FunctionDef]]:
        """The methods of a duck's class, none where the source lacks its file: what that means is said elsewhere."""
        try:
            return class_functions(self._lifter.module(duck.path), duck.name)
        except DriftError:
            return {}

    def _method_of(self, duck: _Duck, name: str, definition: ast.FunctionDef) -> Any:
        if is_emptied(definition) and not definition.decorator_list:
            return _do_nothing  # what other classes of the release may override
        return self._lifter.lift_method(duck.path, f"{duck.name}.{name}", self._given).value

    def _node(self, function: HostFunction) -> ast.FunctionDef:
        path, name = self._place(function)
        class_name, _, method = name.rpartition(".")
        module = self._lifter.module(path)
        if class_name:
            return class_functions(module, class_name)[method][-1]
        return next(s for s in module.definitions[name] if isinstance(s, ast.FunctionDef))


def _do_nothing(*_arguments: Any, **_named: Any) -> None:
    """A method of an abstract class that does nothing there."""


def _first(candidates: Iterable[str], present: Iterable[str], what: str) -> str:
    there = set(present)
    for name in candidates:
        if name in there:
            return name
    raise DriftError(f"not found: {what} under any of the names {', '.join(candidates)}")


def _fields_set_by_init(module: ParsedModule, class_name: str) -> dict[str, Any]:
    """The attributes that `__init__` sets on self: the literal where it is one, or a parameter's default is, else
    `Unknown`.
    """
    fields: dict[str, Any] = {}
    for function in class_functions(module, class_name).get("__init__", ()):
        parameters = _parameter_defaults(function)
        for node in ast.walk(function):
            if isinstance(node, ast.Assign | ast.AnnAssign) and node.value is not None:
                targets = node.targets if isinstance(node, ast.Assign) else [node.target]
                for target in targets:
                    if isinstance(target, ast.Attribute) and getattr(target.value, "id", "") == "self":
                        value = parameters.get(getattr(node.value, "id", ""), node.value)
                        fields[target.attr] = _literal(value, objects.Unknown(class_name, target.attr))
    return fields


def _parameter_defaults(function: ast.FunctionDef) -> dict[str, ast.expr]:
    """The defaults of a function's parameters."""
    arguments = function.args
    positional = [*arguments.posonlyargs, *arguments.args]
    defaults = dict(zip([a.arg for a in reversed(positional)], reversed(arguments.defaults), strict=False))
    named = zip(arguments.kwonlyargs, arguments.kw_defaults, strict=True)
    return defaults | {argument.arg: default for argument, default in named if default is not None}


def _class_fields(module: ParsedModule, class_name: str) -> dict[str, Any]:
    """The fields of a dataclass with their literal defaults; None where there is none, or it is not a literal."""
    classes = [s for s in module.definitions.get(class_name, ()) if isinstance(s, ast.ClassDef)]
    return {
        statement.target.id: _literal(statement.value, None) if statement.value else None
        for statement in (classes[-1].body if classes else ())
        if isinstance(statement, ast.AnnAssign) and isinstance(statement.target, ast.Name)
    }


def _is_required(field_of_record: dataclasses.Field[Any]) -> bool:
    missing = dataclasses.MISSING
    return field_of_record.default is missing and field_of_record.default_factory is missing


def _literal(value: ast.expr, otherwise: Any) -> Any:
    try:
        return ast.literal_eval(value)
    except ValueError:
        return otherwise
