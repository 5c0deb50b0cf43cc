"""Steps of the device: what a launch reads, writes and accepts."""

from __future__ import annotations

from specsim.engine.draft import DraftMismatch
from specsim.engine.model import VOCABULARY, extend
from specsim.engine.rules.rule import Broken, Check
from specsim.engine.rules.views import Executed, Shown, StepExecuted
from specsim.verdict import Rule, Severity

_COLLECTIVES = ["draft", "verify", "draft extend"]


class Padding(Check):
    rule = Rule(
        "K3",
        "padding",
        "rows that pad a batch write slot 0 only, and a batch gets the results of its own rows alone",
        Severity.WRONG_RESULT,
    )
    after = (Executed,)

    def check(self, view: Executed) -> Broken | None:
        writes = view.device.pad_writes
        if writes and any(writes):
            return self.broken("padding", view.launch.name, "writes of slot 0", f"slot {max(writes)} is written")
        verifies = view.launch.verifies
        if verifies is None or verifies.result is None:
            return None
        result = verifies.result
        actual = (len(result.accept_lens), len(result.next_token_ids))
        own = (len(verifies.rows), len(verifies.rows) * result.stride)
        if actual == own:
            return None
        return self.broken("padding", view.launch.name, f"(requests, tokens) {own}", actual)


class ContentRead(Check):
    rule = Rule(
        "I05",
        "content-read",
        "every position that is read holds the KV of exactly the token at that position",
        Severity.WRONG_RESULT,
    )
    after = (Executed,)

    def check(self, view: Executed) -> Broken | None:
        if not view.device.content_errors:
            return None
        error = view.device.content_errors[0]
        expected, actual = f"the KV of position {error.position}", f"slot {error.slot} holds something else"
        return self.broken("memory", error.key[0], expected, actual)


class Collectives(Check):
    rule = Rule(
        "S8",
        "collectives",
        "every rank takes part in the collectives of every step, without a request too",
        Severity.WRONG_RESULT,
    )
    after = (Executed,)

    def check(self, view: Executed) -> Broken | None:
        actual = view.device.collectives
        if view.launch.verifies is None or actual == _COLLECTIVES:
            return None
        return self.broken("verify", view.launch.name, _COLLECTIVES, actual)


class RelayEntry(Check):
    rule = Rule(
        "I49",
        "relay-entry",
        "a step takes from the relay what the step before it, of the same incarnation, left there",
        Severity.WRONG_RESULT,
    )
    after = (DraftMismatch, Executed)

    def check(self, view: DraftMismatch | Executed) -> Broken | None:
        if isinstance(view, DraftMismatch):
            return self.broken("relay", view.who, view.expected, view.actual) if view.kind == "relay entry" else None
        for key, left in view.device.relayed:
            if left is None or left.key != key:
                whose = "nobody" if left is None else f"{left.key[0]}, incarnation {left.key[1]}"
                return self.broken("relay", key[0], f"the entry of {key[0]}, incarnation {key[1]}", whose)
        return None


class SlotsOfStep(Check):
    rule = Rule(
        "I07",
        "slots-of-step",
        "a device step finds slots for every position that it may touch",
        Severity.UNDEFINED_BEHAVIOUR,
    )
    after = (Executed,)

    def check(self, view: Executed) -> Broken | None:
        if not view.device.short_rows:
            return None
        key, have, need = view.device.short_rows[0]
        verifies = view.launch.verifies
        part = "prepare" if verifies and key in [row.key for row in verifies.rows] else "extend"
        return self.broken(part, key[0], f"{need} positions allocated", have)


class StepStart(Check):
    rule = Rule(
        "I06",
        "step-start",
        "a device step starts at the prefill's length plus all accepted tokens of this incarnation",
        Severity.WRONG_RESULT,
    )
    after = (StepExecuted,)

    def check(self, view: StepExecuted) -> Broken | None:
        if view.step.start == view.start:
            return None
        return self.broken("relay", view.step.key[0], f"start at {view.start}", view.step.start)


class AcceptedPath(Check):
    rule = Rule(
        "I41", "accepted-path", "the accepted path leads from the root, from parent to child", Severity.WRONG_RESULT
    )
    after = (StepExecuted,)

    def check(self, view: StepExecuted) -> Broken | None:
        path, parents = view.step.path, view.step.parents
        if path[0] == 0 and [parents[child] for child in path[1:]] == path[:-1]:
            return None
        return self.broken("verify", view.step.key[0], "a path from the root", path)


class BonusToken(Check):
    rule = Rule("I42", "bonus-token", "the next root is the last token of the accepted run", Severity.WRONG_RESULT)
    after = (StepExecuted,)

    def check(self, view: StepExecuted) -> Broken | None:
        step = view.step
        if step.bonus == step.tokens[-1]:
            return None
        return self.broken("bonus", step.key[0], step.tokens[-1], step.bonus)


