"""The process that runs a target's operations, and the side that trusts nothing it says.

The trusted side makes cases, computes what is expected, compares, shrinks and writes findings. It forks a process that
loads the target and does nothing but run it: that process gets arguments and hands back buffers, never a verdict. So a
target that patches torch, or whose code hangs, crashes or writes to a descriptor, spoils its own results and nothing
else. What ends the process is an EndedError of the case that ran; the next case gets a new process.

The two talk through a socket in frames: four bytes of length, then a msgspec structure. Each question has one answer.

What this does not fence off: the process runs as the same user, so it can read and write that user's files and signal
the trusted side; red zones and stray accesses are watched in the process itself.
"""

from __future__ import annotations

import os
import signal
import socket
import struct
import sys
import traceback
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

import msgspec
import torch

from specsim.contracts.contract import Case, Op, Tensors
from specsim.contracts.provider import NotCalledError, Subject
from specsim.errors import TEXT_MAX, UsageError
from specsim.interpreter.lockstep.errors import UnsupportedError
from specsim.interpreter.triton_names import one_line
from specsim.isolation.fork_runner import LOST
from specsim.isolation.processes import Patience, end_fork, fork
from specsim.tiers.ops.run import EndedError, Freedoms, Launched, LaunchHere
from specsim.verdict import NotRun

FRAME_BYTES_MAX = 1 << 32
_TEXT_MAX = 2 * TEXT_MAX  # of what the process itself should have cut
END_SECONDS = 0.05  # for a process that is ending
LOAD_SECONDS_MAX = 900.0  # specsim's own work: reading and lifting, and on a GPU building CUDA sources
WAIT_SECONDS = 1.0  # between two calls of `on_call` while an answer is awaited
_LENGTH = struct.Struct("<Q")


class _Tensor(msgspec.Struct, array_like=True, forbid_unknown_fields=True):
    dtype: str
    shape: list[int]
    data: bytes


class _Load(msgspec.Struct, tag=True):
    """Load the target."""

    target: str
    cache: str
    device: str
    op: str


class _Accepts(msgspec.Struct, tag=True):
    subject: int
    sizes: dict[str, int]


class _Reach(msgspec.Struct, tag=True):
    subject: int
    sizes: dict[str, int]


class _Explain(msgspec.Struct, tag=True):
    subject: int


class _Overflow(msgspec.Struct, tag=True):
    subject: int


class _Launch(msgspec.Struct, tag=True):
    subject: int
    sizes: dict[str, int]
    tensors: dict[str, _Tensor]
    which: int
    lanes: bool
    backwards: bool
    apart: bool


class _SubjectSays(msgspec.Struct, forbid_unknown_fields=True):
    """What a Subject is, without its functions."""

    op: str
    role: str
    name: str
    where: str
    needs: str
    cost: int
    source_hash: str
    strided: list[str]
    on_cpu: bool
    is_far: bool


class _Loaded(msgspec.Struct, tag=True, forbid_unknown_fields=True):
    subjects: list[_SubjectSays]
    not_run: list[tuple[str, str]]


class _Refused(msgspec.Struct, tag=True, forbid_unknown_fields=True):
    """A UsageError."""

    problem: str
    remedy: str


class _Raised(msgspec.Struct, tag=True, forbid_unknown_fields=True):
    """What a question other than a launch raised."""

    text: str


class _NotCalled(msgspec.Struct, tag=True, forbid_unknown_fields=True):
    pass


class _Unsupported(msgspec.Struct, tag=True, forbid_unknown_fields=True):
    """An UnsupportedError."""

    kernel: str
    names: list[str]
    places: dict[str, str]


class _Says(msgspec.Struct, tag=True, forbid_unknown_fields=True):
    value: bool | str


class _Overflows(msgspec.Struct, tag=True, forbid_unknown_fields=True):
    found: tuple[str, int] | None


class _Left(msgspec.Struct, tag=True, forbid_unknown_fields=True):
    """A Launched."""

    results: dict[str, _Tensor] | None
    buffers: dict[str, _Tensor]
    moved: dict[str, _Tensor]
    raised: str
    misfit: bool
    stray: str
    lines: list[int]
    undefined: list[str]
    race: str
    warp_race: str
    marks: dict[str, _Tensor]


_Question = _Load | _Accepts | _Reach | _Explain | _Overflow | _Launch
_Answer = _Loaded | _Refused | _Raised | _NotCalled | _Unsupported | _Says | _Overflows | _Left
_encode = msgspec.msgpack.Encoder().encode
_decode_question = msgspec.msgpack.Decoder(_Question).decode
_decode_answer = msgspec.msgpack.Decoder(_Answer).decode

