"""Parts of a layer that a file has under prefixes of their own: an nn.Embedding beside the stack that reads it.

prefixes maps the name of a part, as in the table of its source, to the prefix that takes its place in the file; "" is
the rest of the layer: {"": "transformer.", "encoder.embedding": "source_tokens."}.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from backends.weights.errors import WeightError
from backends.weights.table import plain


def _start(part: str) -> str:
    return f"{part}." if part else ""


def names_in_file(names: Mapping[str, np.ndarray], prefixes: Mapping[str, str]) -> dict[str, str]:
    """The names of a table that are in a file, with the names that they have there. Parts may share a prefix.

    Raises: WeightError if no name begins with one of the prefixes.
    """
    of_parts = tuple(plain(prefix) for part, prefix in prefixes.items() if part)
    found: dict[str, str] = {}
    for part, prefix in {"": "", **prefixes}.items():
        under = [name for name in names if plain(name).startswith(plain(prefix))]
        under = under if part else [name for name in under if not plain(name).startswith(of_parts)]
        if not under and part in prefixes:
            raise WeightError(f"no array begins with {prefix!r}, the prefix of {part or 'the layer'}.")
        found |= {_start(part) + name[len(prefix) :]: name for name in under}
    return found


def under_prefixes(arrays: Mapping[str, np.ndarray], prefixes: Mapping[str, str]) -> dict[str, np.ndarray]:
    """The arrays of a table under the names of a file.

    Raises: WeightError if the table has no such part, or parts that share a prefix differ.
    """
    rest = {"": "", **prefixes}
    made: dict[str, np.ndarray] = {}
    for name, array in arrays.items():
        part = max((part for part in rest if plain(name).startswith(_start(part))), key=len)
        renamed = rest[part] + name[len(_start(part)) :]
        if not np.array_equal(made.setdefault(renamed, array), array):
            raise WeightError(f"{renamed} is two different arrays: give their parts different prefixes.")
    for part in prefixes:
        if not any(plain(name).startswith(_start(part)) for name in arrays):
            parts = dict.fromkeys(plain(name).partition(".")[0] for name in arrays)
            raise WeightError(f"there is no part {part!r}; the names begin with {', '.join(parts)}.")
    return made
