"""A fifth backend in under a hundred lines: attention in plain NumPy, with gradients written by hand.

It has some of the specification's functions, under their names, and a `runtime` for arrays and gradients:
`attention-parity check numpy_attention.py` judges it.
"""

import numpy as np


class Array:
    """A NumPy array that knows what it was computed from: pairs of a source and the pull back of a gradient to it."""

    def __init__(self, value, *sources):
        self.value, self.sources = np.asarray(value), sources


def einsum(letters, a, b):
    inputs, out = letters.split("->")
    of_a, of_b = inputs.split(",")
    pull_a = (a, lambda gradient: np.einsum(f"{out},{of_b}->{of_a}", gradient, b.value))
    pull_b = (b, lambda gradient: np.einsum(f"{of_a},{out}->{of_b}", a.value, gradient))
    return Array(np.einsum(letters, a.value, b.value), pull_a, pull_b)


def tanh_of_sums(a, b):
    """tanh(a[q] + b[k]) for all q and k, as (..., queries, keys, hidden)."""
    value = np.tanh(a.value[..., :, None, :] + b.value[..., None, :, :])
    slope = 1 - value**2
    pull_a = (a, lambda gradient: (gradient * slope).sum(-2))
    return Array(value, pull_a, (b, lambda gradient: (gradient * slope).sum(-3)))


def clear_hidden(a, mask):
    """The keys or values with zeros where no query may attend to them: their values there have no effect."""
    anybody = True if mask is None else mask.value.any(-2)[..., None]
    return Array(np.where(anybody, a.value, 0), (a, lambda gradient: np.where(anybody, gradient, 0)))


def open_mask(scores, mask):
    return Array((scores.value > -np.inf) & (True if mask is None else mask.value))


def masked_softmax(scores, mask=None):
    mask = open_mask(scores, mask).value
    shown = np.where(mask, scores.value, np.finfo(scores.value.dtype).min)
    raised = np.exp(shown - shown.max(-1, keepdims=True, initial=shown.dtype.type(-1e30))) * mask
    total = raised.sum(-1, keepdims=True)
    weights = raised / np.where(total == 0, 1, total)
    return Array(weights, (scores, lambda gradient: weights * (gradient - (gradient * weights).sum(-1, keepdims=True))))


def dot_score(queries, keys):
    heads = "bn"[: queries.value.ndim - 2]
    return einsum(f"{heads}qd,{heads}kd->{heads}qk", queries, keys)


def additive_score(queries, keys, w_v):
    heads = "bn"[: queries.value.ndim - 2]
    return einsum(f"{heads}qkh,h->{heads}qk", tanh_of_sums(queries, keys), w_v)


def attention_pooling(scores, values, mask=None):
    heads = "bn"[: scores.value.ndim - 2]
    weights = masked_softmax(scores, mask)
    return einsum(f"{heads}qk,{heads}kv->{heads}qv", weights, clear_hidden(values, open_mask(scores, mask))), weights


def DotProductAttention(parameters, queries, keys, values, mask=None, *, scale=None):
    scale = queries.value.shape[-1] ** -0.5 if scale is None else scale
    scaled = Array(queries.value * scale, (queries, lambda gradient: gradient * scale))
    return attention_pooling(dot_score(scaled, clear_hidden(keys, mask)), values, mask)


def AdditiveAttention(parameters, queries, keys, values, mask=None):
    heads = "bn"[: queries.value.ndim - 2]
    queries = einsum(f"{heads}qd,hd->{heads}qh", queries, parameters["W_q"])
    keys = einsum(f"{heads}kd,hd->{heads}kh", clear_hidden(keys, mask), parameters["W_k"])
    return attention_pooling(additive_score(queries, keys, parameters["w_v"]), values, mask)


class runtime:
    from_numpy = Array

    def to_numpy(array):
        return array.value

    def vjp(function, arguments, cotangents):
        outputs = function(**arguments)
        gradients = {name: np.zeros_like(array.value) for name, array in arguments.items()}
        waiting = [(outputs[index], array.value) for index, array in cotangents.items()]
        names = {id(array): name for name, array in arguments.items() if array.value.dtype.kind == "f"}
        while waiting:
            array, gradient = waiting.pop()
            if id(array) in names:
                gradients[names[id(array)]] += gradient
            waiting += [(source, pull(gradient)) for source, pull in array.sources]
        return outputs, {name: Array(gradients[name]) for name in names.values()}

    def describe():
        return {"framework": "NumPy, gradients by hand"}
