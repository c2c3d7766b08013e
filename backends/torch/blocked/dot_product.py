"""Attention by inner products in PyTorch without the (batch, queries, keys) array."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator
from functools import partial
from typing import Any, NamedTuple

import torch

from backends.torch import kernels
from backends.torch.attention import Answer, Form
from backends.torch.blocked.blocks import (
    BOUND,
    autocast_off,
    blocks_of_rows,
    map_axis,
    plain_gradients,
    visible,
    without_autocast,
)
from backends.torch.masking import add_bias, expand_to_rank, precise
from backends.torch.memory import Memory
from backends.torch.pooling import _attention_pooling, for_each_head
from backends.torch.scoring import _scaled_dot_score

__all__ = ["blocked_dot_attention"]

DOT_MIN_ELEMENTS = 2**20
"""The number of elements of one head, queries · keys · features, from which on inner products are faster in blocks."""


ROWS, KEYS = 256, 1024
"""The least queries of a block, and the most keys that are multiplied at once, so that a product stays in a cache."""

LOG2_E = math.log2(math.e)
"""exp x is 2 to the power of x log2 e, which takes half the time."""


def blocked_dot_attention(
    queries: torch.Tensor,
    keys: torch.Tensor,
    values: torch.Tensor,
    mask: torch.Tensor | None,
    scale: float,
    softcap: float | None = None,
    bias: torch.Tensor | None = None,
) -> torch.Tensor:
    """Average the values by the softmax of scaled inner products, without keeping scores or weights.

    context = attention_pooling(cap(scale · queries keysᵀ) + bias, values, mask=mask), the context alone, with
    cap(x) = softcap · tanh(x / softcap), or x without softcap; bias has as many axes as queries, each its size or 1

    Head by head, some queries and some keys at a time, over the keys up to the last that is open. With s the scores, l
    of each query ln sum exp s, and g the gradient of the context, the backward computes each block again:

        p = exp(s - l);  ds = p (dp - sum of p dp), dp = g valuesᵀ;  dvalues = pᵀ g
        dqueries = scale ds keys;  dkeys = scale dsᵀ queries;  dbias = ds, summed over the axes where its size is 1

    With softcap, ds (1 - tanh²) stands for ds in dqueries and dkeys.

    float16 and bfloat16 are computed in float32. It has first derivatives, in reverse mode; others raise RuntimeError.
    Where no gradient is requested and none of these keys is hidden, a head is scaled_dot_product_attention. The
    plain formula is taken where a score may be infinite, in a compiled function, and on other devices than a CPU.
    """
    return dot_attention(queries, keys, values, bias, mask, scale, softcap, False)[0]


def serves(form: Form, queries: torch.Tensor, memory: Memory, need_weights: bool, bias: torch.Tensor | None) -> bool:
    """Whether to compute a score of inner products in blocks: from DOT_MIN_ELEMENTS elements of one head on."""
    one_head = queries[(slice(1),) * (queries.ndim - 2)]
    return form.w_v is None and kernels.use_blocks(one_head, memory.keys, DOT_MIN_ELEMENTS)


@kernels.register("attention", serves)
def attend(form: Form, queries: torch.Tensor, memory: Memory, need_weights: bool, bias: torch.Tensor | None) -> Answer:
    """Attend to a memory by the score of that form."""
    added = None if bias is None else expand_to_rank(bias, queries.ndim)
    return dot_attention(
        queries, memory.keys, memory.values, added, memory.mask, form.scale, form.softcap, need_weights
    )


@without_autocast
def dot_attention(
    queries: torch.Tensor,
    keys: torch.Tensor,
    values: torch.Tensor,
    bias: torch.Tensor | None,
    mask: torch.Tensor | None,
    scale: float,
    softcap: float | None,
    need_weights: bool,
) -> tuple[torch.Tensor, torch.Tensor | None]:
    """The context as of blocked_dot_attention, and the weights, which the backward then does not compute again."""
    narrow = need_weights and queries.dtype not in BOUND
    if torch.compiler.is_compiling() or narrow or queries.device.type != "cpu":
        context, weights = plain_attention(queries, keys, values, bias, mask, scale, softcap)
        return context, weights if need_weights else None
    keep = torch.is_grad_enabled()
    context, weights, _ = Attended.apply(queries, keys, values, bias, mask, scale, softcap, need_weights, keep)
    return context, weights if need_weights else None


def plain_attention(
    queries: torch.Tensor,
    keys: torch.Tensor,
    values: torch.Tensor,
    bias: torch.Tensor | None,
    mask: torch.Tensor | None,
    scale: float,
    softcap: float | None,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Context and weights by the plain formula."""
    keys, values = for_each_head(keys, queries), for_each_head(values, queries)
    scores = _scaled_dot_score(queries, keys, scale, softcap)
    return _attention_pooling(scores if bias is None else add_bias(scores, bias), values, mask, None)


