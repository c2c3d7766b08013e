"""Attention to a window of the keys, in MXNet."""

from __future__ import annotations

from typing import Any

import mxnet as mx
from mxnet import np, npx

from attention_core.operators.local import LOCAL_ATTENTION
from backends.mxnet.arrays import Lengths, Offset
from backends.mxnet.attention import Answer, Attention, ScoredAttention, attention_layer
from backends.mxnet.masking import distances, positions, precise
from backends.mxnet.memory import Memory
from backends.mxnet.module import Uniform, draw_mask, initialise, linear, project
from backends.mxnet.pooling import _attention_pooling

__all__ = ["LocalAttention"]


class LocalAttention(ScoredAttention):
    """Attention to a window of keys, around the query's position or around a predicted one.

    weights[i, j] = g[i, j] masked_softmax(scores)[i, j] over open j with |j - p[i]| <= window, context = weights values
    monotonic: p[i] = i + offset, g = 1
    predictive: p[i] = S[i] σ(v_pᵀ tanh(W_p queries[i])), g[i, j] = exp(-2 (j - p[i])²/window²)

    S[i] is the number of keys up to the last one that query i may attend to: its valid length. g is a Gaussian of
    standard deviation window/2, and the weights are not normalised again: predictive ones add up to less than 1.
    `scored` is the layer of score, and hidden_size that of an additive or concat score and of W_p. The scores dot,
    scaled_dot, cosine and gaussian compare features one by one, and need as many in a query as in a key.

    Args:
        query_size: features of a query
        key_size: features of a key
        window: keys on either side of the centre, D
        mode (default 'monotonic'): centre of the window: the query's position, or a predicted one: 'monotonic',
            'predictive'
        score (default 'general'): name of the score: 'dot', 'scaled_dot', 'general', 'additive', 'concat',
            'concat_bias', 'cosine', 'location', 'gaussian'
        hidden_size (default None): features of the hidden layers; query_size if None
        num_positions (default None): number of positions to score, for score='location' only
        dropout (default 0.0): dropout rate of the weights in training
        time_major (default False): whether arrays are (steps, batch, features), without heads
        dtype: floating type of the parameters
        prefix: prefix of the parameters' names in Gluon
        params: a ParameterDict whose parameters are shared
    Parameters:
        W_p: (hidden_size, query_size), projects queries, if predictive
        v_p: (hidden_size,), weight of each hidden feature, if predictive
        scored.*: the attention layer of score, which projects the keys and scores them
    Source: Luong et al. 2015, section 3.2, arXiv:1508.04025
    Example:
        layer = attention.LocalAttention(query_size, key_size, window)
        context, weights = layer(queries, keys, values)
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
        super().__init__(locals())
        hidden_size = self.sizes["hidden_size"]
        with self.name_scope():
            self.scored = attention_layer(self.specification.inside(self.sizes)["scored"], dtype=dtype)
            if mode == "predictive":
                self.W_p = linear(query_size, hidden_size, use_bias=False, dtype=dtype)
                self.v_p = self.params.get("v_p", shape=(hidden_size,), dtype=dtype, init=Uniform(hidden_size**-0.5))
        initialise(self)

    def attend(  # type: ignore[override]
        self,
        queries: np.ndarray,
        memory: Memory,
        *,
        need_weights: bool = True,
        offset: Offset | None = None,
        dropout_mask: np.ndarray | None = None,
    ) -> tuple[np.ndarray, np.ndarray | Any]:
        """Attend with queries to a prepared memory.

        weights[i, j] = g[i, j] masked_softmax(scores)[i, j] over open j with |j - p[i]| <= window, context = weights
        values
        monotonic: p[i] = i + offset, g = 1
        predictive: p[i] = S[i] σ(v_pᵀ tanh(W_p queries[i])), g[i, j] = exp(-2 (j - p[i])²/window²)

        A query that may attend to nothing gets weights and context 0.

        Args:
            queries: (batch, [heads], queries, query_size); query vectors
            memory: as `prepare` returns it
            need_weights (default True): whether to return the weights; if False, they are None and need not be stored
            offset (default None): integers (batch,), a list, or one number; position of the first query among the keys,
                for mode='monotonic'; 0 if None
            dropout_mask (default None): (batch, [heads], queries, keys); factor of each weight
        Returns:
            context: (batch, [heads], queries, value_features); weighted averages of the values
            weights: (batch, [heads], queries, keys); probabilities over the keys; None without need_weights
        Raises:
            OptionError: an offset that would be ignored
        """
        options: dict[str, Any] = {"need_weights": need_weights, "offset": offset, "dropout_mask": dropout_mask}
        self._check("attend", queries=queries, memory=memory, **options)
        return self._attend(queries, memory, **options)

    def __call__(  # type: ignore[override]
        self,
        queries: np.ndarray,
        keys: np.ndarray,
        values: np.ndarray,
        valid_lens: Lengths | None = None,
        mask: np.ndarray | None = None,
        *,
        need_weights: bool = True,
        offset: Offset | None = None,
        dropout_mask: np.ndarray | None = None,
    ) -> tuple[np.ndarray, np.ndarray | Any]:
        """Prepare the keys and values, and attend to them.

        weights[i, j] = g[i, j] masked_softmax(scores)[i, j] over open j with |j - p[i]| <= window, context = weights
        values
        monotonic: p[i] = i + offset, g = 1
        predictive: p[i] = S[i] σ(v_pᵀ tanh(W_p queries[i])), g[i, j] = exp(-2 (j - p[i])²/window²)

        A query that may attend to nothing gets weights and context 0. A key and value that no query may attend to, NaN
        and inf included, have no effect and get gradient 0. Lengths apply to all heads.

        Args:
            queries: (batch, [heads], queries, query_size); query vectors
            keys: (batch, [heads], keys, key_size); key vectors
            values: (batch, [heads], keys, value_features); value vectors, one for each key
            valid_lens (default None): integers (batch, [queries]), or a list; key j is open where j < valid_len
            mask (default None): booleans (batch, [heads], queries, keys), broadcast; True where a query may attend
            need_weights (default True): whether to return the weights; if False, they are None and need not be stored
            offset (default None): integers (batch,), a list, or one number; position of the first query among the keys,
                for mode='monotonic'; 0 if None
            dropout_mask (default None): (batch, [heads], queries, keys); factor of each weight
        Returns:
            context: (batch, [heads], queries, value_features); weighted averages of the values
            weights: (batch, [heads], queries, keys); probabilities over the keys; None without need_weights
        Raises:
            ShapeError: more keys than a location score has positions
            OptionError: an offset that would be ignored
        """
        options: dict[str, Any] = {"need_weights": need_weights, "offset": offset, "dropout_mask": dropout_mask}
        self._check("call", queries=queries, keys=keys, values=values, valid_lens=valid_lens, mask=mask, **options)
        return super(Attention, self).__call__(queries, keys, values, valid_lens, mask, options)  # Gluon's

    def _attend(  # type: ignore[override]
        self,
        queries: np.ndarray,
        memory: Memory,
        *,
        need_weights: bool = True,
        offset: Offset | None = None,
        dropout_mask: np.ndarray | None = None,
    ) -> Answer:
        queries = self._to_batch_first(queries)
        scores = self._score(queries, memory.keys)
        if dropout_mask is None:
            dropout_mask = draw_mask(self.dropout, scores)
        if scores.size == 0:  # over an empty axis, MXNet reads foreign memory or crashes
            context, weights = _attention_pooling(scores, memory.values, None, None)
            return self._to_batch_first(context), weights if need_weights else None
        window, monotonic = self.sizes["window"], self.sizes["mode"] == "monotonic"
        if monotonic:
            distance = distances(scores.shape[-2], scores.shape[-1], offset, scores.ctx)
            distance = distance if scores.ndim == 3 else np.expand_dims(distance, 1)
        else:
            centres = self._centres(queries, memory.mask, scores)
            distance = positions(scores.shape[-1], scores.ctx).astype(centres.dtype) - np.expand_dims(centres, -1)
        allowed = np.broadcast_to(distance * distance <= window**2, scores.shape)
        if memory.mask is not None:
            allowed = allowed * memory.mask
        if monotonic:
            context, weights = _attention_pooling(scores, memory.values, allowed, dropout_mask)
        else:
            distance = distance / window
            near = np.exp(-2.0 * distance * distance)
            near = np.where(allowed, near, np.zeros_like(near)).astype(scores.dtype, copy=False)
            factor = near if dropout_mask is None else near * dropout_mask
            context, weights = _attention_pooling(scores, memory.values, allowed, factor)
            weights = weights * near
        return self._to_batch_first(context), weights if need_weights else None

    def _centres(self, queries: np.ndarray, mask: np.ndarray | None, scores: np.ndarray) -> np.ndarray:
        """The position p that each query predicts, (batch, queries), with heads or without; float32 at least."""
        hidden = npx.activation(project(self.W_p, queries), act_type="tanh")
        share = npx.sigmoid(precise(np.dot(hidden, self.v_p.data(queries.ctx))))
        if mask is None:
            return scores.shape[-1] * share
        places = positions(scores.shape[-1], scores.ctx) + 1.0
        return np.max(places * mask.astype("float64"), axis=-1).astype(share.dtype) * share
