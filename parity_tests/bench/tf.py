"""The items in TensorFlow: as tutorials write them, by Keras's own layers, and ours."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import keras
import numpy as np
import tensorflow as tf

import backends.tf as ours
from backends.tf.arrays import DEVICES, from_numpy, to_numpy
from backends.tf.runtime import build
from parity_tests.bench.items import EAGER, LEARNED, Item, options
from parity_tests.bench.measure import Clock, wall

Read = Callable[[keras.Variable], tf.Tensor]
Tensors = dict[str, tf.Tensor]


def configure() -> None:
    """One thread; all else as TensorFlow has it."""
    tf.config.threading.set_intra_op_parallelism_threads(1)
    tf.config.threading.set_inter_op_parallelism_threads(1)


def clock(device: str) -> Clock:
    """What measures a call: TensorFlow has no events, but each call here waits for the device."""
    return wall


# ----------------------------------------------------------------------------------------- as tutorials write them


def masked_softmax(scores: tf.Tensor, valid_lens: tf.Tensor) -> tf.Tensor:
    """Softmax over the keys, with a large negative number where there is padding."""
    valid = tf.sequence_mask(valid_lens, scores.shape[-1])
    for _ in range(len(scores.shape) - 2):
        valid = tf.expand_dims(valid, 1)
    return tf.nn.softmax(tf.where(valid, scores, -1e6), axis=-1)


class AdditiveAttention(keras.layers.Layer):
    """softmax(w_v tanh(W_q q + W_k k)) v, with one tensor of (batch, queries, keys, hidden)."""

    def __init__(self, size: int) -> None:
        super().__init__()
        self.W_q = keras.layers.Dense(size, use_bias=False)
        self.W_k = keras.layers.Dense(size, use_bias=False)
        self.w_v = keras.layers.Dense(1, use_bias=False)

    def call(
        self, queries: tf.Tensor, keys: tf.Tensor, values: tf.Tensor, valid_lens: tf.Tensor
    ) -> tuple[tf.Tensor, tf.Tensor]:
        """(context, weights)."""
        queries, keys = self.W_q(queries), self.W_k(keys)
        features = tf.tanh(tf.expand_dims(queries, 2) + tf.expand_dims(keys, 1))
        weights = masked_softmax(tf.squeeze(self.w_v(features), -1), valid_lens)
        return tf.matmul(weights, values), weights


class OwnAdditiveAttention(keras.layers.Layer):
    """Keras's own layer, with the projections before it that it leaves to the user."""

    def __init__(self, size: int) -> None:
        super().__init__()
        self.W_q = keras.layers.Dense(size, use_bias=False)
        self.W_k = keras.layers.Dense(size, use_bias=False)
        self.attention = keras.layers.AdditiveAttention()

    def call(
        self, queries: tf.Tensor, keys: tf.Tensor, values: tf.Tensor, valid_lens: tf.Tensor
    ) -> tuple[tf.Tensor, tf.Tensor]:
        """(context, weights)."""
        valid = tf.sequence_mask(valid_lens, keys.shape[1])
        inputs = [self.W_q(queries), values, self.W_k(keys)]
        return self.attention(inputs, mask=[None, valid], return_attention_scores=True)


class BahdanauDecoder(keras.layers.Layer):
    """A loop over the steps; each projects the keys, attends, and runs the recurrent layers for one step."""

    def __init__(self, vocabulary: int, size: int, layers: int) -> None:
        super().__init__()
        self.embedding = keras.layers.Embedding(vocabulary, size)
        self.attention = AdditiveAttention(size)
        self.rnn = [keras.layers.GRU(size, return_sequences=True, return_state=True) for _ in range(layers)]
        self.out = keras.layers.Dense(vocabulary)

    def call(
        self, tokens: tf.Tensor, encoder_outputs: tf.Tensor, state: tf.Tensor, valid_lens: tf.Tensor
    ) -> tuple[tf.Tensor, tf.Tensor, tf.Tensor]:
        """(logits, state, weights)."""
        embedded = self.embedding(tokens)
        states = tf.unstack(state)
        outputs, attended = [], []
        for t in range(tokens.shape[1]):
            query = tf.expand_dims(states[-1], 1)
            context, weights = self.attention(query, encoder_outputs, encoder_outputs, valid_lens)
            x = tf.concat([context, embedded[:, t : t + 1]], axis=-1)
            for index, layer in enumerate(self.rnn):
                x, states[index] = layer(x, initial_state=states[index])
            outputs.append(x)
            attended.append(weights)
        return self.out(tf.concat(outputs, axis=1)), tf.stack(states), tf.concat(attended, axis=1)


