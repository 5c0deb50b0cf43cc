"""The SHA-256 of each file of the cache whose code is run, noted outside the cache: a file that was changed is refused.

A cache is often shared, restored from elsewhere or writable by others; the notes are not. They lie in
`$XDG_STATE_HOME/specsim/checksums` (else `~/.local/state/specsim/checksums`), a small file for each, which
`sha256sum --check` reads. A file is noted when specsim stores it. One that is there without a note, as a wheel that was
put into the cache by hand, is noted when it is first used: this detects a change after that, and none before it.

What this does not do: protect from somebody who can write the notes too, or who changes a file while it is read.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import re
from collections.abc import Mapping
from pathlib import Path

from specsim.errors import UsageError
from specsim.files import make_folder, whole

_NOTE_BYTES_MAX = 1 << 16


def note(place: Path, file: Path) -> None:
    """Note the SHA-256 of `file`, which is what belongs at `place`. Where no note can be written there is none."""
    digest = sha256_of(file)
    notes = _notes_folder()
    if notes is None:
        return
    kept = _note_of(notes, place)
    with contextlib.suppress(OSError):
        make_folder(notes)
        notes.chmod(0o700)
        with whole(kept) as written:
            os.fchmod(written.fileno(), 0o600)
            written.write(f"{digest}  ".encode() + os.fsencode(file) + b"\n")


def require_noted(place: Path, file: Path) -> None:
    """Raise UsageError when `file` is not what was noted for `place`; note it when nothing was."""
    notes = _notes_folder()
    kept = None if notes is None else _note_of(notes, place)
    noted = None if kept is None else _read(kept)
    if noted is None:
        note(place, file)
        return
    digest = sha256_of(file)
    if digest != noted:
        raise UsageError(
            f"{file} was changed after it was stored: its SHA-256 is {digest}, and {noted} was noted",
            f"remove it, and it is fetched or built again; if you replaced it yourself, remove the note {kept}",
        )


def sha256_of(file: Path) -> str:
    """The SHA-256 of a file in hexadecimal digits. UsageError when it cannot be read."""
    try:
        with file.open("rb") as content:
            return hashlib.file_digest(content, "sha256").hexdigest()
    except OSError as error:
        raise UsageError(f"cannot read {file}: {error.strerror or error}", "make it readable, or remove it") from error


def _notes_folder(environ: Mapping[str, str] = os.environ) -> Path | None:
    """Where the notes are; None where the home folder is unknown."""
    state = environ.get("XDG_STATE_HOME", "")
    chosen = Path(state) if os.path.isabs(state) else Path("~/.local/state")
    try:
        return chosen.expanduser() / "specsim" / "checksums"
    except RuntimeError:
        return None


def _note_of(notes: Path, place: Path) -> Path:
    return notes / f"{hashlib.sha256(os.fsencode(place.absolute())).hexdigest()[:32]}.sha256"


def _read(kept: Path) -> str | None:
    """The digest in a note; None when there is no note. A note that cannot be understood is no note."""
    try:
        with kept.open("rb") as content:
            text = content.read(_NOTE_BYTES_MAX)
    except OSError:
        return None
    digest = text[:64].decode("ascii", "replace")
    return digest if re.fullmatch("[0-9a-f]{64}", digest) else None
