"""How a scheduler is configured, in the words of its own command line."""

from __future__ import annotations

from dataclasses import dataclass

from specsim.engines.sglang.scheduler.configuration import CONTEXT_LENGTH


@dataclass(frozen=True, slots=True)
class Options:
    """One configuration; drawn or written down before the scheduler is built, and never changed after that."""

    page_size: int = 1  # tokens
    max_total_tokens: int = 512  # slots of the pool; a multiple of page_size
    max_running_requests: int = 8
    chunked_prefill_size: int = 64  # tokens; -1 for no chunks
    num_draft_tokens: int = 4  # nodes of a tree, its root included
    sliding_window: int = 0  # tokens; 0 for a model without one
    radix_cache: bool = True
    streaming_sessions: bool = False
    mixed_chunk: bool = False
    priority_scheduling: bool = False
    overlap: bool = True
    schedule_conservativeness: float = 1.0  # how much of the answers to come admission reserves
    context_length: int = CONTEXT_LENGTH  # tokens
    worker: str = "fake"  # or "release", for the release's own
    topk: int = 1  # branches of a draft's step
    cuda_graphs: bool = False  # of the passes of decoding, captured for batches of several sizes
    beyond_guards: bool = False  # runs what the release's arguments refuse
    drafter: str = "eagle"  # or "standalone" or "ngram"
    multi_layer: bool = False  # a draft model for each step, with a pool of KV of its own
    rust_tree: bool = False  # the radix tree in Rust, of a release that has it in Python, too
    adaptive: bool = False  # the depth of a draft follows how many drafts are accepted
    hidden_states: bool = False  # requests may ask for them
    kv_events: bool = False  # what the prefix cache holds is published
    hicache: str = ""  # when the KV of the prefix cache is copied to the host; "" for never
    window_lag: int = 0  # tokens that slide out of a window before their KV is given back; 0 for the release's own
    num_steps: int = 0  # depth of a draft; 0 for num_draft_tokens - 1

    @property
    def steps(self) -> int:
        return self.num_steps or self.num_draft_tokens - 1

    @property
    def window_slots(self) -> int:
        """Slots of the sliding window's pool: half of the other one, in whole pages; 0 without a window."""
        return self.max_total_tokens // 2 // self.page_size * self.page_size if self.sliding_window else 0
