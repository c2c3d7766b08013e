"""How large an error may be, as data: each budget in eps of its tier, with what was measured and why it grows."""

from __future__ import annotations

import functools
import math
from collections.abc import Iterable
from dataclasses import dataclass
from fnmatch import fnmatchcase


@dataclass(frozen=True)
class Budget:
    """A bound on max|a - b| / (eps · max|reference|) for the tensors it names, the worst seen, and why it grows.

    tiers are names; operator, case and quantity are patterns with * and ?; the first budget that fits decides. Where a
    tensor is 0 but for rounding, beside names the quantity whose largest entry its errors are measured by, too. What is
    shown is measured and printed, and not judged: its eps say nothing.
    """

    eps: float
    worst: float
    grows: str
    tiers: tuple[str, ...]
    operator: str = "*"
    case: str = "*"
    quantity: str = "*"
    beside: str = ""
    shown: bool = False

    @property
    def reason(self) -> str:
        """Why the budget is what it is."""
        return f"{self.grows}; worst seen {self.worst:g}"

    def fits(self, operator: str, case: str, tier: str, quantity: str) -> bool:
        """Whether the budget is for that tensor."""
        pairs = ((operator, self.operator), (case, self.case), (quantity, self.quantity))
        return tier in self.tiers and all(fnmatchcase(name, pattern) for name, pattern in pairs)


@dataclass(frozen=True)
class EntryBudget(Budget):
    """A bound on max(|a - b| / (eps · |reference|)) over the entries, each measured by itself.

    Where the last axis holds the weights of a softmax, eps counts 1 + |ln w| times, w being the smallest weight of the
    row: so far apart do its scores lie, and rounding moves them, and with them every weight, by eps times that.
    """

    softmax: bool = False


DOUBLE, SINGLE, HALF = ("float64",), ("float32",), ("float16", "bfloat16")

SATURATED = "tanh' = 1 - tanh² loses its leading digits where tanh is near 1, and only such elements remain"
CANCELLING = (
    "the query moves all scores of a row nearly alike, and the softmax takes that back: W_q's gradient is a small "
    "difference of large sums, over all steps"
)
PROJECTED = "gradients pass the softmax and the tanh, and are sums over queries and keys"
RECURRENT = "sums over batch and steps, of gates to which each step adds its rounding"
TRAJECTORY = "a training is a recurrence over its steps, and each adds the rounding of its gradients"
DIVIDED = (
    "Adam divides a gradient by its own size: a small difference of large sums moves a parameter as far as any other"
)
LONGER = "the same, over a hundred steps"
LATER = "a float32 training of more than 50 steps: rounding grows from step to step, without a bound that is known"

SHORT = "a few sums of at most ten products, and one exponential"

SHIFT = "a bias of the keys moves all scores of a row alike, which the softmax takes back: 0 but for rounding"

SINGLE_KEY = "a single key has weight 1, whatever its score: terms that cancel, which fused kernels add otherwise"

SUMMED = "one number, to which every pair of query and key adds a term of either sign: small beside the terms"
CENTRED = "gradients pass the softmax, the window's Gaussian and the sigmoid of its centre"

APART = "scores to ±40, of larger terms: the exponential turns the eps of a score into as much of a weight"

SOFTMAX = "an exponential of each gap between given scores, and their sum"
SCORED = "scores are sums of products, whose rounding the exponential turns into as much of each weight"
CANCELLED = "the same, of scores that are small beside their terms"
PREDICTED = "the same, and a Gaussian of the distance from a predicted centre"
SQUARES = "a sum of squares, of which none is taken away"
COPIED = "a copy: nothing is rounded"
ADDED = "a single sum"

WIDE = "sums over as many products as a real layer is wide: 512 features and 10,000 tokens when this was measured"
CONSTANT = "0, -inf or the least finite number: nothing is rounded"

