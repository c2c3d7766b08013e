"""The items in MXNet: as tutorials write them, and ours."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from operator import attrgetter, methodcaller
from types import SimpleNamespace
from typing import Any

import mxnet as mx
import numpy
from mxnet import autograd, gluon, np, npx
from mxnet.gluon import nn, rnn

import backends.mxnet as ours
from attention_core.operators.training import Batch
from backends.mxnet.arrays import context, from_numpy, to_numpy
from backends.mxnet.runtime import build
from parity_tests.bench.measure import Form, SearchForm, TrainingForm, canonical, parameter_path, stored
from parity_tests.bench.problem import BOS, EOS, LEARNING_RATE, MAX_NORM, Problem


def configure(threads: int) -> None:
    """Nothing: the environment variables have set it."""


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


GRU = {"W": "rnn.l{}_i2h_weight", "U": "rnn.l{}_h2h_weight", "b": "rnn.l{}_i2h_bias", "b_hn": "rnn.l{}_h2h_bias"}


class Encoder(nn.Block):
    """An embedding and recurrent layers, whose states are their outputs at the last token of each sentence.

    MXNet ignores use_sequence_length on a CPU.
    """

    def __init__(self, vocabulary: int, size: int, layers: int) -> None:
        super().__init__()
        self.embedding = nn.Embedding(vocabulary, size)
        self.layers = nn.Sequential()
        self.layers.add(*(rnn.GRU(size, 1, input_size=size) for _ in range(layers)))
        self.rnn = SimpleNamespace()  # the parameters, named as those of one GRU of so many layers
        for index, layer in enumerate(self.layers):
            for name in (path.removeprefix("rnn.") for path in GRU.values()):
                setattr(self.rnn, name.format(index), getattr(layer, name.format(0)))

    def forward(self, source: np.ndarray, lens: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """(outputs, state)."""
        outputs, states = np.swapaxes(self.embedding(source), 0, 1), []
        for layer in self.layers:
            outputs = layer(outputs)
            states.append(outputs[lens - 1, np.arange(len(source), dtype="int32")])
        return np.swapaxes(outputs, 0, 1), np.stack(states)


class Translator(nn.Block):
    """The encoder and the decoder above."""

    def __init__(self, source_vocabulary: int, vocabulary: int, size: int, layers: int) -> None:
        super().__init__()
        self.encoder = Encoder(source_vocabulary, size, layers)
        self.decoder = BahdanauDecoder(vocabulary, size, layers)

    def forward(self, source: np.ndarray, source_lens: np.ndarray, inputs: np.ndarray) -> np.ndarray:
        """The logits."""
        outputs, state = self.encoder(source, source_lens)
        return self.decoder(inputs, outputs, state, source_lens)[0]


def greedy(model: Translator, source: np.ndarray, source_lens: np.ndarray, steps: int) -> tuple[np.ndarray]:
    """A loop over the steps, up to the one in which the last sentence ends."""
    outputs, state = model.encoder(source, source_lens)
    token, ended = np.full((len(source),), BOS, dtype="int32"), np.zeros((len(source),))
    tokens: list[np.ndarray] = []
    while len(tokens) < steps and not ended.all():
        logits, state, _ = model.decoder(token[:, None], outputs, state, source_lens)
        token = np.where(ended, np.full_like(token, EOS), np.argmax(logits[:, 0], axis=-1).astype("int32"))
        ended = token == EOS
        tokens.append(token)
    tokens += [np.full_like(token, EOS)] * (steps - len(tokens))
    return (np.stack(tokens, axis=1),)


def beam(
    model: Translator, source: np.ndarray, source_lens: np.ndarray, steps: int, width: int, num_best: int
) -> tuple[np.ndarray]:
    """The same for all hypotheses of a sentence side by side; what has ended goes on as itself."""
    batch, (outputs, state) = len(source), model.encoder(source, source_lens)
    outputs, lens, state = (
        np.repeat(array, width, axis=axis) for array, axis in ((outputs, 0), (source_lens, 0), (state, 1))
    )
    tokens, ended = np.full((batch * width, 1), BOS, dtype="int32"), np.zeros((batch * width,))
    totals = np.tile(np.array([0.0] + [-np.inf] * (width - 1)), (batch, 1))
    first = np.arange(batch, dtype="int32")[:, None] * width
    while tokens.shape[1] <= steps and not ended.all():
        logits, state, _ = model.decoder(tokens[:, -1:], outputs, state, lens)
        logs = npx.log_softmax(logits[:, 0])
        vocabulary = logs.shape[-1]
        itself = np.where(np.arange(vocabulary) == EOS, np.zeros((vocabulary,)), np.full((vocabulary,), -np.inf))
        logs = np.where(ended[:, None], itself, logs)
        candidates = (totals[:, :, None] + logs.reshape(batch, width, vocabulary)).reshape(batch, -1)
        totals, best = npx.topk(candidates, k=width, ret_typ="both", dtype="int32")
        token = np.mod(best, vocabulary).reshape(-1)
        rows = (first + (best - np.mod(best, vocabulary)) / vocabulary).reshape(-1).astype("int32")
        tokens = np.concatenate([tokens[rows], token.astype("int32")[:, None]], axis=1)
        state, ended = state[:, rows], np.where(token == EOS, np.ones_like(ended), ended[rows])
    ends = np.full((batch * width, steps + 1 - tokens.shape[1]), EOS, dtype="int32")
    tokens = np.concatenate([tokens, ends], axis=1)[:, 1:]
    return (tokens.reshape(batch, width, steps)[:, :num_best],)


def training_step(model: Translator, trainer: gluon.Trainer, batch: Batch) -> tuple[np.ndarray, np.ndarray]:
    """Logits of all steps, a loss for each, of which those of padding are masked, clipping, and Adam."""
    with autograd.record():
        logits = model(batch.source, batch.source_lens, batch.inputs)
        losses = -npx.pick(npx.log_softmax(logits), batch.targets)
        masked = npx.sequence_mask(losses, batch.target_lens, use_sequence_length=True, axis=1)
        loss = masked.sum() / batch.target_lens.sum()
    loss.backward()
    parameters = model.collect_params()
    for name in (name for name in parameters if name.endswith("h2h_bias")):
        gradient = parameters[name].grad()  # a second bias of the gates r and z, which ours has not, stays 0
        gradient[: len(gradient) // 3 * 2] = 0
    gradients = [parameter.grad() for parameter in parameters.values()]
    norm = sum((gradient**2).sum() for gradient in gradients) ** 0.5
    for gradient in gradients:
        gradient[:] *= np.minimum(MAX_NORM / norm, 1.0)
    trainer.step(1)
    return loss, norm


# ------------------------------------------------------------------------------------------------------ the forms


class BlockForm(Form):
    """One form of a problem: a block."""

    to_numpy = staticmethod(to_numpy)

    def __init__(
        self, problem: Problem, block: nn.Block, device: str, gradients: Callable[[], Mapping[str, numpy.ndarray]]
    ) -> None:
        super().__init__(problem, partial(from_numpy, device=device))
        for array in self.learned.values():
            array.attach_grad()
        self.block, self.gradients = block, gradients
        self.trainer = gluon.Trainer(block.collect_params(), "adam", {"learning_rate": 1e-3})
        self.cross_entropy = gluon.loss.SoftmaxCrossEntropyLoss()

    def forward(self) -> Any:
        """Run the forward pass, without what a backward would need."""
        outputs = self.block(*self.inputs.values())
        npx.waitall()
        return outputs

    def backward(self) -> np.ndarray:
        """The loss; the gradients are where MXNet keeps them."""
        with autograd.record():
            first = self.block(*self.inputs.values())[0]
            if self.target.dtype.kind == "f":
                loss = (first * self.target).mean()
            else:
                loss = self.cross_entropy(first, self.target).mean()
        loss.backward()
        return loss

    def training(self) -> Any:
        """Run a step of training: forward, backward and Adam."""
        loss = self.backward()
        self.trainer.step(1)
        npx.waitall()
        return loss

    def differentiate(self) -> tuple[Any, Mapping[str, Any], Mapping[str, numpy.ndarray]]:
        """The loss, its gradients by the inputs that have one, and those by the parameters, canonical."""
        loss = self.backward()
        return loss, {name: array.grad for name, array in self.learned.items()}, self.gradients()


def third_party(problem: Problem) -> nn.Block:
    """The block that ours is compared with, before it has its parameters."""
    sizes = problem.sizes
    if problem.item.layer == "BahdanauDecoder":
        return BahdanauDecoder(sizes["vocabulary"], sizes["hidden"], sizes["layers"])
    if problem.item.layer == "Translator":
        return Translator(sizes["source_vocabulary"], sizes["vocabulary"], sizes["hidden"], sizes["layers"])
    return AdditiveAttention(sizes["hidden"])


def filled(problem: Problem, block: nn.Block) -> dict[str, gluon.Parameter]:
    """Copy the problem's parameters into a third-party block; return its own by their canonical names."""
    block.initialize(mx.init.Zero())
    places = {name: attrgetter(parameter_path(name, GRU))(block) for name in problem.parameters}
    for name, place in places.items():
        place.set_data(from_numpy(stored(problem.parameters[name], place.shape)))
    return places


