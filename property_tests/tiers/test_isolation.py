"""What runs a target's code is limited, heard and ended: nothing that it does is taken for a message, an error of
specsim is never its fault, and none of its processes is left.
"""

from __future__ import annotations

import importlib
import json
import os
import re
import signal
import subprocess
import sys
import textwrap
import time
import zipfile
from collections.abc import Callable, Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from property_tests.support.known_releases import SGLANG
from specsim.cli import main
from specsim.engines.target import Release
from specsim.errors import TEXT_MAX, UsageError, cut, described
from specsim.fuzz.work import Batch
from specsim.fuzz.workers import run_batch
from specsim.isolation import environment, limits, phases, processes
from specsim.isolation import messages as table
from specsim.isolation.conversation import ChildEnded, Conversation
from specsim.isolation.frames import FRAME_BYTES_MAX, BadFrameError, FrameReader, Writer, new_nonce
from specsim.isolation.messages import Message, Messages
from specsim.lifting.source import WheelSource
from specsim.tiers.checking import run_suite
from specsim.tiers.messages import ANSWERS, At, Lost, Request
from specsim.tiers.process import ask
from specsim.tiers.registry import TIERS
from specsim.verdict import Finding

ROOT = Path(__file__).parents[2]
TARGETS = """
    import os, signal
    from property_tests.support.own_engine import Engine

    def leaves(requests):
        if requests == 3:
            os._exit(0)

    def spins(requests):
        if os.fork() == 0:
            signal.signal(signal.SIGTERM, signal.SIG_IGN)
        open("spinning", "a").write(f"{os.getpid()}\\n")
        while True:
            pass

    def writes_everywhere(requests):
        for number in range(3, 5000):
            try:
                os.write(number, b'{"event": "end"}\\n' * 4)
            except OSError:
                pass

    def scribbles(requests):
        for number in range(3, 64):
            try:
                os.write(number, b"\\0}" * 40)
            except OSError:
                pass

    def goes_on_elsewhere(requests):
        if requests == 1:
            os.fork()

    def looks(requests):
        names = ("A_TOKEN", "KEPT", "OMP_NUM_THREADS")
        raise LookupError(" ".join(f"{name}={os.environ.get(name)}" for name in names))

    def takes(requests):
        try:
            bytearray(1 << 30)
        except MemoryError:
            raise LookupError("refused")
        raise LookupError("allowed")

    def shouts(requests):
        raise ValueError("x" * 20_000_000)

    leaving, spinning, writing, forking = map(Engine, (leaves, spins, writes_everywhere, goes_on_elsewhere))
    looking, taking, shouting, scribbling = map(Engine, (looks, takes, shouts, scribbles))
"""


