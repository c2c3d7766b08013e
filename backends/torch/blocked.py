"""Additive scores in PyTorch without the (batch, queries, keys, hidden_size) array, and attention without weights.

With t = tanh(q + k), so that tanh' = 1 - t², g the gradient of the scores, and w = w_v:

    scores[i, j] = sum over h of w[h] t[i, j, h]
    dq[i, h] = w[h] sum over j of g[i, j] (1 - t²);  dk[j, h] = w[h] sum over i of g[i, j] (1 - t²)
    dw[h] = sum over i and j of g[i, j] t

Only queries, keys and w_v are kept for the backward, which computes each block of t again.

By features, of which there is one (queries, keys) array at a time: with a = exp(-2q) of each query, c = exp(-2k) of
each key, and m the smallest query of the sequence in that feature,

    t = s + p n / x,  where s = tanh(k + m), n = 1 - s, p = 1 - exp(-2(q - m)), x = 1 + a c

so that an element costs a multiply-add and a division, x/n = 1/n + a (c/n), and no exponential. Nothing cancels that is
larger than the score of the query m, so t keeps its digits where it is small: 2/x - 1 = t would be off by the eps of 1.
1 - t² = 4 a c / x², so y = g/x² gives all three gradients by products with a vector; that of w by
p n x = p² n + 2 p a c, where no term is negative:

    dq = 4 w a (y c);  dk = 4 w c (aᵀ y);  dw = sum of gᵀ s + p²ᵀ y n + 2 pᵀ a (y c)

By rows, of which a block is (queries, keys, hidden_size): t is PyTorch's tanh, which holds for all numbers.
"""

from __future__ import annotations

import itertools
import math
import os
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import torch

from attention_core.errors import check_path
from backends.torch.pooling import _attention_pooling

__all__ = ["use_blocks", "set_path", "blocked_additive_score", "blocked_additive_attention", "blocked_dot_attention"]

ADDITIVE_MIN_ELEMENTS = 2**19
"""The number of elements, batch · heads · queries · keys · hidden_size, from which on blocks are faster on a CPU."""

BOUND = {torch.float32: 20.0, torch.float64: 160.0}
"""How large projections may be for exponentials: far enough from overflow for sums of them, and of their products with
gradients."""

QUERIES, SCORES = 8, 2**15
"""The number of queries, and of scores, from which on features are faster than rows."""

SATURATED = {torch.float32: 10.0, torch.float64: 20.0}
"""From here on tanh is 1 to the last bit."""

STEPS_MIN_ELEMENTS = 2**12
"""The number of elements, batch · steps · keys · features, from which on a decoder's steps are faster as one."""

DOT_MIN_ELEMENTS = 2**20
"""The number of elements of one head, queries · keys · features, from which on inner products are faster in blocks."""

BY_SCORES = 2**18
"""The scores of a block of rows in attention."""

LOG2_E = math.log2(math.e)
"""exp x is 2 to the power of x log2 e, which takes half the time."""

BY_STEPS = 2**19
"""The elements of a block in a decoder's step."""

GROUP = 32
"""The number of features that are added up by themselves, so that rounding grows with the number of groups."""

BY_FEATURES, BY_ROWS = 2**18, 2**17
"""The elements of a block on a CPU: what stays in its cache, and is worth the cost of a call."""

BY_ROWS_ELSEWHERE = 2**26
"""The elements of a block on other devices."""

forced: str | None = None


def use_blocks(queries: torch.Tensor, keys: torch.Tensor, least: int) -> bool:
    """Whether to compute in blocks: from `least` elements on, or as `set_path` says.

    elements = batch · heads · queries · keys · features

    Only sizes are looked at, so that nothing waits for a device, and a compiled function is specialised to its sizes.
    """
    if forced is not None:
        return forced == "blocked"
    return queries.numel() * keys.shape[-2] >= least


def set_path(path: str | None) -> None:
    """Take one path for all sizes, "blocked" or "plain", or the one that suits them: None.

    For the whole process, which begins as the environment variable ATTENTION_PARITY_PATH says at the import. A
    function of torch.compile is compiled again where this changes.

    Raises: OptionError.
    """
    global forced
    check_path(path)
    forced = path


set_path(os.environ.get("ATTENTION_PARITY_PATH") or None)


def blocked_additive_score(queries: torch.Tensor, keys: torch.Tensor, w_v: torch.Tensor) -> torch.Tensor:
    """Score each projected query against each projected key by a weighted tanh of their sum, block by block.

    scores[i, j] = sum over h of w_v[h] tanh(queries[i, h] + keys[j, h]);  the derivation is the module's

    Memory: that of the scores, of the exponentials of queries and keys, and of one block. float16 and bfloat16 are
    computed in float32. torch.compile takes score and gradients as one node each; torch.func maps and differentiates
    them. It has first derivatives, in reverse mode; others raise RuntimeError, where `force("plain")` has them.
    """
    scores: torch.Tensor = Score.apply(queries, keys, w_v)
    return scores


class Score(torch.autograd.Function):
    """The score; as an operator of PyTorch's registry only while compiling, since calling one loads the compiler."""

    @staticmethod
    def forward(queries: torch.Tensor, keys: torch.Tensor, w_v: torch.Tensor) -> torch.Tensor:
        """The scores."""
        return (score_node if torch.compiler.is_compiling() else scored)(queries, keys, w_v)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[torch.Tensor, ...], output: torch.Tensor) -> None:
        """Keep the arguments alone."""
        ctx.save_for_backward(*inputs)

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> tuple[torch.Tensor, ...]:
        """The gradients of the arguments."""
        gradients: tuple[torch.Tensor, ...] = Gradients.apply(gradient, *ctx.saved_tensors)
        return gradients

    @staticmethod
    def vmap(info: Any, in_dims: tuple[int | None, ...], *arguments: torch.Tensor) -> tuple[Any, Any]:
        """One call for each position of the axis that torch.func.vmap adds."""
        return torch.stack([Score.apply(*given) for given in along(info, in_dims, arguments)]), 0


