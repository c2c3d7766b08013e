"""Load what a worker runs: a backend, or a third-party target.

A *target* is a module, or an object in one, that defines any subset of the specification's functions under their names.
They are called by keyword:

    def masked_softmax(scores, valid_lens=None, mask=None): ...
    def AdditiveAttention(parameters, queries, keys, values, mask=None): ...
    def clip_by_global_norm(gradients, max_norm=None): ...  # a list of arrays, as the first output is
    def adam(parameters, gradients, *, learning_rate, beta1, beta2, epsilon): ...  # lists; a step for each row
    def DotProductAttention(parameters, queries, keys, values, mask=None, num_key_heads=None): ...
    def MultiHeadAttention(parameters, queries, keys, values, score_bias=None, *, bias=True, num_heads): ...
    def BahdanauDecoder_greedy(parameters, encoder_outputs, state, mask=None, *, bos, eos, max_steps): ...

They return an array, or a tuple of the outputs in order. The first argument of a layer is its canonical parameters, by
name; a method other than the call is a separate function. A function may be an instance of a layer, whose `forward` or
`call` then has the signature. A missing function, an argument that a function's signature lacks, or that it passes on
by ** to one that refuses it, and an output that is None or omitted at the end are not implemented: they are reported,
and not tested. If there are keys and a function has a mask argument but none for lengths, both are combined into one
mask; arguments that mask nothing may be missing. An option that a case leaves out has the default of the function,
which should be the specification's, or that of the specification if it has none. A function whose heads may share keys
names num_key_heads, or reads it from the shapes; without the argument, it may raise. A bias of the scores is `bias`, or
`score_bias` where a layer has an option of that name. Arrays are NumPy arrays, unless the target has a `runtime`:

    from_numpy(array), to_numpy(array)       to the framework, and back vjp(function, arguments, cotangents)
    (outputs, gradients): the outputs of function(**arguments), a tuple, and by
                                             name, for floating arguments, the gradient of Σᵢ cotangents[i] · outputs[i]
    describe()                               {"framework": "...", "versions": {"...": "..."}}

The runtime of a backend can be used: `from backends.torch import runtime`. Without vjp, no gradients are tested. The
entry `absent` of describe() may list operators that the framework does not support in a dtype on a device: they are
counted, and reported as missing under --require-all; `requirements` beside a backend's runtime lists them as `gaps`.
Arguments are read back by to_numpy and in other ways, and must be unchanged.
"""

from __future__ import annotations

import functools
import importlib
import importlib.util
import inspect
import json
import os
import platform
import re
import sys
import sysconfig
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import numpy as np

from attention_core import reference
from attention_core.operators import LAYERS, OPERATORS, find
from attention_core.operators.training import UPDATES
from attention_core.specification import Layer
from parity_tests.format.call import (
    LISTS,
    SECOND,
    Function,
    as_tuple,
    output_names,
    with_losses,
    wrap_call,
)
from parity_tests.format.drawn import called_of, inputs_of
from parity_tests.format.layouts import arrange
from parity_tests.workers.adapter import adapters, call_of
from parity_tests.workers.package import Arrays, Backend, Cell, Given, Outputs, Package, quantities, specified_outputs

PARAMETER = "parameter."
"""The prefix of parameters among the differentiated arguments."""

NOT_TAKEN = " does not take "
"""The text between a function and a missing argument in a message."""

PLAIN = SimpleNamespace(
    from_numpy=lambda array: array,
    to_numpy=np.asarray,
    describe=lambda: {"framework": "NumPy", "versions": {}, "devices": {"cpu": platform.machine()}},
)
"""The default runtime, for NumPy arrays."""

GROUPS = "num_key_heads"
"""The argument of a layer whose heads share keys."""

SIZES = re.compile(r"_size$|^num_(positions|inducing|buckets|classes)$|^(features|rank|stride|height|width|channels)$")
"""The constructor's arguments that follow from array shapes."""


class TargetError(ValueError):
    """The target does not exist, or nothing in it can be tested."""


class NotImplementedHere(Exception):
    """The target does not implement a cell; the message names the missing part."""


