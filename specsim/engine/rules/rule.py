"""A rule of the accounting tier, as an object that looks at a run.

One class is one rule. Its module is the concern that it belongs to, and `specsim.engine.rules.table` finds it there.
Rules speak of KVready and of owned slots, and never of an engine's field or convention.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

from specsim.engine.accounting import Observed
from specsim.engine.request import Request
from specsim.engine.rules.views import Shown
from specsim.verdict import Rule


@dataclass(frozen=True, slots=True)
class Broken:
    """A rule that does not hold. `part` names the function of the seam, `who` a request or launch; `aspect` tells apart
    two ways of breaking one rule. The run stops here unless it `can_go_on`. Then the accounting is set back to what it
    said before of a request, if `restores` names one, so that one defect does not hide another.
    """

    rule: Rule
    part: str
    who: str
    expected: Any
    actual: Any
    aspect: str = ""
    can_go_on: bool = False
    restores: tuple[Request, Observed] | None = None


class Check:
    """A rule and when it is evaluated.

    `rule`   its number, name, sentence and severity
    `after`  the events after which it is evaluated: classes of `specsim.engine.rules.views`. An instance is what the
             rule may read then
    """

    rule: ClassVar[Rule]
    after: ClassVar[tuple[type, ...]]

    def applies(self, shown: Shown) -> bool:
        """Whether a schedule that is over gave the rule anything to check. A rule to which nearly every schedule does
        leaves this out.
        """
        return True

    def check(self, view: Any) -> Broken | None:
        """None when the rule holds."""
        raise NotImplementedError

    def broken(
        self, part: str, who: str, expected: object, actual: object, aspect: str = "", *, can_go_on: bool = False
    ) -> Broken:
        return Broken(self.rule, part, who, expected, actual, aspect, can_go_on)
