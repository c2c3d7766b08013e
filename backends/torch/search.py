"""Decoding over any step, in PyTorch: the most probable token of every step, and beams of hypotheses."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from backends.torch.graphs import has_values
from backends.torch.memory import Memory

Step = Callable[[torch.Tensor, Any, Memory], tuple[torch.Tensor, Any, torch.Tensor]]
"""(logits, state, weights) of one token for each row, as a decoder's step returns them."""


def greedy_search(
    step: Step, state: Any, memory: Memory, *, bos: int, eos: int, max_steps: int
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Feed back the most probable token, up to an end token: (tokens, lengths, weights), as a decoder's greedy."""
    batch, keys = memory.values.shape[0], memory.values.shape[-2]
    tokens = torch.full((batch, max_steps), eos, dtype=torch.int32, device=memory.values.device)
    weights = memory.values.new_zeros(batch, max_steps, keys)
    token = tokens.new_full((batch,), bos)
    running = torch.ones_like(token, dtype=torch.bool)
    lengths = torch.zeros_like(token)
    for t in range(max_steps):
        if has_values(running) and not running.any():
            break
        logits, state, attended = step(token, state, memory)
        token = torch.where(running, logits.argmax(dim=-1), eos).int()
        tokens[:, t] = token
        weights[:, t] = attended.masked_fill(~running[:, None], 0.0)
        running = running & (token != eos)
        lengths = lengths + running
    return tokens, lengths, weights


def beam_search(
    step: Step,
    reordered: Callable[[Any, torch.Tensor], Any],
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
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:
    """Keep the best hypotheses of every step: (tokens, lengths, scores, weights), as a decoder's beam.

    reordered takes the state of some rows of the batch, in their order.
    """
    batch, keys = memory.values.shape[0], memory.values.shape[-2]
    device, dtype = memory.values.device, memory.values.dtype
    # Hypothesis w of sequence b is row b · width + w: each step is one step of the decoder.
    sequences = torch.arange(batch, device=device)
    rows = sequences.repeat_interleave(width)
    state, first = reordered(state, rows), sequences[:, None] * width
    mask = None if memory.mask is None else memory.mask.expand(batch, -1, -1)[rows]
    memory = Memory(memory.keys[rows], memory.values[rows], mask)
    # Sums of logarithms are kept, and ranked, in float32 at least.
    exact = torch.promote_types(dtype, torch.float32)
    tokens = torch.full((batch, num_best, max_steps), eos, dtype=torch.int32, device=device)
    weights = memory.values.new_zeros(batch, num_best, max_steps, keys)
    totals = torch.full((batch, width), -torch.inf, dtype=exact, device=device)
    totals[:, 0] = 0.0  # all hypotheses are the same at first: one of them is continued
    token = tokens.new_full((batch * width,), bos)
    counts = torch.zeros_like(token).reshape(batch, width)
    running, steps = torch.ones_like(counts, dtype=torch.bool), []
    for _ in range(max_steps):
        known = has_values(running)
        all_run = known and bool(running.all())
        if known and not all_run and is_decided(totals, counts, running, num_best, max_steps, length_penalty).all():
            break
        logits, state, attended = step(token, state, memory)
        # In place, as these are the largest arrays of a step. What has ended goes on as itself.
        candidates = logits.log_softmax(dim=-1, dtype=exact).reshape(batch, width, vocab_size)
        if not all_run:
            candidates.masked_fill_(~running[:, :, None], -torch.inf)
            candidates[:, :, eos].masked_fill_(~running, 0.0)
        candidates += totals[:, :, None]
        lengths = counts + running
        ranked = candidates
        if length_penalty != 0.0:
            ranked = candidates / penalty(lengths, length_penalty, exact)[:, :, None]
        best = first_best(ranked.flatten(1), width)
        totals = candidates.flatten(1).gather(1, best)
        parents, chosen = best // vocab_size, (best % vocab_size).int()
        steps.append((parents, chosen, attended.reshape(batch, width, keys).masked_fill(~running[:, :, None], 0.0)))
        counts, running = lengths.gather(1, parents), running.gather(1, parents) & (chosen != eos)
        state, token = reordered(state, (first + parents).flatten()), chosen.flatten()
    # Back from the last step: which hypothesis each of the best comes from.
    hypotheses = torch.arange(num_best, device=device).expand(batch, -1)
    for t, (parents, chosen, attended) in reversed(list(enumerate(steps))):
        tokens[:, :, t] = chosen.gather(1, hypotheses)
        hypotheses = parents.gather(1, hypotheses)
        weights[:, :, t] = attended[sequences[:, None], hypotheses]
    ended = ~running & (counts > 0)
    scores = (totals / penalty(counts, length_penalty, exact)).to(dtype)
    return tokens, (counts - ended.int())[:, :num_best], scores[:, :num_best], weights


def first_best(ranked: torch.Tensor, width: int) -> torch.Tensor:
    """The places of the largest of each row, best first; of equal ones the first. Sorting all would be slow."""
    values, places = ranked.topk(min(width + 1, ranked.shape[-1]), dim=-1)
    if not has_values(values):
        return places[:, :width]
    if values.isnan().any():  # which PyTorch takes for the largest
        return first_best(ranked.masked_fill(ranked.isnan(), -torch.inf), width)
    lowest = values[:, width - 1 : width]
    if (values[:, width:] == lowest).any():  # more are equal than there is room for, of which PyTorch takes any
        above, equal = ranked > lowest, ranked == lowest
        room = width - above.sum(dim=-1, keepdim=True)
        kept = above | (equal & (equal.cumsum(dim=-1) <= room))
        places = kept.nonzero()[:, 1].reshape(-1, width)
    places = places[:, :width].sort(dim=-1).values
    order = ranked.gather(1, places).sort(dim=-1, descending=True, stable=True).indices
    return places.gather(1, order)


def is_decided(
    totals: torch.Tensor,
    counts: torch.Tensor,
    running: torch.Tensor,
    num_best: int,
    max_steps: int,
    length_penalty: float,
) -> torch.Tensor:
    """Whether the best hypotheses of each sequence have ended, and none that runs can come before them.

    A sum of logarithms only falls, and its penalty is monotone in the length: a score is never above that of the sum at
    its length now, or at the largest. A hypothesis that comes level stays behind.
    """
    now, last = (
        totals / penalty(lengths, length_penalty, totals.dtype)
        for lengths in (counts, torch.full_like(counts, max_steps))
    )
    most = torch.where(running, torch.maximum(now, last), -torch.inf).amax(dim=-1)
    return ~running[:, :num_best].any(dim=-1) & (most <= now[:, num_best - 1])


def penalty(lengths: torch.Tensor, length_penalty: float, dtype: torch.dtype) -> torch.Tensor:
    """((5 + n)/6)^α of Wu et al."""
    return ((5.0 + lengths.to(dtype)) / 6.0) ** length_penalty
