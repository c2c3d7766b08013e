"""PyTorch models in the forms of tutorials, and differences to plant in them, one line each."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch import nn
from torch.nn import functional as F


class RMSNorm(nn.Module):
    """x / √(mean(x²) + ε) · g."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(width))
        self.epsilon = lambda module: 1e-6

    def forward(self, x):
        return self.weight * x * torch.rsqrt((x * x).mean(-1, keepdim=True) + self.epsilon(self))


class Attention(nn.Module):
    """Attention with heads. What can be replaced are functions of the module: a recording shows no values of theirs."""

    def __init__(self, width: int, heads: int, rotary: bool = False) -> None:
        super().__init__()
        self.q, self.k, self.v, self.o = (nn.Linear(width, width) for _ in range(4))
        self.heads, self.rotary = heads, rotary
        self.scale = lambda module, q: q.shape[-1] ** -0.5
        self.fill = lambda module: -math.inf
        self.causal = lambda module, steps, keys: torch.ones(steps, keys, dtype=torch.bool).tril()
        self.join = lambda module, context: context.transpose(1, 2).flatten(2)
        self.turn = lambda module, x: turn(x, 1e4, False, 0)
        self.weigh = lambda module, scores: torch.softmax(scores, -1)
        self.hide = lambda module, mask: mask

    def forward(self, x, memory, mask=None, causal=False):
        split = lambda y: y.unflatten(-1, (self.heads, -1)).transpose(1, 2)  # noqa: E731
        q, k, v = split(self.q(x)), split(self.k(memory)), split(self.v(memory))
        if self.rotary:
            q, k = self.turn(self, q), self.turn(self, k)
        scores = q @ k.transpose(-1, -2) * self.scale(self, q)
        allowed = torch.ones(scores.shape[-2:], dtype=torch.bool)
        if causal:
            allowed = self.causal(self, *scores.shape[-2:])
        if mask is not None:
            allowed = allowed & self.hide(self, mask)[:, None, None, :]
        weights = torch.nan_to_num(self.weigh(self, scores.masked_fill(~allowed, self.fill(self))))
        return self.o(self.join(self, weights @ v))


