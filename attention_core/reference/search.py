"""Decoding over any step: the most probable token of every step, and beams of hypotheses."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from attention_core.reference.masking import log_softmax_over
from attention_core.reference.memory import Memory

Step = Callable[[np.ndarray, Any, Memory], tuple[np.ndarray, Any, np.ndarray]]
"""(logits, state, weights) of one token for each row, as a decoder's step returns them."""


def greedy_search(
    step: Step, state: Any, memory: Memory, *, bos: int, eos: int, max_steps: int
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Feed back the most probable token, up to an end token: (tokens, lengths, weights), as a decoder's greedy."""
    batch, keys = len(memory.values), memory.values.shape[-2]
    tokens = np.full((batch, max_steps), eos, np.int32)
    weights = np.zeros((batch, max_steps, keys))
    lengths = np.zeros(batch, np.int32)
    token, running = np.full(batch, bos, np.int32), np.full(batch, True)
    for t in range(max_steps):
        logits, state, attended = step(token, state, memory)
        weights[:, t] = np.where(running[:, None], attended, 0.0)
        token = np.where(running, logits.argmax(axis=-1), eos).astype(np.int32)
        tokens[:, t] = token
        running = running & (token != eos)
        lengths += running
    return tokens, lengths, weights


def beam_search(
    step: Step,
    reordered: Callable[[Any, np.ndarray], Any],
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
) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """Keep the best hypotheses of every step: (tokens, lengths, scores, weights), as a decoder's beam.

    reordered takes the state of some rows of the batch, in their order. Every step is taken: that nothing can overtake
    a finished hypothesis is for a backend to find out.
    """
    batch, keys = len(memory.values), memory.values.shape[-2]
    # Hypothesis w of sequence b is row b width + w: one step of the decoder advances all hypotheses.
    state = reordered(state, np.repeat(np.arange(batch), width))
    mask = memory.mask
    if mask is not None:
        mask = np.repeat(np.broadcast_to(mask, (batch, *mask.shape[1:])), width, axis=0)
    memory = Memory(np.repeat(memory.keys, width, axis=0), np.repeat(memory.values, width, axis=0), mask)
    tokens = np.full((batch, width, max_steps), eos, np.int32)
    weights = np.zeros((batch, width, max_steps, keys))
    totals = np.where(np.arange(width) == 0, 0.0, -np.inf) + np.zeros((batch, 1))
    counts, running = np.zeros((batch, width), np.int32), np.full((batch, width), True)
    token, first = np.full(batch * width, bos, np.int32), np.arange(batch)[:, None] * width
    for t in range(max_steps):
        logits, state, attended = step(token, state, memory)
        logs = log_softmax_over(logits, np.ones((), bool)).reshape(batch, width, vocab_size)
        itself = np.where(np.arange(vocab_size) == eos, 0.0, -np.inf)
        candidates = totals[..., None] + np.where(running[..., None], logs, itself)
        lengths = counts + running
        ranked = candidates / penalty(lengths, length_penalty)[..., None]
        best = first_best(ranked.reshape(batch, width * vocab_size), width)
        parents, chosen = best // vocab_size, (best % vocab_size).astype(np.int32)
        totals = np.take_along_axis(candidates.reshape(batch, width * vocab_size), best, axis=-1)
        was_running = np.take_along_axis(running, parents, axis=-1)
        attended = np.where(running[..., None], attended.reshape(batch, width, keys), 0.0)
        weights[:, :, t] = attended
        weights = np.take_along_axis(weights, parents[..., None, None], axis=1)
        tokens = np.take_along_axis(tokens, parents[..., None], axis=1)
        tokens[:, :, t] = chosen
        counts = np.take_along_axis(lengths, parents, axis=-1)
        running = was_running & (chosen != eos)
        state, token = reordered(state, (first + parents).reshape(-1)), chosen.reshape(-1)
    lengths = (counts - (~running).astype(np.int32) * (counts > 0)).astype(np.int32)
    scores = totals / penalty(counts, length_penalty)
    return tokens[:, :num_best], lengths[:, :num_best], scores[:, :num_best], weights[:, :num_best]


def first_best(ranked: np.ndarray, width: int) -> np.ndarray:
    """The places of the largest of each row, best first; of equal ones the first."""
    return np.argsort(-ranked, axis=-1, kind="stable")[:, :width]


def penalty(lengths: np.ndarray, length_penalty: float) -> np.ndarray:
    """((5 + n)/6)^α of Wu et al."""
    return ((5.0 + lengths) / 6.0) ** length_penalty