class Gradients(torch.autograd.Function):
    """The gradients, of which there are no further ones."""

    @staticmethod
    def forward(
        gradient: torch.Tensor, queries: torch.Tensor, keys: torch.Tensor, w_v: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """The gradients of the arguments."""
        run = gradients_node if torch.compiler.is_compiling() else differentiated
        return run(gradient, queries, keys, w_v)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[torch.Tensor, ...], output: tuple[torch.Tensor, ...]) -> None:
        """Keep nothing."""

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> tuple[torch.Tensor, ...]:
        """Refuse."""
        raise RuntimeError(
            "additive_score: no second derivative is known where it is computed in blocks. The plain formula has all: "
            'call backends.torch.blocked.set_path("plain") before the score is computed.'
        )

    @staticmethod
    def vmap(info: Any, in_dims: tuple[int | None, ...], *arguments: torch.Tensor) -> tuple[Any, Any]:
        """One call for each position of the axis that torch.func.vmap adds."""
        return mapped(Gradients, info, in_dims, arguments)


def scored(queries: torch.Tensor, keys: torch.Tensor, w_v: torch.Tensor) -> torch.Tensor:
    q, k, w = flat(queries), flat(keys), precise(w_v)
    scores = q.new_zeros(q.shape[0], q.shape[1], k.shape[1])
    if q.numel() and k.numel():
        kernel = scores_by_features if takes_exponentials(q, k, w) else scores_by_rows
        kernel(q, k, w, scores)
    return scores.reshape(*queries.shape[:-1], keys.shape[-2]).to(queries.dtype)


def differentiated(
    gradient: torch.Tensor, queries: torch.Tensor, keys: torch.Tensor, w_v: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    g, q, k, w = flat(gradient), flat(queries), flat(keys), precise(w_v)
    dq, dk, dw = q.new_empty(q.shape), k.new_empty(k.shape), w.new_zeros(w.shape)
    if not (q.numel() and k.numel()):
        dq, dk = dq.zero_(), dk.zero_()
    else:
        kernel = gradients_by_features if takes_exponentials(q, k, w) else gradients_by_rows
        kernel(g, q, k, w, dq, dk, dw)
    found = ((dq, queries), (dk, keys), (dw, w_v))
    dq, dk, dw = (own.reshape(given.shape).to(given.dtype) for own, given in found)
    return dq, dk, dw


def scores_by_features(q: torch.Tensor, k: torch.Tensor, w: torch.Tensor, scores: torch.Tensor) -> None:
    """Add w (s + p n / x) to the scores, feature by feature, GROUP of them in an array of their own."""
    a, c, p, s = by_feature(q, k)
    starts = [(own.flatten(1).t() @ factors).view(s.shape[1:]) for own, factors in zip(*grouped_by(s, w), strict=True)]
    reciprocals = s.neg_().add_(1).reciprocal_()  # 1/n, and infinite where s is 1
    c *= reciprocals
    p *= w[:, None, None]
    for n, rows in blocks(scores, BY_FEATURES):
        total = scores[n, rows]
        x, part = torch.empty_like(total), torch.empty_like(total)
        factors = a[:, n, rows, None], p[:, n, rows, None], reciprocals[:, n, None], c[:, n, None]
        for start, *group in zip(starts, *grouped_by(*factors), strict=True):
            part.copy_(start[n, None])
            for own, rise, first, other in zip(*(factor.unbind() for factor in group), strict=True):
                torch.addcmul(first, own, other, out=x)
                part.addcdiv_(rise, x)
            total += part


def gradients_by_features(
    g: torch.Tensor,
    q: torch.Tensor,
    k: torch.Tensor,
    w: torch.Tensor,
    dq: torch.Tensor,
    dk: torch.Tensor,
    dw: torch.Tensor,
) -> None:
    """Set dq, dk and dw, feature by feature, from y = g/x²."""
    a, c, p, s = by_feature(q, k)
    torch.mv(s.flatten(1), g.sum(dim=1).flatten(), out=dw)
    remainders, ones, of_keys = s.neg_().add_(1), k.new_ones(k.shape[1]), torch.zeros_like(c)
    columns = torch.stack([a, p * p], dim=2)
    p *= 2 * a
    for n, rows in blocks(g, BY_FEATURES):
        given, own, other = g[n, rows].contiguous(), columns[:, n, :, rows], c[:, n]
        y = torch.empty_like(given)
        by_query, by_key = y.new_empty(a[:, n, rows].shape), y.new_empty(*own.shape[:3], len(k[0]))
        vectors = own.unbind(), other.unbind(), by_query.unbind(), by_key.unbind()
        for own_h, other_h, by_query_h, by_key_h in zip(*vectors, strict=True):
            torch.addcmul(ones, own_h[:, 0, :, None], other_h[:, None], out=y)
            torch.div(given, y.mul_(y), out=y)
            torch.bmm(y, other_h[:, :, None], out=by_query_h[:, :, None])
            torch.bmm(own_h, y, out=by_key_h)
        dw += (by_query * p[:, n, rows]).sum(dim=(1, 2)) + (by_key[:, :, 1] * remainders[:, n]).sum(dim=(1, 2))
        dq[n, rows] = by_query.permute(1, 2, 0)
        of_keys[:, n] += by_key[:, :, 0]
    dq.mul_(a.mul_(4).permute(1, 2, 0)).mul_(w)
    torch.mul(of_keys.mul_(c).mul_(4).permute(1, 2, 0), w, out=dk)


def by_feature(q: torch.Tensor, k: torch.Tensor) -> tuple[torch.Tensor, ...]:
    """a, c, p and s, as (hidden_size, batch, positions)."""
    a, c = (own.permute(2, 0, 1).clone(memory_format=torch.contiguous_format) for own in (q, k))
    smallest = a.amin(dim=-1, keepdim=True)
    s, p = (c + smallest).tanh_(), (a - smallest).tanh_()
    p.div_(1 + p).mul_(2)  # 1 - exp(-2x) = 2 tanh x / (1 + tanh x); expm1 takes longer
    return a.mul_(-2).exp_(), c.mul_(-2).exp_(), p, s


def grouped_by(*tensors: torch.Tensor) -> tuple[tuple[torch.Tensor, ...], ...]:
    """Each of the tensors in groups of features."""
    return tuple(tensor.split(GROUP) for tensor in tensors)


def scores_by_rows(q: torch.Tensor, k: torch.Tensor, w: torch.Tensor, scores: torch.Tensor) -> None:
    """Set the scores to w · t, block by block."""
    for n, rows in blocks(scores, rows_of(q), width=len(w)):
        scores[n, rows] = tangents(q[n, rows], k[n]) @ w


def gradients_by_rows(
    g: torch.Tensor,
    q: torch.Tensor,
    k: torch.Tensor,
    w: torch.Tensor,
    dq: torch.Tensor,
    dk: torch.Tensor,
    dw: torch.Tensor,
) -> None:
    """Set dq, dk and dw, block by block, from 1 - t²."""
    one = torch.ones_like(w)
    for n, rows in blocks(g, rows_of(q), width=len(w)):
        t, given = tangents(q[n, rows], k[n]), g[n, rows]
        dw += given.flatten() @ t.flatten(0, -2)
        torch.addcmul(one, t, t, value=-1, out=t)
        dq[n, rows] = (given[:, :, None] @ t)[:, :, 0]
        products = zip(t.unbind(1), given[..., None].unbind(1), strict=True)
        if rows.start == 0:
            torch.mul(*next(products), out=dk[n])
        for own, factor in products:
            dk[n].addcmul_(own, factor)
    dq *= w
    dk *= w


def tangents(q: torch.Tensor, k: torch.Tensor) -> torch.Tensor:
    """tanh(q + k) of each query and each key."""
    return torch.add(q[:, :, None], k[:, None]).tanh_()


def takes_exponentials(q: torch.Tensor, k: torch.Tensor, w: torch.Tensor) -> bool:
    """Whether to go by features: where there are enough queries and keys, exponentials hold, and weights are finite.

    On a CPU alone: elsewhere the range would have to be waited for, and a tanh costs no more than a division. Where
    blocks are forced, two queries are enough, so that small cases see both ways.
    """
    _, queries, _ = q.shape
    enough = queries > 1 if forced == "blocked" else queries >= QUERIES and q.shape[0] * queries * k.shape[1] >= SCORES
    if q.device.type != "cpu" or not enough:
        return False
    bound = BOUND[q.dtype]
    return bool(q.abs().max() <= bound) and bool(k.abs().max() <= bound) and bool(w.isfinite().all())


def blocked_additive_attention(
    queries: torch.Tensor, keys: torch.Tensor, values: torch.Tensor, mask: torch.Tensor | None, w_v: torch.Tensor
) -> torch.Tensor:
    """Average the values by the softmax of additive scores, without keeping scores or weights.

    context = attention_pooling(additive_score(queries, keys, w_v), values, mask=mask), the context alone

    Some sequences, or rows of queries of one, at a time, over the keys up to the last that is open. Only the arguments
    are kept. With p the weights, g the gradient of the context, and ds that of the scores, the backward computes each
    block again, and has from ds what blocked_additive_score has:

        ds = p (dp - sum of p dp), dp = g valuesᵀ;  dvalues = pᵀ g

    float16 and bfloat16 are computed in float32. It has first derivatives, in reverse mode; others raise RuntimeError.
    The plain formula stands in where a score may be infinite, and blocks of scores, which are kept, in a compiled
    function and on other devices than a CPU.
    """
    if torch.compiler.is_compiling() or queries.device.type != "cpu":
        return _attention_pooling(blocked_additive_score(queries, keys, w_v), values, mask, None)[0]
    context: torch.Tensor = Averaged.apply(queries, keys, values, mask, w_v)
    return context


class Averaged(torch.autograd.Function):
    """Attention by additive scores: the context alone."""

    @staticmethod
    def forward(
        queries: torch.Tensor, keys: torch.Tensor, values: torch.Tensor, mask: torch.Tensor | None, w_v: torch.Tensor
    ) -> torch.Tensor:
        """The context."""
        if unbounded(w_v):
            return averaged(queries, keys, values, mask, w_v)
        q, k, v, w = flat(queries), flat(keys), flat(values), precise(w_v)
        context = values.new_zeros(*q.shape[:2], v.shape[-1])
        for n, length, hidden in open_sequences(queries, keys, mask):
            own_keys, own_values = (seen(own[n, :length], hidden) for own in (k, v))
            for rows in blocks_of_rows(q.shape[1], length * len(own_keys)):
                context[n, rows] = weighed(q[n, rows], own_keys, w, hidden, rows) @ own_values
        return context.reshape(*queries.shape[:-1], values.shape[-1])

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[torch.Tensor | None, ...], output: torch.Tensor) -> None:
        """Keep the arguments alone."""
        ctx.save_for_backward(*inputs)

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        """The gradients of the arguments."""
        d_queries, d_keys, d_values, d_w_v = AveragedGradients.apply(gradient, *ctx.saved_tensors)
        return d_queries, d_keys, d_values, None, d_w_v

    @staticmethod
    def vmap(info: Any, in_dims: tuple[int | None, ...], *arguments: Any) -> tuple[Any, Any]:
        """One call for each position of the axis that torch.func.vmap adds."""
        return torch.stack([Averaged.apply(*given) for given in along(info, in_dims, arguments)]), 0


