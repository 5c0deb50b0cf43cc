"""What `specsim check` prints of a verdict: at the end what matters most, where a terminal and a log show it.

The first findings in full, what was checked and what was not; then a line a finding, the worst first: its rule, what is
to blame, where, and who can reach it; then the verdict, what to do about it, and what keeps it from passing.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import PurePosixPath

from rich.console import Console
from rich.markup import escape as without_markup

from specsim import replay_file
from specsim.deadline import SPENT
from specsim.interrupts import WHY
from specsim.report.page.plain import visible
from specsim.report.terminal import INDENT, LABEL, TEXT_MAX, console_of, escape, print_row, show, table_of, wrapped
from specsim.tiers.not_run import is_absent, is_mistake
from specsim.tiers.registry import TIERS, rule_label
from specsim.verdict import REACHES, Changed, Compared, Covered, Finding, NotRun, Suite, Verdict

SHOWN_IN_FULL = 3  # findings, without --verbose
NOT_CHECKED_MAX = 5
CHANGED_MAX = 4  # functions of a change that a finding names
COVERED_MAX = 4  # files of a target
SYMPTOMS_MAX = 3  # of what came after a finding
FINDING_LINES_MAX = 25  # of one of them, without --verbose
LAST_LINES = 4  # of its case, which are shown where lines in between are not
_STYLES = {"pass": "bold green", "fail": "bold red", "incomplete": "bold yellow"}
_STYLES |= dict.fromkeys(("error", "nondeterministic"), _STYLES["incomplete"])


@dataclass(frozen=True, slots=True)
class Detail:
    """How much is printed. `quiet`: the verdict and a line a finding alone. `verbose`: every finding in full, every
    row of what was checked. `not_run`: everything that was not run, with its reason.
    """

    quiet: bool = False
    verbose: bool = False
    not_run: bool = False


def print_verdict(verdict: Verdict, detail: Detail, written: str = "") -> None:
    """Print the verdict and as much of what it rests on as is asked for. `written` stands in its place where its
    findings were made the baseline.
    """
    console = console_of()
    findings = verdict.new
    if not detail.quiet:
        for number, finding in enumerate(findings[: None if detail.verbose else SHOWN_IN_FULL], 1):
            _print_finding(console, number, finding, verdict, None if detail.verbose else FINDING_LINES_MAX)
            console.print()
        _print_checked(console, verdict, detail)
        console.print()
    _print(console, [*_index(findings, console.width), *([""] if findings and not detail.quiet else [])])
    word, style = ("written", "bold") if written else (verdict.verdict, _STYLES[verdict.verdict])
    first, *rest = wrapped(f"{word}: {written or _summary(verdict)}", console.width, "      ")
    _print(console, [first.replace(word, f"[{style}]{word}[/]", 1), *rest])
    if not detail.quiet and not written and (advice := _what_to_do(verdict, detail)):
        _print(console, map(without_markup, wrapped(advice, console.width, "")))
    if not written:
        _print_not_checked(console, verdict, detail)


def _print_checked(console: Console, verdict: Verdict, detail: Detail) -> None:
    if detail.verbose:
        _print_table(console, verdict)
    else:
        version = f" (version {verdict.version})" if verdict.version else ""
        print_row(console, "target", f"{verdict.target}{version}, seed {verdict.seed}")
        for suite in verdict.suites:
            print_row(console, suite.name, _counts(suite, verdict))
    coverage = {file: covered for suite in verdict.suites for file, covered in suite.coverage.items()}
    if coverage:
        print_row(console, "code", _ran_of(coverage))
    if verdict.changed is not None and verdict.changed.lines:
        print_row(console, "change", _reached(verdict.changed))
    if verdict.baseline is not None:
        _print_compared(console, verdict.baseline, detail)
    _print_not_run(console, verdict.suites, listed=detail.not_run or verdict.verdict == "error")


def _ran_of(coverage: Mapping[str, Covered]) -> str:
    """How much of the target schedules ran, of the files of which they ran most."""
    most = sorted(coverage, key=lambda file: (-coverage[file].run, file))[:COVERED_MAX]
    shares = (f"{coverage[file].run / coverage[file].statements:.0%} of {PurePosixPath(file).name}" for file in most)
    statements, run = (sum(getattr(one, name) for one in coverage.values()) for name in ("statements", "run"))
    return f"schedules ran {', '.join(shares)}; {run:,} of {statements:,} statements of {len(coverage)} files"


def _reached(changed: Changed) -> str:
    """How much of a change was run."""
    lines, run = len(changed.lines), len(changed.lines) - len(changed.not_run)
    most = f", each in up to {changed.schedules:,} schedules" if run else ""
    return f"{run} of {lines} line{'s' * (lines > 1)} of functions that it touches run by the scheduler tier{most}"


def _print_not_checked(console: Console, verdict: Verdict, detail: Detail) -> None:
    """What keeps a verdict from passing beside its findings, at the end, where nobody overlooks it."""
    entries = verdict.not_checked if detail.not_run or detail.verbose else verdict.not_checked[:NOT_CHECKED_MAX]
    lines = [f"not checked: {visible(entry.what)} ({visible(entry.why)})" for entry in entries]
    if more := len(verdict.not_checked) - len(entries):
        lines.append(f"not checked: {more} more; --show-not-run lists them")
    lines += [f"not the same twice: {visible(one.what)} ({visible(one.why)})" for one in verdict.nondeterministic]
    if verdict.changed is not None and verdict.changed.not_run:
        shown = verdict.changed.not_run[: None if detail.verbose else CHANGED_MAX]
        more = len(verdict.changed.not_run) - len(shown)
        places = f"{', '.join(shown)}{f' and {more} more, which -v lists' if more else ''}"
        lines.append(f"changed and not run by any schedule: {visible(places)}")
    if verdict.not_compared:
        lines.append(f"not compared: {visible(verdict.not_compared)}")
    for line in lines:
        _print(console, [f"[bold yellow]{without_markup(one)}[/]" for one in wrapped(line, console.width, "    ")])


def _summary(verdict: Verdict) -> str:
    count, compared = len(verdict.new), verdict.baseline
    new = " new" if compared else ""
    findings = f"{count or 'no'}{new} finding{'s' if count > 1 or not count else ''}"
    if count and verdict.verdict == "pass":
        findings += f" below --fail-on {verdict.fail_on.text}"
    if verdict.ignored:
        findings += f", {len(verdict.ignored)} ignored"
    if compared:
        findings += f", {len(compared.known)} known from {escape(compared.name)}, {len(compared.gone)} gone"
    if compared and compared.not_compared:
        findings += f", {len(compared.not_compared)} not compared"
    if verdict.verdict == "error":
        findings = f"{findings}, not compared" if verdict.not_compared else "nothing could be checked"
    if verdict.not_checked:
        findings += f", {len(verdict.not_checked)} not checked"
    if verdict.nondeterministic:
        findings += f", {len(verdict.nondeterministic)} not the same twice"
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


def _what_to_do(verdict: Verdict, detail: Detail) -> str:
    if verdict.not_compared:
        return "The last line says why; nothing is called new or known."
    if verdict.verdict == "error":
        return "Above is why; specsim doctor says what is missing here."
    if any(is_mistake(entry.why) for entry in verdict.not_checked) and not verdict.new:
        return "The last lines say what to mend in what provides it, or to take out."
    if verdict.not_checked and not verdict.new:
        return "The last lines say what; --allow-not-run NAME accepts that it is not checked."
    if verdict.nondeterministic and not verdict.new:
        return "The last lines say what ran differently: by memory addresses, another thread or a source of randomness."
    if not verdict.new and verdict.baseline:
        return ""
    if not verdict.new:
        return "A larger --budget-seconds and another --seed check more; specsim fuzz goes on for hours."
    more = "" if detail.verbose or len(verdict.new) <= SHOWN_IN_FULL else "; -v has all in full"
    return f"specsim replay FILE [--html PAGE] shows a finding again, specsim explain SIGNATURE its rule{more}."


# A line a finding


def blamed(finding: Finding) -> str:
    """What is to blame, in a few words: the signature without its tier and rule."""
    parts = finding.signature.split(":")[1:]
    return " ".join(dict.fromkeys(part for part in parts if part not in (finding.rule, finding.blame)))


def _index(findings: Sequence[Finding], width: int) -> list[str]:
    """A line for each finding, in columns. A row that is too long for them has none, and at last is wrapped."""
    rows = [
        (
            f"{number:>3}.",
            rule_label(one.tier, one.rule).partition(" ")[0],
            visible(blamed(one)),
            visible(one.place),
            "" if one.reach == "unknown" else one.reach.partition(":")[0],
        )
        for number, one in enumerate(findings, 1)
    ]
    longest = [max((len(row[at]) for row in rows), default=0) for at in range(4)]
    longest[2] = min(longest[2], width // 3 - 3)
    longest[3] = max(0, min(longest[3], width - sum(longest[:3]) - len("  not called") - 6))
    lines: list[str] = []
    for row in rows:
        cells = (*row[:3], shortened(row[3], longest[3]), row[4])
        spilled = max(0, len(cells[2]) - longest[2])
        rooms = (*longest[:3], max(0, longest[3] - spilled), 0)
        columns = [cell.ljust(room) for cell, room in zip(cells, rooms, strict=True)]
        lines_of_row = ("  ".join(columns).rstrip(), "  ".join(cells).rstrip())
        line = next((one for one in lines_of_row if len(one) <= width), lines_of_row[-1])
        lines += map(without_markup, wrapped(line, width, "      "))
    return lines


def shortened(path: str, room: int) -> str:
    """A path in `room` columns: its leading folders give way, and its last part stays whole."""
    while len(path) > room and "/" in path:
        path = path.removeprefix(".../").partition("/")[2]
        path = f".../{path}" if "/" in path else path
    return path


# A finding in full


def _print_finding(console: Console, number: int, finding: Finding, verdict: Verdict, most: int | None) -> None:
    """Print a finding in at most so many lines: those of its case give way."""
    before = [
        ("rule", f"{rule_label(finding.tier, finding.rule)}: {finding.sentence}"),
        *_changed_rows(finding),
        *([("where", finding.where)] if finding.where else []),
        *([("blame", _blame_sentence(finding))] if finding.blame else []),
        ("expected", finding.expected),
        ("actual", finding.actual),
        ("severity", str(finding.severity)),
        *([("reach", _reach_sentence(finding.reach))] if finding.reach != "unknown" else []),
        ("hit by", _hit_by(verdict, finding)),
        *_symptom_rows(verdict.symptoms_of(finding), SYMPTOMS_MAX if most is not None else None),
        *([("triage", finding.triage)] if finding.triage else []),
    ]
    case = [
        *(("", line) for line in finding.details),
        *(("" if number else "arguments", line) for number, line in enumerate(finding.arguments)),
    ]
    heading = wrapped(visible(f"{number}. {finding.title}", TEXT_MAX), console.width, "   ")
    top, middle = _lines_of(console, before), _lines_of(console, case)
    last = _lines_of(console, [("signature", finding.signature)])
    room = None if most is None else max(3, most - len(heading) - len(top) - len(last) - 1)
    if room is not None and len(middle) > room:
        end = min(LAST_LINES, room // 2)  # a schedule breaks its rule at its end
        more = f"{INDENT}... {len(middle) - room + 1} more lines with -v"
        middle = [*middle[: room - 1 - end], more, *middle[len(middle) - end :]]
    _print(console, [f"[bold red]{without_markup(line)}[/]" for line in heading])
    _print(console, map(without_markup, [*top, *middle, *last]))
    replay = "none was written"
    if finding.replay:
        replay = f"[bold]{escape(replay_file.command(finding.replay, verdict.target, verdict.target))}[/]"
    _print(console, [f"   {'replay':<{LABEL}} {replay}"])  # one line, however long: it is copied whole


def _lines_of(console: Console, rows: Iterable[tuple[str, str]]) -> list[str]:
    return [
        line
        for name, text in rows
        for line in wrapped(f"   {name:<{LABEL}} {visible(text, TEXT_MAX)}", console.width, INDENT)
    ]


def _blame_sentence(finding: Finding) -> str:
    if finding.blame == "caller":
        return f"the caller: how {finding.provider} calls {finding.op}, or what it does in its place"
    return f"the kernel: {finding.op} of {finding.provider}, called as its contract says"


def _changed_rows(finding: Finding) -> list[tuple[str, str]]:
    """What this change touched of what the case runs."""
    rows = [", ".join(one.rsplit(" ", 1)) for one in finding.changed[:CHANGED_MAX]]
    if more := len(finding.changed) - len(rows):
        rows.append(f"{more} more of what this case runs")
    return [("changed" if number == 0 else "", row) for number, row in enumerate(rows)]


def _symptom_rows(symptoms: Sequence[Finding], most: int | None) -> list[tuple[str, str]]:
    """What came after a finding in the same schedules, and nowhere without it."""
    rows = [
        f"{rule_label(one.tier, one.rule)} {blamed(one)}, in {one.count} schedule{'s' * (one.count != 1)}"
        for one in symptoms[:most]
    ]
    if more := len(symptoms) - len(rows):
        rows.append(f"{more} more, which -v lists")
    return [("then" if number == 0 else "", row) for number, row in enumerate(rows)]


def _reach_sentence(reach: str) -> str:
    kind, _, place = reach.partition(":")
    if place:
        return f"{kind}: {place} keeps users from this configuration"
    return f"{kind}: {REACHES[kind]}"


def _hit_by(verdict: Verdict, finding: Finding) -> str:
    """How rare a finding was: of how many cases or schedules."""
    suites = [suite for suite in verdict.suites if suite.name == finding.tier]
    tier = TIERS[finding.tier]
    if tier.unit == "schedules":
        return f"{finding.count} of {sum(suite.schedules for suite in suites)} schedules"
    checked = [checked for suite in suites for checked in suite.judged if tier.finds(checked, finding.signature)]
    return f"{finding.count} of {sum(one.cases for one in checked)} generated cases"


# What was checked


@dataclass(frozen=True, slots=True)
class _Row:
    """One thing that was checked. `part` says what kind of thing it is; `result` is ok, finding or ""."""

    part: str
    name: str
    more: str
    where: str
    count: str
    result: str


def _rows(suite: Suite, verdict: Verdict) -> list[_Row]:
    wrong = [*(finding.signature for finding in verdict.findings), *verdict.ignored]
    rows = []
    for one in suite.judged:
        result = "finding" if any(TIERS[suite.name].finds(one, signature) for signature in wrong) else "ok"
        name = one.subject.partition(":")[2]
        rows.append(_Row("implementation", one.op, "" if name == one.op else name, one.where, f"{one.cases:,}", result))
    if suite.schedules:
        result = "finding" if any(signature.startswith(f"{suite.name}:") for signature in wrong) else "ok"
        rows.append(_Row("schedules", "schedules", f"{suite.events:,} events", "", f"{suite.schedules:,}", result))
    return rows


_RESULTS = {"ok": "ok", "finding": "with a finding"}


def _counts(suite: Suite, verdict: Verdict) -> str:
    """What a suite checked, one line: how many things of each kind, and what came of them."""
    rows, texts = _rows(suite, verdict), []
    for part in dict.fromkeys(row.part for row in rows):
        results = [row.result for row in rows if row.part == part]
        if part == "schedules":
            on = f" on the {' and the '.join(suite.trees)}" if suite.trees else ""
            texts.append(f"{suite.schedules:,} schedules of {suite.events:,} events{on}: {_RESULTS[results[0]]}")
            continue
        cases = f", {suite.cases:,} cases" if part == "implementation" else ""
        counted = ", ".join(f"{results.count(result)} {text}" for result, text in _RESULTS.items() if result in results)
        texts.append(f"{len(results)} {part}{'s' if len(results) > 1 else ''}{cases}: {counted}")
    return "; ".join(texts) or "not run"


def _print_table(console: Console, verdict: Verdict) -> None:
    table = table_of(
        f"{verdict.target}, seed {verdict.seed}",
        *("suite", "operation", "implementation", "where", "cases", "result"),
    )
    styles = {"ok": "[green]ok[/]", "finding": "[red]finding[/]"}
    for suite in verdict.suites:
        for row in _rows(suite, verdict):
            cells = (suite.name, *map(escape, (row.name, row.more, row.where)), row.count, styles[row.result])
            table.add_row(*cells)
    show(console, table)


def _print_compared(console: Console, compared: Compared, detail: Detail) -> None:
    """What a baseline knows: how many signatures, and with `verbose` a line each; those that are gone; and which tiers
    ran on one side alone.
    """
    signatures = {
        "known": compared.known,
        "more often": compared.risen,
        "gone": compared.gone,
        "not judged": compared.not_judged,
        "uncompared": compared.not_compared,
    }
    if not detail.verbose:
        counts = ", ".join(f"{len(found)} {what}" for what, found in signatures.items() if found)
        print_row(console, "baseline", f"{compared.name}: {f'{counts}; -v lists them' if counts else 'no findings'}")
    for what, found in signatures.items():
        for signature in found if detail.verbose or what == "gone" else ():
            print_row(console, what, signature)
    if compared.tiers_here != compared.tiers_there:
        print_row(console, "ran", f"{', '.join(compared.tiers_here) or 'nothing'}")
        print_row(console, "baseline", f"{', '.join(compared.tiers_there) or 'nothing'} ran on {compared.name}")


# What was not run

_KINDS: Mapping[str, Callable[[str], bool]] = {  # by how a reason begins or ends
    "for the time budget": lambda why: why.startswith(SPENT),
    "for the interrupt": lambda why: why == WHY,
    "absent in this target": is_absent,
    "not supported": lambda _why: True,
}


def kind_of(entry: NotRun) -> str:
    """Why something was not run, in a few words that count many together."""
    return next(kind for kind, is_it in _KINDS.items() if is_it(entry.why))


def _print_not_run(console: Console, suites: Sequence[Suite], listed: bool) -> None:
    """How many were not run for what kind of reason, one line; with `listed` each with its reason."""
    entries = [entry for suite in suites for entry in suite.not_run]
    kinds = [kind_of(entry) for entry in entries]
    counts = [f"{kinds.count(kind)} {kind}" for kind in _KINDS if kind in kinds]
    if entries and not listed:
        print_row(console, "not run", f"{', '.join(counts)}; --show-not-run lists them", "yellow")
    for entry in entries if listed else ():
        print_row(console, "not run", f"{entry.what}: {entry.why}", "yellow")


# Lines


def _print(console: Console, lines: Iterable[str]) -> None:
    for line in lines:
        console.print(line, soft_wrap=True)