BUDGETS: tuple[Budget, ...] = (
    Budget(100, 18, WIDE, DOUBLE + SINGLE, case="*-converted*"),
    Budget(0, 0, CONSTANT, DOUBLE + SINGLE + HALF, "to_additive_mask"),
    Budget(
        0.5,
        0.13,
        SINGLE_KEY,
        DOUBLE + SINGLE,
        "MultiHeadAttention",
        case="*-one_key",
        quantity="gradient_*[qk]*",
        beside="gradient_values",
    ),
    Budget(15, 5, SHIFT, DOUBLE + SINGLE, "MultiHeadAttention", quantity="gradient_b_k", beside="gradient_W_k"),
    Budget(7.5, 2.5, SHIFT, HALF, "MultiHeadAttention", quantity="gradient_b_k", beside="gradient_W_k"),
    Budget(15, 5, SHORT, DOUBLE + SINGLE, "gaussian_score"),
    Budget(300, 75, SUMMED, DOUBLE + SINGLE, quantity="gradient_*w", beside="gradient_queries"),
    Budget(200, 76, APART, DOUBLE + SINGLE, "ConcatAttention", case="*-gap_*"),
    Budget(50, 19, APART, DOUBLE + SINGLE, case="*Attention-gap_*"),
    Budget(450, 206, SATURATED, DOUBLE, case="additive_score-large"),
    Budget(300, 99, SATURATED, SINGLE, case="additive_score-large"),
    Budget(400, 129, CANCELLING, DOUBLE, "BahdanauDecoder", quantity="gradient_attention.W_q"),
    Budget(500, 170, CANCELLING, SINGLE, "BahdanauDecoder", quantity="gradient_attention.W_q"),
    Budget(150, 50, PROJECTED, DOUBLE + SINGLE, "AdditiveAttention"),
    Budget(150, 38, PROJECTED, DOUBLE + SINGLE, "ConcatAttention"),
    Budget(150, 53, PROJECTED, DOUBLE + SINGLE, "MultiHeadAttention"),
    Budget(150, 43, CENTRED, DOUBLE + SINGLE, "LocalAttention"),
    Budget(50, 14, PROJECTED, DOUBLE + SINGLE, "NadarayaWatson"),
    Budget(50, 12, PROJECTED, DOUBLE + SINGLE, "KernelAttention"),
    Budget(75, 26, RECURRENT, DOUBLE + SINGLE, "LuongDecoder"),
    Budget(75, 28, RECURRENT, DOUBLE + SINGLE, "BahdanauDecoder"),
    Budget(30, 9.9, RECURRENT, DOUBLE + SINGLE, "FixedContextDecoder"),
    Budget(20, 6.9, RECURRENT, DOUBLE + SINGLE, "GRU*"),
    Budget(20, 7, RECURRENT, DOUBLE + SINGLE, "LSTM*"),
    Budget(0, 0, LATER, SINGLE, "training", quantity="later_*", shown=True),
    Budget(0, 0, LATER, SINGLE, "training", quantity="trained_*", shown=True),
    Budget(0, 0, LATER, SINGLE, "training", quantity="evaluated", shown=True),
    Budget(1000, 369, DIVIDED, DOUBLE, "training", quantity="trained_decoder.attention.W_q"),
    Budget(300, 92, LONGER, DOUBLE, "training", quantity="later_*"),
    Budget(200, 57, TRAJECTORY, DOUBLE, "training", quantity="trained_*"),
    Budget(30, 7.3, TRAJECTORY, DOUBLE + SINGLE, "training"),
    Budget(
        20,
        6.6,
        CANCELLING,
        DOUBLE + SINGLE,
        "Translator",
        quantity="gradient_decoder.attention.W_q",
        beside="gradient_decoder.attention.W_k",
    ),
    Budget(100, 39, RECURRENT, DOUBLE + SINGLE, "Translator"),
    Budget(15, 5, SHORT, DOUBLE + SINGLE),
    Budget(20, 6.6, RECURRENT, HALF, "BahdanauDecoder"),
    Budget(15, 5.3, PROJECTED, HALF, "AdditiveAttention"),
    Budget(15, 7.3, PROJECTED, HALF, "ConcatAttention"),
    Budget(30, 6.9, SUMMED, HALF, "KernelAttention", quantity="gradient_w"),
    Budget(15, 5.2, RECURRENT, HALF, "Translator"),
    Budget(10, 3.2, RECURRENT, HALF, "GRU*"),
    Budget(20, 5.8, RECURRENT, HALF, "LSTM*"),
    Budget(15, 3.4, RECURRENT, HALF, "LuongDecoder"),
    Budget(7.5, 2.9, SHORT, HALF),
)
"""float64: 450 eps are 1e-13 of the largest entry."""


