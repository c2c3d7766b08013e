"""Packages that a worker runs cells on: array conversion, determinism settings, and backends."""

from __future__ import annotations

import functools
import json
import platform
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from typing import Any

import numpy as np

from attention_core.errors import dtype_name
from attention_core.specification import FLOATING
from backends import read_requirements
from parity_tests.format.call import (
    bind,
    layer_called,
    layer_of,
    output_names,
    train,
    wrap_call,
)
from parity_tests.format.layouts import arrange

Arrays = dict[str, np.ndarray]
Given = Mapping[str, np.ndarray]

Cell = Mapping[str, Any]
"""A cell of a batch without its arrays."""


@dataclass
class Outputs:
    """Outputs and gradients by name, the inputs modified by the call, and the quantities that are not implemented."""

    arrays: Arrays
    changed: list[str] = field(default_factory=list)
    missing: list[str] = field(default_factory=list)

    def is_like(self, other: Outputs) -> bool:
        """Whether the arrays are bitwise those of another call, with all NaN considered equal."""
        arrays = self.arrays, other.arrays
        return arrays[0].keys() == arrays[1].keys() and all(
            same(array, arrays[1][name]) for name, array in arrays[0].items()
        )


class Package:
    """A package with its runtime on a device, with determinism settings in force."""

    def __init__(self, package: Any, runtime: Any, device: str) -> None:
        self.package = package
        self.runtime = runtime
        self.device = device
        self.determinism = self.runtime.configure() if hasattr(self.runtime, "configure") else {}
        self.absent: list[Mapping[str, str]] = []
        self.handed: dict[int, np.ndarray] = {}
        """NumPy arrays converted by the runtime in this cell, keyed by the identity of the framework's array."""
        self.noise = np.random.default_rng()

    def describe(self) -> dict[str, Any]:
        """Versions, device and determinism settings in force."""
        described = {"versions": {}, "devices": {"cpu": platform.machine()}, **self.runtime.describe()}
        if self.device not in described["devices"]:
            raise RuntimeError(
                f"{described['framework']} has no device {self.device!r} here; available: "
                f"{', '.join(described['devices'])}"
            )
        versions = {"python": platform.python_version(), "numpy": np.__version__, **described["versions"]}
        needed = read_requirements(getattr(self.runtime, "__name__", "").rpartition(".")[0])
        gaps = (*described.get("absent", ()), *(needed.gaps if needed else ()))
        self.absent = [gap for gap in gaps if fnmatchcase(self.device, gap["device"])]
        return {
            "framework": described["framework"],
            "versions": versions,
            "determinism": self.determinism,
            "device": described["devices"][self.device],
        }

    def reason_against(self, cell: Cell) -> str | None:
        """The reason why the framework cannot run this cell on this device; None if it can."""
        for entry in self.absent:
            named = all(fnmatchcase(cell[name], entry[name]) for name in ("dtype", "operator") if name in entry)
            if named and entry.get("input", cell["inputs"][0]) in cell["inputs"]:
                return entry["reason"]
        return None

    def place(self, array: np.ndarray) -> Any:
        """Convert a NumPy array to one of the framework, on the device."""
        # A simple runtime knows the CPU alone, and need not take a device.
        made = self.runtime.from_numpy(array) if self.device == "cpu" else self.runtime.from_numpy(array, self.device)
        self.handed[id(made)] = array
        return made

    def read(self, name: str, array: Any) -> np.ndarray:
        """Convert an array of the framework to NumPy."""
        read = np.asarray(self.runtime.to_numpy(array))
        if read.dtype.kind not in "biufcV":
            raise TypeError(f"{name} is {read.dtype}, expected an array of numbers")
        return read

    def compile_seconds(self) -> float:
        """The seconds spent on compilation, if the runtime counts them."""
        return float(self.runtime.compile_seconds()) if hasattr(self.runtime, "compile_seconds") else 0.0

    def changed_inputs(self, sent: Mapping[str, np.ndarray], given: Mapping[str, Any]) -> list[str]:
        """The inputs modified by the call, read in several ways, since a runtime could hide a change.

        Raises: RuntimeError if a conversion to the framework and back changes an array.
        """
        changed = [
            name for name, array in sent.items() if any(not same(view, array) for view in self.roads(given[name]))
        ]
        for array in {array.dtype: noisy(self.noise, array) for array in sent.values()}.values():
            if not same(np.asarray(self.runtime.to_numpy(self.place(array.copy()))), array):
                raise RuntimeError(f"to_numpy(from_numpy(array)) differs from {array!r}")
        self.handed.clear()
        return changed

    def roads(self, array: Any) -> Iterator[np.ndarray]:
        """Yield the values of a framework's array: read by its runtime, without it if possible, and from the original
        array.

        If memory is shared, the original NumPy array changes with the framework's.
        """
        values = np.asarray(self.runtime.to_numpy(array))
        yield values
        for protocol, read in PROTOCOLS.items():
            if hasattr(type(array), protocol):
                with suppress(Exception):  # whatever a framework raises for an array that it does not hand out
                    view = read(array)
                    if (view.dtype, view.shape) == (values.dtype, values.shape):  # else it knows no such dtype
                        yield view
        if id(array) in self.handed:
            yield self.handed[id(array)]


