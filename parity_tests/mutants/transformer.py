"""Wrong parts of a Transformer."""

from __future__ import annotations

from typing import Any
from unittest import mock

import numpy as np

from attention_core.reference.arrays import align, promote, sigmoid
from attention_core.reference.encoders import embed
from attention_core.reference.feed_forward import gelu, gelu_tanh
from parity_tests.mutants.mutant import mutant
from parity_tests.mutants.shared import has_sizes, is_passed, with_parameters, with_sizes

# ------------------------------------------------------------------------------------------------ normalization


def _mean_square(inputs: Any) -> Any:
    return np.mean(inputs * inputs, axis=-1, keepdims=True)


def _minus_mean(inputs: Any) -> Any:
    return promote(inputs) - np.mean(promote(inputs), axis=-1, keepdims=True)


def _with_gain(layer: Any, scaled: Any) -> Any:
    """The gain, and the bias of a layer that has one."""
    outputs = align(layer.parameters["g"], 1, scaled.ndim) * scaled
    return outputs + align(layer.parameters["b"], 1, outputs.ndim) if "b" in layer.parameters else outputs


@mutant("normalization.LayerNorm.__call__")
def variance_of_a_sample(self: Any, inputs: Any) -> Any:
    """The variance divides by the number of features less one, as torch.std does."""
    centred, features = _minus_mean(inputs), inputs.shape[-1]
    square = _mean_square(centred) * (features / max(features - 1, 1))
    return _with_gain(self, centred / np.sqrt(square + self.sizes["epsilon"]))


@mutant("normalization.LayerNorm.__call__")
def epsilon_outside_the_root(self: Any, inputs: Any) -> Any:
    """LayerNorm adds epsilon to the standard deviation instead of the variance, as in The Annotated Transformer."""
    centred = _minus_mean(inputs)
    square = _mean_square(centred)
    root = np.where(square == 0.0, 0.0, np.sqrt(np.where(square == 0.0, 1.0, square)))
    return _with_gain(self, centred / (root + self.sizes["epsilon"]))


@mutant("normalization.RMSNorm.__call__")
def mean_subtracted(original: Any, inputs: Any) -> Any:
    """RMSNorm subtracts the mean."""
    return original(inputs=_minus_mean(inputs))


@mutant("normalization.LayerNorm.__call__")
def mean_kept(self: Any, inputs: Any) -> Any:
    """LayerNorm does not subtract the mean."""
    inputs = promote(inputs)
    return _with_gain(self, inputs / np.sqrt(_mean_square(inputs) + self.sizes["epsilon"]))


@mutant("normalization.RMSNorm.__call__")
def gain_from_one(self: Any, original: Any, inputs: Any) -> Any:
    """The gain is a difference to 1, as in Gemma."""
    inputs = promote(inputs)
    return original() + inputs / np.sqrt(_mean_square(inputs) + self.sizes["epsilon"])


@mutant("normalization.Norm._scale", cases="LayerNorm-* RMSNorm-*")
def normalized_together(self: Any, inputs: Any) -> Any:
    """All steps of a sequence are scaled by the same number."""
    square = np.mean(inputs * inputs, axis=(-1, -2), keepdims=True)
    return align(self.parameters["g"], 1, inputs.ndim) * inputs / np.sqrt(square + self.sizes["epsilon"])


@mutant("normalization.Norm._scale", cases="LayerNorm-* RMSNorm-*")
def normalized_without_gradient(self: Any, inputs: Any) -> Any:
    """No gradient flows through the scale of a normalization."""
    root = np.sqrt(_mean_square(inputs.real) + self.sizes["epsilon"])
    return align(self.parameters["g"], 1, inputs.ndim) * inputs / root


# ------------------------------------------------------------------------------------------------ feed-forward


def _activates(name: str, wrong: str, function: Any, sentence: str) -> None:
    """Make a mutant in which the activation of that name is another function."""
    cases = f"FeedForward-{name}"
    mutant("feed_forward.FeedForward._activate", cases=cases, name=wrong, sentence=sentence)(lambda x: function(x))


_activates("gelu", "gelu_by_tanh", gelu_tanh, "gelu is its approximation by a tanh, as jax.nn.gelu is unless asked.")
_activates("gelu_tanh", "gelu_exact", gelu, "gelu_tanh is the exact function.")
_activates("gelu", "gelu_by_sigmoid", lambda x: x * sigmoid(1.702 * x), "gelu is x σ(1.702 x), as in CLIP.")
_activates("silu", "silu_as_gelu", gelu, "silu is gelu.")


@mutant("feed_forward.FeedForward._hidden_features", touches=has_sizes(gated=True))
def factors_activated(self: Any, inputs: Any) -> Any:
    """The activation is that of W_3, not of W_1, as torch.nn.functional.glu activates its second half."""
    return self._linear("1", inputs) * self._activate(self._linear("3", inputs))


