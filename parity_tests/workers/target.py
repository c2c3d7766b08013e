"""Whom a worker asks: a backend, or anybody's functions.

A *target* has any of the specification's functions, in the simplest way possible. It is a module, or an object in one,
with functions under the specification's names, which are called by keyword:

    def masked_softmax(scores, valid_lens=None, mask=None): ...
    def AdditiveAttention(parameters, queries, keys, values, mask=None): ...
    def clip_by_global_norm(gradients, max_norm=None): ...  # a list of arrays, as the first output is
    def adam(parameters, gradients, *, learning_rate, beta1, beta2, epsilon): ...  # lists; a step for each row
    def BahdanauDecoder_greedy(parameters, encoder_outputs, state, mask=None, *, bos, eos, max_steps): ...

They return an array, or a tuple of the outputs in order. A layer takes its canonical parameters first, by name; another
method than its call is a separate function. What is not there, or not taken by a function's signature, or answered
with None, is not implemented: it is reported, and not judged; so are outputs left out at the end. A function that takes
a mask and no lengths gets both as one mask, where there are keys; what hides nothing need not be taken. Arrays are
NumPy's, unless the target has a `runtime`:

    from_numpy(array), to_numpy(array)       into the framework, and out of it
    vjp(function, arguments, cotangents)     (outputs, gradients): the outputs of function(**arguments), a tuple, and by
                                             name, for floating arguments, the gradient of Σᵢ cotangents[i] · outputs[i]
    describe()                               {"framework": "...", "versions": {"...": "..."}}

That of each of our backends will do: `from backends.torch import runtime`. Without vjp, there are no gradients. Under
`absent`, describe may name operators that the framework cannot have in a dtype on a device: they are counted, and
missing where all is required; `requirements` beside a backend's runtime names them as `gaps`. Arguments are read back
in more ways than by to_numpy, and have to be what they were.
"""

from __future__ import annotations

import functools
import importlib
import importlib.util
import inspect
import json
import platform
import re
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import numpy as np

from attention_core import reference
from attention_core.errors import dtype_name
from attention_core.operators import LAYERS, OPERATORS, find
from attention_core.operators.training import UPDATES
from attention_core.specification import FLOATING, Layer
from backends import read_requirements
from parity_tests.cases.call import (
    LISTS,
    SECOND,
    Function,
    as_tuple,
    bind,
    layer_of,
    output_names,
    repeated,
    train,
    with_losses,
)
from parity_tests.cases.layouts import arranged

Arrays = dict[str, np.ndarray]
Given = Mapping[str, np.ndarray]
Cell = Mapping[str, Any]
"""What a case file says of a cell beside its arrays."""

PARAMETER = "parameter."
"""What the names of parameters begin with among the arguments that are differentiated."""
NOT_TAKEN = " does not take "
"""What stands between a function and an argument that it lacks."""
PLAIN = SimpleNamespace(
    from_numpy=lambda array: array,
    to_numpy=np.asarray,
    describe=lambda: {"framework": "NumPy", "versions": {}, "devices": {"cpu": platform.machine()}},
)
"""The runtime of a target that has none."""


SIZES = re.compile(r"_size$|^num_positions$|^features$")
"""The constructor's arguments that the shapes of arrays say."""


class TargetError(ValueError):
    """There is no such target, or nothing in it can be judged."""


class NotImplementedHere(Exception):
    """The target lacks what a cell asks for; says what."""


def parted(where: str) -> tuple[str, str]:
    """The module or file of a place, and the object in it, if one is named."""
    place, _, path = (where, "", "") if where.endswith(".py") else where.partition(":")
    return place, path


def load(where: str) -> tuple[Any, Any]:
    """The object of a place, module, module:object, file.py or file.py:object, and its runtime.

    The runtime is an attribute of the object or of its module, or a module of that name in its package.
    Raises: TargetError if there is no such place; whatever the module raises.
    """
    place, path = parted(where)
    module = _from_file(Path(place)) if place.endswith(".py") else importlib.import_module(place)
    package: Any = module
    for name in filter(None, path.split(".")):
        if not hasattr(package, name):
            raise TargetError(f"{place} has no {path}")
        package = getattr(package, name)
    for owner in (package, module):
        if hasattr(owner, "runtime"):
            return package, owner.runtime
    if hasattr(module, "__path__") and importlib.util.find_spec(f"{module.__name__}.runtime"):
        return package, importlib.import_module(f"{module.__name__}.runtime")
    return package, PLAIN


