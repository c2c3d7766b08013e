"""Weights move: arrays under anybody's names become canonical ones, and canonical ones get anybody's names.

    from backends import weights

    converted = weights.to_canonical(weights.read_arrays("model.pt"), source="torch.nn.GRU", prefix="encoder.rnn.")
    weights.write_arrays("gru.safetensors", weights.from_canonical("GRU", converted.arrays, "keras.GRU"))

Each source is one table in `backends.weights.sources`. NumPy and safetensors are enough; h5py, onnx and torch are
imported where a file of that kind is read or written. Nothing out of a file is executed.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from backends.weights.configs import check_shapes, config_of, layer_named
from backends.weights.errors import WeightError
from backends.weights.files import read_arrays, write_arrays
from backends.weights.mapping import Fit, Source, assemble, beside, completed, fits, given, plain, written
from backends.weights.sources import found

__all__ = [
    "SOURCES",
    "Converted",
    "Source",
    "WeightError",
    "from_canonical",
    "read_arrays",
    "recognise",
    "to_canonical",
    "write_arrays",
]

SOURCES: dict[str, Source] = found()
"""Every source of weights by name, such as "torch.nn.GRU"."""


@dataclass(frozen=True)
class Converted:
    """Canonical arrays, and where they come from.

    source: the name of the source. layer: the name of the specification's layer. config: the constructor's arguments
    found from shapes and options. arrays: the canonical arrays, in the specification's order and shapes. used: for each
    canonical name the source's names that it is made of. notes: what a reader has to know: biases that add up, what is 0
    because the source has none. beside: arrays of the source that belong to what stands around the layer, by canonical
    name (W_c of LuongDecoder).
    """

    source: str
    layer: str
    config: dict[str, Any]
    arrays: dict[str, np.ndarray]
    used: dict[str, tuple[str, ...]]
    notes: tuple[str, ...] = ()
    beside: dict[str, np.ndarray] = field(default_factory=dict)


def recognise(arrays: Mapping[str, np.ndarray]) -> list[str]:
    """The names of the sources that fit all names and shapes; a common prefix such as "encoder.rnn." may stand before.

    Where it finds several, the arrays alone do not tell which one they are of.
    """
    return [name for name, source in SOURCES.items() if any(fit.complete for fit in fits(source, arrays, None, {}))]


def to_canonical(
    arrays: Mapping[str, np.ndarray],
    source: str | None = None,
    *,
    prefix: str | Sequence[str] | None = None,
    **options: Any,
) -> Converted:
    """Turn a source's arrays into canonical ones.

    arrays: by the source's own names, in its own shapes. source: the name of one of SOURCES; without it, the only one
    that fits. prefix: what stands before the names, such as "encoder.rnn."; only the arrays under it are then taken.
    Several prefixes are the layers of a stack, from the input on. options: constructor arguments of the layer that no
    shape shows, such as num_heads.

    Raises: WeightError if no source fits, or several do; if an array is missing, left over or has another shape than
    the others ask for (it names the array, both shapes, and says whether the transpose would fit); if the specification
    cannot hold it.
    """
    if not arrays:
        raise WeightError("there are no arrays to convert.")
    arrays = {name: np.asarray(array) for name, array in arrays.items()}
    if prefix is not None and not isinstance(prefix, str):
        return _stack(arrays, source, list(prefix), options)
    if source is None:
        source = _only(arrays, prefix, options)
    fit = _best(_source(source), arrays, prefix, options)
    parts = assemble(fit, arrays)
    sized = {
        name: size
        for sizes in fit.sizes.values()
        for name, size in sizes.items()
        if name in {option.name for option in layer_named(fit.form.layer).options}
    }
    config, made = completed(layer_named(fit.form.layer), fit.form, parts, {**sized, **options})
    notes = parts.notes
    if fit.prefix:
        notes.insert(0, f"The names begin with {fit.prefix!r}.")
    return Converted(source, fit.form.layer, config, made, parts.used, tuple(dict.fromkeys(notes)), parts.beside)


def from_canonical(
    layer: str,
    arrays: Mapping[str, np.ndarray],
    source: str,
    *,
    prefix: str | Sequence[str] = "",
    spelling: int = 0,
    **options: Any,
) -> dict[str, np.ndarray]:
    """Canonical arrays of a layer under a source's own names, in its own shapes: the other direction.

    layer: the name of the specification's layer. prefix: what to set before every name; one for each layer of a stack,
    if the source holds one layer. spelling: which of the source's ways to write the names (Keras: 0 as in
    `variable.path`, 1 as in a .weights.h5 file; Gluon: 0 as `save_parameters` writes them). options: constructor
    arguments of the layer that no shape shows, such as num_heads.

    Raises: WeightError if the source cannot hold the arrays, saying what to do.
    """
    arrays = {name: np.asarray(array) for name, array in arrays.items()}
    known = _source(source)
    forms = [form for form in known.forms if form.layer == layer]
    if not forms:
        held = ", ".join(dict.fromkeys(form.layer for form in known.forms))
        raise WeightError(f"{source} holds {held}, not {layer}.")
    if not 0 <= spelling < known.spellings:
        raise WeightError(f"{source}: spelling is {spelling}, expected 0 to {known.spellings - 1}.")
    refusals = []
    for form in forms:
        try:
            return _written(form, arrays, prefix, spelling, options)
        except WeightError as error:
            refusals.append(str(error))
    raise WeightError(" Or: ".join(dict.fromkeys(refusals)))


# ------------------------------------------------------------------------------------------------ steps of the way


def _source(name: str) -> Source:
    if name not in SOURCES:
        raise WeightError(f"no source {name!r}; there are {', '.join(SOURCES)}.")
    return SOURCES[name]


def _only(arrays: Mapping[str, np.ndarray], prefix: str | None, options: Mapping[str, Any]) -> str:
    """The source that fits alone."""
    every = [fit for source in SOURCES.values() for fit in fits(source, arrays, prefix, options)]
    names = list(dict.fromkeys(fit.source.name for fit in every if fit.complete))
    if len(names) == 1:
        return names[0]
    if names:
        raise WeightError(f"the arrays fit {' and '.join(names)}: give source=... , one of them.")
    partly = [
        f"{fit.source.name} fits those under prefix={fit.prefix!r}, and {_told(fit.left_over)} is left over"
        for fit in every
        if fit.fits
    ]
    nearly = [f"{fit.source.name}: {_trouble(fit)}" for fit in every if not fit.fits and not fit.missing]
    told = " ".join(f"{one}." if one[-1] != "." else one for one in list(dict.fromkeys(partly + nearly))[:6])
    raise WeightError(
        f"no source fits the arrays {_listed(arrays)}. {told + ' ' if told else ''}Give source=... and, if only some of "
        f"the arrays belong to it, prefix=... ; there are {', '.join(SOURCES)}."
    )


def _best(source: Source, arrays: Mapping[str, np.ndarray], prefix: str | None, options: Mapping[str, Any]) -> Fit:
    """The one way in which the arrays fit."""
    every = fits(source, arrays, prefix, options)
    fitting = [fit for fit in every if fit.fits]
    complete = [fit for fit in fitting if not fit.left_over]
    if complete:
        return complete[0]
    if not every:
        names = ", ".join(row.spellings[0] for row in source.rows if not row.refusal)
        raise WeightError(f"{source.name}: none of the arrays {_listed(arrays)} has one of its names: {names}.")
    prefixes = list(dict.fromkeys(fit.prefix for fit in fitting))
    if len(prefixes) > 1:
        raise WeightError(
            f"{source.name} fits under several prefixes: {', '.join(map(repr, prefixes))}. Give prefix=... , one of them"
            f"{'' if source.stacked else ', or all of them in the order of the layers'}."
        )
    raise WeightError(f"{source.name}: {_trouble(every[0])}")


def _trouble(fit: Fit) -> str:
    if fit.problems:
        return " ".join(fit.problems)
    if fit.missing:
        return f"missing: {', '.join(fit.missing)}; found: {', '.join(fit.found) or 'none'}."
    advice = f"give prefix={fit.prefix!r}" if fit.prefix else "take them out"
    return f"left over: {_told(fit.left_over)}. If they belong to something else, {advice}."


def _listed(arrays: Mapping[str, np.ndarray]) -> str:
    return _told([f"{name} {array.shape}" for name, array in arrays.items()])


def _told(names: Sequence[str]) -> str:
    """The names, or the first of them."""
    return ", ".join(names[:8]) + (f" and {len(names) - 8} more" if len(names) > 8 else "")


def _stack(
    arrays: Mapping[str, np.ndarray], source: str | None, prefixes: list[str], options: Mapping[str, Any]
) -> Converted:
    """Several layers, each under its own prefix, as one."""
    if not prefixes:
        raise WeightError("prefix is empty, expected one for each layer.")
    converted = [to_canonical(arrays, source, prefix=prefix, **options) for prefix in prefixes]
    if any(
        one.source != converted[0].source or one.config["num_layers"] > 1
        for one in converted
        if "num_layers" in one.config
    ):
        raise WeightError("several prefixes are the layers of a stack: each has to hold one layer of the same source.")
    if "num_layers" not in converted[0].config:
        raise WeightError(f"{converted[0].source}: {converted[0].layer} has no num_layers: give one prefix.")
    made: dict[str, np.ndarray] = {}
    used: dict[str, tuple[str, ...]] = {}
    notes: list[str] = []
    for index, one in enumerate(converted):
        made |= {f"{index}{name[1:]}": array for name, array in one.arrays.items()}
        used |= {f"{index}{name[1:]}": names for name, names in one.used.items()}
        notes += one.notes
    layer = layer_named(converted[0].layer)
    shapes = {name: array.shape for name, array in made.items()}
    config = config_of(layer, shapes, options)
    check_shapes(layer, config, shapes)
    return Converted(converted[0].source, layer.name, config, made, used, tuple(dict.fromkeys(notes)))


def _written(
    form: Source,
    arrays: Mapping[str, np.ndarray],
    prefix: str | Sequence[str],
    spelling: int,
    options: Mapping[str, Any],
) -> dict[str, np.ndarray]:
    layer = layer_named(form.layer)
    shapes = {name: array.shape for name, array in arrays.items() if name not in beside(form)}
    config = config_of(layer, shapes, given(form, options))
    wanted = check_shapes(layer, config, shapes)
    missing = [name for name in wanted if name not in shapes]
    if missing:
        raise WeightError(f"{form.name}: {missing[0]} {wanted[missing[0]]} of {layer.name} is missing.")
    num_layers, bidirectional = config.get("num_layers", 1), bool(config.get("bidirectional", False))
    if not isinstance(prefix, str) or (num_layers > 1 and not form.stacked):
        return _apart(form, arrays, prefix, spelling, num_layers, bidirectional)
    heads = {"num_heads": config["num_heads"]} if "num_heads" in config else {}
    return written(form, arrays, prefix, spelling, num_layers, bidirectional, heads)


def _apart(
    form: Source,
    arrays: Mapping[str, np.ndarray],
    prefix: str | Sequence[str],
    spelling: int,
    num_layers: int,
    bidirectional: bool,
) -> dict[str, np.ndarray]:
    """Each layer of a stack under its own prefix."""
    prefixes = [prefix] if isinstance(prefix, str) else list(prefix)
    if len(prefixes) != num_layers or len({plain(one) for one in prefixes}) < num_layers or form.stacked:
        what = "one prefix for all layers" if form.stacked else f"{num_layers} different prefixes, one for each layer"
        raise WeightError(f"{form.name}: prefix is {prefix!r}, expected {what}.")
    made: dict[str, np.ndarray] = {}
    for index, one in enumerate(prefixes):
        own = {
            "0." + name.partition(".")[2]: array
            for name, array in arrays.items()
            if name.partition(".")[0] == str(index)
        }
        made |= written(form, own, one, spelling, 1, bidirectional, {})
    return made
