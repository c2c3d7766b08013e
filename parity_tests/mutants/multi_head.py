"""Wrong attention with several heads, wrong pruning of heads, and wrong importance and rollout of heads."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any
from unittest import mock

import numpy as np

from attention_core.differentiation import gradients
from attention_core.operators.multi_head import Remaining, remaining
from attention_core.reference.memory import Memory
from attention_core.specification import Sizes
from parity_tests.mutants.mutant import Wrong, mutant
from parity_tests.mutants.shared import has_sizes, is_passed


def _has_masks_of_sequences(self: Any, memory: Memory) -> bool:
    """Whether several heads share a mask, and sequences do not."""
    shared = memory.mask is not None and memory.mask.shape[1] == 1 < self.sizes["heads"]
    return shared and bool((memory.mask != memory.mask[:1]).any())  # type: ignore[index]


def _has_as_many_heads(self: Any, memory: Memory) -> bool:
    """The same where there are as many sequences as heads."""
    return _has_masks_of_sequences(self, memory) and len(memory.mask) == self.sizes["heads"]  # type: ignore[arg-type]


def _is_joining_heads(self: Any, which: str, inputs: Any) -> bool:
    """Whether several heads of several queries are projected together."""
    return which == "o" and self.sizes["heads"] > 1 and inputs.shape[-2] > 1


def _is_rotary(self: Any) -> bool:
    """Whether heads have rotary positions."""
    return self.rotary is not None


def _is_scaled_otherwise(query_size: int, num_heads: int, hidden_size: int | None, score: str) -> bool:
    """Whether several heads scale their scores, by another number of features than those of a query."""
    return score == "scaled_dot" and num_heads > 1 and hidden_size != query_size * num_heads


def _with_another_mask(change: Wrong) -> Wrong:
    """Attending with a mask that is made by a function of the layer and the memory."""

    def attend(original: Any, self: Any, memory: Memory) -> Any:
        return original(memory=memory._replace(mask=change(self, memory)))

    return attend


def _split_as_it_lies(self: Any, array: Any) -> Any:
    *lead, steps, _ = array.shape
    return array.reshape(*lead, self.sizes["heads"], steps, self.sizes["head_size"])


@mutant("multi_head.MultiHeadAttention._to_batch_first", touches=has_sizes(time_major=True))
def time_major_heads(array: Any) -> Any:
    """Attention with several heads reads time as batch."""
    return array


@mutant("multi_head.linear", cases="MultiHeadAttention-*", touches=is_passed("bias"))
def heads_without_bias(original: Any) -> Any:
    """The projections of the heads have no biases."""
    return original(bias=None)


@mutant("multi_head.MultiHeadAttention._split")
def strided_heads(self: Any, array: Any) -> Any:
    """A head has every n-th feature, n being the number of heads, instead of features side by side."""
    shape = (*array.shape[:-1], self.sizes["head_size"], self.sizes["heads"])
    return np.moveaxis(array.reshape(shape), -1, -3)


@mutant("multi_head.MultiHeadAttention.attend", cases="MultiHeadAttention-head_mask", touches=is_passed("head_mask"))
def head_mask_of_the_first(original: Any, head_mask: Any) -> Any:
    """All sequences switch off the heads of the first."""
    return original(head_mask=np.broadcast_to(head_mask[..., :1, :], head_mask.shape))


@mutant("multi_head.MultiHeadAttention._rotate", touches=_is_rotary)
def heads_not_rotated(heads: Any) -> Any:
    """Rotary positions are ignored."""
    return heads


@mutant("multi_head.MultiHeadAttention._rotate", touches=_is_rotary)
def rotated_before_the_heads_are_split(original: Any, self: Any, heads: Any) -> Any:
    """Each head is rotated at rates of its own: those of a part of all features."""
    joined = np.moveaxis(heads, -3, -2)
    *lead, number, size = joined.shape
    rotary = type(self.rotary)(number * size, layout=self.rotary.sizes["layout"], base=self.rotary.sizes["base"])
    with mock.patch.object(self, "rotary", rotary):
        rotated = original(heads=joined.reshape(*lead, number * size)[..., None, :, :])
    return np.moveaxis(rotated.reshape(*rotated.shape[:-3], rotated.shape[-2], number, size), -2, -3)


@mutant("multi_head.MultiHeadAttention._prepare", touches=_is_rotary)
def values_rotated(original: Any, self: Any, position: Any) -> Any:
    """Values are rotated, too."""
    memory = original()
    return memory._replace(values=self._rotate(memory.values, position))


@mutant(
    "multi_head.MultiHeadAttention._prepare", touches=lambda self, position: _is_rotary(self) and position is not None
)
def steps_rotated_from_zero(original: Any) -> Any:
    """Steps that are added to a memory have positions from 0 on."""
    return original(position=None)


@mutant("multi_head.remaining", cases="MultiHeadAttention-*")
def named_heads_kept(sizes: Sizes, heads: Sequence[int]) -> Remaining:
    """Pruning keeps the heads that are named, and leaves out the others."""
    return remaining(sizes, [head for head in range(sizes["heads"]) if head not in heads])


@mutant("multi_head.remaining", cases="MultiHeadAttention-*")
def last_heads_pruned(original: Any, sizes: Sizes, heads: Sequence[int]) -> Any:
    """Pruning leaves out as many heads as are named, but the last ones."""
    return original(heads=range(sizes["heads"])[-len(heads) :])


@mutant("multi_head.remaining", cases="MultiHeadAttention-*", touches=lambda sizes: sizes["key_heads"] < sizes["heads"])
def key_heads_by_query_heads(original: Any, sizes: Sizes, heads: Sequence[int]) -> Any:
    """A pruned query head takes the key head of its own number with it."""
    right, size = original(), sizes["head_size"]
    key_heads = [head for head in range(sizes["key_heads"]) if head not in heads]
    rows = [row for head in key_heads for row in range(head * size, (head + 1) * size)]
    return right._replace(config={**right.config, "num_key_heads": len(key_heads)}, of_keys=rows)


@mutant("multi_head.MultiHeadAttention.pruned")
def rows_of_the_output_pruned(original: Any, self: Any, heads: Any) -> Any:
    """Pruning takes rows of W_o in place of its columns, as those of W_q, W_k and W_v."""
    layer, matrix = original(), self.parameters["W_o"]
    rows = remaining(self.sizes, heads).of_queries
    layer.parameters["W_o"] = matrix.take(rows, axis=-2, mode="wrap").swapaxes(-1, -2)[..., : matrix.shape[-2], :]
    return layer


@mutant("multi_head.MultiHeadAttention.pruned", touches=lambda self: "scale" in self.scored.sizes)
def pruned_scale_of_all_heads(original: Any) -> Any:
    """After pruning, scores are divided by the root of the features of all heads that remain, not of one."""
    layer = original()
    layer.scored.sizes = {**layer.scored.sizes, "scale": layer.sizes["hidden_size"] ** -0.5}
    return layer


@mutant("ablation_importance")
def gain_for_loss(original: Any) -> Any:
    """The importance of a head is how much the loss falls without it."""
    return -original()


@mutant("taylor_importance")
def signs_cancel(losses: Any, head_mask: Any) -> Any:
    """First-order importance adds up with its sign."""
    cotangents = {"0": np.ones(len(head_mask))}
    slopes = gradients(
        lambda arrays: (losses(arrays["head_mask"]),), {"head_mask": head_mask}, cotangents, stacked=False
    )
    return (head_mask * slopes["head_mask"]).mean(axis=0)


@mutant("attention_rollout", touches=lambda weights: min(weights.shape[-5], weights.shape[-1]) > 1)
def rollout_from_the_top(original: Any, weights: Any) -> Any:
    """The last layer is the rightmost factor of a rollout."""
    return original(weights=weights[..., ::-1, :, :, :, :])


@mutant("attention_rollout", touches=lambda residual: residual > 0.0)
def rollout_of_layers_alone(original: Any) -> Any:
    """A rollout multiplies the layers without their residual connections."""
    return original(residual=0.0)


@mutant("attention_rollout", touches=lambda residual: residual > 0.0)
def rollout_without_identity(original: Any, weights: Any, residual: float) -> Any:
    """A rollout scales the weights of each layer by 1 - residual, and leaves out the steps' own shares."""
    return original(residual=0.0) * (1.0 - residual) ** weights.shape[-5]


