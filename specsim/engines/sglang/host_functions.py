"""The host functions of one SGLang, lifted: which part of the seam is whose, and what makes a run's objects."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from specsim.engine.accounting_target import MEMORY_PARTS, PARTS, TREE_PARTS, SeamPart
from specsim.engine.config import EngineConfig
from specsim.engines.sglang import host_names as names
from specsim.engines.sglang import host_objects as objects
from specsim.engines.sglang import row_pool, session_classes
from specsim.engines.sglang.radix_classes import RadixClasses

# Parts that are the simulator's own for every release.
MODEL_PARTS = ("extend", "abort")
SESSION_PARTS = tuple(names.SESSION_ENTRIES)
ALL_PARTS = (*PARTS, *TREE_PARTS, *MEMORY_PARTS)
RADIX_PARTS = (*TREE_PARTS, "radix cache")
# Parts that the engine does without, and the attribute of `HostFunctions` that is then empty. Without the function that
# handles results it calls what that calls, one after the other; without locations the device reads the rows itself.
PARTS_TO_DO_WITHOUT = {
    names.PROCESS.part: "process",
    names.POOL_SIZE.part: "pool_sizes",
    names.DRAFT_LOCATIONS.part: "draft_locations",
    names.VERIFY_LOCATIONS.part: "verify_locations",
    names.PENALTY_FEED.part: "penalty_feed",
}

# The attribute of an exception that names the part that raised it.
PART_OF_ERROR = "specsim_part"


@dataclass(slots=True)
class CurrentRun:
    """What lifted functions take from the process: set before each call, so that no run sees another's."""

    server_args: Any = None
    rows: Any = None
    config: Any = None
    steps_max: int = 0
    steps: Any = None  # what the loop does while the release handles a result, by the release's own objects


@dataclass(frozen=True, slots=True)
class PenaltyFeed:
    """Penalizers are fed before launches. `begin_with_outputs`: those that a prefill makes count the outputs that its
    request has already.
    """

    begin_with_outputs: bool


@dataclass(slots=True)
class HostFunctions:
    """Everything that a run needs of a release.

    `parts`           by name; a part that is real counts its calls
    `request_type`    `Req` with the release's methods, `request_fields` what its `__init__` sets
    `batch_type`      `ScheduleBatch`, `processor_type` the owner of `resolve`
    `slot_types`      by part of the memory, the release's allocator; `allocator_type` is a stub of one that is not run
    `row_type`        the release's pool of rows, None when it is not run
    `groups_prefills` whether the frees of a prefill's result are a group
    `sessions`        those of the controller, None when they are not run
    `radix`           the radix cache, None when it is not run
    `make_tree`       the cache without a tree, of the memory; `session_type` wraps it, or is owned by it where
                      `tree_has_sessions`, None when it is not run
    `record_type`     the KV record of a request, None where there is none
    `row`, `committed`, `allocated`  where these are kept
    `pool_sizes`      slots and rows, of the server's options and a configuration; empty when not run
    `row_width`       what a row has beyond the context, `alloc_len` of one step, both of the server's options
    `lines_of_parts`  by part and file, the lines of its functions; `lines_run` those of all files that ran
    `draft_locations`, `verify_locations`  the function and its parameters, empty when it is not run
    `penalty_feed`    how penalizers begin, empty when nothing feeds any
    `missing`         parts without which nothing can be simulated, with the reasons
    `has_signs_of`    the features of which the release has the sign
    `declares`        whether anything of the release defines an attribute of that name
    """

    parts: dict[str, SeamPart]
    current: CurrentRun = field(default_factory=CurrentRun)
    missing: list[str] = field(default_factory=list)
    lines_of_parts: dict[str, dict[str, set[int]]] = field(default_factory=dict)
    lines_run: dict[str, set[int]] = field(default_factory=dict)
    has_signs_of: frozenset[str] = frozenset()
    declares: Callable[[str], bool] = lambda _name: True
    request_type: Any = None
    request_fields: dict[str, Any] = field(default_factory=dict)
    server_defaults: dict[str, Any] = field(default_factory=dict)
    batch_type: Any = None
    processor_type: Any = None
    allocator_type: Any = None
    slot_types: dict[str, Any] = field(default_factory=dict)
    row_type: Any = None
    groups_prefills: bool = False
    sessions: session_classes.SessionClass | None = None
    radix: RadixClasses | None = None
    make_tree: Any = None
    tree_has_sessions: bool = False
    session_type: Any = None
    abort_type: Any = None
    record_type: Any = None
    row: Any = None
    committed: Any = None
    allocated: Any = None
    prefix: str = ""
    row_width: Any = None
    pool_sizes: Any = None
    alloc_len: Any = None
    prepare: Any = None
    draft_locations: Any = None
    verify_locations: Any = None
    penalty_feed: Any = None
    release: Any = None
    drop: Any = None
    retract_all: Any = None
    retract_takes_server_args: bool = False
    finish_check: str = ""
    resolve: str = ""
    process: str = ""
    accepted_drafts: str = ""
    histogram: str = ""
    batch_accepted_drafts: str = ""
    fill_ids: tuple[str, ...] = ()

    def features(self) -> frozenset[str]:
        """What the simulator may draw for this release, beyond what it may for all. Trees with larger pages are tried:
        a release without them says so when the length is read.
        """
        config = EngineConfig(page_size=4, topk=2, num_steps=2)
        found = self.has_signs_of | ({"radix cache"} if self.radix is not None else set())
        if self.sessions is not None and self.sessions.knows_ends:
            found |= {"session faults", "session retractions"}
        self.current.server_args = objects.server_args(config, self.server_defaults)
        try:
            if self.alloc_len is not None:
                self.alloc_len()
        except NotImplementedError:
            return found
        except Exception:  # a finding, or what our objects lack, when schedules run
            return found | {"paged trees"}
        return found | {"paged trees"}

    def seam(self) -> list[SeamPart]:
        """The parts as they are now, with the lines that ran."""
        for name, part in self.parts.items():
            lines = self.lines_of_parts.get(name, {})
            part.lines = sum(map(len, lines.values())) if part.kind == "real" else 0
            ran = (of_file & self.lines_run.get(path, set()) for path, of_file in lines.items())
            part.lines_run = sum(map(len, ran)) if part.lines else 0
        return list(self.parts.values())

    def forget(self) -> None:
        """Forget the calls and lines so far."""
        for part in self.parts.values():
            part.calls = 0
        for lines in self.lines_run.values():
            lines.clear()

    def give_up(self, part: str, why: str) -> None:
        """Do not run a part; sessions need all of theirs, and the rest is needed by everybody."""
        self.parts[part] = SeamPart(part, "not run", why=why)
        if part in PARTS_TO_DO_WITHOUT:
            setattr(self, PARTS_TO_DO_WITHOUT[part], "")
            return
        if part in RADIX_PARTS:
            self.radix = None
            self.parts |= {other: SeamPart(other, "not run", why=why) for other in RADIX_PARTS}
            return
        if part in MEMORY_PARTS:
            self.slot_types.pop(part, None)
            self.row_type = None if part == row_pool.PART else self.row_type
            self.sessions = None if part == session_classes.PART else self.sessions
            return
        if part not in SESSION_PARTS:
            self.missing.append(f"{part} ({why})")
            return
        self.session_type = None
        for other in SESSION_PARTS:
            if self.parts[other].kind == "real":
                self.parts[other] = SeamPart(other, "not run", why=f"sessions need {part}: {why}")
