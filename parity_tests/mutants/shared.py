"""What mutants of several families share."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import AbstractContextManager
from dataclasses import replace
from typing import Any
from unittest import mock

from attention_core.reference.masking import attention_mask
from parity_tests.mutants.mutant import Condition


def is_passed(*names: str) -> Condition:
    """The condition that one of these arguments is passed."""

    def touches(arguments: Mapping[str, Any]) -> bool:
        return any(arguments[name] is not None for name in names)

    return touches


def has_sizes(**sizes: Any) -> Condition:
    """The condition that a layer has these sizes."""

    def touches(self: Any) -> bool:
        return all(self.sizes[name] == size for name, size in sizes.items())

    return touches


def has_padding(keys: Any, valid_lens: Any) -> bool:
    """Whether lengths hide a key."""
    return valid_lens is not None and bool((valid_lens < keys.shape[-2]).any())


def has_hidden_keys(keys: Any, valid_lens: Any, mask: Any) -> bool:
    """Whether lengths or a mask hide a key from a query."""
    allowed = attention_mask(keys.shape[-2], valid_lens, mask)
    return allowed is not None and has_hidden(allowed)


def has_rows_of_hidden_keys(keys: Any, valid_lens: Any, mask: Any) -> bool:
    """Whether lengths or a mask leave a query nothing to attend to."""
    allowed = attention_mask(keys.shape[-2], valid_lens, mask)
    return allowed is not None and has_fully_masked_rows(allowed)


def has_hidden(allowed: Any) -> bool:
    """Whether a key is hidden from a query."""
    return not allowed.all()


def is_masked(memory: Any) -> bool:
    """Whether a memory has a mask that hides a key from a query."""
    return memory.mask is not None and not memory.mask.all()


def has_fully_masked_rows(allowed: Any) -> bool:
    """Whether a query may attend to nothing."""
    return not allowed.any(axis=-1).all()


def last_positions(num_keys: int, queries: Any) -> Any:
    """A location score that is taken from the last positions."""
    return queries[..., queries.shape[-1] - num_keys :]


def unscaled_part(original: Any, part: Any) -> Any:
    """A layer inside another one, without a scale."""
    return original(part=replace(part, config={**part.config, "scale": 1.0}))


def is_scaled(part: Any) -> bool:
    """Whether the score of a layer inside another one is a scaled inner product."""
    return part.layer.name == "DotProductAttention" and part.config.get("scale") != 1.0


def with_sizes(layer: Any, **changed: Any) -> AbstractContextManager[Any]:
    """Within the context, replace some of the layer's sizes."""
    return mock.patch.object(layer, "sizes", {**layer.sizes, **changed})


def with_parameters(layer: Any, **changed: Any) -> AbstractContextManager[Any]:
    """Within the context, replace some of the layer's parameters."""
    return mock.patch.object(layer, "parameters", {**layer.parameters, **changed})