PROTOCOLS: dict[str, Callable[[Any], np.ndarray]] = {
    "__array_finalize__": lambda array: np.ndarray.view(array, np.ndarray),  # NumPy's own, whatever a class makes of it
    "__dlpack__": np.from_dlpack,
    "__array__": np.asarray,
}
"""Ways to read an array without its runtime, by the attribute that they need."""


class Backend(Package):
    """A backend, whose functions and layers are built once and reused for many cells."""

    def __init__(self, package: Any, runtime: Any, device: str) -> None:
        super().__init__(package, runtime, device)
        self.function = functools.cache(self._function)
        self.layer = functools.cache(self._layer)

    def run(self, cell: Cell, inputs: Given, parameters: Given, cotangents: Given) -> Outputs:
        """Compute outputs by name, then gradients as gradient_<name>."""
        self.handed.clear()
        operator, method, dtype = cell["operator"], cell["method"], cell["dtype"]
        config, options = json.dumps(cell["config"]), json.dumps(cell["options"])
        layer = self.layer(layer_of(operator, cell["config"]), config, dtype) if method else None
        if layer is not None:
            self._set(layer, parameters)
            layer = layer_called(layer, method, cell["options"])
        if method == "train":
            return Outputs(train(self.package, layer, cell["options"], inputs, self.place, self.runtime.to_numpy))
        function = self.function(operator, method, options, json.dumps(cell["shared"]), cell["twice"])
        sent = {name: array.copy() for name, array in inputs.items()}  # a runtime may share memory with its argument
        given = {name: self.place(arrange(array, cell["layouts"].get(name, ""))) for name, array in inputs.items()}
        factors = {int(k): self.place(array) for k, array in cotangents.items()}
        outputs, of_inputs, of_parameters = self.runtime.vjp(function, given, factors, layer)
        answer = dict(zip(quantities(cell, len(outputs)), outputs, strict=False))
        if cotangents:
            answer |= {f"gradient_{name}": array for name, array in of_inputs.items()}
        arrays = {name: self.read(name, array) for name, array in answer.items()}
        if cotangents:
            arrays |= {f"gradient_{name}": array for name, array in of_parameters.items()}
        return Outputs(arrays, self.changed_inputs(sent, given))

    def _function(self, operator: str, method: str, options: str, shared: str, twice: bool) -> Any:
        return wrap_call(bind(self.package, operator, method, json.loads(options)), json.loads(shared), twice)

    def _layer(self, name: str, config: str, dtype: str) -> Any:
        return self.runtime.build(getattr(self.package, name), json.loads(config), dtype, self.device)

    def _set(self, layer: Any, parameters: Mapping[str, np.ndarray]) -> None:
        self.package.set_parameters(layer, parameters)
        back = self.package.get_parameters(layer)
        for name, array in parameters.items():
            if back[name].dtype != array.dtype or not np.array_equal(back[name], array, equal_nan=True):
                raise RuntimeError(f"the layer's parameter {name} differs from the array that it was set to")


def quantities(cell: Cell, count: int) -> list[str]:
    """The names of that many outputs; additional ones are numbered."""
    names = specified_outputs(cell)
    return [*names, *(f"output_{position}" for position in range(len(names), count))]


def specified_outputs(cell: Cell) -> tuple[str, ...]:
    """The names of the outputs in the specification."""
    return output_names(cell["operator"], cell["method"], cell["options"], cell["twice"])


def noisy(noise: np.random.Generator, like: np.ndarray) -> np.ndarray:
    """A random array with the shape and dtype of another; floating ones include NaN and inf."""
    array = np.asarray(noise.integers(2 if like.dtype.kind == "b" else 100, size=like.shape), like.dtype)
    if dtype_name(like.dtype) in FLOATING:
        array.flat[:3] = np.array([np.nan, np.inf, noise.normal()])[: array.size]
    return array


def same(array: np.ndarray, sent: np.ndarray) -> bool:
    """Whether two arrays are bitwise equal, with all NaN considered equal."""
    if array.dtype != sent.dtype or array.shape != sent.shape:
        return False
    bits = f"u{sent.dtype.itemsize}"
    return bool(((array.view(bits) == sent.view(bits)) | ((array != array) & (sent != sent))).all())