class AveragedGradients(torch.autograd.Function):
    """The gradients of attention by additive scores, of which there are no further ones."""

    @staticmethod
    def forward(
        gradient: torch.Tensor,
        queries: torch.Tensor,
        keys: torch.Tensor,
        values: torch.Tensor,
        mask: torch.Tensor | None,
        w_v: torch.Tensor,
    ) -> tuple[torch.Tensor, ...]:
        """The gradients of queries, keys, values and w_v."""
        given = queries, keys, values, w_v
        if unbounded(w_v):
            return plain_gradients(lambda q, k, v, w: (averaged(q, k, v, mask, w),), given, (gradient,))
        g, q, k, v, w = flat(gradient), flat(queries), flat(keys), flat(values), precise(w_v)
        dq, dk, dv, dw = (torch.zeros_like(own) for own in (q, k, v, w))
        for n, length, hidden in open_sequences(queries, keys, mask):
            own_keys, own_values = (seen(own[n, :length], hidden) for own in (k, v))
            of_keys, of_values = dk[n, :length], dv[n, :length]
            for rows in blocks_of_rows(q.shape[1], length * len(own_keys)):
                p = weighed(q[n, rows], own_keys, w, hidden, rows)
                of_values.baddbmm_(p.mT, g[n, rows])
                ds = torch.bmm(g[n, rows], own_values.mT).mul_(p)
                ds.addcmul_(p, ds.sum(dim=-1, keepdim=True), value=-1)
                if hidden is not None:
                    ds.masked_fill_(hidden[:, rows], 0.0)  # where g is NaN, too
                dq[n, rows], d_own_keys, d_own_w = differentiated(ds, q[n, rows], own_keys, w)
                of_keys += d_own_keys
                dw += d_own_w
            if hidden is not None:
                of_values.masked_fill_(hidden.all(dim=-2)[..., None], 0.0)
        found = zip((dq, dk, dv, dw), given, strict=True)
        return tuple(own.reshape(like.shape).to(like.dtype) for own, like in found)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: tuple[torch.Tensor, ...]) -> None:
        """Keep nothing."""

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> tuple[torch.Tensor, ...]:
        """Refuse."""
        raise RuntimeError(
            "attention by additive scores: no second derivative is known where it is computed in blocks. The plain "
            'formula has all: call backends.torch.blocked.set_path("plain") before the attention is computed.'
        )

    @staticmethod
    def vmap(info: Any, in_dims: tuple[int | None, ...], *arguments: Any) -> tuple[Any, Any]:
        """One call for each position of the axis that torch.func.vmap adds."""
        return mapped(AveragedGradients, info, in_dims, arguments)


