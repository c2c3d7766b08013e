"""The reference's outputs and gradients for each case, cached under the digest of case and reference."""

from __future__ import annotations

import contextlib
import functools
import hashlib
import os
import time
import warnings
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

import attention_core
from attention_core import draws, reference
from attention_core.differentiation import gradients as complex_step
from attention_core.operators import find
from attention_core.specification import Layer
from backends.archives import ArchiveError, load_arrays, pack_arrays, save_arrays
from parity_tests.format.call import (
    SECOND,
    STEPS,
    Function,
    bind,
    layer_called,
    layer_of,
    output_names,
    train,
    wrap_call,
)
from parity_tests.format.case import Arrays, Case, computed_in, is_floating

CACHE = "ATTENTION_PARITY_CACHE"
"""The environment variable with the folder of the cache; workers do not get it."""


def cache_folder() -> Path:
    """The folder of expected values and compiled programs: $ATTENTION_PARITY_CACHE, or the user's cache folder."""
    chosen = os.environ.get(CACHE)
    if chosen:
        return Path(chosen)
    try:
        return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "attention-parity"
    except RuntimeError:  # a user without a home; nobody else can write there, either
        return Path(os.devnull, "attention-parity")


def programs_folder() -> Path:
    """The folder for compiled programs alone, which workers write to."""
    return cache_folder() / "programs"


CONDITION = "condition"
"""The part of a cell's cache that `parity_tests.judge.condition` measures."""
MEASURED_BY = ("condition.py", "nudges.py")
"""The files of that folder on which the measurement depends."""

_memory: dict[Path, Arrays] | None = None


@contextlib.contextmanager
def in_memory() -> Iterator[None]:
    """Keep expected values in memory only, until the context is left: for cases that do not repeat."""
    global _memory
    before, _memory = _memory, {}
    try:
        yield
    finally:
        _memory = before


class Frozen(NamedTuple):
    """The cache as it was at a time, in ns: what was read from it, and all that is known, by file."""

    since: int
    read: dict[Path, Arrays]
    known: dict[Path, Arrays]


_frozen: Frozen | None = None


@contextlib.contextmanager
def freeze_cache() -> Iterator[Mapping[Path, Arrays]]:
    """Read from the cache, until the context is left, only what is in there now.

    So files that a worker writes meanwhile are not trusted: the time of their last change, which no program can set, is
    later. Newly computed values are kept in memory and in the cache. Yields the arrays that were read, by file.
    """
    global _frozen
    before, _frozen = _frozen, Frozen(time.time_ns(), {}, {})
    try:
        yield _frozen.read
    finally:
        _frozen = before


def files(case: Case, dtype: str) -> dict[str, Path]:
    """The cache files of a cell: of its outputs, of its gradients, and of its condition, where that was measured."""
    dtype = computed_in(dtype)
    parts = {"outputs": case.dtypes[0] if case.method == "train" else dtype, CONDITION: dtype}
    if case.gradients:
        parts["gradients"] = dtype
    return {part: _file(case, of_dtype, part) for part, of_dtype in parts.items()}


def outputs(case: Case, dtype: str) -> Arrays:
    """The reference's outputs by name."""
    if case.method == "train":  # starts with numbers that every dtype can represent, and is float64 in the reference
        dtype = case.dtypes[0]
    dtype = computed_in(dtype)
    return load_or_compute(case, dtype, "outputs", lambda: computed_outputs(case, *case.at(dtype)))


def gradients(case: Case, dtype: str, without: tuple[str, ...] = ()) -> Arrays:
    """The reference's gradients by name, of every floating input and every parameter, against the cotangents.

    Outputs that are left out have no cotangent.
    """
    if not case.gradients:
        return {}
    dtype = computed_in(dtype)
    factors = cotangents(case, dtype, without)
    part = part_without("gradients", without)
    return load_or_compute(case, dtype, part, lambda: computed_gradients(case, *case.at(dtype), factors))


