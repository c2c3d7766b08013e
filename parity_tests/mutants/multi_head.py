"""Wrong attention with several heads, and wrong importance of heads."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from attention_core.differentiation import gradients
from attention_core.reference.arrays import linear
from attention_core.reference.attention import Memory
from parity_tests.cases.case import Arrays, Case
from parity_tests.mutants.mutant import Break, mutant
from parity_tests.mutants.shared import as_it_is, called_with, open_to, steps_of, where_all


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


def _heads_meet(change: Callable[[Any, Memory], Any]) -> Break:
    """Several heads whose mask is another, made of the layer and the memory where all heads share one."""

    def wrong(original: Any) -> Any:
        def attend(self: Any, queries: Any, memory: Any, **given: Any) -> Any:
            shared = memory.mask is not None and memory.mask.shape[1] == 1
            return original(self, queries, memory._replace(mask=change(self, memory)) if shared else memory, **given)

        return attend

    return wrong


def _split_as_it_lies(original: Any) -> Any:
    def split(self: Any, array: Any) -> Any:
        *lead, steps, _ = array.shape
        return array.reshape(*lead, self.sizes["heads"], steps, self.sizes["head_size"])

    return split


def _joined_as_they_lie(original: Any) -> Any:
    """What is projected in the end are the heads' outputs, the axis of heads still before that of queries."""

    def projected(self: Any, which: str, inputs: Any) -> Any:
        if which == "o":
            apart = inputs.reshape(*inputs.shape[:-1], self.sizes["heads"], self.sizes["head_size"])
            inputs = apart.swapaxes(-2, -3).reshape(inputs.shape)
        return original(self, which, inputs)

    return projected


def _scaled_by_all_features(case: Case, inputs: Arrays) -> bool:
    size = case.config.get("hidden_size", case.config["query_size"])
    return (
        case.config.get("score", "scaled_dot") == "scaled_dot"
        and size != case.config["query_size"] * (case.config["num_heads"])
    )


@mutant(
    ("MultiHeadAttention-time_major", "MultiHeadAttention-no_queries"),
    of="multi_head.MultiHeadAttention.to_batch_first",
    red="MultiHeadAttention-time_major:*",
)
def time_major_heads(original: Any) -> Any:
    """Attention with several heads reads time as batch."""
    return as_it_is(original)


@mutant(
    ("MultiHeadAttention-open", "MultiHeadAttention-no_bias"),
    of="multi_head.MultiHeadAttention.projected",
    red="MultiHeadAttention-open:*",
    green="*:gradient_b_k",
)
def heads_without_bias(original: Any) -> Any:
    """The projections of the heads have no biases."""
    return lambda self, which, inputs: linear(inputs, self.parameters[f"W_{which}"])


@mutant(
    ("MultiHeadAttention-open", "MultiHeadAttention-no_keys"),
    of="multi_head.MultiHeadAttention.split",
    red="MultiHeadAttention-open:*",
    green=("*:gradient_b_k", "*:gradient_b_o"),
)
def strided_heads(original: Any) -> Any:
    """A head has every so manieth feature instead of a row of them."""

    def split(self: Any, array: Any) -> Any:
        shape = (*array.shape[:-1], self.sizes["head_size"], self.sizes["heads"])
        return np.moveaxis(array.reshape(shape), -1, -3)

    return split


@mutant(
    ("MultiHeadAttention-open", "MultiHeadAttention-per_head"),
    of="multi_head.MultiHeadAttention.attend",
    red="MultiHeadAttention-per_head:*",
)
def per_head_ignored(original: Any) -> Any:
    """The mean of the heads' weights comes back, whatever is asked for."""
    return called_with(per_head=False)(original)


@mutant(
    ("MultiHeadAttention-none", "MultiHeadAttention-head_mask*"),
    of="multi_head.MultiHeadAttention.attend",
    red="MultiHeadAttention-head_mask*:*",
    green=("*:weights", "*:gradient_b_k", "*:gradient_b_o"),
)
def head_mask_ignored(original: Any) -> Any:
    """Heads cannot be switched off."""
    return called_with(head_mask=None)(original)


@mutant(
    ("MultiHeadAttention-none", "MultiHeadAttention-head_mask"),
    of="multi_head.MultiHeadAttention.attend",
    red="MultiHeadAttention-head_mask:*",
    green=("*:weights", "*:gradient_b_k", "*:gradient_b_o"),
)
def head_mask_of_the_first(original: Any) -> Any:
    """All sequences switch off the heads of the first."""

    def attend(self: Any, queries: Any, memory: Any, *, head_mask: Any = None, **given: Any) -> Any:
        row = None if head_mask is None else np.broadcast_to(head_mask[..., :1, :], head_mask.shape)
        return original(self, queries, memory, head_mask=row, **given)

    return attend


