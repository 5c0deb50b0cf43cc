"""Sources of targets: checkouts of a small made-up engine that cannot be read, and providers that do harm."""

from __future__ import annotations

import functools
import os
import random
import textwrap
from collections.abc import Callable

from property_tests.support import small_engine
from property_tests.support.attack.folder import Folder
from property_tests.support.attack.runner import Attack

ENGINE = "sglang@engine"
PLAN = small_engine.Plan(commits=1, bad=1)
WORKER = f"engine/{small_engine.WORKER_FILE}"
BRIEF = ("--budget-seconds", "6", "--hang-seconds", "5", "--cases", "4", "--no-shrink")
SCHEDULES = ("--budget-seconds", "6", "--hang-seconds", "5", "--schedules", "6", "--no-shrink")


@functools.cache
def engine_files() -> dict[str, str]:
    """The files of the engine, which has no defect."""
    return PLAN.files(0)


def write_engine(folder: Folder) -> None:
    """The engine as a checkout in `work/engine`."""
    for name, text in engine_files().items():
        folder.write(f"engine/{name}", text)


def attack(random_: random.Random, folder: Folder) -> Attack:
    """A checkout that cannot be read as Python, or a provider or an engine of a user that does harm."""
    return random_.choice((_unreadable, _unreadable, _harmful, _harmful_engine))(random_, folder)


# What cannot be read

