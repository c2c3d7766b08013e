"""Conversion of weights: from the arrays of a file to those of another framework, and the validation of both layers."""

from __future__ import annotations

import json
import shlex
import sys
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any, Literal

import numpy as np

import backends
from attention_core.errors import dtype_name
from attention_core.operators import LAYERS
from attention_core.specification import FLOATING, Layer
from backends import FRAMEWORKS, idiom_of, weights
from backends.archives import LONGEST_NAME, ArchiveError
from backends.schema import SchemaError, build
from backends.weights import SOURCES, Converted, WeightError
from backends.weights.configs import check_shapes, config_of, layer_named
from backends.weights.formats import CONFIG, main_file
from backends.weights.matching import fits
from backends.weights.prefixes import names_in_file
from backends.weights.table import plain
from parity_tests.conversion.validation import Side, validate
from parity_tests.format.case import Arrays
from parity_tests.format.expected import programs_folder
from parity_tests.judge.run import Run
from parity_tests.third_party import layers
from parity_tests.workers.environment import environment
from parity_tests.workers.process import Job, Progress, untold

Option = bool | int | float | str | None
"""The value of a constructor argument."""


CANONICAL = "canonical"
"""The source name of canonical arrays."""


def is_numbered(name: str) -> bool:
    """Whether a layer of that source is part of a stack, whose arrays the source's target takes by number."""
    source = SOURCES.get(name)
    return source is not None and source.layer in ("GRU", "LSTM") and not source.is_stacked


@dataclass(frozen=True)
class Move:
    """The arrays of a file and their canonical arrays.

    Both are cast to float64 for the validation; the written arrays are rounded to dtype. prefixes are the name prefixes
    of the layers in the file. Arrays of parts with prefixes of their own have the names of the source's table.
    """

    raw: Arrays
    converted: Converted
    dtype: np.dtype
    prefixes: tuple[str, ...]

    @property
    def layer(self) -> Layer:
        """The specification's layer of the arrays."""
        return layer_named(self.converted.layer)

    @property
    def source_arrays(self) -> Arrays:
        """The source's used arrays, by their names without prefix; those of a stack by number."""
        arrays: Arrays = {}
        for name in self.raw:
            for number, prefix in enumerate(self.prefixes):
                if plain(name).startswith(plain(prefix)):
                    bare = name[len(prefix) :]
                    arrays[f"{number}/{bare}" if is_numbered(self.converted.source) else bare] = self.raw[name]
        return arrays

    def to_dtype(self, arrays: Arrays) -> Arrays:
        """The arrays in the dtype of the file."""
        return {name: array.astype(self.dtype) for name, array in arrays.items()}


@dataclass(frozen=True)
class Conversion:
    """A request to `convert`: all parameters of its validation, except for files and environments."""

    file: str
    target: str
    output: str
    source: str | None = None
    prefixes: tuple[str, ...] = ()
    to_prefix: str = ""
    given: tuple[str, ...] = ()
    how: Literal["full", "own", "no"] = "full"
    max_bytes: int | None = None
    pythons: Mapping[str, str] = field(default_factory=dict)

    @property
    def command(self) -> str:
        """The command of this request."""
        options = [] if self.source is None else ["--from", self.source]
        options += [part for prefix in self.prefixes for part in ("--prefix", prefix)]
        options += ["--to-prefix", self.to_prefix] if self.to_prefix else []
        options += [part for entry in self.given for part in ("--set", entry)]
        options += [] if self.how == "full" else ["--validate", self.how]
        options += [] if self.max_bytes is None else ["--max-bytes", str(self.max_bytes)]
        return shlex.join(["attention-parity", "convert", self.file, "--to", self.target, "-o", self.output, *options])

    @property
    def options(self) -> dict[str, Any]:
        """Parse arguments of the form NAME=VALUE: numbers, true, false and null as in JSON, anything else as a string.

        Raises: WeightError.
        """
        options = {}
        for entry in self.given:
            name, equals, value = entry.partition("=")
            if not equals or not name.isidentifier():
                raise WeightError(f"{entry!r}: expected NAME=VALUE, such as num_heads=8.")
            try:
                options[name] = json.loads(value)
            except json.JSONDecodeError:
                options[name] = value
        return options

    def read(self) -> tuple[Move, Arrays, int]:
        """Read the file and convert its arrays; returns both, and the spelling of the names.

        Raises: WeightError if it cannot be converted; ArchiveError if the file is damaged; AttentionError.
        """
        _check_places(Path(self.file), Path(self.output), self.target)
        move = _read(Path(self.file), self.source, self.prefixes, self.options, self.max_bytes)
        return move, *_convert(move, self.target, Path(self.output), self.to_prefix)

    def validate(self, move: Move, written: Arrays, progress: Progress = untold) -> Run:
        """Validate both sides, and return the verdicts.

        Raises: ImportError, before anything runs, if a framework is missing; its message names the alternatives.
        """
        sides = _sides(move, self.target, written, self.how == "full", self.pythons)
        run = validate(move.layer, move.converted.config, move.converted.arrays, sides, progress=progress)
        run.command, run.selects_cells = self.command, False
        return run

    def judge(self, progress: Progress = untold) -> Run:
        """Read and validate without writing a file.

        Raises: WeightError, ArchiveError, AttentionError.
        """
        move, written, _ = self.read()
        return self.validate(move, written, progress)

    @property
    def certificate_entries(self) -> dict[str, Any]:
        """The request as an entry of a certificate."""
        return {
            **asdict(replace(self, pythons={})),
            "kind": "convert",
            "other_python": bool(self.pythons),
            "command": self.command,
        }

    @property
    def listed_files(self) -> dict[str, str]:
        """The files that are read beside the source, by argument."""
        return {"output": self.output}

    @property
    def files(self) -> dict[str, Path]:
        """Those of the two files that exist; of a folder, the file of weights and the settings."""
        places = {self.file: main_file(self.file), f"{self.file}/{CONFIG}": Path(self.file) / CONFIG}
        return {name: place for name, place in {**places, self.output: Path(self.output)}.items() if place.is_file()}


