"""The steps of Bahdanau's decoder in TensorFlow as one function with a backward by hand."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import tensorflow as tf

from attention_core.errors import AttentionError
from backends.tf.blocked import choice
from backends.tf.blocked.additive import KEY_BOUND, chosen_by, factor, form_of, hidden
from backends.tf.masking import open_keys, softmax_over

STEPS_MIN_ELEMENTS = 2**12
"""The elements, batch · steps · keys · features, from which on a decoder's steps are one function in a graph."""


def takes_steps(
    tokens: tf.Tensor, state: tf.Tensor, keys: tf.Tensor, values: tf.Tensor, mask: tf.Tensor | None
) -> bool:
    """Whether a decoder's steps become one function: from STEPS_MIN_ELEMENTS elements on, or as `set_path` says.

    elements = batch · steps · keys · features of a key

    In float32 or float64, with one mask for all steps, and where every size is known. Unless forced only in a graph,
    which is traced for each set of sizes anyway, while an eager call would wait for a compiler; and on a CPU, where it
    was measured. Step by step everything else is computed.
    """
    shapes = (*tokens.shape, *keys.shape, *values.shape)
    if keys.dtype not in KEY_BOUND or state.dtype != keys.dtype or None in shapes or 0 in shapes:
        return False
    if mask is not None and mask.shape[1] != 1:
        return False
    if choice.forced is not None:
        large = choice.forced == "blocked"
    elif tf.executing_eagerly() or tf.config.list_logical_devices("GPU"):
        large = False
    else:
        large = math.prod((*keys.shape, tokens.shape[1])) >= STEPS_MIN_ELEMENTS
    return large and not choice.has_tangents(state, keys, values)


