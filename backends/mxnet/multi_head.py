"""Attention with several heads, and how much each of them matters, in MXNet."""

from __future__ import annotations

from collections.abc import Callable

import mxnet as mx
from mxnet import autograd, np

from attention_core.errors import check, check_options, check_per_head
from attention_core.operators.multi_head import ABLATION_IMPORTANCE, MULTI_HEAD_ATTENTION, TAYLOR_IMPORTANCE
from backends.mxnet.attention import Answer, Attention, Memory, attention_layer
from backends.mxnet.masking import attention_mask, positions
from backends.mxnet.module import initialise, linear, projected
from backends.mxnet.pooling import shown

__all__ = ["MultiHeadAttention", "ablation_importance", "taylor_importance"]


class MultiHeadAttention(Attention):
    """Attention by several heads at once, each with its own projections.

    context = W_o [head_0; head_1; ...] + b_o;  head_h, weights_h = attention(queries_h, keys_h, values_h), with
    queries_h the h-th part of W_q queries + b_q, keys_h of W_k keys + b_k, values_h of W_v values + b_v

    Shapes: queries (batch, queries, query_size), keys (batch, keys, key_size), values (batch, keys, value_size), or
    steps before batch with time_major; head_mask (heads,) or (batch, heads); returns (context, weights): the shape of
    queries, and (batch, queries, keys), or (batch, heads, queries, keys) with per_head.
    """

    specification = MULTI_HEAD_ATTENTION

    def __init__(
        self,
        query_size: int,
        num_heads: int,
        *,
        key_size: int | None = None,
        value_size: int | None = None,
        hidden_size: int | None = None,
        score: str = "scaled_dot",
        num_positions: int | None = None,
        bias: bool = True,
        dropout: float = 0.0,
        time_major: bool = False,
        dtype: str = "float32",
        prefix: str | None = None,
        params: mx.gluon.ParameterDict | None = None,
    ) -> None:
        super().__init__(
            prefix,
            params,
            query_size=query_size,
            num_heads=num_heads,
            key_size=key_size,
            value_size=value_size,
            hidden_size=hidden_size,
            score=score,
            num_positions=num_positions,
            bias=bias,
            dropout=dropout,
            time_major=time_major,
        )
        hidden_size = self.sizes["hidden_size"]
        with self.name_scope():
            self.W_q = linear(query_size, hidden_size, use_bias=bias, dtype=dtype)
            self.W_k = linear(self.sizes["key_size"], hidden_size, use_bias=bias, dtype=dtype)
            self.W_v = linear(self.sizes["value_size"], hidden_size, use_bias=bias, dtype=dtype)
            self.W_o = linear(hidden_size, query_size, use_bias=bias, dtype=dtype)
            self.scored = attention_layer(self.specification.inside(self.sizes)["scored"], dtype=dtype)
        initialise(self)

    def prepare(
        self,
        keys: np.ndarray,
        values: np.ndarray,
        valid_lens: np.ndarray | None = None,
        mask: np.ndarray | None = None,
    ) -> Memory:
        """Project the keys and values of every head, and keep them for many queries.

        memory = (projected keys, projected values, mask), of keys and values 0 where hidden from all

        Shapes: the mask with heads after batch or without; the memory's keys and values are
        (batch, heads, keys, features of a head), its mask (batch, heads or 1, queries, keys).
        """
        check(
            self.methods["prepare"],
            self.sizes,
            self.dtype,
            keys=keys,
            values=values,
            valid_lens=valid_lens,
            mask=mask,
        )
        keys, values = self.to_batch_first(keys), self.to_batch_first(values)
        self.scored.check_keys(keys.shape[-2])
        allowed = attention_mask(keys.shape[-2], valid_lens, mask)
        if allowed is not None:
            if allowed.ndim == 3:
                allowed = allowed[:, None]
            seen = np.expand_dims(np.any(np.any(allowed, axis=-2), axis=-2), -1)
            keys, values = shown(seen, keys), shown(seen, values)
        keys, values = self.split(projected(self.W_k, keys)), self.split(projected(self.W_v, values))
        return Memory(self.scored.project(keys), values, allowed)

    def attend(
        self,
        queries: np.ndarray,
        memory: Memory,
        *,
        per_head: bool = False,
        need_weights: bool = True,
        head_mask: np.ndarray | None = None,
        dropout_mask: np.ndarray | None = None,
    ) -> Answer:
        """Attend with queries to a prepared memory.

        context = W_o [head_0; head_1; ...] + b_o;  head_h, weights_h = attention(queries_h, keys_h, values_h)

        Shapes: queries (batch, queries, query_size), or (queries, batch, query_size) with time_major, as is context
        then; head_mask (heads,) or (batch, heads); dropout_mask (batch, heads, queries, keys).
        """
        check_options(self.methods["attend"], per_head=per_head, need_weights=need_weights)
        check_per_head(self.specification.name, per_head, need_weights)
        check(
            self.methods["attend"],
            self.sizes,
            self.dtype,
            queries=queries,
            memory=memory,
            head_mask=head_mask,
            dropout_mask=dropout_mask,
        )
        queries = self.split(projected(self.W_q, self.to_batch_first(queries)))
        heads, weights = self.pooled(self.scored, queries, memory, dropout_mask)
        if head_mask is not None:
            heads = heads * head_mask.reshape(-1, head_mask.shape[-1], 1, 1)
        context = self.to_batch_first(projected(self.W_o, self.joined(heads)))
        if not need_weights:
            return context, None
        return context, weights if per_head else mean_of_heads(weights)

    def __call__(
        self,
        queries: np.ndarray,
        keys: np.ndarray,
        values: np.ndarray,
        valid_lens: np.ndarray | None = None,
        mask: np.ndarray | None = None,
        *,
        per_head: bool = False,
        need_weights: bool = True,
        head_mask: np.ndarray | None = None,
        dropout_mask: np.ndarray | None = None,
    ) -> Answer:
        """Prepare the keys and values, and attend to them."""
        check_options(self.methods["call"], per_head=per_head, need_weights=need_weights)
        check_per_head(self.specification.name, per_head, need_weights)
        check(
            self.methods["call"],
            self.sizes,
            self.dtype,
            queries=queries,
            keys=keys,
            values=values,
            valid_lens=valid_lens,
            mask=mask,
            head_mask=head_mask,
            dropout_mask=dropout_mask,
        )
        given = queries, keys, values, valid_lens, mask, dropout_mask, head_mask, per_head
        context, weights = super(Attention, self).__call__(*given)
        return context, weights if need_weights else None

    def forward(
        self,
        queries: np.ndarray,
        keys: np.ndarray,
        values: np.ndarray,
        valid_lens: np.ndarray | None,
        mask: np.ndarray | None,
        dropout_mask: np.ndarray | None,
        head_mask: np.ndarray | None = None,
        per_head: bool = False,
    ) -> Answer:
        """Prepare the keys and values, and attend to them; Gluon enters here."""
        memory = self.prepare(keys, values, valid_lens, mask)
        return self.attend(queries, memory, per_head=per_head, head_mask=head_mask, dropout_mask=dropout_mask)

    def split(self, array: np.ndarray) -> np.ndarray:
        """(batch, steps, hidden_size) as (batch, heads, steps, features of a head)."""
        (batch, steps, _), heads, size = array.shape, self.sizes["heads"], self.sizes["head_size"]
        if array.size == 0:  # MXNet does not reshape it
            return np.zeros((batch, heads, steps, size), dtype=array.dtype, ctx=array.ctx)
        return np.swapaxes(array.reshape(batch, steps, heads, size), 1, 2)

    def joined(self, heads: np.ndarray) -> np.ndarray:
        """(batch, heads, steps, features of a head) as (batch, steps, hidden_size)."""
        shape = (heads.shape[0], heads.shape[2], self.sizes["hidden_size"])
        if heads.size == 0:
            return np.zeros(shape, dtype=heads.dtype, ctx=heads.ctx)
        return np.swapaxes(heads, 1, 2).reshape(shape)


