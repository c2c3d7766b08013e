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
from parity_tests.format.case import Arrays, Case
from parity_tests.mutants.mutant import Wrong, mutant
from parity_tests.mutants.shared import open_to, steps_of, where_all


def _sequences(case: Case, inputs: Arrays) -> int:
    """The number of sequences of an attention layer's call."""
    return inputs["queries"].shape[1 if case.config.get("time_major") else 0]


def _of_heads(case: Case, inputs: Arrays) -> bool:
    """Whether several heads attend, in more than no sequences."""
    return case.operator == "MultiHeadAttention" and case.config["num_heads"] > 1 and _sequences(case, inputs) > 0


def _mask_of_sequences(case: Case, inputs: Arrays) -> bool:
    """Whether all heads share a mask, and sequences do not."""
    allowed = open_to(case, inputs) if _of_heads(case, inputs) else None
    return allowed is not None and allowed.ndim == 3 and bool((allowed != allowed[:1]).any())


def _several_queries(case: Case, inputs: Arrays) -> bool:
    return steps_of(case, inputs["queries"]) > 1


def _as_many_heads(case: Case, inputs: Arrays) -> bool:
    """Whether there are as many sequences as heads."""
    return _sequences(case, inputs) == case.config["num_heads"]


def _with_another_mask(change: Wrong) -> Wrong:
    """Several heads that share a mask, made by a function of the layer and the memory, instead of theirs."""

    def attend(original: Any, self: Any, memory: Memory) -> Any:
        shared = memory.mask is not None and memory.mask.shape[1] == 1
        return original(memory=memory._replace(mask=change(self, memory)) if shared else memory)

    return attend


def _split_as_it_lies(self: Any, array: Any) -> Any:
    *lead, steps, _ = array.shape
    return array.reshape(*lead, self.sizes["heads"], steps, self.sizes["head_size"])


def _scaled_by_all_features(case: Case, inputs: Arrays) -> bool:
    size = case.config.get("hidden_size", case.config["query_size"])
    unequal = size != case.config["query_size"] * case.config["num_heads"]
    return case.config.get("score", "scaled_dot") == "scaled_dot" and unequal


@mutant(
    "MultiHeadAttention-{time_major,no_queries}",
    of="multi_head.MultiHeadAttention._to_batch_first",
    red="MultiHeadAttention-time_major:*",
)
def time_major_heads(array: Any) -> Any:
    """Attention with several heads reads time as batch."""
    return array


@mutant(
    "MultiHeadAttention-{open,no_bias}",
    of="multi_head.linear",
    red="MultiHeadAttention-open:*",
    green="*:gradient_b_k",
)
def heads_without_bias(original: Any) -> Any:
    """The projections of the heads have no biases."""
    return original(bias=None)


@mutant(
    "MultiHeadAttention-{open,no_keys}",
    of="multi_head.MultiHeadAttention._split",
    red="MultiHeadAttention-open:*",
    green="*:gradient_b_{k,o}",
)
def strided_heads(self: Any, array: Any) -> Any:
    """A head has every n-th feature, n being the number of heads, instead of features side by side."""
    shape = (*array.shape[:-1], self.sizes["head_size"], self.sizes["heads"])
    return np.moveaxis(array.reshape(shape), -1, -3)


@mutant(
    "MultiHeadAttention-{none,head_mask}",
    of="multi_head.MultiHeadAttention.attend",
    red="MultiHeadAttention-head_mask:*",
    green="*:{weights,gradient_b_k,gradient_b_o}",
)
def head_mask_of_the_first(original: Any, head_mask: Any) -> Any:
    """All sequences switch off the heads of the first."""
    return original(head_mask=None if head_mask is None else np.broadcast_to(head_mask[..., :1, :], head_mask.shape))


ROTATED = "MultiHeadAttention-{none,rotary*,extended_rotary*}"


def _rotates(case: Case, inputs: Arrays) -> bool:
    return "rotary_layout" in case.config


@mutant(ROTATED, of="multi_head.MultiHeadAttention._rotated", touches=where_all(_rotates))
def heads_not_rotated(heads: Any) -> Any:
    """Rotary positions are ignored."""
    return heads


@mutant(ROTATED, of="multi_head.MultiHeadAttention._rotated", touches=where_all(_rotates))
def rotated_before_the_heads_are_split(original: Any, self: Any, heads: Any) -> Any:
    """Each head is rotated at rates of its own: those of a part of all features."""
    if self.rotary is None:
        return heads
    joined = np.moveaxis(heads, -3, -2)
    *lead, number, size = joined.shape
    rotary = type(self.rotary)(number * size, layout=self.rotary.sizes["layout"], base=self.rotary.sizes["base"])
    with mock.patch.object(self, "rotary", rotary):
        rotated = original(heads=joined.reshape(*lead, number * size)[..., None, :, :])
    return np.moveaxis(rotated.reshape(*rotated.shape[:-3], rotated.shape[-2], number, size), -2, -3)


