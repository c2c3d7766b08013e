"""What ours is compared with in JAX: as tutorials write it, and by JAX's and Flax's own functions and layers."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from operator import attrgetter
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
from flax import nnx

from attention_core.operators.training import Batch
from backends import weights
from benchmarks.problem import BOS, EOS, Problem, inner_layers

Arrays = dict[str, jax.Array]


def masked_softmax(scores: jax.Array, valid_lens: jax.Array) -> jax.Array:
    """Softmax over the keys, with a large negative number where there is padding."""
    shape = (-1, *(1,) * (scores.ndim - 1))
    valid = jnp.arange(scores.shape[-1]) < valid_lens.reshape(shape)
    return jax.nn.softmax(jnp.where(valid, scores, -1e6), axis=-1)


def kernels(parameters: Arrays) -> Arrays:
    """Canonical parameters as Flax has them, or the reverse: the matrices transposed, (features, units).

    Of x @ W.T + b with one row x, XLA makes a loop that takes 30 times as long.
    """
    return {
        name: jnp.swapaxes(array, -2, -1) if name.rpartition(".")[2].startswith(("W", "U")) else array
        for name, array in parameters.items()
    }


def additive_attention(
    parameters: Arrays, queries: jax.Array, keys: jax.Array, values: jax.Array, valid_lens: jax.Array
) -> tuple[jax.Array, jax.Array]:
    """softmax(w_v tanh(W_q q + W_k k)) v, with one array of (batch, queries, keys, hidden)."""
    queries, keys = queries @ parameters["W_q"], keys @ parameters["W_k"]
    features = jnp.tanh(queries[:, :, None, :] + keys[:, None, :, :])
    weights = masked_softmax(features @ parameters["w_v"], valid_lens)
    return weights @ values, weights


def gru_cell(parameters: Arrays, x: jax.Array, h: jax.Array) -> jax.Array:
    """One step of one recurrent layer."""
    W, U, b, b_hn = (parameters[name] for name in ("W", "U", "b", "b_hn"))
    r = jax.nn.sigmoid(x @ W[0] + b[0] + h @ U[0])
    z = jax.nn.sigmoid(x @ W[1] + b[1] + h @ U[1])
    n = jnp.tanh(x @ W[2] + b[2] + r * (h @ U[2] + b_hn))
    return (1 - z) * n + z * h


def decoder_step(
    parameters: Arrays, token: jax.Array, encoder_outputs: jax.Array, state: jax.Array, valid_lens: jax.Array
) -> tuple[jax.Array, jax.Array, jax.Array]:
    """One step: project the keys, attend, run the recurrent layers; (logits, state, weights)."""
    attention = {name: parameters[f"attention.{name}"] for name in ("W_q", "W_k", "w_v")}
    query = state[-1][:, None]
    context, weights = additive_attention(attention, query, encoder_outputs, encoder_outputs, valid_lens)
    x = jnp.concatenate([context[:, 0], parameters["embedding"][token]], axis=-1)
    states = []
    for layer, h in enumerate(state):
        x = gru_cell({name: parameters[f"rnn.{layer}.{name}"] for name in ("W", "U", "b", "b_hn")}, x, h)
        states.append(x)
    return x @ parameters["dense.W"] + parameters["dense.b"], jnp.stack(states), weights[:, 0]


def decoder(
    parameters: Arrays, tokens: jax.Array, encoder_outputs: jax.Array, state: jax.Array, valid_lens: jax.Array
) -> tuple[jax.Array, jax.Array, jax.Array]:
    """A loop over the steps; (logits, state, weights)."""
    logits, attended = [], []
    for t in range(tokens.shape[1]):
        out, state, weights = decoder_step(parameters, tokens[:, t], encoder_outputs, state, valid_lens)
        logits.append(out)
        attended.append(weights)
    return jnp.stack(logits, axis=1), state, jnp.stack(attended, axis=1)


def encode(parameters: Arrays, source: jax.Array, source_lens: jax.Array) -> tuple[jax.Array, jax.Array]:
    """An encoder in a scan, in which padding leaves the state alone: (outputs, state)."""
    outputs, layer = jnp.swapaxes(parameters["embedding"][source], 0, 1), 0
    states: list[jax.Array] = []
    valid = jnp.arange(len(outputs))[:, None, None] < source_lens[:, None]
    while f"rnn.{layer}.W" in parameters:
        weights = {name: parameters[f"rnn.{layer}.{name}"] for name in ("W", "U", "b", "b_hn")}

        def read(h: jax.Array, at: tuple[jax.Array, jax.Array], weights: Arrays = weights) -> tuple[jax.Array, ...]:
            x, valid = at
            h = jnp.where(valid, gru_cell(weights, x, h), h)
            return h, jnp.where(valid, h, 0.0)

        h, outputs = jax.lax.scan(read, jnp.zeros_like(outputs[0]), (outputs, valid))
        states, layer = [*states, h], layer + 1
    return jnp.swapaxes(outputs, 0, 1), jnp.stack(states)


def parts(parameters: Arrays) -> tuple[Arrays, ...]:
    """The parameters of the encoder and those of the decoder, by their names in it."""
    return tuple(
        {name.removeprefix(part): array for name, array in parameters.items() if name.startswith(part)}
        for part in ("encoder.", "decoder.")
    )


def translator(parameters: Arrays, source: jax.Array, source_lens: jax.Array, inputs: jax.Array) -> jax.Array:
    """The encoder, and the decoder's step in a scan: the logits."""
    of_encoder, of_decoder = parts(parameters)
    keys, state = encode(of_encoder, source, source_lens)

    def write(state: jax.Array, token: jax.Array) -> tuple[jax.Array, jax.Array]:
        logits, state, _ = decoder_step(of_decoder, token, keys, state, source_lens)
        return state, logits

    _, logits = jax.lax.scan(write, state, inputs.T)
    return jnp.swapaxes(logits, 0, 1)


