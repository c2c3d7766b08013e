"""Feed-forward networks of single steps, as data."""

from __future__ import annotations

from attention_core.operators.common import SHAZEER, VASWANI_FEED_FORWARD
from attention_core.operators.normalization import FEATURES, INPUTS
from attention_core.specification import Layer, Operator, Option, Parameter, Sizes, Tensor

ACTIVATIONS = ("relu", "gelu", "gelu_tanh", "silu")
"""The choices of the option `activation`."""

HIDDEN_FEATURES = Option("hidden_size", "int", "hidden features of the feed-forward network")
ACTIVATION = Option(
    "activation",
    "str",
    "max(0, x), x Φ(x), its tanh form, or x σ(x)",
    "'relu'",
    keyword_only=True,
    choices=ACTIVATIONS,
)
GATED = Option(
    "gated", "bool", "whether a second projection multiplies the hidden features", "False", keyword_only=True
)

_FORMULA = (
    "outputs = W_2 h + b_2;  h = f(W_1 inputs + b_1), gated: h = f(W_1 inputs + b_1) * (W_3 inputs + b_3);  "
    "f(x) = max(0, x) (relu), x Φ(x) with Φ(x) = (1 + erf(x/√2))/2 (gelu), x (1 + tanh(√(2/π) (x + 0.044715 x³)))/2 "
    "(gelu_tanh), x/(1 + exp(-x)) (silu)"
)


def _shapes(sizes: Sizes) -> dict[str, tuple[int, ...]]:
    wide, narrow = (sizes["hidden_size"], sizes["features"]), (sizes["features"], sizes["hidden_size"])
    matrices = {"W_1": wide, "W_2": narrow, **({"W_3": wide} if sizes["gated"] else {})}
    biases = {f"b{name[1:]}": shape[:1] for name, shape in matrices.items()} if sizes["bias"] else {}
    return {**matrices, **biases}


FEED_FORWARD = Layer(
    name="FeedForward",
    summary="Transform each step on its own by a network with one hidden layer.",
    formula=_FORMULA,
    source=f"{VASWANI_FEED_FORWARD}; gated: {SHAZEER}; gelu: Hendrycks and Gimpel 2016, arXiv:1606.08415",
    options=(
        FEATURES,
        HIDDEN_FEATURES,
        ACTIVATION,
        GATED,
        Option("bias", "bool", "whether the projections have biases", "True", keyword_only=True),
        Option("dropout", "float", "dropout rate of the hidden features in training", "0.0", "rate", keyword_only=True),
    ),
    parameters=(
        Parameter("W_1", ("hidden_size", "features"), "projects to the hidden features", "features"),
        Parameter("W_2", ("features", "hidden_size"), "projects back", "hidden_size"),
        Parameter("W_3", ("hidden_size", "features"), "projects to the factors, if gated", "features"),
        Parameter("b_1", ("hidden_size",), "biases of the hidden features, if bias", "features"),
        Parameter("b_2", ("features",), "biases of the outputs, if bias", "hidden_size"),
        Parameter("b_3", ("hidden_size",), "biases of the factors, if bias and gated", "features"),
    ),
    methods=(
        Operator(
            name="FeedForward.call",
            summary="Transform each step on its own.",
            formula=_FORMULA,
            source=VASWANI_FEED_FORWARD,
            tensors=(INPUTS,),
            keyword_tensors=(
                Tensor(
                    "dropout_mask",
                    ("batch", "steps", "hidden_size"),
                    "factor of each hidden feature",
                    optional=True,
                ),
            ),
            outputs=(Tensor("outputs", INPUTS.axes, "the transformed vectors"),),
        ),
    ),
    own_shapes=_shapes,
)

OPERATORS = (FEED_FORWARD,)