def blocked_steps(
    known: tf.Tensor,
    state: tf.Tensor,
    memory: tuple[tf.Tensor, tf.Tensor, tf.Tensor | None],
    W_q: tf.Tensor,
    w_v: tf.Tensor,
    layers: Sequence[tuple[tf.Tensor, ...]],
    dropout_mask: tf.Tensor | None,
    attention_dropout_mask: tf.Tensor | None,
) -> tuple[tf.Tensor, ...]:
    """Run the steps of Bahdanau's decoder: (outputs of the top layer, the last state, weights, contexts).

    With s the top output, k the keys, a = W x + b and u = U h of a layer of units, in parts r, z, n:

        e[j] = w_v · tanh(W_q s + k[j]);  p = softmax(e);  c = sum over j of p[j] values[j]
        r, z = σ(a + u);  m = u + b_hn;  n = tanh(a + r m);  h' = (1 - z) n + z h

    Backwards from step to step, with dh the gradient of h', those of a, and of u, are

        dn = (1 - z)(1 - n²) dh;  dr = r(1 - r) m dn;  dz = z(1 - z)(h - n) dh;  and in u r dn in place of dn

    which give the gradient of x by W, and of h by U and z dh. Of the context it goes to p, e, W_q s, and k:

        dp[j] = dc · values[j];  de = p (dp - p · dp);  d(W_q s) = w_v sum over j of de[j] tanh'[j], as dk[j] over steps

    The gradients of W, U, W_q and of the values are one product each, of all steps, after the loop. Products are
    TensorFlow's, which are faster than XLA's; XLA compiles what is between them.

    Shapes: known (steps, batch, 3 hidden_size), layer 0's W x + b of the tokens; memory as (keys, values, mask); W_q
    (hidden_size, attention_size); layers as _of_steps gives them; dropout_mask (num_layers - 1, steps, batch,
    hidden_size), attention_dropout_mask (steps, batch, keys). What is returned has its steps first, but the state.
    Second derivatives raise an AttentionError: set_path("plain") has them.
    """
    keys, values, mask = memory
    count, steps = len(layers), known.shape[0]
    masks = [array for array in (dropout_mask, attention_dropout_mask) if array is not None]
    given = [known, state, keys, values, W_q, w_v, *(array for layer in layers for array in layer), *masks]

    def parted(arrays: Sequence[Any]) -> tuple[list[Any], list[Sequence[Any]], Any, Any]:
        """The six arrays in front, those of each layer, and both dropout masks."""
        of_layers = [arrays[6 + 4 * layer : 10 + 4 * layer] for layer in range(count)]
        rest = list(arrays[6 + 4 * count :])
        between = None if dropout_mask is None else rest.pop(0)
        return list(arrays[:6]), of_layers, between, None if attention_dropout_mask is None else rest.pop(0)

    @tf.custom_gradient
    def run(*arguments: tf.Tensor) -> tuple[tuple[tf.Tensor, ...], Any]:
        """The four arrays, and the function that gives the gradients."""
        # A tape that saw the inside would keep every step once more.
        (known, state, keys, values, W_q, w_v), layers, between, factors = parted([*map(tf.stop_gradient, arguments)])
        form = form_of(keys, w_v)
        against = chosen_by(form, factor, keys)
        reads = tf.TensorArray(known.dtype, steps).unstack(known)

        def advance(t: tf.Tensor, states: list[tf.Tensor], *written: Any) -> tuple[Any, ...]:
            query = tf.matmul(states[-1], W_q)
            weights = chosen_by(form, step_weights, query, against, w_v, mask)
            x = tf.squeeze(tf.matmul((weights if factors is None else weights * factors[t])[:, None], values), axis=1)
            kept, after = [query, weights, x], []
            for layer, (W, b, U, b_hn) in enumerate(layers):
                h, rest = states[layer], b if layer else reads.read(t)
                a, u = tf.matmul(x, W), tf.matmul(h, U)
                x = gated(a, rest, u, b_hn, h)
                kept += [a, u, x]
                after.append(x)
                if between is not None and layer + 1 < count:
                    x = x * between[layer, t]
            return t + 1, after, *(array.write(t, value) for array, value in zip(written, kept, strict=True))

        arrays = [tf.TensorArray(known.dtype, steps) for _ in range(3 + 3 * count)]
        _, last, *written = tf.while_loop(
            lambda t, *_: t < steps, advance, (0, tf.unstack(state), *arrays), maximum_iterations=steps
        )
        # Stacked, since the backward of a Jacobian reads them inside another graph.
        queries, weights, contexts, *of_layers = (array.stack() for array in written)
        inputs, recurrent, outputs = of_layers[::3], of_layers[1::3], of_layers[2::3]

        def backward(*upstream: tf.Tensor) -> tuple[tf.Tensor, ...]:
            return steps_gradients(*upstream, *arguments)

        @tf.custom_gradient
        def steps_gradients(*given: tf.Tensor) -> tuple[tuple[tf.Tensor, ...], Any]:
            """The gradients, which have none themselves."""
            d_top, d_last, d_weights, d_contexts = map(tf.stop_gradient, given[:4])
            before = [tf.concat([state[layer][None], output[:-1]], axis=0) for layer, output in enumerate(outputs)]
            transposed = [(tf.transpose(W), tf.transpose(U)) for W, _, U, _ in layers]
            W_q_T = tf.transpose(W_q)

            def retreat(
                back: tf.Tensor, dh: list[tf.Tensor], d_keys: tf.Tensor, d_w_v: tf.Tensor, *written: Any
            ) -> tuple[Any, ...]:
                t = steps - 1 - back
                p, d_p = weights[t], d_weights[t]
                dh = [*dh[:-1], dh[-1] + d_top[t]]
                results: list[tf.Tensor] = []
                for layer in reversed(range(count)):
                    W_T, U_T = transposed[layer]
                    _, b, _, b_hn = layers[layer]
                    a, u, rest = inputs[layer][t], recurrent[layer][t], b if layer else known[t]
                    d_a, d_u, dh[layer] = gated_gradients(dh[layer], a, rest, u, b_hn, before[layer][t])
                    dh[layer] += tf.matmul(d_u, U_T)
                    dx = tf.matmul(d_a, W_T)
                    results = [d_a, d_u, dx, *results]
                    if layer:
                        dh[layer - 1] += dx if between is None else dx * between[layer - 1, t]
                dx += d_contexts[t]
                results[2] = dx
                slopes = tf.squeeze(tf.matmul(values, dx[..., None]), axis=-1)
                d_p += slopes if factors is None else slopes * factors[t]
                dq, d_keys, d_w_v = chosen_by(form, step_gradients, d_p, p, queries[t], against, w_v, d_keys, d_w_v)
                dh[-1] += tf.matmul(dq, W_q_T)
                results = [array.write(t, value) for array, value in zip(written, [dq, slopes, *results], strict=True)]
                return back + 1, dh, d_keys, d_w_v, *results

            arrays = [tf.TensorArray(known.dtype, steps) for _ in range(2 + 3 * count)]
            start = (0, tf.unstack(d_last), tf.zeros_like(keys), tf.zeros_like(w_v), *arrays)
            _, d_state, d_keys, d_w_v, *written = tf.while_loop(
                lambda back, *_: back < steps, retreat, start, maximum_iterations=steps
            )
            d_queries, slopes, *rest = (array.stack() for array in written)
            d_layers = []
            for layer in range(count):
                d_a, d_u, _ = rest[3 * layer : 3 * layer + 3]
                x = outputs[layer - 1] if layer else contexts
                if layer and between is not None:
                    x = x * between[layer - 1]
                of_b_hn = tf.split(tf.reduce_sum(d_u, axis=(0, 1)), 3)[2]
                # Layer 0's b is part of known.
                d_b = tf.reduce_sum(d_a, axis=(0, 1)) if layer else tf.zeros_like(layers[0][1])
                d_layers += [product(x, d_a), d_b, product(before[layer], d_u), of_b_hn]
            weighted = weights if factors is None else weights * factors
            d_values = tf.matmul(tf.transpose(weighted, (1, 2, 0)), tf.transpose(rest[2], (1, 0, 2)))
            d_masks = [] if between is None else [tf.stack([rest[3 * n + 5] * outputs[n] for n in range(count - 1)])]
            d_masks += [] if factors is None else [slopes * weights]
            of_parameters = product(before[-1], d_queries), d_w_v, *d_layers, *d_masks
            return (rest[0], tf.stack(d_state), d_keys, d_values, *of_parameters), steps_refused

        return (outputs[-1], tf.stack(last), weights, contexts), backward

    results: tuple[tf.Tensor, ...] = run(*map(tf.convert_to_tensor, given))
    return results


