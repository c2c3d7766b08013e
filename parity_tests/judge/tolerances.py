"""The tolerances, as data: each in eps of its dtype, with the largest measured error and the reason why it grows."""

from __future__ import annotations

import functools
import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from fnmatch import fnmatchcase

from parity_tests.cases.training import LONG_TRAININGS

ORDINARY, DRAWN_ORDINARY = 0.425, 0.25
"""The part of a tolerance that a condition may have before the tolerance grows: no plain case has more, and drawn cases
may have numbers of which a right layer's error is 3.6 conditions.
"""


@dataclass(frozen=True)
class Tolerance:
    """A bound on max|a - b| / (eps · max|reference|) for some tensors, the largest measured error, and why it grows.

    dtypes are names; operator, case and quantity are patterns with * and ?; the first match applies. If a tensor is 0
    up to rounding, beside is the quantity whose largest entry also scales its errors, with the same text for a *. Where
    the condition exceeds the ordinary part of eps, an error may be larger. An informational tolerance has no effect on
    the verdict: errors are measured and printed, and its eps is unused.
    """

    eps: float
    worst: float
    grows: str
    dtypes: tuple[str, ...]
    operator: str = "*"
    case: str = "*"
    quantity: str = "*"
    beside: str = ""
    informational: bool = False
    ordinary: float = ORDINARY

    @property
    def reason(self) -> str:
        """The reason for the tolerance."""
        return f"{self.grows}; largest measured error {self.worst:g}"

    def beside_of(self, quantity: str) -> str:
        """The quantity beside that one, or nothing."""
        before, _, after = self.quantity.partition("*")
        return self.beside.replace("*", quantity.removeprefix(before).removesuffix(after))

    def fits(self, operator: str, case: str, dtype: str, quantity: str) -> bool:
        """Whether the tolerance applies to that tensor."""
        pairs = ((operator, self.operator), (case, self.case), (quantity, self.quantity))
        return dtype in self.dtypes and all(fnmatchcase(name, pattern) for name, pattern in pairs)


@dataclass(frozen=True)
class EntryTolerance(Tolerance):
    """A bound on max(|a - b| / (eps · |reference|)) over the entries, each measured by itself.

    If the last axis contains the weights of a softmax, eps is multiplied by 1 + |ln w|, w being the smallest weight of
    the row: |ln w| is the range of the row's scores, and rounding changes them, and thus every weight, by eps times
    that range.
    """

    softmax: bool = False


DOUBLE, SINGLE, HALF = ("float64",), ("float32",), ("float16", "bfloat16")

SATURATED = "tanh' = 1 - tanh² loses its leading digits where tanh is near 1, and only such elements remain"
CANCELLING = (
    "the query shifts all scores of a row almost equally, and softmax is invariant to a shift: W_q's gradient is a "
    "small "
    "difference of large sums, over all steps"
)
PROJECTED = "gradients pass the softmax and the tanh, and are sums over queries and keys"
TWICE = "two attentions of several heads, one of which reads what the other returns"
PLACED = "scores are sums of two, by content and by distance; gradients are sums over queries and keys"
RECURRENT = "sums over batch and steps, of gates to which each step adds its rounding"
TRAJECTORY = "a training is a recurrence over its steps, and each adds the rounding of its gradients"
DIVIDED = (
    "Adam divides a gradient by its own size: a small difference of large sums moves a parameter as far as any other"
)
LONGER = "the same, over a hundred steps"
LATER = "a float32 training of more than 50 steps: rounding grows from step to step, without a known bound"

SHORT = "a few sums of at most ten products, and one exponential"

SHIFT = "a bias of the keys shifts all scores of a row; softmax is invariant to this: 0 up to rounding"

SINGLE_KEY = "a single key has weight 1, whatever its score: terms cancel, and fused kernels add them in another order"

GATHERED = "inducing points gather nearly the same: what decides between them is a small difference of large numbers"

SUMMED = "one number, to which every pair of query and key adds a term of either sign: small beside the terms"
CENTRED = "gradients pass the softmax, the window's Gaussian and the sigmoid of its centre"

APART = "scores to ±40, of larger terms: the exponential turns the eps of a score into as much of a weight"

SOFTMAX = "an exponential of each gap between input scores, and their sum"
SCORED = "scores are sums of products, whose rounding the exponential turns into as much of each weight"
CANCELLED = "the same, of scores that are small beside their terms"
PREDICTED = "the same, and a Gaussian of the distance from a predicted centre"
NORMALIZED = "the same, through several normalizations, each of which takes small differences of what it reads"
SQUARES = "a sum of squares, without cancellation"
COPIED = "a copy: nothing is rounded"
ADDED = "a single sum"
BUCKETED = "a sum over all pairs in a bucket"
SLOPED = "a product with a rounded slope"
MULTIPLIED = "slopes that are multiplied up from the first one, as published: an eps for every other of up to 128 heads"