def training_form(problem: Problem, against: str | None, device: str) -> TrainingForm:
    """A translator in training, as tutorials write it or ours."""
    batch = Batch(*(from_numpy(array, device) for array in problem.inputs.values()))
    if against is None:
        layer = build(ours.Translator, problem.options, "float32", device)
        ours.set_parameters(layer, problem.parameters)
        trainer = ours.Trainer(layer, ours.adam(LEARNING_RATE), max_norm=MAX_NORM)
        return TrainingForm(partial(trainer.step, batch), to_numpy)
    block = third_party(problem)
    filled(problem, block)
    stepper = gluon.Trainer(block.collect_params(), "adam", {"learning_rate": LEARNING_RATE})
    return TrainingForm(partial(training_step, block, stepper, batch), to_numpy)


def search_form(problem: Problem, against: str | None, device: str) -> SearchForm:
    """A translator that decodes, as tutorials write it or ours."""
    given = [from_numpy(problem.inputs[name], device) for name in ("source", "source_lens")]
    steps, keywords = problem.sizes["steps"], problem.item.keywords
    if against is None:
        layer = build(ours.Translator, problem.options, "float32", device)
        ours.set_parameters(layer, problem.parameters)
        search = partial(layer.beam if "width" in keywords else layer.greedy, bos=BOS, eos=EOS, max_steps=steps)
    else:
        block = third_party(problem)
        filled(problem, block)
        search = partial(beam if "width" in keywords else greedy, block, steps=steps)

    def found() -> tuple[np.ndarray]:
        tokens = search(*given, **keywords)[0]
        tokens.wait_to_read()
        return (tokens,)

    return SearchForm(found, to_numpy)


def form(problem: Problem, against: str | None, device: str = "cpu") -> Form:
    """The form of a problem that ours is compared with, or ours."""
    with context(device):
        if problem.item.layer == "Translator":
            made = search_form if "sentences" in problem.item.outputs else training_form
            return made(problem, against, device)
        if against is None:
            layer = build(getattr(ours, problem.item.layer), problem.options, "float32", device)
            ours.set_parameters(layer, problem.parameters)
            return BlockForm(problem, layer, device, partial(ours.get_parameters, layer, read=methodcaller("grad")))
        block = third_party(problem)
        places = filled(problem, block)

        def read() -> dict[str, numpy.ndarray]:
            shapes = {name: array.shape for name, array in problem.parameters.items()}
            return {name: canonical(to_numpy(place.grad()), shapes[name]) for name, place in places.items()}

        return BlockForm(problem, block, device, read)