@tf.function(jit_compile=True, autograph=False)
def step_weights(
    query: tf.Tensor, against: tf.Tensor, w_v: tf.Tensor, mask: tf.Tensor | None, *, form: str
) -> tf.Tensor:
    """The weights of one step, (batch, keys)."""
    tanh = hidden(factor(query, form)[:, None], against, form)
    scores = tf.linalg.matvec(tanh, w_v)[:, None]
    return tf.squeeze(softmax_over(scores, open_keys(scores, mask)), axis=1)


@tf.function(jit_compile=True, autograph=False)
def step_gradients(
    dp: tf.Tensor,
    p: tf.Tensor,
    query: tf.Tensor,
    against: tf.Tensor,
    w_v: tf.Tensor,
    d_keys: tf.Tensor,
    d_w_v: tf.Tensor,
    *,
    form: str,
) -> tuple[tf.Tensor, tf.Tensor, tf.Tensor]:
    """The gradient of a step's query, and those of keys and of w_v with this step's added."""
    tanh = hidden(factor(query, form)[:, None], against, form)
    slope = w_v * (1.0 - tanh * tanh)
    de = p * (dp - tf.reduce_sum(p * dp, axis=-1, keepdims=True))
    dq = tf.squeeze(tf.matmul(de[:, None], slope), axis=1)
    of_w_v = tf.linalg.matvec(tf.reshape(tanh, (-1, w_v.shape[0])), tf.reshape(de, (-1,)), transpose_a=True)
    return dq, d_keys + de[..., None] * slope, d_w_v + of_w_v


@tf.function(jit_compile=True, autograph=False)
def gated(a: tf.Tensor, rest: tf.Tensor, u: tf.Tensor, b_hn: tf.Tensor, h: tf.Tensor) -> tf.Tensor:
    """The output of a layer of units."""
    _, z, n, _ = gates(a, rest, u, b_hn)
    return (1 - z) * n + z * h


@tf.function(jit_compile=True, autograph=False)
def gated_gradients(
    dh: tf.Tensor, a: tf.Tensor, rest: tf.Tensor, u: tf.Tensor, b_hn: tf.Tensor, h: tf.Tensor
) -> tuple[tf.Tensor, tf.Tensor, tf.Tensor]:
    """The gradients of a, of u, and of h beside u."""
    r, z, n, m = gates(a, rest, u, b_hn)
    dn = dh * (1 - z) * (1 - n * n)
    dr, dz = dn * m * r * (1 - r), dh * (h - n) * z * (1 - z)
    return tf.concat([dr, dz, dn], axis=-1), tf.concat([dr, dz, r * dn], axis=-1), dh * z


def gates(a: tf.Tensor, rest: tf.Tensor, u: tf.Tensor, b_hn: tf.Tensor) -> tuple[tf.Tensor, ...]:
    """The gates r, z, n and m of a layer of units."""
    input_r, input_z, input_n = tf.split(a + rest, 3, axis=-1)
    state_r, state_z, state_n = tf.split(u, 3, axis=-1)
    r, z, m = tf.sigmoid(input_r + state_r), tf.sigmoid(input_z + state_z), state_n + b_hn
    return r, z, tf.tanh(input_n + r * m), m


def product(x: tf.Tensor, gradient: tf.Tensor) -> tf.Tensor:
    """The gradient of what x was multiplied by, of all steps and sequences."""
    rows, columns = tf.reshape(x, (-1, x.shape[-1])), tf.reshape(gradient, (-1, gradient.shape[-1]))
    return tf.matmul(rows, columns, transpose_a=True)


def steps_refused(*_: tf.Tensor) -> None:
    """Refuse second derivatives."""
    raise AttentionError(
        "BahdanauDecoder: no second derivative is known where its steps are one function. Step by step it has all: "
        'call backends.tf.blocked.set_path("plain") before it is called.'
    )