class RefusedArgument(Exception):
    """A function that takes any argument passes one on to another that does not; the message is its name."""


class SignatureError(TypeError):
    """A function of the target cannot be called as the specification does: every case of it would fail alike."""


def split_location(where: str) -> tuple[str, str]:
    """Split a location into module or file, and object, if there is one."""
    place, _, path = (where, "", "") if where.endswith(".py") else where.partition(":")
    return place, path


def load(where: str) -> tuple[Any, Any]:
    """Import the object at a location (module, module:object, file.py or file.py:object), and its runtime.

    The runtime is an attribute of the object or of its module, or a module of that name in its package.
    Raises: TargetError if it does not exist; any exception of the module.
    """
    place, path = split_location(where)
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


OURS = ("attention_core", "backends", "parity_tests")


class Sources:
    """The source files of a target: its own, and imported modules that are not installed packages."""

    def __init__(self, where: str) -> None:
        self.place = split_location(where)[0]
        self.seen = set(sys.modules)
        self.installed = tuple({os.path.join(path, "") for path in sysconfig.get_paths().values()})

    def imported_files(self) -> dict[str, str]:
        """The files imported since the last call, by their paths relative to the target's folder."""
        names = (
            [name for name in list(sys.modules) if name not in self.seen] if len(sys.modules) > len(self.seen) else ()
        )
        self.seen.update(names)
        files = {name: getattr(sys.modules.get(name), "__file__", None) for name in names}
        paths = [
            os.path.abspath(file) for name, file in files.items() if file and self.belongs(name, os.path.abspath(file))
        ]
        return {os.path.relpath(file, self.folder): file for file in paths if os.path.isfile(file)}

    def belongs(self, name: str, file: str) -> bool:
        """Whether a module belongs to the target, and not to this package or an installed one."""
        package = self.place.partition(".")[0]
        if name == self.place or name.startswith(f"{self.place}."):
            return True
        first = name.partition(".")[0]
        return first not in OURS and (first == package or not file.startswith(self.installed))

    @functools.cached_property
    def folder(self) -> str:
        """The folder of the target's file or package."""
        if self.place.endswith(".py"):
            return os.path.dirname(os.path.abspath(self.place))
        package = sys.modules[self.place.partition(".")[0]]
        return os.path.dirname([*getattr(package, "__path__", ()), str(package.__file__)][0])


def open_target(where: str, device: str) -> Backend | Target:
    """Load the backend or target at a location, with its settings in force.

    Raises: TargetError if it does not exist, or nothing in it can be tested; RuntimeError if there is no such device.
    """
    package, runtime = load(where)
    whole = hasattr(package, "set_parameters") and hasattr(runtime, "build")
    return Backend(package, runtime, device) if whole else Target(package, runtime, where, device)


