"""What a forward pass reads: the KV of its prefix, the inputs of its batch, and the draft model's."""

from __future__ import annotations

from collections.abc import Iterator

from specsim.verdict import Rule, Severity
from specsim.world.kv import UNWRITTEN, BatchInput, Disagreement, DraftRead, content_name
from specsim.world.rule import Check, Run, Violation, first_of_each, notes
from specsim.world.scheduler import WrongContent


class ContentRead(Check):
    """Of the full pool and of a sliding window's, at every position of the prefix that a pass attends to, and of the
    tokens of its input. A slot that nobody wrote to since it was freed holds nothing. What a session's turn read has a
    part of its own: its KV is kept, and so goes wrong, otherwise than a request's.
    """

    rule = Rule(
        "I05",
        "content-read",
        "every position that is read holds the KV of exactly the token at that position",
        Severity.WRONG_RESULT,
    )
    spoils = True
    defects = (notes("content", WrongContent("0", "verify", "full", 1, 7, "another request")),)

    def after(self, run: Run) -> Iterator[Violation]:
        of_sessions = {turn.rid for turn in run.users.workload.turns if turn.session}
        yield from first_of_each(
            self.broken(
                f"{content.pool}:{content.holds}".replace(" ", "-") + ":session" * (content.rid in of_sessions),
                content.rid,
                _what_belongs(content),
                _what_is_there(content),
                at=note.at,
                where=content.where,
                slot=content.slot if content.pool == "full" else -1,
                position=content.position,
                when=note.when,
            )
            for content, note in run.noted(WrongContent)
        )


def _what_belongs(content: WrongContent) -> str:
    what = "token at" if content.pool == "input" else "KV of the tokens up to"
    return f"the {what} position {content.position}"


def _what_is_there(content: WrongContent) -> str:
    where = "the launch's input" if content.pool == "input" else f"slot {content.slot} of the {content.pool} pool"
    freed = f", which {content.freed_by} had freed" if content.freed_by else ""
    return f"{content.holds}, in {where}{freed}, in {content.phase}"


class BatchState(Check):
    """Each input of a launch has one element for each request of its batch, and so has each list of a message with
    answers.
    """

    rule = Rule(
        "I52",
        "batch-state",
        "what travels with a batch stays with its request through filters and merges",
        Severity.WRONG_RESULT,
    )
    defects = (notes("an input of another batch", BatchInput("seq_lens", requests=2, elements=3)),)

    def after(self, run: Run) -> Iterator[Violation]:
        yield from first_of_each(
            self.from_note(note, given.name, "", f"{given.requests}, one for each request of the batch", given.elements)
            for given, note in run.noted(BatchInput)
            if given.elements != given.requests
        )


class Agreement(Check):
    """What the host has of the lengths and rows of a batch, by which attention plans, is what its launch reads on the
    device. A batch says what its worker reads, in the form in which it does, and whether prompts or answers are
    computed: kernels are chosen by that. Where the release's own workers run, a worker has the blocks of a request that
    the scheduler gave it, and the stages of a pipeline exchange as much as each of them expects.
    """

    rule = Rule(
        "S13",
        "agreement",
        "a scheduler and its workers, and those among each other, have one view of what they share",
        Severity.WRONG_RESULT,
    )
    defects = (
        notes("another block", Disagreement("block-table", "0", "block 3", "block 4")),
        notes("a length of the step before", Disagreement("mirror:seq_lens", "0", "34", "31 on the host")),
    )

    def after(self, run: Run) -> Iterator[Violation]:
        yield from first_of_each(
            self.from_note(note, found.what, found.rid, found.expected, found.actual)
            for found, note in run.noted(Disagreement)
        )


class DraftContent(Check):
    """The draft model reads its request's own tokens, hidden states and KV: of SGLang where the release's own worker
    runs, and of vLLM its KV by the model in the worker's place, without a connector.
    """

    rule = Rule(
        "D1",
        "draft-content",
        "the drafter's KV of a position is made of the target's hidden state and the next token",
        Severity.METRIC,
    )
    defects = (notes("drafts from another token", DraftRead("0", "token", 3, expected=5, actual=6, is_content=False)),)

    def after(self, run: Run) -> Iterator[Violation]:
        yield from first_of_each(
            self.from_note(
                note,
                f"draft:{drafted.name}",
                "",
                f"{_shown(drafted, drafted.expected)} at position {drafted.position}, of {drafted.rid}",
                _shown(drafted, drafted.actual),
            )
            for drafted, note in run.noted(DraftRead)
        )


def _shown(drafted: DraftRead, value: int) -> str:
    """A token, a position or a count; and of what is a hash its first digits."""
    if value == UNWRITTEN:
        return "nothing"
    return content_name({}, value) if drafted.is_content else str(value)
