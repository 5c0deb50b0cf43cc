"""The rules of the accounting tier, each an id and one sentence. Where each is checked: `specsim.rules.checker`.

Rules speak of KVready and owned slots only, never of an engine's field or convention. Numbers follow the catalogue of
invariants that the project started from, so some are missing here.
"""

from __future__ import annotations

from specsim.verdict import Rule, Severity

_WRONG, _LEAK, _METRIC = Severity.WRONG_RESULT, Severity.LEAK, Severity.METRIC
_UNDEFINED = Severity.UNDEFINED_BEHAVIOUR

RULES: tuple[Rule, ...] = (
    Rule(
        "I01",
        "lengths-in-order",
        "0 <= committed <= allocated <= row width for every request and session that owns a row",
        _WRONG,
    ),
    Rule(
        "I02",
        "waiting-owns-nothing",
        "a request that waits without a session owns no row and claims and holds no position",
        _WRONG,
    ),
    Rule(
        "I03",
        "complete-outputs",
        "the outputs of a live request are those before its prefill, one of the prefill, and the accepted runs",
        _WRONG,
    ),
    Rule(
        "I04",
        "honest-claim",
        "a live request claims its honest length, or one more while a verification of it is in flight",
        _WRONG,
    ),
    Rule(
        "I05", "content-read", "every position that is read holds the KV of exactly the token at that position", _WRONG
    ),
    Rule(
        "I06",
        "step-start",
        "a device step starts at the prefill's length plus all accepted tokens of this incarnation",
        _WRONG,
    ),
    Rule("I07", "slots-of-step", "a device step finds slots for every position that it may touch", _UNDEFINED),
    Rule("I08", "allocated-length", "the allocated length never shrinks between prefill and release", _LEAK),
    Rule(
        "I09",
        "protected-pages",
        "the positions that the tree protects are whole pages, and at most those claimed",
        _WRONG,
    ),
    Rule("I10", "finished-length", "the finished length lies within the outputs and the length cap", _WRONG),
    Rule("I11", "launch-count", "launches since the prefill are counted, and none after a retraction", _METRIC),
    Rule("I12", "slot-owner", "no slot has two owners", _WRONG),
    Rule("I13", "leaked-slot", "with pages of one token: every slot that is not free has an owner", _LEAK),
    Rule("I14", "leaked-page", "with larger pages: every page that is not free has an owner", _LEAK),
    Rule(
        "I15",
        "window-slots",
        "a request holds the window slots from its eviction cursor on, and every other is free",
        _LEAK,
    ),
    Rule("I16", "free-slot", "no owner's slot is free, and none is free twice", _WRONG),
    Rule("I17", "split-page", "no page is split between owners", _WRONG),
    Rule("I18", "row-owner", "every row is free or owned, once", _LEAK),
    Rule("I19", "locked-path", "the slots of a row's protected positions are those of the tree's locked path", _WRONG),
    Rule(
        "I20",
        "row-writes",
        "preparing a request writes its own row only, in the columns that it newly allocates",
        _WRONG,
    ),
    Rule("I21", "slot-zero", "slot 0 is never handed out", _WRONG),
    Rule("I22", "free-group", "slots that are freed in a free group are not handed out before it ends", _WRONG),
    Rule("I23", "double-free", "a slot is freed only by whom it was handed out to, once", _WRONG),
    Rule("I24", "leak-at-idle", "when nothing runs, only sessions and the tree own rows and slots", _LEAK),
    Rule(
        "I25", "tree-locks", "every running request and session holds one lock in the tree, and nobody else does", _LEAK
    ),
    Rule("I26", "tree-sizes", "the tree's slots are evictable or locked, and what is locked is not evicted", _WRONG),
    Rule("I27", "tree-content", "a slot of the tree holds the KV of the tokens that lead to it", _WRONG),
    Rule("I28", "tree-namespace", "a request reuses only what was inserted under its own extra_key", _WRONG),
    Rule(
        "I29",
        "tree-insertion",
        "a request inserts what it claims in whole pages of keys, and nothing when it is retracted",
        _WRONG,
    ),
    Rule("I30", "lock-of-finished", "a finished request gives back its lock, once", _LEAK),
    Rule(
        "I31",
        "stale-result-of-finished",
        "a stale result of a finished request changes nothing of it but a claim that it gives back",
        _WRONG,
    ),
    Rule("I32", "stale-result", "a stale result of a retracted request changes nothing of it", _WRONG),
    Rule(
        "I33",
        "acceptance-counts",
        "verify count, accepted drafts and histogram count the resolved verifications while live",
        _METRIC,
    ),
    Rule(
        "I34",
        "result-run",
        "a run is the first accepted tokens of the request's own row, at the stride of its launch",
        _WRONG,
    ),
    Rule(
        "I35", "launch-order", "every launch is resolved once, in launch order, and at most two are unresolved", _WRONG
    ),
    Rule("I36", "batch-members", "a finished request is never launched, and nobody is in a batch twice", _WRONG),
    Rule("I37", "double-release", "a request is released once per incarnation", _WRONG),
    Rule("I38", "wanted-abort", "a request that is to abort finishes at its next result", _WRONG),
    Rule("I39", "unwanted-abort", "only requests whose abort was wanted finish without reaching their end", _WRONG),
    Rule("I40", "visible-outputs", "the visible outputs are those of decoding one token after the other", _WRONG),
    Rule("I41", "accepted-path", "the accepted path leads from the root, from parent to child", _WRONG),
    Rule("I42", "bonus-token", "the next root is the last token of the accepted run", _WRONG),
    Rule("I43", "accepted-content", "after a step the accepted positions hold the KV of the accepted path", _WRONG),
    Rule(
        "I45", "verify-slots", "a verification writes its nodes to the slots of its row at the launch, in order", _WRONG
    ),
    Rule("I46", "step-length", "a step's length grows by the accepted tokens", _WRONG),
    Rule(
        "I47",
        "draft-seed",
        "the seed of the next drafts, and their root, are those of the last accepted position",
        _METRIC,
    ),
    Rule("I48", "draft-pool", "a layer of the drafter reads and writes its own pool only", _METRIC),
    Rule(
        "I49",
        "relay-entry",
        "a step takes from the relay what the step before it, of the same incarnation, left there",
        _WRONG,
    ),
    Rule("I52", "batch-state", "what travels with a batch stays with its request through filters and merges", _WRONG),
    Rule("I53", "session-claim", "a session keeps the shorter of its visible tokens and KVready", _WRONG),
    Rule(
        "I54", "session-reuse", "a turn reuses no more than its session kept, and nothing of the session leaks", _LEAK
    ),
    Rule(
        "I55", "session-lock", "a session protects no more than its next turn reuses, and keeps its first lock", _WRONG
    ),
    Rule("I56", "stable-match", "a prefix that is matched again is found again, and matching changes nothing", _WRONG),
    Rule(
        "I57",
        "aborted-turn",
        "a turn that is aborted while it waits leaves its session's memory, one that ran leaves none",
        _LEAK,
    ),
    Rule(
        "I58",
        "penalty-counts",
        "penalties count the outputs before a node, each once; relaxed ones nothing else, and no more",
        _WRONG,
    ),
    Rule("I59", "penalties-after-retraction", "after a retraction penalties count what they counted before", _WRONG),
    Rule(
        "I60",
        "grammar-state",
        "a grammar has read the outputs, when masks are made and when a result was taken",
        _WRONG,
    ),
    Rule("I61", "forbidden-token", "a token that the grammar forbids is never said", _WRONG),
    Rule(
        "I62",
        "eviction-cursor",
        "the eviction cursor is at a page's start, never goes back, and never beyond the claim",
        _WRONG,
    ),
    Rule(
        "I63",
        "tree-window",
        "a prefix that the tree keeps by a lock, or ends with, has the window slots behind its end",
        _WRONG,
    ),
    Rule(
        "D1",
        "draft-content",
        "the drafter's KV of a position is made of the target's hidden state and the next token",
        _METRIC,
    ),
    Rule(
        "K3",
        "padding",
        "rows that pad a batch write slot 0 only, and a batch gets the results of its own rows alone",
        _WRONG,
    ),
    Rule("K4", "vocabulary", "a token that is said is one of the vocabulary", _WRONG),
    Rule(
        "M1",
        "tree-mask",
        "a node of the tree reads the prefix and its own path, and stands where the path ends",
        _WRONG,
    ),
    Rule(
        "T6", "logprob-rows", "logprobs and hidden states have a row for each output, and it is that output's", _WRONG
    ),
    Rule("S1", "progress", "every request ends", _WRONG),
    Rule(
        "S2",
        "stream-race",
        "of two accesses of what streams share, one of them a write, events and waits fix the order",
        _WRONG,
    ),
    Rule("S3", "accepted-drafts", "the batch's counter of accepted drafts counts live requests only", _METRIC),
    Rule("S4", "session-recompute", "a turn reuses all that its session kept", _METRIC),
    Rule("S5", "over-allocation", "a launch allocates no further than two steps beyond the known length", _METRIC),
    Rule("S6", "host-wait", "the host waits for no other launch than the one whose result it takes next", _METRIC),
    Rule("S7", "context-length", "prompt and answer fit the context", _WRONG),
    Rule("S8", "collectives", "every rank takes part in the collectives of every step, without a request too", _WRONG),
    Rule("X1", "host-exception", "the host functions raise nothing", _WRONG),
    Rule("X2", "schedule-timeout", "a schedule ends within the time limit", _WRONG),
    Rule("X3", "schedule-crash", "a schedule leaves its process alive", _UNDEFINED),
    Rule("X4", "extension-exception", "a rule or chooser of an extension raises nothing", _WRONG),
    Rule("X5", "extension-rule", "a rule of an extension holds", _WRONG),
    Rule("X6", "device-exception", "the device raises nothing: every access lies inside its tensors", _UNDEFINED),
)
BY_ID = {rule.id: rule for rule in RULES}