@pytest.fixture(scope="module")
def module(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("targets")
    (folder / "isolated.py").write_text(textwrap.dedent(TARGETS))
    (folder / "hanging.py").write_text("import time\ntime.sleep(1000)\n")
    (folder / "closing.py").write_text("import os\nos.closerange(3, 5000)\nfrom isolated import looking as engine\n")
    return folder


@pytest.fixture
def folder(module: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(module)
    return module


def request_of(target: str, folder: Path, schedules: int = 20, hang_seconds: float = 20.0, **fields: Any) -> Request:
    """Of a few schedules of a target; nothing is shrunk."""
    limits = {"count": schedules, "seconds": 20.0, "hang_seconds": hang_seconds, "shrinks": False}
    of_it: dict[str, Any] = {"tier": "scheduler", "target": target, "cache": str(folder / "cache"), "seed": 0}
    return Request(**{**of_it, **limits, **fields})


def found_in(target: str, folder: Path) -> Finding:
    """The finding of the first schedule of a target of TARGETS."""
    _suite, findings = run_suite(request_of(f"isolated:{target}", folder, 1), folder / "out", lambda *_progress: None)
    (finding,) = findings
    return finding


# ---- frames


def pipe() -> tuple[int, int]:
    reader, writer = os.pipe()
    os.set_blocking(reader, False)
    return reader, writer


@given(contents=st.lists(st.binary(max_size=200), max_size=8), size=st.integers(1, 50))
def test_frames_come_out_as_they_went_in_however_the_stream_is_cut(contents: list[bytes], size: int) -> None:
    nonce = new_nonce()
    reader, descriptor = pipe()
    writer = Writer(descriptor, nonce)
    for content in contents:
        writer.send(content)
    writer.close()
    stream, frames = os.read(reader, 1 << 16), FrameReader(nonce)
    os.close(reader)
    came = [frame for at in range(0, len(stream), size) for frame in frames.feed(stream[at : at + size])]
    assert came == contents


@given(st.binary(min_size=40, max_size=200))
def test_bytes_of_somebody_else_are_no_frame_and_lose_none_before_them(noise: bytes) -> None:
    nonce = new_nonce()
    reader, descriptor = pipe()
    writer = Writer(descriptor, nonce)
    writer.send(b"before")
    writer.close()
    stream = os.read(reader, 1 << 16)
    os.close(reader)
    with pytest.raises(BadFrameError) as error:
        FrameReader(nonce).feed(stream + noise)
    assert error.value.before == [b"before"]
    with pytest.raises(BadFrameError):
        FrameReader(new_nonce()).feed(stream)  # another conversation's
    again = FrameReader(nonce)
    again.feed(stream)
    with pytest.raises(BadFrameError):
        again.feed(stream)  # sent twice


def test_a_fork_of_the_writer_sends_nothing() -> None:
    nonce = new_nonce()
    reader, descriptor = pipe()
    writer = Writer(descriptor, nonce)
    pid = os.fork()
    if pid == 0:
        writer.send(b"from the fork")
        os._exit(0)
    os.waitpid(pid, 0)
    writer.send(b"from the writer")
    assert FrameReader(nonce).feed(os.read(reader, 1 << 16)) == [b"from the writer"]
    writer.close()
    os.close(reader)


def test_a_frame_has_a_limit_on_both_sides() -> None:
    reader, descriptor = pipe()
    writer = Writer(descriptor, new_nonce())
    with pytest.raises(ValueError, match="are allowed"):
        writer.send(bytes(FRAME_BYTES_MAX + 1))
    nonce = new_nonce()
    with pytest.raises(BadFrameError):
        FrameReader(nonce).feed((FRAME_BYTES_MAX + 1).to_bytes(4, "big") + nonce + bytes(8))
    writer.close()
    os.close(reader)


def test_reading_takes_time_in_proportion_to_what_is_read() -> None:
    def seconds(size: int) -> float:
        nonce, content = new_nonce(), bytes(size)
        data = len(content).to_bytes(4, "big") + nonce + bytes(8) + content
        reader = FrameReader(nonce)
        started = time.process_time()
        came = [frame for at in range(0, len(data), 1 << 12) for frame in reader.feed(data[at : at + (1 << 12)])]
        assert len(came) == 1
        return time.process_time() - started

    seconds(1 << 20)
    assert seconds(1 << 25) < 32 * 8 * max(0.001, seconds(1 << 20))  # quadratic is 32 * 32


def test_the_descriptor_is_high_and_closed_when_another_program_is_executed() -> None:
    reader, descriptor = pipe()
    writer = Writer(descriptor, new_nonce())
    assert writer._descriptor > 200
    assert not os.get_inheritable(writer._descriptor)
    with pytest.raises(OSError, match="Bad file"):
        os.fstat(descriptor)
    writer.close()
    os.close(reader)


# ---- messages


@pytest.mark.parametrize(
    ("message", "words"),
    [
        ({"event": "at", "subject": "a", "index": "7"}, "Expected `int`, got `str`"),
        ({"event": "end", "not_run": "nothing"}, "none"),
        ({"event": "unheard"}, "Invalid value 'unheard'"),
        ({"event": "answered", "more": 1}, "unknown field `more`"),
        ({"event": "done", "subject": "b", "judged": {}, "not_run": []}, "missing"),
        ({"event": "replayed", "answer": {"violations": [{"rule": 7}]}}, "Expected `str`, got `int`"),
        (["event"], "Expected `object`"),
        (7, "Expected `object`"),
    ],
)
def test_what_fits_no_struct_is_no_message(message: object, words: str) -> None:
    with pytest.raises(table.BadMessageError, match=words):
        table.decoded(json.dumps(message).encode(), ANSWERS)


@pytest.mark.parametrize("content", [b"", b"{", b"\xff", b"[" * 200_000])
def test_what_is_not_json_is_no_message(content: bytes) -> None:
    with pytest.raises(table.BadMessageError):
        table.decoded(content, ANSWERS)


def test_a_long_text_is_cut_and_says_how_long_it_was() -> None:
    assert cut("x" * TEXT_MAX) == "x" * TEXT_MAX
    assert cut("x" * 20_000_000) == "x" * TEXT_MAX + "... (20000000 characters)"
    assert len(table.encoded(Lost(text="x" * 20_000_000))) < 2 * TEXT_MAX

    class Unspeakable(Exception):  # noqa: N818 - what a target raises
        def __str__(self) -> str:
            raise RuntimeError

    assert described(Unspeakable()) == "Unspeakable: its text cannot be had: RuntimeError"


def conversation(*sent: Message | str, code: int | None = 0, hang_seconds: float = 5.0) -> Conversation:
    """One in which a child said this, and then ended with `code`, or goes on saying nothing."""
    nonce = new_nonce()
    reader, descriptor = os.pipe()
    messages = Messages(descriptor, nonce.hex())
    messages.tell_phase(phases.LOADING)
    for message in sent:
        if isinstance(message, str):
            messages.tell_phase(message)
        else:
            messages.send(message)
    if code is not None:
        messages.close()
    return Conversation(reader, nonce, ANSWERS, lambda: code, hang_seconds)


RUNS, LOADS = phases.RUNNING, phases.LOADING


@pytest.mark.parametrize(
    ("sent", "is_loading"),
    [
        ([], True),
        ([RUNS], False),
        ([RUNS, LOADS], True),
        ([At(subject="a")], False),
        ([At(subject="a"), RUNS, LOADS], False),  # what is lifted for a case is lifted for the target
    ],
)
def test_a_child_that_dies_says_whose_code_ran(sent: list[Message | str], is_loading: bool) -> None:
    with pytest.raises(ChildEnded) as ended:
        list(conversation(*sent, code=-signal.SIGSEGV))
    assert (ended.value.is_loading, ended.value.hung) == (is_loading, False)
    assert ended.value.text == "ends its process (SIGSEGV)"


def test_a_hang_of_the_targets_code_has_its_own_limit() -> None:
    started = time.monotonic()
    with pytest.raises(ChildEnded, match=r"does not end within 0\.3 s") as ended:
        list(conversation(RUNS, code=None, hang_seconds=0.3))
    assert ended.value.hung
    assert time.monotonic() - started < 5


def test_what_specsim_imports_itself_is_not_the_targets_time(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "ours_and_slow.py").write_text("import ours_and_deeper\nVALUE = 7\n")
    (tmp_path / "ours_and_deeper.py").write_text("")
    (tmp_path / "a_target.py").write_text("import ours_and_slow\n")
    monkeypatch.syspath_prepend(tmp_path)
    told: list[str] = []
    phases.listen(told.append)
    try:
        with phases.running("ours_and_slow", "ours_and_deeper"):
            import a_target  # type: ignore[import-not-found]
    finally:
        phases.listen(lambda _phase: None)
    assert a_target.ours_and_slow.VALUE == 7
    assert told == [phases.RUNNING, phases.LOADING, phases.RUNNING, phases.LOADING]


# ---- whose error it is


def test_an_error_of_specsim_is_not_the_targets(folder: Path) -> None:
    (folder / "cache").mkdir(exist_ok=True)
    unknown = request_of("isolated:looking", folder, tier="unheard")
    with pytest.raises(UsageError, match=r"isolated:looking cannot be checked.*KeyError: 'unheard'"):
        list(ask(unknown, 20.0))


def test_a_request_of_another_version_is_refused(folder: Path) -> None:
    (folder / "cache").mkdir(exist_ok=True)
    with pytest.raises(UsageError, match="the command is of another specsim"):
        list(ask(request_of("isolated:looking", folder, version=table.VERSION + 1), 20.0))
    with pytest.raises(UsageError, match="a request is none"):
        list(ask(request_of("isolated:looking", folder, count="many"), 20.0))


def test_a_hang_at_import_ends_within_its_limit(folder: Path) -> None:
    started = time.monotonic()
    request = request_of("hanging:provider", folder, hang_seconds=1.0, tier="ops")
    with pytest.raises(UsageError, match="hanging:provider does not end within 1 s"):
        run_suite(request, folder / "out", lambda *_progress: None)
    assert time.monotonic() - started < 20


def test_a_wheel_that_cannot_be_read_is_not_checked(tmp_path: Path) -> None:
    wheel = tmp_path / "sglang-1.0-py3-none-any.whl"
    with zipfile.ZipFile(wheel, "w") as made:
        made.writestr("sglang-1.0.dist-info/METADATA", "Name: sglang\nVersion: 1.0\n")
        made.writestr("sglang/srt/a.py", "A = 1\n", zipfile.ZIP_DEFLATED)
    data = bytearray(wheel.read_bytes())
    for found in [match.start() for match in re.finditer(rb"sglang/srt/a\.py", bytes(data))]:
        at = found - 22 if data[found - 30 : found - 26] == b"PK\3\4" else found - 36
        data[at : at + 2] = (99).to_bytes(2, "little")  # the compression method
    wheel.write_bytes(data)
    with pytest.raises(UsageError, match=r"cannot be checked: srt/a\.py is damaged in the wheel"):
        WheelSource(wheel, SGLANG).read("srt/a.py")


# ---- what a target does to the pipe


def test_what_a_target_writes_to_every_descriptor_is_no_message(folder: Path) -> None:
    seen = []
    with pytest.raises(ChildEnded, match="writes to the descriptor of specsim's messages"):
        seen += list(ask(request_of("isolated:writing", folder), 20.0))


def test_what_a_schedule_writes_to_low_descriptors_reaches_no_process_of_specsim(folder: Path) -> None:
    started = time.monotonic()
    suite, findings = run_suite(request_of("isolated:scribbling", folder, 5), folder / "out", lambda *_progress: None)
    assert (suite.schedules, findings) == (5, [])
    assert time.monotonic() - started < 20


def test_a_target_that_closes_every_descriptor_is_noticed(folder: Path) -> None:
    with pytest.raises(ChildEnded, match=r"ends its process|does not end"):
        list(ask(request_of("closing:engine", folder), 20.0))


def test_a_fork_of_the_target_counts_nothing_twice(folder: Path) -> None:
    events = [m for m in ask(request_of("isolated:forking", folder, 5), 20.0) if isinstance(m, At)]
    assert [m.index for m in events][-5:] == [0, 1, 2, 3, 4]
    assert len({table.encoded(m) for m in events}) == len(events)


def test_twenty_megabytes_of_exception_text_cost_no_more_than_a_line(folder: Path) -> None:
    finding = found_in("shouting", folder)
    assert finding.rule == "X1"
    assert max(len(text) for text in asdict(finding).values() if isinstance(text, str)) < 2 * TEXT_MAX


def test_a_batch_whose_target_leaves_with_exit_code_0_has_the_finding_of_a_check(folder: Path) -> None:
    result = run_batch(Batch(7, 0, 2, 10000, 40, "isolated:leaving", "scheduler"), folder / "cache", 5.0)
    (found,) = result.findings
    assert (found.rule, found.signature) == ("X3", "scheduler:X3:process")
    assert "ends its process (exit code 0)" in found.title


# ---- what a target sees and may take


def test_a_target_sees_the_variables_of_the_list_and_those_that_are_kept(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in {"A_TOKEN": "secret", "KEPT": "yes", "OMP_NUM_THREADS": "1", environment.KEEP: ""}.items():
        monkeypatch.setenv(name, value)
    environment.keep(["KEPT"])
    finding = found_in("looking", folder)
    assert "A_TOKEN=None KEPT=yes OMP_NUM_THREADS=1" in finding.actual


def test_a_target_has_one_thread_of_torch_unless_the_user_wants_more() -> None:
    assert environment.of_target({})["OMP_NUM_THREADS"] == "1"
    assert environment.of_target({"OMP_NUM_THREADS": "3"})["OMP_NUM_THREADS"] == "3"
    count = "import torch; print(torch.get_num_threads())"
    run = [sys.executable, "-c", count]
    ended = subprocess.run(run, env=environment.of_target({}), capture_output=True, text=True, check=True)
    assert ended.stdout.strip() == "1"


def test_no_token_of_a_ci_system_is_in_the_list() -> None:
    tokens = "GITHUB_TOKEN GITHUB_ACTIONS CI_JOB_TOKEN HF_TOKEN AWS_SECRET_ACCESS_KEY PIP_INDEX_URL"
    environ = dict.fromkeys([*tokens.split(), "PATH", "HOME"], "x")
    assert set(environment.of_target(environ)) == {"PATH", "HOME", "PYTHONPATH", *environment.ONE_THREAD}


@pytest.mark.parametrize(("gib", "answer"), [("0.5", "refused"), ("0", "allowed")])
def test_a_target_may_take_so_much_memory(folder: Path, monkeypatch: pytest.MonkeyPatch, gib: str, answer: str) -> None:
    monkeypatch.setenv(limits.MEMORY, gib)
    finding = found_in("taking", folder)
    assert answer in finding.actual


@pytest.mark.parametrize("text", ["much", "-1", "nan", "inf"])
def test_a_limit_that_is_no_size_is_refused(monkeypatch: pytest.MonkeyPatch, text: str) -> None:
    monkeypatch.setenv(limits.MEMORY, text)
    with pytest.raises(UsageError, match="is no size"):
        limits.memory_bytes()


def test_no_more_processes_are_started_than_a_multiple_of_the_cores(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    assert limits.allowed_jobs(None) == limits.cores()
    most = limits.JOBS_A_CORE * limits.cores()
    assert limits.allowed_jobs(most) == most
    commands = (
        ["check", "model", "a:b"],
        ["fuzz", "model"],
        ["mutants"],
        ["mutants", "--only", "ops"],
    )
    for command in commands:
        with pytest.raises(SystemExit) as ended:
            main([*command, "--jobs", str(most + 1)])
        assert ended.value.code == 2
        assert f"give {most} at most, {limits.JOBS_A_CORE} for each core" in capsys.readouterr().err.lower()


# ---- processes that end


def is_alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def descendants(pid: int) -> set[int]:
    found: set[int] = set()
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            parent = int((folder / "stat").read_text().rpartition(")")[2].split()[1])
        except OSError:
            continue
        if parent == pid:
            found |= {int(folder.name)} | descendants(int(folder.name))
    return found


def until(holds: Callable[[], bool], seconds: float = 20.0) -> bool:
    end = time.monotonic() + seconds
    while not holds() and time.monotonic() < end:
        time.sleep(0.05)
    return holds()


@pytest.fixture
def spinning(folder: Path) -> Iterator[subprocess.Popen[bytes]]:
    """A check whose target has forked, and neither process ends."""
    noted = folder / "spinning"
    noted.unlink(missing_ok=True)
    process = subprocess.Popen(
        [sys.executable, "-m", "specsim", "check", "isolated:spinning", "--only", "scheduler"],
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    try:
        assert until(lambda: noted.exists() and len(noted.read_text().splitlines()) == 2, 60.0)
        yield process
    finally:
        process.kill()
        process.wait()
        for pid in map(int, noted.read_text().split()):
            if is_alive(pid):
                os.kill(pid, signal.SIGKILL)


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM])
def test_a_check_that_is_killed_leaves_no_process(
    spinning: subprocess.Popen[bytes], folder: Path, number: signal.Signals
) -> None:
    family = descendants(spinning.pid)
    assert set(map(int, (folder / "spinning").read_text().split())) <= family
    spinning.send_signal(number)
    spinning.wait()
    assert until(lambda: not any(map(is_alive, family)), 5.0), [pid for pid in family if is_alive(pid)]


def test_a_group_that_is_ended_leaves_none_of_it() -> None:
    command = [sys.executable, "-c", "import os, time; os.fork(); time.sleep(1000)"]
    process = processes.start(command, environment.of_ours())
    assert until(lambda: len(descendants(process.pid)) == 1)
    family = {process.pid} | descendants(process.pid)
    assert processes.end(process) == -signal.SIGKILL
    assert until(lambda: not any(map(is_alive, family)), 5.0)


def test_a_command_that_takes_too_long_is_ended_with_what_it_started() -> None:
    command = [sys.executable, "-c", "import os, time; print(os.fork(), flush=True); time.sleep(1000)"]
    with pytest.raises(subprocess.TimeoutExpired) as ended:
        processes.run(command, timeout=1.0)
    (pid,) = {int(line) for line in (ended.value.output or b"").split()} - {0}
    assert until(lambda: not is_alive(pid), 5.0)


def test_groups_end_with_this_process_even_after_their_guard_was_killed(tmp_path: Path) -> None:
    program = """
        import os, signal, subprocess, sys
        from specsim.isolation import environment, processes
        started = [processes.start(["sleep", "1000"], environment.of_ours())]
        os.kill(processes._guarded._process.pid, signal.SIGKILL)
        processes._guarded._process.wait()
        started.append(processes.start(["sleep", "1000"], environment.of_ours()))
        print(*[each.pid for each in started], flush=True)
        os.kill(os.getpid(), signal.SIGKILL)
    """
    ended = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(program)],
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        check=False,
        text=True,
    )
    pids = list(map(int, ended.stdout.split()))
    assert len(pids) == 2, ended.stderr
    assert until(lambda: not any(map(is_alive, pids)), 5.0)


def test_a_fork_dies_with_the_process_that_forked_it() -> None:
    program = """
        import os, signal, time
        from specsim.isolation.processes import fork
        pid = fork()
        if pid == 0:
            time.sleep(1000)
        print(pid, flush=True)
        os.kill(os.getpid(), signal.SIGKILL)
    """
    ended = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(program)],
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        stdout=subprocess.PIPE,
        check=False,
        text=True,
    )
    assert until(lambda: not is_alive(int(ended.stdout)), 5.0)


