"""Layers of Keras and KerasHub, and TensorFlow Addons' attention, as targets; parameters as in a .weights.h5 file."""

from __future__ import annotations

import operator
import tempfile
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from types import SimpleNamespace
from typing import Any, TypeAlias

import h5py
import keras
import tensorflow as tf

import backends.tf
from backends.tf import runtime
from parity_tests.third_party.layers.shared import RECURRENT, backend_layers, matching, run_stack
from parity_tests.third_party.signatures import Attention, Outputs, Recurrent, Transformer, takes
from parity_tests.workers.target import NotImplementedHere

Parameters: TypeAlias = dict[str, tf.Tensor]
Tensor: TypeAlias = tf.Tensor


NUMBERS = {"kernel": "0", "recurrent_kernel": "1", "scale": "0", "gamma": "0"}
"""The numbers of variables in a .weights.h5 file by their names in `variable.path`; a bias, or beta, comes last."""


def load(layer: keras.layers.Layer, parameters: Parameters, parts: tuple[str, ...] = ("",)) -> None:
    """Set the variables of the layer, and of each of its parts, by name.

    A part has the name of its attribute, or that in `variable.path` without the suffix for its kind.
    """
    left = dict(parameters)
    for part in parts:
        owner = layer
        for name in filter(None, part.split("/")):
            owner = getattr(owner, name, None) or getattr(owner, f"_{name}")
        variables = {}
        for name in list(left):
            *path, last = name.split("/")
            path = path[:-1] if path[-1:] == ["vars"] else path
            words = [name.partition("_")[0] for name in part.split("/")]
            if len(parts) == 1 or all(map(operator.contains, path[-len(words) :], words)):
                number = NUMBERS.get(last, last if last.isdigit() else str(len(owner.trainable_variables) - 1))
                variables[number] = left.pop(name).numpy()
        owner.load_own_variables(variables)
    if left:
        raise ValueError(f"{type(layer).__name__} has no variable for {', '.join(left)}")


def open_steps(inputs: Tensor, valid_lens: Tensor | None) -> Tensor | None:
    """True where a step or key is open: Keras' mask, (batch, steps)."""
    return None if valid_lens is None else tf.sequence_mask(valid_lens, inputs.shape[1])


