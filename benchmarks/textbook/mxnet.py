"""What ours is compared with in MXNet: as tutorials write it."""

from __future__ import annotations

from types import SimpleNamespace

from mxnet import autograd, gluon, np, npx
from mxnet.gluon import nn, rnn

from attention_core.operators.training import Batch
from benchmarks.problem import BOS, EOS, MAX_NORM


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
