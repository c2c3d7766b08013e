"""Attention to one key."""

from __future__ import annotations

from dataclasses import replace

from attention_core.operators.attention import (
    _HIDDEN_OR_QUERY,
    _KEY_SIZE,
    _QUERY_SIZE,
    ALIKE,
    _attention_methods,
    score_layer,
    score_option,
)
from attention_core.operators.common import TIME_MAJOR, WEIGHTS, XU
from attention_core.operators.local import NUM_POSITIONS
from attention_core.specification import Layer, Operator, Part, Sizes, Tensor

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

_METHODS = _attention_methods(
    "HardAttention", _HARD_FORMULA, XU, "query_size", "key_size", "memory_features", (_NOISE,)
)

_LOG_PROB = Operator(
    name="HardAttention.log_prob",
    summary="Compute the log-probability of each query's key, which trains the scores.",
    formula="log_prob[i] = sum over open j of weights[i, j] ln masked_softmax(scores)[i, j]",
    source=XU,
    tensors=(
        *next(method.tensors for method in _METHODS if method.name == "HardAttention.attend"),
        replace(WEIGHTS, meaning="1 at the key of each query, as `attend` returns them, else 0"),
    ),
    outputs=(Tensor("log_prob", ("batch", "heads?", "queries"), "natural logarithm of the probability"),),
    notes=(
        "The probability is that with which noise draws the key. The gradient of (loss - baseline) * log_prob, where "
        "loss - baseline is a constant, is the score-function estimator of the gradient of the expected loss, also "
        "called REINFORCE: Williams 1992, doi:10.1007/BF00992696. A query that may attend to nothing gets 0."
    ),
)


def _hard_inside(sizes: Sizes) -> dict[str, Part]:
    names = ("score", "query_size", "key_size", "hidden_size", "num_positions")
    return {"scored": score_layer("HardAttention", *(sizes[name] for name in names))}


HARD_ATTENTION = Layer(
    name="HardAttention",
    summary="Attention to a single key: the one with the highest score, or one sampled with a noise tensor.",
    formula=_HARD_FORMULA,
    source=XU + "; drawn by the Gumbel-max trick",
    options=(_QUERY_SIZE, _KEY_SIZE, score_option("additive"), _HIDDEN_OR_QUERY, NUM_POSITIONS, TIME_MAJOR),
    parameters=(),
    methods=(*_METHODS, _LOG_PROB),
    inside=_hard_inside,
    parts={"scored": "the attention layer of score, which projects the keys and scores them"},
    notes=(
        "Without noise, its term is 0. With noise drawn uniformly from (0, 1), each key is drawn with its softmax "
        "probability, and `log_prob` trains the scores. `scored` is the attention layer of score, and hidden_size that "
        "of an additive or concat score. " + ALIKE
    ),
)

OPERATORS = (HARD_ATTENTION,)
