"""specsim: deterministic simulation testing for speculative decoding in LLM inference."""

from typing import TYPE_CHECKING

DISTRIBUTION = "specsim-llm"
"""What pip calls this package."""

if TYPE_CHECKING:
    __version__: str
else:

    def __getattr__(name: str) -> str:
        """`__version__`, looked up when it is needed: reading metadata takes longer than `specsim --help` may."""
        if name != "__version__":
            raise AttributeError(f"module 'specsim' has no attribute {name!r}")
        from importlib.metadata import PackageNotFoundError, version

        try:
            return version(DISTRIBUTION)
        except PackageNotFoundError:  # a source tree on the path, not installed
            return "0+unknown"
