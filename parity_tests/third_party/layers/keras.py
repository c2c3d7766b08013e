"""Keras' own layers, and TensorFlow Addons' attention, as targets: parameters are those of a .weights.h5 file."""

from __future__ import annotations

import operator
import tempfile
from collections.abc import Mapping
from typing import Any, TypeAlias

import h5py
import keras
import tensorflow as tf

import backends.tf
from backends.tf import runtime
from parity_tests.third_party.layers import stacked
from parity_tests.third_party.layers.own import longest, own_layers
from parity_tests.workers.target import NotImplementedHere

Parameters: TypeAlias = dict[str, tf.Tensor]
Tensor: TypeAlias = tf.Tensor


NUMBERS = {"kernel": "0", "recurrent_kernel": "1", "scale": "0"}
"""The numbers of variables in a .weights.h5 file by their names in `variable.path`; a bias comes last."""


def load(layer: keras.layers.Layer, parameters: Parameters, parts: tuple[str, ...] = ("",)) -> None:
    """Give the layer, and each of its parts, the variables that stand under its name.

    A part is called as its attribute, or as in `variable.path`, without what is said of its kind there.
    """
    left = dict(parameters)
    for part in parts:
        owner = layer
        for name in filter(None, part.split("/")):
            owner = getattr(owner, name, None) or getattr(owner, f"_{name}")
        own = {}
        for name in list(left):
            *path, last = name.split("/")
            path = path[:-1] if path[-1:] == ["vars"] else path
            words = [name.partition("_")[0] for name in part.split("/")]
            if len(parts) == 1 or all(map(operator.contains, path[-len(words) :], words)):
                number = NUMBERS.get(last, last if last.isdigit() else str(len(owner.trainable_variables) - 1))
                own[number] = left.pop(name).numpy()
        owner.load_own_variables(own)
    if left:
        raise ValueError(f"{type(layer).__name__} has no place for {', '.join(left)}")


def open_steps(inputs: Tensor, valid_lens: Tensor | None) -> Tensor | None:
    """True where a step or key is open: Keras' mask, (batch, steps)."""
    return None if valid_lens is None else tf.sequence_mask(valid_lens, inputs.shape[1])


