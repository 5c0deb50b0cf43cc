"""Wheels in the cache, damaged: of a made-up release of SGLang that has no defect, and of other packages."""

from __future__ import annotations

import functools
import io
import random
import struct
import warnings
import zipfile

from property_tests.support.attack import sources
from property_tests.support.attack.damage import HOSTILE_TEXT, flipped
from property_tests.support.attack.folder import Folder
from property_tests.support.attack.runner import Attack

VERSION = "1.0.0"
WHEEL = f"sglang-{VERSION}-py3-none-any.whl"
METADATA = f"sglang-{VERSION}.dist-info/METADATA"
STATED = f"Metadata-Version: 2.1\nName: sglang\nVersion: {VERSION}\n"
BRIEF = ("--budget-seconds", "6", "--hang-seconds", "10", "--cases", "3", "--no-shrink")


def files() -> dict[str, bytes]:
    """What is in the wheel."""
    engine = {name.removeprefix("python/"): text.encode() for name, text in sources.engine_files().items()}
    return {**engine, METADATA: STATED.encode()}


def zipped(content: dict[str, bytes], compression: int = zipfile.ZIP_DEFLATED) -> bytes:
    made = io.BytesIO()
    with zipfile.ZipFile(made, "w", compression) as wheel:
        for name, data in content.items():
            wheel.writestr(zipfile.ZipInfo(name, (1980, 1, 1, 0, 0, 0)), data, compression)
    return made.getvalue()


@functools.cache
def whole() -> bytes:
    return zipped(files())


def attack(random_: random.Random, folder: Folder) -> Attack:
    """A damaged wheel, and a command that reads it."""
    what, content = random_.choice(
        (_bytes_changed, _cut_off, _fields_changed, _fields_changed, _fields_changed, _entries, _entries, _metadata)
    )(random_)
    place = random_.randrange(6)
    if place < 4:
        wheel = folder.cache / "wheels" / WHEEL
        target = f"sglang=={VERSION}"
    else:
        package = random_.choice(("vllm", "sgl-kernel", "flashinfer", "sglang"))
        wheel = folder.work / f"{package}-{VERSION}-py3-none-any.whl"
        target = f"{package}@{wheel.name}"
        if random_.random() < 0.3 and package != "sglang":
            index = {"vllm": "vllm", "sgl-kernel": "sglang-kernel", "flashinfer": "flashinfer-python"}[package]
            wheel, target = folder.cache / "packages" / f"{index}-{VERSION}.zip", f"{package}=={VERSION}"
    wheel.parent.mkdir(parents=True, exist_ok=True)
    wheel.write_bytes(content)
    tier = random_.choice(("ops", "ops", "workers")) if target.startswith("sglang") else "ops"
    commands = (
        ("check", target, "--only", tier, *BRIEF),
        ("check", target, "--only", tier, "--bisect-run", *BRIEF),
        ("targets", target),
        ("targets", "--json", "targets.json"),
        ("targets", "--fetch", target),
        ("doctor",),
        ("fuzz", target, "--only", "ops", "--jobs", "1", "--budget-seconds", "4"),
        ("bisect", "--only", "ops:fill_bonus_tokens", "--good", target, "--bad", "sglang==1.0.1"),
    )
    (command,) = random_.choices(commands, (6, 1, 4, 3, 1, 1, 1, 1))
    return Attack(f"a wheel {what}", command, limit_s=30.0, never_finding=command[0] in ("check", "fuzz"))


def _bytes_changed(random_: random.Random) -> tuple[str, bytes]:
    return "with bytes changed", flipped(random_, whole())


def _cut_off(random_: random.Random) -> tuple[str, bytes]:
    return "that is cut off", whole()[: random_.randrange(len(whole()))]