def _from_file(path: Path) -> ModuleType:
    name = f"target_{path.stem}"  # its own name: torch.py may import torch
    specification = importlib.util.spec_from_file_location(name, path) if path.is_file() else None
    if specification is None or specification.loader is None:
        raise TargetError(f"there is no file {path}")
    module = importlib.util.module_from_spec(specification)
    sys.modules[name] = module
    sys.path.append(str(path.resolve().parent))  # behind all others, for what it imports from beside it
    specification.loader.exec_module(module)
    return module


@dataclass
class Outputs:
    """Outputs and gradients by name, the inputs that the call changed, and the quantities that are not implemented."""

    arrays: Arrays
    changed: list[str] = field(default_factory=list)
    missing: list[str] = field(default_factory=list)


def opened(where: str, device: str) -> Backend | Target:
    """The backend or target of that place, its switches set.

    Raises: TargetError if there is none, or nothing in it can be judged; RuntimeError if there is no such device.
    """
    package, runtime = load(where)
    whole = hasattr(package, "set_parameters") and hasattr(runtime, "build")
    return Backend(package, runtime, device) if whole else Target(package, runtime, where, device)


class Asked:
    """A package with its runtime on a device, with its switches set."""

    def __init__(self, package: Any, runtime: Any, device: str) -> None:
        self.package = package
        self.runtime = runtime
        self.device = device
        self.switches = self.runtime.configure() if hasattr(self.runtime, "configure") else {}
        self.absent: list[Mapping[str, str]] = []
        self.handed: dict[int, np.ndarray] = {}
        """NumPy's arrays that the runtime was given since a cell began, by the identity of what it made of them."""
        self.noise = np.random.default_rng()

    def describe(self) -> dict[str, Any]:
        """Versions, device and switches in force."""
        described = {"versions": {}, "devices": {"cpu": platform.machine()}, **self.runtime.describe()}
        if self.device not in described["devices"]:
            raise RuntimeError(
                f"{described['framework']} sees no device {self.device!r} here, only {', '.join(described['devices'])}"
            )
        versions = {"python": platform.python_version(), "numpy": np.__version__, **described["versions"]}
        needed = read_requirements(getattr(self.runtime, "__name__", "").rpartition(".")[0])
        gaps = (*described.get("absent", ()), *(needed.gaps if needed else ()))
        self.absent = [gap for gap in gaps if fnmatchcase(self.device, gap["device"])]
        return {
            "framework": described["framework"],
            "versions": versions,
            "switches": self.switches,
            "device": described["devices"][self.device],
        }

    def reason_against(self, cell: Cell) -> str | None:
        """Why the framework cannot have this cell on this device, if so."""
        for entry in self.absent:
            named = all(fnmatchcase(cell[name], entry[name]) for name in ("dtype", "operator") if name in entry)
            if named and entry.get("input", cell["inputs"][0]) in cell["inputs"]:
                return entry["reason"]
        return None

    def place(self, array: np.ndarray) -> Any:
        """The array as one of the framework, on the device."""
        # A simple runtime knows the CPU alone, and need not take a device.
        made = self.runtime.from_numpy(array) if self.device == "cpu" else self.runtime.from_numpy(array, self.device)
        self.handed[id(made)] = array
        return made

    def read(self, name: str, array: Any) -> np.ndarray:
        """The framework's array as NumPy's."""
        read = np.asarray(self.runtime.to_numpy(array))
        if read.dtype.kind not in "biufcV":
            raise TypeError(f"{name} is {read.dtype}, expected an array of numbers")
        return read

    def compile_seconds(self) -> float:
        """The seconds that the framework has spent on compiling, as far as its runtime counts them."""
        return float(self.runtime.compile_seconds()) if hasattr(self.runtime, "compile_seconds") else 0.0

    def changed(self, sent: Mapping[str, np.ndarray], given: Mapping[str, Any]) -> list[str]:
        """The inputs that are no longer what was sent, however they are read: a runtime may hide what a call did.

        Raises: RuntimeError if the runtime does not give back the arrays that it is given.
        """
        changed = [
            name for name, array in sent.items() if any(not same(view, array) for view in self.roads(given[name]))
        ]
        for array in {array.dtype: noisy(self.noise, array) for array in sent.values()}.values():
            if not same(np.asarray(self.runtime.to_numpy(self.place(array.copy()))), array):
                raise RuntimeError(f"to_numpy(from_numpy(array)) is another array than {array!r}")
        self.handed.clear()
        return changed

    def roads(self, array: Any) -> Iterator[np.ndarray]:
        """The values of a framework's array: by its runtime, without it where the array allows, and where it came from.

        Where memory is shared, NumPy's array changes with the framework's.
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
"""How an array may be read without its runtime, by the attribute that tells."""


class Backend(Asked):
    """A backend, with functions and layers made once and used for many cells."""

    def __init__(self, package: Any, runtime: Any, device: str) -> None:
        super().__init__(package, runtime, device)
        self.function = functools.cache(self._function)
        self.layer = functools.cache(self._layer)

    def run(self, cell: Cell, inputs: Given, parameters: Given, cotangents: Given) -> Outputs:
        """Outputs by name, then gradients as gradient_<name>."""
        self.handed.clear()
        operator, method, dtype = cell["operator"], cell["method"], cell["dtype"]
        config, options = json.dumps(cell["config"]), json.dumps(cell["options"])
        layer = self.layer(layer_of(operator), config, dtype) if method else None
        if layer is not None:
            self._set(layer, parameters)
        if method == "train":
            return Outputs(train(self.package, layer, cell["options"], inputs, self.place, self.runtime.to_numpy))
        function = self.function(operator, method, options, json.dumps(cell["shared"]), cell["twice"])
        sent = {name: array.copy() for name, array in inputs.items()}  # a runtime may share memory with its argument
        given = {name: self.place(arranged(array, cell["layouts"].get(name, ""))) for name, array in inputs.items()}
        factors = {int(k): self.place(array) for k, array in cotangents.items()}
        outputs, of_inputs, of_parameters = self.runtime.vjp(function, given, factors, layer)
        answer = dict(zip(quantities(cell, len(outputs)), outputs, strict=False))
        if cotangents:
            answer |= {f"gradient_{name}": array for name, array in of_inputs.items()}
        arrays = {name: self.read(name, array) for name, array in answer.items()}
        if cotangents:
            arrays |= {f"gradient_{name}": array for name, array in of_parameters.items()}
        return Outputs(arrays, self.changed(sent, given))

    def _function(self, operator: str, method: str, options: str, shared: str, twice: bool) -> Any:
        return repeated(bind(self.package, operator, method, json.loads(options)), json.loads(shared), twice)

    def _layer(self, name: str, config: str, dtype: str) -> Any:
        return self.runtime.build(getattr(self.package, name), json.loads(config), dtype, self.device)

    def _set(self, layer: Any, parameters: Mapping[str, np.ndarray]) -> None:
        self.package.set_parameters(layer, parameters)
        back = self.package.get_parameters(layer)
        for name, array in parameters.items():
            if back[name].dtype != array.dtype or not np.array_equal(back[name], array, equal_nan=True):
                raise RuntimeError(f"{name} did not come back from the layer as it was given")


class Target(Asked):
    """Anybody's functions: what they are, and their answers to cells."""

    def __init__(self, package: Any, runtime: Any, where: str, device: str) -> None:
        super().__init__(package, runtime, device)
        self.implemented = [name for name in names() if callable(getattr(package, name, None))]
        if not self.implemented:
            raise TargetError(
                f"{where} has none of the specification's functions, {', '.join(names()[:3])} and so on: "
                "`attention-parity list` names them"
            )
        self.differentiates = hasattr(self.runtime, "vjp")
        self.function = functools.cache(self._function)
        # A runtime of ours hands a layer over, which here is none.
        layered = self.differentiates and "layer" in inspect.signature(self.runtime.vjp).parameters
        self.chosen = functools.cache(without_layer if layered else chosen)
        self.reason_against_dtype = functools.cache(self._reason_against_dtype)
        self._given: dict[Function, tuple[int, ...]] = {}

    def describe(self) -> dict[str, Any]:
        """Versions, device, switches in force, and what is implemented."""
        gradients = {} if self.differentiates else {"gradients": "none: its runtime has no vjp"}
        return {**super().describe(), "implements": ", ".join(self.implemented), **gradients}

    def reason_against(self, cell: Cell) -> str | None:
        """Why the target cannot have this cell on this device, if so."""
        return super().reason_against(cell) or self.reason_against_dtype(cell["dtype"])

    def run(self, cell: Cell, inputs: Given, parameters: Given, cotangents: Given) -> Outputs:
        """Outputs by name, then gradients as gradient_<name>, as far as the target has them.

        Raises: NotImplementedHere if it cannot answer at all.
        """
        self.handed.clear()
        function, taken = self.fitted(cell, inputs)
        sent = {name: array.copy() for name, array in taken.items()}
        given = {name: self.place(arranged(array, cell["layouts"].get(name, ""))) for name, array in taken.items()}
        arguments = {**given, **{PARAMETER + name: self.place(array.copy()) for name, array in parameters.items()}}
        factors = {int(k): self.place(array) for k, array in cotangents.items()} if self.differentiates else {}
        outputs, gradients = self._answers(function, arguments, factors)
        answer = dict(zip(quantities(cell, len(outputs)), outputs, strict=False))
        answer |= {f"gradient_{name.removeprefix(PARAMETER)}": array for name, array in gradients.items()}
        arrays = {name: self.read(name, array) for name, array in answer.items() if array is not None}
        differentiated = [*inputs, *parameters] if cotangents else []
        missing = [name for name in known(cell) if answer.get(name) is None]
        missing += [f"gradient_{name}" for name in differentiated if f"gradient_{name}" not in arrays]
        return Outputs(arrays, self.changed(sent, given), missing)

    def fitted(self, cell: Cell, inputs: Given) -> tuple[Function, Arrays]:
        """The function for a cell, with all that is no array bound, and the arrays that it takes.

        Where it takes a mask and no lengths, it gets both as one mask; what hides nothing may be left out.
        Raises: NotImplementedHere, with what is missing.
        """
        name = function_name(cell["operator"], cell["method"])
        if name not in self.implemented:
            raise NotImplementedHere(f"there is no {name}")
        function = getattr(self.package, name)
        if inspect.isclass(function):
            raise NotImplementedHere(f"{name} is a class, expected a function {name}(parameters, ...)")
        takes, shared = taker(function), cell["shared"]
        arrays = {name: array for name, array in inputs.items() if not name.startswith(SECOND)}
        arrays |= {name: arrays[other] for name, other in shared.items()}
        masked = "valid_lens" in arrays and num_keys(arrays, cell["config"]) is not None
        if masked and takes("mask") and not takes("valid_lens"):
            arrays = as_one_mask(arrays, cell["config"])
        for key in [key for key in arrays if not takes(keyword(key)) and hides_nothing(key, arrays, cell["config"])]:
            del arrays[key]
        keywords = {**cell["options"], **self._config(cell, takes)}
        for key in [*map(keyword, arrays), *keywords]:
            if not takes(key):
                raise NotImplementedHere(f"{name}{NOT_TAKEN}{key}")
        arrays = {key: array for key, array in arrays.items() if key not in shared}
        second = {key: array for key, array in inputs.items() if key.startswith(SECOND)}
        arrays |= {key: array for key, array in second.items() if key.removeprefix(SECOND) in arrays}
        count = len(output_names(cell["operator"], cell["method"], cell["options"]))
        call = self.function(name, json.dumps(keywords), bool(cell["method"]), json.dumps(shared), cell["twice"], count)
        return call, arrays

    def _config(self, cell: Cell, takes: Callable[[str], bool]) -> dict[str, Any]:
        """The constructor's arguments that a function must take: neither sizes, which arrays have, nor defaults."""
        entry = find(cell["operator"])
        options = {option.name: option for option in entry.options} if isinstance(entry, Layer) else {}

        def implied(name: str, value: Any) -> bool:
            option = options[name]
            return SIZES.search(name) is not None or (option.default is not None and value == option.value)

        return {name: value for name, value in cell["config"].items() if takes(name) or not implied(name, value)}

    def _function(self, name: str, keywords: str, layered: bool, shared: str, twice: bool, count: int) -> Function:
        chosen, bound = getattr(self.package, name), json.loads(keywords)

        def call(layer: None, **arrays: Any) -> tuple[Any, ...]:
            given = {key.removeprefix(PARAMETER): arrays[key] for key in arrays if key.startswith(PARAMETER)}
            rest = with_losses({key: arrays[key] for key in arrays if not key.startswith(PARAMETER)})
            outputs = as_tuple(
                chosen(*[given] * layered, **{keyword(key): value for key, value in rest.items()}, **bound)
            )
            return (*outputs, *[None] * (count - len(outputs)))  # so that a second call's are not taken for them

        return functools.partial(repeated(call, json.loads(shared), twice), None)

    def _answers(
        self, function: Function, arguments: Mapping[str, Any], cotangents: Mapping[int, Any]
    ) -> tuple[Sequence[Any], Mapping[str, Any]]:
        """Outputs, None where the target gives none, and gradients."""
        if not cotangents:
            return function(**arguments), {}
        places = self._places(function, arguments)
        factors = {places.index(place): array for place, array in cotangents.items() if place in places}
        present, gradients, *_ = self.runtime.vjp(self.chosen(function, places), arguments, factors)
        outputs = dict(zip(places, present, strict=True))
        return [outputs.get(place) for place in range(max([*places, *cotangents], default=-1) + 1)], gradients

    def _places(self, function: Function, arguments: Mapping[str, Any]) -> tuple[int, ...]:
        """The positions of the outputs that are there, by a first call."""
        if function not in self._given:
            outputs = function(**arguments)
            self._given[function] = tuple(place for place, output in enumerate(outputs) if output is not None)
        return self._given[function]

    def _reason_against_dtype(self, dtype: str) -> str | None:
        """Whether numbers of that dtype come back as they were: JAX without x64 makes float32 of float64."""
        try:
            back = self.read(dtype, self.place(np.ones(1, dtype)))
        except Exception as error:  # whatever a framework raises for a dtype that it does not have
            return f"{dtype} cannot go in and out: {type(error).__name__}: {error}"
        return None if back.dtype == np.dtype(dtype) else f"{dtype} comes back as {back.dtype.name}"


