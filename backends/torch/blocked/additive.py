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

By rows, of which a block is (queries, keys, hidden_size): t is PyTorch's tanh, which is right for all numbers.
"""

from __future__ import annotations

from typing import Any

import torch

from backends.torch import kernels
from backends.torch.attention import Answer, Form
from backends.torch.blocked.blocks import (
    BOUND,
    along,
    autocast_off,
    blocks_of_rows,
    blocks_of_scores,
    flat,
    map_axis,
    open_sequences,
    plain_gradients,
    visible,
    without_autocast,
)
from backends.torch.masking import precise
from backends.torch.memory import Memory, in_heads
from backends.torch.pooling import _attention_pooling

__all__ = ["blocked_additive_score", "blocked_additive_attention"]

ADDITIVE_MIN_ELEMENTS = 2**19
"""The number of elements, batch · heads · queries · keys · hidden_size, from which on blocks are faster on a CPU."""

ADDITIVE_MIN_ELSEWHERE = 2**30
"""The same on other devices, where such an array takes 4 GiB in float32."""

QUERIES, SCORES = 8, 2**15
"""The number of queries, and of scores, from which on features are faster than rows."""

GROUP = 32
"""The number of features that are added up by themselves, so that rounding grows with the number of groups."""

SATURATED = {torch.float32: 10.0, torch.float64: 20.0}
"""From here on tanh is 1 to the last bit."""

BY_FEATURES, BY_ROWS = 2**18, 2**17
"""The elements of a block on a CPU: what stays in its cache, and is worth the cost of a call."""

TOGETHER = 2**20
"""The elements of a block in its gradients: several features at once, which PyTorch divides among threads."""

BY_ROWS_ELSEWHERE = 2**26
"""The elements of a block on other devices."""

ROWS, KEYS = 512, 512
"""The least queries and the most keys of a block: factors of a single key are computed once for that many queries, and
stay in a cache meanwhile."""


def serves_score(queries: torch.Tensor, keys: torch.Tensor, w_v: torch.Tensor) -> bool:
    """Whether to compute scores in blocks: from ADDITIVE_MIN_ELEMENTS elements on, or ADDITIVE_MIN_ELSEWHERE."""
    return kernels.use_blocks(queries, keys, ADDITIVE_MIN_ELEMENTS, ADDITIVE_MIN_ELSEWHERE)


@kernels.register("additive_score", serves_score)
@without_autocast
def blocked_additive_score(queries: torch.Tensor, keys: torch.Tensor, w_v: torch.Tensor) -> torch.Tensor:
    """Score each projected query against each projected key by a weighted tanh of their sum, block by block.

    scores[i, j] = sum over h of w_v[h] tanh(queries[i, h] + keys[j, h]);  the derivation is the module's

    Memory: that of the scores, of the exponentials of queries and keys, and of one block. float16 and bfloat16 are
    computed in float32. torch.compile takes score and gradients as one node each; torch.func maps and differentiates
    them. It has first derivatives, in reverse mode; others raise RuntimeError, where `set_path("plain")` has them.
    """
    scores: torch.Tensor = Score.apply(queries, keys, w_v)
    return scores


class Score(torch.autograd.Function):
    """The score; as an operator of PyTorch's registry only while compiling, since calling one loads the compiler."""

    @staticmethod
    def forward(queries: torch.Tensor, keys: torch.Tensor, w_v: torch.Tensor) -> torch.Tensor:
        """The scores."""
        return (score_node if torch.compiler.is_compiling() else compute_scores)(queries, keys, w_v)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[torch.Tensor, ...], output: torch.Tensor) -> None:
        """Keep the arguments alone."""
        ctx.save_for_backward(*inputs)

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> tuple[torch.Tensor, ...]:
        """The gradients of the arguments."""
        with autocast_off(ctx.saved_tensors[0]):
            gradients: tuple[torch.Tensor, ...] = Gradients.apply(gradient, *ctx.saved_tensors)
        return gradients

    @staticmethod
    def vmap(info: Any, in_dims: tuple[int | None, ...], *arguments: torch.Tensor) -> tuple[Any, Any]:
        """One call for each position of the axis that torch.func.vmap adds."""
        return torch.stack([Score.apply(*given) for given in along(info, in_dims, arguments)]), 0


