"""Loss, clipping and optimisers, as data."""

from __future__ import annotations

from typing import Any, NamedTuple

from attention_core.specification import Operator, Option, Tensor

KINGMA = "Kingma and Ba 2015, algorithm 1, arXiv:1412.6980"
PASCANU = "Pascanu et al. 2013, algorithm 1, arXiv:1211.5063"
SUTSKEVER = "Sutskever et al. 2014, section 3.2, arXiv:1409.3215"


class Batch(NamedTuple):
    """Sentence pairs as arrays of a framework: what a Trainer takes.

    Shapes: source (batch, keys) and source_lens (batch,), the sentences to translate; inputs (batch, steps), what the
    decoder reads, bos first; targets (batch, steps) and target_lens (batch,), the correct output, eos last; the three
    masks as in Translator, or None: no dropout, or dropout by the framework.
    """

    source: Any
    source_lens: Any
    inputs: Any
    targets: Any
    target_lens: Any
    encoder_dropout_mask: Any = None
    decoder_dropout_mask: Any = None
    attention_dropout_mask: Any = None

    @property
    def arguments(self) -> dict[str, Any]:
        """The arguments of a Translator's call."""
        masks = {name: getattr(self, name) for name in MASKS}
        return {"source": self.source, "inputs": self.inputs, "valid_lens": self.source_lens, **masks}


MASKS = Batch._fields[5:]
"""The masks of a batch, which are keywords of a Translator's call."""

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

_RATE = Option("learning_rate", "float", "step size", domain="positive")

SGD = Operator(
    name="sgd",
    summary="Stochastic gradient descent, for a Trainer.",
    formula="θ' = θ - learning_rate · g",
    source="Robbins and Monro 1951, doi:10.1214/aoms/1177729586",
    tensors=(),
    options=(_RATE,),
    outputs=(),
)

ADAM = Operator(
    name="adam",
    summary="Adam, for a Trainer.",
    formula=(
        "θ' = θ - learning_rate · m̂ / (√v̂ + epsilon);  m' = beta1 m + (1 - beta1) g;  v' = beta2 v + (1 - beta2) g²;  "
        "m̂ = m'/(1 - beta1ᵗ);  v̂ = v'/(1 - beta2ᵗ), t counting steps from 1"
    ),
    source=KINGMA,
    tensors=(),
    options=(
        _RATE,
        Option("beta1", "float", "decay of the mean gradient m", "0.9", "rate"),
        Option("beta2", "float", "decay of the mean squared gradient v", "0.999", "rate"),
        Option("epsilon", "float", "added to the divisor, outside the square root", "1e-08", "positive"),
    ),
    outputs=(),
)

OPERATORS = (MASKED_CROSS_ENTROPY,)

UPDATES = (CLIP_BY_GLOBAL_NORM, SGD, ADAM)
"""The functions that change parameters; they have cases, and the training of a Translator uses them."""