class Target(Package):
    """A third-party target: its functions, and their outputs and gradients for cells."""

    def __init__(self, package: Any, runtime: Any, where: str, device: str) -> None:
        super().__init__(package, runtime, device)
        found = {name: getattr(package, name) for name in names() if callable(getattr(package, name, None))}
        self.classes = [name for name, function in found.items() if inspect.isclass(function)]
        self.implemented = [name for name in found if name not in self.classes]
        if not self.implemented:
            reason = f"{where} has none of the specification's functions"
            if sources := "\n".join(adapters(package, where)):
                words = "Save this one under the name of what it computes, fill in any `...`, and check the file"
                raise TargetError(f"{reason} (`attention-parity list`). {words}:\n\n{sources.rstrip()}")
            raise TargetError(f"{reason}, {', '.join(names()[:3])} and so on: `attention-parity list` names them")
        self.differentiates = hasattr(self.runtime, "vjp")
        self.function = functools.cache(self._function)
        # A runtime of ours hands a layer over, which here is none.
        layered = self.differentiates and "layer" in inspect.signature(self.runtime.vjp).parameters
        self.chosen = functools.cache(without_layer if layered else choose_outputs)
        self.reason_against_dtype = functools.cache(self._reason_against_dtype)
        self._given: dict[Function, tuple[int, ...]] = {}
        self._refused: dict[str, set[str]] = defaultdict(set)

    def describe(self) -> dict[str, Any]:
        """Versions, device, settings in force, and implemented functions."""
        gradients = {} if self.differentiates else {"gradients": "none: the runtime has no vjp"}
        classes = {"classes": ", ".join(self.classes)} if self.classes else {}
        return {**super().describe(), "implements": ", ".join(self.implemented), **classes, **gradients}

    def reason_against(self, cell: Cell) -> str | None:
        """The reason why the target cannot run this cell on this device; None if it can."""
        return super().reason_against(cell) or self.reason_against_dtype(cell["dtype"])

    def run(self, cell: Cell, inputs: Given, parameters: Given, cotangents: Given) -> Outputs:
        """Compute outputs by name, then gradients as gradient_<name>, as far as the target implements them.

        Raises: NotImplementedHere if the target does not implement the cell.
        """
        self.handed.clear()
        function, taken = self.fit(cell, inputs)
        sent = {name: array.copy() for name, array in taken.items()}
        given = {name: self.place(arrange(array, layout_of(cell, name, array))) for name, array in taken.items()}
        arguments = {**given, **{PARAMETER + name: self.place(array.copy()) for name, array in parameters.items()}}
        factors = {int(k): self.place(array) for k, array in cotangents.items()} if self.differentiates else {}
        try:
            outputs, gradients = self._answers(function, arguments, factors)
        except RefusedArgument as error:  # from now on as if the signature lacked it
            self._refused[function_name(cell["operator"], cell["method"])].add(str(error))
            return self.run(cell, inputs, parameters, cotangents)
        except Exception as error:  # whatever a framework raises for shapes that do not fit
            name = function_name(cell["operator"], cell["method"])
            if in_groups(taken) and GROUPS not in parameters_of(getattr(self.package, name)):
                raise NotImplementedHere(f"{name}{NOT_TAKEN}{GROUPS}") from error
            raise
        answer = dict(zip(quantities(cell, len(outputs)), outputs, strict=False))
        answer |= {f"gradient_{name.removeprefix(PARAMETER)}": array for name, array in gradients.items()}
        arrays = {name: self.read(name, array) for name, array in answer.items() if array is not None}
        differentiated = [*inputs, *parameters] if cotangents else []
        missing = [name for name in specified_outputs(cell) if answer.get(name) is None]
        missing += [f"gradient_{name}" for name in differentiated if f"gradient_{name}" not in arrays]
        return Outputs(arrays, self.changed_inputs(sent, given), missing)

    def fit(self, cell: Cell, inputs: Given) -> tuple[Function, Arrays]:
        """The function for a cell with all other arguments bound, and its array arguments.

        If it has a mask argument and none for lengths, both are combined; arguments that mask nothing may be missing.
        Raises: NotImplementedHere, naming the missing part; SignatureError if a required argument is missing, or too
        many are required.
        """
        operator, method = cell["operator"], cell["method"]
        name = function_name(operator, method)
        function = getattr(self.package, name, None)
        if inspect.isclass(function):
            raise NotImplementedHere(f"{name} is a class, expected a function (--init {name} writes one)")
        if function is None or name not in self.implemented:
            raise NotImplementedHere(f"there is no {name}")
        takes, shared = self._taker(name), cell["shared"]
        arrays = {key: array for key, array in inputs.items() if not key.startswith(SECOND)}
        arrays |= {key: arrays[other] for key, other in shared.items()}
        second = {key.removeprefix(SECOND): array for key, array in inputs.items() if key.startswith(SECOND)}
        if takes("mask") and not takes("valid_lens") and "valid_lens" in arrays and num_keys(arrays, cell) is not None:
            arrays, second = with_one_mask(arrays, second, cell)
        calls = arrays, {**arrays, **second}

        def is_unused(key: str) -> bool:
            return not takes(keyword(key, operator)) and all(
                hides_nothing(key, call, cell) for call in calls if key in call
            )

        arrays, second = ({key: call[key] for key in call if not is_unused(key)} for call in (arrays, second))
        keywords = {**required_defaults(cell, function), **cell["options"], **self._config(cell, takes)}
        if in_groups(arrays) and takes(GROUPS):
            keywords[GROUPS] = arrays["keys"].shape[1]
        given = [*(keyword(key, operator) for key in {**arrays, **second}), *keywords]
        refused = [key for key in given if not takes(key)]
        check_signature(cell, function, takes, given)
        if refused:
            raise NotImplementedHere(f"{name}{NOT_TAKEN}{refused[0]}")
        arrays = {key: array for key, array in arrays.items() if key not in shared}
        arrays |= {SECOND + key: array for key, array in second.items()}
        count = len(output_names(operator, method, cell["options"]))
        call = self.function(operator, method, json.dumps(keywords), json.dumps(shared), cell["twice"], count)
        return call, arrays

    def _taker(self, name: str) -> Callable[[str], bool]:
        """Whether the function of that name has a keyword argument, as its signature says and its calls have shown."""
        takes, refused = taker(getattr(self.package, name)), self._refused[name]
        return lambda key: key not in refused and takes(key)

    def _config(self, cell: Cell, takes: Callable[[str], bool]) -> dict[str, Any]:
        """The constructor's arguments that a function must have: those without default that arrays do not determine."""
        entry = find(cell["operator"])
        options = {option.name: option for option in entry.options} if isinstance(entry, Layer) else {}

        def is_implied(name: str, value: Any) -> bool:
            option = options[name]
            return SIZES.search(name) is not None or (option.default is not None and value == option.value)

        return {name: value for name, value in cell["config"].items() if takes(name) or not is_implied(name, value)}

    def _function(self, operator: str, method: str, keywords: str, shared: str, twice: bool, count: int) -> Function:
        chosen, bound = getattr(self.package, function_name(operator, method)), json.loads(keywords)

        def call(layer: None, **arrays: Any) -> tuple[Any, ...]:
            given = {key.removeprefix(PARAMETER): arrays[key] for key in arrays if key.startswith(PARAMETER)}
            rest = with_losses({key: arrays[key] for key in arrays if not key.startswith(PARAMETER)})
            named = {**{keyword(key, operator): value for key, value in rest.items()}, **bound}
            try:
                outputs = as_tuple(chosen(*[given] * bool(method), **named))
            except TypeError as error:
                argument = refused_argument(error)
                if argument in named and argument not in parameters_of(chosen):
                    raise RefusedArgument(argument) from error
                raise
            return (*outputs, *[None] * (count - len(outputs)))  # so that a second call's are not taken for them

        return functools.partial(wrap_call(call, json.loads(shared), twice), None)

    def _answers(
        self, function: Function, arguments: Mapping[str, Any], cotangents: Mapping[int, Any]
    ) -> tuple[Sequence[Any], Mapping[str, Any]]:
        """Compute outputs, with None for omitted ones, and gradients."""
        if not cotangents:
            return function(**arguments), {}
        places = self._places(function, arguments)
        factors = {places.index(place): array for place, array in cotangents.items() if place in places}
        present, gradients, *_ = self.runtime.vjp(self.chosen(function, places), arguments, factors)
        outputs = dict(zip(places, present, strict=True))
        return [outputs.get(place) for place in range(max([*places, *cotangents], default=-1) + 1)], gradients

    def _places(self, function: Function, arguments: Mapping[str, Any]) -> tuple[int, ...]:
        """The positions of the outputs that a first call returns."""
        if function not in self._given:
            outputs = function(**arguments)
            self._given[function] = tuple(place for place, output in enumerate(outputs) if output is not None)
        return self._given[function]

    def _reason_against_dtype(self, dtype: str) -> str | None:
        """Whether arrays of that dtype survive a round trip: JAX without x64 converts float64 to float32."""
        try:
            back = self.read(dtype, self.place(np.ones(1, dtype)))
        except Exception as error:  # whatever a framework raises for a dtype that it does not have
            return f"{dtype} cannot be converted and back: {type(error).__name__}: {error}"
        return None if back.dtype == np.dtype(dtype) else f"{dtype} comes back as {back.dtype.name}"


