"""SGLang's own sizing of its pools: how many KV slots and rows a server has, of the memory that is left for them.

The release's function runs whole on an object of ours; profiling alone is ours, for there is no device whose memory
could be looked at. What is left is a little less than one more page than the schedule's pool has, a made-up number of
bytes a token. A server is launched with so many requests at most as the schedule has rows.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

from specsim.engine.accounting import HostFunctionError
from specsim.engine.config import EngineConfig
from specsim.engine.rules.liveness import DeviceException
from specsim.engines.sglang import host_names as names
from specsim.engines.sglang import host_objects as objects

BYTES_OF_A_TOKEN = 24


class PoolSizes(NamedTuple):
    """`slots` of KV, and `rows` of `req_to_token`, which are also how many requests may run."""

    slots: int
    rows: int


class AnyConfigurator:
    """`MemoryPoolConfigurator`, of which everything is the release's."""


class ConfiguratorFields:
    """`DefaultPoolConfigurator`, of a model that keeps keys and values for every token."""

    _cell_size = BYTES_OF_A_TOKEN
    _fixed_overhead_bytes = 0

    def __getattr__(self, name: str) -> Any:
        raise objects.StubError("DefaultPoolConfigurator", name)


class SizerFields:
    """`KVCacheConfigurator`, or the part of `ModelRunner` that it was."""

    pp_size = dp_size = attn_dp_size = 1
    mambaish_config = None
    ps = objects.StrictFields("ParallelState", attn_dp_size=1, pp_size=1)
    is_hybrid_swa = is_draft_worker = False

    def __init__(self, config: EngineConfig, options: objects.StrictFields) -> None:
        self.server_args = options
        self.model_config = objects.StrictFields("ModelConfig", context_len=config.context_len + names.CONTEXT_UNUSED)
        self.bytes_left = budget_tokens(config) * BYTES_OF_A_TOKEN + BYTES_OF_A_TOKEN - 1

    def __getattr__(self, name: str) -> Any:
        raise objects.StubError("KVCacheConfigurator", name)

    def _profile_available_bytes(self, _pre_model_load_memory: int) -> int:
        return self.bytes_left

    def profile_max_num_token(self, _pre_model_load_memory: int) -> int:
        return self.bytes_left // BYTES_OF_A_TOKEN


def budget_tokens(config: EngineConfig) -> int:
    """Tokens that there is memory for: one less than another page would need."""
    return config.pool_slots + config.page_size - 1


def pool_sizes(size: Callable[[Any], Any], sizer: SizerFields, config: EngineConfig) -> PoolSizes:
    """What the release makes of the memory. HostFunctionError for more than there is."""
    sized = size(sizer)
    slots, most = sized.max_total_num_tokens, budget_tokens(config)
    if slots > most:
        raise HostFunctionError(names.POOL_SIZE.part, f"{slots} slots in the memory of {most}", DeviceException.rule)
    return PoolSizes(slots, sized.max_running_requests)
