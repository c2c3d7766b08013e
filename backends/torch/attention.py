"""Trainable attention layers in PyTorch: prepare keys and values once, attend many times."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

import torch
from torch import nn

from attention_core.operators.attention import (
    ADDITIVE_ATTENTION,
    CONCAT_ATTENTION,
    COSINE_ATTENTION,
    DOT_PRODUCT_ATTENTION,
    GENERAL_ATTENTION,
    KERNEL_ATTENTION,
    LOCATION_ATTENTION,
)
from attention_core.specification import Part
from backends.torch import kernels
from backends.torch.arrays import Lengths, Offset
from backends.torch.graphs import as_module, has_hooks, is_known
from backends.torch.masking import add_bias, open_keys, open_to, softmax_over
from backends.torch.memory import Memory, extend_memory, in_heads, zero_masked
from backends.torch.module import Matrix, Specified, draw_mask, draw_parameter
from backends.torch.pooling import average
from backends.torch.scoring import (
    _additive_score,
    _cosine_score,
    _dot_score,
    _gaussian_score,
    _location_score,
    _scaled_dot_score,
)

__all__ = [
    "DotProductAttention",
    "AdditiveAttention",
    "GeneralAttention",
    "ConcatAttention",
    "CosineAttention",
    "LocationAttention",
    "KernelAttention",
]

Answer = tuple[torch.Tensor, torch.Tensor | Any]
"""Context and weights, which are None without need_weights."""


class Form(NamedTuple):
    """A score of a query q and a projected key k, as kernels compute it.

    w_v · tanh(W_q q + k), or without w_v: scale · q·k, bounded by softcap
    """

    W_q: nn.Module | torch.Tensor | None = None
    w_v: torch.Tensor | None = None
    scale: float = 1.0
    softcap: float | None = None

    def project(self, queries: torch.Tensor) -> torch.Tensor:
        """Return W_q q."""
        if isinstance(self.W_q, torch.Tensor):
            return nn.functional.linear(queries, self.W_q)
        return queries if self.W_q is None else self.W_q(queries)


class Attention(Specified):
    """Base class of the attention layers: prepare, attend and a call, around one score.

    context, weights = attention_pooling(score(queries, project(keys)), values)
    """

    def __init__(self, arguments: Mapping[str, Any]) -> None:
        super().__init__(arguments)
        self.dropout = nn.Dropout(self.sizes.get("dropout", 0.0))

    def prepare(
        self,
        keys: torch.Tensor,
        values: torch.Tensor,
        valid_lens: Lengths | None = None,
        mask: torch.Tensor | None = None,
    ) -> Memory:
        """Project the keys and zero what no query may attend to, once for many queries.

        memory = (projected keys, values, mask), with keys and values 0 where no query may attend

        Args:
            keys: (batch, [key_heads or heads], keys, features or key_size or key_features); key vectors
            values: (batch, [key_heads or heads], keys, value_features); value vectors, one for each key
            valid_lens (default None): integers (batch, [queries]), or a list; key j is open where j < valid_len
            mask (default None): booleans (batch, [heads], queries, keys), broadcast; True where a query may attend
        Returns:
            memory: a `Memory`, which `attend` and `step` take
        Raises:
            ShapeError: more keys than a location score has positions
            ShapeError: heads of queries that key heads cannot share evenly
        """
        self._check("prepare", keys=keys, values=values, valid_lens=valid_lens, mask=mask)
        return self._prepare(keys, values, valid_lens, mask)

    def extend(
        self,
        memory: Memory,
        keys: torch.Tensor,
        values: torch.Tensor,
        valid_lens: Lengths | None = None,
        mask: torch.Tensor | None = None,
        *,
        position: Offset | None = None,
    ) -> Memory:
        """Add the keys and values of further steps to a prepared memory.

        memory' = [memory; steps], with steps = prepare(keys, values, valid_lens, mask)
        with position, memory'[b, position[b] + t] = steps[b, t], and memory'[b, j] = memory[b, j] at every other key j

        A key of the memory that any query could attend to is open to all later ones. With position, the memory keeps
        its number of keys, as compilers need it: prepare one with hidden keys as room, whose valid_lens are the first
        position. A step before the first key (position may be negative) or beyond the last is left out.

        Args:
            memory: as `prepare` returns it
            keys: (batch, [key_heads or heads], steps, features or key_size or key_features); key vectors
            values: (batch, [key_heads or heads], steps, value_features); value vectors, one for each key
            valid_lens (default None): integers (batch, [queries]), or a list; key j is open where j < valid_len
            mask (default None): booleans (batch, [heads], queries, steps), broadcast; True where a query may attend
            position (default None): integers (batch,); number of the key that the first step replaces; behind the last
                key if None
        Returns:
            memory: a `Memory`, which `attend` and `step` take
        Raises:
            ShapeError: more keys than a location score has positions
            ShapeError: heads of queries that key heads cannot share evenly
        """
        given: dict[str, Any] = {"valid_lens": valid_lens, "mask": mask, "position": position}
        self._check("extend", memory=memory, keys=keys, values=values, **given)
        first = memory.keys.shape[-2] if position is None else position
        return extend_memory(memory, self._prepare(keys, values, valid_lens, mask, first), position)

    def attend(
        self,
        queries: torch.Tensor,
        memory: Memory,
        *,
        need_weights: bool = True,
        bias: torch.Tensor | None = None,
        dropout_mask: torch.Tensor | None = None,
    ) -> tuple[torch.Tensor, torch.Tensor | Any]:
        """Attend with queries to a prepared memory.

        context, weights = attention_pooling(score(queries, memory.keys), memory.values)

        A query that may attend to nothing gets weights and context 0.

        Args:
            queries: (batch, [heads], queries, features or query_size); query vectors
            memory: as `prepare` returns it
            need_weights (default True): whether to return the weights; if False, they are None and need not be stored
            bias (default None): ([batch], [heads], queries, keys), broadcast; added to the scores; -inf hides a key
            dropout_mask (default None): (batch, [heads], queries, keys); factor of each weight
        Returns:
            context: (batch, [heads], queries, value_features); weighted averages of the values
            weights: (batch, [heads], queries, keys); probabilities over the keys; None without need_weights
        Raises:
            ShapeError: heads of queries that key heads cannot share evenly
        """
        self._check(
            "attend", queries=queries, memory=memory, need_weights=need_weights, bias=bias, dropout_mask=dropout_mask
        )
        return self._attend(queries, memory, need_weights=need_weights, bias=bias, dropout_mask=dropout_mask)

    def forward(
        self,
        queries: torch.Tensor,
        keys: torch.Tensor,
        values: torch.Tensor,
        valid_lens: Lengths | None = None,
        mask: torch.Tensor | None = None,
        *,
        need_weights: bool = True,
        bias: torch.Tensor | None = None,
        dropout_mask: torch.Tensor | None = None,
    ) -> tuple[torch.Tensor, torch.Tensor | Any]:
        """Prepare the keys and values, and attend to them.

        context, weights = attention_pooling(score(queries, project(keys)), values)

        A query that may attend to nothing gets weights and context 0. A key and value that no query may attend to, NaN
        and inf included, have no effect and get gradient 0. Lengths apply to all heads.

        Args:
            queries: (batch, [heads], queries, features or query_size); query vectors
            keys: (batch, [key_heads or heads], keys, features or key_size or key_features); key vectors
            values: (batch, [key_heads or heads], keys, value_features); value vectors, one for each key
            valid_lens (default None): integers (batch, [queries]), or a list; key j is open where j < valid_len
            mask (default None): booleans (batch, [heads], queries, keys), broadcast; True where a query may attend
            need_weights (default True): whether to return the weights; if False, they are None and need not be stored
            bias (default None): ([batch], [heads], queries, keys), broadcast; added to the scores; -inf hides a key
            dropout_mask (default None): (batch, [heads], queries, keys); factor of each weight
        Returns:
            context: (batch, [heads], queries, value_features); weighted averages of the values
            weights: (batch, [heads], queries, keys); probabilities over the keys; None without need_weights
        Raises:
            ShapeError: more keys than a location score has positions
            ShapeError: heads of queries that key heads cannot share evenly
        """
        options: dict[str, Any] = {"need_weights": need_weights, "bias": bias, "dropout_mask": dropout_mask}
        self._check("call", queries=queries, keys=keys, values=values, valid_lens=valid_lens, mask=mask, **options)
        return self._attend(queries, self._prepare(keys, values, valid_lens, open_to(mask, bias)), **options)

    def _prepare(
        self,
        keys: torch.Tensor,
        values: torch.Tensor,
        valid_lens: Lengths | None,
        mask: torch.Tensor | None,
        position: Offset | None = None,
    ) -> Memory:
        """Prepare keys, the first at `position`, which only rotary positions read."""
        memory = zero_masked(self._to_batch_first(keys), self._to_batch_first(values), valid_lens, mask)
        return memory._replace(keys=self._project(memory.keys))

    def _attend(
        self,
        queries: torch.Tensor,
        memory: Memory,
        *,
        need_weights: bool = True,
        bias: torch.Tensor | None = None,
        dropout_mask: torch.Tensor | None = None,
    ) -> Answer:
        context, weights = self._pool(self, self._to_batch_first(queries), memory, need_weights, bias, dropout_mask)
        return self._to_batch_first(context), weights

    def _pool(
        self,
        scored: Attention,
        queries: torch.Tensor,
        memory: Memory,
        need_weights: bool,
        bias: torch.Tensor | None,
        dropout_mask: torch.Tensor | None,
    ) -> Answer:
        """Pool by the score of this layer or of one inside it, in blocks if sizes warrant it and nothing is dropped.

        context, weights = attention_pooling(scored.score(queries, memory.keys) + bias, memory.values)
        """
        form, is_hooked = scored._form(queries.shape[-1]), scored is not self and has_hooks(scored)
        is_dropped = dropout_mask is not None or (self.dropout.training and self.dropout.p > 0.0)
        if form is not None and not (is_dropped or is_hooked):
            kernel = kernels.of("attention", form, queries, memory, need_weights, bias)
            if kernel is not None:
                return kernel(form, queries, memory, need_weights, bias)
        memory = in_heads(memory, queries)
        scores = as_module(scored._score, queries, memory.keys) if is_hooked else scored._score(queries, memory.keys)
        if bias is not None:
            scores = add_bias(scores, bias)
        if dropout_mask is None:
            dropout_mask = draw_mask(self.dropout, scores)
        allowed = open_keys(scores, memory.mask)
        weights = softmax_over(scores, allowed)
        # `prepare` has cleared the values that the mask hides; a score of -inf would hide values, too.
        is_bounded = form is not None and form.w_v is not None and bias is None
        hides_value = not (is_bounded or hides_nothing(scores))
        context = average(weights, memory.values, allowed if hides_value else None, dropout_mask)
        return context, weights.to(context.dtype) if need_weights else None

    def _project(self, keys: torch.Tensor) -> torch.Tensor:
        """Project the keys: the identity, unless a layer overrides it."""
        return keys

    def _score(self, queries: torch.Tensor, keys: torch.Tensor) -> torch.Tensor:
        """Score each query against each projected key."""
        raise NotImplementedError

    def _form(self, features: int) -> Form | None:
        """Return the form of the score of queries with so many features; None if it is neither of the two."""
        return None

    def _to_batch_first(self, tensor: torch.Tensor) -> torch.Tensor:
        """Swap the axes of batch and time if time_major."""
        return tensor.transpose(0, 1) if self.sizes["time_major"] else tensor


class DotProductAttention(Attention):
    """Attention by scaled inner products; it has no parameters.

    context, weights = attention_pooling(scaled_dot_score(queries, keys), values)

    Keys and values may have fewer heads than queries: query head h reads key head ⌊h · key_heads / heads⌋. Source:
    Ainslie et al. 2023, section 2.2, arXiv:2305.13245.

    Args:
        dropout (default 0.0): dropout rate of the weights in training
        scale (default None): factor of the scores; 1/√features if None
        softcap (default None): bound of the scores; none if None
        time_major (default False): whether arrays are (steps, batch, features), without heads
    Source: Vaswani et al. 2017, section 3.2.1, arXiv:1706.03762
    Example:
        layer = attention.DotProductAttention()
        context, weights = layer(queries, keys, values)
    """

    specification = DOT_PRODUCT_ATTENTION

    def __init__(
        self,
        *,
        dropout: float = 0.0,
        scale: float | None = None,
        softcap: float | None = None,
        time_major: bool = False,
    ) -> None:
        super().__init__(locals())

    def _score(self, queries: torch.Tensor, keys: torch.Tensor) -> torch.Tensor:
        """Return scale · q·k, bounded by softcap."""
        return _scaled_dot_score(queries, keys, self.sizes["scale"], self.sizes["softcap"])

    def _form(self, features: int) -> Form:
        scale = self.sizes["scale"]
        return Form(scale=max(features, 1) ** -0.5 if scale is None else scale, softcap=self.sizes["softcap"])


class AdditiveAttention(Attention):
    """Attention by a one-layer perceptron over query and key.

    context, weights = attention_pooling(additive_score(W_q queries, W_k keys, w_v), values)

    Args:
        query_size: features of a query
        key_size: features of a key
        hidden_size: features of the hidden layer
        dropout (default 0.0): dropout rate of the weights in training
        time_major (default False): whether arrays are (steps, batch, features), without heads
        dtype: floating type of the parameters
        device: where to allocate
    Parameters:
        W_q: (hidden_size, query_size), projects queries
        W_k: (hidden_size, key_size), projects keys
        w_v: (hidden_size,), weight of each hidden feature
    Source: Bahdanau et al. 2015, section 3.1 and appendix A.1.2, arXiv:1409.0473
    Example:
        layer = attention.AdditiveAttention(query_size, key_size, hidden_size)
        context, weights = layer(queries, keys, values)
    """

    specification = ADDITIVE_ATTENTION

    def __init__(
        self,
        query_size: int,
        key_size: int,
        hidden_size: int,
        *,
        dropout: float = 0.0,
        time_major: bool = False,
        dtype: torch.dtype | None = None,
        device: torch.device | str | None = None,
    ) -> None:
        super().__init__(locals())
        self.W_q = nn.Linear(query_size, hidden_size, bias=False, dtype=dtype, device=device)
        self.W_k = nn.Linear(key_size, hidden_size, bias=False, dtype=dtype, device=device)
        self.w_v = draw_parameter((hidden_size,), hidden_size, dtype, device)

    def _project(self, keys: torch.Tensor) -> torch.Tensor:
        """Return W_k k."""
        return self.W_k(keys)

    def _score(self, queries: torch.Tensor, keys: torch.Tensor) -> torch.Tensor:
        """Return w_v · tanh(W_q q + k)."""
        return _additive_score(self.W_q(queries), keys, self.w_v)

    def _form(self, features: int) -> Form:
        return Form(W_q=self.W_q, w_v=self.w_v)


class GeneralAttention(Attention):
    """Attention by a bilinear form of query and key, also called multiplicative.

    context, weights = attention_pooling(dot_score(queries, W keys), values)

    Args:
        query_size: features of a query
        key_size: features of a key
        dropout (default 0.0): dropout rate of the weights in training
        time_major (default False): whether arrays are (steps, batch, features), without heads
        dtype: floating type of the parameters
        device: where to allocate
    Parameters:
        W: (query_size, key_size), projects keys to the size of queries
    Source: Luong et al. 2015, section 3.1, arXiv:1508.04025
    Example:
        layer = attention.GeneralAttention(query_size, key_size)
        context, weights = layer(queries, keys, values)
    """

    specification = GENERAL_ATTENTION

    def __init__(
        self,
        query_size: int,
        key_size: int,
        *,
        dropout: float = 0.0,
        time_major: bool = False,
        dtype: torch.dtype | None = None,
        device: torch.device | str | None = None,
    ) -> None:
        super().__init__(locals())
        self.W = nn.Linear(key_size, query_size, bias=False, dtype=dtype, device=device)

    def _project(self, keys: torch.Tensor) -> torch.Tensor:
        """Return W k."""
        return self.W(keys)

    def _score(self, queries: torch.Tensor, keys: torch.Tensor) -> torch.Tensor:
        """Return q·k."""
        return _dot_score(queries, keys)

    def _form(self, features: int) -> Form:
        return Form()


class ConcatAttention(Attention):
    """Attention by a one-layer perceptron over the concatenation of query and key.

    context, weights = attention_pooling(vᵀ tanh(W [queries; keys] + b), values), without b unless bias

    The two halves of W are W_q and W_k of AdditiveAttention, which is the same function without a bias.

    Args:
        query_size: features of a query
        key_size: features of a key
        hidden_size: features of the hidden layer
        dropout (default 0.0): dropout rate of the weights in training
        bias (default False): whether the hidden layer has a bias
        time_major (default False): whether arrays are (steps, batch, features), without heads
        dtype: floating type of the parameters
        device: where to allocate
    Parameters:
        W: (hidden_size, query_size + key_size), projects [query; key]
        b: (hidden_size,), bias of the hidden layer, if bias
        v: (hidden_size,), weight of each hidden feature
    Source: Luong et al. 2015, section 3.1, arXiv:1508.04025
    Example:
        layer = attention.ConcatAttention(query_size, key_size, hidden_size)
        context, weights = layer(queries, keys, values)
    """

    specification = CONCAT_ATTENTION

    def __init__(
        self,
        query_size: int,
        key_size: int,
        hidden_size: int,
        *,
        dropout: float = 0.0,
        bias: bool = False,
        time_major: bool = False,
        dtype: torch.dtype | None = None,
        device: torch.device | str | None = None,
    ) -> None:
        super().__init__(locals())
        self.W = Matrix(query_size + key_size, hidden_size, bias=False, dtype=dtype, device=device)
        first = draw_parameter((hidden_size,), query_size + key_size, dtype, device) if bias else None
        self.register_parameter("b", first)
        self.v = draw_parameter((hidden_size,), hidden_size, dtype, device)

    def _project(self, keys: torch.Tensor) -> torch.Tensor:
        """Return W [0; k] + b."""
        return nn.functional.linear(keys, self.W.weight[:, self.sizes["query_size"] :], self.b)

    def _score(self, queries: torch.Tensor, keys: torch.Tensor) -> torch.Tensor:
        """Return v · tanh(W [q; 0] + k)."""
        return _additive_score(self._form(queries.shape[-1]).project(queries), keys, self.v)

    def _form(self, features: int) -> Form:
        return Form(W_q=self.W.weight[:, :features], w_v=self.v)


class CosineAttention(Attention):
    """Attention by the cosine of the angle between query and key; it has no parameters.

    context, weights = attention_pooling(cosine_score(queries, keys), values)

    Args:
        dropout (default 0.0): dropout rate of the weights in training
        scale (default None): factor of the cosines; 1 if None
        time_major (default False): whether arrays are (steps, batch, features), without heads
    Source: Graves et al. 2014, section 3.3.1, arXiv:1410.5401
    Example:
        layer = attention.CosineAttention()
        context, weights = layer(queries, keys, values)
    """

    specification = COSINE_ATTENTION

    def __init__(self, *, dropout: float = 0.0, scale: float | None = None, time_major: bool = False) -> None:
        super().__init__(locals())

    def _score(self, queries: torch.Tensor, keys: torch.Tensor) -> torch.Tensor:
        """Return scale · q·k/(‖q‖ ‖k‖)."""
        return _cosine_score(queries, keys, self.sizes["scale"])


class LocationAttention(Attention):
    """Attention by the query alone: it scores positions, and the keys do not matter.

    context, weights = attention_pooling(location_score(keys, W queries), values)

    There may be fewer keys than num_positions, but not more. Only their number matters: keys may have any features, and
    get gradient 0.

    Args:
        query_size: features of a query
        num_positions: positions that have a score
        dropout (default 0.0): dropout rate of the weights in training
        time_major (default False): whether arrays are (steps, batch, features), without heads
        dtype: floating type of the parameters
        device: where to allocate
    Parameters:
        W: (num_positions, query_size), scores of each position
    Source: Luong et al. 2015, section 3.1, arXiv:1508.04025
    Example:
        layer = attention.LocationAttention(query_size, num_positions)
        context, weights = layer(queries, keys, values)
    """

    specification = LOCATION_ATTENTION

    def __init__(
        self,
        query_size: int,
        num_positions: int,
        *,
        dropout: float = 0.0,
        time_major: bool = False,
        dtype: torch.dtype | None = None,
        device: torch.device | str | None = None,
    ) -> None:
        super().__init__(locals())
        self.W = nn.Linear(query_size, num_positions, bias=False, dtype=dtype, device=device)

    def _score(self, queries: torch.Tensor, keys: torch.Tensor) -> torch.Tensor:
        """Return W q, at the positions of the keys."""
        return _location_score(keys.shape[-2], self.W(queries))


class KernelAttention(Attention):
    """Attention by a Gaussian kernel of the distance between query and key.

    context, weights = attention_pooling(gaussian_score(queries, keys, w), values)

    width is in the units of queries and keys.

    Args:
        dropout (default 0.0): dropout rate of the weights in training
        width (default 1.0): standard deviation of the kernel, 1/w
        learned (default False): whether w is a parameter with initial value 1/width, or the constant 1/width
        time_major (default False): whether arrays are (steps, batch, features), without heads
        dtype: floating type of the parameters
        device: where to allocate
    Parameters:
        w: (), inverse width of the kernel, if learned
    Source: Nadaraya 1964, doi:10.1137/1109020; Watson 1964, Sankhya A 26, 359-372
    Example:
        layer = attention.KernelAttention()
        context, weights = layer(queries, keys, values)
    """

    specification = KERNEL_ATTENTION

    def __init__(
        self,
        *,
        dropout: float = 0.0,
        width: float = 1.0,
        learned: bool = False,
        time_major: bool = False,
        dtype: torch.dtype | None = None,
        device: torch.device | str | None = None,
    ) -> None:
        super().__init__(locals())
        w = nn.Parameter(torch.full((), 1.0 / width, dtype=dtype, device=device)) if learned else None
        self.register_parameter("w", w)

    def _score(self, queries: torch.Tensor, keys: torch.Tensor) -> torch.Tensor:
        """Return -½ ‖(q - k) w‖²."""
        constant = 1.0 / self.sizes["width"]
        return _gaussian_score(queries, keys, queries.new_full((), constant) if self.w is None else self.w)

    # particular to PyTorch

    def reset_parameters(self) -> None:
        """Set w to 1/width, if it is learned."""
        if self.w is not None:
            nn.init.constant_(self.w, 1.0 / self.sizes["width"])


LAYERS: dict[str, type[Attention]] = {name: globals()[name] for name in __all__ if name != "Memory"}
"""The layers of this file, which other layers may have inside them, by name."""


def attention_layer(
    part: Part,
    layers: Mapping[str, type[Attention]] = LAYERS,
    *,
    dtype: torch.dtype | None = None,
    device: torch.device | str | None = None,
) -> Attention:
    """Make the attention layer that another layer has inside."""
    keywords: dict[str, Any] = {"dtype": dtype, "device": device} if part.layer.trainable else {}
    return layers[part.layer.name](**part.config, **keywords)


class ScoredAttention(Attention):
    """Base class of the attention layers that project keys and score them by another layer, `scored`."""

    scored: Attention

    def _project(self, keys: torch.Tensor) -> torch.Tensor:
        """Project the keys by the layer of the score."""
        return as_module(self.scored._project, keys)

    def _score(self, queries: torch.Tensor, keys: torch.Tensor) -> torch.Tensor:
        """Score by the layer of the score."""
        return as_module(self.scored._score, queries, keys)


# ------------------------------------------------------------------------------------------------ particular to PyTorch


def hides_nothing(scores: torch.Tensor) -> bool:
    """Whether no score is -inf or NaN: asked on a CPU alone, since a GPU would have to wait."""
    asks = scores.device.type == "cpu" and scores.numel() > 0 and is_known(scores)
    return asks and scores.detach().amin().item() > -torch.inf