class Attended(torch.autograd.Function):
    """Attention by inner products: context, weights if they are needed, and ln sum exp s of each query."""

    @staticmethod
    def forward(
        queries: torch.Tensor,
        keys: torch.Tensor,
        values: torch.Tensor,
        bias: torch.Tensor | None,
        mask: torch.Tensor | None,
        scale: float,
        softcap: float | None,
        need_weights: bool,
        keep: bool,
    ) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """(Context, weights, sums); without sums where it is computed by the plain formula."""
        weights = queries.new_empty(*queries.shape[:-1], keys.shape[-2]) if need_weights else queries.new_empty(0)
        sums = precise(queries).new_full(queries.shape[:-1], torch.inf)
        if not finite(queries, keys, bias, scale):
            context, pooled_weights = plain_attention(queries, keys, values, bias, mask, scale, softcap)
            return context, pooled_weights if need_weights else weights, sums
        context = values.new_zeros(*queries.shape[:-1], values.shape[-1])
        added, mask = split(bias, mask)
        for at, n, hidden in open_parts(queries, keys, mask):
            shared = at_keys(at, queries, keys)
            q, k, v = precise(queries[at]), precise(keys[shared][:n]), visible(values[shared][:n], hidden)
            if n and hidden is None and softcap is None and bias is None and not (keep or need_weights):
                given = (array[None, None] for array in (q, k, v))
                context[at] = torch.nn.functional.scaled_dot_product_attention(*given, scale=scale)[0, 0]
                continue
            q = q * factor_of(scale, softcap)
            if need_weights:
                weights[at][:, n:] = 0.0
            for rows in blocks_of_rows(len(q), n, least=ROWS):
                returned = weights[at][rows, :n] if need_weights else None
                parts = parts_of(q[rows], k, v, None if hidden is None else hidden[rows], returned)
                top, total = q.new_full((len(q[rows]), 1), -torch.inf), q.new_zeros(len(q[rows]), 1)
                for part in parts:
                    torch.mm(q[rows], part.keys.t(), out=part.p)
                    if softcap is not None:
                        part.p.tanh_().mul_(softcap * LOG2_E)
                    if added is not None:
                        part.p.add_(added.of(at, rows, part.at), alpha=LOG2_E)
                    if part.hidden is not None:
                        part.p.masked_fill_(part.hidden, -torch.inf)
                    torch.maximum(top, part.p.amax(dim=-1, keepdim=True), out=top)
                if hidden is not None:
                    top.masked_fill_(top == -torch.inf, 0.0)
                weighed = q.new_zeros(len(q[rows]), v.shape[-1])
                for part in parts:
                    total += part.p.sub_(top).exp2_().sum(dim=-1, keepdim=True)
                    weighed.addmm_(part.p, part.values)
                if hidden is not None:  # a sum of infinity makes all weights of a fully masked row 0
                    total.masked_fill_(total == 0.0, torch.inf)
                torch.add(top, total.log2(), out=sums[at][rows, None])
                context[at][rows] = weighed.div_(total)
                if returned is not None:
                    returned.div_(total)
        return context, weights, sums

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: tuple[torch.Tensor, ...]) -> None:
        """Keep the arguments, and what was returned."""
        *given, ctx.scale, ctx.softcap, ctx.need_weights, _ = inputs
        ctx.save_for_backward(*given, *output[1:])
        ctx.mark_non_differentiable(*output[1 if not ctx.need_weights else 2 :])
        ctx.set_materialize_grads(False)

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor | None) -> tuple[torch.Tensor | None, ...]:
        """The gradients of queries, keys, values and bias."""
        with autocast_off(ctx.saved_tensors[0]):
            options = ctx.scale, ctx.softcap, ctx.need_weights
            results = AttendedGradients.apply(*gradients[:2], *ctx.saved_tensors, *options)
        return *results, None, None, None, None, None

    @staticmethod
    def vmap(info: Any, in_dims: tuple[int | None, ...], *arguments: Any) -> tuple[Any, Any]:
        """One call for each position of the axis that torch.func.vmap adds."""
        return map_axis(Attended, info, in_dims, arguments)


