"""Trainable attention layers: prepare keys and values once, attend many times."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

from attention_core.differentiation import gradients
from attention_core.errors import check_length, check_offset, check_options, check_per_head, check_positions
from attention_core.operators import (
    ABLATION_IMPORTANCE,
    ADDITIVE_ATTENTION,
    CONCAT_ATTENTION,
    COSINE_ATTENTION,
    DOT_PRODUCT_ATTENTION,
    GENERAL_ATTENTION,
    HARD_ATTENTION,
    KERNEL_ATTENTION,
    LEARNED_POSITIONS,
    LOCAL_ATTENTION,
    LOCATION_ATTENTION,
    MULTI_HEAD_ATTENTION,
    NADARAYA_WATSON,
    POSITION_PERMUTATION,
    SINUSOIDAL_POSITIONS,
    TAYLOR_IMPORTANCE,
)
from attention_core.reference.arrays import align, check, inner, linear, promote
from attention_core.reference.masking import attention_mask, open_keys
from attention_core.reference.pooling import average, pool
from attention_core.reference.recurrent import sigmoid
from attention_core.reference.scoring import (
    additive_score,
    cosine_score,
    dot_score,
    gaussian_score,
    location_score,
    scaled_dot_score,
)
from attention_core.sinusoids import rates
from attention_core.specification import Layer, Part


class Memory(NamedTuple):
    """Prepared keys and values, and one mask of what may be attended to; made by `prepare`, read by `attend`.

    Shapes: keys (batch, keys, features of a prepared key), values (batch, keys, value_features), both with heads after
    batch or without; mask as in attention_mask, or None where everything is open.
    """

    keys: np.ndarray
    values: np.ndarray
    mask: np.ndarray | None


class Attention:
    """What the attention layers share: prepare, attend and a call, around one score.

    context, weights = attention_pooling(score(queries, project(keys)), values)
    """

    specification: Layer
    parameters: dict[str, np.ndarray]

    def __init__(self, *, time_major: bool = False, **options: Any) -> None:
        self.sizes = check_options(self.specification, time_major=time_major, **options)
        self.parameters = {name: np.zeros(shape) for name, shape in self.specification.shapes(self.sizes).items()}
        methods = {name: self.specification.method(name) for name in ("prepare", "attend", "call")}
        self.methods = {name: method.time_major if time_major else method for name, method in methods.items()}
        self.time_major = time_major

    def project(self, keys: np.ndarray) -> np.ndarray:
        """What memory holds of keys: themselves, where a layer does not say otherwise."""
        return keys

    def score(self, queries: np.ndarray, keys: np.ndarray) -> np.ndarray:
        """The score of each query against each projected key."""
        raise NotImplementedError

    def prepare(
        self,
        keys: np.ndarray,
        values: np.ndarray,
        valid_lens: np.ndarray | None = None,
        mask: np.ndarray | None = None,
    ) -> Memory:
        """Project the keys, clear what no query may attend to, and keep it for many queries.

        memory = (projected keys, values, mask), with keys and values 0 where they are hidden from all

        Shapes: keys (batch, keys, features of a key), values (batch, keys, value_features), both with heads after batch
        or without, or (keys, batch, ...) with time_major; valid_lens and mask as in attention_mask. The memory's keys
        are (batch, keys, features of a projected key).
        Raises: ShapeError, DtypeError, MaskError, as attention_mask.
        """
        check(self.methods["prepare"], self.sizes, keys=keys, values=values, valid_lens=valid_lens, mask=mask)
        memory = cleared(self.turned(promote(keys)), self.turned(promote(values)), valid_lens, mask)
        return memory._replace(keys=self.project(memory.keys))

    def attend(
        self, queries: np.ndarray, memory: Memory, *, need_weights: bool = True, dropout_mask: np.ndarray | None = None
    ) -> tuple[np.ndarray, np.ndarray | Any]:
        """Attend with queries to a prepared memory.

        context, weights = attention_pooling(score(queries, memory.keys), memory.values)

        Arguments: need_weights says whether to return the weights. Who needs none, need not keep them: they are None.
        Shapes: queries (batch, queries, features of a query), with heads after batch or without, or
        (queries, batch, ...) with time_major, as is context then; dropout_mask (batch, queries, keys), with heads or
        without. Returns (context, weights) as attention_pooling; weights is None without need_weights.
        Raises: ShapeError, DtypeError; OptionError if need_weights is not a bool.
        """
        check_options(self.methods["attend"], need_weights=need_weights)
        check(self.methods["attend"], self.sizes, queries=queries, memory=memory, dropout_mask=dropout_mask)
        scores = self.score(self.turned(promote(queries)), memory.keys)
        context, weights = pool(scores, memory.values, open_keys(scores, None, memory.mask), dropout_mask)
        return self.turned(context), weights if need_weights else None

    def __call__(
        self,
        queries: np.ndarray,
        keys: np.ndarray,
        values: np.ndarray,
        valid_lens: np.ndarray | None = None,
        mask: np.ndarray | None = None,
        *,
        need_weights: bool = True,
        dropout_mask: np.ndarray | None = None,
    ) -> tuple[np.ndarray, np.ndarray | Any]:
        """Prepare the keys and values, and attend to them."""
        check_options(self.methods["call"], need_weights=need_weights)
        check(
            self.methods["call"],
            self.sizes,
            queries=queries,
            keys=keys,
            values=values,
            valid_lens=valid_lens,
            mask=mask,
            dropout_mask=dropout_mask,
        )
        memory = self.prepare(keys, values, valid_lens, mask)
        return self.attend(queries, memory, need_weights=need_weights, dropout_mask=dropout_mask)

    def turned(self, array: np.ndarray) -> np.ndarray:
        """The array with batch first, of one with time first, or the other way round; as it is without time_major."""
        return array.swapaxes(-2, -3) if self.time_major else array


class DotProductAttention(Attention):
    """Attention by scaled inner products; it has no parameters.

    context, weights = attention_pooling(scaled_dot_score(queries, keys), values)

    Arguments: dropout is the rate at which weights are dropped in training, which the reference leaves to dropout_mask;
    scale is the factor of the scores, 1/√features unless given; with time_major, queries, keys, values and context are
    (steps, batch, features).
    Raises: OptionError if dropout is not in [0, 1) or scale is not a finite number.
    Source: Vaswani et al. 2017, section 3.2.1, arXiv:1706.03762.
    """

    specification: Layer = DOT_PRODUCT_ATTENTION

    def __init__(self, *, dropout: float = 0.0, scale: float | None = None, time_major: bool = False) -> None:
        super().__init__(dropout=dropout, scale=scale, time_major=time_major)

    def score(self, queries: np.ndarray, keys: np.ndarray) -> np.ndarray:
        """Give scale · q·k."""
        return scaled_dot_score(queries, keys, scale=self.sizes["scale"])


class AdditiveAttention(Attention):
    """Attention by a one-layer perceptron over query and key.

    context, weights = attention_pooling(additive_score(W_q queries, W_k keys, w_v), values)

    Arguments: query_size and key_size are the features of a query and a key, hidden_size those of the layer in which
    they meet; dropout and time_major as in DotProductAttention.
    Parameters: W_q (hidden_size, query_size), W_k (hidden_size, key_size), w_v (hidden_size,); no biases.
    Raises: OptionError if a size is not positive or dropout is not in [0, 1).
    Source: Bahdanau et al. 2015, section 3.1 and appendix A.1.2, arXiv:1409.0473.
    """

    specification: Layer = ADDITIVE_ATTENTION

    def __init__(
        self, query_size: int, key_size: int, hidden_size: int, *, dropout: float = 0.0, time_major: bool = False
    ) -> None:
        super().__init__(
            query_size=query_size,
            key_size=key_size,
            hidden_size=hidden_size,
            dropout=dropout,
            time_major=time_major,
        )

    def project(self, keys: np.ndarray) -> np.ndarray:
        """Give W_k k."""
        return linear(keys, self.parameters["W_k"])

    def score(self, queries: np.ndarray, keys: np.ndarray) -> np.ndarray:
        """Give w_v · tanh(W_q q + W_k k)."""
        return additive_score(linear(queries, self.parameters["W_q"]), keys, self.parameters["w_v"])


class GeneralAttention(Attention):
    """Attention by a bilinear form of query and key, also called multiplicative.

    context, weights = attention_pooling(dot_score(queries, W keys), values)

    Arguments: query_size and key_size are the features of a query and a key; dropout and time_major as in
    DotProductAttention.
    Parameters: W (query_size, key_size), which projects keys to the size of queries; no bias.
    Raises: OptionError if a size is not positive or dropout is not in [0, 1).
    Source: Luong et al. 2015, section 3.1, arXiv:1508.04025.
    """

    specification: Layer = GENERAL_ATTENTION

    def __init__(self, query_size: int, key_size: int, *, dropout: float = 0.0, time_major: bool = False) -> None:
        super().__init__(query_size=query_size, key_size=key_size, dropout=dropout, time_major=time_major)

    def project(self, keys: np.ndarray) -> np.ndarray:
        """Give W k."""
        return linear(keys, self.parameters["W"])

    def score(self, queries: np.ndarray, keys: np.ndarray) -> np.ndarray:
        """Give q·W k."""
        return dot_score(queries, keys)


class ConcatAttention(Attention):
    """Attention by a one-layer perceptron over the concatenation of query and key.

    context, weights = attention_pooling(vᵀ tanh(W [queries; keys]), values)

    Arguments: query_size and key_size are the features of a query and a key, hidden_size those of the layer in which
    they meet; dropout and time_major as in DotProductAttention.
    Parameters: W (hidden_size, query_size + key_size), the columns of the query first, v (hidden_size,); no biases.
    The two halves of W are W_q and W_k of AdditiveAttention, which is the same function.
    Raises: OptionError if a size is not positive or dropout is not in [0, 1).
    Source: Luong et al. 2015, section 3.1, arXiv:1508.04025.
    """

    specification: Layer = CONCAT_ATTENTION

    def __init__(
        self, query_size: int, key_size: int, hidden_size: int, *, dropout: float = 0.0, time_major: bool = False
    ) -> None:
        super().__init__(
            query_size=query_size,
            key_size=key_size,
            hidden_size=hidden_size,
            dropout=dropout,
            time_major=time_major,
        )

    def project(self, keys: np.ndarray) -> np.ndarray:
        """Give W [0; k]."""
        return linear(keys, self.parameters["W"][..., self.sizes["query_size"] :])

    def score(self, queries: np.ndarray, keys: np.ndarray) -> np.ndarray:
        """Give V · tanh(W [q; 0] + W [0; k])."""
        queries = linear(queries, self.parameters["W"][..., : self.sizes["query_size"]])
        return additive_score(queries, keys, self.parameters["v"])


class CosineAttention(Attention):
    """Attention by the cosine of the angle between query and key; it has no parameters.

    context, weights = attention_pooling(cosine_score(queries, keys), values)

    Arguments: scale is the factor of the cosines, 1 unless given; dropout and time_major as in DotProductAttention.
    Raises: OptionError if dropout is not in [0, 1) or scale is not a finite number.
    Source: Graves et al. 2014, section 3.3.1, arXiv:1410.5401.
    """

    specification: Layer = COSINE_ATTENTION

    def __init__(self, *, dropout: float = 0.0, scale: float | None = None, time_major: bool = False) -> None:
        super().__init__(dropout=dropout, scale=scale, time_major=time_major)

    def score(self, queries: np.ndarray, keys: np.ndarray) -> np.ndarray:
        """Give scale · q·k/(‖q‖ ‖k‖)."""
        return cosine_score(queries, keys, scale=self.sizes["scale"])


class LocationAttention(Attention):
    """Attention by the query alone: it scores positions, whatever keys stand there.

    context, weights = attention_pooling(location_score(keys, W queries), values)

    Arguments: query_size is the features of a query, num_positions the positions that have a score: there may be fewer
    keys, not more; dropout and time_major as in DotProductAttention.
    Parameters: W (num_positions, query_size); no bias.
    Edge cases: keys give their number alone, and get gradient 0; they may have any features.
    Raises: OptionError if a size is not positive or dropout is not in [0, 1); ShapeError if there are more keys than
    positions.
    Source: Luong et al. 2015, section 3.1, arXiv:1508.04025.
    """

    specification: Layer = LOCATION_ATTENTION

    def __init__(self, query_size: int, num_positions: int, *, dropout: float = 0.0, time_major: bool = False) -> None:
        super().__init__(query_size=query_size, num_positions=num_positions, dropout=dropout, time_major=time_major)

    def project(self, keys: np.ndarray) -> np.ndarray:
        """The keys as they are, of which there may not be more than positions."""
        check_positions(self.specification.name, keys.shape[-2], self.sizes["num_positions"])
        return keys

    def score(self, queries: np.ndarray, keys: np.ndarray) -> np.ndarray:
        """Give W q, at the positions of the keys."""
        return location_score(keys.shape[-2], linear(queries, self.parameters["W"]))


class KernelAttention(Attention):
    """Attention by a Gaussian kernel of the distance between query and key.

    context, weights = attention_pooling(gaussian_score(queries, keys, w), values)

    Arguments: width is the standard deviation of the kernel, 1/w; with learned, w is a parameter that begins at
    1/width, else a constant; dropout and time_major as in DotProductAttention.
    Parameters: w (), if learned.
    Units: width is in those of queries and keys.
    Raises: OptionError if dropout is not in [0, 1), or width is not a finite number above 0.
    Source: Nadaraya 1964, doi:10.1137/1109020; Watson 1964, Sankhya A 26, 359-372.
    """

    specification: Layer = KERNEL_ATTENTION

    def __init__(
        self, *, dropout: float = 0.0, width: float = 1.0, learned: bool = False, time_major: bool = False
    ) -> None:
        super().__init__(dropout=dropout, width=width, learned=learned, time_major=time_major)
        if learned:
            self.parameters["w"] = np.array(1.0 / width)

    def score(self, queries: np.ndarray, keys: np.ndarray) -> np.ndarray:
        """Give -½ ‖(q - k) w‖²."""
        return gaussian_score(queries, keys, self.parameters.get("w", np.array(1.0 / self.sizes["width"])))


class LocalAttention(Attention):
    """Attention to a window of keys, around the query's own position or around one that it predicts.

    weights[i, j] = g[i, j] masked_softmax(scores)[i, j] over open j with |j - p[i]| <= window, context = weights values
    monotonic:  p[i] = i + offset, g = 1
    predictive: p[i] = S[i] σ(v_pᵀ tanh(W_p queries[i])), g[i, j] = exp(-2 (j - p[i])²/window²)

    S is the number of keys up to the last that the query may attend to: its valid length. g is a Gaussian of standard
    deviation window/2, and the weights are not normalised again: predictive ones add up to less than 1.

    Arguments: query_size and key_size are the features of a query and a key, window is D of the paper; mode says what
    stands in its middle; score is the score by name, and scored the layer of that score; hidden_size is that of an
    additive or concat score and of W_p, query_size unless given; num_positions is for score="location" alone; dropout
    and time_major as in DotProductAttention.
    Parameters: W_p (hidden_size, query_size), v_p (hidden_size,), if predictive; those of scored as scored.W, ...
    Raises: OptionError as the layer of the score, and if an argument would be ignored.
    Source: Luong et al. 2015, section 3.2, arXiv:1508.04025.
    """

    specification: Layer = LOCAL_ATTENTION

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
    ) -> None:
        super().__init__(
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
        self.scored = attention_layer(self.specification.inside(self.sizes)["scored"])

    def project(self, keys: np.ndarray) -> np.ndarray:
        """As the layer of the score."""
        self.scored.parameters = inner(self.parameters, "scored.")
        return self.scored.project(keys)

    def score(self, queries: np.ndarray, keys: np.ndarray) -> np.ndarray:
        """As the layer of the score."""
        self.scored.parameters = inner(self.parameters, "scored.")
        return self.scored.score(queries, keys)

    def attend(
        self,
        queries: np.ndarray,
        memory: Memory,
        *,
        need_weights: bool = True,
        offset: np.ndarray | None = None,
        dropout_mask: np.ndarray | None = None,
    ) -> tuple[np.ndarray, np.ndarray | Any]:
        """Attend with queries to a prepared memory.

        weights[i, j] = g[i, j] masked_softmax(scores)[i, j] over open j with |j - p[i]| <= window

        Shapes: as Attention.attend; offset (batch,), 0 unless given, for mode="monotonic" alone.
        Raises: ShapeError, DtypeError; OptionError if need_weights is not a bool or offset would be ignored.
        """
        check_options(self.methods["attend"], need_weights=need_weights)
        check(
            self.methods["attend"],
            self.sizes,
            queries=queries,
            memory=memory,
            offset=offset,
            dropout_mask=dropout_mask,
        )
        check_offset(self.specification.name, self.sizes["mode"], offset)
        queries = self.turned(promote(queries))
        scores = self.score(queries, memory.keys)
        allowed = open_keys(scores, None, memory.mask)
        if self.sizes["mode"] == "monotonic":
            centre = np.arange(scores.shape[-2]) + np.zeros(scores.shape[:-1])
            if offset is not None:  # for each sequence, which heads follow where there are some
                rank = memory.values.ndim if memory.mask is None else memory.mask.ndim
                centre = centre + offset.reshape(-1, *[1] * (rank - 2))
        else:
            hidden = np.tanh(linear(queries, self.parameters["W_p"]))
            seen = np.ones(scores.shape[-1], bool) if memory.mask is None else memory.mask
            ends = (np.arange(1, scores.shape[-1] + 1) * seen).max(axis=-1, initial=0)
            centre = ends * sigmoid((hidden * align(self.parameters["v_p"], 1, hidden.ndim)).sum(axis=-1))
        distance = np.arange(scores.shape[-1]) - centre[..., None]
        allowed = allowed & (distance.real**2 <= self.sizes["window"] ** 2)
        if self.sizes["mode"] == "monotonic":
            context, weights = pool(scores, memory.values, allowed, dropout_mask)
        else:
            near = np.where(allowed, np.exp(-2.0 * (distance / self.sizes["window"]) ** 2), 0.0)
            factor = near if dropout_mask is None else near * promote(dropout_mask)
            context, weights = pool(scores, memory.values, allowed, factor)
            weights = weights * near
        return self.turned(context), weights if need_weights else None

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
    ) -> tuple[np.ndarray, np.ndarray | Any]:
        """Prepare the keys and values, and attend to them."""
        check_options(self.methods["call"], need_weights=need_weights)
        check(
            self.methods["call"],
            self.sizes,
            queries=queries,
            keys=keys,
            values=values,
            valid_lens=valid_lens,
            mask=mask,
            offset=offset,
            dropout_mask=dropout_mask,
        )
        memory = self.prepare(keys, values, valid_lens, mask)
        return self.attend(queries, memory, need_weights=need_weights, offset=offset, dropout_mask=dropout_mask)


class HardAttention(Attention):
    """Attention to a single key: the one with the highest score, or one drawn by given noise.

    weights[i, j] = 1 where j is the first argmax over open k of scores[i, k] - ln(-ln(noise[i, k])), else 0
    context = weights values, and no gradient reaches the scores

    Without noise, its term is 0. With noise, each key is drawn with its softmax probability.

    Arguments: query_size and key_size are the features of a query and a key; score is the score by name, and scored the
    layer of that score; hidden_size is that of an additive or concat score, query_size unless given; num_positions is
    for score="location" alone; time_major as in DotProductAttention.
    Parameters: those of scored as scored.W_q, ...
    Raises: OptionError as the layer of the score, and if an argument would be ignored.
    Source: Xu et al. 2015, section 4.1, arXiv:1502.03044; drawn by the Gumbel-max trick.
    """

    specification: Layer = HARD_ATTENTION

    def __init__(
        self,
        query_size: int,
        key_size: int,
        *,
        score: str = "additive",
        hidden_size: int | None = None,
        num_positions: int | None = None,
        time_major: bool = False,
    ) -> None:
        super().__init__(
            query_size=query_size,
            key_size=key_size,
            score=score,
            hidden_size=hidden_size,
            num_positions=num_positions,
            time_major=time_major,
        )
        self.scored = attention_layer(self.specification.inside(self.sizes)["scored"])

    def project(self, keys: np.ndarray) -> np.ndarray:
        """As the layer of the score."""
        self.scored.parameters = inner(self.parameters, "scored.")
        return self.scored.project(keys)

    def score(self, queries: np.ndarray, keys: np.ndarray) -> np.ndarray:
        """As the layer of the score."""
        self.scored.parameters = inner(self.parameters, "scored.")
        return self.scored.score(queries, keys)

    def attend(  # type: ignore[override]
        self, queries: np.ndarray, memory: Memory, *, need_weights: bool = True, noise: np.ndarray | None = None
    ) -> tuple[np.ndarray, np.ndarray | Any]:
        """Attend with queries to a prepared memory.

        weights[i, j] = 1 where j is the first argmax over open k of scores[i, k] - ln(-ln(noise[i, k])), else 0

        Shapes: as Attention.attend; noise as weights, strictly between 0 and 1.
        Edge cases: a query that may attend to nothing gets weights and context 0.
        Raises: ShapeError, DtypeError; OptionError if need_weights is not a bool.
        """
        check_options(self.methods["attend"], need_weights=need_weights)
        check(self.methods["attend"], self.sizes, queries=queries, memory=memory, noise=noise)
        scores = self.score(self.turned(promote(queries)), memory.keys)
        allowed = open_keys(scores, None, memory.mask)
        scores = scores.real if noise is None else scores.real - np.log(-np.log(promote(noise).real))
        weights = np.zeros(scores.shape)
        if scores.shape[-1]:
            best = np.where(allowed, scores, -np.inf).argmax(axis=-1)
            weights = np.where(allowed, np.arange(scores.shape[-1]) == best[..., None], 0.0)
        return self.turned(average(weights, memory.values, allowed)), weights if need_weights else None

    def __call__(  # type: ignore[override]
        self,
        queries: np.ndarray,
        keys: np.ndarray,
        values: np.ndarray,
        valid_lens: np.ndarray | None = None,
        mask: np.ndarray | None = None,
        *,
        need_weights: bool = True,
        noise: np.ndarray | None = None,
    ) -> tuple[np.ndarray, np.ndarray | Any]:
        """Prepare the keys and values, and attend to them."""
        check_options(self.methods["call"], need_weights=need_weights)
        check(
            self.methods["call"],
            self.sizes,
            queries=queries,
            keys=keys,
            values=values,
            valid_lens=valid_lens,
            mask=mask,
            noise=noise,
        )
        memory = self.prepare(keys, values, valid_lens, mask)
        return self.attend(queries, memory, need_weights=need_weights, noise=noise)


class NadarayaWatson:
    """Kernel regression: predict at each query the average of the values, weighted by nearness of their keys.

    predictions[i] = sum over j of weights[i, j] values[j];  weights as of KernelAttention

    Arguments: width is the standard deviation of the kernel, 1/w; with learned, w is a parameter that begins at
    1/width, else a constant.
    Parameters: kernel.w (), if learned.
    Units: width is in those of queries and keys; predictions are in those of the values.
    Raises: OptionError if width is not a finite number above 0.
    Source: Nadaraya 1964, doi:10.1137/1109020; Watson 1964, Sankhya A 26, 359-372.
    """

    specification: Layer = NADARAYA_WATSON

    def __init__(self, *, width: float = 1.0, learned: bool = False) -> None:
        self.sizes = check_options(self.specification, width=width, learned=learned)
        self.kernel = KernelAttention(width=width, learned=learned)
        self.parameters = {f"kernel.{name}": array for name, array in self.kernel.parameters.items()}

    def __call__(
        self,
        queries: np.ndarray,
        keys: np.ndarray,
        values: np.ndarray,
        valid_lens: np.ndarray | None = None,
        mask: np.ndarray | None = None,
    ) -> tuple[np.ndarray, np.ndarray]:
        """Predict at each query.

        predictions[i] = sum over j of weights[i, j] values[j];  weights as of KernelAttention

        Shapes: queries (batch, queries), keys and values (batch, keys), valid_lens (batch,) or (batch, queries), mask
        (batch, queries, keys), each axis its size or 1. Returns (predictions, weights): (batch, queries),
        (batch, queries, keys).
        Raises: ShapeError, DtypeError, MaskError.
        """
        check(
            self.specification.method("call"),
            self.sizes,
            queries=queries,
            keys=keys,
            values=values,
            valid_lens=valid_lens,
            mask=mask,
        )
        self.kernel.parameters = inner(self.parameters, "kernel.")
        queries, keys, values = (promote(array)[..., None] for array in (queries, keys, values))
        predictions, weights = self.kernel(queries, keys, values, valid_lens, mask)
        return predictions[..., 0], weights


class MultiHeadAttention(Attention):
    """Attention by several heads at once, each with its own projections.

    context = W_o [head_0; head_1; ...] + b_o;  head_h, weights_h = attention(queries_h, keys_h, values_h), with
    queries_h the h-th part of W_q queries + b_q, keys_h of W_k keys + b_k, values_h of W_v values + b_v

    Arguments: query_size is the features of a query and of the context, num_heads the number of heads; key_size is the
    features of a key, query_size unless given, value_size those of a value, key_size unless given; hidden_size is the
    features of all heads together, query_size unless given; score is the score by name, and scored the layer of that
    score, whose parameters the heads share; num_positions is for score="location" alone; bias says whether the
    projections have biases; dropout and time_major as in DotProductAttention.
    Parameters: W_q (hidden_size, query_size), W_k (hidden_size, key_size), W_v (hidden_size, value_size),
    W_o (query_size, hidden_size); with bias, b_q, b_k, b_v (hidden_size,), b_o (query_size,); those of scored as
    scored.W, ... Head h has the rows from h hidden_size/num_heads on.
    Raises: OptionError if a size is not positive, num_heads does not divide hidden_size, or an argument is ignored.
    Source: Vaswani et al. 2017, section 3.2.2, arXiv:1706.03762.
    """

    specification: Layer = MULTI_HEAD_ATTENTION

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
    ) -> None:
        super().__init__(
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
        self.scored = attention_layer(self.specification.inside(self.sizes)["scored"])

    def prepare(
        self,
        keys: np.ndarray,
        values: np.ndarray,
        valid_lens: np.ndarray | None = None,
        mask: np.ndarray | None = None,
    ) -> Memory:
        """Project the keys and values of every head, and keep them for many queries.

        memory = (projected keys, projected values, mask), of keys and values 0 where hidden from all

        Shapes: keys (batch, keys, key_size), values (batch, keys, value_size), or (keys, batch, ...) with time_major;
        valid_lens and mask as in attention_mask, the mask with heads after batch or without. The memory's keys and
        values are (batch, heads, keys, features of a head), its mask (batch, heads or 1, queries, keys).
        Raises: ShapeError, DtypeError, MaskError, as attention_mask.
        """
        check(self.methods["prepare"], self.sizes, keys=keys, values=values, valid_lens=valid_lens, mask=mask)
        keys, values = self.turned(promote(keys)), self.turned(promote(values))
        allowed = attention_mask(keys.shape[-2], valid_lens, mask)
        if allowed is not None:
            if mask is None or mask.ndim == 3:
                allowed = allowed[:, None]
            seen = np.expand_dims(allowed.any(axis=(-2, -3)), -1)
            keys, values = np.where(seen, keys, 0.0), np.where(seen, values, 0.0)
        self.scored.parameters = inner(self.parameters, "scored.")
        projected = self.scored.project(self.split(self.projected("k", keys)))
        return Memory(projected, self.split(self.projected("v", values)), allowed)

    def attend(
        self,
        queries: np.ndarray,
        memory: Memory,
        *,
        per_head: bool = False,
        need_weights: bool = True,
        head_mask: np.ndarray | None = None,
        dropout_mask: np.ndarray | None = None,
    ) -> tuple[np.ndarray, np.ndarray | Any]:
        """Attend with queries to a prepared memory.

        context = W_o [head_0; head_1; ...] + b_o;  head_h, weights_h = attention(queries_h, keys_h, values_h)

        Arguments: per_head says whether to return the weights of every head, or their mean; need_weights whether to
        return any, as in Attention.attend.
        Shapes: queries (batch, queries, query_size), or (queries, batch, query_size) with time_major, as is context
        then; head_mask (heads,) or (batch, heads); dropout_mask (batch, heads, queries, keys). Returns
        (context, weights): the shape of queries, and (batch, queries, keys) or (batch, heads, queries, keys).
        Raises: ShapeError, DtypeError; OptionError if per_head or need_weights is not a bool, or per_head would be
        ignored.
        """
        check_options(self.methods["attend"], per_head=per_head, need_weights=need_weights)
        check_per_head(self.specification.name, per_head, need_weights)
        check(
            self.methods["attend"],
            self.sizes,
            queries=queries,
            memory=memory,
            head_mask=head_mask,
            dropout_mask=dropout_mask,
        )
        self.scored.parameters = inner(self.parameters, "scored.")
        scores = self.scored.score(self.split(self.projected("q", self.turned(promote(queries)))), memory.keys)
        allowed = scores.real != -np.inf
        if memory.mask is not None:
            allowed = allowed & memory.mask
        context, weights = pool(scores, memory.values, allowed, dropout_mask)
        if head_mask is not None:
            factors = promote(head_mask)
            if factors.ndim < context.ndim - 2:  # one factor for all sequences
                factors = factors[..., None, :]
            context = context * factors[..., None, None]
        joined = context.swapaxes(-2, -3)
        joined = joined.reshape(*joined.shape[:-2], self.sizes["hidden_size"])
        projected = self.turned(self.projected("o", joined))
        if not need_weights:
            return projected, None
        return projected, weights if per_head else weights.mean(axis=-3)

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
    ) -> tuple[np.ndarray, np.ndarray | Any]:
        """Prepare the keys and values, and attend to them."""
        check_options(self.methods["call"], per_head=per_head, need_weights=need_weights)
        check_per_head(self.specification.name, per_head, need_weights)
        check(
            self.methods["call"],
            self.sizes,
            queries=queries,
            keys=keys,
            values=values,
            valid_lens=valid_lens,
            mask=mask,
            head_mask=head_mask,
            dropout_mask=dropout_mask,
        )
        memory = self.prepare(keys, values, valid_lens, mask)
        options = {"per_head": per_head, "need_weights": need_weights}
        return self.attend(queries, memory, **options, head_mask=head_mask, dropout_mask=dropout_mask)

    def projected(self, which: str, inputs: np.ndarray) -> np.ndarray:
        """W x + b, of the projection of that letter."""
        return linear(inputs, self.parameters[f"W_{which}"], self.parameters.get(f"b_{which}"))

    def split(self, array: np.ndarray) -> np.ndarray:
        """(batch, steps, hidden_size) as (batch, heads, steps, features of a head)."""
        return array.reshape(*array.shape[:-1], self.sizes["heads"], self.sizes["head_size"]).swapaxes(-2, -3)


Losses = Callable[[np.ndarray], np.ndarray]


def ablation_importance(losses: Losses, head_mask: np.ndarray) -> np.ndarray:
    """How much the loss rises when a head is switched off, for each head.

    importance[h] = mean over b of losses(head_mask with head h at 0)[b] - losses(head_mask)[b]

    Arguments: losses is a function from head_mask to the loss of each example, (batch,).
    Shapes: head_mask (batch, heads), 1 for a head that is on; the result (heads,).
    Units: those of the loss.
    Raises: ShapeError, DtypeError; OptionError if losses is not a function.
    Source: Michel et al. 2019, section 3.2, arXiv:1905.10650.
    """
    check_options(ABLATION_IMPORTANCE, losses=losses)
    check(ABLATION_IMPORTANCE, head_mask=head_mask)
    head_mask = promote(head_mask)
    heads = head_mask.shape[-1]
    whole = losses(head_mask)
    without = [losses(np.where(np.arange(heads) == head, 0.0, head_mask)) for head in range(heads)]
    return np.array([(loss - whole).mean() for loss in without])


def taylor_importance(losses: Losses, head_mask: np.ndarray) -> np.ndarray:
    """How much the loss would change to first order if a head were switched off, for each head.

    importance[h] = mean over b of |head_mask[b, h] d losses(head_mask)[b] / d head_mask[b, h]|

    Arguments: losses is a function from head_mask to the loss of each example, (batch,), an example's loss depending on
    its own row alone.
    Shapes: head_mask (batch, heads), 1 for a head that is on; the result (heads,).
    Units: those of the loss.
    Raises: ShapeError, DtypeError; OptionError if losses is not a function.
    Source: Michel et al. 2019, section 4.1, arXiv:1905.10650.
    """
    check_options(TAYLOR_IMPORTANCE, losses=losses)
    check(TAYLOR_IMPORTANCE, head_mask=head_mask)
    head_mask = promote(head_mask)
    found = gradients(
        lambda arrays: (losses(arrays["head_mask"]),),
        {"head_mask": head_mask},
        {"0": np.ones(head_mask.shape[0])},
        stacked=False,
    )
    product = head_mask * found["head_mask"]
    return np.where(product < 0.0, -product, product).mean(axis=0)


class SinusoidalPositions:
    """Add to each input the sines and cosines of its position; it has no parameters.

    outputs[t] = inputs[t] + P[t + offset];  P[p, 2i] = sin(p/10000^(2i/features)), P[p, 2i + 1] = cos(...)

    Arguments: features is the features of an input, an even number; layout says whether sines and cosines take turns
    ("interleaved", as in the paper), or the sines come first ("concatenated"): P[p, i] = sin(p/10000^(2i/features)),
    P[p, features/2 + i] = cos(...). position_permutation is the order that turns the one into the other.
    Raises: OptionError if features is not even or layout is another word.
    Source: Vaswani et al. 2017, section 3.5, arXiv:1706.03762.
    """

    specification: Layer = SINUSOIDAL_POSITIONS

    def __init__(self, features: int, *, layout: str = "interleaved") -> None:
        self.sizes = check_options(self.specification, features=features, layout=layout)
        self.parameters: dict[str, np.ndarray] = {}

    def __call__(self, inputs: np.ndarray, *, offset: int = 0) -> np.ndarray:
        """Add the positions from offset on.

        outputs[t] = inputs[t] + P[t + offset]

        Shapes: inputs (batch, steps, features), as is the result.
        Raises: ShapeError, DtypeError; OptionError if offset is negative.
        """
        operator = self.specification.method("call")
        check_options(operator, offset=offset)
        check(operator, self.sizes, inputs=inputs)
        high, low = rates(self.sizes["features"])
        positions = (np.arange(inputs.shape[-2]) + float(offset))[:, None]
        sine, cosine = np.sin(positions * high), np.cos(positions * high)
        small_sine, small_cosine = np.sin(positions * low), np.cos(positions * low)
        pair = [sine * small_cosine + cosine * small_sine, cosine * small_cosine - sine * small_sine]
        table = np.stack(pair, axis=-1 if self.sizes["layout"] == "interleaved" else -2)
        return promote(inputs) + table.reshape(inputs.shape[-2:])


class LearnedPositions:
    """Add to each input a learned vector for its position.

    outputs[t] = inputs[t] + P[t + offset]

    Arguments: num_positions is the positions that have a vector, features the features of an input.
    Parameters: P (num_positions, features).
    Raises: OptionError if a size is not positive.
    Source: Gehring et al. 2017, section 3.1, arXiv:1705.03122.
    """

    specification: Layer = LEARNED_POSITIONS

    def __init__(self, num_positions: int, features: int) -> None:
        self.sizes = check_options(self.specification, num_positions=num_positions, features=features)
        self.parameters = {name: np.zeros(shape) for name, shape in self.specification.shapes(self.sizes).items()}

    def __call__(self, inputs: np.ndarray, *, offset: int = 0) -> np.ndarray:
        """Add the positions from offset on.

        outputs[t] = inputs[t] + P[t + offset]

        Shapes: inputs (batch, steps, features), as is the result.
        Raises: ShapeError if a step stands behind the last position; DtypeError; OptionError if offset is negative.
        """
        operator = self.specification.method("call")
        check_options(operator, offset=offset)
        check(operator, self.sizes, inputs=inputs)
        end = offset + inputs.shape[-2]
        check_length(operator.title, end, self.sizes["num_positions"])
        rows = self.parameters["P"][..., offset:end, :]
        return promote(inputs) + align(rows, 2, inputs.ndim)


def position_permutation(features: int) -> np.ndarray:
    """The order that turns interleaved sines and cosines into concatenated ones.

    permutation[i] = 2i for i < features/2, else 2i + 1 - features;  concatenated = interleaved[permutation]

    Shapes: the result (features,), int32.
    Raises: OptionError if features is not an even number.
    Source: this specification.
    """
    check_options(POSITION_PERMUTATION, features=features)
    return np.arange(features, dtype=np.int32).reshape(-1, 2).T.reshape(-1)


LAYERS: dict[str, type[Attention]] = {
    layer.__name__: layer
    for layer in (
        DotProductAttention,
        AdditiveAttention,
        GeneralAttention,
        ConcatAttention,
        CosineAttention,
        LocationAttention,
        KernelAttention,
        LocalAttention,
    )
}


def attention_layer(part: Part) -> Attention:
    """The attention layer that stands inside another one."""
    return LAYERS[part.layer.name](**part.config)


def cleared(keys: np.ndarray, values: np.ndarray, valid_lens: np.ndarray | None, mask: np.ndarray | None) -> Memory:
    """Keys and values with 0 where no query may attend to them, and the one mask."""
    allowed = attention_mask(keys.shape[-2], valid_lens, mask)
    if allowed is None:
        return Memory(keys, values, None)
    if mask is None and keys.ndim == 4:
        allowed = allowed[:, None]
    seen = np.expand_dims(allowed.any(axis=-2), -1)
    return Memory(np.where(seen, keys, 0.0), np.where(seen, values, 0.0), allowed)
