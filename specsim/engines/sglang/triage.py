"""What is known of each finding: one entry for each signature that a release of SGLang has shown.

A finding is *known* (there is a public report), *unknown* (there is none that says this: a text ready to send lies
under docs/upstream), or a deviation *by design*, which the release documents and means. `check` prints the entry beside
the finding. A signature that is not in the table is new: it is said to be so. Two defects may have one signature, each
in its own span of releases.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from specsim.lifting.versions import version_key
from specsim.verdict import Finding, Severity

Kind = Literal["known", "unknown", "by design"]


@dataclass(frozen=True, slots=True)
class Triage:
    """What is known of the findings of one signature.

    `severity`    the severity that they have; `reaches` the kinds of reach that were seen on some release
    `first`, `last`  the oldest and newest release that show it, "" for last: the newest one still does
    `references`  public reports, fixes and reviews, newest first
    `text`        one sentence
    `upstream`    NAME of docs/upstream/NAME.md for what is unknown
    """

    signature: str
    kind: Kind
    severity: Severity
    reaches: frozenset[str]
    first: str
    last: str
    text: str
    references: tuple[str, ...] = ()
    upstream: str = ""

    def covers(self, version: str) -> bool:
        """Whether a release lies in the span."""
        last = version_key(self.last) if self.last else None
        return version_key(self.first) <= version_key(version) and (last is None or version_key(version) <= last)

    @property
    def line(self) -> str:
        """One line for beside the finding."""
        where = ", ".join(self.references)
        if self.upstream:
            where = f"report in docs/upstream/{self.upstream}.md{f'; see also {where}' if where else ''}"
        until = f"to {self.last}" if self.last else "on"
        return f"{self.kind}, from {self.first} {until}: {self.text}{f' ({where})' if where else ''}"


def _reaches(text: str) -> frozenset[str]:
    return frozenset(text.split())


NOT_CALLED = frozenset({"not called"})


TRIAGE: tuple[Triage, ...] = (
    Triage(
        "ops:fill_bonus_tokens:caller:EAGLEWorkerV2.verify",
        "known",
        Severity.WRONG_RESULT,
        _reaches("guarded"),
        "0.5.10.post1",
        "0.5.12.post1",
        "the worker reads the bonus token with the tree's size as stride, which is right for topk=1 alone",
        references=("PR #26866", "PR #26981", "PR #15360"),
    ),
    Triage(
        "ops:fill_accept_out_cache_loc:caller:move_accept_tokens_to_target_kvcache",
        "known",
        Severity.UNDEFINED_BEHAVIOUR,
        NOT_CALLED,
        "0.5.10.post1",
        "0.5.12.post1",
        "the worker launches a program for each node, and not for each entry of accept_index: it reads behind it",
        references=("PR #26866",),
    ),
    Triage(
        "ops:fill_accept_out_cache_loc:caller:move_accept_tokens_to_target_kvcache:small-trees",
        "known",
        Severity.WRONG_RESULT,
        NOT_CALLED,
        "0.5.10.post1",
        "0.5.12.post1",
        "with fewer nodes than accept_index is wide it leaves out the entries of later requests",
        references=("PR #26866",),
    ),
    *(
        Triage(
            f"ops:{op}:kernel:{op}",
            "unknown",
            Severity.UNDEFINED_BEHAVIOUR,
            _reaches("option") | NOT_CALLED,
            "0.5.10.post1",
            "0.5.22",
            "prefix sums add masked-off lanes of loads without `other`; NVIDIA's compiler of today leaves 0 there",
            upstream="masked-lanes-without-other",
        )
        for op in ("get_target_cache_loc", "filter_finished_cache_loc")
    ),
    Triage(
        "ops:draft_cache_locs_paged:kernel:draft_cache_locs_paged",
        "unknown",
        Severity.UNDEFINED_BEHAVIOUR,
        _reaches("option"),
        "0.5.10.post1",
        "0.5.12.post1",
        "the same prefix sum; and a program brings slots to the front where another has yet to read",
        references=("PR #26972, which replaced the kernel",),
        upstream="masked-lanes-without-other",
    ),
    Triage(
        "ops:draft_cache_locs_paged:kernel:draft_cache_locs_paged:whole-pages",
        "unknown",
        Severity.WRONG_RESULT,
        _reaches("option"),
        "0.5.10.post1",
        "0.5.12.post1",
        "when all sequences end with a page, nothing brings the branches' slots to the front: the draft writes KV "
        "where its attention does not look",
        references=("PR #26972, which replaced the kernel",),
        upstream="draft-slots-of-whole-pages",
    ),
    Triage(
        "ops:assign_hidden_states_pool:kernel:assign_hidden_states_pool",
        "unknown",
        Severity.WRONG_RESULT,
        _reaches("option"),
        "0.5.10.post1",
        "0.5.14",
        "of a prompt shorter than the pool it remembers rows of the request before, or from before the tensor",
        upstream="multi-layer-windows",
    ),
    Triage(
        "ops:assign_new_state:kernel:assign_new_state",
        "unknown",
        Severity.WRONG_RESULT,
        _reaches("option"),
        "0.5.10.post1",
        "0.5.14",
        "rows of a window from the ninth on are not copied, which 5 steps or more have",
        upstream="multi-layer-windows",
    ),
    Triage(
        "ops:row_argmax:kernel:row_argmax",
        "unknown",
        Severity.WRONG_RESULT,
        _reaches("option"),
        "0.5.21",
        "",
        "up to 64 rows it passes over NaN, which torch.argmax and its own form for more rows do not; a row of NaN "
        "alone gives the vocabulary's size, which is no token",
        upstream="argmax-of-a-row-with-nan",
    ),
    *(
        Triage(
            f"ops:{op}:kernel:{op}:offsets",
            "unknown",
            Severity.UNDEFINED_BEHAVIOUR,
            _reaches("option"),
            first,
            "",
            f"the offset of a row is computed in int32, which {at} do not fit",
            references=references,
            upstream="offsets-in-32-bits",
        )
        for op, first, at, references in (
            ("apply_token_bitmask", "0.5.10.post1", "16,384 rows of 151,936 logits", ("vLLM PR #46560",)),
            ("generate_draft_decode_kv_indices", "0.5.10.post1", "256 x 8 branches of 131,072 tokens at step 8", ()),
            ("row_argmax", "0.5.21", "16,384 rows of 151,936 logits", ("vLLM PR #46560",)),
            ("verify_chain_rejection", "0.5.14", "1,024 requests of 16 x 151,936 probabilities", ("vLLM PR #48055",)),
        )
    ),
    Triage(
        "ops:verify_logits_greedy:caller:EAGLEWorkerV2.verify, whole",
        "known",
        Severity.WRONG_RESULT,
        _reaches("guarded"),
        "0.5.10.post1",
        "0.5.12.post1",
        "a verified tree's KV, tokens and bonus stay where they were: the worker treats every tree as a chain",
        references=("PR #26866",),
    ),
    Triage(
        "ops:apply_penalties:caller:eagle_sample, penalties",
        "known",
        Severity.WRONG_RESULT,
        _reaches("option guarded"),
        "0.5.10.post1",
        "0.5.10.post1",
        "penalties, logit bias and min_new_tokens are ignored",
        references=("PR #22049", "issue #11762"),
    ),
    Triage(
        "ops:min_p_renorm_probs:caller:eagle_sample, min_p",
        "unknown",
        Severity.WRONG_RESULT,
        _reaches("option guarded"),
        "0.5.10.post1",
        "",
        "min_p is accepted and ignored: what verification samples from is not filtered by it",
        references=("vLLM PR #42802, the same there",),
        upstream="min-p-ignored-at-verification",
    ),
    Triage(
        "ops:organize_draft_results:function:organize_draft_results, ties",
        "unknown",
        Severity.WRONG_RESULT,
        _reaches("guarded default option"),
        "0.5.10.post1",
        "",
        "the order of ties is left to torch.topk, which may keep a child without its parent: an orphan",
        references=("PR #36201, which stops the walk of a builder that meets one", "issue #7477"),
        upstream="orphans-of-tied-scores",
    ),
    Triage(
        "accounting:I01:prepare",
        "unknown",
        Severity.WRONG_RESULT,
        _reaches("guarded option default"),
        "0.5.10.post1",
        "",
        "near the context's end the reserve of a decode step is wider than the request's row, with pages of one token",
        references=("PR #33581 for DFLASH", "PR #26972 for larger pages"),
        upstream="row-narrower-than-the-reserve",
    ),
    Triage(
        "accounting:I07:prepare",
        "known",
        Severity.UNDEFINED_BEHAVIOUR,
        _reaches("option"),
        "0.5.12",
        "0.5.12.post1",
        "a step after adaptive steps became fewer is given room for two of its own length, and the longer one in "
        "flight has taken some of it",
        references=("PR #26354, which reserves for the longest", "review of PR #24055", "PR #23336, which brought it"),
    ),
    Triage(
        "accounting:I31:resolve",
        "known",
        Severity.WRONG_RESULT,
        _reaches("option default"),
        "0.5.10.post1",
        "0.5.11",
        "the late result of a finished request still counts",
        references=("PR #23456",),
    ),
    Triage(
        "accounting:I32:resolve",
        "known",
        Severity.WRONG_RESULT,
        _reaches("option default"),
        "0.5.10.post1",
        "0.5.11",
        "the late result of a retracted request still counts",
        references=("PR #23456",),
    ),
    Triage(
        "accounting:I40:long:finish check",
        "known",
        Severity.WRONG_RESULT,
        _reaches("option default"),
        "0.5.10.post1",
        "0.5.17",
        "the length limit is asked before the stop tokens, so tokens after an end inside the run come out",
        references=("PR #33758", "issue #31599"),
    ),
    Triage(
        "accounting:I53:short:session save",
        "known",
        Severity.WRONG_RESULT,
        _reaches("guarded"),
        "0.5.10.post1",
        "0.5.10.post1",
        "a turn's last token is claimed a launch late, and its session keeps one too few",
        references=("PR #22651",),
    ),
    Triage(
        "accounting:I53:long:session save",
        "known",
        Severity.WRONG_RESULT,
        _reaches("guarded"),
        "0.5.10.post1",
        "0.5.10.post1",
        "the session keeps the tokens that a turn's last run has beyond its end",
        references=("PR #22897",),
    ),
    Triage(
        "accounting:I53:long:session save",
        "unknown",
        Severity.WRONG_RESULT,
        _reaches("option"),
        "0.5.15",
        "",
        "the session claims the KV of a turn's last token, which nobody wrote if no launch was in flight",
        references=("PR #28754, which brought it",),
        upstream="session-claims-the-last-token",
    ),
    Triage(
        "accounting:I53:session controller",
        "known",
        Severity.WRONG_RESULT,
        _reaches("guarded"),
        "0.5.10.post1",
        "0.5.10.post1",
        "the next turn's prompt has the tokens that a turn's last run has beyond its end, which the client never saw",
        references=("PR #22897",),
    ),
    Triage(
        "accounting:I53:retracted:session controller",
        "known",
        Severity.WRONG_RESULT,
        _reaches("option"),
        "0.5.11",
        "",
        "a retraction ends a turn for its session: aborted after it, it is in the next turn's prompt all the same",
        references=("PR #40252, open", "PR #22790, which says that an aborted turn's tokens are not kept"),
    ),
    Triage(
        "accounting:S4:left:session match",
        "known",
        Severity.METRIC,
        _reaches("option"),
        "0.5.11",
        "",
        "a retraction ends a turn for its session, and the second one takes the session from it: all is computed again",
        references=("PR #40252, open, which ends its cause",),
    ),
    Triage(
        "accounting:I54:leak:session match",
        "known",
        Severity.LEAK,
        _reaches("guarded"),
        "0.5.10.post1",
        "0.5.10.post1",
        "what a turn allocated beyond its claim is lost when the next turn begins",
        references=("PR #22862",),
    ),
    Triage(
        "accounting:S4:session match",
        "known",
        Severity.METRIC,
        _reaches("guarded"),
        "0.5.10.post1",
        "0.5.10.post1",
        "the next turn computes a token again that its session has",
        references=("PR #22651",),
    ),
    Triage(
        "accounting:S1:session controller",
        "known",
        Severity.WRONG_RESULT,
        _reaches("option"),
        "0.5.11",
        "0.5.21",
        "after a turn that was aborted in the queue the session takes no other: it still counts it as running",
        references=("issue #31765", "PR #31767"),
    ),
    Triage(
        "accounting:S3:resolve",
        "known",
        Severity.METRIC,
        _reaches("option default"),
        "0.5.10.post1",
        "",
        "the batch's counter includes the drafts of finished and retracted requests, and so does what adapts to it",
        references=("review of PR #23456, not adopted", "issue #15690"),
    ),
    Triage(
        "accounting:I58:penalty feed",
        "known",
        Severity.WRONG_RESULT,
        _reaches("guarded option"),
        "0.5.11",
        "",
        "one token a launch is counted, the prompt's last one first: counts depend on the schedule",
        references=("PR #33643", "review of PR #22049"),
    ),
    Triage(
        "accounting:I59:penalty feed",
        "unknown",
        Severity.WRONG_RESULT,
        _reaches("guarded option"),
        "0.5.11",
        "",
        "a retracted request is prefilled with penalizers that know nothing of its outputs",
        upstream="penalties-forgotten-by-a-retraction",
    ),
    *(
        Triage(
            f"workers:draft extend after a {phase}:I48",
            "known",
            Severity.METRIC,
            _reaches("option"),
            "0.5.10.post1",
            "0.5.12.post1",
            "draft steps after the first read and write the KV pool of the first; verification stays exact, so that "
            "accepted lengths suffer and nothing else",
            references=("PR #22954, which assigns another field", "PR #25942"),
        )
        for phase in ("prefill", "decode")
    ),
    Triage(
        "workers:draft extend after a decode:W3",
        "known",
        Severity.UNDEFINED_BEHAVIOUR,
        _reaches("option"),
        "0.5.13",
        "0.5.15.post1",
        "without CUDA graphs only the first runner's attention metadata is planned, and each runner has its own",
        references=("a comment in the release's own source from 0.5.14 on",),
    ),
    Triage(
        "workers:penalties at verification:W1",
        "known",
        Severity.WRONG_RESULT,
        _reaches("option"),
        "0.5.10.post1",
        "0.5.10.post1",
        "penalties, logit bias and min_new_tokens are ignored",
        references=("PR #22049", "issue #11762"),
    ),
    Triage(
        "workers:penalties at verification:W2",
        "by design",
        Severity.BY_DESIGN,
        _reaches("option"),
        "0.5.11",
        "",
        "one row of penalties for all nodes of a tree; the source calls it a relaxed version",
        references=("PR #22049", "PR #40244 for DFLASH"),
    ),
    Triage(
        "workers:penalty feed:I58",
        "known",
        Severity.WRONG_RESULT,
        _reaches("option"),
        "0.5.11",
        "",
        "one token a launch is counted, the prompt's last one first: counts depend on the schedule",
        references=("PR #33643", "review of PR #22049"),
    ),
    Triage(
        "workers:penalties after a retraction:I59",
        "unknown",
        Severity.WRONG_RESULT,
        _reaches("option"),
        "0.5.11",
        "",
        "a retracted request is prefilled with penalizers that know nothing of its outputs",
        upstream="penalties-forgotten-by-a-retraction",
    ),
)
BY_SIGNATURE: dict[str, list[Triage]] = {}
for _entry in TRIAGE:
    BY_SIGNATURE.setdefault(_entry.signature, []).append(_entry)

NEW = "new: not in the table of known findings; look for a public report, then add it to triage.py"


def triage_of(signature: str, version: str | None) -> Triage | None:
    """The entry of a signature: of the span that has the version; the newest where no version is known or none has."""
    entries = BY_SIGNATURE.get(signature, [])
    return next((entry for entry in entries if version and entry.covers(version)), entries[-1] if entries else None)


def triage_line(finding: Finding, version: str | None) -> str:
    """What is known of a finding, one line, with a warning where the table says otherwise than the finding."""
    entry = triage_of(finding.signature, version)
    return entry.line + contradiction(entry, finding, version) if entry else NEW


def contradiction(entry: Triage, finding: Finding, version: str | None) -> str:
    """Where the entry and a finding differ, as text to append, "" where they agree."""
    if entry.severity != finding.severity:
        return f"; the table has severity {entry.severity}"
    if version and not entry.covers(version):
        return "; the table does not have it in this release"
    reach = finding.reach.split(":")[0]
    return "" if reach in entry.reaches else f"; the table does not have reach {reach}"
