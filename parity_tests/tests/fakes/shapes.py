"""What is right in every shape that a target may have: each class is one, and says which cases it is asked.

All of them are the reference behind another signature; a class serves as a namespace, and is never made.
"""

from collections import namedtuple
from functools import partial
from types import SimpleNamespace

import numpy as np

from attention_core import reference
from attention_core.differentiation import gradients

Pair = namedtuple("Pair", "context weights")
SOFTMAX = "masked_softmax-*"
LAYERS = "AdditiveAttention-[nomrc]*"
FEW = "AdditiveAttention-[mr]*[kd]"
"""Gradients by complex step take long."""


def of_parameters(layer, parameters):
    """The reference's layer with those parameters."""
    layer.parameters = dict(parameters)
    return layer


def attend(parameters, queries, keys, values, **rest):
    hidden, query = parameters["W_q"].shape
    layer = reference.AdditiveAttention(query_size=query, key_size=parameters["W_k"].shape[1], hidden_size=hidden)
    return of_parameters(layer, parameters)(queries, keys, values, **rest)


def decoder(parameters, num_layers):
    vocab, embed = parameters["embedding"].shape
    attention, memory = parameters["attention.W_k"].shape
    hidden = parameters["attention.W_q"].shape[1]
    layer = reference.BahdanauDecoder(
        vocab_size=vocab,
        embed_size=embed,
        hidden_size=hidden,
        memory_size=memory,
        attention_size=attention,
        num_layers=num_layers,
    )
    return of_parameters(layer, parameters)


class differentiating:
    """A runtime with gradients."""

    def from_numpy(array):
        return array

    def to_numpy(array):
        return np.asarray(array)

    def describe():
        return {"framework": "NumPy", "versions": {}}

    def vjp(function, arguments, cotangents):
        floating = {name: array for name, array in arguments.items() if array.dtype.kind == "f"}
        rest = {name: array for name, array in arguments.items() if name not in floating}
        factors = {str(place): array for place, array in cotangents.items()}
        found = gradients(lambda own: function(**own, **rest), floating, factors, stacked=False) if factors else {}
        return function(**arguments), {name: found[name].astype(floating[name].dtype) for name in found}


class SoftmaxOfAMask:
    cases = SOFTMAX

    def masked_softmax(scores, mask=None):
        return reference.masked_softmax(scores, mask=mask)


class SoftmaxOfLengths:
    cases = SOFTMAX

    def masked_softmax(scores, valid_lens=None):
        return (reference.masked_softmax(scores, valid_lens),)


class SoftmaxByKeywordAlone:
    cases = SOFTMAX

    def masked_softmax(*, scores, valid_lens=None, mask=None):
        return reference.masked_softmax(scores, valid_lens, mask)


class SoftmaxOfAnything:
    cases = SOFTMAX

    def masked_softmax(**given):
        return [reference.masked_softmax(**given)]


def scored(kind, queries, keys, *, scale=None):
    return getattr(reference, kind)(queries, keys, scale=scale)


class Partial:
    cases = "scaled_dot_score-*"
    scaled_dot_score = partial(scored, "scaled_dot_score")


class LayerOfAMask:
    cases = LAYERS

    def AdditiveAttention(parameters, queries, keys, values, mask=None):
        return attend(parameters, queries, keys, values, mask=mask)


class LayerOfLengths:
    cases = LAYERS

    def AdditiveAttention(parameters, queries, keys, values, valid_lens=None):
        return Pair(*attend(parameters, queries, keys, values, valid_lens=valid_lens))


class LayerOfBoth:
    cases = LAYERS

    def AdditiveAttention(parameters, queries, keys, values, valid_lens=None, mask=None, *, dropout_mask=None):
        return list(
            attend(parameters, queries, keys, values, valid_lens=valid_lens, mask=mask, dropout_mask=dropout_mask)
        )


class LayerOfAnything:
    cases = LAYERS

    def AdditiveAttention(parameters, queries, keys, values, query_size, key_size, hidden_size, **rest):
        return attend(parameters, queries, keys, values, **rest)


class LayerWithoutWeights:
    cases = LAYERS

    def AdditiveAttention(parameters, queries, keys, values, mask=None):
        return attend(parameters, queries, keys, values, mask=mask)[0], None