# The fields of an entry in the zip's directory, and of the one before the entry itself: offset and struct's letter.
_DIRECTORY = {"flags": (8, "H"), "method": (10, "H"), "crc": (16, "I"), "packed": (20, "I"), "size": (24, "I")}
_DIRECTORY |= {"name": (28, "H"), "extra": (30, "H"), "offset": (42, "I")}
_LOCAL = {"flags": (6, "H"), "method": (8, "H"), "crc": (14, "I"), "packed": (18, "I"), "size": (22, "I")}
_VALUES = {
    "method": (1, 9, 12, 14, 93, 95, 99, 0xFFFF),
    "flags": (1, 0x40, 0x2000, 0xFFFF),
    "size": (0, 1, 0x7FFFFFFF, 0xFFFFFFFF),
}


def _fields_changed(random_: random.Random) -> tuple[str, bytes]:
    """One field of one or all entries set: another method, encrypted, a wrong CRC, a huge size."""
    content = bytearray(whole())
    name = random_.choice(sorted(_DIRECTORY))
    value = random_.choice(_VALUES.get(name, (0, 1, 0xFFFF, random_.randrange(1 << 16))))
    every = random_.random() < 0.3
    for mark, fields in ((b"PK\x01\x02", _DIRECTORY), (b"PK\x03\x04", _LOCAL)):
        if name not in fields:
            continue
        offset, letter = fields[name]
        starts = [at for at in range(len(content)) if content.startswith(mark, at)]
        chosen = starts if every else [starts[random_.randrange(len(starts)) % len(starts)]]
        for at in chosen:
            struct.pack_into(f"<{letter}", content, at + offset, value & (0xFFFF if letter == "H" else 0xFFFFFFFF))
    return f"whose {name} is {value} in {'every entry' if every else 'an entry'}", bytes(content)


def _entries(random_: random.Random) -> tuple[str, bytes]:
    """Entries with names that lead elsewhere, twice, or with much in them."""
    content = files()
    kind = random_.randrange(7)
    if kind == 0:
        name = random_.choice(
            ("../../outside/evil", "/outside", "..\\evil", "C:evil", "a" * 60_000, "sglang/srt/../../x")
        )
        return f"with an entry {name[:20]!r}", zipped({**content, name: b"x", f"sglang/srt/{name}.py": b"x"})
    if kind == 1:
        made = io.BytesIO(whole())
        with warnings.catch_warnings(), zipfile.ZipFile(made, "a") as wheel:
            warnings.simplefilter("ignore")
            for name in [*content, *content]:
                wheel.writestr(name, b"def broken(:\n")
        return "with every entry twice", made.getvalue()
    if kind == 2:
        name = random_.choice(sorted(content))
        return f"with 40 MB in {name}", zipped({**content, name: b"x = 1\n" * 7_000_000})
    if kind == 3:
        return "with 20,000 entries", zipped({**content, **{f"sglang/srt/f{n}.py": b"" for n in range(20_000)}})
    if kind == 4:
        name = random_.choice(HOSTILE_TEXT[:12]).replace("\x00", "").replace("\ud800", "") or "x"
        return f"with an entry {name!r}", zipped({**content, f"sglang/srt/{name}.py": b"x"})
    if kind == 5:
        name = random_.choice(sorted(content))
        what, breaks = random_.choice(sorted(sources._BROKEN.items()))
        return f"with {what} in {name}", zipped({**content, name: breaks(content[name].decode())})
    method = random_.choice((zipfile.ZIP_BZIP2, zipfile.ZIP_LZMA, zipfile.ZIP_STORED))
    return f"packed by method {method}, with bytes changed", flipped(random_, zipped(content, method))


def _metadata(random_: random.Random) -> tuple[str, bytes]:
    content = files()
    text = random_.choice(HOSTILE_TEXT).encode("utf-8", "surrogatepass")
    stated = random_.choice(
        (
            b"",
            STATED.encode() + b"X" * 30_000_000,
            STATED.replace(VERSION, "0.0.0").encode(),
            b"Name: sglang\nVersion: " + text + b"\n",
            b"Name: " + text + f"\nVersion: {VERSION}\n".encode(),
            STATED.encode("utf-16"),
            b"\xff\xfe" + STATED.encode(),
            b"Name: sglang\n" * 100_000,
        )
    )
    if random_.random() < 0.2:
        return "with two files of metadata", zipped({**content, "other-1.dist-info/METADATA": stated})
    return "with hostile metadata", zipped({**content, METADATA: stated})
