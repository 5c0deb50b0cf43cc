"""What the commands print. Plain when the output is not a terminal; NO_COLOR is honoured (rich does both)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from rich import box, markup
from rich.console import Console
from rich.table import Table

from specsim import replay_file
from specsim.replay_file import Replay
from specsim.report.interpreters import print_interpreters
from specsim.report.kernels import print_kernels
from specsim.report.page.plain import visible
from specsim.tiers.registry import TIERS
from specsim.tiers.tier import Line, State
from specsim.verdict import FINDING, NONDETERMINISM, NOT_CHECKED, PASS, Compared, Finding, Suite, Verdict

COLUMNS_MIN = 60  # of a terminal that tables fit into
TEXT_MAX = 20_000  # characters of one text, such as the elements of a tensor
WIDTH_WITHOUT_TERMINAL = 200


def _console(stderr: bool = False) -> Console:
    console = Console(stderr=stderr, highlight=False, soft_wrap=False)
    if not console.is_terminal:
        console = Console(stderr=stderr, highlight=False, width=WIDTH_WITHOUT_TERMINAL)
    return console


def escape(text: str) -> str:
    """Text of a target for the console: neither markup nor a control character of it means anything."""
    return markup.escape(visible(text, TEXT_MAX))


def print_mutants(columns: Sequence[str], rows: Sequence[Sequence[str]], missed: Sequence[str]) -> None:
    """A row for each mutant, and a line with those that no seed found."""
    console = _console()
    table = _table(f"{len(rows)} mutants", *columns)
    for cells in rows:
        table.add_row(*cells)
    _show(console, table)
    console.print(f"not found: {' '.join(missed) or 'none'}")


def print_sweep(data: dict[str, Any]) -> None:
    """The counts of a sweep, a line for each mark that is rare and each rule that broke."""
    console = _console()
    table = _table(f"{data['schedules']:,} schedules of seed {data['seed']}", "mark", "schedules", "share")
    for mark, reached in data["marks"].items():
        table.add_row(escape(mark), f"{reached['schedules']:,}", f"{reached['share']:.4%}")
    _show(console, table)
    for mark, reached in data["rare"].items():
        console.print(
            f"   fewer than {data['rarer_than']:,}: {escape(mark)}, {reached['schedules']:,}, {reached['share']:.4%}"
        )
    for signature, broken in data["findings"].items():
        console.print(
            f"   [bold red]{escape(signature)}[/]: {broken['schedules']:,} schedules, first {broken['first']}",
            soft_wrap=True,
        )
    console.print(
        f"{data['schedules']:,} schedules, {data['events']:,} events, {data['events_median']} in the median, "
        f"{len(data['findings'])} findings, digest {data['digest']}{', ' + data['ended'] if data['ended'] else ''}"
    )


def print_verdict(verdict: Verdict) -> None:
    """Findings first, then the table of what was checked, what was not run, and one line with the verdict."""
    console = _console()
    for number, finding in enumerate(verdict.new, 1):
        _print_finding(console, number, finding, verdict)
    table = _table(
        f"{verdict.target}, seed {verdict.seed}",
        *("suite", "operation", "implementation", "where", "cases or calls", "result"),
    )
    wrong = [finding.signature for finding in verdict.findings]
    for suite in verdict.suites:
        for checked in suite.judged:
            found = any(TIERS[suite.name].finds(checked, signature) for signature in wrong)
            result = "[red]finding[/]" if found else "[green]ok[/]"
            name = checked.subject.partition(":")[2]
            table.add_row(
                suite.name,
                escape(checked.op),
                "" if name == checked.op else escape(name),
                escape(checked.where),
                f"{checked.cases:,}",
                result,
            )
        if suite.schedules:
            found = any(finding.tier == suite.name for finding in verdict.findings)
            result = "[red]finding[/]" if found else "[green]ok[/]"
            table.add_row(suite.name, "schedules", f"{suite.events:,} events", "", f"{suite.schedules:,}", result)
        for part in suite.seam if any(part["kind"] == "real" for part in suite.seam) else ():
            if part["kind"] != "not run":
                found = any(s.startswith(f"{suite.name}:") and s.endswith(f":{part['name']}") for s in wrong)
                result = "[red]finding[/]" if found else "[green]ok[/]"
                if part["kind"] == "real" and not part["calls"]:
                    result = "[yellow]not called[/]"
                calls = (
                    f"{part['calls']:,} ({part['lines_run']}/{part['lines']} lines)" if part["kind"] == "real" else ""
                )
                table.add_row(suite.name, escape(part["name"]), part["kind"], escape(part["where"]), calls, result)
    _show(console, table)
    for suite in verdict.suites:
        _print_not_run(console, suite)
        _print_fallbacks(console, suite)
    if verdict.baseline is not None:
        _print_compared(console, verdict.baseline)
    style = {"pass": "bold green", "fail": "bold red", "error": "bold yellow"}[verdict.verdict]
    console.print(f"[{style}]{verdict.verdict}[/]: {_summary(verdict)}")


def _print_compared(console: Console, compared: Compared) -> None:
    """What a baseline knows: a line a signature."""
    for what, signatures in (
        ("known", compared.known),
        ("gone", compared.gone),
        ("not checked", compared.not_judged),
    ):
        for signature in signatures:
            console.print(f"   {what:<10} {escape(signature)}", soft_wrap=True)


def _summary(verdict: Verdict) -> str:
    count, compared = len(verdict.new), verdict.baseline
    new = " new" if compared else ""
    findings = f"{count or 'no'}{new} finding{'s' if count > 1 or not count else ''}"
    if compared:
        findings += f", {len(compared.known)} known from {escape(compared.name)}, {len(compared.gone)} gone"
    if verdict.verdict == "error":
        findings = "nothing could be checked"
    counts = [
        f"{count:,} {word}"
        for word in ("cases", "schedules", "events")
        if (count := sum(getattr(suite, word) for suite in verdict.suites))
    ]
    not_run = sum(len(suite.not_run) for suite in verdict.suites)
    interrupted = ", interrupted" if verdict.interrupted else ""
    return (
        f"{findings}, {', '.join(counts) or 'nothing run'} in {verdict.seconds:.1f} s, {not_run} not run{interrupted}"
    )


MANY_NOT_RUN = 5
"""As many that are not run for one reason share a line."""


def _table(title: str, *columns: str) -> Table:
    table = Table(title=escape(title), title_justify="left", box=box.SIMPLE_HEAD, pad_edge=False)
    for column in columns:
        table.add_column(column, overflow="fold")
    return table


def _show(console: Console, table: Table) -> None:
    """Print a table; where the terminal is too narrow for columns, a line for each cell."""
    if console.width >= COLUMNS_MIN:
        console.print(table)
        return
    console.print(table.title)
    for cells in zip(*(column.cells for column in table.columns), strict=True):
        console.print()
        for column, cell in zip(table.columns, cells, strict=True):
            if cell:
                console.print(f"{column.header}: {cell}")
    console.print()


def _hit_by(verdict: Verdict, finding: Finding) -> str:
    """How rare a finding was: of how many cases or schedules."""
    suites = [suite for suite in verdict.suites if suite.name == finding.tier]
    tier = TIERS[finding.tier]
    if tier.unit == "schedules":
        return f"{finding.count} of {sum(suite.schedules for suite in suites)} schedules"
    checked = [checked for suite in suites for checked in suite.judged if tier.finds(checked, finding.signature)]
    return f"{finding.count} of {sum(one.cases for one in checked)} generated cases"


def _print_finding(console: Console, number: int, finding: Finding, verdict: Verdict) -> None:
    console.print(f"[bold red]{number}. {escape(finding.title)}[/]")
    rows = [
        ("rule", f"{TIERS[finding.tier].rules[finding.rule].label}: {finding.sentence}"),
        ("where", finding.where or "unknown"),
        *([("blame", _blame_sentence(finding))] if finding.blame else []),
        ("expected", finding.expected),
        ("actual", finding.actual),
        ("severity", str(finding.severity)),
        ("reach", _reach_sentence(finding.reach)),
        ("hit by", _hit_by(verdict, finding)),
        *_order_rows(finding),
        *([("triage", finding.triage)] if finding.triage else []),
        *(("", line) for line in finding.details),
        *(("" if number else "arguments", line) for number, line in enumerate(finding.arguments)),
        ("signature", finding.signature),
    ]
    for name, value in rows:
        console.print(f"   {name:<10} {escape(value)}", soft_wrap=True)
    replay = "none was written"
    if finding.replay:
        replay = f"[bold]{escape(replay_file.command(finding.replay, verdict.target, verdict.target))}[/]"
    console.print(f"   {'replay':<10} {replay}\n", soft_wrap=True)


def _blame_sentence(finding: Finding) -> str:
    if finding.blame == "caller":
        return f"the caller: how {finding.provider} calls {finding.op}, or what it does in its place"
    return f"the kernel: {finding.op} of {finding.provider}, as documented"


def _order_rows(finding: Finding) -> list[tuple[str, str]]:
    if finding.order is None:
        return []
    if not finding.order:
        return [("order", "none that matters: it happens in every order that was tried")]
    one, two = finding.order
    return [("order", one), ("", f"{two}; in the opposite order the rule holds")]


def _reach_sentence(reach: str) -> str:
    kind, _, place = reach.partition(":")
    return {
        "default": "default: users get here without asking",
        "option": "option: users get here with an option of their own choice",
        "unknown": "unknown",
        "guarded": f"guarded: {place} keeps users from this configuration",
        "not called": "not called: nothing in this engine runs it",
    }[kind]


def _print_not_run(console: Console, suite: Suite) -> None:
    """What was not run; many of one reason together, by their number alone: the JSON names each."""
    by_reason: dict[str, list[str]] = {}
    for entry in suite.not_run:
        by_reason.setdefault(entry.why, []).append(entry.what)
    for why, whats in by_reason.items():
        for text in whats if len(whats) < MANY_NOT_RUN else [f"{len(whats)} operations, {whats[0]} ... {whats[-1]}"]:
            console.print(f"   not run    {escape(text)}: {escape(why)}", style="yellow", soft_wrap=True)


_FALLBACKS = {
    "unsupported": "not in lockstep, which lacks",
    "race": "whose programs race",
    "error": "as it raises in lockstep alone",
}


def _print_fallbacks(console: Console, suite: Suite) -> None:
    """What ran in Triton's interpreter: a line for each reason."""
    for why, reason in _FALLBACKS.items():
        found = [fallback for fallback in suite.fallbacks if fallback.why == why]
        kernels = sorted({fallback.kernel for fallback in found})
        if kernels:
            names = ", ".join(sorted({name for fallback in found for name in fallback.names}))
            count = f"{len(kernels)} kernel{'s' if len(kernels) > 1 else ''} in Triton's interpreter"
            text = f"{count}, {reason}{f' {names}' if names else ''}: {', '.join(kernels)}"
            console.print(f"   fallback   {escape(text)}", style="yellow", soft_wrap=True)


