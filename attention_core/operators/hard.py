"""Attention to one key."""

from __future__ import annotations

from attention_core.operators.attention import (
    _HIDDEN_OR_QUERY,
    _KEY_SIZE,
    _QUERY_SIZE,
    ALIKE,
    _attention_methods,
    score_option,
    scored,
)
from attention_core.operators.common import TIME_MAJOR, XU
from attention_core.operators.local import NUM_POSITIONS
from attention_core.specification import Layer, Part, Sizes, Tensor

_HARD_FORMULA = (
    "weights[i, j] = 1 where j is the first argmax over open k of scores[i, k] - ln(-ln(noise[i, k])), else 0;  "
    "context = weights values, and no gradient reaches the scores; without noise, its term is 0"
)

_NOISE = Tensor(
    "noise",
    ("batch", "heads?", "queries", "keys"),
    "uniform numbers strictly between 0 and 1; with them, key j is drawn with its softmax probability",
    optional=True,
)


def _hard_inside(sizes: Sizes) -> dict[str, Part]:
    names = ("score", "query_size", "key_size", "hidden_size", "num_positions")
    return {"scored": scored("HardAttention", *(sizes[name] for name in names))}


HARD_ATTENTION = Layer(
    name="HardAttention",
    summary="Attention to a single key: the one with the highest score, or one sampled with a noise tensor.",
    formula=_HARD_FORMULA,
    source=XU + "; drawn by the Gumbel-max trick",
    options=(_QUERY_SIZE, _KEY_SIZE, score_option("additive"), _HIDDEN_OR_QUERY, NUM_POSITIONS, TIME_MAJOR),
    parameters=(),
    methods=_attention_methods(
        "HardAttention", _HARD_FORMULA, XU, "query_size", "key_size", "memory_features", (_NOISE,)
    ),
    inside=_hard_inside,
    parts={"scored": "the attention layer of score, which projects the keys and scores them"},
    notes=(
        "Without noise, its term is 0. With noise drawn uniformly from (0, 1), each key is drawn with its softmax "
        "probability. `scored` is the attention layer of score, and hidden_size that of an additive or concat score. "
        + ALIKE
    ),
)

OPERATORS = (HARD_ATTENTION,)
