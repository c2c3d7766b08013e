"""Decoding over any step, in TensorFlow: the most probable token of every step, and beams of hypotheses."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import tensorflow as tf

from backends.tf.masking import precise, size
from backends.tf.memory import Memory

Step = Callable[[tf.Tensor, Any, Memory], tuple[tf.Tensor, Any, tf.Tensor]]
"""(logits, state, weights) of one token for each row, as a decoder's step returns them."""


def greedy_search(
    step: Step, state: Any, memory: Memory, *, bos: int, eos: int, max_steps: int
) -> tuple[tf.Tensor, tf.Tensor, tf.Tensor]:
    """Feed back the most probable token, up to an end token: (tokens, lengths, weights), as a decoder's greedy."""
    batch, keys, dtype = size(memory.values, 0), size(memory.values, -2), memory.values.dtype
    # Every step is filled as if it came after the end. An empty TensorArray cannot be stacked: one row at least.
    rows = max(max_steps, 1)
    tokens = tf.TensorArray(tf.int32, size=rows).unstack(tf.fill((rows, batch), int(eos)))
    weights = tf.TensorArray(dtype, size=rows).unstack(tf.zeros((rows, batch, keys), dtype))
    token = tf.fill((batch,), int(bos))
    running = tf.ones((batch,), tf.bool)
    lengths = tf.zeros((batch,), tf.int32)

    def advance(
        t: tf.Tensor,
        token: tf.Tensor,
        state: Any,
        running: tf.Tensor,
        tokens: tf.TensorArray,
        lengths: tf.Tensor,
        weights: tf.TensorArray,
    ) -> tuple[Any, ...]:
        logits, after, attended = step(token, state, memory)
        token = tf.where(running, tf.argmax(logits, axis=-1, output_type=tf.int32), int(eos))
        tokens = tokens.write(t, token)
        weights = weights.write(t, tf.where(tf.expand_dims(running, axis=1), attended, 0.0))
        running = tf.logical_and(running, tf.not_equal(token, int(eos)))
        lengths = lengths + tf.cast(running, tf.int32)
        return t + 1, token, shaped_as(after, state), running, tokens, lengths, weights

    *_, tokens, lengths, weights = tf.while_loop(
        lambda t, token, state, running, *_: tf.logical_and(t < max_steps, tf.reduce_any(running)),
        advance,
        (0, token, state, running, tokens, lengths, weights),
    )
    tokens = tf.transpose(tokens.stack()[:max_steps])
    return tokens, lengths, tf.stop_gradient(tf.transpose(weights.stack()[:max_steps], (1, 0, 2)))