def function_name(operator: str, method: str) -> str:
    """The name of the function for a cell."""
    return operator if method in ("", "call") else f"{operator}_{method}"


def names() -> list[str]:
    """All names that a target may define: functions, layers, and methods of layers that return arrays."""
    methods = [method.name for layer in LAYERS for method in layer.methods]
    methods = [name for name in methods if not name.endswith((".prepare", ".pruned"))]  # which return no arrays
    return [operator.name for operator in (*OPERATORS, *UPDATES)] + [
        function_name(*name.split(".")) for name in methods
    ]


def in_groups(arrays: Arrays) -> bool:
    """Whether heads of queries share those of keys."""
    queries, keys = arrays.get("queries"), arrays.get("keys")
    return queries is not None and keys is not None and queries.ndim == 4 and queries.shape[1] != keys.shape[1]


def keyword(name: str, operator: str) -> str:
    """The argument name of an array: `losses` for losses.*, `gradients` for gradients.W, `state_rnn` for state.rnn.

    The bias of the scores is `score_bias` where a layer has an option named bias.
    """
    if name == "bias" and any(option.name == name for option in find(operator).options):
        return "score_bias"
    whole = name.partition(".")[0]
    return whole if whole in ("losses", *LISTS) and whole != name else name.replace(".", "_")


