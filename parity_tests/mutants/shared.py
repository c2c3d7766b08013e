"""What mutants of several families share."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import replace
from typing import Any
from unittest import mock

import numpy as np

from attention_core.reference.masking import attention_mask
from parity_tests.format.call import SECOND
from parity_tests.format.case import Arrays, Case

Holds = Callable[[Case, Arrays], bool]


def last_positions(num_keys: int, queries: Any) -> Any:
    """A location score that is taken from the last positions."""
    return queries[..., queries.shape[-1] - num_keys :]


def unscaled_part(original: Any, part: Any) -> Any:
    """A layer inside another one, without a scale if its score is an inner product."""
    dot = part.layer.name == "DotProductAttention"
    return original(part=replace(part, config={**part.config, "scale": 1.0}) if dot else part)


def with_sizes(layer: Any, **changed: Any) -> AbstractContextManager[Any]:
    """Within the context, replace some of the layer's sizes."""
    return mock.patch.object(layer, "sizes", {**layer.sizes, **changed})


def with_parameters(layer: Any, **changed: Any) -> AbstractContextManager[Any]:
    """Within the context, replace some of the layer's parameters."""
    return mock.patch.object(layer, "parameters", {**layer.parameters, **changed})


NOTHING = "*-no_*:*"
"""Where an axis is empty, no answer can be wrong."""

GATED = "GRU-{none,step,no_steps}"


def where_all(*all_of: Holds) -> Callable[[Case], bool]:
    """Whether all the conditions hold for one of a case's calls."""

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
    """What lengths and mask leave open; None without either."""
    keys = inputs["scores"].shape[-1] if "scores" in inputs else steps_of(case, inputs["keys"])
    return attention_mask(keys, inputs.get("valid_lens"), inputs.get("mask"))


def hides(case: Case, inputs: Arrays) -> bool:
    """Whether a key is hidden from a query."""
    allowed = open_to(case, inputs)
    hidden = allowed is not None and not allowed.all()
    return hidden or bool(np.isneginf(inputs.get("scores", np.zeros(0))).any())