@mutant("ablation_importance-*", of="ablation_importance", red="*:*")
def gain_for_loss(original: Any) -> Any:
    """The importance of a head is how much the loss falls without it."""
    return lambda losses, head_mask: -original(losses, head_mask)


@mutant("taylor_importance-*", of="taylor_importance", red="*:*")
def signs_cancel(original: Any) -> Any:
    """First-order importance adds up with its sign."""

    def importance(losses: Any, head_mask: Any) -> Any:
        def total(arrays: Any) -> Any:
            return (losses(arrays["head_mask"]),)

        found = gradients(total, {"head_mask": head_mask}, {"0": np.ones(len(head_mask))}, stacked=False)
        return (head_mask * found["head_mask"]).mean(axis=0)

    return importance


@mutant(
    ("MultiHeadAttention-ragged*", "MultiHeadAttention-mask_row", "MultiHeadAttention-per_head*"),
    of="multi_head.MultiHeadAttention.attend",
    via=_heads_meet,
    touches=where_all(_mask_of_sequences),
    source="line/lighthouse#77",
)
def masks_tiled(layer: Any, memory: Memory) -> Any:
    """For several heads, masks are repeated sequence after sequence, not each for all heads of its own.

    The masks of all sequences one after the other, again and again, for sequences and heads in this order.
    """
    assert memory.mask is not None
    batch, heads = memory.values.shape[-4], layer.sizes["heads"]
    masks = np.broadcast_to(memory.mask[:, 0], (batch, *memory.mask.shape[2:]))
    return masks[np.arange(batch * heads).reshape(batch, heads) % max(batch, 1)]


@mutant(
    ("MultiHeadAttention-cover_*", "MultiHeadAttention-ragged"),
    of="multi_head.MultiHeadAttention.attend",
    via=_heads_meet,
    touches=where_all(_mask_of_sequences, _as_many_heads),
    source="lucidrains/vit-pytorch#71",
)
def mask_met_by_heads(layer: Any, memory: Memory) -> Any:
    """Where there are as many sequences as heads, the mask of a sequence hides keys from a head.

    The mask without an axis of heads, whose first axis then meets that of heads.
    """
    mask = memory.mask
    assert mask is not None
    return mask.swapaxes(0, 1) if mask.shape[0] == layer.sizes["heads"] == memory.values.shape[-4] else mask


@mutant(
    ("MultiHeadAttention-none", "MultiHeadAttention-per_head", "MultiHeadAttention-no_keys"),
    touches=where_all(_of_heads),
    source="reczoo/FuxiCTR#30",
)
def heads_split_as_they_lie() -> Mapping[str, Break]:
    """Features are split into heads, and heads joined, without moving the axis of heads."""
    return {
        "multi_head.MultiHeadAttention.split": _split_as_it_lies,
        "multi_head.MultiHeadAttention.projected": _joined_as_they_lie,
    }


@mutant(
    ("MultiHeadAttention-none", "MultiHeadAttention-per_head", "MultiHeadAttention-no_queries"),
    of="multi_head.MultiHeadAttention.projected",
    touches=where_all(_of_heads, _several_queries),
    source="jadore801120/attention-is-all-you-need-pytorch#7",
)
def heads_joined_as_they_lie(original: Any) -> Any:
    """Heads are joined without moving their axis behind that of queries."""
    return _joined_as_they_lie(original)


@mutant(
    ("MultiHeadAttention-none", "MultiHeadAttention-one_size", "MultiHeadAttention-score_dot"),
    of="multi_head.MultiHeadAttention.__init__",
    touches=where_all(_of_heads, _scaled_by_all_features),
    source="lucidrains/vit-pytorch#65",
)
def scale_of_the_model(original: Any) -> Any:
    """In several heads, scores are divided by the root of the features of a query, not of a head."""

    def __init__(self: Any, *arguments: Any, **config: Any) -> None:
        original(self, *arguments, **config)
        if "scale" in self.scored.sizes and self.sizes["score"] == "scaled_dot":
            self.scored.sizes = {**self.scored.sizes, "scale": self.sizes["query_size"] ** -0.5}

    return __init__
