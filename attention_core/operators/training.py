"""Loss, clipping and optimisers, as data."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from attention_core.specification import Operator, Option, Tensor

KINGMA = "Kingma and Ba 2015, algorithm 1, arXiv:1412.6980"
VASWANI_RATE = "Vaswani et al. 2017, section 5.3, where the largest rate is 1/√(features · warmup)"
PASCANU = "Pascanu et al. 2013, algorithm 1, arXiv:1211.5063"
SUTSKEVER = "Sutskever et al. 2014, section 3.2, arXiv:1409.3215"


class Batch(NamedTuple):
    """Sentence pairs as arrays of a framework: what a Trainer takes.

    Shapes: source (batch, keys) and source_lens (batch,), the sentences to translate; inputs (batch, steps), what the
    decoder reads, bos first; targets (batch, steps) and target_lens (batch,), the correct output, eos last; masks, the
    dropout masks of the model's call by name: without one, nothing is dropped there, or the framework draws it.
    """

    source: Any
    source_lens: Any
    inputs: Any
    targets: Any
    target_lens: Any
    masks: Mapping[str, Any] = {}

    @property
    def arguments(self) -> dict[str, Any]:
        """The arguments of a translator's call."""
        return {"source": self.source, "inputs": self.inputs, "valid_lens": self.source_lens, **self.masks}

    def map_arrays(self, function: Callable[[Any], Any]) -> Batch:
        """The batch with a function of each of its arrays in their places."""
        pairs = {name: array for name, array in self._asdict().items() if array is not None and name != "masks"}
        masks = {name: function(mask) for name, mask in self.masks.items()}
        return self._replace(**{name: function(array) for name, array in pairs.items()}, masks=masks)


MASKED_CROSS_ENTROPY = Operator(
    name="masked_cross_entropy",
    summary="Average the cross-entropy of the logits over the open steps; 0 if no step is open.",
    formula="loss = sum over open (b, t) of -ln softmax(logits[b, t])[targets[b, t]] / number of open (b, t)",
    source=SUTSKEVER + ", with a mean over tokens in place of sentences",
    tensors=(
        Tensor("logits", ("batch", "steps", "vocab_size"), "scores of each token (natural logarithm)"),
        Tensor("targets", ("batch", "steps"), "the correct tokens", "integer"),
        Tensor(
            "valid_lens",
            ("batch",),
            "step t is open where t < valid_len; other steps have no effect",
            "integer",
            optional=True,
        ),
    ),
    outputs=(Tensor("loss", (), "nats per token; exp(loss) is the perplexity"),),
    notes=(
        "Every token of the batch has the same weight, in long and in short sentences. Steps that are not open, NaN "
        "and inf included, have no effect, but their targets must be in the vocabulary."
    ),
)

CLIP_BY_GLOBAL_NORM = Operator(
    name="clip_by_global_norm",
    summary="Scale all gradients by one factor, so that their global norm is at most max_norm.",
    formula="norm = √(sum over all entries g of all gradients of g²);  clipped = gradients · min(1, max_norm/norm)",
    source=PASCANU,
    tensors=(Tensor("gradients", ("any",), "a list of arrays, one for each parameter"),),
    options=(
        Option("max_norm", "float", "maximum norm; None disables clipping", "None", "positive", keyword_only=True),
    ),
    outputs=(
        Tensor("clipped", ("any",), "the list of scaled arrays"),
        Tensor("norm", (), "the norm before clipping"),
    ),
    notes=(
        "Nothing is added to the norm: gradients whose norm is at most max_norm are returned bit for bit, and so are "
        "all without max_norm. The norm is correct even where squares of entries underflow or overflow in the type of "
        "the arrays."
    ),
)

_RATE = Option("learning_rate", "float", "step size; with warmup, the largest one", domain="positive")
_WARMUP = Option("warmup", "int", "steps in which the rate rises; None keeps it constant", "None", keyword_only=True)
_SCHEDULE = "with warmup, step t counting from 1 has the rate learning_rate · min(t/warmup, √(warmup/t))"


def rate_at(learning_rate: float, warmup: int | None, step: int) -> float:
    """The learning rate of a step, counted from 1."""
    return learning_rate if warmup is None else learning_rate * min(step / warmup, (warmup / step) ** 0.5)


SGD = Operator(
    name="sgd",
    summary="Stochastic gradient descent, for a Trainer.",
    formula=f"θ' = θ - learning_rate · g;  {_SCHEDULE}",
    source=f"Robbins and Monro 1951, doi:10.1214/aoms/1177729586; warmup: {VASWANI_RATE}",
    tensors=(),
    options=(_RATE, _WARMUP),
    outputs=(),
)

ADAM = Operator(
    name="adam",
    summary="Adam, for a Trainer.",
    formula=(
        "θ' = θ - learning_rate · m̂ / (√v̂ + epsilon);  m' = beta1 m + (1 - beta1) g;  v' = beta2 v + (1 - beta2) g²;  "
        f"m̂ = m'/(1 - beta1ᵗ);  v̂ = v'/(1 - beta2ᵗ), t counting steps from 1;  {_SCHEDULE}"
    ),
    source=f"{KINGMA}; warmup: {VASWANI_RATE}",
    tensors=(),
    options=(
        _RATE,
        Option("beta1", "float", "decay of the mean gradient m", "0.9", "rate"),
        Option("beta2", "float", "decay of the mean squared gradient v", "0.999", "rate"),
        Option("epsilon", "float", "added to the divisor, outside the square root", "1e-08", "positive"),
        _WARMUP,
    ),
    outputs=(),
)

OPERATORS = (MASKED_CROSS_ENTROPY,)

UPDATES = (CLIP_BY_GLOBAL_NORM, SGD, ADAM)
"""The functions that change parameters; they have cases, and the training of a Translator uses them."""