class DotProductAttention(keras.layers.Layer):
    """softmax(q k / sqrt(d)) v, with one tensor of (batch, heads, queries, keys)."""

    def call(
        self, queries: tf.Tensor, keys: tf.Tensor, values: tf.Tensor, valid_lens: tf.Tensor
    ) -> tuple[tf.Tensor, tf.Tensor]:
        """(context, weights)."""
        scores = tf.matmul(queries, keys, transpose_b=True) / tf.sqrt(float(queries.shape[-1]))
        weights = masked_softmax(scores, valid_lens)
        return tf.matmul(weights, values), weights


class OwnDotProductAttention(keras.layers.Layer):
    """Keras's own function, which has time before heads and returns no weights."""

    def call(self, queries: tf.Tensor, keys: tf.Tensor, values: tf.Tensor, valid_lens: tf.Tensor) -> tuple[tf.Tensor]:
        """The context alone."""
        turned = (tf.transpose(own, (0, 2, 1, 3)) for own in (queries, keys, values))
        mask = tf.sequence_mask(valid_lens, keys.shape[2])[:, None, None, :]
        return (tf.transpose(keras.ops.dot_product_attention(*turned, mask=mask), (0, 2, 1, 3)),)


def places(layer: keras.layers.Layer) -> dict[str, tuple[keras.Variable, Callable[[Any], Any], Callable[[Any], Any]]]:
    """Where a textbook layer has each canonical parameter, and the ways there and back."""
    turn = lambda array: array.T  # noqa: E731
    if isinstance(layer, (AdditiveAttention, OwnAdditiveAttention)):
        found = {name: (getattr(layer, name).kernel, turn, turn) for name in ("W_q", "W_k")}
        if isinstance(layer, AdditiveAttention):
            found["w_v"] = (layer.w_v.kernel, lambda array: array[:, None], lambda array: array[:, 0])
        else:
            found["w_v"] = (layer.attention.scale, np.asarray, np.asarray)
        return found
    if not isinstance(layer, BahdanauDecoder):
        return {}
    return {
        "embedding": (layer.embedding.embeddings, np.asarray, np.asarray),
        "dense.W": (layer.out.kernel, turn, turn),
        "dense.b": (layer.out.bias, np.asarray, np.asarray),
        **{f"attention.{name}": place for name, place in places(layer.attention).items()},
    }


def turned_gates(array: np.ndarray) -> np.ndarray:
    """The gates in Keras's order, z, r, n, from ours, r, z, n; and back."""
    return array[[1, 0, 2]]


def write(layer: keras.layers.Layer, parameters: Mapping[str, np.ndarray]) -> None:
    """Copy canonical parameters into a textbook layer."""
    for name, (variable, there, _) in places(layer).items():
        variable.assign(there(parameters[name]))
    for index, own in enumerate(getattr(layer, "rnn", [])):
        W, U, b, b_hn = (parameters[f"rnn.{index}.{name}"] for name in ("W", "U", "b", "b_hn"))
        own.cell.kernel.assign(np.concatenate(turned_gates(W)).T)
        own.cell.recurrent_kernel.assign(np.concatenate(turned_gates(U)).T)
        hidden_bias = np.concatenate([np.zeros(2 * len(b_hn), np.float32), b_hn])
        own.cell.bias.assign(np.stack([np.concatenate(turned_gates(b)), hidden_bias]))


def read(layer: keras.layers.Layer, values: Mapping[int, np.ndarray]) -> dict[str, np.ndarray]:
    """The canonical arrays of what is given for each variable of a textbook layer."""
    found = {name: back(values[id(variable)]) for name, (variable, _, back) in places(layer).items()}
    for index, own in enumerate(getattr(layer, "rnn", [])):
        W, U, b = (values[id(variable)] for variable in (own.cell.kernel, own.cell.recurrent_kernel, own.cell.bias))
        found |= {
            f"rnn.{index}.W": turned_gates(np.stack(np.split(W.T, 3))),
            f"rnn.{index}.U": turned_gates(np.stack(np.split(U.T, 3))),
            f"rnn.{index}.b": turned_gates(np.stack(np.split(b[0], 3))),
            f"rnn.{index}.b_hn": np.split(b[1], 3)[2],
        }
    return found


# ------------------------------------------------------------------------------------------------------ the forms