class Gradients(torch.autograd.Function):
    """Backward of additive scores in blocks; first derivatives only."""

    @staticmethod
    def forward(
        gradient: torch.Tensor, queries: torch.Tensor, keys: torch.Tensor, w_v: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """The gradients of the arguments."""
        run = gradients_node if torch.compiler.is_compiling() else compute_gradients
        return run(gradient, queries, keys, w_v)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[torch.Tensor, ...], output: tuple[torch.Tensor, ...]) -> None:
        """Keep nothing."""

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> tuple[torch.Tensor, ...]:
        """Refuse."""
        raise RuntimeError(
            "additive_score: no second derivative is known where it is computed in blocks. The plain formula has all: "
            'call backends.torch.kernels.set_path("plain") before the score is computed.'
        )

    @staticmethod
    def vmap(info: Any, in_dims: tuple[int | None, ...], *arguments: torch.Tensor) -> tuple[Any, Any]:
        """One call for each position of the axis that torch.func.vmap adds."""
        return map_axis(Gradients, info, in_dims, arguments)


def compute_scores(queries: torch.Tensor, keys: torch.Tensor, w_v: torch.Tensor) -> torch.Tensor:
    q, k, w = flat(queries), flat(keys), precise(w_v)
    scores = q.new_zeros(q.shape[0], q.shape[1], k.shape[1])
    if q.numel() and k.numel():
        kernel = scores_by_features if takes_exponentials(q, k, w) else scores_by_rows
        for part_of_k, part_of_scores in zip(k.split(KEYS, dim=1), scores.split(KEYS, dim=2), strict=True):
            kernel(q, part_of_k, w, part_of_scores)
    return scores.reshape(*queries.shape[:-1], keys.shape[-2]).to(queries.dtype)


