"""The steps of a decoder with attention in TensorFlow as one function with a backward by hand."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import keras
import tensorflow as tf

from attention_core.errors import AttentionError
from backends.tf import kernels
from backends.tf.attention import Form
from backends.tf.blocked.additive import KEY_BOUND, call_variant, factor, tanh_of_sum, variant_of
from backends.tf.blocked.blocks import Rows, pad_rows
from backends.tf.decoders import BahdanauDecoder, Lens, LuongDecoder, Masks
from backends.tf.masking import open_keys, size, softmax_over
from backends.tf.memory import Memory, is_shared
from backends.tf.module import is_usual

STEPS_MIN_ELEMENTS = 2**12
"""The elements, batch · steps · keys · features, from which on a decoder's steps are one function in a graph."""

Vectors = tuple[tf.Tensor, ...]
"""The state of a layer: h, and behind it an LSTM's c."""


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
    if keys.dtype not in KEY_BOUND or state.dtype != keys.dtype or None in shapes or 0 in shapes or not is_shared(mask):
        return False
    if kernels.forced is not None:
        large = kernels.forced == "blocked"
    elif tf.executing_eagerly() or tf.config.list_logical_devices("GPU"):
        large = False
    else:
        large = math.prod((*keys.shape, tokens.shape[1])) >= STEPS_MIN_ELEMENTS
    return large and not kernels.has_tangents(state, keys, values)


def steps_form(decoder: BahdanauDecoder | LuongDecoder) -> Form | None:
    """Return the form of the decoder's score, its W_q a function; None if the decoder's steps cannot be one function.

    That one reads the parameters by itself, so nobody may have replaced or quantized a layer that it passes by.
    """
    form, W_c = decoder.attention._form(decoder.sizes["hidden_size"]), getattr(decoder, "W_c", None)
    if form is None or form.softcap is not None or not (W_c is None or is_usual(W_c, keras.layers.Dense)):
        return None
    if not isinstance(form.W_q, keras.layers.Layer):
        return form
    kernel = form.W_q.kernel if is_usual(form.W_q, keras.layers.Dense) else None
    return None if kernel is None else form._replace(W_q=lambda: decoder._cast(kernel))


def serves(
    decoder: BahdanauDecoder | LuongDecoder, tokens: tf.Tensor, state: tf.Tensor, memory: Memory, masks: Masks
) -> bool:
    """Whether the steps of a decoder become one function: for scores of a form, under the condition `takes_steps`."""
    return takes_steps(tokens, state, *memory) and steps_form(decoder) is not None


@kernels.register("decoder_steps", serves)
def run_steps(
    decoder: BahdanauDecoder | LuongDecoder,
    tokens: tf.Tensor,
    state: tf.Tensor,
    memory: Memory,
    masks: Masks,
    lens: Lens,
    *attentional: tf.Tensor,
) -> tuple[tf.Tensor, ...]:
    """Run the steps of a decoder: what `blocked_steps` returns."""
    form, rnn, sizes = steps_form(decoder), decoder.rnn, decoder.sizes
    assert form is not None
    luong, width = ([decoder.W_c.kernel, *attentional], "embed_size") if attentional else ([], "memory_size")
    first, last = slice(sizes[width]), slice(sizes[width], None)
    of_token, rest = (first, last) if attentional else (last, first)
    columns, count = rnn._of_known(of_token), tokens.shape.num_elements()
    project = partial(rnn._project_known, decoder.embedding, columns=columns, count=count)
    return blocked_steps(project, tokens, state, memory, form, rnn._of_steps(rest), *masks, lens, *luong)