def _check_places(file: Path, output: Path, target: str) -> None:
    backends.regular_file(main_file(file))
    if target not in SOURCES and target not in FRAMEWORKS:
        raise WeightError(f"{target}: expected one of {', '.join(FRAMEWORKS)}, or of {', '.join(SOURCES)}.")
    if not output.absolute().parent.is_dir():
        raise WeightError(f"{output}: there is no folder {output.absolute().parent}.")
    if output.exists() and output.samefile(file):
        raise WeightError(f"{output} is SOURCE itself: write to another file.")
    if target in FRAMEWORKS and output.suffix != ".safetensors":
        raise WeightError(f"{output}: canonical arrays are written as .safetensors.")


# ------------------------------------------------------------------------------------------------ reading


def _read(
    file: Path, source: str | None, prefixes: tuple[str, ...], options: dict[str, Any], max_bytes: int | None
) -> Move:
    """Convert the arrays of the file to canonical ones.

    Raises: WeightError if they cannot be; ArchiveError if the file is damaged.
    """
    file = main_file(file)
    arrays = weights.read_arrays(file, max_bytes)
    if parts := _of_parts(prefixes):
        arrays = {name: arrays[there] for name, there in names_in_file(arrays, parts).items()}
        prefixes = ("",)
    header = _canonical_header(file)
    if source == CANONICAL or (source is None and header):
        return _canonical(arrays, {**header, **options})
    dtypes = {dtype_name(array.dtype) for array in arrays.values()}
    wide = {
        name: array.astype(np.float64) if dtype_name(array.dtype) in FLOATING else array
        for name, array in arrays.items()
    }
    chosen: str | list[str] | None = None if not prefixes else prefixes[0] if len(prefixes) == 1 else list(prefixes)
    settings = weights.read_settings(file, max_bytes)
    converted = weights.to_canonical(wide, source, prefix=chosen, settings=settings, **options)
    used = {name for names in converted.used.values() for name in names}
    used_dtypes = {dtype_name(arrays[name].dtype) for name in used} or dtypes
    if len(used_dtypes) > 1:
        raise WeightError(f"the arrays are of several dtypes, {', '.join(sorted(used_dtypes))}: cast them first.")
    (dtype,) = {arrays[name].dtype for name in used} or {np.dtype(np.float32)}
    return Move(wide, converted, dtype, prefixes or (_prefix(converted, wide, options),))


def _of_parts(prefixes: tuple[str, ...]) -> dict[str, str]:
    """The prefixes by part, if there are any of the form PART=TEXT; one without a part is that of the rest.

    Raises: WeightError.
    """
    parts: dict[str, str] = {}
    for entry in prefixes if any("=" in entry for entry in prefixes) else ():
        part, _, text = entry.rpartition("=")
        if part in parts:
            raise WeightError(f"{part or 'the rest of the layer'} has two prefixes, {parts[part]!r} and {text!r}.")
        parts[part] = text
    return parts


def _prefix(converted: Converted, arrays: Arrays, options: Mapping[str, Any]) -> str:
    """The name prefix of all arrays, as written in the file."""
    used = {name for names in converted.used.values() for name in names}
    source = SOURCES[converted.source]
    for fit in () if source.framework else fits(source, arrays, None, options):
        if fit.fits and used <= set(fit.found):
            return next(iter(used))[: len(fit.prefix)]
    return ""


def _canonical_header(file: Path) -> dict[str, Any]:
    """The layer and its constructor arguments, from the header of a file written by this command."""
    with open(file, "rb") as data:
        if file.suffix != ".safetensors" or not backends.has_digest(data.read(LONGEST_NAME)):
            return {}
    header = backends.load_archive(file)[1]
    if "layer" not in header or "config" not in header:
        return {}
    try:
        return {**build(dict[str, Option], header["config"], "config"), "layer": build(str, header["layer"], "layer")}
    except SchemaError as error:
        raise ArchiveError(f"{file}: the header is invalid: {error}") from error


