"""What a child process found, as findings with their replay files. The parent writes the files: a target that changes
its working directory moves none of them, and one that cannot be written costs the file and not the finding.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from specsim import replay_file
from specsim.errors import UsageError
from specsim.files import note_lost
from specsim.replay_file import Replay
from specsim.verdict import Finding, Rule, finding_from_json


def sent(finding: Finding, replay: Replay) -> dict[str, Any]:
    """A finding as a child sends it."""
    return {"finding": asdict(finding), "replay": replay_file.to_json(replay)}


def received(found: Mapping[str, Any], out: Path) -> Finding:
    """The finding that a child sent; its replay file is written into `out`. One that cannot be written is named in the
    finding's details, and its `replay` is ""; the command that runs says so at its end.
    """
    finding = finding_from_json(found["finding"])
    try:
        path = replay_file.save_in(out, replay_file.from_json(found["replay"], out))
    except UsageError as error:
        note_lost(error)
        return replace(finding, details=(*finding.details, f"its replay file was not written: {error.problem}"))
    return replace(finding, replay=str(path))


def process_finding(tier: str, rule: Rule, text: str, signature: str, of: str, why: str) -> Finding:
    """The finding of a case or schedule `of` that ended its process, where the process that should have written it down
    did so too: `why` says how.
    """
    return Finding(
        rule=rule.id,
        sentence=rule.sentence,
        title=text,
        signature=signature,
        tier=tier,
        severity=rule.severity,
        reach="unknown",
        where="",
        expected=rule.sentence,
        actual=text,
        replay="",
        count=1,
        details=(of, f"its replay file was not made: the process that writes it {why}"),
    )


def kept(message: Mapping[str, Any], out: Path) -> dict[str, Any]:
    """A message whose `found` is written into `out`, which is what was asked for; its `replay` is the file then. Raises
    UsageError when it cannot be written.
    """
    path = replay_file.save_in(out, replay_file.from_json(message["found"]["replay"], out))
    return {**message, "replay": str(path)}