def averaged(
    queries: torch.Tensor, keys: torch.Tensor, values: torch.Tensor, mask: torch.Tensor | None, w_v: torch.Tensor
) -> torch.Tensor:
    """The context by the plain formula."""
    scores = torch.tanh(queries[..., :, None, :] + keys[..., None, :, :]) @ w_v
    return _attention_pooling(scores, values, mask, None)[0]


def unbounded(w_v: torch.Tensor) -> bool:
    """Whether a score may be infinite, and hide its value if it is -inf. With a NaN in w_v all scores are NaN."""
    return float(precise(w_v).abs().sum()) > torch.finfo(w_v.dtype).max / 2


def open_sequences(
    queries: torch.Tensor, keys: torch.Tensor, mask: torch.Tensor | None
) -> Iterator[tuple[slice, int, torch.Tensor | None]]:
    """Sequences, or heads, that make a block: the number of keys up to the last open one, what is hidden of these."""
    (*lead, count, _), n = queries.shape, keys.shape[-2]
    every, together = math.prod(lead), max(1, BY_SCORES // max(1, count * n))
    for first in range(0, every, together):
        own = slice(first, min(first + together, every))
        if mask is None or n == 0:
            yield own, n, None
            continue
        allowed = mask.expand(*lead, -1, n)[torch.unravel_index(torch.arange(own.start, own.stop), lead)]
        length = int((allowed.any(dim=0).any(dim=0) * torch.arange(1, n + 1)).max())
        hidden = ~allowed[..., :length]
        yield own, length, hidden.expand(-1, count, -1) if hidden.any() else None


def weighed(
    q: torch.Tensor, k: torch.Tensor, w: torch.Tensor, hidden: torch.Tensor | None, rows: slice
) -> torch.Tensor:
    """The weights of a block of rows."""
    scores = scored(q, k, w)
    if hidden is None:
        return torch.softmax(scores, dim=-1, out=scores)
    torch.softmax(scores.masked_fill_(hidden[:, rows], -torch.inf), dim=-1, out=scores)
    return scores.masked_fill_(hidden[:, rows], 0.0)  # of a fully masked row, too, which is NaN


def blocked_dot_attention(
    queries: torch.Tensor, keys: torch.Tensor, values: torch.Tensor, mask: torch.Tensor | None, scale: float
) -> torch.Tensor:
    """Average the values by the softmax of scaled inner products, without keeping scores or weights.

    context = attention_pooling(scale · queries keysᵀ, values, mask=mask), the context alone

    Head by head, and some rows of queries at a time, over the keys up to the last that is open. With s the scores, l of
    each query ln sum exp s, and g the gradient of the context, the backward computes each block again:

        p = exp(s - l);  ds = p (dp - sum of p dp), dp = g valuesᵀ;  dvalues = pᵀ g
        dqueries = scale ds keys;  dkeys = scale dsᵀ queries

    float16 and bfloat16 are computed in float32. It has first derivatives, in reverse mode; others raise RuntimeError.
    Where no gradient will be asked for and none of these keys is hidden, a head is scaled_dot_product_attention. The
    plain formula stands in where a score may be infinite, in a compiled function, and on other devices than a CPU.
    """
    return dot_attention(queries, keys, values, mask, scale, False)[0]


def dot_attention(
    queries: torch.Tensor,
    keys: torch.Tensor,
    values: torch.Tensor,
    mask: torch.Tensor | None,
    scale: float,
    need_weights: bool,
) -> tuple[torch.Tensor, torch.Tensor | None]:
    """The context as of blocked_dot_attention, and the weights, which the backward then does not compute again."""
    narrow = need_weights and queries.dtype not in BOUND
    if torch.compiler.is_compiling() or narrow or queries.device.type != "cpu":
        context, weights = pooled(queries, keys, values, mask, scale)
        return context, weights if need_weights else None
    context, weights, _ = Attended.apply(queries, keys, values, mask, scale, need_weights, torch.is_grad_enabled())
    return context, weights if need_weights else None


def pooled(
    queries: torch.Tensor, keys: torch.Tensor, values: torch.Tensor, mask: torch.Tensor | None, scale: float
) -> tuple[torch.Tensor, torch.Tensor]:
    """Context and weights by the plain formula."""
    return _attention_pooling(queries @ keys.mT * scale, values, mask, None)


class Attended(torch.autograd.Function):
    """Attention by inner products: context, weights if they are needed, and ln sum exp s of each query."""

    @staticmethod
    def forward(
        queries: torch.Tensor,
        keys: torch.Tensor,
        values: torch.Tensor,
        mask: torch.Tensor | None,
        scale: float,
        need_weights: bool,
        keep: bool,
    ) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """(Context, weights, sums); without sums where it is computed by the plain formula."""
        weights = queries.new_empty(*queries.shape[:-1], keys.shape[-2]) if need_weights else queries.new_empty(0)
        sums = precise(queries).new_full(queries.shape[:-1], torch.inf)
        if not finite(queries, keys, scale):
            context, found = pooled(queries, keys, values, mask, scale)
            return context, found if need_weights else weights, sums
        context = values.new_zeros(*queries.shape[:-1], values.shape[-1])
        for at, n, hidden in open_parts(queries, keys, mask):
            q, k, v = precise(queries[at]), precise(keys[at][:n]), seen(values[at][:n], hidden)
            if n and hidden is None and not (keep or need_weights):
                given = (own[None, None] for own in (q, k, v))
                context[at] = torch.nn.functional.scaled_dot_product_attention(*given, scale=scale)[0, 0]
                continue
            q = q * (scale * LOG2_E)
            if need_weights:
                weights[at][:, n:] = 0.0
            for rows in blocks_of_rows(len(q), n):
                p = torch.mm(q[rows], k.t(), out=weights[at][rows, :n] if need_weights else None)
                if hidden is not None:
                    p.masked_fill_(hidden[rows], -torch.inf)
                top = p.amax(dim=-1, keepdim=True)
                if hidden is not None:
                    top.masked_fill_(top == -torch.inf, 0.0)
                total = p.sub_(top).exp2_().sum(dim=-1, keepdim=True)
                if hidden is not None:  # a sum of infinity makes all weights of a fully masked row 0
                    total.masked_fill_(total == 0.0, torch.inf)
                torch.add(top, total.log2(), out=sums[at][rows, None])
                context[at][rows] = p.div_(total) @ v if need_weights else (p @ v).div_(total)
        return context, weights, sums

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: tuple[torch.Tensor, ...]) -> None:
        """Keep the arguments, and what was returned."""
        *given, ctx.scale, ctx.need_weights, _ = inputs
        ctx.save_for_backward(*given, *output[1:])
        ctx.mark_non_differentiable(*output[1 if not ctx.need_weights else 2 :])
        ctx.set_materialize_grads(False)

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor | None) -> tuple[torch.Tensor | None, ...]:
        """The gradients of queries, keys and values."""
        found = AttendedGradients.apply(*gradients[:2], *ctx.saved_tensors, ctx.scale, ctx.need_weights)
        return *found, None, None, None, None

    @staticmethod
    def vmap(info: Any, in_dims: tuple[int | None, ...], *arguments: Any) -> tuple[Any, Any]:
        """One call for each position of the axis that torch.func.vmap adds."""
        return mapped(Attended, info, in_dims, arguments)