class Form:
    """One form of an item, in eager mode or in tf.function."""

    def __init__(
        self,
        item: Item,
        layer: keras.layers.Layer,
        given: Mapping[str, np.ndarray],
        device: str,
        write: Callable[[], None],
        read: Callable[[Mapping[int, np.ndarray]], Mapping[str, np.ndarray]],
        keywords: Mapping[str, Any],
        eager: bool,
    ) -> None:
        self.layer, self.keywords = layer, keywords
        self.names = ("logits", "state", "weights") if item.layer == "BahdanauDecoder" else ("context", "weights")
        self.inputs = {name: from_numpy(array, device) for name, array in given.items()}
        self.target = self.inputs.pop("targets" if "targets" in given else "cotangent")
        self.learned = [name for name in self.inputs if name in LEARNED]
        self.read = read
        self.device = DEVICES[device]
        if not layer.built:  # Keras makes the parameters in the first call
            whole = ("state", "valid_lens")
            layer(**{name: own if name in whole else own[:, :2] for name, own in self.inputs.items()})
        write()
        self.variables = list(layer.trainable_variables)
        self.optimizer = keras.optimizers.Adam(1e-3) if self.variables else None
        if self.optimizer is not None:
            self.optimizer.build(self.variables)
        self.called, self.differentiated, self.stepped = self.call, self.gradients, self.step
        if not eager:
            forms = (self.called, self.differentiated, self.stepped)
            self.called, self.differentiated, self.stepped = (tf.function(own, autograph=False) for own in forms)

    def call(self, inputs: Tensors) -> tuple[tf.Tensor, ...]:
        """The outputs."""
        return self.layer(**inputs, **self.keywords)

    def gradients(self, inputs: Tensors, target: tf.Tensor) -> tuple[tf.Tensor, list[tf.Tensor], list[tf.Tensor]]:
        """The loss, the gradients of the parameters and those of the inputs."""
        sources = [variable.value for variable in self.variables]
        learned = [inputs[name] for name in self.learned]
        with tf.GradientTape() as tape:
            tape.watch(learned)
            first = self.layer(**inputs, **self.keywords)[0]
            if target.dtype.is_floating:
                loss = tf.reduce_mean(first * target)
            else:
                losses = tf.nn.sparse_softmax_cross_entropy_with_logits(labels=target, logits=first)
                loss = tf.reduce_mean(losses)
        found = tape.gradient(loss, [*sources, *learned])
        found = [tf.convert_to_tensor(gradient) for gradient in found]
        return loss, found[: len(sources)], found[len(sources) :]

    def step(self, inputs: Tensors, target: tf.Tensor) -> tuple[tf.Tensor, list[tf.Tensor]]:
        """A step of training."""
        loss, own, of_inputs = self.gradients(inputs, target)
        if self.optimizer is not None:
            self.optimizer.apply(own)
        return loss, of_inputs

    def forward(self) -> Any:
        """The forward pass, without what a backward would need."""
        with tf.device(self.device):
            outputs = self.called(self.inputs)
        return outputs if "CPU" in self.device else [output.numpy() for output in outputs if output is not None]

    def training(self) -> Any:
        """A step of training: forward, backward and Adam."""
        with tf.device(self.device):
            return self.stepped(self.inputs, self.target)[0].numpy()

    def answers(self, gradients: bool) -> Mapping[str, np.ndarray]:
        """The outputs, and the gradients by canonical names."""
        with tf.device(self.device):
            outputs = zip(self.names, self.forward(), strict=False)
            found = {name: to_numpy(output) for name, output in outputs if output is not None}
            if gradients:
                loss, own, of_inputs = self.differentiated(self.inputs, self.target)
                values = {
                    id(variable): to_numpy(gradient) for variable, gradient in zip(self.variables, own, strict=True)
                }
                named = {name: to_numpy(array) for name, array in zip(self.learned, of_inputs, strict=True)}
                found |= {f"gradient of {name}": array for name, array in {**named, **self.read(values)}.items()}
                found["loss"] = to_numpy(loss)
        return found


def form(
    item: Item,
    against: str | None,
    sizes: Mapping[str, int],
    parameters: Mapping[str, np.ndarray],
    given: Mapping[str, np.ndarray],
    device: str = "cpu",
) -> Form:
    """The form of an item that ours is held against, or ours, which is called in tf.function as a Trainer does."""
    with tf.device(DEVICES[device]):
        if against is None:
            own = build(getattr(ours, item.layer), options(item, sizes), "float32", device)

            def gradients(values: Mapping[int, np.ndarray]) -> Mapping[str, np.ndarray]:
                return ours.get_parameters(own, read=lambda variable: tf.constant(values[id(variable)]))

            return Form(
                item, own, given, device, lambda: ours.set_parameters(own, parameters), gradients, item.ours, False
            )
        layer: keras.layers.Layer = DotProductAttention()
        if item.layer == "BahdanauDecoder":
            layer = BahdanauDecoder(sizes["vocabulary"], sizes["hidden"], sizes["layers"])
        elif item.layer == "AdditiveAttention":
            layer = (AdditiveAttention if against.startswith("textbook") else OwnAdditiveAttention)(sizes["hidden"])
        elif not against.startswith("textbook"):
            layer = OwnDotProductAttention()
        return Form(
            item,
            layer,
            given,
            device,
            lambda: write(layer, parameters),
            lambda values: read(layer, values),
            {},
            against == EAGER,
        )
