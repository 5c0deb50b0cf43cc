"""Options that would mean nothing beside others: they are refused, so that no option is ever ignored.

A command refuses by itself what is a contradiction; here is what it would not look at. `--seed` and `--budget-seconds`
of commands that draw nothing and are short are documented to do nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from specsim.errors import UsageError
from specsim.tiers.registry import TIERS

ALL = ("*",)


@dataclass(frozen=True, slots=True)
class Ignored:
    """The parameters `names` are not looked at when `beside` returns what else was given, "" for nothing. `ALL` is
    every parameter but those in `kept`.
    """

    beside: Callable[[Mapping[str, Any]], str]
    names: tuple[str, ...]
    remedy: str
    kept: tuple[str, ...] = ()


def _flag(name: str, shown: str) -> Callable[[Mapping[str, Any]], str]:
    return lambda values: shown if values[name] else ""


def _check_tier(tier: str) -> Callable[[Mapping[str, Any]], str]:
    def beside(values: Mapping[str, Any]) -> str:
        if values["provider"] and TIERS[tier].has_device:
            return "--provider"
        only = str(values["only"] or "")
        return f"--only {only}" if only.partition(":")[0] == tier else ""

    return beside


def _operations_of_one(values: Mapping[str, Any]) -> str:
    targets = values["target"] or ()
    is_one = len(targets) == 1 and not any(".." in target for target in targets)
    return f"--only {values['only']}" if is_one and str(values["only"] or "").partition(":")[0] == "ops" else ""


def _bisect_asks(kind: str) -> Callable[[Mapping[str, Any]], str]:
    shown = {"file": "a replay file", "rule": "--rule", "only": "--only"}[kind]
    return lambda values: shown if values[kind] is not None else ""


def _benchmark(*names: str) -> Callable[[Mapping[str, Any]], str]:
    return lambda values: str(values["name"]) if values["name"] in names else ""


def _stored_run(values: Mapping[str, Any]) -> str:
    return f"--again of the store {values['store_file']}" if values["again"] and values["store_file"].exists() else ""


IGNORED: Mapping[str, tuple[Ignored, ...]] = {
    "check": (
        Ignored(
            _flag("canary", "--canary"),
            ALL,
            "the canary hunts for its own mutants: specsim dev check --canary",
            ("target", "canary", "_isolated"),
        ),
        *(Ignored(_check_tier(name), *tier.ignored) for name, tier in TIERS.items()),
        Ignored(_operations_of_one, ("jobs",), "it is of schedules, and of several targets"),
        Ignored(
            _flag("mutant", "--mutant"),
            ("cases", "device", "fixtures", "use_fixtures"),
            "a mutant is checked by schedules alone, to see what finds it",
        ),
        Ignored(lambda values: "" if values["shrinks"] else "--no-shrink", ("attempts",), "nothing is shrunk"),
        Ignored(_flag("quiet", "--quiet"), ("verbose", "show_not_run"), "quiet prints less, they print more"),
        Ignored(_flag("bulk", "--bulk"), ("shrinks",), "bulk cases are always shrunk"),
    ),
    "report": (
        Ignored(
            _flag("campaign", "--campaign"),
            ("target", "data", "hang_seconds", "budget_seconds", "cache_dir"),
            "nothing is replayed for the page of a store",
        ),
    ),
    "targets": (
        Ignored(_flag("target", "a TARGET"), ("fetch",), "fetch first, by a command of its own"),
        Ignored(_flag("fetch", "--fetch"), ("json_file",), "list what is there by a command of its own"),
    ),
    "bench": (
        Ignored(_benchmark("interpreter"), ("device",), "both interpreters run on the CPU"),
        Ignored(
            _benchmark("verify_tree_greedy", "verify_logits_greedy", "verify_logits_sampled"),
            ("full",),
            "it has no longer form",
        ),
    ),
    "mutants": (
        Ignored(lambda values: "--only ops" if values["tier"] == "ops" else "", ("schedules",), "it is of schedules"),
        Ignored(
            lambda values: "--write" if values["write"] and values["tier"] != "ops" else "",
            ("budget_seconds",),
            "the page is of all that is hunted",
        ),
    ),
    "fuzz": (
        Ignored(
            _flag("again", "--again"),
            (
                *("resume", "jobs", "ray", "shard", "budget_seconds"),
                "metrics_port",
            ),
            "one batch is made again, and nothing else",
        ),
        Ignored(_stored_run, ("target", "only", "seed"), "the store says how the run was made"),
    ),
    "bisect": (
        Ignored(
            _bisect_asks("file"), ("seed", "schedules", "cases", "out"), "the file is replayed, and nothing is drawn"
        ),
        Ignored(_bisect_asks("rule"), ("cases",), "a rule is asked for in schedules: --schedules"),
        Ignored(_bisect_asks("only"), ("schedules",), "an operation is asked for on cases: --cases"),
    ),
}


def refuse_ignored(context: Any) -> None:
    """Refuse an option of the command line that the command would not look at."""
    for parameter, beside, remedy in _ignored(context):
        source = context.get_parameter_source(parameter.name)
        if source is not None and source.name == "COMMANDLINE":
            shown = as_typed(parameter, context.params[parameter.name])
            raise UsageError(f"{shown} with {beside} would be ignored", f"leave it out: {remedy}")


def _ignored(context: Any) -> Iterator[tuple[Any, str, str]]:
    """The parameters that the command does not look at, what they stand beside, and what to do."""
    for rule in IGNORED.get(context.command.name, ()):
        beside = rule.beside(context.params)
        for parameter in context.command.params if beside else ():
            if parameter.name in rule.names or (rule.names == ALL and parameter.name not in rule.kept):
                yield parameter, beside, rule.remedy


def as_typed(parameter: Any, value: Any) -> str:
    """A parameter as it was typed."""
    if value is False and parameter.secondary_opts:
        return str(parameter.secondary_opts[0])
    return str(parameter.opts[0] if parameter.opts[0].startswith("-") else parameter.opts[0].upper())
