"""What must hold of every run, whatever its input was."""

from __future__ import annotations

import ast
import json
import re
from collections.abc import Callable, Iterator
from typing import NamedTuple
from xml.etree import ElementTree

from property_tests.support.attack.folder import Folder, Snapshot
from property_tests.support.attack.runner import Attack, Ended, stack_of

ASPECTS = ("tracebacks", "hangs", "exit codes", "sentences", "controls", "files", "processes", "verdicts")
STATE = "home/.local/state/specsim"  # where the checksums of what is in the cache are, apart from it
DOCUMENTED = {0, 1, 2, 3, 125, 130}
GIT_STOPS = 128  # of --bisect-run: `git bisect run` stops
_TRACEBACK = re.compile(
    r"Traceback \(most recent call last\)|Fatal Python error|Exception ignored in|Segmentation fault"
)
_FRAME = re.compile(r'File "[^"]*?((?:specsim|reference|kernels)/[^"]+)", line \d+, in (\S+)')
_SENTENCE = re.compile(r"specsim: |usage: |Usage: |result: error|^error|^\S+ {2,}error", re.MULTILINE)
# What a terminal obeys, but for newlines and tabs: C0, DEL and C1, as characters or as bytes that are no UTF-8.
_CONTROL = re.compile("[\x00-\x08\x0b-\x1f\x7f\x80-\x9f\udc80-\udcff]")


class Failure(NamedTuple):
    """`aspect` is one of `ASPECTS`, `which` the same for the same defect, `details` what was seen."""

    aspect: str
    which: str
    details: str


def failures(folder: Folder, attack: Attack, before: Snapshot, after: Snapshot, ended: Ended) -> list[Failure]:
    """What is wrong with a run; `before` and `after` are snapshots around it."""
    found = [*_of_the_end(folder, attack, ended), *_of_what_is_shown(ended), *_of_files(attack, before, after, ended)]
    found += [failure for name in sorted({*after} - {*before}) for failure in _of_output(folder, attack, name)]
    found += [Failure("processes", f"left behind: {_without_numbers(line)}", line) for line in ended.left]
    return found


def _of_the_end(folder: Folder, attack: Attack, ended: Ended) -> Iterator[Failure]:
    shown = ended.stdout + ended.stderr
    if ended.code is None and ended.left:
        return
    if ended.code is None:
        stack = stack_of(folder)
        yield Failure("hangs", f"{attack.arguments[0]}: {_place(stack) or attack.what}", stack[:2000])
        return
    allowed = DOCUMENTED | ({GIT_STOPS} if "--bisect-run" in attack.arguments else set())
    if ended.code not in allowed:
        yield Failure(
            "exit codes", f"{ended.code} of {attack.arguments[0]}: {_place(ended.stderr)}", ended.stderr[-2000:]
        )
    elif ended.code == 2 and attack.stdout == "file" and not _SENTENCE.search(shown):
        yield Failure("sentences", f"{attack.arguments[0]} says nothing", shown[-2000:])
    if ended.code == 1 and attack.never_finding and not _TRACEBACK.search(shown):
        yield Failure("verdicts", f"a finding of {attack.arguments[0]}: {attack.what}", shown[-2000:])


def _of_what_is_shown(ended: Ended) -> Iterator[Failure]:
    for text in (ended.stdout, ended.stderr):
        if _TRACEBACK.search(text):
            error = text.strip().splitlines()[-1]
            name = error.split(":")[0] if re.match(r"[\w.]+(:|$)", error) else ""
            yield Failure("tracebacks", f"{name} {_place(text)}".strip(), text[-2000:])
        control = _CONTROL.search(text)
        if control:
            around = text[max(0, control.start() - 100) : control.end() + 100]
            yield Failure("controls", f"{control[0]!r} after {_words(text[: control.start()])}", repr(around))


def _of_files(attack: Attack, before: Snapshot, after: Snapshot, ended: Ended) -> Iterator[Failure]:
    for name in sorted({*before, *after}):
        was, now = before.get(name, "not there"), after.get(name, "not there")
        place, _, below = name.partition("/")
        if was == now or place == "streams":
            continue
        if place == "tmp":
            if ended.code is not None and not attack.cwd_removed:
                yield Failure("files", f"a temporary file stays: {_without_numbers(below)}", name)
        elif place == "work" and name not in before:
            if below.endswith(".tmp") or ".scratch-" in below:
                yield Failure("files", f"a temporary file stays: {_without_numbers(below)}", name)
        elif place == "work" or name in before:
            if place == "cache" or (place == "work" and _may_change(attack, below) and _kind(was) == _kind(now)):
                continue
            what = f"{_kind(was)} becomes {_kind(now)}" if _kind(was) != _kind(now) else f"a {_kind(was)} is changed"
            yield Failure("files", f"{attack.arguments[0]}: {what}: {name}", f"{was} -> {now}")
        elif place != "cache" and not f"{STATE}/".startswith(f"{name}/") and not name.startswith(f"{STATE}/"):
            yield Failure("files", f"{attack.arguments[0]}: made outside: {_without_numbers(name)}", now)


def _of_output(folder: Folder, attack: Attack, name: str) -> Iterator[Failure]:
    """What was written is what its name says, and no text of the input became a command."""
    path = folder.path / name
    if path.name == "owned":
        yield Failure("files", f"{attack.arguments[0]}: text of the input was run", name)
    at = [number for number, text in enumerate(attack.arguments) if text and text == name.removeprefix("work/")]
    if any(attack.arguments[number - 1].startswith("--") and attack.arguments[number - 1] != "--json" for number in at):
        return  # such as --html verdict.json
    read = _READERS.get(path.suffix)
    if read is None or not name.startswith("work/") or not path.is_file() or path.is_symlink():
        return
    try:
        read(path.read_bytes())
    except Exception as error:
        which = f"{attack.arguments[0]}: what it wrote is no {path.suffix}"
        yield Failure("files", f"{which} ({type(error).__name__})", f"{name}: {error}")


_READERS: dict[str, Callable[[bytes], object]] = {".json": json.loads, ".py": ast.parse, ".xml": ElementTree.fromstring}


def _may_change(attack: Attack, below: str) -> bool:
    parts = below.split("/")
    return any("/".join(parts[:count]) in attack.may_change for count in range(1, len(parts) + 1))


def _kind(described: str) -> str:
    return described.split()[0] if not described.startswith(("link", "device", "kind", "not there")) else described


def _place(text: str) -> str:
    """Where specsim was: the innermost of its functions in a traceback or a stack."""
    frames = _FRAME.findall(text)
    if not frames:
        return ""
    file, function = frames[0] if text.startswith("Timeout") else frames[-1]
    return f"in {file}:{function}"


def _words(text: str) -> str:
    return _without_numbers(text[-40:].split("\n")[-1].strip())[-30:]


def _without_numbers(text: str) -> str:
    return re.sub(r"[0-9a-f]{6,}|\d+", "N", re.sub(r"tmp\w{8}", "tmpX", text))
