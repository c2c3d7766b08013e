"""Wrong attention to a memory that is shorter than the input."""

from __future__ import annotations

from typing import Any
from unittest import mock

import numpy as np

from attention_core.reference.compressed import joined_blocks
from parity_tests.mutants.mutant import mutant
from parity_tests.mutants.shared import (
    has_hidden_keys,
    has_padding,
    has_rows_of_hidden_keys,
    is_passed,
    with_parameters,
)


def _has_other_first_keys(self: Any, mask: Any) -> bool:
    """Whether the mask of the first keys is not that of the sums of all."""
    return bool((mask[..., : self.sizes["rank"]] != mask.any(axis=-1, keepdims=True)).any())


@mutant("compressed.LowRankAttention._shorten")
def values_summed_as_keys(original: Any, self: Any) -> Any:
    """The values are summed by the weights of the keys."""
    with with_parameters(self, F=self.parameters["E"]):
        return original()


@mutant(
    "compressed.LowRankAttention._shorten",
    cases="LowRankAttention-open",
    touches=lambda self, keys: keys.shape[-2] < self.sizes["num_positions"],
)
def sums_by_the_last_columns(original: Any, self: Any, keys: Any) -> Any:
    """The weights of the last positions count where there are fewer keys than positions."""
    first = self.sizes["num_positions"] - keys.shape[-2]
    with with_parameters(self, **{name: np.roll(self.parameters[name], -first, axis=-1) for name in "EF"}):
        return original()


@mutant("compressed.zero_masked", cases="LowRankAttention-*", touches=has_hidden_keys)
def padding_summed(original: Any, keys: Any, values: Any) -> Any:
    """Hidden keys and values are in the sums, too."""
    return original()._replace(keys=keys, values=values)


@mutant("compressed.LowRankAttention._shorten", touches=lambda mask: not mask.any(axis=-1).all())
def sums_of_nothing_averaged(original: Any) -> Any:
    """Sums are attended to where no key is open."""
    memory = original()
    return memory._replace(mask=np.ones_like(memory.mask))


@mutant("compressed.LowRankAttention._shorten", touches=_has_other_first_keys)
def sums_hidden_as_keys(original: Any, self: Any, mask: Any) -> Any:
    """The mask of the first keys is taken for that of the sums."""
    return original()._replace(mask=mask[..., : self.sizes["rank"]])


@mutant("compressed.InducedAttention.__call__", cases="InducedAttention-one_size")
def gather_and_spread_swapped(original: Any, self: Any) -> Any:
    """The parameters of gather and spread are swapped."""
    swapped = {"gather": "spread", "spread": "gather"}
    names = {name: name.partition(".") for name in self.parameters if "." in name}
    moved = {name: self.parameters[f"{swapped[part]}.{rest}"] for name, (part, _, rest) in names.items()}
    with with_parameters(self, **moved):
        return original()


@mutant(
    "compressed.InducedAttention.__call__",
    cases="InducedAttention-fully_masked InducedAttention-no_keys",
    empty=True,
    touches=has_rows_of_hidden_keys,
)
def nothing_gathered_spread(original: Any, self: Any) -> Any:
    """Queries attend to inducing points that have gathered nothing."""
    prepare = self.spread._prepare
    with mock.patch.object(self.spread, "_prepare", lambda keys, values, *masks: prepare(keys, values, None, None)):
        return original()


@mutant("compressed.InducedAttention.__call__", touches=has_padding)
def padding_gathered(original: Any) -> Any:
    """The inducing points attend to padding, too."""
    return original(valid_lens=None)


@mutant(
    "compressed.CompressedAttention._shorten",
    cases="CompressedAttention-ragged",
    touches=lambda self, mask: mask.shape[-1] % self.sizes["stride"],
)
def whole_blocks_open(original: Any, self: Any, mask: Any) -> Any:
    """A block is open where all of its keys are, and the zeros that fill it are not."""
    opened = joined_blocks(mask.swapaxes(-1, -2), self.sizes["stride"])
    return original()._replace(mask=np.all(opened, axis=-1, keepdims=True).swapaxes(-1, -2))


@mutant("joined_blocks", cases="CompressedAttention-open", touches=lambda steps, stride: steps.shape[-2] % stride)
def last_block_left_out(original: Any, steps: Any, stride: int) -> Any:
    """Keys that do not fill a block are left out."""
    return original(steps=steps[..., : steps.shape[-2] // stride * stride, :])


@mutant("joined_blocks", cases="CompressedAttention-*", touches=lambda stride: stride > 1)
def filter_turned(original: Any, steps: Any, stride: int) -> Any:
    """The filter is turned around, as in a convolution of mathematics."""
    blocks = original()
    *leading, count, width = blocks.shape
    turned = blocks.reshape(*leading, count, stride, width // stride)[..., ::-1, :]
    return turned.reshape(*leading, count, width)


@mutant("joined_blocks", cases="CompressedAttention-*", touches=lambda steps, stride: steps.shape[-2] % stride)
def blocks_filled_at_the_front(original: Any, steps: Any, stride: int) -> Any:
    """Zeros fill the first block, not the last."""
    filled = np.zeros((*steps.shape[:-2], -steps.shape[-2] % stride, steps.shape[-1]), steps.dtype)
    return original(steps=np.concatenate([filled, steps], axis=-2))


@mutant("compressed.linear", cases="CompressedAttention-*", touches=is_passed("bias"))
def compressed_without_bias(original: Any) -> Any:
    """The convolutions have no biases."""
    return original(bias=None)
