"""Additive scores in PyTorch without the (batch, queries, keys, hidden_size) array.

Of r = σ(2(q + k)) the plain formula is made: tanh(q + k) = 2r - 1, and tanh' = 1 - tanh² = 4r(1 - r). With g the
gradient of the scores and w = w_v:

    scores[i, j] = sum over h of w[h] (2 r[i, j, h] - 1)
    dq[i, h] = 4 w[h] sum over j of g[i, j] r(1 - r);  dk[j, h] = 4 w[h] sum over i of g[i, j] r(1 - r)
    dw[h] = sum over i and j of g[i, j] (2r - 1)

Only queries, keys and w_v are kept for the backward, which computes each block of r again.

By features, of which there is one (queries, keys) array at a time: with a = exp(-2q) of each query and c = exp(-2k) of
each key, r = 1/x for x = 1 + a c, so that an element costs a multiply-add and a division, and no exponential.
r(1 - r) = a c / x², so y = g/x² gives all three gradients by products with a vector:

    dq = 4 w a (y c);  dk = 4 w c (aᵀ y);  dw = 2 (sum of y + a · (y c)) - sum of g

By rows, of which a block is (queries, keys, hidden_size): r is PyTorch's sigmoid, which holds for all numbers.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import Any

import torch

from attention_core.errors import OptionError

__all__ = ["takes_blocks", "force", "blocked_additive_score"]

LEAST = 2**19
"""The number of elements, batch · heads · queries · keys · hidden_size, from which on blocks are faster on a CPU."""

BOUND = {torch.float32: 20.0, torch.float64: 160.0}
"""How large projections may be for exponentials: far enough from overflow for sums of them, and of their products with
gradients. tanh is 1 to the last bit from 9.1 in float32, and from 19.1 in float64, on."""

QUERIES, SCORES = 8, 2**15
"""The number of queries, and of scores, from which on features are faster than rows."""

GROUP = 32
"""The number of features that are added up by themselves, so that rounding grows with the number of groups."""

BY_FEATURES, BY_ROWS = 2**18, 2**17
"""The elements of a block on a CPU: what stays in its cache, and is worth the cost of a call."""

BY_ROWS_ELSEWHERE = 2**26
"""The elements of a block on other devices."""

PATHS = ("blocked", "plain", None)
VARIABLE = "ATTENTION_PARITY_PATH"


def takes_blocks(queries: torch.Tensor, keys: torch.Tensor) -> bool:
    """Whether additive_score is computed in blocks: from LEAST elements on, or as `force` says.

    elements = batch · heads · queries · keys · hidden_size

    Only sizes are looked at, so that nothing waits for a device, and a compiled function is specialised to its sizes.
    """
    if forced is not None:
        return forced == "blocked"
    return queries.numel() * keys.shape[-2] >= LEAST


def force(path: str | None) -> None:
    """Take one path for all sizes, "blocked" or "plain", or let the sizes choose: None.

    For the whole process. It begins as the environment variable ATTENTION_PARITY_PATH says at the import, and without
    one as None. A function of torch.compile is compiled again where this changes.

    Raises: OptionError.
    """
    global forced
    if path not in PATHS:
        raise OptionError(f"force: path is {path!r}, expected 'blocked', 'plain' or None.")
    forced = path


forced: str | None = None
force(os.environ.get(VARIABLE))


def blocked_additive_score(queries: torch.Tensor, keys: torch.Tensor, w_v: torch.Tensor) -> torch.Tensor:
    """The numbers of additive_score, block by block; the derivation is the module's.

    Memory: that of the scores, of the exponentials of queries and keys, and of one block. float16 and bfloat16 are
    computed in float32. torch.compile takes score and gradients as one node each; torch.func maps and differentiates
    them. It has first derivatives, in reverse mode; others raise RuntimeError, where `force("plain")`
    has them.
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
            'call backends.torch.blocked.force("plain") before the score is computed.'
        )

    @staticmethod
    def vmap(info: Any, in_dims: tuple[int | None, ...], *arguments: torch.Tensor) -> tuple[Any, Any]:
        """One call for each position of the axis that torch.func.vmap adds."""
        found = zip(*(Gradients.apply(*given) for given in along(info, in_dims, arguments)), strict=True)
        return tuple(torch.stack(own) for own in found), (0, 0, 0)


def scored(queries: torch.Tensor, keys: torch.Tensor, w_v: torch.Tensor) -> torch.Tensor:
    q, k, w = flat(queries), flat(keys), precise(w_v)
    scores = q.new_zeros(q.shape[0], q.shape[1], k.shape[1])
    if q.numel() and k.numel():
        kernel = scores_by_features if takes_exponentials(q, k) else scores_by_rows
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
        kernel = gradients_by_features if takes_exponentials(q, k) else gradients_by_rows
        kernel(g, q, k, w, dq, dk, dw)
    found = ((dq, queries), (dk, keys), (dw, w_v))
    dq, dk, dw = (own.reshape(given.shape).to(given.dtype) for own, given in found)
    return dq, dk, dw