def choose_outputs(function: Function, places: tuple[int, ...]) -> Function:
    """The function restricted to the outputs at those positions."""

    def call(**arrays: Any) -> tuple[Any, ...]:
        outputs = function(**arrays)
        return tuple(outputs[place] for place in places)

    return call


def without_layer(function: Function, places: tuple[int, ...]) -> Function:
    """The same for a runtime that passes a layer."""
    plain = choose_outputs(function, places)
    return lambda layer, **arrays: plain(**arrays)


def taker(function: Callable[..., Any]) -> Callable[[str], bool]:
    """Whether the function has a keyword argument of that name.

    Raises: NotImplementedHere if it has no signature.
    """
    names = parameters_of(function)
    anything = any(one.kind is one.VAR_KEYWORD for one in signature_of(function).parameters.values())
    return lambda name: anything or name in names


def parameters_of(function: Callable[..., Any]) -> set[str]:
    """The names of the keyword arguments in a function's signature."""
    named = inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY
    return {name for name, one in signature_of(function).parameters.items() if one.kind in named}


def required_defaults(cell: Cell, function: Callable[..., Any]) -> dict[str, Any]:
    """The specification's defaults of options that have none in the function's signature."""
    entry = find(cell["operator"])
    options = (*called_of(entry, cell["method"]).options, *(entry.options if isinstance(entry, Layer) else ()))
    required = {name for name, one in signature_of(function).parameters.items() if one.default is one.empty}
    return {one.name: one.value for one in options if one.name in required and one.default is not None}


def signature_of(function: Callable[..., Any]) -> inspect.Signature:
    """The signature of a function, or of what runs when a layer is called, whose own call passes everything on.

    Raises: NotImplementedHere if it has none.
    """
    try:
        signature = inspect.signature(function)
        passes_on = any(one.kind is one.VAR_KEYWORD for one in signature.parameters.values())
        return inspect.signature(call_of(function) or function) if passes_on else signature
    except ValueError as error:
        raise NotImplementedHere(f"{function!r} has no signature, expected a Python function") from error


def refused_argument(error: TypeError) -> str:
    """The argument that a function does not take, in the words of Python and of its C functions, or nothing."""
    met = re.search(r"unexpected keyword argument '(\w+)'|'(\w+)' is an invalid keyword argument", str(error))
    return next(filter(None, met.groups())) if met else ""


