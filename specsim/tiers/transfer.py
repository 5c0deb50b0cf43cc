"""What a child process found, as findings with their replay files. The parent writes the files: a target that changes
its working directory moves none of them, and one that cannot be written costs the file and not the finding.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

from specsim import replay_file
from specsim.engines.packages import found_at
from specsim.errors import UsageError
from specsim.files import note_lost
from specsim.replay_file import Replay
from specsim.tiers.messages import Found, Shrunk
from specsim.verdict import Finding, Rule


def found(finding: Finding, replay: Replay) -> Found:
    """A finding as a child sends it."""
    return Found(finding=finding, replay=replay_file.to_json(replay))


def shrunk(finding: Finding, replay: Replay, **sizes: Any) -> Shrunk:
    """What is left of a finding that was shrunk, as a child sends it."""
    return Shrunk(finding=finding, replay=replay_file.to_json(replay), **sizes)


def received(message: Found, out: Path) -> Finding:
    """The finding that a child sent; its replay file is written into `out`. One that cannot be written is named in the
    finding's details, and its `replay` is ""; the command that runs says so at its end.
    """
    try:
        return replace(message.finding, replay=str(kept(message, out)))
    except UsageError as error:
        note_lost(error)
        lost = f"its replay file was not written: {error.problem}"
        return replace(message.finding, details=(*message.finding.details, lost))


def kept(message: Found | Shrunk, out: Path) -> Path:
    """The replay file of a finding, written into `out`. Raises UsageError when it cannot be written."""
    stored = replay_file.from_json(message.replay, out)
    return replay_file.save_in(out, replace(stored, source=found_at(stored.target)))


def broken(rule: Rule, **fields: Any) -> Finding:
    """A finding of a rule, before its replay file is written. `fields` are the others of Finding."""
    return Finding(rule=rule.id, sentence=rule.sentence, severity=rule.severity, replay="", **fields)


def process_finding(tier: str, rule: Rule, text: str, signature: str, of: str, why: str) -> Finding:
    """The finding of a case or schedule `of` that ended its process, where the process that should have written it down
    did so too: `why` says how.
    """
    return broken(
        rule,
        title=text,
        signature=signature,
        tier=tier,
        reach="unknown",
        where="",
        expected=rule.sentence,
        actual=text,
        count=1,
        details=(of, f"its replay file was not made: the process that writes it {why}"),
    )
