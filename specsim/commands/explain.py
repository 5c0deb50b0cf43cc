"""`specsim explain`: what a rule or a finding means, why it matters, an example, and how to ignore it."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from specsim import replay_file
from specsim.commands.invocation import output_file
from specsim.files import save_json


def explain(
    name: Annotated[
        str,
        typer.Argument(
            metavar="RULE|SIGNATURE|FILE",
            help="A rule by number (I32) or slug (stale-result), a finding's signature, or its replay file.",
        ),
    ],
    json_file: Annotated[Path | None, output_file("--json", help="Write the same to this file.")] = None,
) -> None:
    """Say what a rule or a finding means, why it matters, which releases have it, and how to see or ignore it."""
    from specsim.commands.asked import FIXTURES
    from specsim.findings.explain import explain as explained
    from specsim.findings.explain import fixtures_of, own_findings
    from specsim.report.explain import print_explained

    own = own_findings(replay_file.FINDINGS)
    if Path(name).is_file():
        stored = replay_file.load(Path(name))
        own, name = own_findings(Path(name).parent), stored.signature
    data = explained(name, [*fixtures_of(FIXTURES), *own])
    if json_file is not None:
        save_json(json_file, data)
    print_explained(data)