WIDE = "sums over as many products as a real layer is wide: 512 features and 10,000 tokens when this was measured"
AVERAGED = "gradients of queries and keys are differences of averages that weigh all values almost alike"
MOVED = "numbers change their places: nothing is rounded"
CONSTANT = "0, -inf or the least finite number: nothing is rounded"

UNSEEN = (
    "a bias that all keys share has the gradient 0 with products as scores: Adam divides its rounding by the root of "
    "its square, and moves it by whole steps"
)

TOLERANCES: tuple[Tolerance, ...] = (
    Tolerance(100, 18, WIDE, DOUBLE + SINGLE, case="*-converted*"),
    Tolerance(0, 0, CONSTANT, DOUBLE + SINGLE + HALF, "to_additive_mask"),
    Tolerance(0, 0, MOVED, DOUBLE + SINGLE + HALF, "patches"),
    Tolerance(
        0.5,
        0.13,
        SINGLE_KEY,
        DOUBLE + SINGLE,
        "MultiHeadAttention",
        case="*-one_key",
        quantity="gradient_*[qk]*",
        beside="gradient_values",
    ),
    Tolerance(
        1.5,
        0.46,
        SINGLE_KEY,
        DOUBLE + SINGLE,
        "linear_attention",
        case="*-one_key",
        quantity="gradient_[qk]*",
        beside="gradient_values",
    ),
    *(
        Tolerance(eps, worst, GATHERED, dtypes, "InducedAttention", quantity=quantity, beside="gradient_spread.W_v")
        for quantity in ("gradient_*[qk]*", "gradient_inducing")
        for eps, worst, dtypes in ((50, 17.5, DOUBLE + SINGLE), (15, 4.1, HALF))
    ),
    Tolerance(75, 30, SHIFT, DOUBLE + SINGLE, "Transformer*", quantity="gradient_*b_k", beside="gradient_*W_k"),
    Tolerance(15, 5, SHIFT, DOUBLE + SINGLE, quantity="gradient_*b_k", beside="gradient_*W_k"),
    Tolerance(7.5, 2.5, SHIFT, HALF, quantity="gradient_*b_k", beside="gradient_*W_k"),
    Tolerance(15, 5, SHORT, DOUBLE + SINGLE, "gaussian_score"),
    Tolerance(300, 75, SUMMED, DOUBLE + SINGLE, quantity="gradient_*w", beside="gradient_queries"),
    Tolerance(200, 76, APART, DOUBLE + SINGLE, "ConcatAttention", case="*-gap_*"),
    Tolerance(50, 19, APART, DOUBLE + SINGLE, case="*Attention-gap_*"),
    Tolerance(450, 206, SATURATED, DOUBLE, case="additive_score-large"),
    Tolerance(300, 99, SATURATED, SINGLE, case="additive_score-large"),
    Tolerance(400, 129, CANCELLING, DOUBLE, "BahdanauDecoder", quantity="gradient_attention.W_q"),
    Tolerance(500, 170, CANCELLING, SINGLE, "BahdanauDecoder", quantity="gradient_attention.W_q"),
    Tolerance(150, 50, PROJECTED, DOUBLE + SINGLE, "AdditiveAttention"),
    Tolerance(150, 38, PROJECTED, DOUBLE + SINGLE, "ConcatAttention"),
    Tolerance(150, 53, PROJECTED, DOUBLE + SINGLE, "MultiHeadAttention"),
    Tolerance(50, 13, TWICE, DOUBLE + SINGLE, "InducedAttention"),
    Tolerance(50, 12, PLACED, DOUBLE + SINGLE, "SegmentAttention"),
    Tolerance(300, 137, NORMALIZED, DOUBLE + SINGLE, "TransformerDecoder*"),
    Tolerance(75, 25, NORMALIZED, DOUBLE + SINGLE, "TransformerEncoder*"),
    Tolerance(50, 17, NORMALIZED, DOUBLE + SINGLE, "VisionTransformer"),
    Tolerance(150, 43, CENTRED, DOUBLE + SINGLE, "LocalAttention"),
    Tolerance(50, 14, PROJECTED, DOUBLE + SINGLE, "NadarayaWatson"),
    Tolerance(50, 12, PROJECTED, DOUBLE + SINGLE, "KernelAttention"),
    Tolerance(40, 11, PROJECTED, DOUBLE + SINGLE, "HardAttention", quantity="gradient_[!v]*"),
    Tolerance(75, 26, RECURRENT, DOUBLE + SINGLE, "LuongDecoder"),
    Tolerance(75, 28, RECURRENT, DOUBLE + SINGLE, "BahdanauDecoder"),
    Tolerance(30, 9.9, RECURRENT, DOUBLE + SINGLE, "FixedContextDecoder"),
    Tolerance(20, 6.9, RECURRENT, DOUBLE + SINGLE, "GRU*"),
    Tolerance(20, 7, RECURRENT, DOUBLE + SINGLE, "LSTM*"),
    Tolerance(0, 0, LATER, SINGLE, "training", quantity="later_*", informational=True),
    *(
        Tolerance(0, 0, UNSEEN, DOUBLE + SINGLE, "training", f"training-{label}", "trained_*b_k", informational=True)
        for label in ("transformer_adam", "transformer_dropout")
    ),
    *(
        Tolerance(0, 0, LATER, SINGLE, "training", f"training-{label}", quantity, informational=True)
        for label in LONG_TRAININGS
        for quantity in ("trained_*", "evaluated")
    ),
    Tolerance(1000, 417, DIVIDED, DOUBLE + SINGLE, "training", quantity="trained_decoder.attention.W_q"),
    Tolerance(300, 92, LONGER, DOUBLE, "training", quantity="later_*"),
    Tolerance(200, 57, TRAJECTORY, DOUBLE, "training", quantity="trained_*"),
    Tolerance(30, 7.3, TRAJECTORY, DOUBLE + SINGLE, "training"),
    Tolerance(
        20,
        6.6,
        CANCELLING,
        DOUBLE + SINGLE,
        "Translator",
        quantity="gradient_decoder.attention.W_q",
        beside="gradient_decoder.attention.W_k",
    ),
    Tolerance(100, 39, RECURRENT, DOUBLE + SINGLE, "Translator"),
    Tolerance(150, 48, NORMALIZED, DOUBLE + SINGLE, "TransformerTranslator"),
    Tolerance(50, 18, AVERAGED, DOUBLE + SINGLE, "linear_attention*"),
    Tolerance(15, 5.1, BUCKETED, DOUBLE + SINGLE, "relative_bias"),
    Tolerance(15, 5, SHORT, DOUBLE + SINGLE),
    Tolerance(20, 6.6, RECURRENT, HALF, "BahdanauDecoder"),
    Tolerance(15, 5.3, PROJECTED, HALF, "AdditiveAttention"),
    Tolerance(15, 4.6, TWICE, HALF, "InducedAttention"),
    Tolerance(20, 7.7, PLACED, HALF, "SegmentAttention"),
    Tolerance(15, 7.3, PROJECTED, HALF, "ConcatAttention"),
    Tolerance(15, 4.5, PROJECTED, HALF, "HardAttention", quantity="gradient_[!v]*"),
    Tolerance(30, 6.9, SUMMED, HALF, "KernelAttention", quantity="gradient_w"),
    Tolerance(20, 7.4, NORMALIZED, HALF, "TransformerEncoder"),
    Tolerance(10, 3.7, NORMALIZED, HALF, "VisionTransformer"),
    Tolerance(15, 5.2, RECURRENT, HALF, "Translator"),
    Tolerance(30, 11.2, NORMALIZED, HALF, "TransformerTranslator"),
    Tolerance(10, 3.2, RECURRENT, HALF, "GRU*"),
    Tolerance(20, 5.8, RECURRENT, HALF, "LSTM*"),
    Tolerance(15, 3.4, RECURRENT, HALF, "LuongDecoder"),
    Tolerance(7.5, 2.9, SHORT, HALF),
)
"""float64: 450 eps are 1e-13 of the largest entry."""


