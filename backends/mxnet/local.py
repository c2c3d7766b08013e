"""Attention to a window of the keys, in MXNet."""

from __future__ import annotations

import mxnet as mx
from mxnet import np, npx

from attention_core.errors import check, check_offset, check_options
from attention_core.operators.local import LOCAL_ATTENTION
from backends.mxnet.attention import Answer, Attention, Memory, attention_layer
from backends.mxnet.masking import positions, precise
from backends.mxnet.module import Uniform, drawn_mask, initialise, linear, projected
from backends.mxnet.pooling import attention_pooling

__all__ = ["LocalAttention"]


class LocalAttention(Attention):
    """Attention to a window of keys, around the query's own position or around one that it predicts.

    weights[i, j] = g[i, j] masked_softmax(scores)[i, j] over open j with |j - p[i]| <= window, context = weights values
    monotonic:  p[i] = i + offset, g = 1
    predictive: p[i] = S[i] σ(v_pᵀ tanh(W_p queries[i])), g[i, j] = exp(-2 (j - p[i])²/window²)

    S is the number of keys up to the last that the query may attend to: its valid length. g is a Gaussian of standard
    deviation window/2, and the weights are not normalised again: predictive ones add up to less than 1.

    Shapes: queries (batch, queries, query_size), keys (batch, keys, key_size), values (batch, keys, value_features),
    all with heads after batch or without, or steps before batch with time_major; offset (batch,); returns
    (context, weights).
    """

    specification = LOCAL_ATTENTION

    def __init__(
        self,
        query_size: int,
        key_size: int,
        window: int,
        *,
        mode: str = "monotonic",
        score: str = "general",
        hidden_size: int | None = None,
        num_positions: int | None = None,
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
            key_size=key_size,
            window=window,
            mode=mode,
            score=score,
            hidden_size=hidden_size,
            num_positions=num_positions,
            dropout=dropout,
            time_major=time_major,
        )
        hidden_size = self.sizes["hidden_size"]
        with self.name_scope():
            self.scored = attention_layer(self.specification.inside(self.sizes)["scored"], dtype=dtype)
            if mode == "predictive":
                self.W_p = linear(query_size, hidden_size, use_bias=False, dtype=dtype)
                self.v_p = self.params.get("v_p", shape=(hidden_size,), dtype=dtype, init=Uniform(hidden_size**-0.5))
        initialise(self)

    def project(self, keys: np.ndarray) -> np.ndarray:
        """As the layer of the score."""
        return self.scored.project(keys)

    def score(self, queries: np.ndarray, keys: np.ndarray) -> np.ndarray:
        """As the layer of the score."""
        return self.scored.score(queries, keys)

    def attend(
        self,
        queries: np.ndarray,
        memory: Memory,
        *,
        need_weights: bool = True,
        offset: np.ndarray | None = None,
        dropout_mask: np.ndarray | None = None,
    ) -> Answer:
        """Attend with queries to a prepared memory.

        weights[i, j] = g[i, j] masked_softmax(scores)[i, j] over open j with |j - p[i]| <= window

        Shapes: as Attention.attend; offset (batch,), 0 unless given, for mode="monotonic" alone.
        """
        check_options(self.methods["attend"], need_weights=need_weights)
        check(
            self.methods["attend"],
            self.sizes,
            self.dtype,
            queries=queries,
            memory=memory,
            offset=offset,
            dropout_mask=dropout_mask,
        )
        check_offset(self.specification.name, self.sizes["mode"], offset)
        queries = self.to_batch_first(queries)
        scores = self.score(queries, memory.keys)
        if dropout_mask is None:
            dropout_mask = drawn_mask(self.dropout, scores.shape, scores)
        if scores.size == 0:
            context, weights = attention_pooling(scores, memory.values)
            return self.to_batch_first(context), weights if need_weights else None
        window, monotonic = self.sizes["window"], self.sizes["mode"] == "monotonic"
        centres = self.own_positions(scores, offset) if monotonic else self.centres(queries, memory.mask, scores)
        distance = positions(scores.shape[-1], scores.ctx).astype(centres.dtype) - np.expand_dims(centres, -1)
        allowed = np.broadcast_to(distance * distance <= window**2, scores.shape)
        if memory.mask is not None:
            allowed = allowed * memory.mask
        if monotonic:
            context, weights = attention_pooling(scores, memory.values, mask=allowed, dropout_mask=dropout_mask)
        else:
            distance = distance / window
            near = np.exp(-2.0 * distance * distance)
            near = np.where(allowed, near, np.zeros_like(near)).astype(scores.dtype, copy=False)
            factor = near if dropout_mask is None else near * dropout_mask
            context, weights = attention_pooling(scores, memory.values, mask=allowed, dropout_mask=factor)
            weights = weights * near
        return self.to_batch_first(context), weights if need_weights else None

    def __call__(
        self,
        queries: np.ndarray,
        keys: np.ndarray,
        values: np.ndarray,
        valid_lens: np.ndarray | None = None,
        mask: np.ndarray | None = None,
        *,
        need_weights: bool = True,
        offset: np.ndarray | None = None,
        dropout_mask: np.ndarray | None = None,
    ) -> Answer:
        """Prepare the keys and values, and attend to them."""
        check_options(self.methods["call"], need_weights=need_weights)
        check(
            self.methods["call"],
            self.sizes,
            self.dtype,
            queries=queries,
            keys=keys,
            values=values,
            valid_lens=valid_lens,
            mask=mask,
            offset=offset,
            dropout_mask=dropout_mask,
        )
        given = queries, keys, values, valid_lens, mask, dropout_mask, offset
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
        offset: np.ndarray | None = None,
    ) -> Answer:
        """Prepare the keys and values, and attend to them; Gluon enters here."""
        memory = self.prepare(keys, values, valid_lens, mask)
        return self.attend(queries, memory, offset=offset, dropout_mask=dropout_mask)

    def check_keys(self, num_keys: int) -> None:
        """As the layer of the score."""
        self.scored.check_keys(num_keys)

    def own_positions(self, scores: np.ndarray, offset: np.ndarray | None) -> np.ndarray:
        """The position of each query, (batch or 1, queries), with heads or without, in float64, which is exact."""
        steps, ones = scores.shape[-2], [1] * (scores.ndim - 2)
        own = positions(steps, scores.ctx).reshape(*ones, steps)
        # For each sequence, which heads follow where there are some.
        return own if offset is None else own + offset.astype("float64").reshape(-1, *ones)

    def centres(self, queries: np.ndarray, mask: np.ndarray | None, scores: np.ndarray) -> np.ndarray:
        """The position p that each query predicts, (batch, queries), with heads or without; float32 at least."""
        hidden = npx.activation(projected(self.W_p, queries), act_type="tanh")
        share = npx.sigmoid(precise(np.dot(hidden, self.v_p.data(queries.ctx))))
        if mask is None:
            return scores.shape[-1] * share
        places = positions(scores.shape[-1], scores.ctx) + 1.0
        return np.max(places * mask.astype("float64"), axis=-1).astype(share.dtype) * share
