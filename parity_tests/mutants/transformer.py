"""Wrong parts of a Transformer."""

from __future__ import annotations

from typing import Any
from unittest import mock

import numpy as np

from attention_core.reference.arrays import align, promote
from attention_core.reference.encoders import embed
from attention_core.reference.feed_forward import gelu, gelu_tanh
from parity_tests.format.case import Arrays, Case
from parity_tests.mutants.mutant import mutant
from parity_tests.mutants.shared import where_all, with_parameters, with_sizes


def _filled(case: Case, inputs: Arrays) -> bool:
    return inputs["inputs"].size > 0


# ------------------------------------------------------------------------------------------------ normalization


def _mean_square(inputs: Any) -> Any:
    return np.mean(inputs * inputs, axis=-1, keepdims=True)


def _centred(inputs: Any) -> Any:
    return promote(inputs) - np.mean(promote(inputs), axis=-1, keepdims=True)


def _gained(layer: Any, scaled: Any) -> Any:
    """The gain, and the bias of a layer that has one."""
    outputs = align(layer.parameters["g"], 1, scaled.ndim) * scaled
    return outputs + align(layer.parameters["b"], 1, outputs.ndim) if "b" in layer.parameters else outputs


@mutant("LayerNorm-*", of="normalization.LayerNorm.__call__", touches=where_all(_filled))
def variance_of_a_sample(self: Any, inputs: Any) -> Any:
    """The variance divides by the number of features less one, as torch.std does."""
    centred, features = _centred(inputs), inputs.shape[-1]
    square = _mean_square(centred) * (features / max(features - 1, 1))
    return _gained(self, centred / np.sqrt(square + self.sizes["epsilon"]))


@mutant("LayerNorm-*", of="normalization.LayerNorm.__call__", touches=where_all(_filled))
def epsilon_outside_the_root(self: Any, inputs: Any) -> Any:
    """LayerNorm adds epsilon to the standard deviation instead of the variance, as in The Annotated Transformer."""
    centred = _centred(inputs)
    square = _mean_square(centred)
    root = np.where(square == 0.0, 0.0, np.sqrt(np.where(square == 0.0, 1.0, square)))
    return _gained(self, centred / (root + self.sizes["epsilon"]))


@mutant("RMSNorm-*", of="normalization.RMSNorm.__call__", touches=where_all(_filled))
def mean_subtracted(original: Any, inputs: Any) -> Any:
    """RMSNorm subtracts the mean."""
    return original(inputs=_centred(inputs))


@mutant("LayerNorm-*", of="normalization.LayerNorm.__call__", touches=where_all(_filled))
def mean_kept(self: Any, inputs: Any) -> Any:
    """LayerNorm does not subtract the mean."""
    inputs = promote(inputs)
    return _gained(self, inputs / np.sqrt(_mean_square(inputs) + self.sizes["epsilon"]))


@mutant("RMSNorm-*", of="normalization.RMSNorm.__call__", touches=where_all(_filled))
def gain_from_one(self: Any, original: Any, inputs: Any) -> Any:
    """The gain is a difference to 1, as in Gemma."""
    inputs = promote(inputs)
    return original() + inputs / np.sqrt(_mean_square(inputs) + self.sizes["epsilon"])


@mutant("{LayerNorm,RMSNorm}-*", of="normalization.Norm._scaled", touches=where_all(_filled))
def normalized_together(self: Any, inputs: Any) -> Any:
    """All steps of a sequence are scaled by the same number."""
    square = np.mean(inputs * inputs, axis=(-1, -2), keepdims=True)
    return align(self.parameters["g"], 1, inputs.ndim) * inputs / np.sqrt(square + self.sizes["epsilon"])


@mutant("{LayerNorm,RMSNorm}-*", of="normalization.Norm._scaled", touches=where_all(_filled))
def normalized_without_gradient(self: Any, inputs: Any) -> Any:
    """No gradient flows through the scale of a normalization."""
    root = np.sqrt(_mean_square(inputs.real) + self.sizes["epsilon"])
    return align(self.parameters["g"], 1, inputs.ndim) * inputs / root


# ------------------------------------------------------------------------------------------------ feed-forward


