"""Attention with several heads, and how much each of them matters, in MXNet."""

from __future__ import annotations

from collections.abc import Callable
from types import ModuleType

import mxnet as mx
from mxnet import autograd, np

from attention_core.errors import check, check_options, check_per_head
from attention_core.operators.multi_head import ABLATION_IMPORTANCE, MULTI_HEAD_ATTENTION, TAYLOR_IMPORTANCE
from backends.mxnet.attention import Answer, Attention, Memory, Pair, attention_layer, given, pooled, where_seen
from backends.mxnet.masking import attention_mask, positions
from backends.mxnet.module import Sized, drawn_mask, functions, initialise, is_empty, linear, projected

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

    def project(self, keys: np.ndarray) -> np.ndarray:
        """Give each head's part of W_k k + b_k, as the layer of the score projects it."""
        return self.scored.project(self.split(projected(self.W_k, keys)))

    def score(self, queries: np.ndarray, keys: np.ndarray) -> np.ndarray:
        """As the layer of the score, of each head's part of W_q q + b_q."""
        return self.scored.score(self.split(projected(self.W_q, queries)), keys)

    def check_keys(self, num_keys: int) -> None:
        """As the layer of the score."""
        self.scored.check_keys(num_keys)

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
        memory = super().prepare(keys, values, valid_lens, mask)
        return memory._replace(values=self.split(projected(self.W_v, memory.values)))

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
        queries = self.turned(queries)
        if not need_weights and self.takes_context(queries, memory, dropout_mask):
            return self.context(queries, memory, head_mask), None
        context, weights = self.run_heads(self.attended, queries, memory, per_head, head_mask, dropout_mask)
        return context, weights if need_weights else None

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
        memory, queries = self.cleared(keys, values, valid_lens, mask), self.turned(queries)
        if not need_weights and self.takes_context(queries, memory, dropout_mask):
            parts = self.project(memory.keys), self.split(projected(self.W_v, memory.values))
            return self.context(queries, Memory(*parts, memory.mask), head_mask), None
        graph = super(Attention, self).__call__
        context, weights = self.run_heads(graph, queries, memory, per_head, head_mask, dropout_mask)
        return context, weights if need_weights else None

    def hybrid_forward(
        self,
        F: ModuleType,
        queries: np.ndarray,
        keys: np.ndarray,
        values: np.ndarray,
        *others: np.ndarray,
        **parameters: np.ndarray,
    ) -> Pair:
        """The formula of a whole call."""
        return self.attended(queries, self.project(keys), self.split(projected(self.W_v, values)), *others)

    def attended(
        self,
        queries: np.ndarray,
        keys: np.ndarray,
        values: np.ndarray,
        mask: np.ndarray,
        dropout_mask: np.ndarray,
        *others: np.ndarray,
    ) -> Pair:
        """The formula of attend, on arrays or in a graph, with the factor of each head."""
        (factor,), F = others, functions(queries)
        heads, weights = pooled(F, self.score(queries, keys), values, mask, dropout_mask)
        return self.joined(heads * factor), weights

    def inner(self, features: int) -> float | None:
        """As the layer of the score."""
        return self.scored.inner(self.sizes["head_size"])

    def in_blocks(self, queries: np.ndarray, keys: np.ndarray) -> bool:
        """As the layer of the score, of every head."""
        batch, steps, _ = queries.shape
        return self.scored.in_blocks(Sized((batch, self.sizes["heads"], steps, self.sizes["head_size"])), keys)

    def context(self, queries: np.ndarray, memory: Memory, head_mask: np.ndarray | None = None) -> np.ndarray:
        """The context alone, of the heads in blocks."""
        heads = self.scored.context(self.split(projected(self.W_q, queries)), memory)
        return self.turned(self.joined(heads * head_factor(head_mask, queries)))

    def joined(self, heads: np.ndarray) -> np.ndarray:
        """Give W_o [head_0; head_1; ...] + b_o, on arrays or in a graph."""
        F = functions(heads)
        return projected(self.W_o, F.npx.reshape(F.np.swapaxes(heads, 1, 2), (-2, -2, -5)))

    def run_heads(
        self,
        formula: Callable[..., Pair],
        queries: np.ndarray,
        memory: Memory,
        per_head: bool,
        head_mask: np.ndarray | None,
        dropout_mask: np.ndarray | None,
    ) -> Pair:
        """The formula with all its arguments, of which MXNet's operators do not survive empty ones."""
        like = {"dtype": queries.dtype, "ctx": queries.ctx}
        (batch, steps, _), keys, heads = queries.shape, memory.keys.shape[-2], self.sizes["heads"]
        shape = (batch, heads, steps, keys)
        if 0 in shape:
            context = projected(self.W_o, np.zeros((batch, steps, self.sizes["hidden_size"]), **like))
            weights = np.zeros(shape if per_head else (batch, steps, keys), **like)
            return self.turned(context), weights
        if dropout_mask is None:
            dropout_mask = drawn_mask(self.dropout, shape, queries)
        factor = head_factor(head_mask, queries)
        masks = given(memory.mask, dropout_mask, memory.values)
        context, weights = formula(queries, memory.keys, memory.values, *masks, factor)
        return self.turned(context), weights if per_head else np.mean(weights, axis=1)

    def cleared(
        self, keys: np.ndarray, values: np.ndarray, valid_lens: np.ndarray | None, mask: np.ndarray | None
    ) -> Memory:
        """The memory before it is projected, with what is hidden from all queries and heads cleared."""
        keys, values = self.turned(keys), self.turned(values)
        self.check_keys(keys.shape[-2])
        allowed = attention_mask(keys.shape[-2], valid_lens, mask)
        if allowed is None:
            return Memory(keys, values, None)
        if allowed.ndim == 3:
            allowed = allowed[:, None]
        seen = np.expand_dims(np.any(np.any(allowed, axis=-2), axis=-2), -1)
        return Memory(where_seen(seen, keys), where_seen(seen, values), allowed)

    def split(self, array: np.ndarray) -> np.ndarray:
        """(batch, steps, hidden_size) as (batch, heads, steps, features of a head), on arrays or in a graph."""
        heads, size = self.sizes["heads"], self.sizes["head_size"]
        if is_empty(array):
            batch, steps, _ = array.shape
            return np.zeros((batch, heads, steps, size), dtype=array.dtype, ctx=array.ctx)
        F = functions(array)
        return F.np.swapaxes(F.npx.reshape(array, (-2, -2, -6, heads, size)), 1, 2)


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


def head_factor(head_mask: np.ndarray | None, like: np.ndarray) -> np.ndarray:
    """The factor of each head, (batch or 1, heads or 1, 1, 1)."""
    if head_mask is None:
        head_mask = np.ones((1,), dtype=like.dtype, ctx=like.ctx)
    return head_mask.reshape(-1, head_mask.shape[-1], 1, 1)