_BROKEN: dict[str, Callable[[str], bytes]] = {
    "an unfinished function": lambda text: f"{text}\ndef broken(:\n".encode(),
    "an unfinished string": lambda text: f'{text}\nx = """'.encode(),
    "a zero byte": lambda text: text.encode() + b"\x00\n",
    "bytes that are no UTF-8": lambda text: text.encode() + b"# \xff\xfe\xc3(\n",
    "UTF-16": lambda text: text.encode("utf-16"),
    "another encoding": lambda text: b"# -*- coding: nosuchcodec -*-\n" + text.encode() + b"\nx = \xff\n",
    "deep parentheses": lambda text: text.encode() + b"\nx = " + b"(" * 5_000 + b"1" + b")" * 5_000 + b"\n",
    "deep minus signs": lambda text: text.encode() + b"\nx = " + b"-" * 50_000 + b"1\n",
    "a long sum": lambda text: text.encode() + b"\nx = " + b"1+" * 50_000 + b"1\n",
    "deep blocks": lambda text: text.encode() + b"\n" + b"".join(b" " * n + b"if x:\n" for n in range(150)) + b"\n",
    "deep attributes": lambda text: text.encode() + b"\nx = a" + b".a" * 50_000 + b"\n",
    "tabs and spaces": lambda text: f"{text}\nif x:\n\ty = 1\n        z = 2\n".encode(),
    "a control character": lambda text: f"{text}\n\x1b[2J = \x07\n".encode(),
    "a huge number": lambda text: text.encode() + b"\nx = " + b"9" * 10_000 + b"\n",
    "nothing": lambda _text: b"",
    "half of it": lambda text: text.encode()[: len(text) // 2] + b"\n(",
}


def _unreadable(random_: random.Random, folder: Folder) -> Attack:
    write_engine(folder)
    names = sorted(engine_files())
    name = random_.choice([*names, small_engine.WORKER_FILE])
    file = folder.work / "engine" / name
    trouble = random_.choice([*_BROKEN, "a link to itself", "a folder", "a FIFO", "no such file", "a binary file"])
    if trouble in _BROKEN:
        file.write_bytes(_BROKEN[trouble](engine_files()[name]))
    else:
        file.unlink()
        if trouble == "a link to itself":
            file.symlink_to(file.name)
        elif trouble == "a folder":
            file.mkdir()
        elif trouble == "a FIFO":
            os.mkfifo(file)
        elif trouble == "a binary file":
            file.write_bytes(random_.randbytes(4000))
    what = f"{trouble} in {name.rsplit('/', 1)[-1]}"
    commands = (
        ("check", ENGINE, "--only", "ops", *BRIEF),
        ("check", ENGINE, "--only", "ops:fill_bonus_tokens", "--json", "verdict.json", *BRIEF),
        ("check", ENGINE, "--only", "workers", *BRIEF),
        ("check", ENGINE, "--only", "ops", "--bisect-run", *BRIEF),
        ("targets", ENGINE, "--json", "listed.json"),
        ("fuzz", ENGINE, "--budget-seconds", "4", "--jobs", "1", "--only", "ops", "--store", "c.db"),
    )
    command = random_.choice(commands)
    return Attack(what, command, limit_s=30.0, never_finding=command[0] != "targets")


# Code that does harm when it runs. {right} is what a provider that is right would do.

_HARM = {
    "returns nothing": "return None",
    "returns a wrong shape": "return torch.zeros(3, 3, 3)",
    "returns a wrong type": "return accept_lens.double()",
    "returns text": "return '\\x1b[2J' * 100",
    "returns a tuple of lists": "return ([1], [[2]])",
    "returns itself": "x = []; x.append(x); return x",
    "returns a tensor on meta": "return torch.empty(3, device='meta')",
    "returns a sparse tensor": "return torch.eye(3).to_sparse()",
    "returns a lazy object": "return type('T', (), {'__getattr__': lambda s, n: 1 / 0, '__repr__': lambda s: 1 / 0})()",
    "raises": "raise ValueError('\\x1b[2J\\x9b31m' + 'e' * 1000)",
    "raises 20 MB of text": "raise ValueError('e' * 20_000_000)",
    "raises what cannot be shown": "raise type('E', (Exception,), {'__str__': lambda s: 1 / 0})()",
    "raises what is no Exception": "raise type('B', (BaseException,), {})('b')",
    "raises half a surrogate pair": "raise ValueError('\\ud800')",
    "raises KeyboardInterrupt": "raise KeyboardInterrupt",
    "raises StopIteration": "raise StopIteration",
    "raises GeneratorExit": "raise GeneratorExit",
    "raises SystemExit with text": "raise SystemExit('text')",
    "raises MemoryError": "raise MemoryError",
    "recurses": "f = lambda n: f(n + 1); return f(0)",
    "exits": "import sys; sys.exit(0)",
    "ends its process": "os._exit(0)",
    "ends its process with a code": "os._exit(77)",
    "aborts": "os.abort()",
    "kills itself": "os.kill(os.getpid(), 9)",
    "stops itself": "os.kill(os.getpid(), 19)",
    "interrupts itself": "os.kill(os.getpid(), 2); time.sleep(0.2)",
    "sends itself SIGTERM": "os.kill(os.getpid(), 15); time.sleep(0.2)",
    "sends itself SIGALRM": "import signal; signal.setitimer(signal.ITIMER_REAL, 0.01); time.sleep(0.5)",
    "ignores signals": "import signal; [signal.signal(n, signal.SIG_IGN) for n in (2, 15)]; time.sleep(1000)",
    "hangs": "time.sleep(1000)",
    "spins": "\n    while True: pass",
    "closes its descriptors": "os.closerange(0, 1024)",
    "closes its output": "os.close(1); os.close(2)",
    "writes to every descriptor": (
        '\n    for fd in range(64):\n        try: os.write(fd, b\'\\x00}{"event": "end"}\\n\')'
        "\n        except OSError: pass"
    ),
    "prints much": "print('x' * 5_000_000); sys.stderr.write('y' * 5_000_000)",
    "prints escapes": "print('\\x1b[2J\\x9b31m'); os.write(2, b'\\x1b]0;owned\\x07\\xff')",
    "changes its folder": "os.chdir('../outside')",
    "removes its folder": "os.mkdir('gone'); os.chdir('gone'); os.rmdir('../gone')",
    "forks": "\n    if os.fork() == 0:\n        time.sleep(0.3); os._exit(0)",
    "forks once and goes on": "os.fork()",
    "leaves a fork that sleeps": "\n    if os.fork() == 0:\n        time.sleep(300); os._exit(0)",
    "starts a thread": "import threading; threading.Thread(target=time.sleep, args=(300,)).start()",
    "starts a program": "import subprocess; subprocess.Popen(['sleep', '300'])",
    "patches torch": "torch.equal = torch.ne = lambda *a, **k: 1 / 0",
    "patches json": "import json; json.dumps = lambda *a, **k: 'not json'",
    "patches print and open": "import builtins; builtins.open = builtins.print = None",
    "changes what it is given": "\n    for t in (predict, accept_index, accept_lens): t.zero_() if t.numel() else None",
    "resizes what it is given": "predict.resize_(0)",
    "allocates 1 TB": "torch.empty(1 << 40, dtype=torch.uint8).fill_(1)",
    "reads its input": "sys.stdin.read(); input()",
    "sets limits": "import resource; resource.setrlimit(resource.RLIMIT_NOFILE, (3, 3))",
    "changes the hash seed": "os.environ.clear(); os.environ['PYTHONPATH'] = '/'",
    "changes the path": "sys.path[:] = []; sys.modules.clear()",
}
# How often a target does what is more than a machine bears when it does it each time.
_TIMES = {"forks": 5, "forks once and goes on": 1, "leaves a fork that sleeps": 2, "starts a thread": 2}
_TIMES |= {"starts a program": 2}
_PROVIDER = """
    import os, sys, time
    import torch
    {at_import}

    calls = 0

    def fill_bonus_tokens(predict, accept_index, accept_lens):
        global calls
        calls += 1
        if {after} < calls <= {after} + {times}:
            {harm}
        at = accept_index.gather(1, (accept_lens - 1).long()[:, None]).long()
        return predict[at[:, 0]]

    provider = {{"fill_bonus_tokens": fill_bonus_tokens}}
"""
_ENGINE = """
    import os, sys, time
    import torch
    from property_tests.support.own_engine import Engine
    {at_import}

    predict = accept_index = accept_lens = torch.ones(3)
    calls = 0

    def harm():
        {harm}

    def step(requests):
        global calls
        calls += 1
        if {after} < calls <= {after} + {times}:
            harm()

    engine = Engine(step)
"""
_AT_IMPORT = {
    "a target that prints at import": 'print(\'{"event": "end"}\\x1b[2J\')',
    "a target that raises at import": "raise ValueError('at import \\x1b[2J')",
    "a target that exits at import": "sys.exit(0)",
    "a target that ends its process at import": "os._exit(0)",
    "a target that hangs at import": "time.sleep(1000)",
    "a target that cannot be read": "def broken(:",
}


def _harmful(random_: random.Random, folder: Folder) -> Attack:
    what = _write(random_, folder, _PROVIDER)
    commands = (
        ("check", "harmful:provider", "--only", "ops", *BRIEF),
        ("check", "--provider", "harmful:provider", "--out", "found", "--json", "verdict.json", *BRIEF),
        ("check", "harmful:provider", "--only", "ops", "--junit", "j.xml", "--sarif", "s.json", "--github", *BRIEF),
        ("fuzz", "harmful:provider", "--only", "ops", "--jobs", "1", "--store", "c.db", *_FUZZ),
    )
    return Attack(what, random_.choice(commands), limit_s=45.0, never_finding="cannot be read" in what)


def _harmful_engine(random_: random.Random, folder: Folder) -> Attack:
    what = _write(random_, folder, _ENGINE)
    commands = (
        ("check", "harmful:engine", "--only", "scheduler", *SCHEDULES),
        ("check", "harmful:engine", "--only", "scheduler", "--out", "found", "--json", "v.json", *SCHEDULES),
        ("fuzz", "harmful:engine", "--only", "scheduler", "--jobs", "1", "--store", "c.db", *_FUZZ),
    )
    return Attack(what, random_.choice(commands), limit_s=45.0, never_finding="cannot be read" in what)


_FUZZ = ("--budget-seconds", "6", "--hang-seconds", "5", "--out", "found")


def _write(random_: random.Random, folder: Folder, frame: str) -> str:
    """Write `harmful.py`; what it does."""
    if random_.random() < 0.15:
        what, line = random_.choice(sorted(_AT_IMPORT.items()))
        after, times, harm = 0, 0, "pass"
    else:
        name, harm = random_.choice(sorted(_HARM.items()))
        after, line = random_.choice((0, 3, 30)), ""
        times = _TIMES.get(name, 1 << 30)
        what = f"a target that {name}"
    text = textwrap.dedent(frame)
    indent = next(row for row in text.splitlines() if "{harm}" in row).split("{")[0]
    harm = harm.replace("\n    ", f"\n{indent}")
    folder.write("harmful.py", text.format(at_import=line, harm=harm, after=after, times=times))
    return what
