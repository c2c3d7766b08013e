"""One small model in every framework, as people port it: embedding, attention with a mask, norm, two dense layers."""

from __future__ import annotations

import os

os.environ.setdefault("KERAS_BACKEND", "tensorflow")

import flax.linen as linen
import jax
import jax.numpy as jnp
import keras
import torch
from flax import nnx
from torch import nn

WIDTH, HEADS, VOCAB, CLASSES = 12, 3, 30, 5
EPSILON = 1e-5  # MXNet rounds it to float32
CHANGES = {"": (EPSILON, 1.0), "epsilon": (1e-3, 1.0), "scale": (EPSILON, WIDTH**0.5), "activation": (EPSILON, 1.0)}
"""The epsilon of the norm, and the factor of the embedding, of the model and with a change."""


class Torch(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed = nn.Embedding(VOCAB, WIDTH)
        self.attention = nn.MultiheadAttention(WIDTH, HEADS, batch_first=True)
        self.norm = nn.LayerNorm(WIDTH, EPSILON)
        self.dense = nn.Linear(WIDTH, WIDTH)
        self.out = nn.Linear(WIDTH, CLASSES)

    def forward(self, tokens, mask):
        x = self.embed(tokens)
        y, _ = self.attention(x, x, x, key_padding_mask=~mask, need_weights=False)
        return self.out(torch.relu(self.dense(self.norm(x + y))))


class Nnx(nnx.Module):
    def __init__(self, epsilon, scale, activation):
        rngs = nnx.Rngs(1)
        self.scale, self.activation = scale, activation
        self.embed = nnx.Embed(VOCAB, WIDTH, rngs=rngs)
        self.attention = nnx.MultiHeadAttention(num_heads=HEADS, in_features=WIDTH, decode=False, rngs=rngs)
        self.norm = nnx.LayerNorm(WIDTH, epsilon=epsilon, rngs=rngs)
        self.dense = nnx.Linear(WIDTH, WIDTH, rngs=rngs)
        self.out = nnx.Linear(WIDTH, CLASSES, rngs=rngs)

    def __call__(self, tokens, mask):
        x = self.embed(tokens)
        y = self.attention(x, mask=mask[:, None, None, :])
        return self.out(self.activation(self.dense(self.norm(self.scale * x + y))))


class Linen(linen.Module):
    epsilon: float
    scale: float
    activation: object

    @linen.compact
    def __call__(self, tokens, mask):
        x = linen.Embed(VOCAB, WIDTH, name="embed")(tokens)
        y = linen.MultiHeadDotProductAttention(num_heads=HEADS, name="attention")(x, mask=mask[:, None, None, :])
        x = linen.LayerNorm(epsilon=self.epsilon, name="norm")(self.scale * x + y)
        return linen.Dense(CLASSES, name="out")(self.activation(linen.Dense(WIDTH, name="dense")(x)))


class Keras(keras.Model):
    def __init__(self, epsilon, scale):
        super().__init__()
        self.scale = scale
        self.embed = keras.layers.Embedding(VOCAB, WIDTH, name="embed")
        self.attention = keras.layers.MultiHeadAttention(HEADS, WIDTH // HEADS, name="attention")
        self.norm = keras.layers.LayerNormalization(epsilon=epsilon, name="norm")
        self.dense = keras.layers.Dense(WIDTH, activation="relu", name="dense")
        self.out = keras.layers.Dense(CLASSES, name="out")

    def call(self, tokens, mask):
        x = self.embed(tokens)
        y = self.attention(x, x, attention_mask=mask[:, None, :])
        return self.out(self.dense(self.norm(self.scale * x + y)))


def gluon(epsilon, scale):
    from mxnet import np, npx
    from mxnet.gluon import Block
    from mxnet.gluon import nn as layers

    npx.set_np()

    class Attention(Block):
        def __init__(self):
            super().__init__()
            for name in ("query", "key", "value", "out"):
                setattr(self, name, layers.Dense(WIDTH, flatten=False, in_units=WIDTH))

        def forward(self, x, mask):
            batch, steps, _ = x.shape
            heads = [part(x).reshape(batch, steps, HEADS, -1) for part in (self.query, self.key, self.value)]
            q, k, v = (part.transpose(0, 2, 1, 3) for part in heads)
            scores = np.matmul(q, k.transpose(0, 1, 3, 2)) * (WIDTH // HEADS) ** -0.5
            hidden = np.logical_not(mask).reshape(batch, 1, 1, steps)
            weights = npx.softmax(np.where(hidden, np.full_like(scores, -np.inf), scores), axis=-1)
            return self.out(np.matmul(weights, v).transpose(0, 2, 1, 3).reshape(batch, steps, WIDTH))

    class Gluon(Block):
        def __init__(self):
            super().__init__()
            self.embed = layers.Embedding(VOCAB, WIDTH)
            self.attention = Attention()
            self.norm = layers.LayerNorm(epsilon=epsilon, in_channels=WIDTH)
            self.dense = layers.Dense(WIDTH, activation="relu", flatten=False, in_units=WIDTH)
            self.out = layers.Dense(CLASSES, flatten=False, in_units=WIDTH)

        def forward(self, tokens, mask):
            x = self.embed(tokens)
            return self.out(self.dense(self.norm(scale * x + self.attention(x, mask))))

    model = Gluon()
    model.initialize()
    return model


def make(port: str, change: str = ""):
    """The model in a framework, with a change."""
    epsilon, scale = CHANGES[change]
    if port == "torch":
        torch.manual_seed(3)
        model = Torch()
        with torch.no_grad():
            for parameter in model.parameters():
                parameter.add_(0.2 * torch.rand_like(parameter))
        return model
    if port == "nnx":
        return Nnx(epsilon, scale, nnx.gelu if change == "activation" else nnx.relu)
    if port == "linen":
        module = Linen(epsilon, scale, linen.silu if change == "activation" else linen.relu)
        return module, module.init(jax.random.key(0), jnp.zeros((3, 7), int), jnp.ones((3, 7), bool))
    return Keras(epsilon, scale) if port == "keras" else gluon(epsilon, scale)
