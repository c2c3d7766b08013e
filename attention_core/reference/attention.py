"""Trainable attention layers: prepare keys and values once, attend many times."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from attention_core.operators.attention import (
    ADDITIVE_ATTENTION,
    CONCAT_ATTENTION,
    COSINE_ATTENTION,
    DOT_PRODUCT_ATTENTION,
    GENERAL_ATTENTION,
    KERNEL_ATTENTION,
    LOCATION_ATTENTION,
)
from attention_core.reference.arrays import Specified, inner, linear, promote
from attention_core.reference.masking import add_bias, open_keys
from attention_core.reference.memory import Memory, extend_memory, zero_masked
from attention_core.reference.pooling import for_each_head, pool
from attention_core.reference.scoring import (
    additive_score,
    cosine_score,
    dot_score,
    gaussian_score,
    location_score,
    scaled_dot_score,
)
from attention_core.specification import Layer, Part

__all__ = [
    "DotProductAttention",
    "AdditiveAttention",
    "GeneralAttention",
    "ConcatAttention",
    "CosineAttention",
    "LocationAttention",
    "KernelAttention",
]


class Attention(Specified):
    """Base class of the attention layers: prepare, attend and a call, around one score.

    context, weights = attention_pooling(score(queries, project(keys)), values)
    """

    def _prepare(
        self,
        keys: np.ndarray,
        values: np.ndarray,
        valid_lens: np.ndarray | None,
        mask: np.ndarray | None,
        position: np.ndarray | None = None,
    ) -> Memory:
        """Prepare keys, the first at `position`, which only rotary positions read."""
        memory = zero_masked(
            self._to_batch_first(promote(keys)), self._to_batch_first(promote(values)), valid_lens, mask
        )
        return memory._replace(keys=self._project(memory.keys))

    def _project(self, keys: np.ndarray) -> np.ndarray:
        """Project the keys; the identity by default."""
        return keys

    def _score(self, queries: np.ndarray, keys: np.ndarray) -> np.ndarray:
        """The score of each query against each projected key."""
        raise NotImplementedError

    def prepare(
        self,
        keys: np.ndarray,
        values: np.ndarray,
        valid_lens: np.ndarray | None = None,
        mask: np.ndarray | None = None,
    ) -> Memory:
        """Project the keys and zero what no query may attend to, once for many queries.

        memory = (projected keys, values, mask), with keys and values 0 where no query may attend
        """
        self._check("prepare", keys=keys, values=values, valid_lens=valid_lens, mask=mask)
        return self._prepare(keys, values, valid_lens, mask)

    def extend(
        self,
        memory: Memory,
        keys: np.ndarray,
        values: np.ndarray,
        valid_lens: np.ndarray | None = None,
        mask: np.ndarray | None = None,
        *,
        position: np.ndarray | None = None,
    ) -> Memory:
        """Add the keys and values of further steps to a prepared memory.

        memory' = [memory; steps], with steps = prepare(keys, values, valid_lens, mask)
        with position, memory'[b, position[b] + t] = steps[b, t], and memory'[b, j] = memory[b, j] at every other key j

        A key of the memory that any query could attend to is open to all later ones. With position, the memory keeps
        its number of keys, as compilers need it: prepare one with hidden keys as room, whose valid_lens are the first
        position. A step before the first key (position may be negative) or beyond the last is left out.
        """
        self._check(
            "extend", memory=memory, keys=keys, values=values, valid_lens=valid_lens, mask=mask, position=position
        )
        first = np.array(memory.keys.shape[-2]) if position is None else position
        return extend_memory(memory, self._prepare(keys, values, valid_lens, mask, first), position)

    def attend(
        self,
        queries: np.ndarray,
        memory: Memory,
        *,
        need_weights: bool = True,
        bias: np.ndarray | None = None,
        dropout_mask: np.ndarray | None = None,
    ) -> tuple[np.ndarray, np.ndarray | Any]:
        """Attend with queries to a prepared memory.

        context, weights = attention_pooling(score(queries, memory.keys), memory.values)

        A query that may attend to nothing gets weights and context 0.
        """
        self._check(
            "attend", need_weights=need_weights, queries=queries, memory=memory, bias=bias, dropout_mask=dropout_mask
        )
        queries = self._to_batch_first(promote(queries))
        keys, values = (for_each_head(array, queries) for array in (memory.keys, memory.values))
        scores = add_bias(self._score(queries, keys), bias)
        context, weights = pool(scores, values, open_keys(scores, None, memory.mask), dropout_mask)
        return self._to_batch_first(context), weights if need_weights else None

    def __call__(
        self,
        queries: np.ndarray,
        keys: np.ndarray,
        values: np.ndarray,
        valid_lens: np.ndarray | None = None,
        mask: np.ndarray | None = None,
        *,
        need_weights: bool = True,
        bias: np.ndarray | None = None,
        dropout_mask: np.ndarray | None = None,
    ) -> tuple[np.ndarray, np.ndarray | Any]:
        """Prepare the keys and values, and attend to them.

        context, weights = attention_pooling(score(queries, project(keys)), values)

        A query that may attend to nothing gets weights and context 0. A key and value that no query may attend to, NaN
        and inf included, have no effect and get gradient 0. Lengths apply to all heads.
        """
        self._check(
            "call",
            need_weights=need_weights,
            queries=queries,
            keys=keys,
            values=values,
            valid_lens=valid_lens,
            mask=mask,
            bias=bias,
            dropout_mask=dropout_mask,
        )
        memory = self.prepare(keys, values, valid_lens, mask)
        return self.attend(queries, memory, need_weights=need_weights, bias=bias, dropout_mask=dropout_mask)

    def _to_batch_first(self, array: np.ndarray) -> np.ndarray:
        """Swap the batch and time axes with time_major; else return the array unchanged."""
        return array.swapaxes(-2, -3) if self.sizes["time_major"] else array


class DotProductAttention(Attention):
    """Attention by scaled inner products; it has no parameters.

    context, weights = attention_pooling(scaled_dot_score(queries, keys), values)

    Keys and values may have fewer heads than queries: query head h reads key head ⌊h · key_heads / heads⌋. Source:
    Ainslie et al. 2023, section 2.2, arXiv:2305.13245.
    """

    specification: Layer = DOT_PRODUCT_ATTENTION

    def __init__(
        self,
        *,
        dropout: float = 0.0,
        scale: float | None = None,
        softcap: float | None = None,
        time_major: bool = False,
    ) -> None:
        super().__init__(locals())

    def _score(self, queries: np.ndarray, keys: np.ndarray) -> np.ndarray:
        """Return scale · q·k, bounded by softcap."""
        return scaled_dot_score(queries, keys, scale=self.sizes["scale"], softcap=self.sizes["softcap"])


class AdditiveAttention(Attention):
    """Attention by a one-layer perceptron over query and key.

    context, weights = attention_pooling(additive_score(W_q queries, W_k keys, w_v), values)
    """

    specification: Layer = ADDITIVE_ATTENTION

    def __init__(
        self, query_size: int, key_size: int, hidden_size: int, *, dropout: float = 0.0, time_major: bool = False
    ) -> None:
        super().__init__(locals())

    def _project(self, keys: np.ndarray) -> np.ndarray:
        """Return W_k k."""
        return linear(keys, self.parameters["W_k"])

    def _score(self, queries: np.ndarray, keys: np.ndarray) -> np.ndarray:
        """Return w_v · tanh(W_q q + W_k k)."""
        return additive_score(linear(queries, self.parameters["W_q"]), keys, self.parameters["w_v"])


class GeneralAttention(Attention):
    """Attention by a bilinear form of query and key, also called multiplicative.

    context, weights = attention_pooling(dot_score(queries, W keys), values)
    """

    specification: Layer = GENERAL_ATTENTION

    def __init__(self, query_size: int, key_size: int, *, dropout: float = 0.0, time_major: bool = False) -> None:
        super().__init__(locals())

    def _project(self, keys: np.ndarray) -> np.ndarray:
        """Return W k."""
        return linear(keys, self.parameters["W"])

    def _score(self, queries: np.ndarray, keys: np.ndarray) -> np.ndarray:
        """Return q·W k."""
        return dot_score(queries, keys)


class ConcatAttention(Attention):
    """Attention by a one-layer perceptron over the concatenation of query and key.

    context, weights = attention_pooling(vᵀ tanh(W [queries; keys] + b), values), without b unless bias

    The two halves of W are W_q and W_k of AdditiveAttention, which is the same function without a bias.
    """

    specification: Layer = CONCAT_ATTENTION

    def __init__(
        self,
        query_size: int,
        key_size: int,
        hidden_size: int,
        *,
        dropout: float = 0.0,
        bias: bool = False,
        time_major: bool = False,
    ) -> None:
        super().__init__(locals())

    def _project(self, keys: np.ndarray) -> np.ndarray:
        """Return W [0; k] + b."""
        return linear(keys, self.parameters["W"][..., self.sizes["query_size"] :], self.parameters.get("b"))

    def _score(self, queries: np.ndarray, keys: np.ndarray) -> np.ndarray:
        """Return V · tanh(W [q; 0] + W [0; k] + b)."""
        queries = linear(queries, self.parameters["W"][..., : self.sizes["query_size"]])
        return additive_score(queries, keys, self.parameters["v"])


class CosineAttention(Attention):
    """Attention by the cosine of the angle between query and key; it has no parameters.

    context, weights = attention_pooling(cosine_score(queries, keys), values)
    """

    specification: Layer = COSINE_ATTENTION

    def __init__(self, *, dropout: float = 0.0, scale: float | None = None, time_major: bool = False) -> None:
        super().__init__(locals())

    def _score(self, queries: np.ndarray, keys: np.ndarray) -> np.ndarray:
        """Return scale · q·k/(‖q‖ ‖k‖)."""
        return cosine_score(queries, keys, scale=self.sizes["scale"])


class LocationAttention(Attention):
    """Attention by the query alone: it scores positions, and the keys do not matter.

    context, weights = attention_pooling(location_score(keys, W queries), values)

    There may be fewer keys than num_positions, but not more. Only their number matters: keys may have any features, and
    get gradient 0.
    """

    specification: Layer = LOCATION_ATTENTION

    def __init__(self, query_size: int, num_positions: int, *, dropout: float = 0.0, time_major: bool = False) -> None:
        super().__init__(locals())

    def _score(self, queries: np.ndarray, keys: np.ndarray) -> np.ndarray:
        """Return W q, at the positions of the keys."""
        return location_score(keys.shape[-2], linear(queries, self.parameters["W"]))


class KernelAttention(Attention):
    """Attention by a Gaussian kernel of the distance between query and key.

    context, weights = attention_pooling(gaussian_score(queries, keys, w), values)

    width is in the units of queries and keys.
    """

    specification: Layer = KERNEL_ATTENTION

    def __init__(
        self, *, dropout: float = 0.0, width: float = 1.0, learned: bool = False, time_major: bool = False
    ) -> None:
        super().__init__(locals())
        if learned:
            self.parameters["w"] = np.array(1.0 / width)

    def _score(self, queries: np.ndarray, keys: np.ndarray) -> np.ndarray:
        """Return -½ ‖(q - k) w‖²."""
        return gaussian_score(queries, keys, self.parameters.get("w", np.array(1.0 / self.sizes["width"])))


LAYERS: dict[str, type[Attention]] = {name: globals()[name] for name in __all__ if name != "Memory"}
"""The layers of this file, which other layers may have inside them, by name."""


def attention_layer(part: Part, layers: Mapping[str, type[Attention]] = LAYERS) -> Attention:
    """Make the attention layer inside another layer, from the given classes."""
    return layers[part.layer.name](**part.config)


class ScoredAttention(Attention):
    """Base class of the attention layers that project keys and score them by another layer, `scored`."""

    def __init__(self, arguments: Mapping[str, Any]) -> None:
        super().__init__(arguments)
        self.scored = attention_layer(self.specification.inside(self.sizes)["scored"])

    def _project(self, keys: np.ndarray) -> np.ndarray:
        """Project the keys by the layer of the score."""
        self.scored.parameters = inner(self.parameters, "scored.")
        return self.scored._project(keys)

    def _score(self, queries: np.ndarray, keys: np.ndarray) -> np.ndarray:
        """Score by the layer of the score."""
        self.scored.parameters = inner(self.parameters, "scored.")
        return self.scored._score(queries, keys)