# ------------------------------------------------------------------------------------------------ what a function takes


def function_name(operator: str, method: str) -> str:
    """The name of the function that answers a cell."""
    return operator if method in ("", "call") else f"{operator}_{method}"


def names() -> list[str]:
    """Every name that a target may have: functions, layers, and methods of layers."""
    methods = [method.name for layer in LAYERS for method in layer.methods if not method.name.endswith(".prepare")]
    return [operator.name for operator in (*OPERATORS, *UPDATES)] + [
        function_name(*name.split(".")) for name in methods
    ]


def keyword(name: str) -> str:
    """The name of an array as an argument: losses.* are `losses`, gradients.W `gradients`, state.rnn is `state_rnn`."""
    whole = name.partition(".")[0]
    return whole if whole in ("losses", *LISTS) and whole != name else name.replace(".", "_")


def chosen(function: Function, places: tuple[int, ...]) -> Function:
    """The function with the outputs at those places alone."""

    def call(**arrays: Any) -> tuple[Any, ...]:
        outputs = function(**arrays)
        return tuple(outputs[place] for place in places)

    return call


def without_layer(function: Function, places: tuple[int, ...]) -> Function:
    """The same for a runtime that hands a layer over."""
    plain = chosen(function, places)
    return lambda layer, **arrays: plain(**arrays)