class AttendedGradients(torch.autograd.Function):
    """The gradients of attention by inner products, of which there are no further ones."""

    @staticmethod
    def forward(
        gradient: torch.Tensor | None,
        of_weights: torch.Tensor | None,
        queries: torch.Tensor,
        keys: torch.Tensor,
        values: torch.Tensor,
        mask: torch.Tensor | None,
        weights: torch.Tensor,
        sums: torch.Tensor,
        scale: float,
        need_weights: bool,
    ) -> tuple[torch.Tensor, ...]:
        """The gradients of queries, keys and values."""
        if gradient is None:
            gradient = values.new_zeros(*queries.shape[:-1], values.shape[-1])
        if not finite(queries, keys, scale):
            cotangents = gradient, of_weights if need_weights else None
            return plain_gradients(partial(pooled, mask=mask, scale=scale), (queries, keys, values), cotangents)
        d_queries, d_keys, d_values = (precise(torch.zeros_like(own)) for own in (queries, keys, values))
        for at, n, hidden in open_parts(queries, keys, mask):
            q, k, v = precise(queries[at]), precise(keys[at][:n]), seen(values[at][:n], hidden)
            g, dk, dv, scaled = precise(gradient[at]), d_keys[at][:n], d_values[at][:n], q * (scale * LOG2_E)
            for rows in blocks_of_rows(len(q), n):
                if need_weights:
                    p = weights[at][rows, :n]
                else:
                    p = torch.mm(scaled[rows], k.t()).sub_(sums[at][rows, None]).exp2_()
                    if hidden is not None:
                        p.masked_fill_(hidden[rows], 0.0)
                dp = torch.mm(g[rows], v.t())
                if of_weights is not None:
                    dp += of_weights[at][rows, :n]
                # Not by g · c, which may differ in the last bit where one weight is 1, and the gradient 0.
                ds = dp.mul_(p)
                ds.addcmul_(p, ds.sum(dim=-1, keepdim=True), value=-1)
                dv.addmm_(p.t(), g[rows])
                d_queries[at][rows].addmm_(ds, k, alpha=scale)
                dk.addmm_(ds.t(), q[rows], alpha=scale)
            if hidden is not None:
                dv.masked_fill_(hidden.all(dim=0)[:, None], 0.0)
        return d_queries.to(queries.dtype), d_keys.to(keys.dtype), d_values.to(values.dtype)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: tuple[torch.Tensor, ...]) -> None:
        """Keep nothing."""

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> tuple[torch.Tensor, ...]:
        """Refuse."""
        raise RuntimeError(
            "attention by inner products: no second derivative is known where it is computed in blocks. The plain "
            'formula has all: call backends.torch.blocked.set_path("plain") before the attention is computed.'
        )

    @staticmethod
    def vmap(info: Any, in_dims: tuple[int | None, ...], *arguments: Any) -> tuple[Any, Any]:
        """One call for each position of the axis that torch.func.vmap adds."""
        return mapped(AttendedGradients, info, in_dims, arguments)


def plain_gradients(
    formula: Callable[..., tuple[torch.Tensor, ...]],
    arguments: tuple[torch.Tensor, ...],
    cotangents: tuple[torch.Tensor | None, ...],
) -> tuple[torch.Tensor, ...]:
    """The gradients of the plain formula."""
    with torch.enable_grad():
        given = [own.detach().requires_grad_() for own in arguments]
        pairs = [(own, g) for own, g in zip(formula(*given), cotangents, strict=True) if g is not None]
        return torch.autograd.grad([own for own, _ in pairs], given, [g for _, g in pairs])


def finite(queries: torch.Tensor, keys: torch.Tensor, scale: float) -> bool:
    """Whether no score can be infinite, or NaN, by the largest entries."""
    if not (queries.numel() and keys.numel()):
        return True
    largest = [max(abs(float(end)) for end in own.aminmax()) for own in (queries, keys)]
    bound = largest[0] * largest[1] * queries.shape[-1] * max(abs(scale), 1.0)
    return all(own == own for own in largest) and bound * LOG2_E < torch.finfo(queries.dtype).max / 2


def open_parts(
    queries: torch.Tensor, keys: torch.Tensor, mask: torch.Tensor | None
) -> Iterator[tuple[tuple[int, ...], int, torch.Tensor | None]]:
    """Of each sequence, or head: its place, the number of keys up to the last open one, and what is hidden of these."""
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
        own = int(lens[at])
        yield at, own, hidden[at][:, :own] if mixed[at] else None


