"""How large an error may be, as data: each budget in eps of its tier, with what was measured and why it grows."""

from __future__ import annotations

from dataclasses import dataclass
from fnmatch import fnmatchcase


@dataclass(frozen=True)
class Budget:
    """A bound on max|a - b| / (eps · max|reference|) for the tensors it names, and the reason for it.

    operator, case and quantity are patterns with * and ?; the first budget that fits decides.
    """

    eps: float
    reason: str
    tier: str
    operator: str = "*"
    case: str = "*"
    quantity: str = "*"

    def fits(self, operator: str, case: str, tier: str, quantity: str) -> bool:
        """Whether the budget is for that tensor."""
        pairs = ((tier, self.tier), (operator, self.operator), (case, self.case), (quantity, self.quantity))
        return all(fnmatchcase(name, pattern) for name, pattern in pairs)


BUDGETS: tuple[Budget, ...] = (
    Budget(400, "to be measured", "float64"),
    Budget(400, "to be measured", "float32"),
)


def budget_of(operator: str, case: str, tier: str, quantity: str) -> Budget:
    """The budget that decides on a tensor."""
    return next(budget for budget in BUDGETS if budget.fits(operator, case, tier, quantity))