def _canonical(arrays: Arrays, options: dict[str, Any]) -> Move:
    """Read canonical arrays, without conversion."""
    if "layer" not in options:
        raise WeightError(
            "the layer of the canonical arrays is unknown. Pass layer=... , one of "
            f"{', '.join(layer.name for layer in LAYERS)}."
        )
    layer = layer_named(options.pop("layer"))
    shapes = {name: array.shape for name, array in arrays.items()}
    config = config_of(layer, shapes, options)
    required = check_shapes(layer, config, shapes)
    missing = [name for name in required if name not in arrays]
    if missing:
        raise WeightError(f"{layer.name}: {missing[0]} {required[missing[0]]} is missing.")
    wide = {name: arrays[name].astype(np.float64) for name in required}
    dtype = next((array.dtype for array in arrays.values()), np.dtype(np.float32))
    return Move(wide, Converted(CANONICAL, layer.name, config, wide, {name: (name,) for name in wide}), dtype, ("",))


def _convert(move: Move, target: str, output: Path, prefix: str) -> tuple[Arrays, int]:
    """Convert the arrays in float64; returns them and the spelling of the names."""
    if target in FRAMEWORKS:
        return move.converted.arrays, 0
    if target == move.converted.source:
        raise WeightError(f"the arrays are already those of {target}.")
    numbered = output.name.endswith(".h5") and (target.startswith("keras.") or target == "attention_parity.tf")
    spelling = 1 if numbered else 0
    config = move.converted.config
    arrays, beside = move.converted.arrays, move.converted.beside

    def convert(arrays: Arrays) -> Arrays:
        return weights.from_canonical(move.layer.name, arrays, target, prefix=prefix, spelling=spelling, **config)

    try:
        return convert({**arrays, **beside}), spelling
    except WeightError:
        if not beside:
            raise
        return convert(arrays), spelling


def save(move: Move, target: str, written: Arrays, spelling: int, output: Path) -> None:
    """Write the converted arrays.

    Raises: WeightError, ArchiveError.
    """
    if target not in FRAMEWORKS:
        weights.write_arrays(output, move.to_dtype(written))
        return
    converted = move.converted
    header = {"layer": converted.layer, "config": converted.config, "source": converted.source}
    backends.save_arrays(output, move.to_dtype(written), header)


# ------------------------------------------------------------------------------------------------ the validation


def _sides(move: Move, target: str, written: Arrays, both: bool, chosen: Mapping[str, str]) -> list[Side]:
    """The compared layers, in installed frameworks."""
    sides, missing = [], []
    source = move.converted.source
    parameters = {target: {f"0/{name}" if is_numbered(target) else name: array for name, array in written.items()}}
    if source != CANONICAL and both:
        parameters = {source: move.source_arrays, **parameters}
    for name, arrays in parameters.items():
        entry = layers.entry_of(name, arrays)
        framework = layers.framework_of(entry)
        reason = layers.absence(framework, chosen.get(framework), layers.library_of(entry))
        if reason is not None:
            ways = [f"run it in another environment, --python {framework}=PATH", "skip the validation, --validate no"]
            ways[1:1] = [f"validate {target} only, --validate own"] * (name == source)
            missing.append(f"{name} cannot be validated here: {reason.rstrip('.')}. Or {'; or '.join(ways)}.")
            continue
        variables = environment(framework, programs_folder(), "cpu")
        job = Job(name, layers.place_of(entry), chosen.get(framework, sys.executable), variables=variables)
        sides.append(Side(job, arrays, framework))
    if missing:
        raise ImportError(" ".join(missing))
    return sides


# ------------------------------------------------------------------------------------------------ what comes next


def next_lines(move: Move, target: str, output: Path) -> list[str]:
    """The Python code that loads a file of canonical arrays into a layer of the backend."""
    layer, config, idiom, dtype = move.layer, move.converted.config, idiom_of(target), dtype_name(move.dtype)
    arguments = [repr(config[option.name]) for option in layer.options if option.default is None]
    arguments += [
        f"{option.name}={config[option.name]!r}"
        for option in layer.options
        if option.default is not None and config.get(option.name, option.value) != option.value
    ]
    if layer.trainable:
        arguments += [idiom.dtype.format(dtype)] * (dtype != "float32") + [idiom.required] * bool(idiom.required)
    return [
        *idiom.imports,
        "import backends",
        f"from backends import {target} as attention",
        *(idiom.wide if dtype == "float64" else ()),
        f"layer = attention.{layer.name}({', '.join(arguments)})",
        f"attention.set_parameters(layer, backends.load_arrays({str(output)!r}))",
    ]
