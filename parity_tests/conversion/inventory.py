"""What is inside of a file of weights: the layers that a table recognises, each by its arrays, and what is left."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from backends import weights
from backends.weights import SOURCES, SavedLayer, WeightError
from backends.weights.candidates import rank, sources_with_table
from backends.weights.configs import UnseenError
from backends.weights.matching import Fit, fits
from backends.weights.settings import check_classes
from backends.weights.table import plain

OPTIMIZER = "optimizer"
"""The first word of the names of an optimizer's arrays."""


@dataclass(frozen=True)
class Part:
    """Arrays under a prefix, and the source that they are of, if one is recognised; what it is made with, or lacks.

    can_be_converted tells whether `convert` takes it, perhaps with further options.
    """

    prefix: str
    source: str
    names: tuple[str, ...]
    remark: str
    can_be_converted: bool = False


def parts_of(arrays: Mapping[str, np.ndarray], settings: Sequence[SavedLayer] = ()) -> list[Part]:
    """The recognised layers of a file, the largest first, then the arrays that no table has, by what they are in."""
    tables = sources_with_table()
    every = [fit for source in tables for fit in fits(source, arrays, None, {}) if fit.fits and _is_whole(fit, arrays)]
    every.sort(key=rank)
    sources: dict[tuple[str, frozenset[str]], list[str]] = {}
    for fit in every:
        sources.setdefault((fit.prefix, frozenset(fit.found)), []).append(fit.source.name)
    parts: list[Part] = []
    left = dict.fromkeys(arrays)
    for fit in every:
        if not all(name in left for name in fit.found):
            continue
        alike = list(dict.fromkeys(sources[fit.prefix, frozenset(fit.found)]))
        parts.append(_known_part(fit, alike, arrays, settings))
        left = {name: None for name in left if name not in fit.found}
    groups: dict[str, list[str]] = {}
    for name in left:
        groups.setdefault(_owner(name), []).append(name)
    return parts + [_unknown_part(prefix, names, arrays, settings) for prefix, names in groups.items()]


def _owner(name: str) -> str:
    """The path that an array is in; that of a layer whose variables have numbers."""
    return plain(name).rpartition(".")[0].removesuffix("vars").removesuffix(".")


def _is_whole(fit: Fit, arrays: Iterable[str]) -> bool:
    """Whether no other array is beside those of the fit: a norm of two arrays is no norm of four."""
    owners = {_owner(name) for name in fit.found}
    return not any(_owner(name) in owners for name in arrays if name not in fit.found)


def _known_part(
    fit: Fit, alike: Sequence[str], arrays: Mapping[str, np.ndarray], settings: Sequence[SavedLayer]
) -> Part:
    names = tuple(fit.found)
    # Of two layers with the same arrays, the one that the path speaks of.
    path = fit.prefix.replace("_", "")
    alike = sorted(alike, key=lambda name: name.rpartition(".")[2].lower() not in path)
    try:
        inner = [layer for layer in settings if layer.path]  # not a whole model, whose parts these may be
        source = check_classes(names, inner, [SOURCES[name] for name in alike]) or alike[0]
        converted = weights.to_canonical(arrays, source, prefix=fit.prefix, settings=settings)
    except WeightError as error:
        return Part(fit.prefix, alike[0], names, str(error), isinstance(error, UnseenError))
    config = ", ".join(f"{name}={value!r}" for name, value in converted.config.items())
    return Part(fit.prefix, source, names, f"{converted.layer}({config})", True)


def _unknown_part(
    owner: str, names: Sequence[str], arrays: Mapping[str, np.ndarray], settings: Sequence[SavedLayer]
) -> Part:
    shapes = ", ".join("×".join(map(str, arrays[name].shape)) or "scalar" for name in names[:4])
    kinds = [layer.kind for layer in settings if layer.path and any(map(layer.holds, names))]
    is_state = owner.partition(".")[0] == OPTIMIZER
    words = "state of an optimizer, left alone" if is_state else f"no table has {kinds[0] if kinds else 'these names'}"
    return Part(f"{owner}." if owner else "", "", tuple(names), f"{words}: {shapes}{', ...' * (len(names) > 4)}")
