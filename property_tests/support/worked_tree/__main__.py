"""Draw the worked tree of docs/reference.md.

python -m property_tests.support.worked_tree [FILE]

Without FILE the picture goes to standard output.
"""

from __future__ import annotations

import sys
from pathlib import Path

from property_tests.support.worked_tree.example import PAGE, example_of
from property_tests.support.worked_tree.picture import picture_of
from specsim.errors import UsageError
from specsim.files import write_text


def main(arguments: list[str]) -> int:
    if len(arguments) > 1 or any(argument.startswith("-") for argument in arguments):
        print("usage: python -m property_tests.support.worked_tree [FILE]", file=sys.stderr)
        return 2
    try:
        svg = picture_of(example_of(PAGE))
        if arguments:
            write_text(Path(arguments[0]), svg)
        else:
            print(svg, end="")
    except (UsageError, OSError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
