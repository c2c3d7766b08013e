"""The sources of weights, and which of them arrays fit: the candidates, the best fit, and what is wrong with others."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from backends.weights import backend_layers
from backends.weights.configs import UnseenError
from backends.weights.errors import WeightError
from backends.weights.matching import Fit, fits
from backends.weights.table import Source, plain
from backends.weights.tables import every_source

SOURCES: dict[str, Source] = {**every_source(), **backend_layers.SOURCES}
"""Every source of weights by name, such as "torch.nn.GRU"; "attention_parity.torch" is the backend torch."""

MOST_HINTS, LONGEST_HINT = 5, 320
"""How many sources that nearly fit a refusal names, and the characters of each."""


def recognise(arrays: Mapping[str, np.ndarray]) -> list[str]:
    """The names of the sources that fit all names and shapes, with an optional common prefix such as "encoder.rnn.".

    If there are several, the arrays alone do not determine the source. A source with several layers, each under its own
    prefix, is found, too. If nothing else fits, layers of the backends of installed frameworks are tried.
    """
    names = [source.name for source in sources_with_table() if _is_covering(fits(source, arrays, None, {}))]
    return names or [name for name, source in backend_layers.SOURCES.items() if _of_a_backend(source, arrays)]


def sources_with_table() -> list[Source]:
    """The sources with a table."""
    return [source for source in SOURCES.values() if not source.framework]


def _is_covering(every: Sequence[Fit]) -> bool:
    """Whether the layers of one source, each under its prefix, are all that there is."""
    left = [set(fit.left_over) for fit in every if fit.fits]
    return bool(left) and not set.intersection(*left)


def _of_a_backend(source: Source, arrays: Mapping[str, np.ndarray]) -> bool:
    if _is_lone_scalar(arrays.values()):
        return False
    try:
        backend_layers.read(source.framework, arrays, None, None, {})
    except UnseenError:
        return True
    except WeightError:
        return False
    return True


def _is_lone_scalar(arrays: Iterable[np.ndarray]) -> bool:
    """Whether there is one number alone, which tells no layer."""
    return [array.size for array in arrays] == [1]


def names_under(prefix: str | None, names: Iterable[str]) -> list[str]:
    """The names with the prefix."""
    return [name for name in names if prefix is None or plain(name).startswith(plain(prefix))]


def candidate_names(
    arrays: Mapping[str, np.ndarray], prefix: str | None, layer: str | None, options: Mapping[str, Any]
) -> list[str]:
    """The sources that fit all arrays, or all under the prefix.

    Raises: WeightError if none does, with those that nearly fit.
    """
    every = [fit for source in sources_with_table() for fit in fits(source, arrays, prefix, options)]
    every.sort(key=rank)
    names = list(dict.fromkeys(fit.source.name for fit in every if fit.complete))
    names = names or [
        source.name for source in sources_with_table() if _is_covering([fit for fit in every if fit.source is source])
    ]
    if names:
        return names
    hints = []
    alone = _is_lone_scalar(arrays[name] for name in names_under(prefix, arrays))
    for source in () if alone else backend_layers.SOURCES.values():
        try:
            backend_layers.read(source.framework, arrays, layer, prefix, options)
            names.append(source.name)
        except UnseenError as error:
            hints.append(str(error))
        except WeightError:
            continue
    if names:
        return names
    most = max((len(fit.found) for fit in every if fit.fits), default=0)
    parts = [fit for fit in every if fit.missing and len(fit.found) > most and _all_absent(fit)]
    hints += [f"{fit.source.name}: {_trouble(fit)}" for fit in parts[:1]]
    hints += [
        f"{fit.source.name} fits those under prefix={fit.prefix!r}, and {_first_names(fit.left_over)} is left over."
        for fit in every
        if fit.fits
    ]
    hints += [f"{fit.source.name}: {_trouble(fit)}" for fit in every if not fit.fits and not fit.missing]
    shown = [one if len(one) <= LONGEST_HINT else f"{one[:LONGEST_HINT]}..." for one in dict.fromkeys(hints)]
    nearly = "".join(f" {one}" for one in shown[:MOST_HINTS])
    raise WeightError(
        f"no source fits the arrays {_list_arrays(arrays)}.{nearly} Pass source=... , one of weights.SOURCES, and, if "
        f"only some of the arrays belong to it, prefix=... ."
    )


def best_fit(source: Source, arrays: Mapping[str, np.ndarray], prefix: str | None, options: Mapping[str, Any]) -> Fit:
    """The one way in which the arrays fit.

    Raises: WeightError if they do not, or in several.
    """
    every = fits(source, arrays, prefix, options)
    fitting = [fit for fit in every if fit.fits]
    complete = [fit for fit in fitting if not fit.left_over]
    if complete:
        return complete[0]
    if not every:
        names = ", ".join(row.spellings[0] for row in source.rows if not row.refusal)
        raise WeightError(f"{source.name}: none of the arrays {_list_arrays(arrays)} has one of its names: {names}.")
    prefixes = list(dict.fromkeys(fit.prefix for fit in fitting))
    if len(prefixes) > 1:
        several = "" if source.is_stacked else ", or all of them in the order of the layers"
        listed = ", ".join(map(repr, prefixes))
        raise WeightError(
            f"{source.name} fits under several prefixes: {listed}. Pass prefix=... , one of them{several}."
        )
    raise WeightError(f"{source.name}: {_trouble(every[0])}")


def _trouble(fit: Fit) -> str:
    if fit.problems:
        return " ".join(fit.problems)
    if fit.missing:
        parts = _absent_parts(fit)
        listed = ", ".join(f"{part!r}: ..." for part in parts)
        elsewhere = f" For parts with other names, pass prefix={{'': {fit.prefix!r}, {listed}}}." if parts else ""
        return f"missing: {_first_names(fit.missing)}; found: {_first_names(list(fit.found)) or 'none'}.{elsewhere}"
    advice = f"pass prefix={fit.prefix!r}" if fit.prefix else "take them out"
    return f"left over: {_first_names(fit.left_over)}. If they belong to something else, {advice}."


def rank(fit: Fit) -> tuple[int, int]:
    """A layer comes before the layers inside it; of two with the same arrays, the one with fewer sizes."""
    return -len(fit.found), sum(map(len, fit.sizes.values()))


def _absent_parts(fit: Fit) -> list[str]:
    """The parts of which no array is there."""
    parts = dict.fromkeys(plain(name).removeprefix(fit.prefix).rpartition(".")[0] for name in fit.missing)
    found = [plain(name).removeprefix(fit.prefix) for name in fit.found]
    return [part for part in parts if part and not any(name.startswith(f"{part}.") for name in found)]


def _all_absent(fit: Fit) -> bool:
    """Whether only whole parts are missing, which may have other names."""
    parts = tuple(f"{fit.prefix}{part}." for part in _absent_parts(fit))
    return not fit.problems and all(plain(name).startswith(parts) for name in fit.missing)


def _list_arrays(arrays: Mapping[str, np.ndarray]) -> str:
    return _first_names([f"{name} {array.shape}" for name, array in arrays.items()])


def _first_names(names: Sequence[str]) -> str:
    """The names, or the first of them."""
    return ", ".join(names[:8]) + (f" and {len(names) - 8} more" if len(names) > 8 else "")