Step = Callable[[jax.Array, jax.Array, Any], tuple[jax.Array, Any]]
"""The logits behind the token of each row, at step t and in a state, and the state after it, whose rows come first."""
Stepping = Callable[[Any, jax.Array, jax.Array, int, int], tuple[Step, Any]]
"""A step and its first state, of a model, a source and its lengths, at most so many steps and hypotheses."""


def translator_stepping(
    parameters: Arrays, source: jax.Array, source_lens: jax.Array, steps: int, width: int
) -> tuple[Step, list[jax.Array]]:
    """The decoder's step, and the first state of each of its layers."""
    of_encoder, of_decoder = parts(parameters)
    keys, state = encode(of_encoder, source, source_lens)
    keys, lens = (jnp.repeat(array, width, axis=0) for array in (keys, source_lens))

    def step(token: jax.Array, t: jax.Array, state: list[jax.Array]) -> tuple[jax.Array, list[jax.Array]]:
        logits, after, _ = decoder_step(of_decoder, token, keys, jnp.stack(state), lens)
        return logits, list(after)

    return step, [jnp.repeat(h, width, axis=0) for h in state]


class TransformerLayer(nnx.Module):
    """Self-attention, attention to a memory in a decoder, two Linear, and a LayerNorm behind each: of Flax alone."""

    def __init__(self, size: int, heads: int, hidden_size: int, attentions: int) -> None:
        rngs = nnx.Rngs(0)
        heads_of = partial(nnx.MultiHeadAttention, heads, size, rngs=rngs)
        self.attentions = nnx.List([heads_of() for _ in range(attentions)])
        self.norms = nnx.List([nnx.LayerNorm(size, epsilon=1e-5, rngs=rngs) for _ in range(attentions + 1)])
        self.linear_1, self.linear_2 = (
            nnx.Linear(size, hidden_size, rngs=rngs),
            nnx.Linear(hidden_size, size, rngs=rngs),
        )

    def __call__(self, x: jax.Array, mask: jax.Array | None, *memory: jax.Array, decode: bool = False) -> jax.Array:
        """The outputs; memory is the encoder's outputs and their mask. decode is for one step, behind those cached."""
        sources = [(x, mask, decode), (*memory, False)][: len(self.attentions)]
        for attention, norm, (keys, open_keys, cached) in zip(self.attentions, self.norms[:-1], sources, strict=True):
            x = norm(x + attention(x, keys, mask=open_keys, decode=cached))
        return self.norms[-1](x + self.linear_2(jax.nn.relu(self.linear_1(x))))

    def fill(self, arrays: Mapping[str, np.ndarray]) -> None:
        """Set the parameters to canonical ones."""
        inner = inner_layers(arrays, self.attentions[0].num_heads)
        for module, (layer, parameters, form) in zip((*self.attentions, *self.norms), inner, strict=True):
            for path, array in weights.from_canonical(layer, parameters, f"flax.nnx.{layer}", **form).items():
                attrgetter(path)(module)[...] = jnp.asarray(array)
        for number, linear in enumerate((self.linear_1, self.linear_2), 1):
            linear.kernel[...] = jnp.asarray(arrays[f"feed_forward.W_{number}"].T)
            linear.bias[...] = jnp.asarray(arrays[f"feed_forward.b_{number}"])


