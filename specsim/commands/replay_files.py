"""`specsim pin` and `specsim shrink`: a test from a replay file, and a smaller one."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Annotated

import typer

from specsim.commands.invocation import output_file, output_folder
from specsim.commands.options import SECONDS_MAX, CacheOption, HangOption
from specsim.commands.trust import NAME_TARGET, TrustOption, announce_replay
from specsim.errors import UsageError
from specsim.files import save_json, write_text
from specsim.replay_file import FINDINGS
from specsim.verdict import INTERRUPTED, PASS

SHRINK_ATTEMPTS = 5000


def pin(
    file: Annotated[Path, typer.Argument(help="A replay file that `specsim check --out DIR` wrote.")],
    out: Annotated[Path | None, output_file("--out", help="The test to write, test_NAME.py.")] = None,
    target: Annotated[str | None, typer.Option(help="What the test runs. Default: what it was found on.")] = None,
    still: Annotated[bool, typer.Option("--still", help="Assert that the finding is still there.")] = False,
    schedule: Annotated[
        bool, typer.Option("--schedule", help="Write a schedule down as calls, without a replay file beside the test.")
    ] = False,
    json_file: Annotated[Path | None, output_file("--json", help="Write what was written to this file.")] = None,
    trust: TrustOption = False,
) -> None:
    """Write a pytest that replays a finding and asserts that it is gone."""
    from specsim import replay_file
    from specsim.engines.target import parse_target
    from specsim.findings import pin

    stored = replay_file.load(file)
    test = out or Path(pin.default_name(stored))
    text = parse_target(target or stored.target).text
    announce_replay(file, stored, text, named=target is not None, trust=trust, remedy=NAME_TARGET)
    if schedule and still:
        raise UsageError("--schedule with --still", "a schedule by hand checks that its rule holds")
    beside = "" if schedule else str(test.with_suffix(".json"))
    if schedule:
        pin.pin_schedule(file, test, text)
    else:
        pin.pin(file, test, text, still)
    typer.echo(f"{test}, with {beside} beside it" if beside else str(test))
    if json_file is not None:
        save_json(json_file, {"test": str(test), "replay": beside, "still": still})


def shrink(
    file: Annotated[Path, typer.Argument(help="A replay file that `specsim check --out DIR` wrote.")],
    out: Annotated[Path, output_folder("--out", help="Folder for the smaller replay file.")] = FINDINGS,
    attempts: Annotated[int, typer.Option(min=1, help="Cases or schedules to try.")] = SHRINK_ATTEMPTS,
    target: Annotated[str | None, typer.Option(help="Shrink it on this. Default: what it was found on.")] = None,
    json_file: Annotated[Path | None, output_file("--json", help="Write the file and its sizes to this file.")] = None,
    trust: TrustOption = False,
    budget_seconds: Annotated[
        float | None,
        typer.Option("--budget-seconds", min=0.1, max=SECONDS_MAX, help="Keep what is smallest after them."),
    ] = None,
    hang_seconds: HangOption = 20.0,
    cache_dir: CacheOption = None,
) -> None:
    """Make a replay file smaller, with more attempts than `check` takes. An interrupt keeps the smallest by then."""
    from specsim import interrupts, replay_file
    from specsim.engines.target import parse_target
    from specsim.lifting.cache import open_cache
    from specsim.tiers.registry import rule_label
    from specsim.tiers.replaying import Smaller, request_of
    from specsim.tiers.replaying import shrink as shrink_file

    stored = replay_file.load(file)
    size, unit = stored.size
    text = parse_target(target or stored.target).text
    announce_replay(file, stored, text, named=target is not None, trust=trust, remedy=NAME_TARGET)
    seconds = math.inf if budget_seconds is None else budget_seconds
    with interrupts.gentle():
        if stored.rule in replay_file.ENDED:
            rule = rule_label(stored.tier, stored.rule)
            typer.echo(f"{rule} ends the process of its case, which is not shrunk: the file is kept as it is")
            kept = out / file.name
            write_text(kept, file.read_text(encoding="utf-8"))
            before = len(stored.tape), size
            made = Smaller(kept, before, before)
        else:
            request = request_of(stored, text, open_cache(cache_dir).folder, hang_seconds)
            made = shrink_file(request, file, out, attempts, seconds)
        interrupted = interrupts.asked()
    if not made.same_source:
        typer.echo("the code has changed since it was found: the new file is of what it is now")
    if not made.same_case:
        typer.echo("its tape stands for another case now, which shows the finding too: the new file is of that")
    (choices, size), (choices_now, size_now) = made.before, made.after
    now = f"{choices_now} choices and {size_now} {unit} now"
    if made.before == made.after:
        now = f"and nothing smaller was found in {attempts} attempts"
    typer.echo(f"{choices} choices and {size} {unit} before, {now}")
    typer.echo(replay_file.command(str(made.replay), text, text))
    if json_file is not None:
        sizes = {"before": {"choices": choices, "size": size}, "after": {"choices": choices_now, "size": size_now}}
        save_json(json_file, {"replay": str(made.replay), "unit": unit, **sizes})
    raise typer.Exit(INTERRUPTED if interrupted else PASS)
