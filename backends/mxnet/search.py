"""Decoding over any step, in MXNet: the most probable token of every step, and beams of hypotheses."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from mxnet import np, npx

from backends.mxnet.memory import Memory

Step = Callable[[np.ndarray, Any, Memory], tuple[np.ndarray, Any, np.ndarray]]
"""(logits, state, weights) of one token for each row, as a decoder's step returns them."""


def greedy_search(
    step: Step, state: Any, memory: Memory, *, bos: int, eos: int, max_steps: int
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Feed back the most probable token, up to an end token: (tokens, lengths, weights), as a decoder's greedy."""
    batch, keys, ctx = memory.values.shape[0], memory.values.shape[-2], memory.values.ctx
    tokens = np.full((batch, max_steps), eos, dtype="int32", ctx=ctx)
    weights = np.zeros((batch, max_steps, keys), dtype=memory.values.dtype, ctx=ctx)
    lengths = np.zeros((batch,), dtype="int32", ctx=ctx)
    if batch == 0:  # over an empty axis, MXNet reads foreign memory or crashes
        return tokens, lengths, weights
    ends = np.full((batch,), eos, dtype="int32", ctx=ctx)
    token = np.full((batch,), bos, dtype="int32", ctx=ctx)
    running = np.ones((batch,), dtype="bool", ctx=ctx)
    for t in range(max_steps):
        if not running.any():
            break
        logits, state, attended = step(token, state, memory)
        token = np.where(running, np.argmax(logits, axis=-1).astype("int32"), ends)
        tokens[:, t] = token
        if keys:
            weights[:, t] = np.where(running[:, None], attended, np.zeros_like(attended))
        running = running * (token != eos)
        lengths = lengths + running.astype("int32")
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

    reordered takes the state of some rows of the batch, in their order.
    """
    batch, keys = memory.values.shape[0], memory.values.shape[-2]
    ctx, dtype = memory.values.ctx, memory.values.dtype
    # Sums of logarithms are kept, and ranked, in float32 at least.
    exact = {"dtype": "float32" if dtype == "float16" else dtype, "ctx": ctx}
    tokens = np.full((batch, num_best, max_steps), eos, dtype="int32", ctx=ctx)
    weights = np.zeros((batch, num_best, max_steps, keys), dtype=dtype, ctx=ctx)
    if batch == 0:  # over an empty axis, MXNet reads foreign memory or crashes
        empty = (0, num_best)
        return tokens, np.zeros(empty, dtype="int32", ctx=ctx), np.zeros(empty, dtype=dtype, ctx=ctx), weights
    # Hypothesis w of sequence b is row b · width + w: each step is one step of the decoder.
    sequences = np.arange(batch, dtype="int64", ctx=ctx)
    state, first = reordered(state, np.repeat(sequences, width)), sequences[:, None] * width
    memory = Memory(*(repeat_rows(part, width) for part in memory))
    # All hypotheses are the same at first: one of them is continued.
    nowhere, alone = np.full((width,), -np.inf, **exact), np.arange(width, dtype="int64", ctx=ctx) == 0
    totals = np.broadcast_to(np.where(alone, np.zeros_like(nowhere), nowhere), (batch, width))
    nowhere, ids = np.full((vocab_size,), -np.inf, **exact), np.arange(vocab_size, dtype="int64", ctx=ctx)
    itself = np.where(ids == eos, np.zeros_like(nowhere), nowhere)
    token = np.full((batch * width,), bos, dtype="int32", ctx=ctx)
    counts = np.zeros((batch, width), dtype="int32", ctx=ctx)
    running, steps = np.ones((batch, width), dtype="bool", ctx=ctx), []
    for _ in range(max_steps):
        if is_decided(totals, counts, running, num_best, max_steps, length_penalty).all():
            break
        logits, state, attended = step(token, state, memory)
        logs = np.reshape(log_softmax(logits.astype(exact["dtype"])), (batch, width, vocab_size))
        # As these are the largest arrays of a step, nothing is done to them that changes nothing.
        if not running.all():
            logs = np.where(running[:, :, None], logs, itself)
        candidates = totals[:, :, None] + logs
        lengths = counts + running.astype("int32")
        ranked = candidates
        if length_penalty != 0.0:
            ranked = candidates / penalty(lengths, length_penalty, candidates)[:, :, None]
        best = first_best(np.reshape(ranked, (batch, -1)), width)
        parents = np.floor(best.astype("float64") / vocab_size).astype("int64")
        token = np.reshape(np.mod(best, vocab_size).astype("int32"), (-1,))
        rows = np.reshape(first + parents, (-1,))
        open_rows = np.reshape(running, (-1,))
        attended = np.where(open_rows[:, None], attended, np.zeros_like(attended)) if keys else None
        steps.append((token, rows, attended))
        totals = np.take(np.reshape(candidates, (-1,)), best + first * vocab_size)
        counts = np.take(np.reshape(lengths, (-1,)), first + parents)
        running = np.take(open_rows, first + parents) * (np.reshape(token, (batch, width)) != eos)
        state = reordered(state, rows)
    # Back from the last step: which hypothesis each of the best comes from.
    rows = first + np.arange(num_best, dtype="int64", ctx=ctx)
    for t, (token, parents, attended) in reversed(list(enumerate(steps))):
        tokens[:, :, t] = np.take(token, rows)
        rows = np.take(parents, rows)
        if keys:
            weights[:, :, t] = np.take(attended, rows, axis=0)
    ended = (running == 0) * (counts > 0)
    scores = (totals / penalty(counts, length_penalty, totals)).astype(dtype)
    return tokens, (counts - ended.astype("int32"))[:, :num_best], scores[:, :num_best], weights


def first_best(ranked: np.ndarray, width: int) -> np.ndarray:
    """The places of the largest of each row, best first; of equal ones the first, as np.argmax takes them."""
    ranked = np.maximum(ranked, -np.finfo(ranked.dtype).max)  # nothing is NaN, or as low as what is taken
    if ranked.shape[-1] > width:
        values, places = npx.topk(ranked, k=width + 1, ret_typ="both", dtype="int64")
        if (values[:, 1:] != values[:, :-1]).all():  # else some are equal, of which MXNet takes any
            return places[:, :width]
    places = np.arange(ranked.shape[-1], dtype="int64", ctx=ranked.ctx)
    taken, best = np.full_like(ranked, -np.inf), []
    for _ in range(width):
        best.append(np.argmax(ranked, axis=-1).astype("int64"))
        ranked = np.where(places == best[-1][:, None], taken, ranked)
    return np.stack(best, axis=-1)


def is_decided(
    totals: np.ndarray,
    counts: np.ndarray,
    running: np.ndarray,
    num_best: int,
    max_steps: int,
    length_penalty: float,
) -> np.ndarray:
    """Whether the best hypotheses of each sequence have ended, and none that runs can come before them.

    A sum of logarithms only falls, and its penalty is monotone in the length: a score is never above that of the sum at
    its length now, or at the largest. A hypothesis that comes level stays behind.
    """
    now, last = (
        totals / penalty(lengths, length_penalty, totals) for lengths in (counts, np.full_like(counts, max_steps))
    )
    runs = running.astype("bool")
    most = np.max(np.where(runs, np.maximum(now, last), np.full_like(now, -np.inf)), axis=-1)
    return (most <= now[:, num_best - 1]) * (np.max(running[:, :num_best].astype("int32"), axis=-1) == 0)


def penalty(lengths: np.ndarray, length_penalty: float, like: np.ndarray) -> np.ndarray:
    """((5 + n)/6)^α of Wu et al."""
    return (((lengths.astype("float64") + 5.0) / 6.0) ** length_penalty).astype(like.dtype)


# ------------------------------------------------------------------------------------------------ particular to MXNet


def log_softmax(logits: np.ndarray) -> np.ndarray:
    """Compute the logarithms of the softmax in plain steps: in float32, npx.log_softmax is off by 30 eps."""
    shifted = logits - np.max(logits, axis=-1, keepdims=True)
    return shifted - np.log(np.sum(np.exp(shifted), axis=-1, keepdims=True))


def repeat_rows(array: np.ndarray | None, width: int) -> np.ndarray | None:
    """Repeat every row of the batch width times; a mask's only row stays alone."""
    if array is None or (array.shape[0] == 1 and array.dtype == "bool"):
        return array
    if array.size == 0:  # over an empty axis, MXNet reads foreign memory or crashes
        return np.zeros((array.shape[0] * width, *array.shape[1:]), dtype=array.dtype, ctx=array.ctx)
    return np.repeat(array, width, axis=0)