# ------------------------------------------------------------------------------------------------ layers and stacks


@mutant(
    "transformer_layers.TransformerLayer._add_sublayer",
    cases="TransformerEncoderLayer-* TransformerDecoderLayer-* TransformerEncoder-pre",
    touches=has_sizes(norm="pre"),
)
def residual_of_the_norm(self: Any, number: int, x: Any, sublayer: Any, dropout_mask: Any) -> Any:
    """With norm='pre', a sublayer is added to what it reads, not to the inputs of the normalization."""
    read = self.inside(f"norm_{number}")(x)
    added = sublayer(read)
    return read + (added if dropout_mask is None else added * promote(dropout_mask)[..., number - 1, :, :, :])


@mutant(
    "transformer_layers.TransformerLayer._add_sublayer",
    cases="TransformerEncoderLayer-* TransformerDecoderLayer-*",
    touches=lambda self, dropout_mask: dropout_mask is not None and self.sizes["norm"] == "post",
)
def dropout_of_the_sum(self: Any, number: int, x: Any, sublayer: Any, dropout_mask: Any) -> Any:
    """Dropout acts on the sum of a sublayer and its inputs."""
    return self.inside(f"norm_{number}")((x + sublayer(x)) * promote(dropout_mask)[..., number - 1, :, :, :])


@mutant(
    "transformer_layers.TransformerLayer._attend",
    cases="TransformerDecoderLayer-open TransformerDecoderLayer-pre",
    touches=lambda which: which == "self_attention",
)
def decoder_sees_the_future(original: Any) -> Any:
    """A step of the decoder attends to later ones."""
    return original(masks=(None, None))


@mutant(
    "transformer_layers.TransformerLayer._attend",
    cases="TransformerDecoderLayer-plain TransformerDecoderLayer-masked",
    touches=lambda which, masks: which == "cross_attention" and any(mask is not None for mask in masks),
)
def cross_attention_without_its_mask(original: Any) -> Any:
    """The decoder attends to the padding of the encoder's outputs."""
    return original(masks=(None, None))


@mutant("without_padding", cases="TransformerEncoderLayer-*", touches=is_passed("valid_lens"))
def padding_has_outputs(steps: Any) -> Any:
    """Padded steps have outputs."""
    return steps


@mutant("transformer.embed_tokens", cases="TransformerEncoder-*")
def embedding_not_scaled(layer: Any, tokens: Any, dropout_mask: Any) -> Any:
    """The embedded tokens are not multiplied by √features."""
    x = embed(layer.specification.name, tokens, layer.parameters["embedding"])
    x = layer.inside("positions")(x) if "positions" in layer.parts else x
    return x if dropout_mask is None else x * promote(dropout_mask)


@mutant(
    "transformer.embed_tokens",
    cases="TransformerEncoder-open TransformerEncoder-learned",
    touches=lambda layer: "positions" in layer.parts,
)
def positions_scaled(layer: Any, tokens: Any, dropout_mask: Any) -> Any:
    """Positions are added before the multiplication by √features."""
    x = embed(layer.specification.name, tokens, layer.parameters["embedding"])
    x = layer.sizes["features"] ** 0.5 * layer.inside("positions")(x)
    return x if dropout_mask is None else x * promote(dropout_mask)


@mutant("transformer.TransformerEncoder._normalize", touches=lambda self: "norm" in self.parts)
def no_last_norm(x: Any) -> Any:
    """The last normalization of norm='pre' is missing."""
    return x


@mutant(
    "transformer_layers.TransformerLayer._attend",
    cases="TransformerDecoderLayer-*",
    touches=lambda self, which: which == "cross_attention" and self.inside("self_attention").rotary is not None,
)
def cross_attention_rotated(self: Any, original: Any, which: str) -> Any:
    """Queries and keys of cross-attention are rotated, too."""
    with mock.patch.object(self.inside(which), "rotary", self.inside("self_attention").rotary):
        return original()


BIASED = "TransformerEncoder-* TransformerDecoder-*"


def _is_biased(stack: Any) -> bool:
    """Whether the positions of a stack are biases of the scores."""
    return stack.sizes["positions"] in ("relative", "alibi")


@mutant("transformer.position_bias", cases=BIASED, touches=_is_biased)
def bias_of_positions_ignored(bias: Any) -> Any:
    """A bias of positions is not added to the scores."""
    return bias


@mutant("transformer.position_bias", cases=BIASED, touches=lambda stack, bias: _is_biased(stack) and bias is not None)
def given_bias_ignored(original: Any) -> Any:
    """A bias of positions takes the place of the given one."""
    return original(bias=None)