def blocked_steps(
    project: Callable[[tf.Tensor], tf.Tensor],
    tokens: tf.Tensor,
    state: tf.Tensor,
    memory: tuple[tf.Tensor, tf.Tensor, tf.Tensor | None],
    form: Form,
    layers: Sequence[tuple[tf.Tensor, ...]],
    dropout_mask: tf.Tensor | None,
    attention_dropout_mask: tf.Tensor | None,
    lens: tf.Tensor | None,
    W_c: tf.Tensor | None = None,
    attentional: tf.Tensor | None = None,
) -> tuple[tf.Tensor, ...]:
    """Run the steps of a decoder: (features of the logits, the last state, weights, contexts).

    Bahdanau's decoder attends before its layers, which read the context; its features are the top outputs. With W_c and
    the first attentional vector it is Luong's, which attends after its layers; its features are the attentional
    vectors, each of which the next step reads.

    project returns layer 0's W x + b of tokens. With lens (batch,), a sequence takes its first steps alone: all of the
    later ones is 0, and its state stays.

    Shapes: tokens (batch, steps); memory as (keys, values, mask); W_q (hidden_size, attention_size) and W_c
    (value_features + hidden_size, hidden_size); layers as _of_steps returns them; dropout_mask (num_layers - 1, batch,
    steps, hidden_size), attention_dropout_mask (batch, steps, keys). What is returned has the steps behind the batch.
    Second derivatives raise an AttentionError: set_path("plain") has them.
    """
    keys, values, mask = memory
    rows = Rows(tokens.shape, lens)
    named = {
        "known": project(rows.pack(tokens)),
        "state": state,
        "keys": keys,
        "values": values,
        "W_q": form.W_q() if form.W_q else None,
        "w_v": form.w_v,
        "W_c": W_c,
        "attentional": attentional,
        "between": None if len(layers) == 1 else dropout_mask,
        "factors": attention_dropout_mask,
    }
    given: dict[str, Any] = {name: array for name, array in named.items() if array is not None}
    given["layers"] = [tuple(layer) for layer in layers]

    @tf.custom_gradient
    def run(*arrays: tf.Tensor) -> tuple[tuple[tf.Tensor, ...], Any]:
        """Return the four arrays, and the function that computes the gradients."""
        # A tape that saw the inside would keep every step once more.
        steps = Steps(tf.nest.pack_sequence_as(given, [*map(tf.stop_gradient, arrays)]), mask, form.scale, rows)

        @tf.custom_gradient
        def gradients(*upstream: tf.Tensor) -> tuple[list[tf.Tensor], Any]:
            """Return the first derivatives, and refuse second ones."""
            operator = "BahdanauDecoder" if W_c is None else "LuongDecoder"
            found = steps.backward(*map(tf.stop_gradient, upstream[:4]))
            return tf.nest.flatten(found), partial(refuse, operator)

        return steps.forward(), lambda *upstream: gradients(*upstream, *arrays)

    features, last, weights, contexts = run(*map(tf.convert_to_tensor, tf.nest.flatten(given)))
    return rows.unpack(features), last, rows.unpack(weights), rows.unpack(contexts)


class GatedUnits:
    """One step of a layer of gated recurrent units, and one step back.

    With a = W x + b and u = U h, in parts r, z, n:

        r, z = σ(a + u);  m = u + b_hn;  n = tanh(a + r m);  h' = (1 - z) n + z h

    With the gradient dh of h', those of a, and of u, are

        dn = (1 - z)(1 - n²) dh;  dr = r(1 - r) m dn;  dz = z(1 - z)(h - n) dh;  and in u r dn in place of dn

    which give the gradient of x by W, and of h by U and z dh. Gates are in the order r, z, n, m.
    """

    @staticmethod
    @tf.function(jit_compile=True, autograph=False)
    def advance(a: tf.Tensor, b: tf.Tensor, u: tf.Tensor, state: Vectors, b_hn: tf.Tensor) -> tuple[tf.Tensor, Vectors]:
        """The gates, and the state after the step."""
        input_r, input_z, input_n = tf.split(a + b, 3, axis=-1)
        state_r, state_z, state_n = tf.split(u, 3, axis=-1)
        r, z, m = tf.sigmoid(input_r + state_r), tf.sigmoid(input_z + state_z), state_n + b_hn
        n = tf.tanh(input_n + r * m)
        return tf.concat([r, z, n, m], axis=-1), ((1 - z) * n + z * state[0],)

    @staticmethod
    @tf.function(jit_compile=True, autograph=False)
    def retreat(gates: tf.Tensor, state: Vectors, after: Vectors, d_after: Vectors) -> tuple[Vectors, Vectors]:
        """The gradients of a and of u, and that of the state beside u."""
        (r, z, n, m), (dh,), (h,) = tf.split(gates, 4, axis=-1), d_after, state
        dn = dh * (1 - z) * (1 - n * n)
        dr, dz = dn * m * r * (1 - r), dh * (h - n) * z * (1 - z)
        return (tf.concat([dr, dz, dn], axis=-1), tf.concat([dr, dz, r * dn], axis=-1)), (dh * z,)

    @staticmethod
    def further(d_u: tf.Tensor) -> Vectors:
        """The gradient of b_hn, of that of u in all steps."""
        return (tf.split(tf.reduce_sum(d_u, axis=0), 3)[2],)