def beam_search(
    step: Step,
    reordered: Callable[[Any, tf.Tensor], Any],
    state: Any,
    memory: Memory,
    *,
    vocab_size: int,
    bos: int,
    eos: int,
    max_steps: int,
    width: int,
    num_best: int,
    length_penalty: float,
) -> tuple[tf.Tensor, tf.Tensor, tf.Tensor, tf.Tensor]:
    """Keep the best hypotheses of every step: (tokens, lengths, scores, weights), as a decoder's beam.

    reordered takes the state of some rows of the batch, in their order.
    """
    batch, keys = size(memory.values, 0), size(memory.values, -2)
    # Hypothesis w of sequence b is row b · width + w: each step is one step of the decoder.
    state, first = reordered(state, tf.repeat(tf.range(batch), width)), tf.range(batch)[:, None] * width
    if memory.mask is not None:  # which may be the same for all sequences
        memory = memory._replace(mask=tf.broadcast_to(memory.mask, (batch, 1, keys)))
    memory = Memory(*(None if part is None else tf.repeat(part, width, axis=0) for part in memory))
    # Sums of logarithms are kept, and ranked, in float32 at least.
    exact = precise(memory.values[:0]).dtype
    tokens = tf.fill((batch, width, max_steps), int(eos))
    weights = tf.zeros((batch, width, max_steps, keys), memory.values.dtype)
    # All hypotheses are the same at first: one of them is continued.
    totals = tf.where(tf.equal(tf.range(width), 0), tf.zeros((batch, width), exact), -math.inf)
    itself = tf.where(tf.equal(tf.range(vocab_size), int(eos)), tf.zeros((), exact), -math.inf)
    token = tf.fill((batch * width,), int(bos))
    counts, running = tf.zeros((batch, width), tf.int32), tf.ones((batch, width), tf.bool)

    def advance(
        t: tf.Tensor,
        token: tf.Tensor,
        state: Any,
        running: tf.Tensor,
        counts: tf.Tensor,
        totals: tf.Tensor,
        tokens: tf.Tensor,
        weights: tf.Tensor,
    ) -> tuple[Any, ...]:
        logits, after, attended = step(token, state, memory)
        logs = tf.reshape(tf.nn.log_softmax(precise(logits)), (batch, width, vocab_size))
        candidates = totals[..., None] + tf.where(running[..., None], logs, itself)
        lengths = counts + tf.cast(running, tf.int32)
        ranked = candidates
        if length_penalty != 0.0:  # as these are the largest arrays of a step
            ranked = candidates / penalty(lengths, length_penalty, exact)[..., None]
        best = first_best(tf.reshape(ranked, (batch, width * vocab_size)), width)
        parents, chosen = best // vocab_size, best % vocab_size
        now = tf.equal(tf.range(max_steps), t)
        attended = tf.where(running[..., None], tf.reshape(attended, (batch, width, keys)), 0.0)
        following = (
            tf.reshape(chosen, (-1,)),
            reordered(after, tf.reshape(first + parents, (-1,))),
            tf.logical_and(of_hypotheses(running, parents), tf.not_equal(chosen, int(eos))),
            of_hypotheses(lengths, parents),
            of_hypotheses(tf.reshape(candidates, (batch, width * vocab_size)), best),
            tf.where(now, chosen[..., None], of_hypotheses(tokens, parents)),
            of_hypotheses(tf.where(now[:, None], attended[:, :, None], weights), parents),
        )
        return t + 1, *shaped_as(following, (token, state, running, counts, totals, tokens, weights))

    def is_undecided(
        t: tf.Tensor, token: tf.Tensor, state: Any, running: tf.Tensor, counts: tf.Tensor, totals: tf.Tensor, *_: Any
    ) -> tf.Tensor:
        ended = is_decided(totals, counts, running, num_best, max_steps, length_penalty)
        return tf.logical_and(t < max_steps, tf.logical_not(tf.reduce_all(ended)))

    *_, running, counts, totals, tokens, weights = tf.while_loop(
        is_undecided,
        advance,
        (0, token, state, running, counts, totals, tokens, weights),
    )
    # A finished hypothesis counts its eos, which is no token before it.
    lengths = counts - tf.cast(tf.logical_not(running), tf.int32)
    scores = tf.cast(totals / penalty(counts, length_penalty, exact), memory.values.dtype)
    tokens, lengths, scores, weights = (array[:, :num_best] for array in (tokens, lengths, scores, weights))
    return tokens, lengths, tf.stop_gradient(scores), tf.stop_gradient(weights)


def first_best(ranked: tf.Tensor, width: int) -> tf.Tensor:
    """The places of the largest of each row, best first; of equal ones the first, as tf.math.top_k takes them."""
    return tf.math.top_k(ranked, k=width).indices


def is_decided(
    totals: tf.Tensor, counts: tf.Tensor, running: tf.Tensor, num_best: int, max_steps: int, length_penalty: float
) -> tf.Tensor:
    """Whether the best hypotheses of each sequence have ended, and none that runs can come before them.

    A sum of logarithms only falls, and its penalty is monotone in the length: a score is never above that of the sum at
    its length now, or at the largest. A hypothesis that comes level stays behind.
    """
    now, last = (
        totals / penalty(lengths, length_penalty, totals.dtype) for lengths in (counts, tf.fill((1, 1), max_steps))
    )
    most = tf.reduce_max(tf.where(running, tf.maximum(now, last), -math.inf), axis=-1)
    best_run = tf.reduce_any(running[:, :num_best], axis=-1)
    return tf.logical_and(tf.logical_not(best_run), most <= now[:, num_best - 1])


def penalty(lengths: tf.Tensor, length_penalty: float, dtype: tf.DType) -> tf.Tensor:
    """((5 + n)/6)^α of Wu et al."""
    return ((5.0 + tf.cast(lengths, dtype)) / 6.0) ** length_penalty


# ------------------------------------------------------------------------------------------- particular to TensorFlow


def of_hypotheses(array: tf.Tensor, chosen: tf.Tensor) -> tf.Tensor:
    """Take the entries of each sequence at these places, in this order."""
    return tf.gather(array, chosen, axis=1, batch_dims=1)


def shaped_as(after: Any, before: Any) -> Any:
    """Set the static shapes before a step on the tensors after it: a loop demands that they are the same."""
    tf.nest.map_structure(lambda new, old: new.set_shape(old.shape), after, before)
    return after
