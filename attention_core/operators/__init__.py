"""The specified functions and layers as data: signatures, axes, formulas and sources.

The files have the same names in every backend.
"""

from __future__ import annotations

from collections.abc import Sequence
from importlib import import_module

from attention_core.operators import (
    attention,
    compressed,
    decoders,
    encoders,
    feed_forward,
    hard,
    images,
    linear,
    local,
    masking,
    multi_head,
    normalization,
    pooling,
    positions,
    recurrent,
    regression,
    scoring,
    segments,
    training,
    transformer,
    transformer_layers,
    translation,
)
from attention_core.specification import Layer, Operator

SPECIFICATION_VERSION = "12"

OF_FILES: dict[str, Sequence[Operator | Layer]] = {
    module.__name__.rpartition(".")[2]: module.OPERATORS
    for module in (
        masking,
        scoring,
        pooling,
        linear,
        attention,
        local,
        hard,
        regression,
        multi_head,
        compressed,
        segments,
        positions,
        normalization,
        feed_forward,
        recurrent,
        encoders,
        decoders,
        transformer_layers,
        transformer,
        translation,
        training,
        images,
    )
}
"""The functions and layers of each file, in order."""

_ALL = [entry for entries in OF_FILES.values() for entry in entries]
OPERATORS = tuple(entry for entry in _ALL if isinstance(entry, Operator))
LAYERS = tuple(entry for entry in _ALL if isinstance(entry, Layer))
ENTRIES: tuple[Operator | Layer, ...] = (*OPERATORS, *training.UPDATES, *LAYERS)
FILE_OF = {entry.name: file for file, entries in OF_FILES.items() for entry in entries} | {
    entry.name: "training" for entry in training.UPDATES
}
"""The file of each function and layer, by name."""
EXPORTED = (*OF_FILES, "memory", "parameters")
"""The files whose names a backend exports, and the reference."""


def find(name: str) -> Operator | Layer:
    """The function or layer of that name."""
    for entry in ENTRIES:
        if entry.name == name:
            return entry
    raise KeyError(f"no operator {name!r}; there are {', '.join(entry.name for entry in ENTRIES)}")


def exports(package: str) -> list[str]:
    """The public names of a backend or of the reference: what its files list in `__all__`."""
    return [name for file in EXPORTED for name in import_module(f"{package}.{file}").__all__]
