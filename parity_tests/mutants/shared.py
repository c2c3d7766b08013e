"""What mutants of several families are made of."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any
from unittest import mock

import numpy as np

from attention_core.reference.masking import attention_mask
from parity_tests.cases.call import SECOND
from parity_tests.cases.case import Arrays, Case
from parity_tests.mutants.mutant import Break

Holds = Callable[[Case, Arrays], bool]


def without_scale(original: Any) -> Any:
    """A score of queries and keys that ignores its scale."""
    return lambda queries, keys, *, scale=None: original(queries, keys)


def of_the_last(original: Any) -> Any:
    """A location score that is taken from the last positions."""
    return lambda num_keys, queries: queries[..., queries.shape[-1] - num_keys :]


def constructed(**fixed: Any) -> Break:
    """A layer whose constructor takes these values in place of what it is given."""

    def wrong(original: Any) -> Any:
        def __init__(self: Any, *arguments: Any, **config: Any) -> None:
            original(self, *arguments, **{**config, **fixed})

        return __init__

    return wrong


def called_with(**fixed: Any) -> Break:
    """A method that takes these values in place of what it is given."""

    def wrong(original: Any) -> Any:
        return lambda self, *arrays, **given: original(self, *arrays, **{**given, **fixed})

    return wrong


def as_it_is(original: Any) -> Any:
    """A method that gives its array back as it is."""
    return lambda self, array: array


def with_sizes(**changes: Callable[[Any], Any]) -> Break:
    """A method during which some of the layer's sizes are others."""

    def wrong(original: Any) -> Any:
        def call(self: Any, *arrays: Any, **given: Any) -> Any:
            changed = {**self.sizes, **{name: change(self.sizes) for name, change in changes.items()}}
            with mock.patch.object(self, "sizes", changed):
                return original(self, *arrays, **given)

        return call

    return wrong


def unscaled_parts(original: Any) -> Any:
    """What builds a layer inside another one, and never scales inner products."""

    def made(part: Any, *layers: Any) -> Any:
        dot = part.layer.name == "DotProductAttention"
        return original(replace(part, config={**part.config, "scale": 1.0}) if dot else part, *layers)

    return made


NOTHING = ("*-no_*:*",)
"""Where an axis is empty there is nothing to be wrong about."""


GATED = ("GRU-none", "GRU-step", "GRU-no_steps")


def where_all(*all_of: Holds) -> Callable[[Case], bool]:
    """Whether a case has a call of which all of it holds."""

    def touches(case: Case) -> bool:
        first = {name: array for name, array in case.inputs.items() if not name.startswith(SECOND)}
        second = {name.removeprefix(SECOND): case.inputs[name] for name in case.inputs if name.startswith(SECOND)}
        calls = (first, {**first, **second}) if case.twice else (first,)
        shared = ({**call, **{name: call[other] for name, other in case.shared.items()}} for call in calls)
        return any(all(holds(case, call) for holds in all_of) for call in shared)

    return touches


def steps_of(case: Case, array: np.ndarray) -> int:
    """The number of queries or keys of an attention layer's call."""
    return array.shape[0 if case.config.get("time_major") else -2]


def open_to(case: Case, inputs: Arrays) -> np.ndarray | None:
    """What lengths and mask leave open, None where there are none of either."""
    keys = inputs["scores"].shape[-1] if "scores" in inputs else steps_of(case, inputs["keys"])
    return attention_mask(keys, inputs.get("valid_lens"), inputs.get("mask"))