def print_replay(stored: Replay, target: str, answer: dict[str, Any], verified: bool = False) -> int:
    """What a replay showed; returns the exit code."""
    console = _console()
    tier = TIERS[stored.tier]
    explanation, outcome = tier.explain(stored, target, answer), tier.outcome(stored, target, answer)
    console.print(f"[bold]{escape(explanation.name)}[/]{escape(explanation.about)}")
    _print_line(console, Line("found on", f"{stored.target}: {stored.title}"))
    if outcome.state is not State.NOT_RUN:
        for line in explanation.lines:
            _print_line(console, line)
        if verified:
            _print_line(
                console, Line("verified", f"{explanation.same} the same in two processes, under two hash seeds")
            )
    if outcome.state is State.SHOWN:
        return _print_reproduced(console, stored, target, answer["digest"], outcome.same_code)
    style, what, code = _ENDS[outcome.state]
    console.print(f"[{style}]{what}[/] {escape(target)}: {escape(outcome.reason)}", soft_wrap=True)
    return code


_ENDS = {
    State.GONE: ("bold green", "not reproduced on", PASS),
    State.NO_LONGER_APPLIES: ("bold yellow", "no longer applies to", NOT_CHECKED),
    State.NOT_RUN: ("bold yellow", "not checked on", NOT_CHECKED),
    State.UNHEARD: ("bold yellow", "not checked on", NOT_CHECKED),
}


