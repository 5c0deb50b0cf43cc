"""An engine of your own, as the scheduler tier runs one: what it says that lacks a feature.

`specsim check MODULE:OBJECT` checks an `OwnEngine`, which starts an `OwnScheduler`. A feature is drawn where the facts
of the engine, or one of its setups, have it; what belongs to it is written then. See docs/extend.md.
"""

from __future__ import annotations

import hashlib
import inspect
import traceback
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Sequence
from fractions import Fraction
from pathlib import Path
from types import CodeType
from typing import TYPE_CHECKING, Any

from specsim.world.fakes import NotRunError
from specsim.world.hash_model import decoded
from specsim.world.scheduler import Answer, Facts, Load, LogprobRow, Pause, Pools, RequestState, Seen, Setup, Turn

if TYPE_CHECKING:
    from specsim.choices.chooser import Chooser
    from specsim.contracts.enumeration import Distribution
    from specsim.lifting.changes import Function
    from specsim.world.scheduler import Pause, StartedScheduler


def _not_written(method: str) -> NotRunError:
    return NotRunError(f"write `{method}`, or take its feature out of `facts` and `setups`")


class OwnScheduler(ABC):
    """See `specsim.world.scheduler.StartedScheduler`, which says what each method gives. Its model is a hash of the
    prefix, `decode`; `facts` and `seen` are attributes of it.
    """

    facts: Facts
    seen: Seen
    file: str = ""
    """Whose lines a traceback shows; "" for the file that has this class."""

    @abstractmethod
    def generate(self, turn: Turn) -> Any: ...

    @abstractmethod
    def run(self, chooser: Chooser, script: Callable[[int], Sequence[Any] | None]) -> None: ...

    @property
    @abstractmethod
    def is_idle(self) -> bool: ...

    @abstractmethod
    def load(self) -> Load: ...

    @abstractmethod
    def requests(self) -> Iterator[RequestState]: ...

    @abstractmethod
    def answers(self) -> Iterator[Answer]: ...

    @abstractmethod
    def pools(self) -> Pools: ...

    def decode(self, prompt: Sequence[int], count: int, rank: int = 0) -> list[int]:
        return decoded(prompt, count, rank)

    def expected(self, turn: Turn, prompt: Sequence[int], said: Sequence[int] = ()) -> list[int]:
        return self.decode(prompt, turn.answer)

    # of features

    def logprobs(self, turn: Turn, prompt: Sequence[int], tokens: Sequence[int]) -> list[LogprobRow]:
        return []

    def content_of(self, tokens: Sequence[int]) -> int:
        raise _not_written("content_of")

    def slot_content(self, slot: int) -> int:
        raise _not_written("slot_content")

    def window_content(self, slot: int) -> int:
        raise _not_written("window_content")

    def abort(self, rid: str) -> Any:
        raise _not_written("abort")

    def abort_all(self) -> Any:
        raise _not_written("abort_all")

    def flush(self) -> Any:
        raise _not_written("flush")

    def pause(self, pause: Pause) -> Any:
        raise _not_written("pause")

    @property
    def has_paused(self) -> bool:
        return True

    def resume(self) -> Any:
        raise _not_written("resume")

    def open_session(self, name: str, timeout: float) -> Any:
        raise _not_written("open_session")

    def close_session(self, name: str) -> Any:
        raise _not_written("close_session")

    def leap(self, seconds: float) -> None:
        return

    def record(self) -> None:
        return

    @property
    def tree(self) -> str:
        return ""

    def traceback_of(self, error: BaseException) -> list[tuple[str, str]]:
        """Of `file`."""
        file = self.file or inspect.getfile(type(self))
        frames = [frame for frame in traceback.extract_tb(error.__traceback__) if frame.filename == file]
        return [(frame.name, f"{Path(file).name}:{frame.lineno}") for frame in frames]

    def functions_of(self, codes: Iterable[CodeType]) -> tuple[Function, ...]:
        return ()


class OwnEngine(ABC):
    """See `specsim.world.scheduler.SchedulerTarget`."""

    setups: Sequence[Setup] = (Setup(),)
    imported: Sequence[str] = ()
    has_rust_tree = False
    starts_anew = False
    sources: Sequence[str] = ()
    """Other files of the engine: a replay says when one of them has changed."""

    @abstractmethod
    def start(self, setup: Setup) -> StartedScheduler: ...

    @property
    def where(self) -> str:
        """Where this class begins."""
        return f"{Path(inspect.getfile(type(self))).name}:{inspect.getsourcelines(type(self))[1]}"

    @property
    def source_hash(self) -> str:
        """Of the file that has this class, and of `sources`."""
        files = [inspect.getfile(type(self)), *self.sources]
        return hashlib.sha256(b"".join(Path(file).read_bytes() for file in files)).hexdigest()[:16]

    def statements(self, file: str) -> Sequence[tuple[int, int]]:
        return ()

    def lacks(self, worker: str) -> Sequence[tuple[str, str]]:
        return ()

    def reach(self, setup: Setup) -> str:
        """The first setup is the default one."""
        return "default" if setup == self.setups[0] else "option"

    def outcomes(self, setup: Setup, length: int) -> tuple[Distribution, Iterator[tuple[tuple[int, ...], Fraction]]]:
        raise _not_written("outcomes")
