"""Public modules that moved import by their old names, as the same modules, with a warning that says the new one."""

from __future__ import annotations

import importlib
import sys

import pytest

MOVED = {
    "specsim.ops.registry": ("specsim.contracts.registry", ["OPS", "REFERENCE"]),
    "specsim.ops.contract": ("specsim.contracts.contract", ["Op", "Case", "TensorArg", "ScalarArg", "Role"]),
    "specsim.ops.provider": ("specsim.contracts.provider", ["Provider", "Subject", "NotCalledError"]),
    "specsim.ops.losslessness": ("specsim.contracts.losslessness", ["distance", "distances"]),
    "specsim.diff": ("specsim.interpreter", ["sanitize", "corners", "Report", "Flaw"]),
    "specsim.check.extension": ("specsim.rules.extension", ["Extension"]),
    "specsim.explore.chooser": ("specsim.choices.chooser", ["Chooser", "seeded", "replayed", "between", "pick"]),
}


@pytest.mark.parametrize("old", MOVED)
def test_a_public_module_that_moved_is_the_same_module_by_its_old_name(
    old: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    new, names = MOVED[old]
    package = ".".join(old.split(".")[:2])
    for name in {old, package} & set(sys.modules):
        monkeypatch.delitem(sys.modules, name)
    with pytest.warns(DeprecationWarning, match=f"{package} and its modules are now specsim"):
        by_old_name = importlib.import_module(old)
    module = importlib.import_module(new)
    assert by_old_name is module
    assert (module.__name__, module.__spec__ and module.__spec__.name) == (new, new)
    assert [name for name in names if not hasattr(module, name)] == []


@pytest.mark.filterwarnings("ignore:specsim.ops:DeprecationWarning")
def test_an_old_name_of_nothing_is_not_found() -> None:
    with pytest.raises(ModuleNotFoundError, match=r"specsim\.contracts\.nothing"):
        importlib.import_module("specsim.ops.nothing")