def expected_values(case: Case, dtype: str, without: tuple[str, ...] = ()) -> Arrays:
    """Every quantity of a cell: outputs, then gradients as gradient_<name>, without those of outputs left out."""
    named = {f"gradient_{name}": array for name, array in gradients(case, dtype, without).items()}
    return {**outputs(case, dtype), **named}


def cotangents(case: Case, dtype: str, without: tuple[str, ...] = ()) -> dict[int, np.ndarray]:
    """The cotangent of each floating output, by position: drawn, since the rows of a softmax have a constant sum."""
    if not case.gradients:
        return {}
    return {
        position: draws.uniform(f"{case.again or case.id}/cotangent/{name}", array.shape).astype(computed_in(dtype))
        for position, (name, array) in enumerate(outputs(case, dtype).items())
        if is_floating(array) and name not in without
    }


def build_reference(case: Case, parameters: Mapping[str, np.ndarray]) -> Any:
    """The reference's layer that a case calls; None for a function."""
    if not case.method:
        return None
    layer = getattr(reference, layer_of(case.operator, case.config))(**case.config)
    reference.set_parameters(layer, parameters)
    return layer_called(layer, case.method, case.options)


Within = Callable[[], contextlib.AbstractContextManager[None]]


def computed_outputs(case: Case, inputs: Arrays, parameters: Arrays) -> Arrays:
    """The reference's outputs by name, without the cache."""
    if case.method == "train":
        return train(reference, build_reference(case, parameters), case.options, inputs)
    results = reference_call(case)(build_reference(case, parameters), **inputs)
    names = output_names(case.operator, case.method, case.options, case.twice)
    return dict(zip(names, map(np.asarray, results), strict=True))


def reference_call(case: Case) -> Function:
    """The reference's call of a case: a function (layer, **arrays) -> tuple of outputs."""
    return wrap_call(bind(reference, case.operator, case.method, case.options), case.shared, case.twice)


def computed_gradients(
    case: Case,
    inputs: Arrays,
    parameters: Arrays,
    cotangents: Mapping[int, np.ndarray],
    masks: Arrays | None = None,
    *,
    entries: Mapping[str, np.ndarray] | None = None,
    within: Within = contextlib.nullcontext,
) -> Arrays:
    """The reference's gradients by name, without the cache. Masks that are not given are `open_masks`.

    entries are the indices of the entries of each argument, without which all are differentiated; within is the context
    of each evaluation.
    """
    layer = build_reference(case, parameters)
    parameters = {} if layer is None else layer.parameters
    function = reference_call(case)
    floating = {name: array for name, array in inputs.items() if is_floating(array)}
    masks = open_masks(case, inputs) if masks is None else masks
    rest = {name: array for name, array in {**inputs, **masks}.items() if name not in floating}
    whole = {**floating, **parameters}

    def call(points: Mapping[str, np.ndarray]) -> tuple[np.ndarray, ...]:
        given = points
        if entries is not None:
            given = {
                **whole,
                **{name: _with_entries(whole[name], entries[name], point) for name, point in points.items()},
            }
        if layer is not None:
            layer.parameters = {name: given[name] for name in parameters}
        with within():
            return function(layer, **{name: given[name] for name in floating}, **rest)

    points = whole
    if entries is not None:
        points = {name: array.reshape(-1)[entries[name]] for name, array in whole.items() if name in entries}
    factors = {str(position): array.astype(np.float64) for position, array in cotangents.items()}
    return complex_step(call, points, factors, stacked=stackable(case, masks))


def _with_entries(array: np.ndarray, places: np.ndarray, entries: np.ndarray) -> np.ndarray:
    """The array, a stack of it if they are one, with those of its entries."""
    stack = entries.shape[:-1]
    changed = np.broadcast_to(array.reshape(-1), (*stack, array.size)).astype(complex)
    changed[..., places] = entries
    return changed.reshape(*stack, *array.shape)


COUNTS = ("valid_lens", "position", "offset")
"""The ends of the names of integers of each sequence."""