_DTYPES = {
    str(dtype).removeprefix("torch."): dtype
    for dtype in (
        *(torch.bool, torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64),
        *(torch.float16, torch.bfloat16, torch.float32, torch.float64),
    )
}


def _to_wire(tensor: torch.Tensor) -> _Tensor:
    """A dense tensor on the CPU."""
    flat = torch.empty(tensor.numel(), dtype=tensor.dtype)  # `contiguous` leaves the strides of one element alone
    flat.copy_(tensor.reshape(-1))
    data = flat.view(torch.uint8).numpy().tobytes() if flat.numel() else b""
    return _Tensor(str(tensor.dtype).removeprefix("torch."), list(tensor.shape), data)


def _from_wire(wire: _Tensor) -> torch.Tensor:
    """Raises ValueError for what is no tensor."""
    dtype = _DTYPES.get(wire.dtype)
    if dtype is None:
        raise ValueError(f"a tensor of dtype {wire.dtype}")
    if not wire.data:
        return torch.empty(wire.shape, dtype=dtype)
    return torch.frombuffer(bytearray(wire.data), dtype=dtype).reshape(wire.shape)


class TargetProcess:
    """A target, loaded in a process of its own; a Launcher. Use it as a context manager.

    `subjects` and `not_run` are what the target has; the functions of these Subjects ask the process. `device` is
    "cpu" or "cuda", which the trusted side must not have used. `on_call` is called before each question and
    every second until its answer, `hang_seconds` is the limit of each.
    """

    def __init__(
        self,
        target: str,
        cache: Path,
        *,
        device: str = "cpu",
        op: str = "",
        hang_seconds: float = 20.0,
        on_call: Callable[[], None] = lambda: None,
    ) -> None:
        self._load = _Load(target, str(cache), device, op)
        self._hang_seconds = hang_seconds
        self._on_call = on_call
        self._pid = 0
        self._socket: socket.socket | None = None
        self.subjects: list[Subject] = []
        self.not_run: list[NotRun] = []

    def __enter__(self) -> TargetProcess:
        loaded = self._start()
        self.subjects = [self._subject(index, says) for index, says in enumerate(loaded.subjects)]
        self.not_run = [NotRun(what, why) for what, why in loaded.not_run]
        return self

    def __exit__(self, *_error: object) -> None:
        self._end()

    def launch(self, op: Op, subject: Subject, case: Case, which: int, freedoms: Freedoms) -> Launched:
        tensors = {name: _to_wire(tensor) for name, tensor in case.tensors.items()}
        index = self._index(subject)
        free = (freedoms.lanes, freedoms.backwards, freedoms.apart)
        answer = self._ask(_Launch(index, case.sizes, tensors, which, *free))
        if isinstance(answer, _NotCalled):
            raise NotCalledError
        if not isinstance(answer, _Left):
            raise self._no_answer()
        try:
            buffers, moved, marks = (_tensors(sent) for sent in (answer.buffers, answer.moved, answer.marks))
            results = None if answer.results is None else _tensors(answer.results)
            if buffers.keys() != {arg.name for arg in op.tensor_args}:
                raise ValueError("buffers that are not the arguments'")
            outputs = {arg.name: list(arg.resolve_shape(case.sizes)) for arg in op.outputs}
            if any(mark.dtype != torch.bool or outputs.get(name) != list(mark.shape) for name, mark in marks.items()):
                raise ValueError("marks that are not of the outputs")
        except (ValueError, RuntimeError) as error:
            raise self._no_answer(str(error)) from None
        return Launched(
            results,
            buffers,
            moved,
            answer.raised[:_TEXT_MAX],
            answer.misfit,
            answer.stray[:_TEXT_MAX],
            frozenset(answer.lines),
            tuple(use[:_TEXT_MAX] for use in answer.undefined),
            answer.race[:_TEXT_MAX],
            answer.warp_race[:_TEXT_MAX],
            marks,
        )

    def overflow(self, subject: Subject) -> tuple[str, int] | None:
        answer = self._ask(_Overflow(self._index(subject)))
        if not isinstance(answer, _Overflows):
            raise self._no_answer()
        return answer.found

    def _index(self, subject: Subject) -> int:
        return next(index for index, each in enumerate(self.subjects) if each is subject)

    def _subject(self, index: int, says: _SubjectSays) -> Subject:
        def run(_sizes: object, _tensors: object) -> Tensors:
            raise RuntimeError("it runs in a process of its own")

        def accepts(sizes: Mapping[str, int]) -> bool:
            return bool(self._says(_Accepts(index, dict(sizes))))

        def reach(sizes: Mapping[str, int]) -> str:
            return str(self._says(_Reach(index, dict(sizes))))

        return Subject(
            op=says.op,
            role="caller" if says.role == "caller" else "kernel",
            name=says.name,
            run=run,
            where=says.where,
            accepts=accepts,
            reach=reach,
            explain=lambda: str(self._says(_Explain(index))),
            needs=says.needs,
            cost=max(1, says.cost),
            source_hash=says.source_hash,
            strided=frozenset(says.strided),
            on_cpu=says.on_cpu,
            far=_asked_by_overflow if says.is_far else None,
        )

    def _says(self, question: _Question) -> bool | str:
        answer = self._ask(question)
        if not isinstance(answer, _Says):
            raise self._no_answer()
        return answer.value

    def _ask(self, question: _Question) -> _Answer:
        """The answer. Raises EndedError when there is none, and UnsupportedError where it is that."""
        self._on_call()
        if self._socket is None:
            self._start()
        answer = self._exchange(question, self._hang_seconds)
        if isinstance(answer, _Raised):
            raise EndedError(False, f"raises {answer.text[:_TEXT_MAX]}")
        if isinstance(answer, _Unsupported):
            cut = {name[:_TEXT_MAX]: place[:_TEXT_MAX] for name, place in answer.places.items()}
            raise UnsupportedError(answer.kernel[:_TEXT_MAX], tuple(name[:_TEXT_MAX] for name in answer.names), cut)
        return answer

    def _start(self) -> _Loaded:
        """Fork, and load the target. Raises UsageError when it cannot be loaded."""
        ours, theirs = socket.socketpair()
        sys.stdout.flush()
        sys.stderr.flush()
        self._pid = fork(own_group=True)
        if self._pid == 0:
            _serve(theirs)
        theirs.close()
        self._socket = ours
        is_users = ":" in self._load.target.partition("@")[0]
        try:
            answer = self._exchange(self._load, self._hang_seconds if is_users else LOAD_SECONDS_MAX)
        except EndedError as ended:
            raise UsageError(
                f"the process that loads {self._load.target} {ended.text}", "run `specsim targets` to see what works"
            ) from None
        if isinstance(answer, _Refused):
            self._end()
            raise UsageError(answer.problem[:_TEXT_MAX], answer.remedy[:_TEXT_MAX])
        if isinstance(answer, _Raised):
            self._end()
            raise UsageError(
                f"{self._load.target} cannot be loaded ({answer.text[:_TEXT_MAX]})", "mend it, or report this"
            )
        if not isinstance(answer, _Loaded):
            raise self._no_answer()
        return answer

    def _exchange(self, question: _Question, seconds: float) -> _Answer:
        assert self._socket is not None
        patience = Patience(self._pid, seconds)
        try:
            _send(self._socket, _encode(question), seconds)
            answer: _Answer = _decode_answer(_receive(self._socket, patience, self._on_call))
            return answer
        except TimeoutError:
            self._end()
            raise EndedError(True, f"does not end within {seconds:g} s") from None
        except (EOFError, OSError):
            raise EndedError(False, self._end()) from None
        except msgspec.ValidationError as error:
            raise self._no_answer(str(error)) from None
        except (msgspec.DecodeError, ValueError) as error:
            raise self._no_answer(str(error)) from None

    def _no_answer(self, why: str = "") -> EndedError:
        self._end()
        return EndedError(False, f"writes into the descriptor of its process{f' ({why})' if why else ''}")

    def _end(self) -> str:
        """End the process and what it started; how it ended."""
        if self._socket is not None:
            self._socket.close()
            self._socket = None
        if not self._pid:
            return "ended"
        pid, self._pid = self._pid, 0
        # Whoever closed the socket without ending is killed; a process that is ending keeps its own status.
        code = end_fork(pid, END_SECONDS)
        if code == LOST:
            return "leaves a device that does no more work"
        return f"ends its process ({signal.Signals(-code).name if code < 0 else f'exit code {code}'})"


