"""Weight conversion between the names and layouts of libraries.

Both sides map to the canonical names.

    from backends import weights

    converted = weights.to_canonical(weights.read_arrays("model.pt"), source="torch.nn.GRU", prefix="encoder.rnn.")
    weights.write_arrays("gru.safetensors", weights.from_canonical("GRU", converted.arrays, "keras.GRU"))

Each source is a table in `backends.weights.tables`. Only NumPy and safetensors are required; h5py, onnx and torch are
imported to read or write their file formats. Nothing in a file is executed.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from backends.weights import backend_layers
from backends.weights.candidates import SOURCES, best_fit, candidate_names, names_under, recognise
from backends.weights.configs import layer_named, whole_config
from backends.weights.engine import assemble, beside, complete, to_source, with_fixed_options
from backends.weights.errors import WeightError
from backends.weights.formats import read_arrays, read_settings, write_arrays
from backends.weights.prefixes import names_in_file, under_prefixes
from backends.weights.settings import SavedLayer, check_classes, options_of, stated_options, with_settings
from backends.weights.table import Source, plain

__all__ = [
    "SOURCES",
    "Converted",
    "SavedLayer",
    "Source",
    "WeightError",
    "from_canonical",
    "read_arrays",
    "read_settings",
    "recognise",
    "to_canonical",
    "write_arrays",
]

Prefix = str | Sequence[str] | Mapping[str, str]
"""The prefix of all names; that of each layer of a stack; or that of each part, by its name."""


@dataclass(frozen=True)
class Converted:
    """Canonical arrays and their origin.

    source: the name of the source. layer: the name of the specification's layer. config: the constructor arguments
    inferred from shapes and options. arrays: the canonical arrays, in the specification's order and shapes. used: the
    source's names from which each canonical array is built. notes: remarks for the user, such as summed biases, or
    zeros for arrays that the source lacks. beside: arrays of the source that belong to the enclosing model, by
    canonical name (W_c of LuongDecoder). assumed: settings of the source that its file does not hold.
    """

    source: str
    layer: str
    config: dict[str, Any]
    arrays: dict[str, np.ndarray]
    used: dict[str, tuple[str, ...]]
    notes: tuple[str, ...] = ()
    beside: dict[str, np.ndarray] = field(default_factory=dict)
    assumed: dict[str, Any] = field(default_factory=dict)


def to_canonical(
    arrays: Mapping[str, np.ndarray],
    source: str | None = None,
    *,
    prefix: Prefix | None = None,
    layer: str | None = None,
    settings: Sequence[SavedLayer] = (),
    **options: Any,
) -> Converted:
    """Turn a source's arrays into canonical ones.

    arrays: by the source's names, in its shapes. source: the name of one of SOURCES; without it, the only one
    that fits, or the first of several that give the same (the notes name the others). prefix: the prefix of the
    names, such as "encoder.rnn."; only the arrays under it are then converted. Several prefixes are the layers of a
    stack, from the input on; or those of parts, by name: {"": "encoder.", "embedding": "tokens."}, "" being the rest.
    layer: the name of the specification's layer, if the arrays fit several. settings: what the file says beside the
    arrays (`read_settings`). options: constructor arguments that neither shapes nor settings determine, such as
    num_heads.

    Raises: WeightError if no source fits, or several do and differ; if an array is missing, left over or has another
    shape than the others require (it names the array, both shapes, and says whether the transpose would fit); if the
    specification cannot represent it, or a setting of the layer.
    """
    if not arrays:
        raise WeightError("there are no arrays to convert.")
    arrays = {name: np.asarray(array) for name, array in arrays.items()}
    alike: dict[str, str] = {}
    for name in arrays:
        if alike.setdefault(plain(name), name) != name:
            raise WeightError(f"{alike[plain(name)]} and {name} are two spellings of one name: remove one of them.")
    if isinstance(prefix, Mapping):
        there = names_in_file(arrays, prefix)
        renamed = {name: arrays[original] for name, original in there.items()}
        converted = to_canonical(renamed, source, prefix="", layer=layer, **options)
        used = {name: tuple(there[one] for one in names) for name, names in converted.used.items()}
        return replace(converted, used=used)
    if prefix is not None and not isinstance(prefix, str):
        return _stack(arrays, source, list(prefix), layer, settings, options)
    if source is not None:
        return _convert(_source(source), arrays, prefix, layer, settings, options, chosen=True)
    known = check_classes(names_under(prefix, arrays), settings, SOURCES.values())
    names = candidate_names(arrays, prefix, layer, options) if known is None else [known]
    several = WeightError(f"the arrays fit {' and '.join(names)}: pass source=... , one of them.")
    try:
        every = [_convert(SOURCES[name], arrays, prefix, layer, settings, options) for name in names]
    except WeightError as error:  # a layer without the options of another
        raise error if len(names) == 1 else several from error
    if not all(_same(every[0], one) for one in every):
        raise several
    if len(names) == 1:
        return every[0]
    note = f"{' and '.join(names[1:])} would give the same arrays."
    return replace(every[0], notes=(*every[0].notes, note))


def from_canonical(
    layer: str,
    arrays: Mapping[str, np.ndarray],
    source: str,
    *,
    prefix: Prefix = "",
    spelling: int = 0,
    **options: Any,
) -> dict[str, np.ndarray]:
    """Convert canonical arrays of a layer to a source's names and shapes.

    layer: the name of the specification's layer. prefix: the prefix of every name; one for each layer of a stack,
    if the source holds one layer; or one for each part, by name, as in `to_canonical`. spelling: which of the source's
    ways to write the names (Keras: 0 as in `variable.path`, 1 as in a .weights.h5 file; Gluon: 0 as `save_parameters`
    writes them; textbook: 0 PyTorch's, 1 Gluon's, 2 the book's). options: constructor arguments that shapes do not
    determine, such as num_heads.

    Raises: WeightError, with advice, if the source cannot represent the arrays.
    """
    if isinstance(prefix, Mapping):
        return under_prefixes(from_canonical(layer, arrays, source, spelling=spelling, **options), prefix)
    arrays = {name: np.asarray(array) for name, array in arrays.items()}
    known = _source(source)
    if known.framework:
        return _written_for_a_backend(known.framework, layer, arrays, prefix, spelling, options)
    forms = _forms_of(known, layer)
    if not 0 <= spelling < known.spellings:
        raise WeightError(f"{source}: spelling is {spelling}, expected 0 to {known.spellings - 1}.")
    refusals = []
    for form in forms:
        try:
            return _rename(form, arrays, prefix, spelling, options)
        except WeightError as error:
            refusals.append(str(error))
    raise WeightError(" Or: ".join(dict.fromkeys(refusals)))


# ------------------------------------------------------------------------------------------------ steps of the way


def _source(name: str) -> Source:
    if name not in SOURCES:
        raise WeightError(f"no source {name!r}; there are {', '.join(SOURCES)}.")
    return SOURCES[name]


def _same(one: Converted, other: Converted) -> bool:
    """Whether two conversions differ only in the name of their source."""
    return (
        (one.layer, one.config) == (other.layer, other.config)
        and one.arrays.keys() == other.arrays.keys()
        and all(np.array_equal(one.arrays[name], other.arrays[name], equal_nan=True) for name in one.arrays)
    )


def _convert(
    source: Source,
    arrays: Mapping[str, np.ndarray],
    prefix: str | None,
    layer: str | None,
    settings: Sequence[SavedLayer],
    options: Mapping[str, Any],
    chosen: bool = False,
) -> Converted:
    """The conversion from one source; chosen if the user named it."""
    if source.framework:
        held = options_of(source, names_under(prefix, arrays), settings, chosen) or {}
        options = with_settings(options, {name: value for name, value in held.items() if name != "layer"})
        made = backend_layers.read(source.framework, arrays, layer or held.get("layer"), prefix, options)
        begin = (f"The names begin with {made.prefix!r}.",) if made.prefix else ()
        return Converted(source.name, made.layer.name, made.config, made.arrays, made.used, begin)
    if layer is not None:
        first, *rest = _forms_of(source, layer)
        source = replace(first, also=tuple(rest), settings=source.settings)
    stated = stated_options(source, names_under(prefix, arrays), settings)  # settings say more than the shapes
    fit = best_fit(source, arrays, prefix, {**stated, **options})
    found = options_of(source, fit.found, settings, chosen)
    options = with_settings(options, found or {})
    parts = assemble(fit, arrays)
    kind = layer_named(fit.form.layer)
    known = {option.name for option in kind.options}
    seen = {name: size for sizes in fit.sizes.values() for name, size in sizes.items() if name in known}
    config, whole = complete(kind, fit.form, parts, {**seen, **options})
    notes = tuple(dict.fromkeys([f"The names begin with {fit.prefix!r}."] * bool(fit.prefix) + parts.notes))
    needed = source.settings.needed if source.settings is not None and found is None else {}
    by_arrays = ("reset_after", *(() if config.get("bidirectional") else ("merge_mode",)))
    assumed = {name: value for name, value in needed.items() if name not in by_arrays}
    return Converted(source.name, kind.name, config, whole, parts.used, notes, parts.beside, assumed)


def _forms_of(source: Source, layer: str) -> list[Source]:
    """The tables of a source that are of one layer, each by itself."""
    forms = [replace(form, also=()) for form in source.forms if form.layer == layer]
    if not forms:
        held = ", ".join(dict.fromkeys(form.layer for form in source.forms))
        raise WeightError(f"{source.name} holds {held}, not {layer}.")
    return forms


def _stack(
    arrays: Mapping[str, np.ndarray],
    source: str | None,
    prefixes: list[str],
    kind: str | None,
    settings: Sequence[SavedLayer],
    options: Mapping[str, Any],
) -> Converted:
    """Several layers, each under its own prefix, as one."""
    if not prefixes:
        raise WeightError("prefix is empty, expected one for each layer.")
    converted = [
        to_canonical(arrays, source, prefix=prefix, layer=kind, settings=settings, **options) for prefix in prefixes
    ]
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
    config, _ = whole_config(layer, {name: array.shape for name, array in made.items()}, options)
    first = converted[0]
    return Converted(first.source, layer.name, config, made, used, tuple(dict.fromkeys(notes)), assumed=first.assumed)


def _rename(
    form: Source,
    arrays: Mapping[str, np.ndarray],
    prefix: str | Sequence[str],
    spelling: int,
    options: Mapping[str, Any],
) -> dict[str, np.ndarray]:
    """The arrays under a source's names; each layer of a stack under its prefix."""
    layer = layer_named(form.layer)
    shapes = {name: array.shape for name, array in arrays.items() if name not in beside(form)}
    config, _ = whole_config(layer, shapes, with_fixed_options(form, options), f"{form.name}: ")
    num_layers, bidirectional = config.get("num_layers", 1), bool(config.get("bidirectional", False))
    if isinstance(prefix, str) and (num_layers == 1 or form.is_stacked):
        names: tuple[str, ...] = ("num_heads", "patch_size", "channels")
        sizes = {name: config[name] for name in names if name in config}
        return to_source(form, arrays, prefix, spelling, num_layers, bidirectional, sizes)
    prefixes = [prefix] if isinstance(prefix, str) else list(prefix)
    if len(prefixes) != num_layers or len({plain(one) for one in prefixes}) < num_layers or form.is_stacked:
        what = (
            "one prefix for all layers" if form.is_stacked else f"{num_layers} different prefixes, one for each layer"
        )
        raise WeightError(f"{form.name}: prefix is {prefix!r}, expected {what}.")
    made: dict[str, np.ndarray] = {}
    for index, one in enumerate(prefixes):
        start = f"{index}."
        single = {f"0.{name.removeprefix(start)}": array for name, array in arrays.items() if name.startswith(start)}
        made |= to_source(form, single, one, spelling, 1, bidirectional, {})
    return made


def _written_for_a_backend(
    framework: str,
    name: str,
    arrays: Mapping[str, np.ndarray],
    prefix: str | Sequence[str],
    spelling: int,
    options: Mapping[str, Any],
) -> dict[str, np.ndarray]:
    """The arrays of a backend layer under its names in that framework."""
    if not isinstance(prefix, str):
        raise WeightError(f"attention_parity.{framework}: prefix is {prefix!r}, expected one prefix for all layers.")
    layer = layer_named(name)
    config, _ = whole_config(layer, {key: array.shape for key, array in arrays.items()}, options)
    made = backend_layers.write(framework, layer, config, arrays)
    if spelling:
        made = {backend_layers.to_h5(path, layer.name): array for path, array in made.items()}
    return {prefix + path: array for path, array in made.items()}
