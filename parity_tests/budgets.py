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


SATURATED = (
    "tanh' = 1 - tanh² loses its leading digits where tanh is near 1, and only such elements remain; worst seen {worst}"
)
CANCELLING = (
    "the query moves all scores of a row nearly alike, and the softmax takes that back: W_q's gradient is a small "
    "difference of large sums, over all steps; worst seen {worst}"
)
PROJECTED = "gradients pass the softmax and the tanh, and are sums over queries and keys; worst seen {worst}"
RECURRENT = "sums over batch and steps, of gates to which each step adds its rounding; worst seen {worst}"
SHORT = "a few sums of at most ten products, and one exponential; worst seen {worst}"

BUDGETS: tuple[Budget, ...] = (
    Budget(450, SATURATED.format(worst=206), "float64", case="additive_score-large"),
    Budget(50, SATURATED.format(worst=19), "float32", case="additive_score-large"),
    Budget(400, CANCELLING.format(worst=129), "float64", "BahdanauDecoder", quantity="gradient_attention.W_q"),
    Budget(500, CANCELLING.format(worst=170), "float32", "BahdanauDecoder", quantity="gradient_attention.W_q"),
    Budget(75, PROJECTED.format(worst=26), "float*", "AdditiveAttention"),
    Budget(40, RECURRENT.format(worst=13), "float*", "BahdanauDecoder"),
    Budget(20, RECURRENT.format(worst=5.7), "float*", "GRU*"),
    Budget(20, RECURRENT.format(worst=2.4), "float*", "sentences"),
    Budget(15, SHORT.format(worst=4.9), "float*"),
)
"""float64: 450 eps are 1e-13 of the largest entry."""


def budget_of(operator: str, case: str, tier: str, quantity: str) -> Budget:
    """The budget that decides on a tensor."""
    return next(budget for budget in BUDGETS if budget.fits(operator, case, tier, quantity))
