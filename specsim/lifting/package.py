"""A Python package that is read and never imported, and the ways in which it lies on a disk."""

from __future__ import annotations

from dataclasses import dataclass

from specsim.errors import UsageError


@dataclass(frozen=True, slots=True)
class Package:
    """`name` is what messages call it, `folder` its import name, which is its name for pip too, `within` the folder of
    its repository that has it, and `marker` a folder that it alone has.
    """

    name: str
    folder: str
    within: str
    marker: str

    @property
    def layouts(self) -> tuple[str, ...]:
        """A repository, an unpacked wheel, the package folder itself."""
        return tuple(dict.fromkeys((f"{self.within}{self.folder}", self.folder, "")))

    @property
    def give(self) -> str:
        return f"give a checkout of {self.name}'s repository, an unpacked wheel or the package folder"

    def missing(self, label: str) -> UsageError:
        places = [f"{layout}/{self.marker}".lstrip("/") for layout in self.layouts]
        return UsageError(
            f"{label} is not {self.name}: there is no {', '.join(places[:-1])} or {places[-1]} in it", self.give
        )
