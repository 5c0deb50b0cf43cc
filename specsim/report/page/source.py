"""Lines of Python, coloured."""

from __future__ import annotations

from collections.abc import Sequence

from markupsafe import Markup, escape
from pygments.lexers import PythonLexer
from pygments.token import Comment, Keyword, Literal, Name, Operator

_CLASSES = (  # of page.css
    (Comment, "comment"),
    (Literal, "literal"),
    (Keyword, "keyword"),
    (Operator.Word, "keyword"),
    (Name.Decorator, "keyword"),
    (Name.Function, "named"),
    (Name.Class, "named"),
)


def coloured(lines: Sequence[str]) -> list[Markup]:
    """As many lines, with the words of the language in spans. They may be the middle of a file."""
    text = "\n".join(lines)
    found = [""]
    for kind, value in PythonLexer(stripnl=False, ensurenl=False).get_tokens(text):
        name = next((name for one, name in _CLASSES if kind in one), "")
        for number, piece in enumerate(value.split("\n")):
            if number:
                found.append("")
            if piece:
                found[-1] += f'<span class="{name}">{escape(piece)}</span>' if name else str(escape(piece))
    return [Markup(line) for line in found[: len(lines)]]