Losses = Callable[[np.ndarray], np.ndarray]


def ablation_importance(losses: Losses, head_mask: np.ndarray) -> np.ndarray:
    """How much the loss rises when a head is switched off, for each head.

    importance[h] = mean over b of losses(head_mask with head h at 0)[b] - losses(head_mask)[b]

    Shapes: losses from head_mask (batch, heads), 1 for a head that is on, to (batch,); the result (heads,).
    """
    check_options(ABLATION_IMPORTANCE, losses=losses)
    check(ABLATION_IMPORTANCE, head_mask=head_mask)
    whole, heads = losses(head_mask), positions(head_mask.shape[-1], head_mask.ctx)
    zeros = np.zeros_like(head_mask)
    rises = [(losses(np.where(heads == head, zeros, head_mask)) - whole).mean() for head in range(heads.size)]
    return np.stack(rises) if rises else np.zeros((0,), dtype=head_mask.dtype, ctx=head_mask.ctx)


def taylor_importance(losses: Losses, head_mask: np.ndarray) -> np.ndarray:
    """How much the loss would change to first order if a head were switched off, for each head.

    importance[h] = mean over b of |head_mask[b, h] d losses(head_mask)[b] / d head_mask[b, h]|

    Shapes: losses from head_mask (batch, heads), 1 for a head that is on, to (batch,), an example's loss depending on
    its own row alone; the result (heads,).
    """
    check_options(TAYLOR_IMPORTANCE, losses=losses)
    check(TAYLOR_IMPORTANCE, head_mask=head_mask)
    factors = head_mask.detach()
    factors.attach_grad()
    with autograd.record(train_mode=autograd.is_training()):
        # MXNet refuses to differentiate what does not depend on the factors: adding 0 times them makes it depend.
        total = losses(factors).sum() + 0.0 * factors.sum()
    (slopes,) = autograd.grad(total, [factors], train_mode=autograd.is_training())
    with autograd.pause():
        return np.abs(factors * slopes.as_np_ndarray()).mean(axis=0)


def mean_of_heads(weights: np.ndarray) -> np.ndarray:
    """The mean over the heads, of which no axis may be empty in MXNet."""
    if weights.size == 0:
        return np.zeros((weights.shape[0], *weights.shape[2:]), dtype=weights.dtype, ctx=weights.ctx)
    return np.mean(weights, axis=1)