@mutant(
    "transformer.position_bias",
    cases=BIASED,
    touches=lambda stack: stack.sizes["positions"] == "relative" and not stack.sizes["bidirectional"],
)
def buckets_for_later_steps(original: Any, stack: Any) -> Any:
    """The buckets of a decoder are those of both directions."""
    with with_sizes(stack, bidirectional=True):
        return original()


@mutant("transformer.TransformerDecoder._logits", touches=has_sizes(tied=True))
def tied_logits_scaled(original: Any, self: Any) -> Any:
    """Logits of a tied embedding are divided by √features, as in T5."""
    return original() * self.sizes["features"] ** -0.5


@mutant("transformer.TransformerDecoder._logits", touches=has_sizes(tied=True))
def tied_logits_without_gradient(original: Any, self: Any) -> Any:
    """The embedding gets the gradient of its tokens alone, not that of the logits."""
    with with_parameters(self, embedding=self.parameters["embedding"].real):
        return original()


# ------------------------------------------------------------------------------------------------ decoding by steps


def _has_added_positions(self: Any) -> bool:
    """Whether positions are added to the embedded tokens."""
    return "positions" in self.parts


@mutant(
    "transformer.TransformerDecoder._positions",
    touches=lambda self, state: _has_added_positions(self) and state.position.any(),
)
def each_step_is_the_first(original: Any, state: Any) -> Any:
    """A step that is decoded from a cache has the position of the first."""
    return original(state=state._replace(position=np.zeros_like(state.position)))


@mutant("transformer.TransformerDecoder._positions", touches=_has_added_positions)
def positions_from_one(original: Any, state: Any) -> Any:
    """Positions of single steps count from 1, those of whole sequences from 0."""
    return original(state=state._replace(position=state.position + 1))


@mutant(
    "transformer_layers.TransformerDecoderLayer._step",
    cases="TransformerDecoder-*",
    touches=lambda position: position.any(),
)
def cache_without_the_last_step(original: Any, position: Any) -> Any:
    """A step writes over the keys and values of the one before it."""
    return original(position=np.maximum(position - 1, 0))


@mutant(
    "transformer_layers.TransformerDecoderLayer._step",
    cases="TransformerDecoder-*",
    touches=lambda position: position.any(),
)
def cache_forgotten(original: Any, past: Any) -> Any:
    """A step attends to zeros in place of the earlier steps."""
    return original(past=past._replace(keys=0.0 * past.keys, values=0.0 * past.values))


@mutant("transformer.TransformerDecoder.__call__", touches=lambda per_head: per_head)
def weights_of_layers_reversed(original: Any) -> Any:
    """The weights of the last layer come first."""
    logits, weights = original()
    return logits, np.flip(weights, axis=-5)


@mutant(
    "transformer_layers.TransformerDecoderLayer._step",
    cases="TransformerDecoder-*",
    touches=lambda self, position: position.any() and self.inside("self_attention").rotary is not None,
)
def steps_rotated_as_the_first(self: Any, original: Any) -> Any:
    """The query of a single step is rotated as that of the first."""
    attention = self.inside("self_attention")
    at_first = attention.attend
    with mock.patch.object(
        attention, "attend", lambda *is_passed, **options: at_first(*is_passed, **{**options, "offset": None})
    ):
        return original()


@mutant(
    "transformer.position_bias",
    cases="TransformerDecoder-*",
    touches=lambda stack, offset: _is_biased(stack) and np.any(offset),
)
def steps_biased_as_the_first(original: Any) -> Any:
    """The bias of a single step is that of the first."""
    return original(offset=None)


# ------------------------------------------------------------------------------------------------ encoder and decoder


@mutant("transformer.TransformerDecoder.__call__", cases="TransformerTranslator-*", touches=is_passed("valid_lens"))
def transformer_decodes_padding(original: Any) -> Any:
    """The decoder of a Transformer attends to the padding of the sources."""
    return original(valid_lens=None)


@mutant("transformer.TransformerEncoder.__call__", cases="TransformerTranslator-*", touches=is_passed("valid_lens"))
def transformer_encodes_padding(original: Any) -> Any:
    """The encoder of a Transformer attends to the padding of the sources."""
    return original(valid_lens=None)


@mutant(
    "transformer_layers.Container.inside", cases="TransformerTranslator-*", touches=lambda self, name: self.shared[name]
)
def shared_embedding_without_gradient(self: Any, original: Any, name: str) -> Any:
    """A shared embedding gets no gradient from the sources."""
    part = original()
    tables = {array: part.parameters[array] for array in self.shared[name]}
    part.parameters |= {array: table.real.astype(table.dtype) for array, table in tables.items()}
    return part