def taker(function: Callable[..., Any]) -> Callable[[str], bool]:
    """Whether the function takes a keyword of that name.

    Raises: NotImplementedHere if it does not say what it takes.
    """
    try:
        parameters = inspect.signature(function).parameters.values()
    except ValueError as error:
        raise NotImplementedHere(f"{function!r} does not say what it takes: expected a function of Python") from error
    names = {own.name for own in parameters if own.kind in (own.POSITIONAL_OR_KEYWORD, own.KEYWORD_ONLY)}
    anything = any(own.kind is own.VAR_KEYWORD for own in parameters)
    return lambda name: anything or name in names


def as_one_mask(arrays: Arrays, config: Mapping[str, Any]) -> Arrays:
    """The same with lengths and mask as one mask, as the specification combines them."""
    rest = {name: array for name, array in arrays.items() if name not in ("valid_lens", "mask")}
    one = np.asarray(reference.attention_mask(num_keys(arrays, config) or 0, arrays["valid_lens"], arrays.get("mask")))
    heads = rest.get("scores", rest.get("queries", one)).ndim == 4
    return {**rest, "mask": one[:, None] if heads and one.ndim == 3 else one}


KEYS = {"scores": -1, "keys": -2, "encoder_outputs": -2}
"""The arrays with an axis of keys, which masks and lengths are about, and where; a decoder's are its encoder's."""
STEPS = ("source", "tokens", "inputs", "targets")
"""The arrays whose steps lengths are about where there are no keys: a translator's source comes before its inputs."""


