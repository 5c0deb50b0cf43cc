"""What the commands print. Plain when the output is not a terminal; NO_COLOR is honoured (rich does both)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from rich import box, markup
from rich.console import Console
from rich.table import Table

from specsim import replay_file
from specsim.replay_file import OpReplay, ScheduleReplay, WorkerReplay
from specsim.report.kernels import print_kernels
from specsim.report.page.plain import visible
from specsim.verdict import NOT_JUDGED, Compared, Finding, Judged, Suite, Verdict

NO_LONGER_APPLIES = NOT_JUDGED  # exit code of a replay file whose schedule is not there any more
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
    """Findings first, then the table of what was judged, what was not run, and one line with the verdict."""
    console = _console()
    for number, finding in enumerate(verdict.new, 1):
        _print_finding(console, number, finding, verdict)
    table = _table(
        f"{verdict.target}, seed {verdict.seed}",
        *("suite", "operation", "implementation", "where", "cases or calls", "result"),
    )
    wrong = [finding.signature for finding in verdict.findings]
    for suite in verdict.suites:
        for judged in suite.judged:
            found = any(_is_of(signature, suite.name, judged) for signature in wrong)
            result = "[red]finding[/]" if found else "[green]ok[/]"
            name = judged.subject.partition(":")[2]
            table.add_row(
                suite.name,
                escape(judged.op),
                "" if name == judged.op else escape(name),
                escape(judged.where),
                f"{judged.cases:,}",
                result,
            )
        if suite.schedules:
            found = any(finding.tier == suite.name for finding in verdict.findings)
            result = "[red]finding[/]" if found else "[green]ok[/]"
            table.add_row(suite.name, "schedules", f"{suite.events:,} events", "", f"{suite.schedules:,}", result)
        for part in suite.seam if any(part["kind"] == "real" for part in suite.seam) else ():
            if part["kind"] != "not run":
                found = any(s.startswith("accounting:") and s.endswith(f":{part['name']}") for s in wrong)
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
    if verdict.baseline is not None:
        _print_compared(console, verdict.baseline)
    style = {"pass": "bold green", "fail": "bold red", "error": "bold yellow"}[verdict.verdict]
    console.print(f"[{style}]{verdict.verdict}[/]: {_summary(verdict)}")


def _print_compared(console: Console, compared: Compared) -> None:
    """What a baseline knows: a line a signature."""
    for what, signatures in (
        ("known", compared.known),
        ("gone", compared.gone),
        ("not judged", compared.not_judged),
    ):
        for signature in signatures:
            console.print(f"   {what:<10} {escape(signature)}", soft_wrap=True)


def _is_of(signature: str, suite: str, judged: Judged) -> bool:
    """Whether a finding is one of an implementation or, in the workers tier, of a probe, which may break many rules."""
    if suite == "workers":
        return signature.startswith(f"{suite}:{judged.op}:")
    return signature == f"{suite}:{judged.op}:{judged.subject}"


def _summary(verdict: Verdict) -> str:
    count, compared = len(verdict.new), verdict.baseline
    new = " new" if compared else ""
    findings = f"{count or 'no'}{new} finding{'s' if count > 1 or not count else ''}"
    if compared:
        findings += f", {len(compared.known)} known from {escape(compared.name)}, {len(compared.gone)} gone"
    if verdict.verdict == "error":
        findings = "nothing could be judged"
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
    if finding.tier == "accounting":
        schedules = sum(suite.schedules for suite in verdict.suites if suite.name == finding.tier)
        return f"{finding.count} of {schedules} schedules"
    cases = sum(
        judged.cases
        for suite in verdict.suites
        for judged in suite.judged
        if _is_of(finding.signature, suite.name, judged)
    )
    return f"{finding.count} of {cases} generated cases"


def _print_finding(console: Console, number: int, finding: Finding, verdict: Verdict) -> None:
    console.print(f"[bold red]{number}. {escape(finding.title)}[/]")
    rows = [
        ("rule", f"{finding.rule}: {finding.sentence}"),
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
    return [("order", one), ("", f"{two}; the other way round the rule holds")]


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


def _print_verified(console: Console, what: str) -> None:
    console.print(f"   verified   {what} the same in two processes, under two hash seeds", soft_wrap=True)


def print_replay(stored: OpReplay, target: str, answer: dict[str, Any], verified: bool = False) -> int:
    """What a replay showed; returns the exit code."""
    console = _console()
    console.print(f"[bold]{escape(stored.op)}[/], {escape(answer['subject'])} of {escape(target)}")
    console.print(f"   found on   {escape(stored.target)}: {escape(stored.title)}", soft_wrap=True)
    if not answer["judged"]:
        console.print("not judged: this implementation does not accept the configuration of the case")
        return NOT_JUDGED
    sizes = ", ".join(f"{name}={size}" for name, size in stored.sizes.items())
    console.print(f"   sizes      {escape(sizes)}", soft_wrap=True)
    for kind in ("inputs", "expected"):
        for name, tensor in answer[kind].items():
            console.print(f"   {kind:<10} {escape(name)} = {escape(_tensor_text(tensor))}", soft_wrap=True)
    for violation in answer["violations"]:
        console.print(f"   [bold red]{violation['rule']}[/]         {escape(violation['title'])}", soft_wrap=True)
        console.print(f"   {'':<10} expected {escape(violation['expected'])}, actual {escape(violation['actual'])}")
    if not answer.get("same_case", True):
        note = "its tape stands for another case now; replay runs the tensors of the file, shrink begins with the tape"
        console.print(f"   {'note':<10} {note}", soft_wrap=True)
    if answer["explanation"]:
        console.print(f"   {'why':<10} {escape(answer['explanation'])}", soft_wrap=True)
    if verified:
        _print_verified(console, "outputs and violations are")
    return _replay_verdict(console, stored, target, answer)


def _reproduced(
    console: Console, stored: replay_file.Replay, target: str, digest: str, same_code: bool, differing: str
) -> int:
    """Say how a finding that shows again does so; returns the exit code. `differing` are the digests, for when they do
    and nothing explains it.
    """
    if target != stored.target:
        console.print(f"[bold red]reproduced[/] on {escape(target)}")
        return 1
    if digest == stored.digest:
        console.print("[bold red]reproduced[/], bit for bit")
        return 1
    if not same_code:
        console.print("[bold red]reproduced[/]; the code has changed since it was found, so the digest is another")
        return 1
    console.print(f"[bold yellow]nondeterministic[/]: {differing}")
    return 3


def _replay_verdict(console: Console, stored: OpReplay, target: str, answer: dict[str, Any]) -> int:
    if not any(violation["rule"] == stored.rule for violation in answer["violations"]):
        if reason := replay_file.unheard(answer["violations"]):
            return _not_judged(console, target, reason)
        console.print(f"[bold green]not reproduced[/] on {escape(target)}")
        return 0
    same_code = answer["same_source"]
    return _reproduced(
        console,
        stored,
        target,
        answer["digest"],
        same_code,
        f"digest {answer['digest'][:16]}, was {stored.digest[:16]}",
    )


def _not_judged(console: Console, target: str, reason: str) -> int:
    console.print(f"[bold yellow]not judged[/] on {escape(target)}: {escape(reason)}", soft_wrap=True)
    return NOT_JUDGED


def print_worker_replay(stored: WorkerReplay, target: str, answer: dict[str, Any], verified: bool = False) -> int:
    """What a case of the workers tier showed; returns the exit code."""
    console = _console()
    console.print(f"[bold]{escape(stored.rule)}[/], {escape(stored.probe)} of {escape(target)}")
    console.print(f"   found on   {escape(stored.target)}: {escape(stored.title)}", soft_wrap=True)
    console.print(f"   where      {escape(answer['where'] or 'unknown')}", soft_wrap=True)
    for name in ("case", "seen"):
        for key, value in answer.get(name, {}).items():
            console.print(f"   {name:<10} {escape(key)} = {escape(str(value))}", soft_wrap=True)
    for broken in answer["broken"]:
        console.print(f"   [bold red]{broken['rule']}[/]         {escape(broken['what'])}", soft_wrap=True)
        console.print(f"   {'':<10} expected {escape(broken['expected'])}, seen {escape(broken['actual'])}")
        for line in broken["details"]:
            console.print(f"   {'':<10} {escape(line)}", soft_wrap=True)
    if verified:
        _print_verified(console, "the case and what was recorded are")
    shown = any(broken["rule"] == stored.rule for broken in answer["broken"])
    if not shown and (reason := replay_file.unheard(answer["broken"])):
        return _not_judged(console, target, reason)
    if not shown and not answer["same_case"]:
        console.print("[bold yellow]no longer applies[/]: its tape stands for another case now")
        return NO_LONGER_APPLIES
    if not shown:
        console.print(f"[bold green]not reproduced[/] on {escape(target)}")
        return 0
    same_code = answer["same_source"] and answer["same_case"]
    return _reproduced(
        console, stored, target, answer["digest"], same_code, f"digest {answer['digest']}, was {stored.digest}"
    )


def print_schedule_replay(stored: ScheduleReplay, target: str, answer: dict[str, Any], verified: bool = False) -> int:
    """The events of a schedule, one line each, the broken rules where they broke; returns the exit code."""
    console = _console()
    named = f"{target} with mutant {stored.mutant}" if stored.mutant and target == stored.target else target
    console.print(f"[bold]{escape(stored.rule)}[/] on {escape(named)}")
    console.print(f"   found on   {escape(stored.target)}: {escape(stored.title)}", soft_wrap=True)
    if not answer["judged"]:
        console.print("not judged: this target does not run the scenario")
        return NOT_JUDGED
    if not answer["same_model"]:
        console.print(
            "   note       made before a change of the simulator: its tape may stand for another schedule than it did"
        )
    for kind in ("config", "workload"):
        if kind in answer["scenario"]:
            console.print(f"   {kind:<10} {escape(_flat(answer['scenario'][kind]))}", soft_wrap=True)
    console.print(f"\n[dim]{COLUMN_KEY}[/]")
    broken: dict[int, list[dict[str, Any]]] = {}
    for violation in answer["violations"]:
        broken.setdefault(violation["event"], []).append(violation)
    for event in answer["events"]:
        console.print(escape(replay_file.event_line(event)), soft_wrap=True)
        for violation in broken.get(event["number"], []):
            where = f" at {violation['where']}" if violation["where"] else ""
            text = f"{violation['rule']} {violation['part']}{where}, {violation['who']}: {violation['sentence']}"
            console.print(f"      [bold red]{escape(text)}[/]", soft_wrap=True)
            seen = f"expected {violation['expected']}, seen {violation['actual']}"
            console.print(f"      {escape(seen)}", soft_wrap=True)
    if stored.order and target == stored.target:
        console.print(f"\n   order      {escape(stored.order[0])}", soft_wrap=True)
        console.print(f"              {escape(stored.order[1])}; the other way round the rule holds", soft_wrap=True)
    console.print(f"\n   digest     {answer['digest']}")
    if verified:
        _print_verified(console, f"{len(answer['events'])} events,")
    return _schedule_verdict(console, stored, target, answer)


COLUMN_KEY = (
    "   #  agent   event     who       details: verify r:a accepted; resolve r:+a counted, r:stale a not; "
    "prepare r:x>y allocated"
)


def _flat(data: dict[str, Any]) -> str:
    return ", ".join(f"{name}={value}" for name, value in data.items())


def _schedule_verdict(console: Console, stored: ScheduleReplay, target: str, answer: dict[str, Any]) -> int:
    if not any(replay_file.is_shown(stored, violation) for violation in answer["violations"]):
        if reason := replay_file.unheard(answer["violations"]):
            return _not_judged(console, target, reason)
        lines = [replay_file.event_line(event) for event in answer["events"]]
        applies, reason = replay_file.why_not_shown(stored, answer["scenario"], lines, answer["same_model"])
        verdict = "[bold green]not reproduced[/] on" if applies else "[bold yellow]no longer applies[/] to"
        console.print(f"{verdict} {escape(target)}: {escape(reason)}", soft_wrap=True)
        return 0 if applies else NO_LONGER_APPLIES
    same_code = answer["same_source"] and answer["same_model"]
    return _reproduced(console, stored, target, answer["digest"], same_code, f"digest was {stored.digest}")


def _tensor_text(tensor: dict[str, Any]) -> str:
    """A tensor as nested lists."""
    data = list(tensor["data"])
    for extent in reversed(tensor["shape"][1:]):
        data = [data[i : i + extent] for i in range(0, len(data), extent)] if extent else [[]] * len(data)
    return str(data)


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
    for benchmark in print_kernels(console, results["benchmarks"]):
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