@mutant(ROTATED, of="multi_head.MultiHeadAttention._prepare", touches=where_all(_rotates))
def values_rotated(original: Any, self: Any, position: Any) -> Any:
    """Values are rotated, too."""
    memory = original()
    return memory._replace(values=self._rotated(memory.values, position))


@mutant(ROTATED, of="multi_head.MultiHeadAttention._prepare", red="*-extended_rotary*:*", green="*:gradient_b_{v,o}")
def steps_rotated_from_zero(original: Any) -> Any:
    """Steps that are added to a memory have positions from 0 on."""
    return original(position=None)


def _prunes(case: Case) -> bool:
    """Whether heads are pruned."""
    return case.method == "pruned"


def _prunes_shared(case: Case) -> bool:
    """Whether heads are pruned that share key heads."""
    return _prunes(case) and "num_key_heads" in case.config


def _prunes_scaled(case: Case) -> bool:
    """Whether heads with scaled scores are pruned."""
    return _prunes(case) and case.config.get("score", "scaled_dot") == "scaled_dot"


PRUNED = "MultiHeadAttention-{open,head_mask,pruned*}"


@mutant(PRUNED, of="multi_head.remaining", touches=_prunes)
def named_heads_kept(sizes: Sizes, heads: Sequence[int]) -> Remaining:
    """Pruning keeps the heads that are named, and leaves out the others."""
    return remaining(sizes, [head for head in range(sizes["heads"]) if head not in heads])


@mutant(PRUNED, of="multi_head.remaining", touches=_prunes)
def last_heads_pruned(original: Any, sizes: Sizes, heads: Sequence[int]) -> Any:
    """Pruning leaves out as many heads as are named, but the last ones."""
    return original(heads=range(sizes["heads"])[-len(heads) :])


@mutant(PRUNED, of="multi_head.remaining", touches=_prunes_shared)
def key_heads_by_query_heads(original: Any, sizes: Sizes, heads: Sequence[int]) -> Any:
    """A pruned query head takes the key head of its own number with it."""
    right, size = original(), sizes["head_size"]
    key_heads = [head for head in range(sizes["key_heads"]) if head not in heads]
    rows = [row for head in key_heads for row in range(head * size, (head + 1) * size)]
    return right._replace(config={**right.config, "num_key_heads": len(key_heads)}, of_keys=rows)


@mutant(PRUNED, of="multi_head.MultiHeadAttention.pruned", touches=_prunes)
def rows_of_the_output_pruned(original: Any, self: Any, heads: Any) -> Any:
    """Pruning takes rows of W_o in place of its columns, as those of W_q, W_k and W_v."""
    layer, matrix = original(), self.parameters["W_o"]
    rows = remaining(self.sizes, heads).of_queries
    layer.parameters["W_o"] = matrix.take(rows, axis=-2, mode="wrap").swapaxes(-1, -2)[..., : matrix.shape[-2], :]
    return layer


@mutant(PRUNED, of="multi_head.MultiHeadAttention.pruned", touches=_prunes_scaled)
def pruned_scale_of_all_heads(original: Any, self: Any) -> Any:
    """After pruning, scores are divided by the root of the features of all heads that remain, not of one."""
    layer = original()
    if "scale" in layer.scored.sizes:
        layer.scored.sizes = {**layer.scored.sizes, "scale": layer.sizes["hidden_size"] ** -0.5}
    return layer


@mutant("ablation_importance-*", of="ablation_importance", red="*:*")
def gain_for_loss(original: Any) -> Any:
    """The importance of a head is how much the loss falls without it."""
    return -original()


@mutant("taylor_importance-*", of="taylor_importance", red="*:*")
def signs_cancel(losses: Any, head_mask: Any) -> Any:
    """First-order importance adds up with its sign."""
    cotangents = {"0": np.ones(len(head_mask))}
    slopes = gradients(
        lambda arrays: (losses(arrays["head_mask"]),), {"head_mask": head_mask}, cotangents, stacked=False
    )
    return (head_mask * slopes["head_mask"]).mean(axis=0)


def _has_steps(case: Case) -> bool:
    """Whether there are steps in some sequence."""
    return case.inputs["weights"].size > 0


def _several_layers(case: Case) -> bool:
    """Whether there are several layers, and several steps, without which their order is the same."""
    layers, *_, steps = case.inputs["weights"].shape
    return _has_steps(case) and layers > 1 and steps > 1