def num_keys(arrays: Arrays, config: Mapping[str, Any]) -> int | None:
    """The number of keys that masks are about; None where there are no keys, but steps or none at all."""
    for name, axis in KEYS.items():
        if name in arrays:
            return int(arrays[name].shape[0 if config.get("time_major") and name == "keys" else axis])
    return None


def num_steps(arrays: Arrays, config: Mapping[str, Any]) -> int | None:
    """The number of steps that lengths are about where there are no keys."""
    for name in STEPS:
        if name in arrays:
            return int(arrays[name].shape[0 if config.get("time_major") else 1])
    return None


def hides_nothing(name: str, arrays: Arrays, config: Mapping[str, Any]) -> bool:
    """Whether an optional array changes nothing: an open mask, lengths of all keys or steps, factors of 1."""
    array, keys = arrays[name], num_keys(arrays, config)
    if name == "valid_lens":
        most = num_steps(arrays, config) if keys is None else keys
        return most is not None and bool((array >= most).all())
    optional = name.endswith("dropout_mask") or name == "head_mask" or (name == "mask" and keys is not None)
    return optional and bool((array == 1).all())


def quantities(cell: Cell, count: int) -> list[str]:
    """The names of that many outputs; those that the specification does not have are numbered."""
    names = known(cell)
    return [*names, *(f"output_{position}" for position in range(len(names), count))]


def known(cell: Cell) -> tuple[str, ...]:
    """The names of the outputs that the specification has."""
    return output_names(cell["operator"], cell["method"], cell["options"], cell["twice"])


def noisy(noise: np.random.Generator, like: np.ndarray) -> np.ndarray:
    """An array that nobody can foresee, in shape and dtype like another; a floating one holds NaN and inf, too."""
    array = np.asarray(noise.integers(2 if like.dtype.kind == "b" else 100, size=like.shape), like.dtype)
    if dtype_name(like.dtype) in FLOATING:
        array.flat[:3] = np.array([np.nan, np.inf, noise.normal()])[: array.size]
    return array


def same(array: np.ndarray, sent: np.ndarray) -> bool:
    """Whether two arrays are the same to the bit, where one NaN is as good as another."""
    if array.dtype != sent.dtype or array.shape != sent.shape:
        return False
    bits = f"u{sent.dtype.itemsize}"
    return bool(((array.view(bits) == sent.view(bits)) | ((array != array) & (sent != sent))).all())