class Transformer(nnx.Module):
    """Embeddings times √size, with sines and cosines added, layers of Flax's parts, and logits."""

    def __init__(self, problem: Problem) -> None:
        sizes, rngs = problem.sizes, nnx.Rngs(0)
        size, layer = sizes["hidden"], (sizes["hidden"], sizes["heads"], 4 * sizes["hidden"])
        self.source = nnx.Embed(sizes["source_vocabulary"], size, rngs=rngs)
        self.target = nnx.Embed(sizes["vocabulary"], size, rngs=rngs)
        self.encoder = nnx.List([TransformerLayer(*layer, 1) for _ in range(sizes["layers"])])
        self.decoder = nnx.List([TransformerLayer(*layer, 2) for _ in range(sizes["layers"])])
        self.dense = nnx.Linear(size, sizes["vocabulary"], rngs=rngs)
        parameters = problem.parameters
        for embedding, part in ((self.source, "encoder"), (self.target, "decoder")):
            embedding.embedding[...] = jnp.asarray(parameters[f"{part}.embedding"])
            for made, arrays in zip(getattr(self, part), problem.stack(part), strict=True):
                made.fill(arrays)
        self.dense.kernel[...] = jnp.asarray(parameters["decoder.dense.W"].T)
        self.dense.bias[...] = jnp.asarray(parameters["decoder.dense.b"])

    def __call__(self, source: jax.Array, source_lens: jax.Array, inputs: jax.Array) -> jax.Array:
        """The logits."""
        causal = jnp.tril(jnp.ones((inputs.shape[1], inputs.shape[1]), bool))
        encoded, x = self.encode(source, source_lens), self.embed(self.target, inputs, jnp.arange(inputs.shape[1]))
        for layer in self.decoder:
            x = layer(x, causal, *encoded)
        return self.dense(x)

    def encode(self, source: jax.Array, source_lens: jax.Array) -> tuple[jax.Array, jax.Array]:
        """The encoder's outputs, and where they are open."""
        places = jnp.arange(source.shape[1])
        opened = (places < source_lens[:, None])[:, None, None]
        keys = self.embed(self.source, source, places)
        for layer in self.encoder:
            keys = layer(keys, opened)
        return keys, opened

    def step(self, token: jax.Array, t: jax.Array, *encoded: jax.Array) -> jax.Array:
        """The logits behind the token at step t, by the keys and values that the layers have cached."""
        x = self.embed(self.target, token[:, None], t[None])
        for layer in self.decoder:
            x = layer(x, None, *encoded, decode=True)
        return self.dense(x)[:, 0]

    def split_with_cache(self, batch: int, steps: int) -> tuple[Any, Any, Any]:
        """The model in parts, of which the second is what the layers cache of so many steps: nothing yet."""
        for layer in self.decoder:
            layer.attentions[0].init_cache((batch, steps, self.target.features))
        return nnx.split(self, nnx.Cache, ...)

    @staticmethod
    def embed(embedding: nnx.Embed, tokens: jax.Array, places: jax.Array) -> jax.Array:
        """The tokens as vectors, at their positions."""
        size = embedding.features
        angles = places[:, None] / 10000 ** (jnp.arange(0, size, 2) / size)
        positions = jnp.stack([jnp.sin(angles), jnp.cos(angles)], axis=-1).reshape(len(angles), size)
        return embedding(tokens) * size**0.5 + positions.astype(jnp.float32)


def transformer_stepping(
    model: Transformer, source: jax.Array, source_lens: jax.Array, steps: int, width: int
) -> tuple[Step, Any]:
    """A step whose layers cache keys and values, and the first caches."""
    encoded = tuple(jnp.repeat(array, width, axis=0) for array in model.encode(source, source_lens))
    graphdef, cache, rest = model.split_with_cache(len(source) * width, steps)

    def step(token: jax.Array, t: jax.Array, cache: Any) -> tuple[jax.Array, Any]:
        stepped = nnx.merge(graphdef, cache, rest)
        return stepped.step(token, t, *encoded), nnx.state(stepped, nnx.Cache)

    return step, cache


def greedy(
    stepping: Stepping, model: Any, source: jax.Array, source_lens: jax.Array, *, steps: int
) -> tuple[jax.Array]:
    """A scan over the steps."""
    step, state = stepping(model, source, source_lens, steps, 1)

    def advance(carry: tuple[Any, ...], t: jax.Array) -> tuple[tuple[Any, ...], jax.Array]:
        token, ended, state = carry
        logits, state = step(token, t, state)
        token = jnp.where(ended, EOS, jnp.argmax(logits, axis=-1))
        return (token, ended | (token == EOS), state), token

    start = jnp.full(len(source), BOS), jnp.zeros(len(source), bool), state
    _, tokens = jax.lax.scan(advance, start, jnp.arange(steps))
    return (tokens.T,)


