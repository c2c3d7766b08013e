"""Attention to a window of the keys, in MXNet."""

from __future__ import annotations

import mxnet as mx
from mxnet import np

from attention_core.errors import check, check_offset, check_options, dtype_name
from attention_core.operators.local import LOCAL_ATTENTION
from backends.mxnet.attention import Answer, Attention, Memory, Pair, attention_layer, pooled
from backends.mxnet.masking import positions
from backends.mxnet.module import Uniform, functions, held, initialise, linear, projected, wide, wide_name

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
        self.window, self.predictive = window, mode == "predictive"
        hidden_size = self.sizes["hidden_size"]
        with self.name_scope():
            self.scored = attention_layer(self.specification.inside(self.sizes)["scored"], dtype=dtype)
            if self.predictive:
                self.W_p = linear(query_size, hidden_size, use_bias=False, dtype=dtype)
                self.v_p = self.params.get("v_p", shape=(hidden_size,), dtype=dtype, init=Uniform(hidden_size**-0.5))
        initialise(self)

    def project(self, keys: np.ndarray) -> np.ndarray:
        """As the layer of the score."""
        return self.scored.project(keys)

    def score(self, queries: np.ndarray, keys: np.ndarray) -> np.ndarray:
        """As the layer of the score."""
        return self.scored.score(queries, keys)

    def check_keys(self, num_keys: int) -> None:
        """As the layer of the score."""
        self.scored.check_keys(num_keys)

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
        queries = self.turned(queries)
        places = self.places(queries, memory, offset)
        context, weights = self.run(self.attended, queries, memory, dropout_mask, *places)
        return context, weights if need_weights else None

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
        memory, queries = self.cleared(keys, values, valid_lens, mask), self.turned(queries)
        check_offset(self.specification.name, self.sizes["mode"], offset)
        places = self.places(queries, memory, offset)
        context, weights = self.run(super(Attention, self).__call__, queries, memory, dropout_mask, *places)
        return context, weights if need_weights else None

    def attended(
        self,
        queries: np.ndarray,
        keys: np.ndarray,
        values: np.ndarray,
        mask: np.ndarray,
        dropout_mask: np.ndarray,
        *others: np.ndarray,
    ) -> Pair:
        """The formula of attend, on arrays or in a graph, with what places gives."""
        place, middle = others
        F, scores = functions(queries), self.score(queries, keys)
        if self.predictive:
            hidden = F.npx.activation(projected(self.W_p, queries), act_type="tanh")
            middle = middle * F.npx.sigmoid(wide(self.dtype, F.np.dot(hidden, held(self.v_p, queries))))
        distance = place - F.np.expand_dims(middle, -1)
        mask = mask * (distance * distance <= self.window**2)
        if not self.predictive:
            return pooled(F, scores, values, mask, dropout_mask)
        distance = distance / self.window
        near = F.np.exp(-2.0 * distance * distance)
        near = F.np.where(mask, near, F.np.zeros_like(near)).astype(dtype_name(self.dtype))
        context, weights = pooled(F, scores, values, mask, near * dropout_mask)
        return context, weights * near

    def places(self, queries: np.ndarray, memory: Memory, offset: np.ndarray | None) -> Pair:
        """The position of each key; and that of each query, or, if predictive, behind the last key it may attend to."""
        dtype = wide_name(self.dtype) if self.predictive else "float64"
        (*lead, steps, _), keys = queries.shape, memory.keys.shape[-2]
        place = positions(keys, queries.ctx)
        if not self.predictive:
            middle = positions(steps, queries.ctx).reshape(*[1] * len(lead), steps)
            if offset is not None:  # for each sequence, which heads follow where there are some
                middle = middle + offset.astype("float64").reshape(-1, *[1] * len(lead))
        elif memory.mask is None or keys == 0:
            middle = np.full([1] * (queries.ndim - 1), keys, dtype="float64", ctx=queries.ctx)
        else:
            middle = np.max((place + 1.0) * memory.mask.astype("float64"), axis=-1)
        return place.astype(dtype), middle.astype(dtype)
