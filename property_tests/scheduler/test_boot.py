"""A release's own scheduler boots, and decodes four requests into what sequential decoding gives."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from property_tests.support.boot_scheduler import decoded
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
    answer = decoded(version, options)
    assert {output["finish_reason"]["type"] for output in answer["outputs"].values()} == {"length"}
    assert (answer["records"], answer["findings"]) == ([], [])


@pytest.mark.parametrize("version", [ONE, pytest.param(RELEASES[-1], marks=pytest.mark.slow)])
def test_a_release_boots_where_torch_is_built_for_cuda(release: Callable[[str], SourceTree], version: str) -> None:
    release(version)
    decoded(version, {}, "import torch; torch.version.cuda = '13.0'")