def scores_by_features(q: torch.Tensor, k: torch.Tensor, w: torch.Tensor, scores: torch.Tensor) -> None:
    """Add 2w/x - w to the scores, feature by feature, GROUP of them in an array of their own."""
    a, c, ones = by_feature(-2 * q), by_feature(-2 * k), k.new_ones(k.shape[1])
    doubled = [group.unbind() for group in (2 * w).split(GROUP)]
    starts = [-group.sum() for group in w.split(GROUP)]
    for n, rows in blocks(scores, BY_FEATURES):
        total = scores[n, rows]
        x, part = torch.empty_like(total), torch.empty_like(total)
        columns = a[:, n, rows, None].split(GROUP), c[:, n, None].split(GROUP)
        for start, factors, *exponentials in zip(starts, doubled, *columns, strict=True):
            part.copy_(start)
            for factor, own, other in zip(factors, *(group.unbind() for group in exponentials), strict=True):
                torch.addcmul(ones, own, other, out=x)
                part.addcdiv_(factor, x)
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
    a, c, ones = by_feature(-2 * q), by_feature(-2 * k), k.new_ones(k.shape[1])
    of_keys = torch.zeros_like(c)
    for n, rows in blocks(g, BY_FEATURES):
        given, own, other = g[n, rows].contiguous(), a[:, n, rows], c[:, n]
        y, sums = torch.empty_like(given), own.new_empty(len(own))
        by_query, by_key = torch.empty_like(own), torch.empty_like(other)
        vectors = own.unbind(), other.unbind(), by_query.unbind(), by_key.unbind(), sums.unbind()
        for own_h, other_h, by_query_h, by_key_h, sum_h in zip(*vectors, strict=True):
            torch.addcmul(ones, own_h[:, :, None], other_h[:, None], out=y)
            torch.div(given, y.mul_(y), out=y)
            torch.bmm(y, other_h[:, :, None], out=by_query_h[:, :, None])
            torch.bmm(own_h[:, None], y, out=by_key_h[:, None])
            torch.sum(y, dim=(0, 1, 2), out=sum_h)
        by_query *= own
        dw += sums + by_query.sum(dim=(1, 2))
        dq[n, rows] = by_query.permute(1, 2, 0)
        of_keys[:, n] += by_key
    dw.mul_(2).sub_(g.sum())
    dq *= 4 * w
    torch.mul((of_keys * c).permute(1, 2, 0), 4 * w, out=dk)


def scores_by_rows(q: torch.Tensor, k: torch.Tensor, w: torch.Tensor, scores: torch.Tensor) -> None:
    """Set the scores to w · (2r - 1), block by block."""
    for n, rows in blocks(scores, rows_of(q), width=len(w)):
        scores[n, rows] = sigmoids(q[n, rows], k[n]) @ (2 * w)
    scores -= w.sum()


def gradients_by_rows(
    g: torch.Tensor,
    q: torch.Tensor,
    k: torch.Tensor,
    w: torch.Tensor,
    dq: torch.Tensor,
    dk: torch.Tensor,
    dw: torch.Tensor,
) -> None:
    """Set dq, dk and dw, block by block, from r(1 - r)."""
    for n, rows in blocks(g, rows_of(q), width=len(w)):
        r, given = sigmoids(q[n, rows], k[n]), g[n, rows]
        dw += given.flatten() @ r.flatten(0, -2)
        r.addcmul_(r, r, value=-1)
        dq[n, rows] = (given[:, :, None] @ r)[:, :, 0]
        products = zip(r.unbind(1), given[..., None].unbind(1), strict=True)
        if rows.start == 0:
            torch.mul(*next(products), out=dk[n])
        for own, factor in products:
            dk[n].addcmul_(own, factor)
    dw.mul_(2).sub_(g.sum())
    dq *= 4 * w
    dk *= 4 * w


def sigmoids(q: torch.Tensor, k: torch.Tensor) -> torch.Tensor:
    """σ(2(q + k)) of each query and each key."""
    return torch.add(2 * q[:, :, None], k[:, None], alpha=2).sigmoid_()


def takes_exponentials(q: torch.Tensor, k: torch.Tensor) -> bool:
    """Whether to go by features: where there are enough queries and keys, and exponentials hold; of a NaN they do not.

    On a CPU alone: elsewhere the range would have to be waited for, and a sigmoid costs no more than a division. Where
    blocks are forced, two queries are enough, so that small cases see both ways.
    """
    _, queries, _ = q.shape
    enough = queries > 1 if forced == "blocked" else queries >= QUERIES and q.shape[0] * queries * k.shape[1] >= SCORES
    if q.device.type != "cpu" or not enough:
        return False
    bound = BOUND[q.dtype]
    return bool(q.abs().max() <= bound) and bool(k.abs().max() <= bound)


def precise(tensor: torch.Tensor) -> torch.Tensor:
    """The tensor in float32 at least."""
    return tensor.to(torch.promote_types(tensor.dtype, torch.float32))


def flat(tensor: torch.Tensor) -> torch.Tensor:
    """The tensor in float32 at least, with batch and heads as one axis."""
    return precise(tensor).flatten(0, -3)


def by_feature(exponents: torch.Tensor) -> torch.Tensor:
    """The exponentials, as (hidden_size, batch, positions)."""
    return exponents.exp_().permute(2, 0, 1).contiguous()


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