class LayerOfABareContext:
    cases = LAYERS

    def AdditiveAttention(parameters, queries, keys, values, mask=None):
        return attend(parameters, queries, keys, values, mask=mask)[0]


class LayerWithGradients:
    cases = FEW
    runtime = differentiating

    def AdditiveAttention(parameters, queries, keys, values, mask=None, dropout_mask=None):
        return attend(parameters, queries, keys, values, mask=mask, dropout_mask=dropout_mask)


class LayerWithGradientsWithoutWeights(LayerWithoutWeights):
    cases = FEW
    runtime = differentiating


class LayerWithGradientsOfABareContext(LayerOfABareContext):
    cases = FEW
    runtime = differentiating


Namespace = SimpleNamespace(cases=LAYERS, AdditiveAttention=LayerOfAMask.AdditiveAttention)


class _Instance:
    cases = LAYERS

    def AdditiveAttention(self, parameters, queries, keys, values, mask=None):
        return attend(parameters, queries, keys, values, mask=mask)


Instance = _Instance()


class DecoderOfAMask:
    cases = "BahdanauDecoder-[rc]*"

    def BahdanauDecoder(parameters, tokens, encoder_outputs, state, mask=None, num_layers=1):
        return decoder(parameters, num_layers)(tokens, encoder_outputs, state, mask=mask)


class DecoderOfLengths:
    cases = "BahdanauDecoder-[rc]*"

    def BahdanauDecoder(parameters, tokens, encoder_outputs, state, valid_lens=None, num_layers=1):
        return decoder(parameters, num_layers)(tokens, encoder_outputs, state, valid_lens=valid_lens)


class Step:
    cases = "BahdanauDecoder-step*"

    def BahdanauDecoder_step(parameters, tokens, encoder_outputs, state, mask=None, num_layers=1):
        layer = decoder(parameters, num_layers)
        return layer.step(tokens, state, layer.prepare(encoder_outputs, mask=mask))


class Greedy:
    cases = "BahdanauDecoder-greedy*"

    def BahdanauDecoder_greedy(parameters, encoder_outputs, state, mask=None, *, bos, eos, max_steps, num_layers=1):
        return decoder(parameters, num_layers).greedy(
            encoder_outputs, state, mask=mask, bos=bos, eos=eos, max_steps=max_steps
        )


class Beam:
    cases = "BahdanauDecoder-beam*"

    def BahdanauDecoder_beam(parameters, encoder_outputs, state, valid_lens=None, mask=None, num_layers=1, **options):
        own = {name: value for name, value in options.items() if not name.endswith("_size")}
        return decoder(parameters, num_layers).beam(encoder_outputs, state, valid_lens, mask, **own)


class RecurrentLayerWithoutLengths:
    cases = "GRU-[nom]*"

    def GRU(parameters, inputs, state=None, num_layers=1):
        layer = reference.GRU(inputs.shape[-1], parameters["0.U"].shape[1], num_layers)
        return of_parameters(layer, parameters)(inputs, state=state)


class RecurrentLayerOfAMaskOfItsOwn:
    cases = "GRU-[nor]*"

    def GRU(parameters, inputs, state=None, mask=None, num_layers=1):
        assert mask is None
        return RecurrentLayerWithoutLengths.GRU(parameters, inputs, state, num_layers)


class Clipping:
    cases = "clip_by_global_norm-*"

    def clip_by_global_norm(gradients, max_norm=None):
        clipped, norm = reference.clip_by_global_norm(gradients, max_norm=max_norm)
        return tuple(clipped), norm


class Descent:
    cases = "adam-*"

    def adam(parameters, gradients, *, learning_rate, beta1=0.9, beta2=0.999, epsilon=1e-8):
        return reference.training.descend(reference.adam(learning_rate, beta1, beta2, epsilon), parameters, gradients)


class TranslatorOfAMaskOfItsOwn:
    cases = "Translator-ragged"
    lacks = "Translator does not take valid_lens"

    def Translator(parameters, source, inputs, mask=None):
        raise RuntimeError("not to be asked")


class BuiltIn:
    cases = "mask_and-*"
    lacks = "has no signature"
    mask_and = max