def recurrent(
    made: type[keras.layers.GRU] | type[keras.layers.LSTM],
    parameters: Parameters,
    inputs: Tensor,
    valid_lens: Tensor | None,
    state: Tensor | None,
    units: int,
    bidirectional: bool,
) -> tuple[Tensor, Tensor]:
    """Outputs and state of a stack of layers, in one direction or both."""

    def run(own: Parameters, given: Tensor, first: Tensor | None) -> tuple[Tensor, Tensor]:
        settings = {
            "return_sequences": True,
            "return_state": True,
            "zero_output_for_mask": True,
            "use_bias": any(name.endswith(("vars/2", "bias")) for name in own),
            "dtype": given.dtype.name,
        }
        layer = made(units, **settings)
        parts: tuple[str, ...] = ("cell",)
        if bidirectional:
            layer = keras.layers.Bidirectional(layer, dtype=given.dtype.name)
            parts = ("forward_layer/cell", "backward_layer/cell")
        layer.build(given.shape)
        load(layer, own, parts)
        directions, states = len(parts), None
        if first is not None:
            # Ours is outputs, forward then backward, then cells; theirs outputs and cells of each direction.
            split = tf.split(first[0], first.shape[-1] // units, axis=-1)
            states = [split[place] for start in range(directions) for place in range(start, len(split), directions)]
        outputs, *last = layer(given, mask=open_steps(given, valid_lens), initial_state=states)
        each = len(last) // directions
        ordered = [last[direction * each + place] for place in range(each) for direction in range(directions)]
        return outputs, tf.concat(ordered, axis=-1)[None]

    return stacked(run, parameters, inputs, state, lambda states: tf.concat(states, axis=0))


class GRU:
    """keras.layers.GRU with reset_after=True."""

    @staticmethod
    def GRU(
        parameters: Parameters,
        inputs: Tensor,
        valid_lens: Tensor | None = None,
        state: Tensor | None = None,
        *,
        hidden_size: int,
        num_layers: int = 1,
        bidirectional: bool = False,
    ) -> tuple[Tensor, Tensor]:
        """A mask says the lengths; zero_output_for_mask makes padded outputs 0."""
        return recurrent(keras.layers.GRU, parameters, inputs, valid_lens, state, hidden_size, bidirectional)


class LSTM:
    """keras.layers.LSTM."""

    @staticmethod
    def LSTM(
        parameters: Parameters,
        inputs: Tensor,
        valid_lens: Tensor | None = None,
        state: Tensor | None = None,
        *,
        hidden_size: int,
        num_layers: int = 1,
        bidirectional: bool = False,
    ) -> tuple[Tensor, Tensor]:
        """A mask says the lengths; zero_output_for_mask makes padded outputs 0."""
        return recurrent(keras.layers.LSTM, parameters, inputs, valid_lens, state, hidden_size, bidirectional)


class MultiHeadAttention:
    """keras.layers.MultiHeadAttention."""

    @staticmethod
    def MultiHeadAttention(
        parameters: Parameters,
        queries: Tensor,
        keys: Tensor,
        values: Tensor,
        valid_lens: Tensor | None = None,
        *,
        num_heads: int,
        query_size: int,
        hidden_size: int | None = None,
        bias: bool = True,
        per_head: bool = False,
    ) -> tuple[Tensor, Tensor]:
        """attention_mask is True where a key is open; values come before keys."""
        head_size = (hidden_size or query_size) // num_heads
        scale = head_size**-0.5
        if queries.dtype == tf.float64 and float(tf.constant(scale, tf.float32)) != scale:
            raise NotImplementedHere(f"Keras holds the scale 1/√{head_size} in float32, also in a layer of float64")
        layer = keras.layers.MultiHeadAttention(num_heads, head_size, use_bias=bias, dtype=queries.dtype.name)
        layer.build(queries.shape, values.shape, keys.shape)
        load(layer, parameters, ("query_dense", "key_dense", "value_dense", "output_dense"))
        mask = open_steps(keys, valid_lens)
        rows = None if mask is None else mask[:, None, :]
        context, weights = layer(queries, values, keys, attention_mask=rows, return_attention_scores=True)
        return context, weights if per_head else tf.reduce_mean(weights, axis=1)


class AdditiveAttention:
    """keras.layers.AdditiveAttention, whose only parameter is the scale of each feature."""

    @staticmethod
    def AdditiveAttention(
        parameters: Parameters, queries: Tensor, keys: Tensor, values: Tensor, valid_lens: Tensor | None = None
    ) -> tuple[Tensor, Tensor]:
        """The mask of the values is True where a key is open; values come before keys."""
        layer = keras.layers.AdditiveAttention(use_scale=bool(parameters), dtype=queries.dtype.name)
        layer.build([queries.shape, values.shape, keys.shape])
        if parameters:
            load(layer, parameters)
        mask = None if valid_lens is None else [None, open_steps(keys, valid_lens)]
        return layer([queries, values, keys], mask=mask, return_attention_scores=True)


def pooled(scores: Tensor, values: Tensor, valid_lens: Tensor | None) -> tuple[Tensor, Tensor]:
    """Context and weights, with -inf where a key is hidden."""
    mask = open_steps(values, valid_lens)
    if mask is not None:
        scores = tf.where(mask[:, None, :], scores, tf.constant(float("-inf"), scores.dtype))
    weights = tf.nn.softmax(scores, axis=-1)
    return weights @ values, weights


def named(parameters: Parameters, name: str) -> Any:
    """The variable whose path ends in that name, if there is one."""
    return next((array for path, array in parameters.items() if path.removesuffix(":0").endswith(name)), None)


class AddonsBahdanauAttention:
    """tfa.seq2seq.BahdanauAttention, from its formula: with normalize=True, v has a gain and a bias."""

    @staticmethod
    def AdditiveAttention(
        parameters: Parameters, queries: Tensor, keys: Tensor, values: Tensor, valid_lens: Tensor | None = None
    ) -> tuple[Tensor, Tensor]:
        """Scores = sum of g v/|v| tanh(keys W_memory + queries W_query + b)."""
        v, gain, bias = (named(parameters, f"attention_{name}") for name in "vgb")
        hidden = (queries @ named(parameters, "query_layer/kernel"))[:, :, None]
        hidden += (keys @ named(parameters, "memory_layer/kernel"))[:, None]
        if gain is not None:
            v = gain * v / tf.sqrt(tf.reduce_sum(v * v))
            hidden += bias
        return pooled(tf.reduce_sum(v * tf.tanh(hidden), axis=-1), values, valid_lens)


class AddonsLuongAttention:
    """tfa.seq2seq.LuongAttention, from its formula: the scores have a factor if scale=True."""

    @staticmethod
    def GeneralAttention(
        parameters: Parameters, queries: Tensor, keys: Tensor, values: Tensor, valid_lens: Tensor | None = None
    ) -> tuple[Tensor, Tensor]:
        """Scores = g queries · (keys W_memory)."""
        scores = tf.matmul(queries, keys @ named(parameters, "memory_layer/kernel"), transpose_b=True)
        gain = named(parameters, "attention_g")
        return pooled(scores if gain is None else gain * scores, values, valid_lens)


# ------------------------------------------------------------------------------------------------ ours


def load_own(layer: keras.layers.Layer, parameters: Mapping[str, Tensor]) -> keras.layers.Layer:
    """Set the variables of a layer of ours: by the paths of attributes, or by a file in which they have numbers."""
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
    holder.own = layer
    holder.built = True
    with tempfile.TemporaryDirectory() as folder:
        path = f"{folder}/own.weights.h5"
        holder.save_weights(path)
        with h5py.File(path, "r+") as file:
            known: dict[str, h5py.Dataset] = {}
            file.visititems(lambda name, item: known.update({name: item} if isinstance(item, h5py.Dataset) else {}))
            known = {name.split("/", 2)[2]: item for name, item in known.items()}  # without layers/<its name>
            for name, array in parameters.items():
                known.pop(longest(name, known))[...] = array.numpy()
            if known:
                raise ValueError(f"the file lacks {', '.join(known)}")
        holder.load_weights(path)
    return layer


Own = own_layers(backends.tf, runtime, load_own, lambda tensor: tensor.dtype.name)