GROWN = "sums of a few products, and an exponential or a tanh; beyond that, what rounding does to the case was measured"

DRAWN = (
    Tolerance(15, 5, SHIFT, DOUBLE + SINGLE, quantity="gradient_*b_k", beside="gradient_*W_k"),
    Tolerance(5, 1.8, SHIFT, HALF, quantity="gradient_*b_k", beside="gradient_*W_k"),
    Tolerance(50, 16, SUMMED, DOUBLE + SINGLE, quantity="gradient_*w_v"),
    Tolerance(15, 6.6, GROWN, DOUBLE + SINGLE, ordinary=DRAWN_ORDINARY),
    Tolerance(5, 1.8, GROWN, HALF),
)
"""The tolerances of well-conditioned drawn cases."""

MULTIPLE: Mapping[str, float] = {"float64": 9.0, "float32": 9.0, "float16": 3.0, "bfloat16": 3.0}
"""How much the tolerance grows with the condition beyond that: two to three times the largest error of right layers,
which is 3.6 conditions.
"""

MOST: Mapping[str, float] = {"float64": 1e9, "float32": 1e6, "float16": 250.0, "bfloat16": 30.0}
"""The largest tolerance, in eps, that a condition can give; a drawn case that needs more is not judged.

float64: 1e9 eps are 2e-7, so a scale that is off by 1e-5 is always seen; in half precision a quarter.
"""