def recurrent(made: type[keras.layers.GRU] | type[keras.layers.LSTM]) -> Callable[..., Outputs]:
    """keras.layers.GRU with reset_after=True or LSTM, in one direction or both: a stack of layers.

    A mask gives the lengths; zero_output_for_mask makes padded outputs 0.
    """

    @takes(Recurrent, "inputs", *RECURRENT)
    def call(call: Recurrent) -> Outputs:
        def run(parameters: Parameters, inputs: Tensor, state: Tensor | None) -> tuple[Tensor, Tensor]:
            settings = {
                "return_sequences": True,
                "return_state": True,
                "zero_output_for_mask": True,
                "use_bias": any(name.endswith(("vars/2", "bias")) for name in parameters),
                "dtype": inputs.dtype.name,
            }
            layer = made(call.hidden_size, **settings)
            parts: tuple[str, ...] = ("cell",)
            if call.bidirectional:
                layer = keras.layers.Bidirectional(layer, dtype=inputs.dtype.name)
                parts = ("forward_layer/cell", "backward_layer/cell")
            layer.build(inputs.shape)
            load(layer, parameters, parts)
            directions, first = call.directions, None
            if state is not None:
                # Ours is outputs, forward then backward, then cells; theirs outputs and cells of each direction.
                split = tf.split(state[0], state.shape[-1] // call.hidden_size, axis=-1)
                first = [split[place] for start in range(directions) for place in range(start, len(split), directions)]
            outputs, *last = layer(inputs, mask=open_steps(inputs, call.valid_lens), initial_state=first)
            each = len(last) // directions
            ordered = [last[direction * each + place] for place in range(each) for direction in range(directions)]
            return outputs, tf.concat(ordered, axis=-1)[None]

        return run_stack(run, call.parameters, call.inputs, call.state, lambda states: tf.concat(states, axis=0))

    return call


GRU, LSTM = recurrent(keras.layers.GRU), recurrent(keras.layers.LSTM)


PROJECTIONS = ("query_dense", "key_dense", "value_dense", "output_dense")
HEADS = ("valid_lens", "num_heads", "query_size", "hidden_size", "bias", "per_head")


def multi_head(queries: Tensor, num_heads: int, head_size: int, bias: bool) -> keras.layers.MultiHeadAttention:
    """A keras.layers.MultiHeadAttention for those queries."""
    scale = head_size**-0.5
    if queries.dtype == tf.float64 and float(tf.constant(scale, tf.float32)) != scale:
        raise NotImplementedHere(f"Keras holds the scale 1/√{head_size} in float32, also in a layer of float64")
    return keras.layers.MultiHeadAttention(num_heads, head_size, use_bias=bias, dtype=queries.dtype.name)


def attend(layer: keras.layers.Layer, call: Attention) -> Outputs:
    """Context and weights: attention_mask is True where a key is open; values come before keys."""
    queries, keys, values = call.queries, call.keys, call.values
    layer.build(queries.shape, values.shape, keys.shape)
    load(layer, call.parameters, PROJECTIONS)
    mask = open_steps(keys, call.valid_lens)
    rows = None if mask is None else mask[:, None, :]
    context, weights = layer(queries, values, keys, attention_mask=rows, return_attention_scores=True)
    return context, weights if call.per_head else tf.reduce_mean(weights, axis=1)


@takes(Attention, *HEADS)
def MultiHeadAttention(call: Attention) -> Outputs:
    """keras.layers.MultiHeadAttention."""
    size = (call.hidden_size or call.query_size) // call.num_heads
    return attend(multi_head(call.queries, call.num_heads, size, call.bias), call)


@takes(Attention, *HEADS, "num_key_heads")
def group_query(call: Attention) -> Outputs:
    """keras.layers.GroupQueryAttention."""
    size = (call.hidden_size or call.query_size) // call.num_heads
    heads = call.num_heads, call.num_key_heads or call.num_heads
    dtype = call.queries.dtype.name
    return attend(keras.layers.GroupQueryAttention(size, *heads, use_bias=call.bias, dtype=dtype), call)


grouped = SimpleNamespace(MultiHeadAttention=group_query)


@takes(Attention, "valid_lens")
def AdditiveAttention(call: Attention) -> Outputs:
    """keras.layers.AdditiveAttention, whose only parameter is the scale of each feature.

    The mask of the values is True where a key is open; values come before keys.
    """
    queries, keys, values = call.queries, call.keys, call.values
    layer = keras.layers.AdditiveAttention(use_scale=bool(call.parameters), dtype=queries.dtype.name)
    layer.build([queries.shape, values.shape, keys.shape])
    if call.parameters:
        load(layer, call.parameters)
    mask = None if call.valid_lens is None else [None, open_steps(keys, call.valid_lens)]
    return layer([queries, values, keys], mask=mask, return_attention_scores=True)


def LayerNorm(parameters: Parameters, inputs: Tensor, *, bias: bool = True, epsilon: float) -> Tensor:
    """keras.layers.LayerNormalization."""
    layer = keras.layers.LayerNormalization(epsilon=epsilon, center=bias, dtype=inputs.dtype.name)
    layer.build(inputs.shape)
    load(layer, parameters)
    return layer(inputs)


def RMSNorm(parameters: Parameters, inputs: Tensor, *, epsilon: float) -> Tensor:
    """keras.layers.RMSNormalization."""
    layer = keras.layers.RMSNormalization(epsilon=epsilon, dtype=inputs.dtype.name)
    layer.build(inputs.shape)
    load(layer, parameters)
    return layer(inputs)


# ------------------------------------------------------------------------------------------------ KerasHub

SUBLAYERS = ("valid_lens", "num_heads", "norm", "activation", "epsilon")
ACTIVATIONS = {
    "relu": keras.activations.relu,
    "gelu": partial(keras.activations.gelu, approximate=False),
    "gelu_tanh": partial(keras.activations.gelu, approximate=True),
    "silu": keras.activations.silu,
}


def inside(parameters: Parameters, *parts: str) -> Parameters:
    """The arrays of a layer inside another one, whose name begins with an underscore in a file."""
    found: Parameters = {}
    for name, array in parameters.items():
        words = name.split("/")
        places = [place for place, word in enumerate(words) if word.removeprefix("_") in parts]
        found |= {"/".join(words[place + 1 :]): array for place in places}
    return found


def sublayers(call: Transformer, masks: Mapping[str, Tensor | None]) -> tuple[Tensor, list[Tensor]]:
    """The outputs of KerasHub's layers, made of Keras' as they are, and the weights of each attention."""
    x, weights, head_size = call.inputs, [], call.inputs.shape[-1] // call.num_heads
    if x.dtype == tf.float64 and call.activation.startswith("gelu"):
        raise NotImplementedHere("TensorFlow holds the constants of gelu in float32, also for float64")

    def attend(name: str, queries: Tensor) -> Tensor:
        keys = queries if name == "self_attention" else call.encoder_outputs
        layer = multi_head(queries, call.num_heads, head_size, True)
        layer.build(queries.shape, keys.shape)
        load(layer, inside(call.parameters, name, f"{name}_layer"), PROJECTIONS)
        context, of_heads = layer(queries, keys, attention_mask=masks[name], return_attention_scores=True)
        weights.append(of_heads)
        return context

    def network(x: Tensor) -> Tensor:
        for part, activation in (("intermediate", ACTIVATIONS[call.activation]), ("output", None)):
            arrays = inside(call.parameters, f"feedforward_{part}_dense")
            (outputs,) = min((array.shape for array in arrays.values()), key=len)
            layer = keras.layers.Dense(outputs, activation, dtype=x.dtype.name)
            layer.build(x.shape)
            load(layer, arrays)
            x = layer(x)
        return x

    for name in (*masks, "feedforward"):
        function = network if name == "feedforward" else partial(attend, name)
        norm = partial(LayerNorm, inside(call.parameters, f"{name}_layer_norm"), epsilon=call.epsilon)
        x = x + function(norm(x)) if call.norm == "pre" else norm(x + function(x))
    return x, weights


def earlier_steps(inputs: Tensor) -> Tensor:
    """True where a step is not later than the one that attends, (1, steps, steps)."""
    return tf.linalg.band_part(tf.ones((1, inputs.shape[1], inputs.shape[1]), tf.bool), -1, 0)


@takes(Transformer, *SUBLAYERS, "causal")
def TransformerEncoderLayer(call: Transformer) -> Outputs:
    """keras_hub.layers.TransformerEncoder, or TransformerDecoder without cross-attention, from their source code.

    They compute padded steps, too: here these are 0 before and after, as in the specification.
    """
    opened, mask = open_steps(call.inputs, call.valid_lens), earlier_steps(call.inputs) if call.causal else None
    if opened is None:
        outputs, weights = sublayers(call, {"self_attention": mask})
        return outputs, *weights
    real = tf.cast(opened, call.inputs.dtype)[..., None]
    mask = opened[:, None, :] if mask is None else mask & opened[:, None, :]
    outputs, weights = sublayers(replace(call, inputs=call.inputs * real), {"self_attention": mask})
    return outputs * real, *weights


@takes(Transformer, "encoder_outputs", *SUBLAYERS)
def TransformerDecoderLayer(call: Transformer) -> Outputs:
    """keras_hub.layers.TransformerDecoder with cross-attention, from its source code."""
    opened = open_steps(call.encoder_outputs, call.valid_lens)
    cross = None if opened is None else opened[:, None, :]
    masks = {"self_attention": earlier_steps(call.inputs), "cross_attention": cross}
    outputs, (self_weights, weights) = sublayers(call, masks)
    return outputs, weights, self_weights


# ------------------------------------------------------------------------------------------------ from their formulas


def pool(scores: Tensor, call: Attention) -> Outputs:
    """Context and weights, with -inf where a key is hidden."""
    mask = open_steps(call.values, call.valid_lens)
    if mask is not None:
        scores = tf.where(mask[:, None, :], scores, tf.constant(float("-inf"), scores.dtype))
    weights = tf.nn.softmax(scores, axis=-1)
    return weights @ call.values, weights


def variable_named(parameters: Parameters, name: str) -> Any:
    """The variable whose path ends in that name, if there is one."""
    return next((array for path, array in parameters.items() if path.removesuffix(":0").endswith(name)), None)


@takes(Attention, "valid_lens")
def bahdanau(call: Attention) -> Outputs:
    """tfa.seq2seq.BahdanauAttention: scores = sum of g v/|v| tanh(keys W_memory + queries W_query + b).

    Only with normalize=True does v have a gain and a bias.
    """
    v, gain, bias = (variable_named(call.parameters, f"attention_{name}") for name in "vgb")
    hidden = (call.queries @ variable_named(call.parameters, "query_layer/kernel"))[:, :, None]
    hidden += (call.keys @ variable_named(call.parameters, "memory_layer/kernel"))[:, None]
    if gain is not None:
        v = gain * v / tf.sqrt(tf.reduce_sum(v * v))
        hidden += bias
    return pool(tf.reduce_sum(v * tf.tanh(hidden), axis=-1), call)


@takes(Attention, "valid_lens")
def luong(call: Attention) -> Outputs:
    """tfa.seq2seq.LuongAttention: scores = g queries · (keys W_memory), with the factor g only with scale=True."""
    scores = tf.matmul(
        call.queries, call.keys @ variable_named(call.parameters, "memory_layer/kernel"), transpose_b=True
    )
    gain = variable_named(call.parameters, "attention_g")
    return pool(scores if gain is None else gain * scores, call)


addons = SimpleNamespace(AdditiveAttention=bahdanau, GeneralAttention=luong)


# ------------------------------------------------------------------------------------------------ the backend


def set_variables(layer: keras.layers.Layer, parameters: Mapping[str, Tensor]) -> keras.layers.Layer:
    """Set the variables of a backend's layer: by the paths of attributes, or by a file in which they have numbers."""
    if any("vars" in name.split("/") for name in parameters):
        return load_file(layer, parameters)
    for name, array in parameters.items():
        owner = layer
        for part in name.split("."):
            owner = owner[int(part)] if part.isdigit() else getattr(owner, part)
        owner.assign(array)
    return layer


def load_file(layer: keras.layers.Layer, parameters: Mapping[str, Tensor]) -> keras.layers.Layer:
    """Have Keras read the variables from a .weights.h5 file, in which a model's only layer is this one."""
    holder = keras.Model()
    holder.only = layer  # a name that sorts behind `layers`, under which Keras then writes it
    holder.built = True
    with tempfile.TemporaryDirectory() as folder:
        path = f"{folder}/layer.weights.h5"
        holder.save_weights(path)
        with h5py.File(path, "r+") as file:
            known: dict[str, h5py.Dataset] = {}
            file.visititems(lambda name, item: known.update({name: item} if isinstance(item, h5py.Dataset) else {}))
            known = {name.split("/", 2)[2]: item for name, item in known.items()}  # without layers/<its name>
            for name, array in parameters.items():
                known.pop(matching(name, known))[...] = array.numpy()
            if known:
                raise ValueError(f"missing from the file: {', '.join(known)}")
        holder.load_weights(path)
    return layer


attention_parity = backend_layers(backends.tf, runtime, set_variables, lambda tensor: tensor.dtype.name)
