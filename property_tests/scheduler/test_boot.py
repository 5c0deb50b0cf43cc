"""A release's own scheduler boots, and decodes four requests into what sequential decoding gives."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from property_tests.support.boot_scheduler import booted
from property_tests.support.known_releases import FEW, RELEASES
from specsim.lifting.source import SourceTree

CONFIGURATIONS = [{}, {"page_size": 16, "max_total_tokens": 256}, {"radix_cache": False, "chunked_prefill_size": 16}]
ONE = FEW[2]  # every run of the tests boots it
CASES = [(version, options) for version in (ONE, *(v for v in RELEASES if v != ONE)) for options in CONFIGURATIONS]


@pytest.mark.slow(runs_one_in=len(CASES))
@pytest.mark.parametrize(("version", "options"), CASES, ids=str)
def test_four_requests_decode_as_one_by_one(
    release: Callable[[str], SourceTree], version: str, options: dict[str, Any]
) -> None:
    release(version)
    answer = booted(version, options)
    assert {rid: output["token_ids"] for rid, output in answer["outputs"].items()} == answer["expected"]
    assert {output["finish_reason"]["type"] for output in answer["outputs"].values()} == {"length"}
    assert (answer["records"], answer["findings"]) == ([], [])
    assert set(answer["pools"].values()) == {True}


@pytest.mark.parametrize("version", [ONE, pytest.param(RELEASES[-1], marks=pytest.mark.slow)])
def test_a_release_boots_where_torch_is_built_for_cuda(release: Callable[[str], SourceTree], version: str) -> None:
    release(version)
    answer = booted(version, {}, "import torch; torch.version.cuda = '13.0'")
    assert {rid: output["token_ids"] for rid, output in answer["outputs"].items()} == answer["expected"]