ENTRY_TOLERANCES: tuple[EntryTolerance, ...] = (
    EntryTolerance(2, 0.8, SOFTMAX, DOUBLE + SINGLE + HALF, "masked_softmax", quantity="weights", softmax=True),
    EntryTolerance(2, 0.75, SOFTMAX, DOUBLE + SINGLE + HALF, "attention_pooling", quantity="weights", softmax=True),
    EntryTolerance(20, 8, PREDICTED, DOUBLE + SINGLE, "LocalAttention", quantity="weights", softmax=True),
    EntryTolerance(30, 12, CANCELLED, DOUBLE + SINGLE, "ConcatAttention", quantity="weights", softmax=True),
    EntryTolerance(10, 4.5, SCORED, DOUBLE + SINGLE, quantity="weights", softmax=True),
    EntryTolerance(3, 1.4, SCORED, HALF, quantity="weights", softmax=True),
    EntryTolerance(3, 1.4, SQUARES, DOUBLE + SINGLE + HALF, "gaussian_score", quantity="scores"),
    EntryTolerance(0, 0, COPIED, DOUBLE + SINGLE + HALF, "location_score", quantity="scores"),
    EntryTolerance(1, 0.5, ADDED, DOUBLE + SINGLE + HALF, "LearnedPositions", quantity="outputs"),
    EntryTolerance(75, 33, MULTIPLIED, DOUBLE, "alibi_bias"),
    EntryTolerance(2, 1, SLOPED, SINGLE + HALF, "alibi_bias"),
    EntryTolerance(0, 0, COPIED, DOUBLE + SINGLE + HALF, "relative_bias", quantity="bias"),
)
"""Small entries of other quantities, such as gradients, are differences of large numbers and have no tolerance here."""


@functools.lru_cache(maxsize=4096)
def tolerance_of(operator: str, case: str, dtype: str, quantity: str) -> Tolerance:
    """The tolerance that applies to a tensor."""
    return next(tolerance for tolerance in TOLERANCES if tolerance.fits(operator, case, dtype, quantity))


def drawn_tolerance(dtype: str, quantity: str) -> Tolerance:
    """The tolerance of a quantity of a drawn case in a dtype."""
    return next(tolerance for tolerance in DRAWN if tolerance.fits("", "", dtype, quantity))


@functools.lru_cache(maxsize=4096)
def entry_tolerance_of(operator: str, case: str, dtype: str, quantity: str) -> EntryTolerance | None:
    """The tolerance of each entry of a tensor; None if small entries are not compared."""
    return next((tolerance for tolerance in ENTRY_TOLERANCES if tolerance.fits(operator, case, dtype, quantity)), None)


# ------------------------------------------------------------------------------------------------ calibration

MARGIN = 3.0
TIGHT, LOOSE = 2.0, 10.0


@dataclass(frozen=True)
class Calibration:
    """A tolerance with the largest error of a run, its location, and the proposed tolerance."""

    tolerance: Tolerance
    measured: float
    where: str

    @property
    def worst(self) -> float:
        """The largest measured error: in this run, or when the tolerance was set."""
        return max(self.measured, self.tolerance.worst)

    @property
    def proposal(self) -> float:
        """MARGIN times the largest error, rounded up; the present tolerance if it is TIGHT to LOOSE times that."""
        if TIGHT * self.worst <= self.tolerance.eps <= LOOSE * self.worst:
            return self.tolerance.eps
        return rounded_up(MARGIN * self.worst)


def calibrate(measured: Iterable[tuple[Tolerance, float, str]]) -> list[Calibration]:
    """The largest measured error of every tolerance that was applied, in the order of the tolerances.

    measured has the tolerance, error in eps and location of each tensor.
    """
    worst: dict[Tolerance, Calibration] = {}
    for tolerance, error, where in measured:
        if tolerance not in worst or error > worst[tolerance].measured:
            worst[tolerance] = Calibration(tolerance, error, where)
    return [worst[tolerance] for tolerance in (*TOLERANCES, *ENTRY_TOLERANCES) if tolerance in worst]


def rounded_up(value: float) -> float:
    """The next larger of 1, 1.5, 2, 3, 4, 5, 7.5 times a power of ten."""
    if math.isinf(value):
        return value
    power = 10.0 ** math.floor(math.log10(value)) if value > 0.0 else 1.0
    return next(step * power for step in (1, 1.5, 2, 3, 4, 5, 7.5, 10) if step * power >= value * (1 - 1e-12))
