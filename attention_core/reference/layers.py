"""Trainable attention layers: prepare keys and values once, attend many times."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from attention_core.errors import check_options
from attention_core.operators import (
    ADDITIVE_ATTENTION,
    CONCAT_ATTENTION,
    COSINE_ATTENTION,
    DOT_PRODUCT_ATTENTION,
    GENERAL_ATTENTION,
)
from attention_core.reference.arrays import check, linear, promote
from attention_core.reference.masking import attention_mask, open_keys
from attention_core.reference.pooling import pool
from attention_core.reference.scoring import additive_score, cosine_score, dot_score, scaled_dot_score
from attention_core.specification import Layer


class Memory(NamedTuple):
    """Prepared keys and values, and one mask of what may be attended to; made by `prepare`, read by `attend`.

    Shapes: keys (batch, keys, features of a prepared key), values (batch, keys, value_features), both with heads after
    batch or without; mask as in attention_mask, or None where everything is open.
    """

    keys: np.ndarray
    values: np.ndarray
    mask: np.ndarray | None


class DotProductAttention:
    """Attention by scaled inner products; it has no parameters.

    context, weights = attention_pooling(scaled_dot_score(queries, keys), values)

    Arguments: dropout is the rate at which weights are dropped in training, which the reference leaves to dropout_mask;
    scale is the factor of the scores, 1/√features unless given.
    Raises: OptionError if dropout is not in [0, 1) or scale is not a finite number.
    Source: Vaswani et al. 2017, section 3.2.1, arXiv:1706.03762.
    """

    specification: Layer = DOT_PRODUCT_ATTENTION

    def __init__(self, *, dropout: float = 0.0, scale: float | None = None) -> None:
        self.sizes = check_options(self.specification, dropout=dropout, scale=scale)
        self.parameters: dict[str, np.ndarray] = {}
        self.scale = scale

    def prepare(
        self,
        keys: np.ndarray,
        values: np.ndarray,
        valid_lens: np.ndarray | None = None,
        mask: np.ndarray | None = None,
    ) -> Memory:
        """Project the keys, clear what no query may attend to, and keep it for many queries.

        memory = (projected keys, values, mask), with keys and values 0 where they are hidden from all

        Shapes: keys (batch, keys, features), values (batch, keys, value_features), both with heads after batch or
        without; valid_lens and mask as in attention_mask. Here, keys are projected by the identity.
        Raises: ShapeError, DtypeError, MaskError, as attention_mask.
        """
        check(self.specification.method("prepare"), keys=keys, values=values, valid_lens=valid_lens, mask=mask)
        return cleared(promote(keys), promote(values), valid_lens, mask)

    def attend(
        self, queries: np.ndarray, memory: Memory, *, dropout_mask: np.ndarray | None = None
    ) -> tuple[np.ndarray, np.ndarray]:
        """Attend with queries to a prepared memory.

        context, weights = attention_pooling(scaled_dot_score(queries, keys), values)

        Shapes: queries (batch, queries, features), with heads after batch or without; dropout_mask
        (batch, queries, keys) likewise. Returns (context, weights) as attention_pooling.
        Raises: ShapeError, DtypeError.
        """
        check(self.specification.method("attend"), queries=queries, memory=memory, dropout_mask=dropout_mask)
        scores = scaled_dot_score(promote(queries), memory.keys, scale=self.scale)
        return pool(scores, memory.values, open_keys(scores, None, memory.mask), dropout_mask)

    def __call__(
        self,
        queries: np.ndarray,
        keys: np.ndarray,
        values: np.ndarray,
        valid_lens: np.ndarray | None = None,
        mask: np.ndarray | None = None,
        *,
        dropout_mask: np.ndarray | None = None,
    ) -> tuple[np.ndarray, np.ndarray]:
        """Prepare the keys and values, and attend to them."""
        check(
            self.specification.method("call"),
            queries=queries,
            keys=keys,
            values=values,
            valid_lens=valid_lens,
            mask=mask,
            dropout_mask=dropout_mask,
        )
        return self.attend(queries, self.prepare(keys, values, valid_lens, mask), dropout_mask=dropout_mask)


class AdditiveAttention:
    """Attention by a one-layer perceptron over query and key.

    context, weights = attention_pooling(additive_score(W_q queries, W_k keys, w_v), values)

    Arguments: query_size and key_size are the features of a query and a key, hidden_size those of the layer in which
    they meet; dropout is the rate at which weights are dropped in training, which the reference leaves to dropout_mask.
    Parameters: W_q (hidden_size, query_size), W_k (hidden_size, key_size), w_v (hidden_size,); no biases.
    Raises: OptionError if a size is not positive or dropout is not in [0, 1).
    Source: Bahdanau et al. 2015, section 3.1 and appendix A.1.2, arXiv:1409.0473.
    """

    specification: Layer = ADDITIVE_ATTENTION

    def __init__(self, query_size: int, key_size: int, hidden_size: int, *, dropout: float = 0.0) -> None:
        self.sizes = check_options(
            self.specification, query_size=query_size, key_size=key_size, hidden_size=hidden_size, dropout=dropout
        )
        self.parameters = {name: np.zeros(shape) for name, shape in self.specification.shapes(self.sizes).items()}

    def prepare(
        self,
        keys: np.ndarray,
        values: np.ndarray,
        valid_lens: np.ndarray | None = None,
        mask: np.ndarray | None = None,
    ) -> Memory:
        """Project the keys, clear what no query may attend to, and keep it for many queries.

        memory = (projected keys, values, mask), with keys and values 0 where they are hidden from all

        Shapes: keys (batch, keys, key_size), values (batch, keys, value_features), both with heads after batch or
        without; valid_lens and mask as in attention_mask. The memory's keys are (batch, keys, hidden_size).
        Raises: ShapeError, DtypeError, MaskError, as attention_mask.
        """
        check(
            self.specification.method("prepare"),
            self.sizes,
            keys=keys,
            values=values,
            valid_lens=valid_lens,
            mask=mask,
        )
        memory = cleared(promote(keys), promote(values), valid_lens, mask)
        return memory._replace(keys=linear(memory.keys, self.parameters["W_k"]))

    def attend(
        self, queries: np.ndarray, memory: Memory, *, dropout_mask: np.ndarray | None = None
    ) -> tuple[np.ndarray, np.ndarray]:
        """Attend with queries to a prepared memory.

        context, weights = attention_pooling(additive_score(W_q queries, memory.keys, w_v), memory.values)

        Shapes: queries (batch, queries, query_size), with heads after batch or without; dropout_mask
        (batch, queries, keys) likewise. Returns (context, weights) as attention_pooling.
        Raises: ShapeError, DtypeError.
        """
        check(
            self.specification.method("attend"), self.sizes, queries=queries, memory=memory, dropout_mask=dropout_mask
        )
        projected = linear(promote(queries), self.parameters["W_q"])
        scores = additive_score(projected, memory.keys, self.parameters["w_v"])
        return pool(scores, memory.values, open_keys(scores, None, memory.mask), dropout_mask)

    def __call__(
        self,
        queries: np.ndarray,
        keys: np.ndarray,
        values: np.ndarray,
        valid_lens: np.ndarray | None = None,
        mask: np.ndarray | None = None,
        *,
        dropout_mask: np.ndarray | None = None,
    ) -> tuple[np.ndarray, np.ndarray]:
        """Prepare the keys and values, and attend to them."""
        check(
            self.specification.method("call"),
            self.sizes,
            queries=queries,
            keys=keys,
            values=values,
            valid_lens=valid_lens,
            mask=mask,
            dropout_mask=dropout_mask,
        )
        return self.attend(queries, self.prepare(keys, values, valid_lens, mask), dropout_mask=dropout_mask)


class GeneralAttention:
    """Attention by a bilinear form of query and key, also called multiplicative.

    context, weights = attention_pooling(dot_score(queries, W keys), values)

    Arguments: query_size and key_size are the features of a query and a key; dropout is the rate at which weights are
    dropped in training, which the reference leaves to dropout_mask.
    Parameters: W (query_size, key_size), which projects keys to the size of queries; no bias.
    Raises: OptionError if a size is not positive or dropout is not in [0, 1).
    Source: Luong et al. 2015, section 3.1, arXiv:1508.04025.
    """

    specification: Layer = GENERAL_ATTENTION

    def __init__(self, query_size: int, key_size: int, *, dropout: float = 0.0) -> None:
        self.sizes = check_options(self.specification, query_size=query_size, key_size=key_size, dropout=dropout)
        self.parameters = {name: np.zeros(shape) for name, shape in self.specification.shapes(self.sizes).items()}

    def prepare(
        self,
        keys: np.ndarray,
        values: np.ndarray,
        valid_lens: np.ndarray | None = None,
        mask: np.ndarray | None = None,
    ) -> Memory:
        """Project the keys, clear what no query may attend to, and keep it for many queries.

        memory = (projected keys, values, mask), with keys and values 0 where they are hidden from all

        Shapes: keys (batch, keys, key_size), values (batch, keys, value_features), both with heads after batch or
        without; valid_lens and mask as in attention_mask. The memory's keys are (batch, keys, query_size).
        Raises: ShapeError, DtypeError, MaskError, as attention_mask.
        """
        check(
            self.specification.method("prepare"),
            self.sizes,
            keys=keys,
            values=values,
            valid_lens=valid_lens,
            mask=mask,
        )
        memory = cleared(promote(keys), promote(values), valid_lens, mask)
        return memory._replace(keys=linear(memory.keys, self.parameters["W"]))

    def attend(
        self, queries: np.ndarray, memory: Memory, *, dropout_mask: np.ndarray | None = None
    ) -> tuple[np.ndarray, np.ndarray]:
        """Attend with queries to a prepared memory.

        context, weights = attention_pooling(dot_score(queries, memory.keys), memory.values)

        Shapes: queries (batch, queries, query_size), with heads after batch or without; dropout_mask
        (batch, queries, keys) likewise. Returns (context, weights) as attention_pooling.
        Raises: ShapeError, DtypeError.
        """
        check(
            self.specification.method("attend"), self.sizes, queries=queries, memory=memory, dropout_mask=dropout_mask
        )
        scores = dot_score(promote(queries), memory.keys)
        return pool(scores, memory.values, open_keys(scores, None, memory.mask), dropout_mask)

    def __call__(
        self,
        queries: np.ndarray,
        keys: np.ndarray,
        values: np.ndarray,
        valid_lens: np.ndarray | None = None,
        mask: np.ndarray | None = None,
        *,
        dropout_mask: np.ndarray | None = None,
    ) -> tuple[np.ndarray, np.ndarray]:
        """Prepare the keys and values, and attend to them."""
        check(
            self.specification.method("call"),
            self.sizes,
            queries=queries,
            keys=keys,
            values=values,
            valid_lens=valid_lens,
            mask=mask,
            dropout_mask=dropout_mask,
        )
        return self.attend(queries, self.prepare(keys, values, valid_lens, mask), dropout_mask=dropout_mask)


class ConcatAttention:
    """Attention by a one-layer perceptron over the concatenation of query and key.

    context, weights = attention_pooling(vᵀ tanh(W [queries; keys]), values)

    Arguments: query_size and key_size are the features of a query and a key, hidden_size those of the layer in which
    they meet; dropout is the rate at which weights are dropped in training, which the reference leaves to dropout_mask.
    Parameters: W (hidden_size, query_size + key_size), the columns of the query first, v (hidden_size,); no biases.
    The two halves of W are W_q and W_k of AdditiveAttention, which is the same function.
    Raises: OptionError if a size is not positive or dropout is not in [0, 1).
    Source: Luong et al. 2015, section 3.1, arXiv:1508.04025.
    """

    specification: Layer = CONCAT_ATTENTION

    def __init__(self, query_size: int, key_size: int, hidden_size: int, *, dropout: float = 0.0) -> None:
        self.sizes = check_options(
            self.specification, query_size=query_size, key_size=key_size, hidden_size=hidden_size, dropout=dropout
        )
        self.parameters = {name: np.zeros(shape) for name, shape in self.specification.shapes(self.sizes).items()}

    def prepare(
        self,
        keys: np.ndarray,
        values: np.ndarray,
        valid_lens: np.ndarray | None = None,
        mask: np.ndarray | None = None,
    ) -> Memory:
        """Project the keys, clear what no query may attend to, and keep it for many queries.

        memory = (projected keys, values, mask), with keys and values 0 where they are hidden from all

        Shapes: keys (batch, keys, key_size), values (batch, keys, value_features), both with heads after batch or
        without; valid_lens and mask as in attention_mask. The memory's keys are (batch, keys, hidden_size).
        Raises: ShapeError, DtypeError, MaskError, as attention_mask.
        """
        check(
            self.specification.method("prepare"),
            self.sizes,
            keys=keys,
            values=values,
            valid_lens=valid_lens,
            mask=mask,
        )
        memory = cleared(promote(keys), promote(values), valid_lens, mask)
        weight = self.parameters["W"][..., self.sizes["query_size"] :]
        return memory._replace(keys=linear(memory.keys, weight))

    def attend(
        self, queries: np.ndarray, memory: Memory, *, dropout_mask: np.ndarray | None = None
    ) -> tuple[np.ndarray, np.ndarray]:
        """Attend with queries to a prepared memory.

        context, weights = attention_pooling(vᵀ tanh(W [queries; keys]), values)

        Shapes: queries (batch, queries, query_size), with heads after batch or without; dropout_mask
        (batch, queries, keys) likewise. Returns (context, weights) as attention_pooling.
        Raises: ShapeError, DtypeError.
        """
        check(
            self.specification.method("attend"), self.sizes, queries=queries, memory=memory, dropout_mask=dropout_mask
        )
        projected = linear(promote(queries), self.parameters["W"][..., : self.sizes["query_size"]])
        scores = additive_score(projected, memory.keys, self.parameters["v"])
        return pool(scores, memory.values, open_keys(scores, None, memory.mask), dropout_mask)

    def __call__(
        self,
        queries: np.ndarray,
        keys: np.ndarray,
        values: np.ndarray,
        valid_lens: np.ndarray | None = None,
        mask: np.ndarray | None = None,
        *,
        dropout_mask: np.ndarray | None = None,
    ) -> tuple[np.ndarray, np.ndarray]:
        """Prepare the keys and values, and attend to them."""
        check(
            self.specification.method("call"),
            self.sizes,
            queries=queries,
            keys=keys,
            values=values,
            valid_lens=valid_lens,
            mask=mask,
            dropout_mask=dropout_mask,
        )
        return self.attend(queries, self.prepare(keys, values, valid_lens, mask), dropout_mask=dropout_mask)


class CosineAttention:
    """Attention by the cosine of the angle between query and key; it has no parameters.

    context, weights = attention_pooling(cosine_score(queries, keys), values)

    Arguments: dropout is the rate at which weights are dropped in training, which the reference leaves to dropout_mask;
    scale is the factor of the scores, 1/√features unless given.
    Raises: OptionError if dropout is not in [0, 1) or scale is not a finite number.
    Source: Graves et al. 2014, section 3.3.1, arXiv:1410.5401.
    """

    specification: Layer = COSINE_ATTENTION

    def __init__(self, *, dropout: float = 0.0, scale: float | None = None) -> None:
        self.sizes = check_options(self.specification, dropout=dropout, scale=scale)
        self.parameters: dict[str, np.ndarray] = {}
        self.scale = scale

    def prepare(
        self,
        keys: np.ndarray,
        values: np.ndarray,
        valid_lens: np.ndarray | None = None,
        mask: np.ndarray | None = None,
    ) -> Memory:
        """Project the keys, clear what no query may attend to, and keep it for many queries.

        memory = (projected keys, values, mask), with keys and values 0 where they are hidden from all

        Shapes: keys (batch, keys, features), values (batch, keys, value_features), both with heads after batch or
        without; valid_lens and mask as in attention_mask. Here, keys are projected by the identity.
        Raises: ShapeError, DtypeError, MaskError, as attention_mask.
        """
        check(self.specification.method("prepare"), keys=keys, values=values, valid_lens=valid_lens, mask=mask)
        return cleared(promote(keys), promote(values), valid_lens, mask)

    def attend(
        self, queries: np.ndarray, memory: Memory, *, dropout_mask: np.ndarray | None = None
    ) -> tuple[np.ndarray, np.ndarray]:
        """Attend with queries to a prepared memory.

        context, weights = attention_pooling(cosine_score(queries, keys), values)

        Shapes: queries (batch, queries, features), with heads after batch or without; dropout_mask
        (batch, queries, keys) likewise. Returns (context, weights) as attention_pooling.
        Raises: ShapeError, DtypeError.
        """
        check(self.specification.method("attend"), queries=queries, memory=memory, dropout_mask=dropout_mask)
        scores = cosine_score(promote(queries), memory.keys, scale=self.scale)
        return pool(scores, memory.values, open_keys(scores, None, memory.mask), dropout_mask)

    def __call__(
        self,
        queries: np.ndarray,
        keys: np.ndarray,
        values: np.ndarray,
        valid_lens: np.ndarray | None = None,
        mask: np.ndarray | None = None,
        *,
        dropout_mask: np.ndarray | None = None,
    ) -> tuple[np.ndarray, np.ndarray]:
        """Prepare the keys and values, and attend to them."""
        check(
            self.specification.method("call"),
            queries=queries,
            keys=keys,
            values=values,
            valid_lens=valid_lens,
            mask=mask,
            dropout_mask=dropout_mask,
        )
        return self.attend(queries, self.prepare(keys, values, valid_lens, mask), dropout_mask=dropout_mask)


def cleared(keys: np.ndarray, values: np.ndarray, valid_lens: np.ndarray | None, mask: np.ndarray | None) -> Memory:
    """Keys and values with 0 where no query may attend to them, and the one mask."""
    allowed = attention_mask(keys.shape[-2], valid_lens, mask)
    if allowed is None:
        return Memory(keys, values, None)
    if mask is None and keys.ndim == 4:
        allowed = allowed[:, None]
    seen = np.expand_dims(allowed.any(axis=-2), -1)
    return Memory(np.where(seen, keys, 0.0), np.where(seen, values, 0.0), allowed)
