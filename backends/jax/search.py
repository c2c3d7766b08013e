"""Decoding over any step, in JAX: the most probable token of every step, and beams of hypotheses."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp

from backends.jax.graphs import varying
from backends.jax.memory import Memory

Step = Callable[..., tuple[jax.Array, Any, jax.Array]]
"""(logits, state, weights) of one token for each row, as a decoder's step returns them; a Partial of it."""
Masks = tuple[jax.Array | None, jax.Array | None]
"""Dropout masks between the recurrent layers and of the attention's weights."""


# The loops are compiled here, since jax.lax.scan outside of jit compiles its loop again in every call. All max_steps
# run, whenever the sequences end: jax.lax.while_loop, which could stop before, has no gradient in reverse mode.
@partial(jax.jit, static_argnames="max_steps")
def greedy_search(
    step: Step, state: Any, memory: Memory, masks: Masks, *, bos: int, eos: int, max_steps: int
) -> tuple[jax.Array, jax.Array, jax.Array]:
    """Feed back the most probable token, up to an end token: (tokens, lengths, weights), as a decoder's greedy."""
    batch = memory.values.shape[0]

    def advance(carry: tuple[Any, ...], masks: Masks) -> tuple[Any, ...]:
        token, state, running = carry
        logits, state, attended = step(token, state, memory, masks)
        token = jnp.where(running, jnp.argmax(logits, axis=-1), eos).astype(jnp.int32)
        attended = jnp.where(running[:, None], attended, 0.0)
        running = running & (token != eos)
        return (token, state, running), (token, running, attended)

    start = (jnp.full(batch, bos, jnp.int32), state, jnp.full(batch, True))
    start = varying(start, step, memory, masks)
    _, (tokens, running, weights) = jax.lax.scan(advance, start, steps_first(masks), length=max_steps)
    lengths = jnp.sum(running, axis=0, dtype=jnp.int32)
    return jnp.swapaxes(tokens, 0, 1), lengths, jnp.swapaxes(weights, 0, 1)


@partial(jax.jit, static_argnames=("reordered", "vocab_size", "max_steps", "width", "num_best"))
def beam_search(
    step: Step,
    reordered: Callable[[Any, jax.Array], Any],
    state: Any,
    memory: Memory,
    masks: Masks,
    *,
    vocab_size: int,
    bos: int,
    eos: int,
    max_steps: int,
    width: int,
    num_best: int,
    length_penalty: float,
) -> tuple[jax.Array, jax.Array, jax.Array, jax.Array]:
    """Keep the best hypotheses of every step: (tokens, lengths, scores, weights), as a decoder's beam.

    reordered takes the state of some rows of the batch, in their order; the masks are of batch · width rows.
    """
    batch, keys, dtype = memory.values.shape[0], memory.values.shape[-2], memory.values.dtype
    if batch == 0:  # there is no row to repeat
        tokens, lengths = jnp.zeros((0, num_best, max_steps), jnp.int32), jnp.zeros((0, num_best), jnp.int32)
        return tokens, lengths, jnp.zeros((0, num_best), dtype), jnp.zeros((0, num_best, max_steps, keys), dtype)
    # Hypothesis w of sequence b is row b · width + w: each step is one step of the decoder.
    rows = jnp.repeat(jnp.arange(batch), width)
    state, first = reordered(state, rows), jnp.arange(batch, dtype=jnp.int32)[:, None] * width
    mask = None if memory.mask is None else jnp.broadcast_to(memory.mask, (batch, *memory.mask.shape[1:]))[rows]
    memory = Memory(memory.keys[rows], memory.values[rows], mask)
    # Sums of logarithms are kept, and ranked, in float32 at least.
    exact = jnp.promote_types(dtype, jnp.float32)
    itself = jnp.where(jnp.arange(vocab_size) == eos, 0.0, -jnp.inf).astype(exact)

    def advance(carry: tuple[Any, ...], masks: Masks) -> tuple[Any, ...]:
        token, state, totals, counts, running = carry
        logits, state, attended = step(token, state, memory, masks)
        logs = jax.nn.log_softmax(logits.astype(exact), axis=-1).reshape(batch, width, vocab_size)
        candidates = totals[..., None] + jnp.where(running[..., None], logs, itself)
        attended = jnp.where(running[..., None], attended.reshape(batch, width, keys), 0.0)
        counts = counts + running
        ranked = candidates / penalty(counts, length_penalty, exact)[..., None]
        best = first_best(ranked.reshape(batch, width * vocab_size), width)
        totals = jnp.take_along_axis(candidates.reshape(batch, width * vocab_size), best, axis=-1)
        parents, chosen = best // vocab_size, (best % vocab_size).astype(jnp.int32)
        counts, running = (jnp.take_along_axis(array, parents, axis=-1) for array in (counts, running))
        state = reordered(state, (first + parents).reshape(batch * width))
        carry = chosen.reshape(batch * width), state, totals, counts, running & (chosen != eos)
        return carry, (parents, chosen, attended)

    def back(hypothesis: jax.Array, at: tuple[jax.Array, ...]) -> tuple[Any, ...]:
        parents, chosen, attended = at
        parent, token = (jnp.take_along_axis(array, hypothesis, axis=-1) for array in (parents, chosen))
        return parent, (token, jnp.take_along_axis(attended, parent[..., None], axis=1))

    start = (
        jnp.full(batch * width, bos, jnp.int32),
        state,
        # All hypotheses are the same at first: one of them is continued.
        jnp.zeros((batch, width), exact).at[:, 1:].set(-jnp.inf),
        jnp.zeros((batch, width), jnp.int32),
        jnp.full((batch, width), True),
    )
    start = varying(start, step, memory, masks)
    (_, _, totals, counts, running), kept = jax.lax.scan(advance, start, steps_first(masks), length=max_steps)
    hypotheses = jnp.broadcast_to(jnp.arange(num_best, dtype=jnp.int32), (batch, num_best))
    _, (tokens, weights) = jax.lax.scan(back, varying(hypotheses, kept), kept, length=max_steps, reverse=True)
    lengths = jnp.where(running, counts, jnp.maximum(counts - 1, 0))[:, :num_best]
    scores = (totals / penalty(counts, length_penalty, exact)).astype(dtype)[:, :num_best]
    return jnp.moveaxis(tokens, 0, -1), lengths, scores, jnp.moveaxis(weights, 0, 2)


def first_best(ranked: jax.Array, width: int) -> jax.Array:
    """The places of the largest of each row, best first; of equal ones the first, as jax.lax.top_k takes them."""
    return jax.lax.top_k(ranked, width)[1]


def penalty(lengths: jax.Array, length_penalty: float, dtype: jnp.dtype) -> jax.Array:
    """((5 + n)/6)^α of Wu et al."""
    return ((5.0 + lengths.astype(dtype)) / 6.0) ** length_penalty


# ------------------------------------------------------------------------------------------------ particular to JAX


def steps_first(masks: Masks) -> Masks:
    """Move the axis of steps to the front, where jax.lax.scan expects it."""
    between, attention = masks
    return (
        None if between is None else jnp.moveaxis(between, 2, 0),
        None if attention is None else jnp.swapaxes(attention, 0, 1)[:, :, None],
    )
