"""Wrong linear attention."""

from __future__ import annotations

from typing import Any

import numpy as np

from attention_core.reference.linear import feature_map, read_sums
from attention_core.reference.memory import zero_masked
from parity_tests.mutants.mutant import mutant
from parity_tests.mutants.shared import has_hidden_keys

BLOCK = 64
LINEAR = "linear_attention-* linear_attention_step-*"
CAUSAL = "linear_attention-causal*"


@mutant("linear.read_sums", cases=LINEAR)
def not_divided(features: Any, sums: Any) -> Any:
    """The sums are not divided by the norm."""
    return (features[..., None, :] @ sums)[..., 0, :]


@mutant("linear.read_sums", cases=LINEAR)
def divisor_kept_from_zero(features: Any, sums: Any, norms: Any) -> Any:
    """1e-6 is added to the divisor, as in fast_transformers."""
    totals = (features[..., None, :] @ sums)[..., 0, :]
    return totals / ((features * norms).sum(axis=-1, keepdims=True) + 1e-6)


@mutant(
    "linear.read_sums", cases=LINEAR, touches=lambda features, norms: ((features * norms).sum(axis=-1) == 0.0).any()
)
def divided_by_zero(features: Any, sums: Any, norms: Any) -> Any:
    """A query that may attend to nothing gets 0/0."""
    return (features[..., None, :] @ sums)[..., 0, :] / (features * norms).sum(axis=-1, keepdims=True)


@mutant("linear.feature_map", cases=LINEAR)
def features_of_relu(array: Any) -> Any:
    """The features are relu(x)."""
    return np.where(array.real > 0.0, array, 0.0)


@mutant("linear.feature_map", cases="linear_attention-small")
def small_features_lost(array: Any) -> Any:
    """The features are the sum of 1 and elu(x), in which small ones lose their digits."""
    positive = array.real > 0.0
    return 1.0 + np.where(positive, array, np.expm1(np.where(positive, 0.0, array)))


@mutant("linear_attention", "linear_attention_step", unseen="*-one_key")
def linear_scaled(original: Any, queries: Any) -> Any:
    """Queries are scaled by 1/√features."""
    return original(queries=queries * queries.shape[-1] ** -0.5)


@mutant("linear_attention", touches=has_hidden_keys)
def hidden_features_of_one(original: Any, keys: Any, values: Any, valid_lens: Any, mask: Any) -> Any:
    """Hidden keys become 0, whose features are 1, and count in the norm."""
    keys, values, _ = zero_masked(keys, values, valid_lens, mask)
    return original(keys=keys, values=values, valid_lens=None, mask=None)


@mutant("linear_attention", touches=lambda mask: mask is not None and not mask.all())
def linear_mask_ignored(original: Any, mask: Any) -> Any:
    """What the mask says is ignored; its rank still settles the number of axes."""
    return original(mask=np.ones_like(mask))


@mutant("linear_attention", touches=lambda causal: causal)
def own_key_hidden(original: Any, keys: Any, values: Any) -> Any:
    """A causal query attends only to the keys before its own."""
    return original(keys=_later(keys, -np.inf), values=_later(values, 0.0))


def _later(array: Any, fill: float) -> Any:
    """The entries of an array, each in the place of the next step."""
    return np.concatenate([np.full_like(array[..., :1, :], fill), array[..., :-1, :]], axis=-2)


def _before(sums: Any, axis: int, blocks: int = 0) -> Any:
    """The causal sums before the block of each step, or before the block that is so many blocks later."""
    steps = np.arange(sums.shape[axis])
    places = np.clip((steps // BLOCK + blocks) * BLOCK, 0, len(steps))
    return np.concatenate([0.0 * sums.take([0], axis), sums], axis).take(places, axis)


@mutant("linear.read_sums", cases=CAUSAL)
def own_block_carried(original: Any, sums: Any, norms: Any) -> Any:
    """The sums before a block contain the block itself."""
    sums, norms = (array - _before(array, axis) + _before(array, axis, 1) for array, axis in ((sums, -3), (norms, -2)))
    return original(sums=sums, norms=norms)


@mutant("linear.read_sums", cases="linear_attention-causal_blocks")
def blocks_not_carried(original: Any, sums: Any, norms: Any) -> Any:
    """Each block begins anew."""
    return original(sums=sums - _before(sums, -3), norms=norms - _before(norms, -2))


@mutant("linear.read_sums", cases="linear_attention-causal_blocks")
def blocks_not_added_up(original: Any, sums: Any, norms: Any) -> Any:
    """The sums before a block are those of the last block alone."""
    return original(sums=sums - _before(sums, -3, -1), norms=norms - _before(norms, -2, -1))


@mutant("linear_attention_step")
def context_of_the_steps_before(original: Any, queries: Any, sums: Any, norms: Any) -> Any:
    """The context of a step is that of the sums before it."""
    _, *updated = original()
    return read_sums(feature_map(queries), sums, norms), *updated