class AttendedGradients(torch.autograd.Function):
    """Backward of attention by inner products in blocks; first derivatives only."""

    @staticmethod
    def forward(
        gradient: torch.Tensor | None,
        of_weights: torch.Tensor | None,
        queries: torch.Tensor,
        keys: torch.Tensor,
        values: torch.Tensor,
        bias: torch.Tensor | None,
        mask: torch.Tensor | None,
        weights: torch.Tensor,
        sums: torch.Tensor,
        scale: float,
        softcap: float | None,
        need_weights: bool,
    ) -> tuple[torch.Tensor | None, ...]:
        """The gradients of queries, keys, values and bias."""
        if gradient is None:
            gradient = values.new_zeros(*queries.shape[:-1], values.shape[-1])
        if not finite(queries, keys, bias, scale):
            options: dict[str, Any] = {"mask": mask, "scale": scale, "softcap": softcap}
            cotangents = gradient, of_weights if need_weights else None
            if bias is not None:
                return plain_gradients(partial(plain_attention, **options), (queries, keys, values, bias), cotangents)
            return *plain_gradients(
                partial(plain_attention, bias=None, **options), (queries, keys, values), cotangents
            ), None
        d_queries, d_keys, d_values = (precise(torch.zeros_like(array)) for array in (queries, keys, values))
        added, mask = split(bias, mask)
        for at, n, hidden in open_parts(queries, keys, mask):
            shared = at_keys(at, queries, keys)
            q, k, v = precise(queries[at]), precise(keys[shared][:n]), visible(values[shared][:n], hidden)
            g, dk, scaled = precise(gradient[at]), d_keys[shared][:n], q * factor_of(scale, softcap)
            dv = d_values[shared][:n] if hidden is None else torch.zeros_like(v)
            for rows in blocks_of_rows(len(q), n, least=ROWS):
                returned = weights[at][rows, :n] if need_weights else None
                parts = parts_of(q[rows], k, v, None if hidden is None else hidden[rows], returned)
                slopes, mean = [torch.empty_like(part.p) for part in parts], q.new_zeros(len(q[rows]), 1)
                capped = [] if softcap is None else [(scaled[rows] @ part.keys.t()).tanh_() for part in parts]
                for index, (part, dp) in enumerate(zip(parts, slopes, strict=True)):
                    if not need_weights:
                        if softcap is None:
                            torch.mm(scaled[rows], part.keys.t(), out=part.p)
                        else:
                            torch.mul(capped[index], softcap * LOG2_E, out=part.p)
                        if added is not None:
                            part.p.add_(added.of(at, rows, part.at), alpha=LOG2_E)
                        part.p.sub_(sums[at][rows, None]).exp2_()
                        if part.hidden is not None:
                            part.p.masked_fill_(part.hidden, 0.0)
                    torch.mm(g[rows], part.values.t(), out=dp)
                    if of_weights is not None:
                        dp += of_weights[at][rows, part.at]
                    # Not by g · c, which may differ in the last bit where one weight is 1, and the gradient 0.
                    mean += dp.mul_(part.p).sum(dim=-1, keepdim=True)
                for index, (part, ds) in enumerate(zip(parts, slopes, strict=True)):
                    ds.addcmul_(part.p, mean, value=-1)
                    dv[part.at].addmm_(part.p.t(), g[rows])
                    if added is not None:
                        added.add(at, rows, part.at, ds)
                    if softcap is not None:
                        ds.mul_(1.0 - capped[index].square_())
                    d_queries[at][rows].addmm_(ds, part.keys, alpha=scale)
                    dk[part.at].addmm_(ds.t(), q[rows], alpha=scale)
            if hidden is not None:
                d_values[shared][:n] += dv.masked_fill_(hidden.all(dim=0)[:, None], 0.0)
        sums_of = (d_queries.to(queries.dtype), d_keys.to(keys.dtype), d_values.to(values.dtype))
        return *sums_of, None if bias is None or added is None else added.gradient.to(bias.dtype)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: tuple[torch.Tensor, ...]) -> None:
        """Keep nothing."""

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> tuple[torch.Tensor, ...]:
        """Refuse."""
        raise RuntimeError(
            "attention by inner products: no second derivative is known where it is computed in blocks. The plain "
            'formula has all: call backends.torch.kernels.set_path("plain") before the attention is computed.'
        )

    @staticmethod
    def vmap(info: Any, in_dims: tuple[int | None, ...], *arguments: Any) -> tuple[Any, Any]:
        """One call for each position of the axis that torch.func.vmap adds."""
        return map_axis(AttendedGradients, info, in_dims, arguments)