class LongUnits:
    """One step of a layer of long short-term memory, and one step back; its state is h and c.

    With a = W x + b and u = U h, in parts i, f, g, o:

        i, f, o = σ(a + u);  g = tanh(a + u);  c' = f c + i g;  h' = o t, t = tanh(c')

    With the gradients dh of h' and e = dc' + o (1 - t²) dh of c' in all, those of a, and of u, are

        di = i(1 - i) g e;  df = f(1 - f) c e;  dg = i (1 - g²) e;  do = o(1 - o) t dh

    which give the gradient of x by W, and of h by U; that of c is f e. Gates are in the order i, f, g, o.
    """

    @staticmethod
    @tf.function(jit_compile=True, autograph=False)
    def advance(a: tf.Tensor, b: tf.Tensor, u: tf.Tensor, state: Vectors) -> tuple[tf.Tensor, Vectors]:
        """The gates, and the state after the step."""
        i, f, g, o = tf.split(a + b + u, 4, axis=-1)
        i, f, g, o = tf.sigmoid(i), tf.sigmoid(f), tf.tanh(g), tf.sigmoid(o)
        c = f * state[1] + i * g
        return tf.concat([i, f, g, o], axis=-1), (o * tf.tanh(c), c)

    @staticmethod
    @tf.function(jit_compile=True, autograph=False)
    def retreat(gates: tf.Tensor, state: Vectors, after: Vectors, d_after: Vectors) -> tuple[Vectors, Vectors]:
        """The gradient of a and of u, and that of the state beside u."""
        (i, f, g, o), (dh, dc), t = tf.split(gates, 4, axis=-1), d_after, tf.tanh(after[1])
        e = dc + dh * o * (1 - t * t)
        di, df, dg = e * g * i * (1 - i), e * state[1] * f * (1 - f), e * i * (1 - g * g)
        d_gates = tf.concat([di, df, dg, dh * t * o * (1 - o)], axis=-1)
        return (d_gates,), (tf.zeros_like(dh), e * f)

    @staticmethod
    def further(d_u: tf.Tensor) -> Vectors:
        """No gradients: there are no further parameters."""
        return ()


UNITS: dict[int, type[GatedUnits | LongUnits]] = {1: GatedUnits, 2: LongUnits}
"""By the number of vectors in a state."""