def test_a_fork_with_a_group_of_its_own_is_ended_with_what_it_forked() -> None:
    reader, writer = os.pipe()
    pid = processes.fork(own_group=True)
    if pid == 0:
        os.fork()
        os.write(writer, b".")
        time.sleep(1000)
    assert os.read(reader, 1) == b"."
    assert until(lambda: len(descendants(pid)) == 1)
    family = {pid} | descendants(pid)
    assert processes.end_fork(pid) == -signal.SIGKILL
    assert until(lambda: not any(map(is_alive, family)), 5.0)
    os.close(reader)
    os.close(writer)


def test_a_process_that_gets_no_core_does_not_hang() -> None:
    """It is ready to run all the time, and has had less than its share of a core: stopped, as a busy machine does."""
    pid = os.fork()
    if pid == 0:
        while True:
            pass
    try:
        patience = processes.Patience(pid, 0.2)
        monkey = patience._cpu
        patience._cpu = monkey + 1e6  # as if it had had nothing since
        time.sleep(0.3)
        assert not patience.is_over
        patience._cpu = monkey - 1.0  # it has had its share
        assert patience.is_over
    finally:
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)


def test_a_process_that_sleeps_hangs_when_its_seconds_are_over() -> None:
    pid = os.fork()
    if pid == 0:
        time.sleep(60)
        os._exit(0)
    try:
        patience = processes.Patience(pid, 0.05)
        assert not patience.is_over
        time.sleep(0.2)
        assert patience.is_over
    finally:
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)


def test_a_release_is_fetched_where_pip_is_configured_and_not_in_the_child(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fetch(target: Release, _cache: object) -> None:
        raise UsageError(f"asked for {target.version} in process {os.getpid()}", "nothing")

    monkeypatch.setattr("specsim.engines.packages.fetch_release", fetch)
    question = request_of("sglang==0.0.7", tmp_path, tier="ops")
    with pytest.raises(UsageError, match=rf"asked for 0\.0\.7 in process {os.getpid()}"):
        list(ask(question, 5.0))


ABSENT = (("ops", "failure"),)  # operations run in a process of their own


def test_every_mode_of_a_child_is_there() -> None:
    for tier in TIERS.values():
        for bulk in (False, True):
            module = importlib.import_module(tier.answers(request_of("model", Path(), tier=tier.name, bulk=bulk)))
            modes = ("check", "failure") if bulk else ("check", "failure", "replay", "shrink", "search")
            assert all(callable(getattr(module, mode, None)) for mode in modes if (tier.name, mode) not in ABSENT)