def seen(tensor: torch.Tensor, hidden: torch.Tensor | None) -> torch.Tensor:
    """In float32 at least, and 0 where no query may attend to it: a factor of 0 does not silence a NaN."""
    tensor = precise(tensor)
    return tensor if hidden is None else tensor.masked_fill(hidden.all(dim=-2)[..., None], 0.0)


def blocks_of_rows(queries: int, keys: int) -> Iterator[slice]:
    """Rows of queries, so many that a block has BY_SCORES scores; none without keys."""
    rows = max(1, BY_SCORES // max(keys, 1))
    for first in range(0, queries if keys else 0, rows):
        yield slice(first, first + rows)


def takes_steps(
    tokens: torch.Tensor,
    state: torch.Tensor,
    keys: torch.Tensor,
    values: torch.Tensor,
    mask: torch.Tensor | None,
    dropout_mask: torch.Tensor | None,
    attention_dropout_mask: torch.Tensor | None,
) -> bool:
    """Whether a decoder's steps become one function: from STEPS_MIN_ELEMENTS elements on, or as `set_path` says.

    elements = batch · steps · keys · features of a key

    On a CPU, in float32 or float64, outside of a compiler, with one mask for all steps, and where no dropout mask has a
    gradient. Step by step everything else is computed.
    """
    if keys.device.type != "cpu" or keys.dtype not in BOUND or state.dtype != keys.dtype:
        return False
    if torch.compiler.is_compiling() or not (tokens.numel() and keys.numel() and values.numel()):
        return False
    if mask is not None and mask.shape[1] > 1:
        return False
    if any(own is not None and own.requires_grad for own in (dropout_mask, attention_dropout_mask)):
        return False
    return use_blocks(keys[:, :1].expand(-1, tokens.shape[1], -1), keys, STEPS_MIN_ELEMENTS)


def blocked_steps(
    embedded: torch.Tensor,
    places: torch.Tensor,
    state: torch.Tensor,
    memory: tuple[torch.Tensor, torch.Tensor, torch.Tensor | None],
    W_q: torch.Tensor,
    w_v: torch.Tensor,
    layers: list[list[torch.Tensor]],
    dropout_mask: torch.Tensor | None,
    attention_dropout_mask: torch.Tensor | None,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:
    """Run the steps of Bahdanau's decoder: (outputs of the top layer, the last state, weights, contexts).

    embedded is one row for each word that occurs, which meets its part of W once, and places (steps, batch) tells the
    row of each token. memory is keys, values and mask; layers are W, U, b and the hidden bias of each, as PyTorch's GRU
    takes them. All that is returned but the state has its steps first. It has first derivatives, in reverse mode.
    """
    keys, values, mask = memory
    hidden = None if mask is None else ~mask[:, 0].expand(len(keys), -1)
    given = []
    for layer, (W, U, b, b_h) in enumerate(layers):
        W, b = (own.unflatten(0, (3, -1)).roll(1, 0).flatten(0, 1) for own in (W, b))  # to n, r, z
        if layer == 0:
            W, of_tokens = W.split([values.shape[-1], embedded.shape[-1]], dim=1)
            b = torch.nn.functional.linear(embedded, of_tokens, b)[places]
        given += [W, U, b, b_h]
    factors = (
        None if dropout_mask is None else dropout_mask.transpose(1, 2),
        None if attention_dropout_mask is None else attention_dropout_mask.transpose(0, 1),
    )
    keep = torch.is_grad_enabled()
    found = Steps.apply(keep, state, keys, values, hidden, W_q, w_v, *factors, *given)
    outputs, last, weights, contexts, *_ = found
    return outputs, last, weights, contexts


class Steps(torch.autograd.Function):
    """The steps of Bahdanau's decoder with gated recurrent units and additive scores.

    With s the top output, k the keys, h and x what a layer of units is given:

        e[j] = w · t[j], t[j] = tanh(W_q s + k[j]);  p = softmax(e);  c = sum over j of p[j] values[j]
        r, z = σ(W x + b + U h);  m = U h + b_h;  n = tanh(W x + b + r m);  h' = n + z (h - n)

    Backwards from step to step, with the gradient dh of h', those of what n, r, z and m are made of are

        dn = (1 - z)(1 - n²) dh;  dr = r(1 - r) m dn;  dz = z(1 - z)(h - n) dh;  dm = r dn

    which give the gradient of x by W, and of h by U and z dh. Of the context it goes to p, e, W_q s, and k:

        dp[j] = dc · values[j];  de = p (dp - p · dp)
        d(W_q s) = w sum over j of de[j] (1 - t[j]²), as dk[j] over steps

    Gates stand in the order n, r, z, m: x has to do with the first three, h with the last three. The gradients of W, U,
    W_q and of the values are one product each, of all steps, after the loop.
    """

    @staticmethod
    def forward(
        keep: bool,
        state: torch.Tensor,
        keys: torch.Tensor,
        values: torch.Tensor,
        hidden: torch.Tensor | None,
        W_q: torch.Tensor,
        w_v: torch.Tensor,
        between: torch.Tensor | None,
        factors: torch.Tensor | None,
        *layers: torch.Tensor,
    ) -> tuple[torch.Tensor, ...]:
        """(Outputs, last state, weights, contexts), and what the backward needs where keep is true."""
        steps, kept, (count, batch, size) = len(layers[2]), len(layers[2]) if keep else 1, state.shape
        below, top = state.new_empty(count - 1, steps, batch, size), state.new_empty(steps, batch, size)
        outputs = *below, top
        gates, queries = state.new_empty(count, kept, batch, 4 * size), state.new_empty(kept, batch, len(W_q))
        weights = keys.new_empty(steps, batch, keys.shape[1])
        contexts = values.new_empty(steps, batch, values.shape[-1])
        features, inputs, last = Features(keys, w_v), state.new_empty(batch, 3 * size), list(state)
        for t in range(steps):
            query = torch.mm(last[-1], W_q.t(), out=queries[t % kept])
            scores = weights[t]
            features.score(query, scores)
            if hidden is not None:
                scores.masked_fill_(hidden, -torch.inf)
            torch.softmax(scores, dim=-1, out=scores)
            if hidden is not None:
                scores.masked_fill_(hidden, 0.0)  # of a fully masked row, too, which is NaN
            weighted = scores if factors is None else scores * factors[t]
            x = contexts[t]
            torch.bmm(weighted[:, None], values, out=x[:, None])
            for layer, (W, U, b, b_h) in enumerate(grouped(layers)):
                h, gate = last[layer], gates[layer, t % kept]
                n, r, z, m = gate.chunk(4, dim=1)
                torch.addmm(b_h, h, U.t(), out=gate[:, size:])
                torch.addmm(b if layer else b[t], x, W.t(), out=inputs)
                gate[:, size : 3 * size].add_(inputs[:, size:]).sigmoid_()
                torch.addcmul(inputs[:, :size], r, m, out=n).tanh_()
                x = last[layer] = torch.lerp(n, h, z, out=outputs[layer][t])
                if between is not None and layer + 1 < count:
                    x = x * between[layer, t]
        return top, torch.stack(last), weights, contexts, below, gates, queries

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: tuple[torch.Tensor, ...]) -> None:
        """Keep what the backward needs."""
        _, state, keys, values, _, W_q, w_v, between, factors, *layers = inputs
        top, _, weights, contexts, below, gates, queries = output
        ctx.mark_non_differentiable(below, gates, queries)
        ctx.set_materialize_grads(False)
        given = state, keys, values, W_q, w_v, between, factors
        ctx.save_for_backward(*given, top, weights, contexts, below, gates, queries, *layers[0::4], *layers[1::4])

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor | None) -> tuple[torch.Tensor | None, ...]:
        """The gradients of the arguments."""
        found = StepsGradients.apply(*gradients[:4], *ctx.saved_tensors)
        d_state, d_keys, d_values, d_W_q, d_w_v, *d_layers = found
        return None, d_state, d_keys, d_values, None, d_W_q, d_w_v, None, None, *d_layers

    @staticmethod
    def vmap(info: Any, in_dims: tuple[int | None, ...], *arguments: Any) -> tuple[Any, Any]:
        """One call for each position of the axis that torch.func.vmap adds."""
        return mapped(Steps, info, in_dims, arguments)