class Steps:
    """The steps of a decoder: recurrent layers, and attention before them or after them.

    With the query q = W_q s, or s, of the top output s, the keys k, and x what a layer of units is given:

        e[j] = w_v · tanh(q + k[j]), or scale q·k[j];  p = softmax(e);  c = sum over j of p[j] values[j]

    Bahdanau's: s is of the step before, and x = c. Luong's: x = a, the attentional vector of the step before; s is of
    this step, and the new a = tanh(W_c [c; s]).

    Backwards from step to step, with da of the attentional vector, [dc; ds] = da (1 - a²) W_c. From the context it goes
    to p, e, q, and k:

        dp[j] = dc · values[j];  de = p (dp - p · dp)
        dq = w_v sum over j of de[j] (1 - tanh²[j]), as dk[j] over steps; or scale sum over j of de[j] k[j]

    `GatedUnits` and `LongUnits` say how it goes on. The gradients of W, U, W_q, W_c and of the values are one product
    each, of all steps, after the loop. Products are TensorFlow's, which are faster than XLA's; XLA compiles what is
    between them.
    """

    def __init__(self, given: dict[str, Any], mask: tf.Tensor | None, scale: float, rows: Rows) -> None:
        """Take the arrays by name; W_q, w_v, W_c, attentional, between and factors may be missing."""
        self.rows, self.layers = rows, given["layers"]
        self.given = given = {**given, "state": rows.sort(given["state"], axis=1)} | {
            name: rows.sort(given[name]) for name in ("keys", "values", "attentional") if name in given
        }
        self.count, self.size = len(self.layers), self.layers[0][2].shape[0]
        self.start = [tf.split(layer, layer.shape[-1] // self.size, axis=-1) for layer in tf.unstack(given["state"])]
        self.units = UNITS[len(self.start[0])]
        self.after = "attentional" in given
        keys, values = given["keys"], given["values"]
        self.mask = None if mask is None else rows.sort(tf.broadcast_to(mask, (rows.batch, 1, keys.shape[1])))
        self.scored = Features(keys, given["w_v"]) if "w_v" in given else Products(keys, values, scale)
        self.between = [*map(rows.pack, tf.unstack(given["between"]))] if "between" in given else None
        self.factors = rows.pack(given["factors"]) if "factors" in given else None
        self.widths: dict[str, Any] = {"weights": keys.shape[1], "context": values.shape[2]}
        self.widths["query"] = given["W_q"].shape[1] if "W_q" in given else self.size
        if self.after:
            self.widths["attentional"] = given["attentional"].shape[1]

    def arrays(self, widths: Any) -> Any:
        """Make an array of all steps for each number of features in a structure."""
        dtype, count = self.given["known"].dtype, None if self.rows.ragged else self.rows.batch
        options: dict[str, Any] = {"size": self.rows.longest, "infer_shape": False}
        return tf.nest.map_structure(
            lambda width: tf.TensorArray(dtype, element_shape=(count, width), **options), widths
        )

    def forward(self) -> tuple[tf.Tensor, ...]:
        """Return (features, last state, weights, contexts), all but the state with the rows of all steps."""
        given, rows = self.given, self.rows

        def attend(t: tf.Tensor, output: tf.Tensor) -> dict[str, tf.Tensor]:
            query = tf.matmul(output, given["W_q"]) if "W_q" in given else output
            weights = self.scored.weights(query, None if self.mask is None else first(self.mask, query))
            weighted = weights if self.factors is None else weights * rows.at(self.factors, t)
            context = tf.matmul(weighted[:, None], self.scored.visible(query, first(given["values"], query)))
            return {"query": query, "weights": weights, "context": tf.squeeze(context, axis=1)}

        def advance(t: tf.Tensor, states: list[Vectors], attentional: Any, written: dict[str, Any]) -> tuple[Any, ...]:
            known = rows.at(given["known"], t)
            states, attentional = tf.nest.map_structure(lambda array: first(array, known), (states, attentional))
            kept: dict[str, Any] = {} if self.after else attend(t, states[-1][0])
            x, kept["gates"], kept["states"] = attentional if self.after else kept["context"], [], []
            for layer, ((W, b, U, *further), state) in enumerate(zip(self.layers, states, strict=True)):
                b = b if layer else known
                gates, after = self.units.advance(tf.matmul(x, W), b, tf.matmul(state[0], U), state, *further)
                kept["gates"].append(gates)
                kept["states"].append(after)
                x = after[0]
                if self.between is not None and layer + 1 < self.count:
                    x = x * rows.at(self.between[layer], t)
            if self.after:
                kept |= attend(t, x)
                attentional = tf.tanh(tf.matmul(tf.concat([kept["context"], x], axis=-1), given["W_c"]))
                kept["attentional"] = attentional
            return t + 1, kept["states"], attentional, write_at(t, written, kept)

        states, attentional = rows.at((list(map(tuple, self.start)), given.get("attentional", ())), 0)
        vectors = (self.size,) * len(self.start[0])
        written = self.arrays({**self.widths, "gates": [4 * self.size] * self.count, "states": [vectors] * self.count})
        loop = 0, states, attentional, written
        *_, written = tf.while_loop(lambda t, *_: t < rows.longest, advance, loop, maximum_iterations=rows.longest)
        # Joined, since the backward of a Jacobian reads them inside another graph.
        self.kept = kept = tf.nest.map_structure(lambda array: array.concat(), written)
        self.features = kept["attentional"] if self.after else kept["states"][-1][0]
        pairs = [zip(*layer, strict=True) for layer in zip(self.start, kept["states"], strict=True)]
        every = [[tf.concat(pair, axis=0) for pair in layer] for layer in pairs]
        self.read = [tuple(tf.gather(array, rows.sources) for array in layer) for layer in every]
        last = tf.stack([tf.concat([tf.gather(array, rows.ends) for array in layer], axis=-1) for layer in every])
        return self.features, rows.unsort(last, axis=1), kept["weights"], kept["context"]

    def backward(
        self, d_features: tf.Tensor, d_last: tf.Tensor, d_weights: tf.Tensor, d_contexts: tf.Tensor
    ) -> dict[str, Any]:
        """The gradients of what was given."""
        given, kept, read, rows, size = self.given, self.kept, self.read, self.rows, self.size
        transposed = [(tf.transpose(W), tf.transpose(U)) for W, _, U, *_ in self.layers]
        W_q_T, W_c_T = (tf.transpose(given[name]) if name in given else None for name in ("W_q", "W_c"))
        outputs = [layer[0] for layer in kept["states"]]
        attended = outputs[-1] if self.after else read[-1][0]
        ended = [tf.split(layer, len(self.start[0]), axis=-1) for layer in tf.unstack(rows.sort(d_last, axis=1))]

        def attend(t: tf.Tensor, d_context: tf.Tensor, sums: Any) -> tuple[tf.Tensor, Any, dict[str, tf.Tensor]]:
            d_context += rows.at(d_contexts, t)
            query, p, d_p = rows.at((kept["query"], kept["weights"], d_weights), t)
            visible = self.scored.visible(query, first(given["values"], query))
            slopes = tf.squeeze(tf.matmul(visible, d_context[..., None]), axis=-1)
            d_p += slopes if self.factors is None else slopes * rows.at(self.factors, t)
            d_query, d_scores, sums = self.scored.retreat(query, p, d_p, sums)
            found = {"context": d_context, "slopes": slopes, "weights": d_scores, "query": d_query}
            return d_query if W_q_T is None else tf.matmul(d_query, W_q_T), sums, found

        def retreat(
            back: tf.Tensor, d_states: list[list[tf.Tensor]], d_attentional: Any, sums: Any, written: dict[str, Any]
        ) -> tuple[Any, ...]:
            t = rows.longest - 1 - back
            features, d_feature, before, states, gates = rows.at(
                (self.features, d_features, read, kept["states"], kept["gates"]), t
            )
            d_states = rows.state_gradients(d_states, ended, t)
            found: dict[str, Any] = {"gates": [], "x": []}
            if self.after:
                d_attentional = rows.grow(d_attentional, t) + d_feature
                d_joined = d_attentional * (1 - features * features)
                d_context, d_output = tf.split(tf.matmul(d_joined, W_c_T), [-1, size], axis=-1)
                d_query, sums, of_attention = attend(t, d_context, sums)
                found |= {**of_attention, "joined": d_joined}
                d_states[-1][0] += d_output + d_query
            else:
                d_states[-1][0] += d_feature
            for layer in reversed(range(self.count)):
                W_T, U_T = transposed[layer]
                d_gates, beside = self.units.retreat(gates[layer], before[layer], states[layer], tuple(d_states[layer]))
                d_states[layer] = [beside[0] + tf.matmul(d_gates[-1], U_T), *beside[1:]]
                dx = tf.matmul(d_gates[0], W_T)
                found["gates"].insert(0, d_gates)
                found["x"].insert(0, dx)
                if layer:
                    d_states[layer - 1][0] += dx if self.between is None else dx * rows.at(self.between[layer - 1], t)
            if self.after:
                d_attentional = dx
            else:
                d_query, sums, of_attention = attend(t, dx, sums)
                found |= of_attention
                d_states[-1][0] += d_query
            return back + 1, d_states, d_attentional, sums, write_at(t, written, found)

        gates = given["known"].shape[1]
        widths = {**self.widths, "slopes": self.widths["weights"], "x": [W.shape[0] for W, *_ in self.layers]}
        widths["gates"] = [(gates,) * (2 if self.units is GatedUnits else 1)] * self.count
        if self.after:
            widths["joined"] = widths.pop("attentional")
        written = self.arrays(widths)
        none = tf.zeros((rows.fewest, size), d_last.dtype)
        d_states = [[none] * len(layer) for layer in ended] if rows.ragged else ended
        loop = 0, d_states, none if self.after else (), self.scored.sums(rows.fewest), written
        _, d_states, d_attentional, sums, written = tf.while_loop(
            lambda back, *_: back < rows.longest, retreat, loop, maximum_iterations=rows.longest
        )
        found = tf.nest.map_structure(lambda array: array.concat(), written)
        d_context, d_scores, query = (
            rows.unpack(array) for array in (found["context"], found["weights"], kept["query"])
        )
        if sums:
            sums = rows.unsort(rows.grow(sums[0], None)), sums[1]
        gradients: dict[str, Any] = self.scored.gradients(query, d_scores, sums)
        gradients |= {"known": found["gates"][0][0], "layers": []}
        d_states = rows.state_gradients(d_states, ended, None)
        gradients["state"] = rows.unsort(tf.stack([tf.concat(vectors, axis=-1) for vectors in d_states]), axis=1)
        for layer, (of_x, *of_u) in enumerate(found["gates"]):
            of_h = of_u[0] if of_u else of_x
            if layer == 0:
                x = kept["context"]
                if self.after:
                    x = tf.gather(tf.concat([given["attentional"], self.features], axis=0), rows.sources)
            else:
                x = outputs[layer - 1] if self.between is None else outputs[layer - 1] * self.between[layer - 1]
            # Layer 0's b is part of known.
            d_b = tf.reduce_sum(of_x, axis=0) if layer else tf.zeros_like(self.layers[0][1])
            d_U = product(read[layer][0], of_h)
            gradients["layers"].append((product(x, of_x), d_b, d_U, *self.units.further(of_h)))
        weights = rows.unpack(kept["weights"])
        weighted = weights if self.factors is None else weights * given["factors"]
        gradients["values"] = tf.matmul(weighted, d_context, transpose_a=True)
        if "W_q" in given:
            gradients["W_q"] = product(attended, found["query"])
        if self.after:
            gradients["attentional"] = rows.unsort(rows.grow(d_attentional, None))
            gradients["W_c"] = product(tf.concat([kept["context"], outputs[-1]], axis=-1), found["joined"])
        if self.between is not None:
            arrays = zip(found["x"][1:], outputs, strict=False)
            gradients["between"] = tf.stack([rows.unpack(dx * output) for dx, output in arrays])
        if self.factors is not None:
            gradients["factors"] = rows.unpack(found["slopes"]) * weights
        return gradients


class Features:
    """Additive scores of one query with each key of its sequence, by the variant of tanh(q + k) that suits the keys."""

    def __init__(self, keys: tf.Tensor, w_v: tf.Tensor) -> None:
        self.keys, self.w_v, self.variant = keys, w_v, variant_of(keys, w_v)
        self.against = call_variant(self.variant, factor, keys)

    def weights(self, query: tf.Tensor, mask: tf.Tensor | None) -> tf.Tensor:
        """The softmax of w_v · t over the open keys, (batch, keys)."""
        return call_variant(self.variant, feature_weights, query, first(self.against, query), self.w_v, mask)

    def visible(self, query: tf.Tensor, values: tf.Tensor) -> tf.Tensor:
        """Return the values as they are: scores are finite, and hide none of them."""
        return values

    def sums(self, count: int | tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        """The gradients of the keys and of w_v before the last step."""
        return tf.zeros_like(self.keys[:count]), tf.zeros_like(self.w_v)

    def retreat(
        self, query: tf.Tensor, p: tf.Tensor, d_p: tf.Tensor, sums: tuple[tf.Tensor, tf.Tensor]
    ) -> tuple[tf.Tensor, tf.Tensor, tuple[tf.Tensor, tf.Tensor]]:
        """The gradients of the query and of the scores, and the sums with those of this step."""
        sums = pad_rows(sums[0], size(query, 0)), sums[1]
        against = first(self.against, query)
        return call_variant(self.variant, feature_gradients, query, p, d_p, against, self.w_v, sums)

    def gradients(
        self, queries: tf.Tensor, d_scores: tf.Tensor, sums: tuple[tf.Tensor, tf.Tensor]
    ) -> dict[str, tf.Tensor]:
        """The gradients of the keys and of w_v, after all steps."""
        return dict(zip(("keys", "w_v"), sums, strict=True))


@tf.function(jit_compile=True, autograph=False)
def feature_weights(
    query: tf.Tensor, against: tf.Tensor, w_v: tf.Tensor, mask: tf.Tensor | None, *, variant: str
) -> tf.Tensor:
    """The weights of one step, (batch, keys)."""
    tanh = tanh_of_sum(factor(query, variant)[:, None], against, variant)
    return weights_of(tf.linalg.matvec(tanh, w_v), mask)


@tf.function(jit_compile=True, autograph=False)
def feature_gradients(
    query: tf.Tensor,
    p: tf.Tensor,
    d_p: tf.Tensor,
    against: tf.Tensor,
    w_v: tf.Tensor,
    sums: tuple[tf.Tensor, tf.Tensor],
    *,
    variant: str,
) -> tuple[tf.Tensor, tf.Tensor, tuple[tf.Tensor, tf.Tensor]]:
    """The gradients of a step's query and scores, and those of keys and of w_v with this step's added."""
    tanh = tanh_of_sum(factor(query, variant)[:, None], against, variant)
    slope, de, (d_keys, d_w_v) = w_v * (1.0 - tanh * tanh), scores_gradient(p, d_p), sums
    d_query = tf.squeeze(tf.matmul(de[:, None], slope), axis=1)
    of_w_v = tf.linalg.matvec(tf.reshape(tanh, (-1, w_v.shape[0])), tf.reshape(de, (-1,)), transpose_a=True)
    return d_query, de, (d_keys + de[..., None] * slope, d_w_v + of_w_v)


class Products:
    """Scores of one query with each key of its sequence by inner products."""

    def __init__(self, keys: tf.Tensor, values: tf.Tensor, scale: float) -> None:
        self.keys, self.scale = keys, scale
        self.finite = tf.reduce_all(tf.math.is_finite(values))

    def scores(self, query: tf.Tensor) -> tf.Tensor:
        """The scores scale · q·k."""
        return tf.squeeze(tf.matmul(first(self.keys, query), query[..., None]), axis=-1) * self.scale

    def weights(self, query: tf.Tensor, mask: tf.Tensor | None) -> tf.Tensor:
        """The softmax of the scores over the open keys, (batch, keys)."""
        return weights_of(self.scores(query), mask)

    def visible(self, query: tf.Tensor, values: tf.Tensor) -> tf.Tensor:
        """The values without those that a score of -inf hides: a weight of 0 does not silence a NaN."""

        def clear() -> tf.Tensor:
            return tf.where(tf.not_equal(self.scores(query), -math.inf)[..., None], values, 0.0)

        return tf.cond(self.finite, lambda: values, clear)

    def sums(self, count: int | tf.Tensor) -> tuple[()]:
        """Return nothing: the gradient of the keys is one product of all steps."""
        return ()

    def retreat(
        self, query: tf.Tensor, p: tf.Tensor, d_p: tf.Tensor, sums: tuple[()]
    ) -> tuple[tf.Tensor, tf.Tensor, tuple[()]]:
        """The gradients of the query and of the scores."""
        d_scores = scores_gradient(p, d_p) * self.scale
        return tf.squeeze(tf.matmul(d_scores[:, None], first(self.keys, query)), axis=1), d_scores, ()

    def gradients(self, queries: tf.Tensor, d_scores: tf.Tensor, sums: tuple[()]) -> dict[str, tf.Tensor]:
        """The gradient of the keys."""
        return {"keys": tf.matmul(d_scores, queries, transpose_a=True)}


def weights_of(scores: tf.Tensor, mask: tf.Tensor | None) -> tf.Tensor:
    """The softmax of one step's scores over the open keys, (batch, keys)."""
    scores = scores[:, None]
    return tf.squeeze(softmax_over(scores, open_keys(scores, mask)), axis=1)


def scores_gradient(p: tf.Tensor, d_p: tf.Tensor) -> tf.Tensor:
    """The gradient of scores by that of their softmax p."""
    return p * (d_p - tf.reduce_sum(p * d_p, axis=-1, keepdims=True))


def first(array: tf.Tensor, like: tf.Tensor) -> tf.Tensor:
    """The first rows of an array, as many as another one has."""
    alike = array.shape[0] is not None and array.shape[0] == like.shape[0]
    return array if alike else array[: size(like, 0)]


def product(x: tf.Tensor, gradient: tf.Tensor) -> tf.Tensor:
    """Return the gradient of a matrix by which x was multiplied, over all steps and sequences."""
    return tf.matmul(x, gradient, transpose_a=True)


def write_at(t: tf.Tensor, arrays: Any, values: Any) -> Any:
    """Write the values of a step into the arrays of all steps."""
    return tf.nest.map_structure(lambda array, value: array.write(t, value), arrays, values)


def refuse(operator: str, *_: tf.Tensor) -> None:
    """Refuse second derivatives."""
    raise AttentionError(
        f"{operator}: no second derivative is known where its steps are one function. Step by step it has all: "
        'call backends.tf.kernels.set_path("plain") before it is called.'
    )
