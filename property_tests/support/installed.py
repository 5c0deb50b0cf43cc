"""Run as a program by `make test-package`, with the Python of an environment that has specsim from its wheel: each
command of a user who has no checkout. Nothing of the repository is imported.
"""

from __future__ import annotations

import os
import subprocess
import sys
from importlib import metadata, util
from pathlib import Path

COMMANDS = {  # and the exit code; RELEASE is the argument
    "--version": 0,
    "check model --cases 1 --schedules 5": 0,
    "explain content-read": 0,
    "template fill_bonus_tokens --out adapter.py": 0,
    "check --provider adapter:provider --cases 2": 0,
    "dev check model --mutant A01 --schedules 40": 1,
    "check RELEASE --only ops:fill_bonus_tokens --cases 4": 1,
    "dev check RELEASE --only scheduler --mutant P07 --schedules 1": 1,
    "report specsim-findings --html pages": 0,
}


def main(release: str) -> int:
    spec = util.find_spec("specsim")
    assert spec is not None
    place = Path(str(spec.origin)).parent
    if not place.is_relative_to(sys.prefix):
        print(f"specsim is {place}, which is not the wheel's in {sys.prefix}")
        return 1
    print(f"specsim {metadata.version('specsim-llm')} in {place}")
    command = Path(sys.executable).with_name("specsim")
    failed = 0
    for arguments, code in COMMANDS.items():
        words = [release if word == "RELEASE" else word for word in arguments.split()]
        ended = subprocess.run([command, *words], check=False, capture_output=True, text=True)
        is_right = ended.returncode == code and "Traceback" not in ended.stderr
        print(f"{'ok' if is_right else 'WRONG'}  {ended.returncode}  specsim {' '.join(words)}")
        if not is_right:
            print(ended.stdout[-2000:], ended.stderr[-2000:], sep=os.linesep)
            failed += 1
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