class StepsGradients(torch.autograd.Function):
    """The gradients of the steps, of which there are no further ones."""

    @staticmethod
    def forward(
        d_top: torch.Tensor | None,
        d_last: torch.Tensor | None,
        d_weights: torch.Tensor | None,
        d_contexts: torch.Tensor | None,
        state: torch.Tensor,
        keys: torch.Tensor,
        values: torch.Tensor,
        W_q: torch.Tensor,
        w_v: torch.Tensor,
        between: torch.Tensor | None,
        factors: torch.Tensor | None,
        top: torch.Tensor,
        weights: torch.Tensor,
        contexts: torch.Tensor,
        below: torch.Tensor,
        gates: torch.Tensor,
        queries: torch.Tensor,
        *of_layers: torch.Tensor,
    ) -> tuple[torch.Tensor, ...]:
        """The gradients of state, keys, values, W_q, w_v, and of each layer's parameters."""
        (count, steps, _, _), size, outputs = gates.shape, state.shape[-1], (*below, top)
        Ws, Us = of_layers[:count], of_layers[count:]
        d_gates, d_queries, d_given = torch.empty_like(gates), torch.empty_like(queries), torch.empty_like(contexts)
        d_states = list(torch.zeros_like(state) if d_last is None else d_last.clone())
        features, d_keys, d_w_v = Features(keys, w_v), torch.zeros_like(keys), torch.zeros_like(w_v)
        for t in reversed(range(steps)):
            if d_top is not None:
                d_states[-1] += d_top[t]
            for layer in reversed(range(count)):
                h, dh = (outputs[layer][t - 1] if t else state[layer]), d_states[layer]
                n, r, z, m = gates[layer, t].chunk(4, dim=1)
                d_gate = d_gates[layer, t]
                dn, dr, dz, dm = d_gate.chunk(4, dim=1)
                torch.addcmul(dh, dh, z, value=-1, out=dn)
                dn.mul_(1 - n * n)
                torch.mul(dn, r, out=dm)
                torch.mul(dn, m, out=dr).mul_(r - r * r)
                torch.mul(h - n, dh, out=dz).mul_(z - z * z)
                dh *= z
                dh.addmm_(d_gate[:, size:], Us[layer])
                dx = torch.mm(d_gate[:, : 3 * size], Ws[layer])
                if layer:
                    d_states[layer - 1] += dx if between is None else dx * between[layer - 1, t]
            d_given[t] = dx if d_contexts is None else dx + d_contexts[t]
            dp = torch.bmm(d_given[t, :, None], values.mT)[:, 0]
            if factors is not None:
                dp *= factors[t]
            if d_weights is not None:
                dp += d_weights[t]
            p = weights[t]
            de = p * (dp - (p * dp).sum(dim=-1, keepdim=True))
            features.gradients(queries[t], de, d_queries[t], d_keys, d_w_v)
            d_states[-1].addmm_(d_queries[t], W_q)
        d_layers = []
        for layer in range(count):
            own, x = d_gates[layer].flatten(0, 1), outputs[layer - 1] if layer else contexts
            if layer and between is not None:
                x = x * between[layer - 1]
            total = own.sum(dim=0)
            dW, dU = own[:, : 3 * size].t() @ x.flatten(0, 1), own[:, size:].t() @ before(outputs[layer], state[layer])
            d_layers += [dW, dU, total[: 3 * size] if layer else d_gates[0, :, :, : 3 * size], total[size:]]
        weighted = weights if factors is None else weights * factors
        d_values = weighted.permute(1, 2, 0) @ d_given.transpose(0, 1)
        d_W_q = d_queries.flatten(0, 1).t() @ before(top, state[-1])
        return torch.stack(d_states), d_keys.mul_(w_v), d_values, d_W_q, d_w_v, *d_layers

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: tuple[torch.Tensor, ...]) -> None:
        """Keep nothing."""

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> tuple[torch.Tensor, ...]:
        """Refuse."""
        raise RuntimeError(
            "BahdanauDecoder: no second derivative is known where its steps are one function. Step by step it has all: "
            'call backends.torch.blocked.set_path("plain") before it is called.'
        )

    @staticmethod
    def vmap(info: Any, in_dims: tuple[int | None, ...], *arguments: Any) -> tuple[Any, Any]:
        """One call for each position of the axis that torch.func.vmap adds."""
        return mapped(StepsGradients, info, in_dims, arguments)