def _asked_by_overflow() -> None:
    """In place of a Subject's `far`, which says that it has one."""


def _tensors(wires: Mapping[str, _Tensor]) -> Tensors:
    return {name: _from_wire(wire) for name, wire in wires.items()}


def _send(connection: socket.socket, data: bytes, seconds: float) -> None:
    connection.settimeout(seconds)
    connection.sendall(_LENGTH.pack(len(data)) + data)


def _receive(connection: socket.socket, patience: Patience, on_wait: Callable[[], None]) -> bytearray:
    (length,) = _LENGTH.unpack(_exactly(connection, _LENGTH.size, patience, on_wait))
    if length > FRAME_BYTES_MAX:
        raise ValueError(f"a message of {length} bytes")
    return _exactly(connection, length, patience, on_wait)


def _exactly(connection: socket.socket, count: int, patience: Patience, on_wait: Callable[[], None]) -> bytearray:
    data = bytearray(count)
    view, have = memoryview(data), 0
    while have < count:
        if patience.is_over:
            raise TimeoutError
        connection.settimeout(min(patience.left, WAIT_SECONDS))
        try:
            got = connection.recv_into(view[have:])
        except TimeoutError:
            on_wait()
            continue
        if not got:
            raise EOFError
        have += got
    return data


# The process itself


