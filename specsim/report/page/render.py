"""A payload as one HTML file. What does not move is HTML already, so that it can be read without a script; the script
adds what goes through the events. Every text is escaped, and a policy in the file lets nothing run or load but its own
script and style.
"""

from __future__ import annotations

import base64
import hashlib
import math
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup

from specsim.report.page.lanes import lanes_of
from specsim.report.page.plain import in_html
from specsim.report.page.source import coloured
from specsim.report.page.tensors import shade

_STARTS = {"streams": "lanes"}
_ROLES = ("output", "expected", "input")


@cache
def _templates() -> Environment:
    made = Environment(
        loader=FileSystemLoader(Path(__file__).parent),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    made.filters |= {"coloured": coloured, "cells": _cells, "shape": _shape, "by_role": _by_role}
    return made


@cache
def _part(name: str) -> str:
    return Path(__file__).with_name(name).read_text(encoding="utf-8")


def rendered(template: str, **values: Any) -> Markup:
    """A template of this folder, its values escaped."""
    return Markup(_templates().get_template(template).render(**values))


def part(name: str, *arguments: Any) -> Markup:
    """A macro of `parts.html`."""
    return Markup(getattr(_templates().get_template("parts.html").module, name)(*arguments))


def html_of(payload: Mapping[str, Any]) -> str:
    """The page of a finding."""
    finding, kind = payload["finding"], payload["kind"]
    lanes = Markup(lanes_of(payload)) if kind == "streams" else ""
    page = {"tensors": [], "play": None, **payload}
    body = rendered("finding.html", page=page, start=_STARTS.get(kind, "about"), lanes=lanes)
    return document(f"{finding['rule_label']} on {finding['target']}", kind, body, payload)


def document(title: str, kind: str, body: Markup, payload: Any = None) -> str:
    """A whole document; `title` is text."""
    style, script = _part("page.css"), _part("page.js") if payload is not None else ""
    policy = (
        f"default-src 'none'; img-src data:; base-uri 'none'; form-action 'none'; "
        f"script-src {_hash_of(script)}; style-src {_hash_of(style)}"
    )
    return rendered(
        "document.html",
        policy=Markup(policy),
        title=title,
        style=Markup(style),
        script=Markup(script),
        kind=kind,
        body=body,
        payload=Markup(in_html(payload)),
    )


def _hash_of(text: str) -> str:
    return f"'sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}'"


# Tensors


def _by_role(tensors: Sequence[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    return sorted(tensors, key=lambda tensor: _ROLES.index(tensor["role"]))


def _shape(shape: Sequence[int]) -> str:
    return f"[{', '.join(map(str, shape))}]" if shape else "a number"


def _cells(tensor: Mapping[str, Any]) -> list[list[dict[str, str]]]:
    """How each value of a tensor's rows is drawn: `text`, `kind`, a class, and `right` where it differs."""
    numbers = [value for row in tensor["values"] for value in row if _has_a_shade(value)]
    least, most = (min(numbers), max(numbers)) if numbers else (0, 0)
    return [
        [_cell(tensor, i, j, value, least, most) for j, value in enumerate(row)]
        for i, row in enumerate(tensor["values"])
    ]


def _cell(tensor: Mapping[str, Any], i: int, j: int, value: Any, least: float, most: float) -> dict[str, str]:
    text = _number(value)
    if tensor["differs"] and tensor["differs"][i][j]:
        return {"kind": "differs", "text": text, "right": _number(tensor["expected"][i][j])}
    if tensor["defined"] and not tensor["defined"][i][j]:
        return {"kind": "undefined", "text": text}
    if not isinstance(value, bool) and not _has_a_shade(value):
        return {"kind": "odd", "text": text}
    padding = " padding" if value == -1 and not isinstance(value, bool) else ""
    return {"kind": f"s{shade(value, least, most)}{padding}", "text": text}


def _has_a_shade(value: Any) -> bool:
    """Whether a value lies between others; NaN and the infinities, which come as texts, do not."""
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)


def _number(value: Any) -> str:
    return f"{value:.6g}" if isinstance(value, float) else str(int(value) if isinstance(value, bool) else value)