@mutant("attention_rollout", touches=lambda weights: weights.shape[-3] > 1)
def rollout_of_multiplied_heads(original: Any, weights: Any) -> Any:
    """A rollout takes the product of a layer's heads, not their mean."""
    return original(weights=np.prod(weights, axis=-3, keepdims=True))


@mutant(
    "multi_head.MultiHeadAttention.attend",
    via=_with_another_mask,
    touches=_has_masks_of_sequences,
    source="line/lighthouse#77",
)
def masks_tiled(layer: Any, memory: Memory) -> Any:
    """For several heads, masks are repeated sequence after sequence, not each for all heads of its sequence."""
    assert memory.mask is not None
    batch, heads = memory.values.shape[-4], layer.sizes["heads"]
    masks = np.broadcast_to(memory.mask[:, 0], (batch, *memory.mask.shape[2:]))
    return masks[np.arange(batch * heads).reshape(batch, heads) % batch]


@mutant(
    "multi_head.MultiHeadAttention.attend",
    cases="MultiHeadAttention-cover_*",
    via=_with_another_mask,
    touches=_has_as_many_heads,
    source="lucidrains/vit-pytorch#71",
)
def mask_met_by_heads(layer: Any, memory: Memory) -> Any:
    """Where there are as many sequences as heads, the mask of a sequence hides keys from a head.

    The mask has no axis of heads, so that its first axis meets that of heads.
    """
    assert memory.mask is not None
    return memory.mask.swapaxes(0, 1)


