"""The release's own allocators of slots in place of the model's: watched, and seen by the engine as its own.

What an allocator hands out and takes back is reported to a ledger, as its caller sees it. What the allocator has on its
free lists is then compared with that: each slot is allocated, in an open free group, or free, once.
"""

from __future__ import annotations

import inspect
import zlib
from collections import Counter
from collections.abc import Callable, Iterable
from functools import partial
from typing import Any, NamedTuple

import torch

from specsim.engine.accounting import HostFunctionError
from specsim.engine.config import EngineConfig
from specsim.engine.memory.allocator import Allocator, OutOfSlotsError, SlotWatcher
from specsim.engine.rules.slots import FreeGroup, FreeSlot, LeakedPage, LeakedSlot, SplitPage
from specsim.engines.sglang import host_names as names
from specsim.engines.sglang.host_objects import StubError
from specsim.interpreter.triton_interpreter import is_interpreted, mend_ranges
from specsim.lifting.lift import DriftError, LiftedFunction, Lifter
from specsim.verdict import Rule

# One configuration in so many has its pages handed out by the release's kernel, in Triton's interpreter, which takes
# a thousand times as long as what the release has in PyTorch for machines without Triton.
KERNEL_SHARE = 128

Extend = Callable[..., None]


def runs_kernel(config: EngineConfig) -> bool:
    """Whether the configuration is one of those whose pages the kernel hands out: by its options alone."""
    return zlib.crc32(repr(config).encode()) % KERNEL_SHARE == 0


class Capabilities:
    """What the platform of a run can do: Triton for some configurations, so that both ways of extending run."""

    def __init__(self, current: Any) -> None:
        self._current = current

    @property
    def supports_triton(self) -> bool:
        return runs_kernel(self._current.config)


class ExtendLaunch:
    """`alloc_extend_kernel`: a launch runs what `extend` gives, with the kernel's grid and arguments."""

    def __init__(self, extend: Callable[[], Extend]) -> None:
        self._extend = extend

    def __getitem__(self, grid: tuple[int, ...]) -> Extend:
        return partial(self._extend(), grid)


def extending(kernel: Any, in_torch: Callable[..., None]) -> Extend:
    """What a launch runs: the kernel, or the release's function in PyTorch where it is None."""

    def extend(
        grid: tuple[int, ...],
        prefix_lens: torch.Tensor,
        seq_lens: torch.Tensor,
        last_loc: torch.Tensor,
        free_pages: torch.Tensor,
        out_indices: torch.Tensor,
        bs_upper: int,
        page_size: int,
    ) -> None:
        pages = (seq_lens + page_size - 1) // page_size - (prefix_lens + page_size - 1) // page_size
        if int(pages.sum()) > len(free_pages):
            return  # whoever launched it sees that afterwards, and drops what was written
        if kernel is not None:
            kernel[grid](prefix_lens, seq_lens, last_loc, free_pages, out_indices, bs_upper, page_size)
        else:
            in_torch(prefix_lens, seq_lens, last_loc, free_pages, out_indices, page_size, out_indices.device)

    return extend


class ReleasedSlots(NamedTuple):
    """An allocator of a release: where it is, and the class, which is `watched`."""

    path: str
    lifted: LiftedFunction
    slots: Any


def lift_slots(
    lifter: Lifter,
    part: str,
    given: dict[str, Any],
    current: Any,
    counted: Callable[[Callable[..., Any]], Callable[..., Any]],
) -> ReleasedSlots:
    """Lift the allocator that is `part`. What it launches to extend requests is chosen by the configuration of the run,
    `current.config`. `given` gets what the launches run.
    """
    places = names.SLOT_ALLOCATORS[part]
    found = next((place for place in places if lifter.source.exists(place[0])), None)
    if found is None:
        raise DriftError(f"not found: {' or '.join(f'{name} in {path}' for path, name in places)}")
    path, name = found
    if part == "paged allocator":
        given["alloc_extend_kernel"] = ExtendLaunch(_choose_extend(lifter, path, given, current))
    lifted = lifter.lift_method(path, name, given)
    return ReleasedSlots(path, lifted, watched(lifted.value, counted))


def _choose_extend(lifter: Lifter, path: str, given: dict[str, Any], current: Any) -> Callable[[], Extend]:
    """What the launches of a run go to: the function in PyTorch beside the allocator, or the kernel if it can run."""
    in_torch = lifter.lift_method(path, names.EXTEND_IN_TORCH, given)
    if in_torch.parameters != names.EXTEND_IN_TORCH_PARAMETERS:
        raise DriftError(f"signature changed: {in_torch.where} {in_torch.name}({', '.join(in_torch.parameters)})")
    on_cpu = extending(None, in_torch.value)
    kernels = [place for place in names.EXTEND_KERNELS if lifter.source.exists(place[0])]
    kernels = [place for place in kernels if place[1] in lifter.module(place[0]).definitions]
    kernel = lifter.lift(*kernels[0]).value if kernels else None
    if not is_interpreted(kernel):
        return lambda: on_cpu
    mend_ranges()
    by_kernel = extending(kernel, in_torch.value)
    return lambda: by_kernel if runs_kernel(current.config) else on_cpu


