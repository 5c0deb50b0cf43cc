"""What is known of the findings that other packages than SGLang show: one entry a signature, printed beside a finding.

A finding is *known* (there is a public report of it or of its like), a deviation *by design*, or *unknown*: there is no
public report of it, and a text ready to send under docs/upstream. What is not in the table is new.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

NEW = "new: there is no entry for it"


@dataclass(frozen=True, slots=True)
class Known:
    """`text` is one sentence, `references` public reports and reviews, or the text to send."""

    package: str
    signature: str
    kind: Literal["known", "by design", "unknown"]
    text: str
    references: tuple[str, ...] = ()


_AT_EQUALITY = (
    "a draft is accepted when p / q equals the coin, and so at coin 0 also one of probability 0; coins are float64, "
    "of which one in 2^53 is 0"
)

TABLE: tuple[Known, ...] = (
    Known(
        "vllm",
        "ops:verify_ragged_rejection:kernel:verify_ragged_rejection:coin-0",
        "known",
        _AT_EQUALITY,
        references=("SGLang #35771", "SGLang #35798"),
    ),
    Known(
        "vllm",
        "ops:verify_ragged_sampled:kernel:verify_ragged_sampled:coin-0",
        "known",
        f"its kernel's defect: {_AT_EQUALITY}",
        references=("SGLang #35771", "SGLang #35798"),
    ),
    Known(
        "sglang-kernel",
        "ops:verify_tree_target_only:kernel:verify_tree_target_only",
        "known",
        "a child is accepted when its share equals the coin, and so at coin 0 also one of probability 0",
        references=("SGLang #35771", "SGLang #35798"),
    ),
    Known(
        "sglang-kernel",
        "ops:apply_token_bitmask:kernel:apply_token_bitmask",
        "unknown",
        "the process ends by SIGFPE where no row is to be masked",
        references=("docs/upstream/bitmask-of-no-rows.md",),
    ),
)


def triage_line(package: str, signature: str) -> str:
    """What is known of a package's finding of that signature, one line."""
    wanted = "sglang-kernel" if package == "sgl-kernel" else package
    for known in TABLE:
        if (known.package, known.signature) == (wanted, signature):
            see = "to send" if known.kind == "unknown" else "the like"
            return f"{known.kind}: {known.text} ({see}: {', '.join(known.references)})"
    return NEW