def _serve(connection: socket.socket) -> None:
    """Answer questions until the trusted side is gone. Does not return."""
    code = 1
    try:
        signal.signal(signal.SIGINT, signal.SIG_IGN)  # the trusted side ends it
        keep = connection.fileno()
        os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
        os.closerange(3, keep)
        os.closerange(keep + 1, min(1 << 16, os.sysconf("SC_OPEN_MAX")))
        # Whatever these wrote to, the trusted side may have it open elsewhere.
        sys.stdout, sys.stderr = (open(fd, "w", buffering=1, closefd=False) for fd in (1, 2))  # noqa: SIM115
        code = _answer_all(connection)
    except SystemExit as asked:
        code = asked.code if isinstance(asked.code, int) else int(asked.code is not None)
    except BaseException:
        traceback.print_exc()
    finally:
        with suppress(BaseException):
            sys.stdout.flush()
            sys.stderr.flush()
        os._exit(code)


def _answer_all(connection: socket.socket) -> int:
    from specsim.tiers.ops.run import DeviceLostError

    own = os.getpid()
    subjects: list[Subject] = []
    launcher = LaunchHere()
    connection.settimeout(None)
    while True:
        try:
            question = _decode_question(_from(connection))
        except EOFError:
            return 0
        answer: _Answer
        try:
            if isinstance(question, _Load):
                answer, subjects = _loaded(question)
                launcher = LaunchHere(question.device)
            else:
                answer = _answer(question, subjects[question.subject], launcher)
        except UnsupportedError as error:
            answer = _Unsupported(error.kernel, list(error.names), error.places)
        except UsageError as error:
            answer = _Refused(error.problem, error.remedy)
        except DeviceLostError:
            return LOST
        except Exception as error:
            answer = _Raised(one_line(error))
        if os.getpid() != own:  # a fork that the target made and let return: one process answers
            os._exit(0)
        data = _encode(answer)
        connection.sendall(_LENGTH.pack(len(data)) + data)


def _from(connection: socket.socket) -> bytes:
    def exactly(count: int) -> bytes:
        parts: list[bytes] = []
        while count:
            part = connection.recv(min(count, 1 << 20))
            if not part:
                raise EOFError
            parts.append(part)
            count -= len(part)
        return b"".join(parts)

    (length,) = _LENGTH.unpack(exactly(_LENGTH.size))
    return exactly(length)


def _loaded(question: _Load) -> tuple[_Loaded, list[Subject]]:
    from specsim.engines.load import load_provider
    from specsim.engines.target import parse_target
    from specsim.lifting.cache import Cache

    provider = load_provider(parse_target(question.target), Cache(Path(question.cache)), question.op)
    subjects, not_run = provider.subjects()
    says = [
        _SubjectSays(
            op=s.op,
            role=s.role,
            name=s.name,
            where=s.where,
            needs=s.needs,
            cost=s.cost,
            source_hash=s.source_hash,
            strided=sorted(s.strided),
            on_cpu=s.on_cpu,
            is_far=s.far is not None,
        )
        for s in subjects
    ]
    return _Loaded(says, [(entry.what, entry.why) for entry in not_run]), subjects


def _answer(question: Any, subject: Subject, launcher: LaunchHere) -> _Answer:
    if isinstance(question, _Accepts):
        return _Says(bool(subject.accepts(question.sizes)))
    if isinstance(question, _Reach):
        return _Says(subject.reach(question.sizes))
    if isinstance(question, _Explain):
        return _Says(subject.explain())
    if isinstance(question, _Overflow):
        return _Overflows(launcher.overflow(subject))
    from specsim.contracts.registry import OPS

    case = Case(question.sizes, _tensors(question.tensors))
    freedoms = Freedoms(question.lanes, question.backwards, question.apart)
    try:
        launched = launcher.launch(OPS[subject.op], subject, case, question.which, freedoms)
    except NotCalledError:
        return _NotCalled()
    return _Left(
        results=None if launched.results is None else _wires(launched.results),
        buffers=_wires(launched.buffers),
        moved=_wires(launched.moved),
        raised=launched.raised,
        misfit=launched.misfit,
        stray=launched.stray,
        lines=sorted(launched.lines),
        undefined=list(launched.undefined),
        race=launched.race,
        warp_race=launched.warp_race,
        marks=_wires(launched.marks),
    )


def _wires(tensors: Tensors) -> dict[str, _Tensor]:
    return {name: _to_wire(tensor) for name, tensor in tensors.items()}