ENTRY_BUDGETS: tuple[EntryBudget, ...] = (
    EntryBudget(2, 0.8, SOFTMAX, DOUBLE + SINGLE + HALF, "masked_softmax", quantity="weights", softmax=True),
    EntryBudget(2, 0.75, SOFTMAX, DOUBLE + SINGLE + HALF, "attention_pooling", quantity="weights", softmax=True),
    EntryBudget(20, 8, PREDICTED, DOUBLE + SINGLE, "LocalAttention", quantity="weights", softmax=True),
    EntryBudget(30, 12, CANCELLED, DOUBLE + SINGLE, "ConcatAttention", quantity="weights", softmax=True),
    EntryBudget(10, 4.5, SCORED, DOUBLE + SINGLE, quantity="weights", softmax=True),
    EntryBudget(3, 1.4, SCORED, HALF, quantity="weights", softmax=True),
    EntryBudget(3, 1.4, SQUARES, DOUBLE + SINGLE + HALF, "gaussian_score", quantity="scores"),
    EntryBudget(0, 0, COPIED, DOUBLE + SINGLE + HALF, "location_score", quantity="scores"),
    EntryBudget(1, 0.5, ADDED, DOUBLE + SINGLE + HALF, "LearnedPositions", quantity="outputs"),
)
"""What has no budget here has small entries that are differences of large numbers, as contexts and gradients have."""


@functools.lru_cache(maxsize=4096)
def budget_of(operator: str, case: str, tier: str, quantity: str) -> Budget:
    """The budget that decides on a tensor."""
    return next(budget for budget in BUDGETS if budget.fits(operator, case, tier, quantity))


@functools.lru_cache(maxsize=4096)
def entry_budget_of(operator: str, case: str, tier: str, quantity: str) -> EntryBudget | None:
    """The budget that decides on each entry of a tensor; None where the small ones cannot be asked for."""
    return next((budget for budget in ENTRY_BUDGETS if budget.fits(operator, case, tier, quantity)), None)


# ------------------------------------------------------------------------------------------------ calibration

MARGIN = 3.0
TIGHT, LOOSE = 2.0, 10.0


@dataclass(frozen=True)
class Calibration:
    """A budget beside what a run measured: the worst error, where it was, and the budget that this would give."""

    budget: Budget
    measured: float
    where: str

    @property
    def worst(self) -> float:
        """The worst error ever seen: in this run, or when the budget was set."""
        return max(self.measured, self.budget.worst)

    @property
    def proposed(self) -> float:
        """MARGIN times the worst error, rounded up; the present budget as long as it is TIGHT to LOOSE times that."""
        if TIGHT * self.worst <= self.budget.eps <= LOOSE * self.worst:
            return self.budget.eps
        return rounded_up(MARGIN * self.worst)


def calibrate(measured: Iterable[tuple[Budget, float, str]]) -> list[Calibration]:
    """The worst of the measured errors for every budget that decided on one, in the order of the budgets.

    measured holds, for each tensor, its budget, its error in eps, and where that was.
    """
    worst: dict[Budget, Calibration] = {}
    for budget, error, where in measured:
        if budget not in worst or error > worst[budget].measured:
            worst[budget] = Calibration(budget, error, where)
    return [worst[budget] for budget in (*BUDGETS, *ENTRY_BUDGETS) if budget in worst]


def rounded_up(value: float) -> float:
    """The next larger of 1, 1.5, 2, 3, 4, 5, 7.5 times a power of ten."""
    power = 10.0 ** math.floor(math.log10(value)) if value > 0.0 else 1.0
    return next(step * power for step in (1, 1.5, 2, 3, 4, 5, 7.5, 10) if step * power >= value * (1 - 1e-12))
