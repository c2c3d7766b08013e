"""Wrong attention to a memory that is shorter than the input."""

from __future__ import annotations

from typing import Any
from unittest import mock

import numpy as np

from attention_core.reference.compressed import joined_blocks
from parity_tests.mutants.mutant import mutant
from parity_tests.mutants.shared import with_parameters

SUMS = "compressed.LowRankAttention._shortened"


@mutant(
    "LowRankAttention-{open,lens_and_mask,no_keys}",
    of=SUMS,
    red="LowRankAttention-{open,lens_and_mask}:*",
    green="*:weights",
)
def values_summed_as_keys(original: Any, self: Any) -> Any:
    """The values are summed by the weights of the keys."""
    with with_parameters(self, F=self.parameters["E"]):
        return original()


@mutant(
    "LowRankAttention-{open,every_position}",
    of=SUMS,
    red="LowRankAttention-open:*",
)
def sums_by_the_last_columns(original: Any, self: Any, keys: Any) -> Any:
    """The weights of the last positions count where there are fewer keys than positions."""
    first = self.sizes["num_positions"] - keys.shape[-2]
    with with_parameters(self, **{name: np.roll(self.parameters[name], -first, axis=-1) for name in "EF"}):
        return original()


@mutant(
    "LowRankAttention-{none,ragged,hidden_nan,fully_masked}",
    of="compressed.zero_masked",
    red="LowRankAttention-{ragged,hidden_nan,fully_masked}:*",
)
def padding_summed(original: Any, keys: Any, values: Any) -> Any:
    """Hidden keys and values are in the sums, too."""
    return original()._replace(keys=keys, values=values)


@mutant(
    "LowRankAttention-{none,heads_mask,fully_masked,no_keys}",
    of=SUMS,
    red="LowRankAttention-{heads_mask,fully_masked,no_keys}:weights",
)
def sums_of_nothing_averaged(original: Any) -> Any:
    """Sums are attended to where no key is open."""
    memory = original()
    return memory._replace(mask=np.ones_like(memory.mask))


@mutant(
    "LowRankAttention-{none,lens_and_mask,fully_masked}",
    of=SUMS,
    red="LowRankAttention-{lens_and_mask,fully_masked}:*",
)
def sums_hidden_as_keys(original: Any, self: Any, mask: Any) -> Any:
    """The mask of the first keys is taken for that of the sums."""
    return original()._replace(mask=mask[..., : self.sizes["rank"]])


@mutant(
    "InducedAttention-one_size",
    of="compressed.InducedAttention.__call__",
    red="*:*",
    green="*:gradient_{gather,spread}.b_k",
)
def gather_and_spread_swapped(original: Any, self: Any) -> Any:
    """The parameters of gather and spread are swapped."""
    swapped = {"gather": "spread", "spread": "gather"}
    names = {name: name.partition(".") for name in self.parameters if "." in name}
    moved = {name: self.parameters[f"{swapped[part]}.{rest}"] for name, (part, _, rest) in names.items()}
    with with_parameters(self, **moved):
        return original()


@mutant(
    "InducedAttention-{open,lens_and_mask,fully_masked,no_keys}",
    of="compressed.InducedAttention.__call__",
    red="InducedAttention-{fully_masked,no_keys}:{context,weights,gradient_gather.b_o,gradient_spread.{W_v,W_o,b_v}}",
)
def nothing_gathered_spread(original: Any, self: Any) -> Any:
    """Queries attend to inducing points that have gathered nothing."""
    prepare = self.spread._prepare
    with mock.patch.object(self.spread, "_prepare", lambda keys, values, *masks: prepare(keys, values, None, None)):
        return original()


@mutant(
    "InducedAttention-{open,ragged,hidden_nan}",
    of="compressed.InducedAttention.__call__",
    red="InducedAttention-{ragged,hidden_nan}:*",
    green="InducedAttention-ragged:gradient_{gather,spread}.b_{k,v,o}",
)
def padding_gathered(original: Any) -> Any:
    """The inducing points attend to padding, too."""
    return original(valid_lens=None)


@mutant(
    "CompressedAttention-{whole_blocks,ragged,block_masked,stride_of_one}",
    of="compressed.CompressedAttention._shortened",
    red="CompressedAttention-{ragged,block_masked}:*",
    green="*:gradient_b_k CompressedAttention-ragged:gradient_b_v",
)
def whole_blocks_open(original: Any, self: Any, mask: Any) -> Any:
    """A block is open where all of its keys are, and the zeros that fill it are not."""
    opened = joined_blocks(mask.swapaxes(-1, -2), self.sizes["stride"])
    return original()._replace(mask=np.all(opened, axis=-1, keepdims=True).swapaxes(-1, -2))


@mutant(
    "CompressedAttention-{open,whole_blocks,stride_of_one}",
    of="joined_blocks",
    red="CompressedAttention-open:*",
    green="*:gradient_b_{k,v}",
)
def last_block_left_out(original: Any, steps: Any, stride: int) -> Any:
    """Keys that do not fill a block are left out."""
    return original(steps=steps[..., : steps.shape[-2] // stride * stride, :])


@mutant(
    "CompressedAttention-{open,whole_blocks,stride_of_one}",
    of="joined_blocks",
    red="CompressedAttention-{open,whole_blocks}:*",
    green="*:gradient_b_{k,v}",
)
def filter_turned(original: Any, steps: Any, stride: int) -> Any:
    """The filter is turned around, as in a convolution of mathematics."""
    blocks = original()
    *leading, count, width = blocks.shape
    turned = blocks.reshape(*leading, count, stride, width // stride)[..., ::-1, :]
    return turned.reshape(*leading, count, width)


@mutant(
    "CompressedAttention-{open,whole_blocks}",
    of="joined_blocks",
    red="CompressedAttention-open:*",
    green="*:gradient_b_{k,v}",
)
def blocks_filled_at_the_front(original: Any, steps: Any, stride: int) -> Any:
    """Zeros fill the first block, not the last."""
    filled = np.zeros((*steps.shape[:-2], -steps.shape[-2] % stride, steps.shape[-1]), steps.dtype)
    return original(steps=np.concatenate([filled, steps], axis=-2))


@mutant(
    "CompressedAttention-{open,no_bias}",
    of="compressed.linear",
    red="CompressedAttention-open:{context,gradient_b_v}",
)
def compressed_without_bias(original: Any) -> Any:
    """The convolutions have no biases."""
    return original(bias=None)