@mutant(
    "multi_head.MultiHeadAttention._linear",
    touches=_is_joining_heads,
    source="jadore801120/attention-is-all-you-need-pytorch#7",
)
def heads_joined_as_they_lie(original: Any, self: Any, which: str, inputs: Any) -> Any:
    """Heads are joined without moving their axis behind that of queries."""
    if which != "o":
        return original()
    apart = inputs.reshape(*inputs.shape[:-1], self.sizes["heads"], self.sizes["head_size"])
    return original(inputs=apart.swapaxes(-2, -3).reshape(inputs.shape))


@mutant(cases="MultiHeadAttention-*", touches=lambda self: self.sizes["heads"] > 1, source="reczoo/FuxiCTR#30")
def heads_split_as_they_lie() -> Mapping[str, Wrong]:
    """Features are split into heads, and heads joined, without moving the axis of heads."""
    return {
        "multi_head.MultiHeadAttention._split": _split_as_it_lies,
        "multi_head.MultiHeadAttention._linear": heads_joined_as_they_lie,
    }


@mutant("multi_head.MultiHeadAttention.__init__", touches=_is_scaled_otherwise, source="lucidrains/vit-pytorch#65")
def scale_of_the_model(original: Any, self: Any) -> None:
    """In several heads, scores are divided by the root of the features of a query, not of a head."""
    original()
    self.scored.sizes = {**self.scored.sizes, "scale": self.sizes["query_size"] ** -0.5}


@mutant(
    "multi_head.MultiHeadAttention.__init__",
    touches=lambda num_heads, score: score == "scaled_dot" and num_heads > 1,
)
def scale_of_all_heads(original: Any, self: Any) -> None:
    """In several heads, scores are divided by the root of the features of all heads, not of one."""
    original()
    self.scored.sizes = {**self.scored.sizes, "scale": self.sizes["hidden_size"] ** -0.5}