def turn(x, base: float, halves: bool, first: int):
    """Rotate pairs of features by the position."""
    steps, width = x.shape[-2:]
    angles = torch.arange(first, first + steps)[:, None] * base ** (-torch.arange(0, width, 2, dtype=x.dtype) / width)
    cos, sin = angles.cos().to(x.dtype), angles.sin().to(x.dtype)
    a, b = (x[..., : width // 2], x[..., width // 2 :]) if halves else (x[..., ::2], x[..., 1::2])
    turned = a * cos - b * sin, b * cos + a * sin
    return torch.cat(turned, -1) if halves else torch.stack(turned, -1).flatten(-2)


def sinusoids(steps: int, width: int, base: float = 1e4, interleaved: bool = True, first: int = 0):
    """A table of sines and cosines."""
    rates = base ** (-np.arange(0, width, 2) / width)
    angles = np.arange(first, first + steps)[:, None] * rates
    both = [np.sin(angles), np.cos(angles)]
    return torch.tensor(np.stack(both, -1).reshape(steps, -1) if interleaved else np.concatenate(both, -1))


class Block(nn.Module):
    """A layer of a decoder: attention to itself, to the encoder, and two matrices."""

    def __init__(self, width: int, heads: int, rotary: bool) -> None:
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(width), RMSNorm(width)
        self.norm3 = nn.LayerNorm(width)
        self.attention = Attention(width, heads, rotary)
        self.cross = Attention(width, heads)
        self.up, self.down = nn.Linear(width, 3 * width), nn.Linear(3 * width, width)
        self.activation = lambda module, x: F.gelu(x)
        self.residual = lambda module, x, y: x + y
        self.attend = lambda module, x, memory, mask: module.cross(x, memory, mask)

    def forward(self, x, memory, mask):
        y = self.norm1(x)
        x = x + self.attention(y, y, causal=True)
        x = self.residual(self, x, self.attend(self, self.norm2(x), memory, mask))
        return x + self.down(self.activation(self, self.up(self.norm3(x))))


class Decoder(nn.Module):
    """A decoder of tokens that reads encoder outputs, with tied embeddings."""

    def __init__(self, width: int = 16, heads: int = 4, layers: int = 3, vocab: int = 37, rotary: bool = False) -> None:
        super().__init__()
        self.embedding = nn.Embedding(vocab, width)
        self.places = nn.Embedding(24, width)
        self.dropout = nn.Dropout(0.1)
        self.layers = nn.ModuleList(Block(width, heads, rotary) for _ in range(layers))
        self.norm = nn.LayerNorm(width)
        self.out = nn.Linear(width, vocab, bias=False)
        self.out.weight = self.embedding.weight
        self.scale = lambda module, x: x * width**0.5
        self.positions = lambda module, x: module.places(torch.arange(x.shape[1]))
        self.wave = lambda module, x: sinusoids(x.shape[1], x.shape[2]).to(x.dtype)
        self.last = lambda module, x: x

    def forward(self, tokens, memory, mask):
        x = self.scale(self, self.embedding(tokens))
        x = self.dropout(x + self.positions(self, x) + self.wave(self, x))
        for layer in self.layers:
            x = layer(x, memory, mask)
        return {"logits": self.last(self, self.out(self.norm(x)))}


class Images(nn.Module):
    """Two convolutions with batch normalization, and a classifier."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Conv2d(3, 8, 3, padding=1), nn.Conv2d(8, 12, 3, padding=1)
        self.norm, self.pool = nn.BatchNorm2d(8), lambda module, x: F.max_pool2d(x, 2)
        self.mean = lambda module, x: x.mean((-1, -2))
        self.head = nn.Linear(12, 5)
        self.activation = lambda module, x: F.leaky_relu(x)

    def forward(self, images):
        x = self.pool(self, self.activation(self, self.norm(self.first(images))))
        return self.head(self.mean(self, self.activation(self, self.second(x))))


class Sequence(nn.Module):
    """An embedding, an LSTM and a GRU."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(23, 6)
        self.lstm, self.gru = nn.LSTM(6, 10, batch_first=True), nn.GRU(10, 7, batch_first=True)
        self.head = nn.Linear(7, 4)
        self.read = lambda module, tokens: tokens
        self.end = lambda module, x: x[:, -1]

    def forward(self, tokens):
        x, _ = self.lstm(self.embedding(self.read(self, tokens)))
        x, _ = self.gru(x)
        return self.head(self.end(self, x))


INPUTS = {
    Decoder: "tokens: int (3, 7) < 37; memory: float (3, 9, 16); mask: mask (3, 9)",
    Images: "images: float (4, 3, 8, 10)",
    Sequence: "tokens: int (3, 6) < 23",
}


def make(kind: type[nn.Module], **options: Any) -> nn.Module:
    """A model with drawn parameters: norms, too, whose gains and biases are not 1 and 0."""
    torch.manual_seed(7)
    model = kind(**options)
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.ndim == 1:
                parameter.add_(0.3 * torch.rand_like(parameter) - 0.1)
        for name, buffer in model.named_buffers():
            if "running" in name:
                buffer.add_(0.2 * torch.rand_like(buffer))
    return model.eval()


def put(path: str, value: Any) -> Callable[[nn.Module], None]:
    """Replace an attribute of a module within a model."""

    def plant(model: nn.Module) -> None:
        place, _, name = path.rpartition(".")
        module = model.get_submodule(place)
        if name == "forward":  # of the class: a copy of the model calls it with itself
            module.__class__ = type(type(module).__name__, (type(module),), {"forward": value})
        else:
            setattr(module, name, value)

    return plant


def write(name: str, change: Callable[[torch.Tensor], torch.Tensor]) -> Callable[[nn.Module], None]:
    """Change a parameter or buffer of a model."""

    def plant(model: nn.Module) -> None:
        tensor = {**dict(model.named_parameters()), **dict(model.named_buffers())}[name]
        with torch.no_grad():
            tensor.copy_(change(tensor.clone()))

    return plant


def rows(order: tuple[int, ...]) -> Callable[[torch.Tensor], torch.Tensor]:
    """Blocks of the first axis in another order."""
    return lambda tensor: torch.cat([tensor.chunk(len(order))[index] for index in order])


class Scaled(torch.autograd.Function):
    """The identity, with a gradient that is halved."""

    @staticmethod
    def forward(context, x):
        return x.clone()

    @staticmethod
    def backward(context, gradient):
        return 0.5 * gradient


def gates(*order: int) -> Callable[[nn.Module], None]:
    """The gates of the LSTM in another order, in all of its parameters."""

    def plant(model: nn.Module) -> None:
        for name in ("weight_ih_l0", "weight_hh_l0", "bias_ih_l0", "bias_hh_l0"):
            write(f"lstm.{name}", rows(order))(model)

    return plant


def layer(number: int, name: str) -> str:
    return f"layers.{number}.{name}"


PLANTED: dict[str, tuple[type[nn.Module], Callable[[nn.Module], None], str, str]] = {
    # the model, what is planted, a part of the sentence on where, and of what it looks like ("" if it has no name)
    "epsilon": (Decoder, put("layers.1.norm1.eps", 1e-6), "layers.1.norm1 ", "epsilon 1e-06, expected epsilon 1e-05"),
    "epsilon of Keras": (Decoder, put("norm.eps", 1e-3), "norm ", "epsilon 0.001, expected epsilon 1e-05"),
    "epsilon of RMS": (
        Decoder,
        put("layers.2.norm2.epsilon", lambda module: 1e-5),
        "layers.2.norm2 ",
        "RMS norm, epsilon 1e-05",
    ),
    "GELU by tanh": (
        Decoder,
        put("layers.1.activation", lambda module, x: F.gelu(x, approximate="tanh")),
        "layers.1.up and the input 0 of layers.1.down",
        "tanh-approximated GELU, expected GELU",
    ),
    "GELU by sigmoid": (
        Decoder,
        put("layers.0.activation", lambda module, x: x * torch.sigmoid(1.702 * x)),
        "layers.0.down",
        "sigmoid-approximated GELU, expected GELU",
    ),
    "ReLU": (Decoder, put("layers.2.activation", lambda module, x: F.relu(x)), "layers.2.down", "ReLU, expected GELU"),
    "SiLU": (Decoder, put("layers.2.activation", lambda module, x: F.silu(x)), "layers.2.down", "SiLU, expected GELU"),
    "no activation": (
        Decoder,
        put("layers.0.activation", lambda module, x: x),
        "layers.0.down",
        "no activation, expected GELU",
    ),
    "heads in another order": (
        Decoder,
        put("layers.1.attention.join", lambda module, context: context[:, [1, 0, 2, 3]].transpose(1, 2).flatten(2)),
        "layers.1.attention.o",
        "blocks of 4 of axis 2 are in another order: 1, 0, 2, 3",
    ),
    "square matrix transposed": (
        Decoder,
        write("layers.1.cross.k.weight", lambda w: w.T),
        "layers.1.cross.k ",
        "transposed",
    ),
    "gates in another order": (Sequence, gates(1, 0, 2, 3), "lstm ", "in another order: 1, 0"),
    "gates of ONNX": (Sequence, gates(0, 3, 1, 2), "lstm ", "in another order: 0, 3, 1, 2"),
    "fill of -1e4": (Decoder, put("layers.0.cross.fill", lambda module: -1e4), "layers.0.cross.o", "filled with -1e4"),
    "mask off by one": (
        Decoder,
        put("layers.0.cross.hide", lambda module, mask: torch.roll(mask, 1, -1)),
        "layers.0.cross.o",
        "",
    ),
    "cross attention without its mask": (
        Decoder,
        put("layers.1.attend", lambda module, x, memory, mask: module.cross(x, memory)),
        "layers.1.cross",
        "no mask",
    ),
    "mask inverted": (
        Decoder,
        put("layers.1.cross.hide", lambda module, mask: ~mask),
        "layers.1.cross.o",
        "the inverted mask, expected",
    ),
    "positions from 1": (
        Decoder,
        put("positions", lambda module, x: module.places(1 + torch.arange(x.shape[1]))),
        "places",
        "rows of places.weight are read +1 further on",
    ),
    "base of sinusoids": (
        Decoder,
        put("wave", lambda module, x: sinusoids(x.shape[1], x.shape[2], 1e6).to(x.dtype)),
        "dropout",
        "base 1e+06",
    ),
    "layout of sinusoids": (
        Decoder,
        put("wave", lambda module, x: sinusoids(x.shape[1], x.shape[2], interleaved=False).to(x.dtype)),
        "dropout",
        "sines first",
    ),
    "sinusoids from 1": (
        Decoder,
        put("wave", lambda module, x: sinusoids(x.shape[1], x.shape[2], first=1).to(x.dtype)),
        "dropout",
        "from position 1",
    ),
    "embedding not scaled": (
        Decoder,
        put("scale", lambda module, x: x),
        "dropout",
        "the output of embedding counts once, expected 4 (√16) times",
    ),
    "scaled by the width": (
        Decoder,
        put("layers.1.attention.scale", lambda module, q: 16**-0.5),
        "layers.1.attention.o",
        "scale 1/√16",
    ),
    "not scaled": (Decoder, put("layers.1.attention.scale", lambda module, q: 1.0), "layers.1.attention.o", "scale 1,"),
    "causal, one key further": (
        Decoder,
        put("layers.2.attention.causal", lambda module, steps, keys: torch.ones(steps, keys, dtype=torch.bool).tril(1)),
        "layers.2.attention.o",
        "causal, one key further",
    ),
    "causal, without the key itself": (
        Decoder,
        put(
            "layers.2.attention.causal", lambda module, steps, keys: torch.ones(steps, keys, dtype=torch.bool).tril(-1)
        ),
        "layers.2.attention.o",
        "causal, without the key itself",
    ),
    "not causal": (
        Decoder,
        put("layers.0.attention.causal", lambda module, steps, keys: torch.ones(steps, keys, dtype=torch.bool)),
        "layers.0.attention.o",
        "no mask, expected scale 1/√4, causal",
    ),
    "softmax over queries": (
        Decoder,
        put("layers.0.attention.weigh", lambda module, scores: torch.softmax(scores, -2)),
        "layers.0.attention.o",
        "",
    ),
    "bias dropped": (
        Decoder,
        put("layers.1.attention.o.forward", lambda module, x: x @ module.weight.T),
        "layers.1.attention.o ",
        "layers.1.attention.o.bias is missing",
    ),
    "residual missing": (
        Decoder,
        put("layers.1.residual", lambda module, x, y: y),
        "layers.1",
        "residual connection is missing",
    ),
    "residual twice": (
        Decoder,
        put("layers.1.residual", lambda module, x, y: 2 * x + y),
        "layers.1",
        "is added once more",
    ),
    "variance over n - 1": (
        Decoder,
        put(
            "layers.0.norm3.forward",
            lambda module, x: (
                module.weight * (x - x.mean(-1, keepdim=True)) / (x.var(-1, keepdim=True) + 1e-5) ** 0.5 + module.bias
            ),
        ),
        "layers.0.norm3 ",
        "variance over n - 1",
    ),
    "float16 inside": (
        Decoder,
        put("layers.1.up.forward", lambda module, x: F.linear(x, module.weight, module.bias).half().to(x.dtype)),
        "layers.1.up ",
        "float16",
    ),
    "bfloat16 inside": (
        Decoder,
        put(
            "layers.1.up.forward",
            lambda module, x: F.linear(x, module.weight, module.bias).bfloat16().to(x.dtype),
        ),
        "layers.1.up ",
        "bfloat16",
    ),
    "detached branch": (
        Decoder,
        put("layers.1.residual", lambda module, x, y: x + y.detach()),
        "layers.1",
        "",
    ),
    "gradient halved": (
        Decoder,
        put("layers.1.residual", lambda module, x, y: x + Scaled.apply(y)),
        "layers.1",
        "0.5",
    ),
    "another padding id": (
        Sequence,
        put("embedding.forward", lambda module, ids: F.embedding(ids, module.weight) * (ids != 3)[..., None]),
        "embedding ",
        "another padding id",
    ),
    "shifted by a step": (
        Sequence,
        put("read", lambda module, tokens: torch.roll(tokens, 1, 1)),
        "embedding",
        "",
    ),
    "first step for the last": (Sequence, put("end", lambda module, x: x[:, 0]), "head", ""),
    "stale buffer": (Images, write("norm.running_mean", lambda x: x + 0.1), "norm ", "norm.running_mean"),
    "kernel flipped": (Images, write("second.weight", lambda w: w.flip(-1)), "second ", "second.weight"),
    "slope of a leaky ReLU": (
        Images,
        put("activation", lambda module, x: F.leaky_relu(x, 0.2)),
        "second",
        "",
    ),
    "mean for maximum": (Images, put("pool", lambda module, x: F.avg_pool2d(x, 2)), "second", ""),
    "logits scaled": (Decoder, put("last", lambda module, x: x / 4), "the model", "0.25 (1/4) times what is expected"),
}
"""Differences, each in one line of a model."""
