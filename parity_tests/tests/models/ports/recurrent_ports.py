"""A bidirectional LSTM and a GRU behind it, in every framework."""

from __future__ import annotations

import os

os.environ.setdefault("KERAS_BACKEND", "tensorflow")

import keras
from flax import nnx
from torch import nn

VOCAB, WIDTH, HIDDEN, STEPS, CLASSES = 30, 8, 6, 7, 3


class Torch(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed = nn.Embedding(VOCAB, WIDTH)
        self.lstm = nn.LSTM(WIDTH, HIDDEN, batch_first=True, bidirectional=True)
        self.gru = nn.GRU(2 * HIDDEN, HIDDEN, batch_first=True)
        self.out = nn.Linear(HIDDEN, CLASSES)

    def forward(self, tokens):
        steps, _ = self.lstm(self.embed(tokens))
        return self.out(self.gru(steps)[0][:, -1])


def keras_port():
    layers = keras.layers
    return keras.Sequential(
        [
            keras.Input((STEPS,), dtype="int32", name="tokens"),
            layers.Embedding(VOCAB, WIDTH),
            layers.Bidirectional(layers.LSTM(HIDDEN, return_sequences=True)),
            layers.GRU(HIDDEN),
            layers.Dense(CLASSES),
        ]
    )


class Nnx(nnx.Module):
    def __init__(self):
        rngs = nnx.Rngs(0)
        self.embed = nnx.Embed(VOCAB, WIDTH, rngs=rngs)
        cells = [nnx.RNN(nnx.OptimizedLSTMCell(WIDTH, HIDDEN, rngs=rngs)) for _ in range(2)]
        self.lstm = nnx.Bidirectional(*cells)
        self.gru = nnx.RNN(nnx.GRUCell(2 * HIDDEN, HIDDEN, rngs=rngs))
        self.out = nnx.Linear(HIDDEN, CLASSES, rngs=rngs)

    def __call__(self, tokens):
        return self.out(self.gru(self.lstm(self.embed(tokens)))[:, -1])


def gluon_port():
    from mxnet import npx
    from mxnet.gluon import nn as layers
    from mxnet.gluon import rnn

    npx.set_np()

    class Gluon(layers.HybridBlock):
        def __init__(self):
            super().__init__()
            self.embed = layers.Embedding(VOCAB, WIDTH)
            self.lstm = rnn.LSTM(HIDDEN, layout="NTC", bidirectional=True, input_size=WIDTH)
            self.gru = rnn.GRU(HIDDEN, layout="NTC", input_size=2 * HIDDEN)
            self.out = layers.Dense(CLASSES, in_units=HIDDEN)

        def forward(self, tokens):
            return self.out(self.gru(self.lstm(self.embed(tokens)))[:, -1])

    model = Gluon()
    model.initialize()
    return model


PORTS = {"keras": keras_port, "nnx": Nnx, "gluon": gluon_port}