class Added(NamedTuple):
    """A finite bias, and the sum of its gradients, each axis its size or 1."""

    bias: torch.Tensor
    gradient: torch.Tensor

    def of(self, at: tuple[int, ...], rows: slice, columns: slice) -> torch.Tensor:
        """What is added to the scores of a block."""
        return self.block(self.bias, at, rows, columns)

    def add(self, at: tuple[int, ...], rows: slice, columns: slice, slopes: torch.Tensor) -> None:
        """Add the gradients of a block of scores."""
        block = self.block(self.gradient, at, rows, columns)
        block += slopes.sum_to_size(block.shape)

    @staticmethod
    def block(array: torch.Tensor, at: tuple[int, ...], rows: slice, columns: slice) -> torch.Tensor:
        """The block of an array, in which axes of size 1 are the same for all."""
        lead = tuple(index if size > 1 else 0 for index, size in zip(at, array.shape, strict=False))
        cut = (part if size > 1 else slice(1) for part, size in zip((rows, columns), array.shape[-2:], strict=True))
        return array[(*lead, *cut)]


def split(bias: torch.Tensor | None, mask: torch.Tensor | None) -> tuple[Added | None, torch.Tensor | None]:
    """Split a bias into its finite part and a mask, which also hides what the bias hides by -inf."""
    if bias is None:
        return None, mask
    hidden = bias == -torch.inf
    finite_bias = precise(bias.masked_fill(hidden, 0.0))
    if hidden.any():
        mask = ~hidden if mask is None else expand_to_rank(mask, hidden.ndim) & ~hidden
    return Added(finite_bias, torch.zeros_like(finite_bias)), mask


class Part(NamedTuple):
    """Some keys of a sequence: which they are, and the scores or weights that rows of queries have for them."""

    at: slice
    p: torch.Tensor
    keys: torch.Tensor
    values: torch.Tensor
    hidden: torch.Tensor | None


def parts_of(
    queries: torch.Tensor,
    keys: torch.Tensor,
    values: torch.Tensor,
    hidden: torch.Tensor | None,
    weights: torch.Tensor | None,
) -> list[Part]:
    """The keys in parts that stay in a cache while products go through them; p is of the weights, or uninitialised."""

    def part(at: slice) -> Part:
        p = queries.new_empty(len(queries), len(keys[at])) if weights is None else weights[:, at]
        return Part(at, p, keys[at], values[at], None if hidden is None else hidden[:, at])

    return [part(slice(first, min(first + KEYS, len(keys)))) for first in range(0, len(keys), KEYS)]


def at_keys(at: tuple[int, ...], queries: torch.Tensor, keys: torch.Tensor) -> tuple[int, ...]:
    """The place of the keys that a sequence, or a head, reads: several heads may share them."""
    return at if len(at) < 2 else (at[0], at[1] * keys.shape[1] // queries.shape[1])


def factor_of(scale: float, softcap: float | None) -> float:
    """The factor of q·k in the exponent of 2, or in the tanh that bounds the score."""
    return scale * LOG2_E if softcap is None else scale / softcap


def finite(queries: torch.Tensor, keys: torch.Tensor, bias: torch.Tensor | None, scale: float) -> bool:
    """Whether no score can be infinite, or NaN, by the largest entries; but for a bias of -inf, which hides."""
    if not (queries.numel() and keys.numel()):
        return True
    given = [queries, keys] if bias is None else [queries, keys, bias.masked_fill(bias == -torch.inf, 0.0)]
    largest = [max(abs(float(end)) for end in array.aminmax()) for array in given]
    bound = largest[0] * largest[1] * queries.shape[-1] * max(abs(scale), 1.0) + sum(largest[2:])
    return all(size == size for size in largest) and bound * LOG2_E < torch.finfo(queries.dtype).max / 2


def open_parts(
    queries: torch.Tensor, keys: torch.Tensor, mask: torch.Tensor | None
) -> Iterator[tuple[tuple[int, ...], int, torch.Tensor | None]]:
    """Yield of each sequence, or head, its index, the number of keys up to the last open one, and which are hidden."""
    lead, n = queries.shape[:-2], keys.shape[-2]
    if mask is None or n == 0:
        yield from ((at, n, None) for at in itertools.product(*map(range, lead)))
        return
    hidden = ~(mask if mask.ndim == queries.ndim else mask[:, None])
    hidden = hidden.expand(*hidden.shape[:-1], n)
    lens = (torch.arange(1, n + 1, device=mask.device) * ~hidden.all(dim=-2)).amax(dim=-1)
    padding = torch.arange(n, device=mask.device) >= lens[..., None]
    mixed = (hidden.any(dim=-2) != padding).any(dim=-1).expand(lead)
    lens, hidden = lens.expand(lead), hidden.expand(*lead, queries.shape[-2], n)
    for at in itertools.product(*map(range, lead)):
        length = int(lens[at])
        yield at, length, hidden[at][:, :length] if mixed[at] else None
