"""The process of `apart.py`: it checks one target, with nothing beside it.

It reads what is asked, pickled, from standard input, and writes the verdict, as `specsim check --json` does, to the
file that its argument names.
"""

from __future__ import annotations

import pickle
import sys
from pathlib import Path


def main(file: Path) -> int:
    """Returns the exit code."""
    from specsim.commands.one_target import check_alone
    from specsim.files import save_json

    verdict = check_alone(pickle.load(sys.stdin.buffer))
    save_json(file, verdict.to_json())
    return verdict.exit_code


if __name__ == "__main__":
    from specsim.cli import ended_in_words

    with ended_in_words():
        raise SystemExit(main(Path(sys.argv[1])))