def _logistic(x: Any) -> Any:
    return 0.5 * (1.0 + np.tanh(0.5 * x))


def _activates(name: str, wrong: str, function: Any, sentence: str) -> None:
    """Make a mutant in which the activation of that name is another function."""
    mutant(
        f"FeedForward-{{plain,{name}}}",
        of="feed_forward.FeedForward._activated",
        touches=where_all(lambda case, inputs: _filled(case, inputs) and case.config.get("activation") == name),
        name=wrong,
        sentence=sentence,
    )(lambda self, original, x: function(x) if self.sizes["activation"] == name else original())


_activates("gelu", "gelu_by_tanh", gelu_tanh, "gelu is its approximation by a tanh, as jax.nn.gelu is unless asked.")
_activates("gelu_tanh", "gelu_exact", gelu, "gelu_tanh is the exact function.")
_activates("gelu", "gelu_by_sigmoid", lambda x: x * _logistic(1.702 * x), "gelu is x σ(1.702 x), as in CLIP.")
_activates("silu", "silu_as_gelu", gelu, "silu is gelu.")


def _gated(case: Case, inputs: Arrays) -> bool:
    return _filled(case, inputs) and bool(case.config.get("gated"))


@mutant("FeedForward-{plain,gated*}", of="feed_forward.FeedForward._hidden", touches=where_all(_gated))
def factors_activated(self: Any, original: Any, inputs: Any) -> Any:
    """The activation is that of W_3, not of W_1, as torch.nn.functional.glu activates its second half."""
    if not self.sizes["gated"]:
        return original()
    return self._projected("1", inputs) * self._activated(self._projected("3", inputs))


# ------------------------------------------------------------------------------------------------ layers and stacks


@mutant(
    "Transformer{Encoder,Decoder}Layer-{open,pre} TransformerEncoder-{open,pre}",
    of="transformer_layers.TransformerLayer._added",
    touches=where_all(lambda case, inputs: case.config.get("norm") == "pre"),
)
def residual_of_the_norm(self: Any, original: Any, number: int, x: Any, sublayer: Any, dropout_mask: Any) -> Any:
    """With norm='pre', a sublayer is added to what it reads, not to the inputs of the normalization."""
    if self.sizes["norm"] == "post":
        return original()
    read = self.inside(f"norm_{number}")(x)
    added = sublayer(read)
    return read + (added if dropout_mask is None else added * promote(dropout_mask)[..., number - 1, :, :, :])


@mutant(
    "Transformer{Encoder,Decoder}Layer-{open,dropout_post,no_steps}",
    of="transformer_layers.TransformerLayer._added",
    touches=where_all(lambda case, inputs: "dropout_mask" in inputs),
)
def dropout_of_the_sum(self: Any, original: Any, number: int, x: Any, sublayer: Any, dropout_mask: Any) -> Any:
    """Dropout acts on the sum of a sublayer and its inputs."""
    if dropout_mask is None or self.sizes["norm"] == "pre":
        return original()
    return self.inside(f"norm_{number}")((x + sublayer(x)) * promote(dropout_mask)[..., number - 1, :, :, :])


@mutant(
    "TransformerDecoderLayer-{open,pre,no_steps}",
    of="transformer_layers.TransformerLayer._attended",
    touches=where_all(_filled),
)
def decoder_sees_the_future(original: Any, which: str, masks: Any) -> Any:
    """A step of the decoder attends to later ones."""
    return original(masks=(None, None)) if which == "self_attention" else original()


@mutant(
    "TransformerDecoderLayer-{open,masked,no_steps,plain}",
    of="transformer_layers.TransformerLayer._attended",
    touches=where_all(lambda case, inputs: {"valid_lens", "mask"} & set(inputs) != set()),
)
def cross_attention_without_its_mask(original: Any, which: str) -> Any:
    """The decoder attends to the padding of the encoder's outputs."""
    return original(masks=(None, None)) if which == "cross_attention" else original()


@mutant(
    "TransformerEncoderLayer-{open,plain,no_steps}",
    of="without_padding",
    touches=where_all(lambda case, inputs: "valid_lens" in inputs),
)
def padding_has_outputs(steps: Any) -> Any:
    """Padded steps have outputs."""
    return steps


