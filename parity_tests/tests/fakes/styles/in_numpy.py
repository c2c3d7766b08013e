"""Right implementations in NumPy, as people write them: each class is one style, with the cases it is asked."""

from collections import namedtuple
from functools import partial, reduce, wraps
from itertools import product
from math import erf

import numpy as np

from parity_tests.tests.fakes.shapes import differentiating


def opened(shape, valid_lens, mask):
    """What may be attended to, from lengths and a mask."""
    allowed = np.ones(shape, bool)
    if valid_lens is not None:
        heads = (1,) * (len(shape) - 3)
        rows = valid_lens.reshape(len(valid_lens), *heads, *(valid_lens.shape[1:] or (1,)), 1)
        allowed = allowed & (np.arange(shape[-1]) < rows)
    return allowed if mask is None else allowed & mask


class MinusInfinityAndWhere:
    """A softmax with -inf at hidden keys, and zeros where a row has no key."""

    cases = "masked_softmax-*", "attention_pooling-*"

    def masked_softmax(scores, valid_lens=None, mask=None):
        scores = np.where(opened(scores.shape, valid_lens, mask), scores, -np.inf)
        with np.errstate(invalid="ignore"):
            raised = np.exp(scores - scores.max(axis=-1, keepdims=True, initial=-np.inf))
            weights = raised / raised.sum(axis=-1, keepdims=True)
        return np.where(np.isnan(weights), scores.dtype.type(0), weights)

    def attention_pooling(scores, values, valid_lens=None, mask=None):
        weights = MinusInfinityAndWhere.masked_softmax(scores, valid_lens, mask)
        seen = (opened(scores.shape, valid_lens, mask) & (scores > -np.inf)).any(axis=-2)[..., None]
        return np.matmul(weights, np.where(seen, values, values.dtype.type(0))), weights


class Einsum:
    """Scores by einsum and by broadcasting."""

    cases = tuple(f"{name}-*" for name in ("dot_score", "scaled_dot_score", "additive_score", "attention_rollout"))
    runtime = differentiating

    def dot_score(queries, keys):
        return np.einsum("...qd,...kd->...qk", queries, keys)

    def scaled_dot_score(queries, keys, *, scale=None, softcap=None):
        scores = np.einsum("...qd,...kd->...qk", queries, keys)
        scores = scores * (scale if scale is not None else max(queries.shape[-1], 1) ** -0.5)
        return scores if softcap is None else softcap * np.tanh(scores / softcap)

    def additive_score(queries, keys, w_v):
        return np.einsum("...h,h->...", np.tanh(queries[..., :, None, :] + keys[..., None, :, :]), w_v)

    def attention_rollout(weights, *, residual=0.5):
        mixed = residual * np.eye(weights.shape[-1], dtype=weights.dtype) + (1 - residual) * weights.mean(axis=2)
        rollout = mixed[0]
        for layer in mixed[1:]:
            rollout = np.einsum("bij,bjk->bik", layer, rollout)
        return rollout


class Norms:
    """Scores that divide by norms or subtract."""

    cases = "cosine_score-[phns]*", "gaussian_score-*"

    def cosine_score(queries, keys, *, scale=None):
        norms = (np.linalg.norm(array, axis=-1, keepdims=True) for array in (queries, keys))
        queries, keys = (
            array / np.where(norm == 0, 1, norm).astype(array.dtype)
            for array, norm in zip((queries, keys), norms, strict=True)
        )
        return (1.0 if scale is None else scale) * queries @ keys.swapaxes(-1, -2)

    def gaussian_score(queries, keys, w=None):
        distance = np.expand_dims(queries, -2) - np.expand_dims(keys, -3)
        return -0.5 * np.square(distance if w is None else distance * w).sum(axis=-1)