def _print_line(console: Console, line: Line) -> None:
    opened, closed = {"": ("", ""), "rule": ("[bold red]", "[/]"), "dim": ("[dim]", "[/]")}[line.style]
    text = escape(line.text)
    if line.label is None:
        console.print(f"{opened}{text}{closed}", soft_wrap=True)
    else:
        console.print(f"   {opened}{escape(line.label):<10}{closed} {text}", soft_wrap=True)


def _print_reproduced(console: Console, stored: Replay, target: str, digest: str, same_code: bool) -> int:
    """Say how a finding that shows again does so; returns the exit code."""
    if target != stored.target:
        console.print(f"[bold red]reproduced[/] on {escape(target)}")
    elif digest == stored.digest:
        console.print("[bold red]reproduced[/], bit for bit")
    elif not same_code:
        console.print("[bold red]reproduced[/]; the code has changed since it was found, so the digest is another")
    else:
        console.print(f"[bold yellow]nondeterministic[/]: digest {digest}, was {stored.digest}")
        return NONDETERMINISM
    return FINDING


def print_targets(listing: dict[str, Any]) -> None:
    console = _console()
    table = _table(f"devices: {', '.join(listing['devices'])}", "target", "tiers", "note")
    for target in listing["targets"]:
        table.add_row(escape(target["target"]), ", ".join(target["tiers"]) or "none", escape(target["note"]))
    _show(console, table)
    for entry in listing["not_run"]:
        console.print(f"   not run    {escape(entry['what'])}: {escape(entry['why'])}", style="yellow", soft_wrap=True)
    console.print(f"   cache      {escape(listing['cache'])}", soft_wrap=True)