def _some_tokens(case: Case, inputs: Arrays) -> bool:
    return inputs["tokens"].size > 0


@mutant("TransformerEncoder-{open,learned,no_steps}", of="transformer.embedded", touches=where_all(_some_tokens))
def embedding_not_scaled(layer: Any, tokens: Any, dropout_mask: Any) -> Any:
    """The embedded tokens are not multiplied by √features."""
    x = embed(layer.specification.name, tokens, layer.parameters["embedding"])
    x = layer.inside("positions")(x) if "positions" in layer.parts else x
    return x if dropout_mask is None else x * promote(dropout_mask)


@mutant("TransformerEncoder-{open,learned,no_steps}", of="transformer.embedded", touches=where_all(_some_tokens))
def positions_scaled(layer: Any, tokens: Any, dropout_mask: Any) -> Any:
    """Positions are added before the multiplication by √features."""
    x = embed(layer.specification.name, tokens, layer.parameters["embedding"])
    x = layer.sizes["features"] ** 0.5 * layer.inside("positions")(x)
    return x if dropout_mask is None else x * promote(dropout_mask)


@mutant(
    "TransformerEncoder-{open,pre,no_steps}",
    of="transformer.TransformerEncoder._normalized",
    touches=where_all(lambda case, inputs: case.config.get("norm") == "pre"),
)
def no_last_norm(x: Any) -> Any:
    """The last normalization of norm='pre' is missing."""
    return x


@mutant(
    "TransformerDecoderLayer-{open,rotary,no_steps}",
    of="transformer_layers.TransformerLayer._attended",
    touches=where_all(lambda case, inputs: "rotary_layout" in case.config),
)
def cross_attention_rotated(self: Any, original: Any, which: str) -> Any:
    """Queries and keys of cross-attention are rotated, too."""
    with mock.patch.object(self.inside(which), "rotary", self.inside("self_attention").rotary):
        return original()


BIASED = "Transformer{Encoder,Decoder}-{open,masked,relative*,alibi*}"


@mutant(BIASED, of="transformer.biased", touches=where_all(lambda case, inputs: _kind(case) in ("relative", "alibi")))
def bias_of_positions_ignored(bias: Any) -> Any:
    """A bias of positions is not added to the scores."""
    return bias


@mutant(
    BIASED,
    of="transformer.biased",
    touches=where_all(lambda case, inputs: _kind(case) in ("relative", "alibi") and "bias" in inputs),
)
def given_bias_ignored(original: Any, bias: Any) -> Any:
    """A bias of positions takes the place of the given one."""
    of_positions = original(bias=None)
    return bias if of_positions is None else of_positions


@mutant(
    BIASED,
    of="transformer.biased",
    touches=where_all(
        lambda case, inputs: _kind(case) == "relative",
        lambda case, inputs: case.operator == "TransformerDecoder" or "causal" in case.config,
    ),
)
def buckets_for_later_steps(original: Any, stack: Any) -> Any:
    """The buckets of a decoder are those of both directions."""
    with with_sizes(stack, bidirectional=True):
        return original()


def _kind(case: Case) -> Any:
    """The kind of positions of a stack."""
    return case.config.get("positions")


TIED = "TransformerDecoder-{open,tied,step_tied}"


@mutant(
    TIED, of="transformer.TransformerDecoder._logits", touches=where_all(lambda case, inputs: "tied" in case.config)
)
def tied_logits_scaled(original: Any, self: Any) -> Any:
    """Logits of a tied embedding are divided by √features, as in T5."""
    return original() * (self.sizes["features"] ** -0.5 if self.sizes["tied"] else 1.0)


@mutant(TIED, of="transformer.TransformerDecoder._logits", red="*tied:gradient_embedding")
def tied_logits_without_gradient(original: Any, self: Any) -> Any:
    """The embedding gets the gradient of its tokens alone, not that of the logits."""
    with with_parameters(self, embedding=self.parameters["embedding"].real):
        return original()


# ------------------------------------------------------------------------------------------------ decoding by steps

STEPS = "TransformerDecoder-{open,step_plain,step_learned,start}"