def _several_heads(case: Case) -> bool:
    """Whether there are steps, and several heads."""
    return _has_steps(case) and case.inputs["weights"].shape[-3] > 1


def _with_identity(case: Case) -> bool:
    """Whether there are steps, and a residual connection."""
    return _has_steps(case) and case.options.get("residual", 0.5) > 0.0


ROLLOUT = "attention_rollout-*"


@mutant(ROLLOUT, of="attention_rollout", touches=_several_layers)
def rollout_from_the_top(original: Any, weights: Any) -> Any:
    """The last layer is the rightmost factor of a rollout."""
    return original(weights=weights[..., ::-1, :, :, :, :])


@mutant(ROLLOUT, of="attention_rollout", touches=_with_identity)
def rollout_of_layers_alone(original: Any) -> Any:
    """A rollout multiplies the layers without their residual connections."""
    return original(residual=0.0)


@mutant(ROLLOUT, of="attention_rollout", touches=_with_identity)
def rollout_without_identity(original: Any, weights: Any, residual: float) -> Any:
    """A rollout scales the weights of each layer by 1 - residual, and leaves out the steps' own shares."""
    return original(residual=0.0) * (1.0 - residual) ** weights.shape[-5]


@mutant(ROLLOUT, of="attention_rollout", touches=_several_heads)
def rollout_of_multiplied_heads(original: Any, weights: Any) -> Any:
    """A rollout takes the product of a layer's heads, not their mean."""
    return original(weights=np.prod(weights, axis=-3, keepdims=True))


@mutant(
    "MultiHeadAttention-{ragged*,mask_row,per_head*}",
    of="multi_head.MultiHeadAttention.attend",
    via=_with_another_mask,
    touches=where_all(_mask_of_sequences),
    source="line/lighthouse#77",
)
def masks_tiled(layer: Any, memory: Memory) -> Any:
    """For several heads, masks are repeated sequence after sequence, not each for all heads of its sequence."""
    assert memory.mask is not None
    batch, heads = memory.values.shape[-4], layer.sizes["heads"]
    masks = np.broadcast_to(memory.mask[:, 0], (batch, *memory.mask.shape[2:]))
    return masks[np.arange(batch * heads).reshape(batch, heads) % max(batch, 1)]


@mutant(
    "MultiHeadAttention-{cover_*,ragged}",
    of="multi_head.MultiHeadAttention.attend",
    via=_with_another_mask,
    touches=where_all(_mask_of_sequences, _as_many_heads),
    source="lucidrains/vit-pytorch#71",
)
def mask_met_by_heads(layer: Any, memory: Memory) -> Any:
    """Where there are as many sequences as heads, the mask of a sequence hides keys from a head.

    The mask has no axis of heads, so that its first axis meets that of heads.
    """
    mask = memory.mask
    assert mask is not None
    return mask.swapaxes(0, 1) if mask.shape[0] == layer.sizes["heads"] == memory.values.shape[-4] else mask


@mutant(
    "MultiHeadAttention-{none,per_head,no_queries}",
    of="multi_head.MultiHeadAttention._projected",
    touches=where_all(_of_heads, _several_queries),
    source="jadore801120/attention-is-all-you-need-pytorch#7",
)
def heads_joined_as_they_lie(original: Any, self: Any, which: str, inputs: Any) -> Any:
    """Heads are joined without moving their axis behind that of queries."""
    if which != "o":
        return original()
    apart = inputs.reshape(*inputs.shape[:-1], self.sizes["heads"], self.sizes["head_size"])
    return original(inputs=apart.swapaxes(-2, -3).reshape(inputs.shape))


@mutant("MultiHeadAttention-{none,per_head,no_keys}", touches=where_all(_of_heads), source="reczoo/FuxiCTR#30")
def heads_split_as_they_lie() -> Mapping[str, Wrong]:
    """Features are split into heads, and heads joined, without moving the axis of heads."""
    return {
        "multi_head.MultiHeadAttention._split": _split_as_it_lies,
        "multi_head.MultiHeadAttention._projected": heads_joined_as_they_lie,
    }


@mutant(
    "MultiHeadAttention-{none,one_size,score_dot}",
    of="multi_head.MultiHeadAttention.__init__",
    touches=where_all(_of_heads, _scaled_by_all_features),
    source="lucidrains/vit-pytorch#65",
)
def scale_of_the_model(original: Any, self: Any) -> None:
    """In several heads, scores are divided by the root of the features of a query, not of a head."""
    original()
    if "scale" in self.scored.sizes and self.sizes["score"] == "scaled_dot":
        self.scored.sizes = {**self.scored.sizes, "scale": self.sizes["query_size"] ** -0.5}