def print_doctor(data: dict[str, Any]) -> None:
    """What is installed, which tiers work, and a line with the command for each missing piece."""
    console = _console()
    table = _table("pieces", "piece", "found", "for")
    for piece in data["pieces"]:
        missing = "[red]missing[/]" if piece["needed"] else "[yellow]missing[/]"
        table.add_row(escape(piece["name"]), escape(piece["found"]) or missing, escape(piece["why"]))
    _show(console, table)
    table = _table("tiers", "tier", "device", "works", "note")
    for tier in data["tiers"]:
        works = "[green]yes[/]" if tier["works"] else "[yellow]no[/]"
        table.add_row(tier["tier"], tier["device"], works, escape(tier["note"]))
    _show(console, table)
    for piece in data["pieces"]:
        if piece["add"]:
            console.print(f"   add {escape(piece['name'])}: [bold]{escape(piece['add'])}[/]", soft_wrap=True)


def print_survey(survey: dict[str, Any], brief: bool) -> None:
    """What lifts of a target: a line a function, or with `brief` one line, then what has to be added."""
    console = _console()
    states = [function["state"] for function in survey["functions"]]
    counts = ", ".join(f"{states.count(state)} {state}" for state in dict.fromkeys(states))
    beside = f"beside {survey['nearest']}" if survey["nearest"] else "no release is known"
    if brief:
        console.print(f"{escape(survey['target'])}, {beside}: {counts}", soft_wrap=True)
    else:
        table = _table(f"{survey['target']}, {beside}: {counts}", "function", "state", "how", "where", "body")
        styles = {"same": "green", "changed": "yellow", "new": "yellow", "gone": "red", "not run": "red"}
        for function in survey["functions"]:
            state = f"[{styles[function['state']]}]{function['state']}[/]"
            table.add_row(
                escape(function["name"]), state, escape(function["text"]), function["where"], function["body_hash"]
            )
        _show(console, table)
    for text in survey["to_add"]:
        console.print(f"   to add     {escape(text)}", style="yellow", soft_wrap=True)
    if not survey["to_add"] and not brief:
        console.print("nothing has to be added")


def print_bench(results: dict[str, Any]) -> None:
    """The environment, then a table per benchmark and shape: peers with medians and ratios."""
    console = _console()
    for name, value in results["environment"].items():
        console.print(f"   {name:<12} {escape(str(value))}", soft_wrap=True)
    for benchmark in print_interpreters(console, print_kernels(console, results["benchmarks"])):
        shape = ", ".join(f"{name}={value}" for name, value in benchmark["shape"].items())
        table = _table(
            f"{benchmark['name']}: {shape}",
            "peer",
            f"median {benchmark['unit']}",
            benchmark.get("ratio", "times the reference"),
        )
        for peer in benchmark["peers"]:
            if peer.get("not_run"):
                table.add_row(peer["name"], "not run", escape(peer["not_run"]))
            else:
                table.add_row(
                    f"{peer['name']} ({peer['timing']})",
                    f"{peer['median']:,.1f}",
                    "-" if peer["ratio"] is None else f"{peer['ratio']:.2f}",
                )
        _show(console, table)