def compute_gradients(
    gradient: torch.Tensor, queries: torch.Tensor, keys: torch.Tensor, w_v: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    g, q, k, w = flat(gradient), flat(queries), flat(keys), precise(w_v)
    dq, dk, dw = (torch.zeros_like(array) for array in (q, k, w))
    if q.numel() and k.numel():
        kernel = gradients_by_features if takes_exponentials(q, k, w) else gradients_by_rows
        of_q = torch.empty_like(q)
        parts = g.split(KEYS, dim=2), k.split(KEYS, dim=1), dk.split(KEYS, dim=1)
        for part_of_g, part_of_k, of_k in zip(*parts, strict=True):
            kernel(part_of_g, q, part_of_k, w, of_q, of_k, dw)
            dq += of_q
    pairs = ((dq, queries), (dk, keys), (dw, w_v))
    dq, dk, dw = (gradient.reshape(like.shape).to(like.dtype) for gradient, like in pairs)
    return dq, dk, dw


def scores_by_features(q: torch.Tensor, k: torch.Tensor, w: torch.Tensor, scores: torch.Tensor) -> None:
    """Add w (s + p n / x) to the scores, feature by feature, GROUP of them in a separate array."""
    a, c, p, s = by_feature(q, k)
    starts = [(tanh.flatten(1).t() @ part).view(s.shape[1:]) for tanh, part in zip(*grouped_by(s, w), strict=True)]
    reciprocals = s.neg_().add_(1).reciprocal_()  # 1/n, and infinite where s is 1
    c *= reciprocals
    p *= w[:, None, None]
    for n, rows in blocks_of_scores(scores, BY_FEATURES):
        total = scores[n, rows]
        x, part = torch.empty_like(total), torch.empty_like(total)
        factors = a[:, n, rows, None], p[:, n, rows, None], reciprocals[:, n, None], c[:, n, None]
        for start, *group in zip(starts, *grouped_by(*factors), strict=True):
            part.copy_(start[n, None])
            for column, rise, first, other in zip(*(factor.unbind() for factor in group), strict=True):
                torch.addcmul(first, column, other, out=x)
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
    """Set dq and dk, and add to dw, feature by feature, from y = g/x²."""
    a, c, p, s = by_feature(q, k)
    dw.addmv_(s.flatten(1), g.sum(dim=1).flatten())
    remainders, ones, of_keys = s.neg_().add_(1), k.new_ones(k.shape[1]), torch.zeros_like(c)
    columns = torch.stack([a, p * p], dim=2)
    p *= 2 * a
    for n, rows in blocks_of_scores(g, BY_FEATURES):
        given, column, other = g[n, rows].contiguous(), columns[:, n, :, rows], c[:, n]
        room = given.new_empty(min(len(a), max(1, TOGETHER // given.numel())), *given.shape)
        by_query, by_key = room.new_empty(a[:, n, rows].shape), room.new_empty(*column.shape[:3], len(k[0]))
        groups = (array.split(len(room)) for array in (column, other, by_query, by_key))
        for columns_h, others_h, by_query_h, by_key_h in zip(*groups, strict=True):
            y = torch.addcmul(ones, columns_h[:, :, 0, :, None], others_h[:, :, None], out=room[: len(others_h)])
            y = torch.div(given, y.mul_(y), out=y).flatten(0, 1)
            # A row on the left: with a column on the right, the product of a batch takes eight times as long.
            torch.bmm(others_h.flatten(0, 1)[:, None], y.mT, out=by_query_h.flatten(0, 1)[:, None])
            torch.bmm(columns_h.flatten(0, 1), y, out=by_key_h.flatten(0, 1))
        dw += (by_query * p[:, n, rows]).sum(dim=(1, 2)) + (by_key[:, :, 1] * remainders[:, n]).sum(dim=(1, 2))
        dq[n, rows] = by_query.permute(1, 2, 0)
        of_keys[:, n] += by_key[:, :, 0]
    dq.mul_(a.mul_(4).permute(1, 2, 0)).mul_(w)
    torch.mul(of_keys.mul_(c).mul_(4).permute(1, 2, 0), w, out=dk)


def by_feature(q: torch.Tensor, k: torch.Tensor) -> tuple[torch.Tensor, ...]:
    """a, c, p and s, as (hidden_size, batch, positions)."""
    a, c = (array.permute(2, 0, 1).clone(memory_format=torch.contiguous_format) for array in (q, k))
    smallest = a.amin(dim=-1, keepdim=True)
    s, p = (c + smallest).tanh_(), (a - smallest).tanh_()
    p.div_(1 + p).mul_(2)  # 1 - exp(-2x) = 2 tanh x / (1 + tanh x); expm1 takes longer
    return a.mul_(-2).exp_(), c.mul_(-2).exp_(), p, s


def grouped_by(*tensors: torch.Tensor) -> tuple[tuple[torch.Tensor, ...], ...]:
    """Each of the tensors in groups of features."""
    return tuple(tensor.split(GROUP) for tensor in tensors)


def scores_by_rows(q: torch.Tensor, k: torch.Tensor, w: torch.Tensor, scores: torch.Tensor) -> None:
    """Set the scores to w · t, block by block."""
    for n, rows in blocks_of_scores(scores, rows_of(q), width=len(w)):
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
    """Set dq and dk, and add to dw, block by block, from 1 - t²."""
    one = torch.ones_like(w)
    for n, rows in blocks_of_scores(g, rows_of(q), width=len(w)):
        t, given = tangents(q[n, rows], k[n]), g[n, rows]
        dw += given.flatten() @ t.flatten(0, -2)
        torch.addcmul(one, t, t, value=-1, out=t)
        dq[n, rows] = (given[:, :, None] @ t)[:, :, 0]
        products = zip(t.unbind(1), given[..., None].unbind(1), strict=True)
        if rows.start == 0:
            torch.mul(*next(products), out=dk[n])
        for part, factor in products:
            dk[n].addcmul_(part, factor)
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
    enough = (
        queries > 1
        if kernels.forced == "blocked"
        else queries >= QUERIES and q.shape[0] * queries * k.shape[1] >= SCORES
    )
    if q.device.type != "cpu" or not enough:
        return False
    bound = BOUND[q.dtype]
    return bool(q.abs().max() <= bound) and bool(k.abs().max() <= bound) and bool(w.isfinite().all())


@without_autocast
def blocked_additive_attention(
    queries: torch.Tensor, keys: torch.Tensor, values: torch.Tensor, mask: torch.Tensor | None, w_v: torch.Tensor
) -> torch.Tensor:
    """Average the values by the softmax of additive scores, without keeping scores or weights.

    context = attention_pooling(additive_score(queries, keys, w_v), values, mask=mask), the context alone

    Some sequences, or rows of queries of one, at a time, over the keys up to the last that is open, of which tanh is
    taken in parts. Only the arguments are kept. With p the weights, g the gradient of the context, and ds that of the
    scores, the backward computes each block again, and has from ds what blocked_additive_score has:

        ds = p (dp - sum of p dp), dp = g valuesᵀ;  dvalues = pᵀ g

    float16 and bfloat16 are computed in float32. It has first derivatives, in reverse mode; others raise RuntimeError.
    The plain formula is taken where a score may be infinite, and blocks of scores, which are kept, in a compiled
    function and on other devices than a CPU.
    """
    if torch.compiler.is_compiling() or queries.device.type != "cpu":
        return _attention_pooling(blocked_additive_score(queries, keys, w_v), values, mask, None)[0]
    context: torch.Tensor = Averaged.apply(queries, keys, values, mask, w_v)
    return context


def serves_attention(
    form: Form, queries: torch.Tensor, memory: Memory, need_weights: bool, bias: torch.Tensor | None
) -> bool:
    """Whether to compute the context of an additive score in blocks, under the condition of its scores."""
    # Of queries and keys it is the keys that are projected by now.
    is_context_alone = form.w_v is not None and not need_weights and bias is None
    return is_context_alone and kernels.use_blocks(memory.keys, queries, ADDITIVE_MIN_ELEMENTS, ADDITIVE_MIN_ELSEWHERE)


@kernels.register("attention", serves_attention)
def attend(form: Form, queries: torch.Tensor, memory: Memory, need_weights: bool, bias: torch.Tensor | None) -> Answer:
    """Attend to a memory by the score of that form, for the context alone."""
    assert form.w_v is not None
    return blocked_additive_attention(form.project(queries), *in_heads(memory, queries), form.w_v), None


class Averaged(torch.autograd.Function):
    """Attention by additive scores: the context alone."""

    @staticmethod
    def forward(
        queries: torch.Tensor, keys: torch.Tensor, values: torch.Tensor, mask: torch.Tensor | None, w_v: torch.Tensor
    ) -> torch.Tensor:
        """The context."""
        if is_unbounded(w_v):
            return plain_context(queries, keys, values, mask, w_v)
        q, k, v, w = flat(queries), flat(keys), flat(values), precise(w_v)
        context = values.new_zeros(*q.shape[:2], v.shape[-1])
        for n, length, hidden in open_sequences(queries, keys, mask):
            example_keys, example_values = (visible(array[n, :length], hidden) for array in (k, v))
            for rows in blocks_of_rows(q.shape[1], length * len(example_keys), least=ROWS):
                context[n, rows] = weights_of(q[n, rows], example_keys, w, hidden, rows) @ example_values
        return context.reshape(*queries.shape[:-1], values.shape[-1])

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[torch.Tensor | None, ...], output: torch.Tensor) -> None:
        """Keep the arguments alone."""
        ctx.save_for_backward(*inputs)

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        """The gradients of the arguments."""
        with autocast_off(ctx.saved_tensors[0]):
            d_queries, d_keys, d_values, d_w_v = AveragedGradients.apply(gradient, *ctx.saved_tensors)
        return d_queries, d_keys, d_values, None, d_w_v

    @staticmethod
    def vmap(info: Any, in_dims: tuple[int | None, ...], *arguments: Any) -> tuple[Any, Any]:
        """One call for each position of the axis that torch.func.vmap adds."""
        return torch.stack([Averaged.apply(*given) for given in along(info, in_dims, arguments)]), 0


class AveragedGradients(torch.autograd.Function):
    """Backward of attention by additive scores in blocks; first derivatives only."""

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
        if is_unbounded(w_v):
            return plain_gradients(lambda q, k, v, w: (plain_context(q, k, v, mask, w),), given, (gradient,))
        g, q, k, v, w = flat(gradient), flat(queries), flat(keys), flat(values), precise(w_v)
        dq, dk, dv, dw = (torch.zeros_like(array) for array in (q, k, v, w))
        for n, length, hidden in open_sequences(queries, keys, mask):
            example_keys, example_values = (visible(array[n, :length], hidden) for array in (k, v))
            of_keys, of_values = dk[n, :length], dv[n, :length]
            for rows in blocks_of_rows(q.shape[1], length * len(example_keys), least=ROWS):
                p = weights_of(q[n, rows], example_keys, w, hidden, rows)
                of_values.baddbmm_(p.mT, g[n, rows])
                ds = torch.bmm(g[n, rows], example_values.mT).mul_(p)
                ds.addcmul_(p, ds.sum(dim=-1, keepdim=True), value=-1)
                if hidden is not None:
                    ds.masked_fill_(hidden[:, rows], 0.0)  # where g is NaN, too
                dq[n, rows], d_keys, d_w = compute_gradients(ds, q[n, rows], example_keys, w)
                of_keys += d_keys
                dw += d_w
            if hidden is not None:
                of_values.masked_fill_(hidden.all(dim=-2)[..., None], 0.0)
        pairs = zip((dq, dk, dv, dw), given, strict=True)
        return tuple(gradient.reshape(like.shape).to(like.dtype) for gradient, like in pairs)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: tuple[torch.Tensor, ...]) -> None:
        """Keep nothing."""

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> tuple[torch.Tensor, ...]:
        """Refuse."""
        raise RuntimeError(
            "attention by additive scores: no second derivative is known where it is computed in blocks. The plain "
            'formula has all: call backends.torch.kernels.set_path("plain") before the attention is computed.'
        )

    @staticmethod
    def vmap(info: Any, in_dims: tuple[int | None, ...], *arguments: Any) -> tuple[Any, Any]:
        """One call for each position of the axis that torch.func.vmap adds."""
        return map_axis(AveragedGradients, info, in_dims, arguments)


def plain_context(
    queries: torch.Tensor, keys: torch.Tensor, values: torch.Tensor, mask: torch.Tensor | None, w_v: torch.Tensor
) -> torch.Tensor:
    """The context by the plain formula."""
    scores = torch.tanh(queries[..., :, None, :] + keys[..., None, :, :]) @ w_v
    return _attention_pooling(scores, values, mask, None)[0]


def is_unbounded(w_v: torch.Tensor) -> bool:
    """Whether a score may be infinite, and hide its value if it is -inf. With a NaN in w_v all scores are NaN."""
    return float(precise(w_v).abs().sum()) > torch.finfo(w_v.dtype).max / 2


def weights_of(
    q: torch.Tensor, k: torch.Tensor, w: torch.Tensor, hidden: torch.Tensor | None, rows: slice
) -> torch.Tensor:
    """The weights of a block of rows."""
    scores = compute_scores(q, k, w)
    if hidden is None:
        return torch.softmax(scores, dim=-1, out=scores)
    torch.softmax(scores.masked_fill_(hidden[:, rows], -torch.inf), dim=-1, out=scores)
    return scores.masked_fill_(hidden[:, rows], 0.0)  # of a fully masked row, too, which is NaN


def rows_of(q: torch.Tensor) -> int:
    """The elements of a block by rows on the device."""
    return BY_ROWS if q.device.type == "cpu" else BY_ROWS_ELSEWHERE


score_node = torch.library.custom_op("attention_parity::blocked_additive_score", compute_scores, mutates_args=())
gradients_node = torch.library.custom_op(
    "attention_parity::blocked_additive_score_backward", compute_gradients, mutates_args=()
)


@score_node.register_fake
def _(queries: torch.Tensor, keys: torch.Tensor, w_v: torch.Tensor) -> torch.Tensor:
    return queries.new_empty(*queries.shape[:-1], keys.shape[-2])


@gradients_node.register_fake
def _(
    gradient: torch.Tensor, queries: torch.Tensor, keys: torch.Tensor, w_v: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    return queries.new_empty(queries.shape), keys.new_empty(keys.shape), w_v.new_empty(w_v.shape)
