"""What the lockstep interpreter raises."""

from __future__ import annotations

from specsim.errors import UsageError


class KernelError(Exception):
    """A kernel does what Triton does not allow; or does not end, or asks for more memory than it may have."""


class UnsupportedError(UsageError):
    """A kernel uses what the lockstep interpreter does not have: Triton's own may run it. `names` says what."""

    def __init__(self, kernel: str, names: tuple[str, ...]) -> None:
        self.kernel, self.names = kernel, names
        super().__init__(
            f"the lockstep interpreter does not have {', '.join(names)}, which {kernel} uses",
            "run the kernel in Triton's own interpreter (TRITON_INTERPRET=1), or on a GPU",
        )