class StepLength(Check):
    rule = Rule("I46", "step-length", "a step's length grows by the accepted tokens", Severity.WRONG_RESULT)
    after = (StepExecuted,)

    def check(self, view: StepExecuted) -> Broken | None:
        step = view.step
        actual, expected = len(view.device.sequences[step.key].chain), step.start + len(step.path)
        return None if actual == expected else self.broken("verify", step.key[0], f"length {expected}", actual)


class TreeMask(Check):
    rule = Rule(
        "M1",
        "tree-mask",
        "a node of the tree reads the prefix and its own path, and stands where the path ends",
        Severity.WRONG_RESULT,
    )
    after = (StepExecuted,)

    def applies(self, shown: Shown) -> bool:
        return shown.config.topk > 1 and bool(shown.requests("prefill")) and "verify" in shown.met

    def check(self, view: StepExecuted) -> Broken | None:
        if view.config.topk == 1:  # a chain's masks show in its tokens
            return None
        step, chain = view.step, view.device.sequences[view.step.key].chain
        fingerprint = extend(chain[step.start - 1], step.root)
        for token in step.tokens[:-1]:
            fingerprint = extend(fingerprint, token)
        if chain[-1] == fingerprint:
            return None
        return self.broken("tree", step.key[0], "what the path's tokens make", "something else")


class Vocabulary(Check):
    rule = Rule("K4", "vocabulary", "a token that is said is one of the vocabulary", Severity.WRONG_RESULT)
    after = (StepExecuted,)

    def check(self, view: StepExecuted) -> Broken | None:
        tokens = view.step.tokens
        if 0 <= min(tokens) <= max(tokens) < VOCABULARY:
            return None
        return self.broken("verify", view.step.key[0], f"tokens below {VOCABULARY}", tokens)


class VerifySlots(Check):
    rule = Rule(
        "I45",
        "verify-slots",
        "a verification writes its nodes to the slots of its row at the launch, in order",
        Severity.WRONG_RESULT,
    )
    after = (Executed, StepExecuted)

    def check(self, view: Executed | StepExecuted) -> Broken | None:
        if isinstance(view, Executed):
            if not view.device.wrong_slots:
                return None
            wrong = view.device.wrong_slots[0]
            return self.broken(wrong.part, wrong.key[0], f"slots {wrong.expected}", wrong.seen)
        step = view.step
        right, written = step.slots[step.start : step.start + len(step.parents)], step.written[: len(step.parents)]
        if list(written) == list(right):
            return None
        return self.broken("verify locations", step.key[0], f"writes of slots {list(right)}", list(written))


class AcceptedContent(Check):
    rule = Rule(
        "I43",
        "accepted-content",
        "after a step the accepted positions hold the KV of the accepted path",
        Severity.WRONG_RESULT,
    )
    after = (StepExecuted,)

    def check(self, view: StepExecuted) -> Broken | None:
        step, content = view.step, view.device.content
        chain, slots = view.device.sequences[step.key].chain, step.slots
        for position in range(step.start, step.start + len(step.path)):
            held = content[slots[position]] if position < len(slots) else None
            if held != chain[position]:
                expected = f"the KV of the accepted token at position {position}"
                return self.broken("move", step.key[0], expected, "another")
        return None


class DraftSeed(Check):
    rule = Rule(
        "I47",
        "draft-seed",
        "the seed of the next drafts, and their root, are those of the last accepted position",
        Severity.METRIC,
    )
    after = (DraftMismatch,)

    def check(self, view: DraftMismatch) -> Broken | None:
        return self.broken("draft extend", view.who, view.expected, view.actual) if view.kind == "seed" else None


class DraftPool(Check):
    rule = Rule("I48", "draft-pool", "a layer of the drafter reads and writes its own pool only", Severity.METRIC)
    after = (DraftMismatch,)

    def applies(self, shown: Shown) -> bool:
        return bool(shown.config.draft_layers) and bool(shown.requests("prefill"))

    def check(self, view: DraftMismatch) -> Broken | None:
        return self.broken("draft extend", view.who, view.expected, view.actual) if view.kind == "pool" else None


class DraftContent(Check):
    rule = Rule(
        "D1",
        "draft-content",
        "the drafter's KV of a position is made of the target's hidden state and the next token",
        Severity.METRIC,
    )
    after = (DraftMismatch,)

    def applies(self, shown: Shown) -> bool:
        return bool(shown.config.draft_layers) and bool(shown.requests("prefill"))

    def check(self, view: DraftMismatch) -> Broken | None:
        return self.broken("draft extend", view.who, view.expected, view.actual) if view.kind == "content" else None
