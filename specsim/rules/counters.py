"""What an engine counts for those who run it."""

from __future__ import annotations

from collections.abc import Iterator

from specsim.verdict import Rule, Severity
from specsim.world.kv import DraftsCounted
from specsim.world.rule import Check, Run, Violation, notes


class AcceptedDrafts(Check):
    """All that is added to the counter is counted for a request, too: not the drafts of one that has finished or was
    retracted while its verification was under way. A request's own count may be larger: it may have the drafts
    behind its end, which I40 bounds.
    """

    rule = Rule(
        "S3", "accepted-drafts", "the batch's counter of accepted drafts counts live requests only", Severity.METRIC
    )
    defects = (notes("counts the drafts of the finished", DraftsCounted(3)),)

    def at_rest(self, run: Run) -> Iterator[Violation]:
        counted = sum(record.drafts for record, _note in run.noted(DraftsCounted))
        drafts = sum(state.drafts for state in run.started.requests())
        if counted > drafts:
            yield self.broken("counter", "", f"{drafts} correct drafts, those of all requests", counted)
