"""What the lockstep interpreter raises."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

from specsim.errors import UsageError


class KernelError(Exception):
    """A kernel does what Triton does not allow; or does not end, or asks for more memory than it may have."""


class UnsupportedError(UsageError):
    """A kernel uses what the interpreter does not have. `names` says what, `places` gives the FILE:LINE of those that
    are known.
    """

    def __init__(self, kernel: str, names: tuple[str, ...], places: Mapping[str, str] = MappingProxyType({})) -> None:
        self.kernel, self.names, self.places = kernel, names, dict(places)
        shown = ", ".join(f"{name} ({places[name]})" if name in places else name for name in names)
        super().__init__(
            f"the lockstep interpreter does not have {shown}, which {kernel} uses",
            "run the kernel in Triton's own interpreter (TRITON_INTERPRET=1), or on a GPU",
        )