class Views:
    """What is returned is a view: of an argument, transposed, or broadcast."""

    cases = tuple(
        f"{name}-*" for name in ("location_score", "patches", "to_key_padding_mask", "relative_bias", "attention_mask")
    )

    def location_score(num_keys, queries):
        return queries[..., :num_keys]

    def patches(images, *, patch_size):
        batch, height, width, channels = images.shape
        grid = images.reshape(batch, height // patch_size, patch_size, width // patch_size, patch_size, channels)
        count = (height // patch_size) * (width // patch_size)
        return grid.transpose(0, 1, 3, 2, 4, 5).reshape(batch, count, patch_size**2 * channels)

    def to_key_padding_mask(mask):
        return ~mask[:, 0]

    def relative_bias(num_queries, num_keys, table, *, bidirectional=True, max_distance=128, offset=None):
        buckets = Buckets.relative_buckets(
            num_queries,
            num_keys,
            num_buckets=len(table),
            bidirectional=bidirectional,
            max_distance=max_distance,
            offset=offset,
        )
        return table[buckets].transpose(0, 3, 1, 2)

    def attention_mask(num_keys, valid_lens=None, mask=None):
        if valid_lens is None:
            return mask if mask is None else np.broadcast_to(mask, (*mask.shape[:-1], num_keys))
        lengths = valid_lens[:, None, None] if valid_lens.ndim == 1 else valid_lens[..., None]
        allowed = np.arange(num_keys) < lengths
        if mask is None:
            return allowed
        return (allowed[:, None] if mask.ndim == 4 else allowed) & mask


class BooleanArithmetic:
    """Masks by comparison, shifts and ufuncs."""

    cases = (
        *(f"{name}-*" for name in ("causal_mask", "window_mask", "block_mask", "stride_mask", "global_mask")),
        *(f"{name}-*" for name in ("mask_and", "mask_or", "from_key_padding_mask", "from_additive_mask")),
        "to_additive_mask-*",
    )

    def distance(num_queries, num_keys, offset):
        first = np.zeros(1, int) if offset is None else np.atleast_1d(offset)
        return np.arange(num_keys) - np.arange(num_queries)[:, None] - first[:, None, None].astype(int)

    def causal_mask(num_queries, num_keys, *, offset=None):
        if offset is None:
            return np.tri(num_queries, num_keys, dtype=bool)[None]
        return BooleanArithmetic.distance(num_queries, num_keys, offset) <= 0

    def window_mask(num_queries, num_keys, *, left, right, offset=None):
        distance = BooleanArithmetic.distance(num_queries, num_keys, offset)
        return (-left <= distance) & (distance <= right)

    def block_mask(num_queries, num_keys, *, size, offset=None):
        first = np.zeros(1, int) if offset is None else np.atleast_1d(offset).astype(int)
        return np.equal.outer(np.add.outer(first, np.arange(num_queries)) // size, np.arange(num_keys) // size)

    def stride_mask(num_queries, num_keys, *, stride, offset=None):
        return BooleanArithmetic.distance(num_queries, num_keys, offset) % stride == 0

    def global_mask(global_queries, global_keys):
        return np.logical_or(global_queries[:, :, None], global_keys[:, None, :])

    def mask_and(first, second):
        return np.logical_and(first, second)

    def mask_or(first, second):
        return first | second

    def from_key_padding_mask(key_padding_mask):
        return np.logical_not(key_padding_mask)[:, None, :]

    def from_additive_mask(additive_mask, *, threshold=-1e4):
        return additive_mask > additive_mask.dtype.type(threshold)

    def to_additive_mask(mask, *, dtype="float32", finite=False):
        return np.where(mask, 0, np.finfo(dtype).min if finite else -np.inf).astype(dtype)


class Buckets:
    """The buckets of T5, with logarithms in float64."""

    cases = ("relative_buckets-[!cf]*",)

    def relative_buckets(num_queries, num_keys, *, num_buckets, bidirectional=True, max_distance=128, offset=None):
        relative = BooleanArithmetic.distance(num_queries, num_keys, offset)
        buckets = np.zeros(relative.shape, np.int32)
        if bidirectional:
            num_buckets //= 2
            buckets += (relative > 0).astype(np.int32) * num_buckets
            relative = np.abs(relative)
        else:
            relative = -np.minimum(relative, 0)
        exact = num_buckets // 2
        if exact == 0:
            return buckets
        share = np.log(np.maximum(relative, 1) / exact) / np.log(max_distance / exact)
        large = exact + np.floor(share * (num_buckets - exact) + 1e-9).astype(np.int32)
        return buckets + np.where(relative < exact, relative, np.minimum(large, num_buckets - 1)).astype(np.int32)


class PublishedSlopes:
    """The recursion of ALiBi's authors."""

    cases = ("alibi_bias-*",)

    def slopes(heads):
        def of_power(count):
            start = 2.0 ** (-(2.0 ** -(np.log2(count) - 3)))
            return [start * start**place for place in range(count)]

        if heads & (heads - 1) == 0:
            return of_power(heads)
        closest = 2 ** (heads.bit_length() - 1)
        return of_power(closest) + PublishedSlopes.slopes(2 * closest)[0::2][: heads - closest]

    def alibi_bias(num_heads, num_queries, num_keys, *, dtype="float32", offset=None):
        distance = np.abs(BooleanArithmetic.distance(num_queries, num_keys, offset))
        slopes = np.array(PublishedSlopes.slopes(num_heads)).reshape(-1, 1, 1)
        return (-slopes * distance[:, None]).astype(dtype)


class UsualPositions:
    """Sinusoids and rotations by the formulas of the papers, computed in float64."""

    cases = "SinusoidalPositions-[!c]*", "RotaryPositions-[!c]*", "LearnedPositions-*", "position_permutation-*"

    def SinusoidalPositions(parameters, inputs, *, offset=0, layout="interleaved"):
        steps, features = inputs.shape[-2:]
        position = np.arange(offset, offset + steps, dtype=np.float64)[:, None]
        angles = position / np.power(10000.0, np.arange(0, features, 2) / max(features, 1))
        table = np.zeros((steps, features))
        if layout == "interleaved":
            table[:, 0::2], table[:, 1::2] = np.sin(angles), np.cos(angles)
        else:
            table = np.concatenate([np.sin(angles), np.cos(angles)], axis=-1)
        return inputs + table.astype(inputs.dtype)

    def RotaryPositions(parameters, inputs, *, offset=None, layout="interleaved", base=10000.0):
        steps, features = inputs.shape[-2:]
        first = np.zeros(1) if offset is None else np.atleast_1d(offset).astype(np.float64)
        angles = (first[:, None] + np.arange(steps))[..., None] / base ** (np.arange(0, features, 2) / max(features, 1))
        angles = angles.reshape(len(first), *(1,) * (inputs.ndim - 3), steps, features // 2)
        if layout == "interleaved":  # as complex numbers
            pairs = inputs.astype(np.float64)[..., 0::2] + 1j * inputs[..., 1::2]
            rotated = pairs * np.exp(1j * angles)
            return np.stack([rotated.real, rotated.imag], -1).reshape(inputs.shape).astype(inputs.dtype)
        half = features // 2
        turned = np.concatenate([-inputs[..., half:], inputs[..., :half]], axis=-1)
        cosine, sine = (np.concatenate([part, part], axis=-1) for part in (np.cos(angles), np.sin(angles)))
        return (inputs * cosine + turned * sine).astype(inputs.dtype)

    def LearnedPositions(parameters, inputs, *, offset=0):
        return inputs + np.take(parameters["P"], np.arange(offset, offset + inputs.shape[-2]), axis=-2)

    def position_permutation(features):
        return np.concatenate([np.arange(0, features, 2), np.arange(1, features, 2)]).astype(np.int32)


ACTIVATIONS = {
    "relu": lambda x: np.maximum(x, 0),
    "gelu": lambda x: (0.5 * x * (1 + np.vectorize(erf, otypes="d")(x / 2**0.5))).astype(x.dtype),
    "gelu_tanh": lambda x: 0.5 * x * (1 + np.tanh((2 / np.pi) ** 0.5 * (x + 0.044715 * x**3))),
    "silu": lambda x: x / (1 + np.exp(-x)),
}


class TextbookNorms:
    """Normalizations and the network of a Transformer's layer."""

    cases = "LayerNorm-[!cf]*", "RMSNorm-[!cf]*", "FeedForward-[!cf]*"

    def LayerNorm(parameters, inputs, *, epsilon=1e-5, bias=True):
        normal = (inputs - inputs.mean(-1, keepdims=True)) / np.sqrt(inputs.var(-1, keepdims=True) + epsilon)
        return normal * parameters["g"] + (parameters["b"] if bias else 0)

    def RMSNorm(parameters, inputs, *, epsilon=1e-5):
        return inputs / np.sqrt((inputs**2).mean(axis=-1, keepdims=True) + epsilon) * parameters["g"]

    def FeedForward(parameters, inputs, activation="relu", gated=False, bias=True):
        def linear(array, name):
            return array @ parameters[f"W_{name}"].T + (parameters[f"b_{name}"] if bias else 0)

        hidden = ACTIVATIONS[activation](linear(inputs, 1))
        return linear(hidden * linear(inputs, 3) if gated else hidden, 2)


class LogSoftmax:
    """A loss by logarithms of probabilities, gathered and averaged."""

    cases = ("masked_cross_entropy-*",)

    def masked_cross_entropy(logits, targets, valid_lens=None):
        steps = np.arange(targets.shape[1])
        allowed = np.ones(targets.shape, bool) if valid_lens is None else steps < valid_lens[:, None]
        logits = np.where(allowed[..., None], logits, logits.dtype.type(0))
        shifted = logits - logits.max(axis=-1, keepdims=True, initial=-np.inf)
        logs = shifted - np.log(np.exp(shifted).sum(axis=-1, keepdims=True))
        chosen = np.take_along_axis(logs, targets[..., None].astype(int), axis=-1)[..., 0]
        return (-(chosen * allowed).sum() / max(allowed.sum(), 1)).astype(logits.dtype)


class Kernel:
    """Kernel regression with a mask alone, which returns a named tuple."""

    cases = ("NadarayaWatson-*",)
    Regression = namedtuple("Regression", "predictions weights")

    def NadarayaWatson(parameters, queries, keys, values, mask=None, *, width=1.0, learned=False):
        w = parameters["kernel.w"] if learned else 1 / width
        shown = opened((*queries.shape, keys.shape[-1]), None, mask)
        keys = np.where(shown.any(axis=-2), keys, keys.dtype.type(0))
        scores = -0.5 * ((queries[:, :, None] - keys[:, None, :]) * w) ** 2
        context, weights = MinusInfinityAndWhere.attention_pooling(scores, values[..., None], None, mask)
        return Kernel.Regression(context[..., 0], weights)


def announced(function):
    """A decorator that passes everything on."""

    @wraps(function)
    def call(*positional, **named):
        return function(*positional, **named)

    return call


def scored_by(product, queries, keys, *, scale=None):
    scores = product(queries, np.moveaxis(keys, -1, -2))
    return scores if scale is None else scores * scale


class Wrapped:
    """A partial function, a decorated one, and one that passes on whatever it gets."""

    cases = "dot_score-*", "masked_softmax-*", "attention_pooling-*"
    dot_score = partial(scored_by, np.matmul)
    attention_pooling = staticmethod(announced(MinusInfinityAndWhere.attention_pooling))

    def masked_softmax(scores, **options):
        return [MinusInfinityAndWhere.masked_softmax(scores, **options)]


def hidden_pooling(scores, values, mask=None):
    return MinusInfinityAndWhere.attention_pooling(scores, values, None, mask)


def hidden_attention(queries, keys, values, mask=None):
    shown = opened((*queries.shape[:-1], keys.shape[-2]), None, mask)
    keys = np.where(shown.any(axis=-2)[..., None], keys, keys.dtype.type(0))
    return hidden_pooling(np.matmul(queries, np.moveaxis(keys, -1, -2)) / queries.shape[-1] ** 0.5, values, mask)


class PassedOn:
    """Layers that pass on whatever they get to a function without lengths: these are part of the mask."""

    cases = "DotProductAttention-[!efct]*", "MultiHeadAttention-[nrolm]*", "MultiHeadAttention-bias"

    def DotProductAttention(parameters, **given):
        return hidden_attention(**given)

    def MultiHeadAttention(parameters, queries, keys, values, num_heads, bias=True, score_bias=None, **given):
        def heads_of(array, name):
            array = array @ parameters[f"W_{name}"].T + (parameters[f"b_{name}"] if bias else 0)
            return np.stack(np.split(array, num_heads, axis=-1), axis=1)

        mask = given.pop("mask", None)
        if mask is not None and mask.ndim == 3:
            mask = mask[:, None]
        shown = opened((len(queries), num_heads, queries.shape[1], keys.shape[1]), None, mask)
        seen = shown.any(axis=(1, 2))[..., None]
        keys, values = (np.where(seen, array, array.dtype.type(0)) for array in (keys, values))
        queries, keys, values = (heads_of(array, name) for array, name in ((queries, "q"), (keys, "k"), (values, "v")))
        scores = queries @ keys.swapaxes(-1, -2) / queries.shape[-1] ** 0.5
        if score_bias is not None:
            scores = scores + (score_bias[:, None] if score_bias.ndim == 3 else score_bias)
        context, weights = hidden_pooling(scores, values, mask=mask, **given)
        context = np.concatenate([*context.swapaxes(0, 1)], axis=-1) @ parameters["W_o"].T
        return context + (parameters["b_o"] if bias else 0), weights.mean(axis=1)


class Loops:
    """A recurrent layer in loops over steps, and optimisers in loops over arrays."""

    cases = "GRU-[!cfs]*", "LSTM-[!cfs]*", "sgd-*", "adam-*", "clip_by_global_norm-[!f]*"

    def recurrent(cell, parameters, inputs, valid_lens, state, num_layers, parts, bidirectional):
        batch, steps, _ = inputs.shape
        directions = 1 + bidirectional
        hidden = parameters["0.U"].shape[-1]
        lengths = np.full(batch, steps) if valid_lens is None else np.clip(valid_lens, 0, steps)
        first = np.zeros((num_layers, batch, parts * directions * hidden), inputs.dtype) if state is None else state
        last = []
        for layer in range(num_layers):
            outputs = np.zeros((batch, steps, directions * hidden), inputs.dtype)
            split = first[layer].reshape(batch, parts, directions, hidden).transpose(1, 2, 0, 3).copy()
            for direction, sequence in product(range(directions), range(batch)):
                prefix = f"{layer}." + ("backward." if direction else "")
                weights = {n.removeprefix(prefix): a for n, a in parameters.items() if n.startswith(prefix)}
                order = range(lengths[sequence])
                for step in reversed(order) if direction else order:
                    new = cell(weights, inputs[sequence, step], split[:, direction, sequence])
                    split[:, direction, sequence] = new
                    outputs[sequence, step, direction * hidden : (direction + 1) * hidden] = new[0]
            last.append(np.concatenate([*split.reshape(parts * directions, batch, hidden)], axis=-1))
            inputs = outputs
        return inputs, np.stack(last)

    def GRU(parameters, inputs, valid_lens=None, state=None, num_layers=1, bidirectional=False):
        def cell(weights, x, state):
            (h,) = state
            inside = weights["W"] @ x + weights["b"]
            outside = weights["U"] @ h
            r, z = (1 / (1 + np.exp(-(inside[i] + outside[i]))) for i in range(2))
            n = np.tanh(inside[2] + r * (outside[2] + weights["b_hn"]))
            return ((1 - z) * n + z * h)[None]

        return Loops.recurrent(cell, parameters, inputs, valid_lens, state, num_layers, 1, bidirectional)

    def LSTM(parameters, inputs, valid_lens=None, state=None, num_layers=1, bidirectional=False):
        def cell(weights, x, state):
            h, c = state
            i, f, g, o = weights["W"] @ x + weights["b"] + weights["U"] @ h
            sigmoid = lambda a: 1 / (1 + np.exp(-a))  # noqa: E731
            c = sigmoid(f) * c + sigmoid(i) * np.tanh(g)
            return np.stack([sigmoid(o) * np.tanh(c), c])

        return Loops.recurrent(cell, parameters, inputs, valid_lens, state, num_layers, 2, bidirectional)

    def sgd(parameters, gradients, *, learning_rate):
        return [
            reduce(lambda array, gradient: array - learning_rate * gradient, steps, array)
            for array, steps in zip(parameters, gradients, strict=True)
        ]

    def adam(parameters, gradients, *, learning_rate, beta1=0.9, beta2=0.999, epsilon=1e-8):
        result = []
        for array, steps in zip(parameters, gradients, strict=True):
            m, v = np.zeros_like(array), np.zeros_like(array)
            for step, gradient in enumerate(steps, 1):
                m, v = beta1 * m + (1 - beta1) * gradient, beta2 * v + (1 - beta2) * gradient**2
                ready = m / (1 - beta1**step), v / (1 - beta2**step)
                array = array - learning_rate * ready[0] / (np.sqrt(ready[1]) + epsilon)
            result.append(array)
        return tuple(result)

    def clip_by_global_norm(gradients, max_norm=None):
        norm = np.linalg.norm(np.array([np.linalg.norm(array) for array in gradients]))
        if max_norm is not None and norm > max_norm:
            gradients = [array * (max_norm / norm) for array in gradients]
        return gradients, norm
