"""A release's pool of rows over the engine's own: what it hands out and takes back, the engine sees."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from property_tests.support.made_up_sources import MadeUpSource, cache_in
from specsim.engine.memory.rows import Rows
from specsim.engines.sglang import row_pool
from specsim.lifting.lift import DriftError, Lifter

POOL = """
import torch
from saver import TorchMemorySaverAdapter, GPU_MEMORY_TYPE_KV_CACHE


class ReqToTokenPool:
    def __init__(self, size, max_context_len, device, enable_memory_saver):
        self.size = size
        with TorchMemorySaverAdapter.create(enable=enable_memory_saver).region(GPU_MEMORY_TYPE_KV_CACHE):
            self.req_to_token = torch.zeros((size + PADDED, max_context_len), dtype=torch.int32, device=device)
        self.free_slots = list(range(PADDED, size + PADDED))

    def alloc(self, reqs):
        if len(reqs) > len(self.free_slots):
            return None
        taken, self.free_slots = self.free_slots[: len(reqs)], self.free_slots[len(reqs) :]
        for req, row in zip(reqs, taken):
            req.row = row
        return taken

    def free(self, req):
        self.free_slots.append(req.row)
        req.row = None
"""

Lifted = Callable[..., Any]


def lifted(folder: Path, padded: int, counted: Callable[[Lifted], Lifted] = lambda method: method) -> Any:
    source = MadeUpSource({"srt/mem_cache/memory_pool.py": POOL.replace("PADDED", str(padded))})
    return row_pool.lift_rows(Lifter(source, cache_in(folder), {}), {}, counted).pool


@pytest.fixture(scope="module")
def released(tmp_path_factory: pytest.TempPathFactory) -> Any:
    return lifted(tmp_path_factory.mktemp("pool"), 1)


@given(st.lists(st.integers(0, 3), max_size=20))
def test_what_the_pool_hands_out_is_not_free_for_the_engine_and_what_it_takes_back_is(
    released: Any, frees: list[int]
) -> None:
    rows = Rows(3, 4)
    pool = row_pool.make_rows(released, rows)
    taken: list[SimpleNamespace] = []
    for number in frees:
        if number < len(taken):
            pool.free(taken.pop(number))
        else:
            req = SimpleNamespace(row=None)
            if pool.alloc([req]) is None:
                assert not rows.free_rows
            else:
                taken.append(req)
        assert sorted([*rows.free_rows, *(req.row for req in taken)]) == [1, 2, 3]


def test_what_others_put_on_the_pools_list_the_engine_sees(released: Any) -> None:
    rows = Rows(2, 4)
    pool = row_pool.make_rows(released, rows)
    pool.alloc([SimpleNamespace(row=None)])
    pool.free_slots.append(1)
    assert sorted(rows.free_rows) == [1, 2]


def test_the_table_is_the_engines_buffer(released: Any) -> None:
    rows = Rows(2, 4)
    row_pool.make_rows(released, rows).req_to_token[2, 1] = 7
    assert rows.read(2, 0, 4) == [0, 7, 0, 0]


def test_a_pool_whose_first_row_is_a_requests_is_not_run(tmp_path: Path) -> None:
    with pytest.raises(DriftError, match="hands out row 0, and the engine keeps row 0 for padded batches"):
        lifted(tmp_path, 0)


def test_each_call_is_counted(tmp_path: Path) -> None:
    calls = []

    def counted(method: Lifted) -> Lifted:
        def count(*arguments: Any) -> Any:
            calls.append(method.__name__)
            return method(*arguments)

        return count

    pool = row_pool.make_rows(lifted(tmp_path, 1, counted), Rows(2, 4))
    req = SimpleNamespace(row=None)
    pool.alloc([req])
    pool.free(req)
    assert calls == ["alloc", "free"]