class Watch:
    """What the callers of one allocator hold, by page, and the rules of its free lists. A page is a slot where pages
    have one token. `part` names the allocator.
    """

    def __init__(self, part: str, page_size: int, pages: int, watcher: SlotWatcher) -> None:
        self.part = part
        self._page_size = page_size
        self._pages = pages
        self._watcher = watcher
        self._held: set[int] = set()
        self._pending: set[int] = set()
        self._in_group = False
        self._inside = False
        self._is_sound = True  # until a caller has freed what it did not hold: that is known then

    def call(self, allocator: Any, method: Callable[..., Any], teller: str, *arguments: Any, **named: Any) -> Any:
        """Call a method of the allocator. What its methods call of one another is its own affair."""
        if self._inside:
            return method(allocator, *arguments, **named)
        self._inside = True
        try:
            answer = method(allocator, *arguments, **named)
        finally:
            self._inside = False
        if named:
            arguments = inspect.signature(method).bind(allocator, *arguments, **named).args[1:]
        getattr(self, teller)(answer, *arguments)
        self._audit(allocator)
        return answer

    def handed_out(self, slots: torch.Tensor | None, *arguments: Any) -> None:
        """Slots were asked for, and given unless they are None. Of `alloc_extend`, those that continue a page are held
        already.
        """
        if slots is None:
            return
        if self._page_size == 1:
            self._take(slots.tolist())
            return
        if len(arguments) == 1:  # those of `alloc`
            self._take_pages(slots.tolist())
            return
        prefix_lens, _, seq_lens, _, last_loc, *_ = arguments
        at, found = 0, slots.tolist()
        for start, end, last in zip(prefix_lens.tolist(), seq_lens.tolist(), last_loc.tolist(), strict=True):
            of_request = found[at : at + end - start]
            at += end - start
            continued = min(-start % self._page_size, end - start)
            right = list(range(last + 1, last + 1 + continued))
            self._hold(
                of_request[:continued] == right, SplitPage.rule, f"the page of slot {last} is continued", of_request
            )
            self._take_pages(of_request[continued:])

    def taken_back(self, _answer: Any, slots: torch.Tensor, *_others: Any) -> None:
        """Slots were freed, each with its whole page."""
        pages = [slot // self._page_size for slot in slots.tolist()]
        self._give_back(pages if self._page_size == 1 else list(dict.fromkeys(pages)))

    def pages_taken_back(self, _answer: Any, pages: torch.Tensor) -> None:
        self._give_back(pages.tolist())

    def group_begun(self, _answer: Any) -> None:
        self._in_group = True

    def group_ended(self, _answer: Any) -> None:
        self._in_group = False
        self._pending.clear()

    def pending(self) -> list[int]:
        """The slots of the open free group."""
        return [slot for page in sorted(self._pending) for slot in self._slots_of(page)]

    def free(self, allocator: Any) -> list[int]:
        """The slots on the free lists."""
        return [slot for page in _free_pages(allocator) for slot in self._slots_of(page)]

    def _slots_of(self, page: int) -> range:
        return range(page * self._page_size, (page + 1) * self._page_size)

    def _take_pages(self, slots: list[int]) -> None:
        """Whole pages were handed out, the last of them perhaps in part."""
        pages = [slot // self._page_size for slot in slots[:: self._page_size]]
        whole = [slot for page in pages for slot in self._slots_of(page)]
        self._hold(slots == whole[: len(slots)], SplitPage.rule, f"the slots of pages {pages}, in order", slots)
        self._take(pages)

    def _take(self, pages: list[int]) -> None:
        self._held.update(pages)
        self._watcher.allocated([slot for page in pages for slot in self._slots_of(page)])

    def _give_back(self, pages: list[int]) -> None:
        known = self._held | self._pending if self._page_size > 1 else self._held
        self._is_sound = self._is_sound and known.issuperset(pages) and len(set(pages)) == len(pages)
        self._held.difference_update(pages)
        if self._in_group:
            self._pending.update(pages)
        self._watcher.freed([slot for page in pages for slot in self._slots_of(page)])

    def _audit(self, allocator: Any) -> None:
        """Every page is held, pending or free, and none of them twice."""
        if not self._is_sound:
            return
        free = _free_pages(allocator)
        distinct = set(free)
        if (
            len(distinct) == len(free)
            and len(free) + len(self._held) + len(self._pending) == self._pages
            and distinct.isdisjoint(self._held)
            and distinct.isdisjoint(self._pending)
        ):
            return
        what = "slot" if self._page_size == 1 else "page"
        twice = sorted(page for page, count in Counter(free).items() if count > 1)
        self._hold(not twice, FreeSlot.rule, f"each free {what} once", f"{what} {twice[:1]} is free twice")
        held = sorted(distinct & self._held)
        self._hold(not held, FreeSlot.rule, f"no {what} in somebody's hands is free", f"{what} {held[:1]} is")
        early = sorted(distinct & self._pending)
        self._hold(
            not early, FreeGroup.rule, f"{what}s of an open free group are not free yet", f"{what} {early[:1]} is"
        )
        alien = sorted(distinct - set(range(1, self._pages + 1)))
        self._hold(not alien, FreeSlot.rule, f"{what}s 1 to {self._pages}", f"{what} {alien[:1]} is on the free list")
        lost = sorted(set(range(1, self._pages + 1)) - distinct - self._held - self._pending)
        rule = LeakedSlot.rule if self._page_size == 1 else LeakedPage.rule
        self._hold(not lost, rule, f"a {what} that was given back is free", f"{what} {lost[:1]} is not")

    def _hold(self, holds: bool, rule: Rule, expected: str, actual: object) -> None:
        if not holds:
            raise HostFunctionError(self.part, str(actual), rule, expected)


def _free_pages(allocator: Any) -> list[int]:
    """The pages that an allocator has on its free lists, in their order."""
    found: list[int] = []
    for name in names.FREE_LISTS:
        value = getattr(allocator, name, None)
        if value is not None:
            found += value.tolist() if isinstance(value, torch.Tensor) else [p for part in value for p in part.tolist()]
    return found


def watched(released: type, counted: Callable[[Callable[..., Any]], Callable[..., Any]]) -> type:
    """The release's class with its calls reported to `watch`, and free groups to `steps` of the loop: the instance is
    given both. `counted` counts a call and marks what it raises.
    """
    tellers = {
        **dict.fromkeys(names.HANDS_OUT, "handed_out"),
        **dict.fromkeys(names.TAKES_BACK, "taken_back"),
        **dict.fromkeys(names.TAKES_BACK_PAGES, "pages_taken_back"),
    }
    methods: dict[str, Any] = {
        name: _told(counted(getattr(released, name)), teller)
        for name, teller in tellers.items()
        if hasattr(released, name)
    }
    for name, teller in (("free_group_begin", "group_begun"), ("free_group_end", "group_ended")):
        methods[f"{name}_now"] = _told(counted(getattr(released, name)), teller)
        methods[name] = _by_the_loop(name)
    return type(released.__name__, (released,), methods)


def _told(method: Callable[..., Any], teller: str) -> Callable[..., Any]:
    def reported(self: Any, *arguments: Any, **named: Any) -> Any:
        return self.watch.call(self, method, teller, *arguments, **named)

    return reported


def _by_the_loop(name: str) -> Callable[[Any], None]:
    """A free group of the release is one of the loop, which opens it in turn."""

    def open_group(self: Any) -> None:
        if self.steps is None:
            raise StubError("BaseTokenToKVPoolAllocator", name)
        (self.steps.begin_frees if name == "free_group_begin" else self.steps.end_frees)()

    return open_group


class ReleaseSlots(Allocator):
    """A watched allocator as the engine sees it; an `Allocator`, which the compiled engine needs. `call` calls into
    the release, which frees in groups while it handles a result of a decode step, and with `groups_prefills` of a
    prefill too.
    """

    def __init__(self, slots: Any, watcher: SlotWatcher, call: Callable[..., Any], groups_prefills: bool) -> None:
        super().__init__(slots.size, slots.page_size, watcher)
        self._groups_prefills = groups_prefills
        self._slots = slots
        self._call = partial(call, slots.watch.part)

    @property
    def free_slots(self) -> list[int]:
        slots: list[int] = self._slots.watch.free(self._slots)
        return slots

    @property
    def available(self) -> int:
        return int(self._call(self._slots.available_size))

    @property
    def pending(self) -> list[int]:
        slots: list[int] = self._slots.watch.pending()
        return slots

    def extend(self, start: int, end: int, last_slot: int) -> list[int]:
        if self.page_size == 1:
            found = self._call(self._slots.alloc, end - start)
        else:
            prefix_lens, seq_lens, last_loc = (torch.tensor([n], dtype=torch.int64) for n in (start, end, last_slot))
            extend = self._slots.alloc_extend
            found = self._call(extend, prefix_lens, prefix_lens, seq_lens, seq_lens, last_loc, end - start)
        if found is None:
            raise OutOfSlotsError(end - start, self.available)
        slots: list[int] = found.tolist()
        return slots

    def free(self, slots: Iterable[int]) -> None:
        self._call(self._slots.free, torch.tensor(list(slots), dtype=torch.int64))

    def free_group_begin(self) -> None:
        if self._has_group:
            self._call(self._slots.free_group_begin_now)

    def free_group_end(self) -> None:
        if self._has_group:
            self._call(self._slots.free_group_end_now)

    @property
    def _has_group(self) -> bool:
        return self._groups_prefills or self._slots.steps is not None


def make_slots(released: Any, part: str, size: int, page_size: int, watcher: SlotWatcher) -> Any:
    """A `watched` allocator of `size` slots, as a server that transfers no KV makes it."""
    slots = released.__new__(released)
    slots.watch = Watch(part, page_size, size // page_size, watcher)
    slots.steps = None
    sizes = {"size": size} | ({"page_size": page_size} if page_size > 1 else {})
    slots.__init__(**sizes, dtype=torch.int64, device=torch.device("cpu"), kvcache=None, need_sort=False)
    return slots
