"""The items in MXNet: as tutorials write them, and ours."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import mxnet as mx
import numpy
from mxnet import autograd, gluon, np, npx
from mxnet.gluon import nn, rnn

import backends.mxnet as ours
from backends.mxnet.arrays import context, from_numpy, to_numpy
from backends.mxnet.runtime import build
from parity_tests.bench.items import LEARNED, Item, options
from parity_tests.bench.measure import Clock, wall

Read = Callable[[gluon.Parameter], np.ndarray]


def configure() -> None:
    """Nothing: the variables of the environment have said it."""


def clock(device: str) -> Clock:
    """What measures a call: MXNet has no events, but each call here waits for the device."""
    return wall


# ----------------------------------------------------------------------------------------- as tutorials write them


def masked_softmax(scores: np.ndarray, valid_lens: np.ndarray) -> np.ndarray:
    """Softmax over the keys, with a large negative number where there is padding."""
    rows = scores.reshape(-1, scores.shape[-1])
    lens = np.repeat(valid_lens, rows.shape[0] // valid_lens.shape[0])
    rows = npx.sequence_mask(rows, lens, use_sequence_length=True, value=-1e6, axis=1)
    return npx.softmax(rows).reshape(scores.shape)


class AdditiveAttention(nn.Block):
    """softmax(w_v tanh(W_q q + W_k k)) v, with one array of (batch, queries, keys, hidden)."""

    def __init__(self, size: int) -> None:
        super().__init__()
        self.W_q = nn.Dense(size, use_bias=False, flatten=False, in_units=size)
        self.W_k = nn.Dense(size, use_bias=False, flatten=False, in_units=size)
        self.w_v = nn.Dense(1, use_bias=False, flatten=False, in_units=size)

    def forward(
        self, queries: np.ndarray, keys: np.ndarray, values: np.ndarray, valid_lens: np.ndarray
    ) -> tuple[np.ndarray, np.ndarray]:
        """(context, weights)."""
        queries, keys = self.W_q(queries), self.W_k(keys)
        features = np.tanh(np.expand_dims(queries, 2) + np.expand_dims(keys, 1))
        weights = masked_softmax(np.squeeze(self.w_v(features), -1), valid_lens)
        return npx.batch_dot(weights, values), weights


class BahdanauDecoder(nn.Block):
    """A loop over the steps; each projects the keys, attends, and runs the recurrent layers for one step."""

    def __init__(self, vocabulary: int, size: int, layers: int) -> None:
        super().__init__()
        self.embedding = nn.Embedding(vocabulary, size)
        self.attention = AdditiveAttention(size)
        self.rnn = rnn.GRU(size, layers, input_size=2 * size)
        self.dense = nn.Dense(vocabulary, flatten=False, in_units=size)

    def forward(
        self, tokens: np.ndarray, encoder_outputs: np.ndarray, state: np.ndarray, valid_lens: np.ndarray
    ) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """(logits, state, weights)."""
        embedded = np.swapaxes(self.embedding(tokens), 0, 1)
        outputs, attended = [], []
        for x in embedded:
            query = np.expand_dims(state[-1], 1)
            context, weights = self.attention(query, encoder_outputs, encoder_outputs, valid_lens)
            step = np.concatenate([context, np.expand_dims(x, 1)], axis=-1)
            output, (state,) = self.rnn(np.swapaxes(step, 0, 1), [state])
            outputs.append(output)
            attended.append(weights)
        logits = self.dense(np.concatenate(outputs, axis=0))
        return np.swapaxes(logits, 0, 1), state, np.concatenate(attended, axis=1)


def places(block: nn.Block) -> dict[str, tuple[gluon.Parameter, tuple[int, ...]]]:
    """The parameter that holds each canonical one of a textbook block, and the shape in which it is canonical."""
    if isinstance(block, AdditiveAttention):
        size = block.w_v.weight.shape[1]
        return {
            "W_q": (block.W_q.weight, (size, size)),
            "W_k": (block.W_k.weight, (size, size)),
            "w_v": (block.w_v.weight, (size,)),
        }
    found = {
        "embedding": (block.embedding.weight, block.embedding.weight.shape),
        "dense.W": (block.dense.weight, block.dense.weight.shape),
        "dense.b": (block.dense.bias, block.dense.bias.shape),
        **{f"attention.{name}": place for name, place in places(block.attention).items()},
    }
    for layer in range(block.rnn._num_layers):
        for name, own in {"W": "i2h_weight", "U": "h2h_weight", "b": "i2h_bias", "b_hn": "h2h_bias"}.items():
            parameter = getattr(block.rnn, f"l{layer}_{own}")
            found[f"rnn.{layer}.{name}"] = (parameter, (3, -1, *parameter.shape[1:]))
    return found


def write(block: nn.Block, parameters: Mapping[str, numpy.ndarray]) -> None:
    """Copy canonical parameters into a textbook block."""
    for name, (parameter, _) in places(block).items():
        array = parameters[name]
        if name.endswith("b_hn"):  # the hidden biases of the other gates are redundant
            array = numpy.concatenate([numpy.zeros(2 * len(array), array.dtype), array])
        parameter.set_data(from_numpy(array.reshape(parameter.shape)))


def read(block: nn.Block) -> dict[str, numpy.ndarray]:
    """The canonical gradients of a textbook block."""
    found = {name: to_numpy(parameter.grad()).reshape(shape) for name, (parameter, shape) in places(block).items()}
    return {name: array[2] if name.endswith("b_hn") else array for name, array in found.items()}


# ------------------------------------------------------------------------------------------------------ the forms


class Form:
    """One form of an item."""

    def __init__(
        self,
        item: Item,
        block: nn.Block,
        given: Mapping[str, numpy.ndarray],
        device: str,
        gradients: Callable[[], Mapping[str, numpy.ndarray]],
    ) -> None:
        self.block = block
        self.names = ("logits", "state", "weights") if item.layer == "BahdanauDecoder" else ("context", "weights")
        self.inputs = {name: from_numpy(array, device) for name, array in given.items()}
        self.target = self.inputs.pop("targets" if "targets" in given else "cotangent")
        self.learned = {name: own for name, own in self.inputs.items() if name in LEARNED}
        for own in self.learned.values():
            own.attach_grad()
        self.trainer = gluon.Trainer(block.collect_params(), "adam", {"learning_rate": 1e-3})
        self.cross_entropy = gluon.loss.SoftmaxCrossEntropyLoss()
        self.gradients = gradients

    def forward(self) -> Any:
        """The forward pass, without what a backward would need."""
        outputs = self.block(*self.inputs.values())
        npx.waitall()
        return outputs

    def backward(self) -> np.ndarray:
        """The loss, and the gradients where MXNet keeps them."""
        with autograd.record():
            first = self.block(*self.inputs.values())[0]
            if self.target.dtype.kind == "f":
                loss = (first * self.target).mean()
            else:
                loss = self.cross_entropy(first, self.target).mean()
        loss.backward()
        return loss

    def training(self) -> Any:
        """A step of training: forward, backward and Adam."""
        loss = self.backward()
        self.trainer.step(1)
        npx.waitall()
        return loss

    def answers(self, gradients: bool) -> Mapping[str, numpy.ndarray]:
        """The outputs, and the gradients by canonical names."""
        found = {name: to_numpy(output) for name, output in zip(self.names, self.forward(), strict=False)}
        if gradients:
            found["loss"] = to_numpy(self.backward())
            of_inputs = {name: to_numpy(own.grad) for name, own in self.learned.items()}
            found |= {f"gradient of {name}": array for name, array in {**of_inputs, **self.gradients()}.items()}
        return found


def form(
    item: Item,
    against: str | None,
    sizes: Mapping[str, int],
    parameters: Mapping[str, numpy.ndarray],
    given: Mapping[str, numpy.ndarray],
    device: str = "cpu",
) -> Form:
    """The form of an item that ours is held against, or ours."""
    with context(device):
        if against is None:
            layer = build(getattr(ours, item.layer), options(item, sizes), "float32", device)
            ours.set_parameters(layer, parameters)
            read_own: Read = lambda parameter: parameter.grad()  # noqa: E731
            return Form(item, layer, given, device, lambda: ours.get_parameters(layer, read=read_own))
        block = AdditiveAttention(sizes["hidden"])
        if item.layer == "BahdanauDecoder":
            block = BahdanauDecoder(sizes["vocabulary"], sizes["hidden"], sizes["layers"])
        block.initialize(mx.init.Zero())
        write(block, parameters)
        return Form(item, block, given, device, lambda: read(block))
