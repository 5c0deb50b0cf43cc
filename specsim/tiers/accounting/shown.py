"""A scenario as a reader is shown it: the settings that are not the default ones, and a line for each request."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import MISSING, fields
from typing import Any

from specsim.engine.config import EngineConfig
from specsim.engine.request import Turn
from specsim.engine.sampling_params import SamplingParams

_ALWAYS = ("page_size", "topk", "num_steps", "num_draft_tokens")
_FAULTS = ("aborts", "retractions", "timeouts", "pauses")


def settings_line(config: Mapping[str, Any]) -> str:
    """Those of the tree and the page size, and the others that are not as by default."""
    changed = _changed(EngineConfig, config)
    shown = {name: config[name] for name in _ALWAYS if name in config} | changed
    return f"{_named(shown)}, the others by default" if len(shown) < len(config) else _named(shown)


def request_lines(workload: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """Name and wishes of each request, in the order in which they arrive, then the faults to come."""
    for turn in workload.get("turns", ()):
        yield turn["rid"], ", ".join(_wishes(turn))
    faults = [f"{workload[f'{name}_max']} {name}" for name in _FAULTS if workload.get(f"{name}_max")]
    if faults:
        yield "at most", ", ".join(faults)


def _wishes(turn: Mapping[str, Any]) -> Iterator[str]:
    yield f"prompt {len(turn['tokens'])}"
    yield "no max_new" if turn.get("open_ended") else f"max_new {turn['max_new_tokens']}"
    for at, token in turn.get("special_at", {}).items():
        yield f"the model says token {token} at {at}"
    if turn.get("sampling"):
        sampling = _changed(SamplingParams, turn["sampling"])
        grammar = sampling.pop("grammar", None)
        yield _named(sampling) or "sampled greedily"
        if grammar:
            yield f"a grammar of {len(grammar['transitions'])} states"
    others = {name: turn[name] for name in ("session", "extra_key", "logprob_start") if name in turn}
    yield from (f"{name} {value}" for name, value in _changed(Turn, others).items())
    yield from (name for name in ("ignore_eos", "return_logprob") if turn.get(name))
    yield from (f"stop {text!r}" for text in turn.get("stop", ()))


def _changed(kind: type[Any], values: Mapping[str, Any]) -> dict[str, Any]:
    """Those of the values that differ from the defaults of a dataclass; a tuple is a list in JSON."""
    defaults = {field.name: field.default for field in fields(kind) if field.default is not MISSING}
    plain = {name: list(value) if isinstance(value, tuple) else value for name, value in defaults.items()}
    found = {name: list(value) if isinstance(value, tuple) else value for name, value in values.items()}
    return {name: value for name, value in found.items() if name not in plain or value != plain[name]}


def _named(values: Mapping[str, Any]) -> str:
    return ", ".join(f"{name}={value}" for name, value in values.items())