def open_masks(case: Case, inputs: Arrays) -> Arrays:
    """Masks that hide nothing, beside the integers of each sequence, whose leading axis could be mistaken for heads.

    The rank of a mask settles the number of axes. A second call has the mask of the first unless it has one of its own.
    """
    entry = find(case.operator)
    calls = entry.methods if isinstance(entry, Layer) else (entry,)
    masks = {tensor.name for call in calls for tensor in call.inputs if tensor.name.endswith("mask")}
    rank = 4 if any(array.ndim == 4 for array in inputs.values()) else 3
    counts = {name: end for name in inputs for end in COUNTS if name.endswith(end)}
    possible = {name.removesuffix(end) + "mask" for name, end in counts.items()}
    missing = {name for name in possible if not {name, name.removeprefix(SECOND)} & set(inputs)}
    return {
        name: np.ones((1,) * rank, bool)
        for name in sorted(missing)
        if name.removeprefix(SECOND).removeprefix(STEPS) in masks
    }


def stackable(case: Case, masks: Arrays) -> bool:
    """Whether perturbations may share a pass: with these masks beside the inputs, the number of axes has to be known.

    It is not with an offset of each sequence where a call has no mask.
    """
    if set(open_masks(case, case.inputs)) - set(masks):
        return False
    return "mask" in {**case.inputs, **masks} or "offset" not in case.inputs


@functools.cache
def _reference_digest() -> bytes:
    root = Path(attention_core.__file__).parent
    digest = hashlib.sha256(Path(__file__).read_bytes())
    for path in sorted(root.rglob("*.py")):
        digest.update(path.read_bytes())
    return digest.digest()


@functools.cache
def _measurement_digest() -> bytes:
    folder = Path(__file__).parents[1] / "judge"
    return hashlib.sha256(b"".join((folder / name).read_bytes() for name in MEASURED_BY)).digest()


def _file(case: Case, dtype: str, part: str) -> Path:
    measured = _measurement_digest() + bytes([case.gradients]) if part.startswith(CONDITION) else b""
    key = hashlib.sha256(_digest(case, dtype) + part.encode() + measured).hexdigest()
    return cache_folder() / "expected" / f"{key}.safetensors"


@functools.lru_cache(maxsize=4096)
def _digest(case: Case, dtype: str) -> bytes:
    inputs, parameters = case.at(dtype)
    content = pack_arrays(
        {f"input/{k}": v for k, v in inputs.items()} | {f"parameter/{k}": v for k, v in parameters.items()},
        {
            "case": case.again or case.id,
            "dtype": dtype,
            "shared": dict(case.shared),
            "twice": case.twice,
            "method": case.method,
            "config": dict(case.config),
            "options": dict(case.options),
        },
    )
    return hashlib.sha256(_reference_digest() + content).digest()


def part_without(part: str, without: tuple[str, ...]) -> str:
    """The name of a part of the cache for omitted outputs."""
    return " without ".join([part, *without])


def load_or_compute(case: Case, dtype: str, part: str, compute: Callable[[], Arrays]) -> Arrays:
    """A part of a cell's cache, computed where it is not in there."""
    path = _file(case, dtype, part)
    if _memory is not None:
        if path not in _memory:
            _memory[path] = compute()
        return _memory[path]
    if _frozen is not None and path in _frozen.known:
        return _frozen.known[path]
    with contextlib.suppress(OSError, ArchiveError):
        arrays = load_arrays(path)
        if _frozen is None or path.stat().st_ctime_ns < _frozen.since:
            if _frozen is not None:
                _frozen.read[path] = _frozen.known[path] = arrays
            return arrays
    arrays = compute()
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        save_arrays(path, arrays)
    except OSError as error:
        reason = f"expected values are not kept in {path.parent}, and will be computed again"
        warnings.warn(f"{reason}: {error.strerror or error}", stacklevel=1)
    if _frozen is not None:
        _frozen.known[path] = arrays
    return arrays