def _stepping(case: Case, inputs: Arrays) -> bool:
    return case.method == "step"


def _added_positions(case: Case, inputs: Arrays) -> bool:
    return _stepping(case, inputs) and case.config.get("positions") != "none"


@mutant(STEPS, of="transformer.TransformerDecoder._positions", touches=where_all(_added_positions))
def each_step_is_the_first(original: Any, state: Any) -> Any:
    """A step that is decoded from a cache has the position of the first."""
    return original(state=state._replace(position=np.zeros_like(state.position)))


@mutant(STEPS, of="transformer.TransformerDecoder._positions", touches=where_all(_added_positions))
def positions_from_one(original: Any, state: Any) -> Any:
    """Positions of single steps count from 1, those of whole sequences from 0."""
    return original(state=state._replace(position=state.position + 1))


@mutant(STEPS, of="transformer_layers.TransformerDecoderLayer._step", touches=where_all(_stepping))
def cache_without_the_last_step(original: Any, position: Any) -> Any:
    """A step writes over the keys and values of the one before it."""
    return original(position=np.maximum(position - 1, 0))


@mutant(STEPS, of="transformer_layers.TransformerDecoderLayer._step", touches=where_all(_stepping))
def cache_forgotten(original: Any, past: Any) -> Any:
    """A step attends to zeros in place of the earlier steps."""
    return original(past=past._replace(keys=0.0 * past.keys, values=0.0 * past.values))


@mutant(
    "TransformerDecoder-{open,masked,no_steps}",
    of="transformer.TransformerDecoder.__call__",
    touches=where_all(lambda case, inputs: bool(case.options.get("per_head"))),
)
def weights_of_layers_reversed(original: Any, per_head: Any) -> Any:
    """The weights of the last layer come first."""
    logits, weights = original()
    return logits, np.flip(weights, axis=-5) if per_head else weights


@mutant(
    "TransformerDecoder-{step_plain,step_rotary*,step_alibi,step_relative*}",
    of="transformer_layers.TransformerDecoderLayer._step",
    touches=where_all(lambda case, inputs: _kind(case) == "rotary"),
)
def steps_rotated_as_the_first(self: Any, original: Any) -> Any:
    """The query of a single step is rotated as that of the first."""
    attention = self.inside("self_attention")
    at_first = attention.attend
    with mock.patch.object(
        attention, "attend", lambda *given, **options: at_first(*given, **{**options, "offset": None})
    ):
        return original()


@mutant(
    "TransformerDecoder-{step_plain,step_rotary*,step_alibi,step_relative*}",
    of="transformer.biased",
    touches=where_all(lambda case, inputs: _kind(case) in ("relative", "alibi")),
)
def steps_biased_as_the_first(original: Any) -> Any:
    """The bias of a single step is that of the first."""
    return original(offset=None)


# ------------------------------------------------------------------------------------------------ encoder and decoder


@mutant(
    "TransformerTranslator-{none,pre,learned}",
    of="transformer.TransformerDecoder.__call__",
    touches=where_all(lambda case, inputs: "valid_lens" in inputs),
)
def transformer_decodes_padding(original: Any) -> Any:
    """The decoder of a Transformer attends to the padding of the sources."""
    return original(valid_lens=None)


@mutant(
    "TransformerTranslator-{none,pre,learned}",
    of="transformer.TransformerEncoder.__call__",
    touches=where_all(lambda case, inputs: "valid_lens" in inputs),
)
def transformer_encodes_padding(original: Any) -> Any:
    """The encoder of a Transformer attends to the padding of the sources."""
    return original(valid_lens=None)


@mutant(
    "TransformerTranslator-{none,shared,tied}",
    of="transformer_layers.Container.inside",
    red="TransformerTranslator-{shared,tied}:gradient_decoder.embedding",
)
def shared_embedding_without_gradient(self: Any, original: Any, name: str) -> Any:
    """A shared embedding gets no gradient from the sources."""
    part = original()
    tables = {array: part.parameters[array] for array in self.shared[name]}
    part.parameters |= {array: table.real.astype(table.dtype) for array, table in tables.items()}
    return part