def beam(
    stepping: Stepping,
    model: Any,
    source: jax.Array,
    source_lens: jax.Array,
    *,
    steps: int,
    width: int,
    num_best: int,
) -> tuple[jax.Array]:
    """The same for all hypotheses of a sentence side by side, with the states of those that each is continued from."""
    batch, rows = len(source), len(source) * width
    step, state = stepping(model, source, source_lens, steps, width)
    first = jnp.arange(batch)[:, None] * width

    def advance(carry: tuple[Any, ...], t: jax.Array) -> tuple[tuple[Any, ...], None]:
        token, ended, state, totals, tokens = carry
        logits, state = step(token, t, state)
        logs = jax.nn.log_softmax(logits)
        # What has ended goes on as itself.
        logs = jnp.where(ended[:, None], jnp.where(jnp.arange(logs.shape[-1]) == EOS, 0.0, -jnp.inf), logs)
        candidates = totals[..., None] + logs.reshape(batch, width, -1)
        totals, best = jax.lax.top_k(candidates.reshape(batch, -1), width)
        parents, token = (first + best // logs.shape[-1]).ravel(), (best % logs.shape[-1]).ravel()
        state = jax.tree.map(lambda array: array[parents] if array.ndim else array, state)
        return (token, ended[parents] | (token == EOS), state, totals, tokens[parents].at[:, t].set(token)), None

    start = (
        jnp.full(rows, BOS),
        jnp.zeros(rows, bool),
        state,
        jnp.full((batch, width), -jnp.inf).at[:, 0].set(0.0),
        jnp.full((rows, steps), EOS),
    )
    (*_, tokens), _ = jax.lax.scan(advance, start, jnp.arange(steps))
    return (tokens.reshape(batch, width, steps)[:, :num_best],)


def greedy_decoder(
    parameters: Arrays, tokens: jax.Array, encoder_outputs: jax.Array, state: jax.Array, valid_lens: jax.Array
) -> tuple[jax.Array]:
    """A loop that feeds back the likeliest token until all sentences have ended; tokens gives the number of steps."""
    batch, steps = tokens.shape
    token, ended, tokens_out = jnp.full(batch, BOS), jnp.zeros(batch, bool), []
    for _ in range(steps):
        logits, state, _ = decoder_step(parameters, token, encoder_outputs, state, valid_lens)
        token = jnp.where(ended, EOS, jnp.argmax(logits, axis=-1)).astype(jnp.int32)
        ended = ended | (token == EOS)
        tokens_out.append(token)
        if bool(ended.all()):
            break
    tokens_out += [jnp.full(batch, EOS, jnp.int32)] * (steps - len(tokens_out))
    return (jnp.stack(tokens_out, axis=1),)


def dot_product_attention(
    parameters: Arrays, queries: jax.Array, keys: jax.Array, values: jax.Array, valid_lens: jax.Array
) -> tuple[jax.Array, jax.Array]:
    """softmax(q k / sqrt(d)) v, with one array of (batch, heads, queries, keys)."""
    scores = queries @ jnp.swapaxes(keys, -2, -1) / jnp.sqrt(queries.shape[-1]).astype(queries.dtype)
    weights = masked_softmax(scores, valid_lens)
    return weights @ values, weights


def jax_dot_product_attention(
    parameters: Arrays, queries: jax.Array, keys: jax.Array, values: jax.Array, valid_lens: jax.Array
) -> tuple[jax.Array]:
    """JAX's own function, which has time before heads and returns no weights."""
    queries, keys, values = (jnp.swapaxes(array, 1, 2) for array in (queries, keys, values))
    context = jax.nn.dot_product_attention(queries, keys, values, key_value_seq_lengths=valid_lens)
    return (jnp.swapaxes(context, 1, 2),)


def training_step(
    parameters: Any,
    state: Any,
    batch: Batch,
    optimizer: optax.GradientTransformation,
    model: Callable[[Any, jax.Array, jax.Array, jax.Array], jax.Array],
) -> tuple[Any, Any, jax.Array, jax.Array]:
    """Logits of all steps, a loss for each, of which those of padding are masked, clipping, and Adam."""

    def loss_of(parameters: Any) -> jax.Array:
        logits = model(parameters, batch.source, batch.source_lens, batch.inputs)
        losses = optax.softmax_cross_entropy_with_integer_labels(logits, batch.targets)
        mask = jnp.arange(losses.shape[1]) < batch.target_lens[:, None]
        return (losses * mask).sum() / mask.sum()

    loss, gradients = jax.value_and_grad(loss_of)(parameters)
    norm = optax.global_norm(gradients)
    updates, state = optimizer.update(gradients, state, parameters)
    return optax.apply_updates(parameters, updates), state, loss, norm