def check_signature(
    cell: Cell, function: Callable[..., Any], takes: Callable[[str], bool], given: Sequence[str]
) -> None:
    """Check that a function takes the specification's required arguments, and requires no others.

    given has the names of a call's arguments. Raises: SignatureError with both signatures.
    """
    entry, name = find(cell["operator"]), function_name(cell["operator"], cell["method"])
    inputs = {keyword(one.name, cell["operator"]): one.optional for one in inputs_of(entry, cell["method"])}
    needed = [key for key, optional in inputs.items() if not optional]
    first, signature, reason = ["parameters"] * bool(cell["method"]), bare(signature_of(function)), ""
    if any(key in given and not takes(key) for key in needed):
        reason = f"it does not take {', '.join(key for key in needed if not takes(key))}"
    elif all(map(takes, given)):
        try:
            signature.bind(*first, **dict.fromkeys(given))
        except TypeError as error:
            reason = str(error)
    if reason:
        options = [option.name for option in called_of(entry, cell["method"]).options]
        optional = ", ".join([*(key for key in inputs if key not in needed), *options])
        also = f", and optional {optional}" if optional else ""
        raise SignatureError(f"{name}{signature}: {reason}; expected {name}({', '.join(first + needed)}){also}")


def bare(signature: inspect.Signature) -> inspect.Signature:
    """The signature without annotations."""
    plain = [parameter.replace(annotation=parameter.empty) for parameter in signature.parameters.values()]
    return signature.replace(parameters=plain, return_annotation=signature.empty)


def with_one_mask(arrays: Arrays, second: Arrays, cell: Cell) -> tuple[Arrays, Arrays]:
    """The arguments of a call, and what a second one changes, with lengths and mask combined into one mask."""
    parts, calls = {"valid_lens", "mask"}, (arrays, {**arrays, **second})
    first, other = (as_one_mask(call, cell) for call in calls)
    changes = bool(parts & {*second}) or not np.array_equal(first, other)
    arrays, second = ({key: call[key] for key in call if key not in parts} for call in (arrays, second))
    return {**arrays, "mask": first}, {**second, "mask": other} if changes else second


def as_one_mask(arrays: Arrays, cell: Cell) -> np.ndarray:
    """Lengths and mask combined into one mask, as in the specification."""
    one = np.asarray(reference.attention_mask(num_keys(arrays, cell) or 0, arrays["valid_lens"], arrays.get("mask")))
    heads = arrays.get("scores", arrays.get("queries", one)).ndim == 4
    return one[:, None] if heads and one.ndim == 3 else one


def layout_of(cell: Cell, name: str, array: np.ndarray) -> str:
    """The memory layout of an argument; C order for a mask that lengths were combined with, if it had stride 0."""
    layout: str = cell["layouts"].get(name, "")
    return "" if layout == "expanded" and bool((array != array[:1]).any()) else layout


STEPS = ("source", "tokens", "inputs", "targets")
"""The arrays whose steps lengths refer to if there are no keys: a translator's source comes before its inputs."""


def num_keys(arrays: Arrays, cell: Cell) -> int | None:
    """The number of keys that masks refer to; None if there are no keys, or no masks of keys."""
    inputs = inputs_of(find(cell["operator"]), cell["method"])
    if any(tensor.name == "mask" for tensor in inputs):
        for tensor in inputs:
            if "keys" in tensor.axes and not tensor.optional:
                axis = 0 if cell["config"].get("time_major") else tensor.axes.index("keys") - len(tensor.axes)
                return int(arrays[tensor.name].shape[axis])
    return None


def num_steps(arrays: Arrays, cell: Cell) -> int | None:
    """The number of steps that lengths refer to if there are no keys."""
    for name in STEPS:
        if name in arrays:
            return int(arrays[name].shape[0 if cell["config"].get("time_major") else 1])
    return None


def hides_nothing(name: str, arrays: Arrays, cell: Cell) -> bool:
    """Whether an optional array has no effect: an open mask, lengths of all keys or steps, factors of 1."""
    array, keys = arrays[name], num_keys(arrays, cell)
    if name == "valid_lens":
        most = num_steps(arrays, cell) if keys is None else keys
        return most is not None and bool((array >= most).all())
    optional = name.endswith("dropout_mask") or name == "head_mask" or (name == "mask" and keys is not None)
    return optional and bool((array == 1).all())
