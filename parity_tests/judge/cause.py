"""The argument of a case that makes an expected quantity zero."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import replace
from typing import Any

from attention_core.errors import AttentionError
from parity_tests.format.expected import computed_gradients, computed_outputs, cotangents
from parity_tests.format.selection import Cell

MOST_ENTRIES = 4096
"""The size of the arguments up to which a cause is looked for: gradients of larger ones take long."""


def cause_of_zero(cell: Cell, quantity: str) -> str:
    """The optional argument without which the quantity is not all zero, with its value if short; empty if none is."""
    case, dtype = cell
    if sum(array.size for array in case.inputs.values()) > MOST_ENTRIES:
        return ""
    for kind in ("inputs", "options", "config"):
        arguments = getattr(case, kind)
        for name, value in arguments.items():
            rest: dict[str, Any] = {kind: {other: arguments[other] for other in arguments if other != name}}
            with suppress(AttentionError, LookupError, TypeError, ValueError):  # it may be a required one
                less = replace(case, drawn=None, **rest)
                outputs = computed_outputs(less, *less.at(dtype))
                if quantity not in outputs:
                    found = computed_gradients(less, *less.at(dtype), cotangents(less, dtype))
                    outputs = {f"gradient_{argument}": array for argument, array in found.items()}
                if outputs[quantity].any():
                    return name if kind == "inputs" else f"{name}={value}"
    return ""