class Features:
    """t = tanh(q + k) of one query for each key of its sequence, some sequences at a time, and what is made of it.

    By the formula of the module, s + p / (1/n + a (c/n)), where exponentials of the keys hold. m is that of the keys:
    the number between -k of all keys of the sequence that is nearest to 0, so that s is no larger than the largest t.
    A query is clipped to where t has long been 1 to the last bit, so that the exponentials of queries hold always.
    """

    def __init__(self, keys: torch.Tensor, w_v: torch.Tensor) -> None:
        self.w, self.one = w_v, torch.ones_like(w_v)
        self.exact = not bool(keys.abs().max() <= BOUND[keys.dtype])
        self.rows = max(1, BY_STEPS // keys[0].numel())
        given: tuple[torch.Tensor, ...] = (keys,)
        if not self.exact:
            least, most = -keys.amax(dim=1), -keys.amin(dim=1)
            self.m, margin = torch.zeros_like(least).clamp(least, most), SATURATED[keys.dtype]
            self.least, self.most = least - margin, most + margin
            shifted = keys + self.m[:, None]
            reciprocals = (2 * shifted).exp_().add_(1).mul_(0.5)  # 1/n; 1 - s would be 0 where s is 1
            given = shifted.tanh_(), reciprocals, (-2 * keys).exp_().mul_(reciprocals)
        self.given = [own.split(self.rows) for own in given]
        self.room = torch.empty_like(self.given[0][0])

    def blocks(self, query: torch.Tensor) -> Iterator[torch.Tensor]:
        """The features, block by block, in the same place."""
        if self.exact:
            for q, k in zip(query[:, None].split(self.rows), *self.given, strict=True):
                yield torch.add(q, k, out=self.room[: len(k)]).tanh_()
            return
        query = query.clamp(self.least, self.most)
        own = (-2 * query).exp_(), (-2 * (query - self.m)).expm1_().neg_()
        parts = (factor[:, None].split(self.rows) for factor in own)
        for a, p, s, first, other in zip(*parts, *self.given, strict=True):
            t = torch.addcmul(first, a, other, out=self.room[: len(s)])
            yield torch.addcdiv(s, p, t, out=t)

    def score(self, query: torch.Tensor, scores: torch.Tensor) -> None:
        """Set the scores to w · t."""
        for t, own in zip(self.blocks(query), scores.split(self.rows), strict=True):
            torch.mv(t.flatten(0, 1), self.w, out=own.flatten())

    def gradients(
        self,
        query: torch.Tensor,
        gradient: torch.Tensor,
        d_query: torch.Tensor,
        d_keys: torch.Tensor,
        d_w: torch.Tensor,
    ) -> None:
        """Set d_query, and add to d_keys, without the factor w, and to d_w."""
        own = (tensor.split(self.rows) for tensor in (gradient, d_query, d_keys))
        for t, g, of_query, of_keys in zip(self.blocks(query), *own, strict=True):
            d_w.addmv_(t.flatten(0, 1).t(), g.flatten())
            torch.addcmul(self.one, t, t, value=-1, out=t)
            torch.bmm(g[:, None], t, out=of_query[:, None])
            of_keys.addcmul_(t, g[..., None])
        d_query *= self.w


def before(outputs: torch.Tensor, state: torch.Tensor) -> torch.Tensor:
    """The state before each step, all steps and sequences as one axis."""
    return torch.cat([state[None], outputs[:-1]]).flatten(0, 1)


def grouped(layers: tuple[torch.Tensor, ...]) -> Iterator[tuple[torch.Tensor, ...]]:
    """W, U, b and the hidden bias of each layer."""
    return zip(layers[0::4], layers[1::4], layers[2::4], layers[3::4], strict=True)


def precise(tensor: torch.Tensor) -> torch.Tensor:
    """The tensor in float32 at least."""
    return tensor.to(torch.promote_types(tensor.dtype, torch.float32))


def flat(tensor: torch.Tensor) -> torch.Tensor:
    """The tensor in float32 at least, with batch and heads as one axis."""
    return precise(tensor).flatten(0, -3)


def rows_of(q: torch.Tensor) -> int:
    """The elements of a block by rows on the device."""
    return BY_ROWS if q.device.type == "cpu" else BY_ROWS_ELSEWHERE


def blocks(scores: torch.Tensor, elements: int, *, width: int = 1) -> Iterator[tuple[slice, slice]]:
    """Slices of batch and queries: some sequences in one block, or some rows of one, and a row at least."""
    batch, queries, keys = scores.shape
    row = keys * width
    sequences, rows = max(1, elements // (queries * row)), min(queries, max(1, elements // row))
    for n in range(0, batch, sequences):
        for first in range(0, queries, rows):
            yield slice(n, n + sequences), slice(first, first + rows)


def along(info: Any, in_dims: tuple[int | None, ...], arguments: tuple[torch.Tensor, ...]) -> Iterator[Any]:
    """The arguments at each position of the axis that torch.func.vmap adds."""
    for i in range(info.batch_size):
        yield tuple(own if dim is None else own.select(dim, i) for own, dim in zip(arguments, in_dims, strict=True))


def mapped(
    function: type[torch.autograd.Function],
    info: Any,
    in_dims: tuple[int | None, ...],
    arguments: tuple[torch.Tensor, ...],
) -> tuple[tuple[torch.Tensor, ...], tuple[int, ...]]:
    """Several outputs at each position of the axis that torch.func.vmap adds, and where they have it: first."""
    found = list(zip(*(function.apply(*given) for given in along(info, in_dims, arguments)), strict=True))
    return tuple(torch.stack(own) for own in found), (0,) * len(found)


score_node = torch.library.custom_op("attention_parity::blocked_additive_score", scored, mutates_args=())
gradients_node = torch.library.custom_op(
    "attention_parity::blocked_additive_score_backward", differentiated, mutates_args=()
)


@score_node.register_fake
def _(queries: torch.Tensor, keys: torch.Tensor, w_v: torch.Tensor) -> torch.Tensor:
    return queries.new_empty(*queries.shape[:-1], keys.shape[-2])


@gradients_node.register_fake
def _(
    gradient: torch.Tensor, queries: torch.Tensor, keys: torch.Tensor, w_v: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    return queries.new_empty(queries.shape), keys.new_empty(keys.shape), w_v.new_empty(w_v.shape)
