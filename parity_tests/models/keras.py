"""Keras 3 layers and models on TensorFlow, and TensorFlow functions, as sides."""

from __future__ import annotations

import contextlib
import copy
import functools
import inspect
import itertools
import sys
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import keras
import numpy as np
import tensorflow as tf
from keras.src.utils.tracking import DotNotTrackScope

from backends.tf.arrays import to_numpy
from parity_tests.models.calls import Answer, Arrays, Recorder, RunOptions, flatten, leaves
from parity_tests.models.sides import Side, SideError, arguments_of

LINKS = ("_inbound_nodes", "_outbound_nodes")
"""The attributes that lead from a layer to the graphs around it, which a run does not need."""
COMMON = (
    *("name", "built", "autocast", "supports_masking", "supports_jit", "call", "build", "quantize", "lora_enabled"),
    *("compiled", "steps_per_execution", "unrolled_steps_per_execution"),
)
"""The attributes that say nothing about what a layer computes."""
BOUND = ("build", "quantize")
"""The attributes that Keras binds to each new layer."""
TRACKING = ("_self_setattr", "_self_unconditional", "_self_update", "_self_name_based", "_self_saveable")
"""The beginnings of the attributes in which TensorFlow lists what a layer saves."""


def open_model(model: keras.Layer | Callable[..., Any]) -> Side:
    """The side of a layer, model or function.

    Raises: SideError if Keras does not run on TensorFlow.
    """
    if keras.backend.backend() != "tensorflow":
        raise SideError(f"Keras runs on {keras.backend.backend()}: set KERAS_BACKEND=tensorflow before it is imported")
    return KerasSide(model if isinstance(model, keras.Layer) else Function(model), model)


class Function(keras.Layer):
    """A function as a layer without variables."""

    def __init__(self, function: Callable[..., Any]) -> None:
        super().__init__()
        self.function = function

    def call(self, *arguments: Any, **keywords: Any) -> Any:
        """What the function returns."""
        return self.function(*arguments, **keywords)


class KerasSide(Side):
    """A layer, copied; one that is not built yet is built, and its variables are drawn, by the first run."""

    framework = "keras"

    def __init__(self, model: keras.Layer, given: Any) -> None:
        super().__init__()
        self.model = make_copy(model)
        dtype = keras.backend.standardize_dtype(model.compute_dtype or keras.config.floatx())
        self.dtype = dtype if "float" in dtype else keras.config.floatx()
        self.dtypes = tuple(dict.fromkeys(("float64", "float32", "bfloat16", self.dtype)))
        self.given = given
        self._is_built = isinstance(model, Function) or all(layer.built for layer in model._flatten_layers())
        self._name_arrays()

    def _name_arrays(self) -> None:
        """Name the variables by their paths, and read those that have no array yet."""
        variables = self.model.weights
        self.names = _unique([variable.path for variable in variables])
        trained = {id(variable) for variable in self.model.trainable_weights}
        known = dict(zip(self.names, variables, strict=True))
        self.parameters = tuple(name for name, variable in known.items() if id(variable) in trained)
        self.state = tuple(name for name in known if name not in self.parameters)
        self.arrays = {**{name: _read(variable.value) for name, variable in known.items()}, **self.arrays}
        first = {id(variable): name for name, variable in known.items()}
        every = [
            ("/".join([*path.split("."), variable.name]), variable)
            for path, layer in sublayers(self.model)
            for variable in _variables_of(layer)
        ]
        holders = {id(variable): [name for name, one in every if one is variable] for variable in variables}
        self.tied = {name: first[one] for one, names in holders.items() for name in names[1:]}

    @functools.cache  # noqa: B019  # a side lives as long as its copies
    def _copy(self, dtype: str) -> keras.Layer:
        made = make_copy(self.model, None if dtype == self.dtype else dtype)
        without_dropout(made)
        return made

    def answer(self, inputs: Mapping[str, np.ndarray], options: RunOptions) -> Answer:
        """The answer to these inputs, as `Side.run` describes it; no tensor of TensorFlow is changed in place."""
        dtype, cotangents, training, recorder = options
        title = self.label or type(self.model).__name__
        with eagerly():
            if not self._is_built:
                first = {name: _tensor(array, self.dtype) for name, array in inputs.items()}
                positional, keywords = arguments(self.model, first, title)
                self.model(*positional, **keywords, **_mode(self.model, training=False))
                self._is_built = True
                self._name_arrays()
            model = self._copy(dtype)
            variables = dict(zip(self.names, model.weights, strict=True))
            for name, variable in variables.items():
                variable.assign(tf.cast(self.arrays[name], variable.dtype))
            given = {name: _tensor(array, dtype) for name, array in inputs.items()}
            positional, keywords = arguments(model, given, title)
            keywords |= _mode(model, training)
            sources = {f"input.{name}": tensor for name, tensor in given.items()}
            sources |= {f"parameter.{name}": variables[name].value for name in self.parameters}
            sources = {name: source for name, source in sources.items() if source.dtype.is_floating and cotangents}
            inner: dict[tuple[int, str], tf.Tensor] = {}
            with contextlib.ExitStack() as stack:
                tape = stack.enter_context(tf.GradientTape(watch_accessed_variables=False))
                tape.watch(list(sources.values()))
                if recorder is not None:
                    names = {id(variable): name for name, variable in variables.items() if name in self.parameters}
                    inner = stack.enter_context(recording(model, recorder, names, tape if cotangents else None))
                call = model.call if isinstance(model, Function) else model  # which casts nothing
                result = call(*positional, **keywords)
        outputs, unread = flatten(result, is_array, to_numpy)
        gradients: Arrays = {}
        if cotangents:
            found = {name: one for name, one in leaves(result, is_array) if is_array(one)}
            gradients, inside = _gradients(tape, found, cotangents, sources, inner)
            for (index, name), gradient in inside.items():
                recorder.gradient(index, name, gradient)  # type: ignore[union-attr]
        state = {name: _read(variables[name].value) for name in self.state} if training else {}
        return Answer(outputs, gradients, state, tuple(unread))


def _gradients(
    tape: tf.GradientTape,
    outputs: Mapping[str, tf.Tensor],
    cotangents: Mapping[str, np.ndarray],
    sources: Mapping[str, tf.Tensor],
    inner: Mapping[tuple[int, str], tf.Tensor],
) -> tuple[Arrays, dict[tuple[int, str], np.ndarray]]:
    """The gradients of the sources by name, zeros where no output depends on one, and those known of inner tensors."""
    chosen = [name for name, one in outputs.items() if name in cotangents and one.dtype.is_floating]
    targets = [tf.convert_to_tensor(outputs[name]) for name in chosen]
    factors = [tf.cast(cotangents[name], outputs[name].dtype) for name in chosen]
    computed = tape.gradient(targets, [*sources.values(), *inner.values()], factors) if chosen else []
    # The gradient of an embedding holds only the rows that were looked up.
    dense = [None if one is None else tf.convert_to_tensor(one) for one in computed or [None] * len(sources)]
    gradients = {
        name: np.zeros(source.shape) if one is None else _read(one)
        for (name, source), one in zip(sources.items(), dense, strict=False)
    }
    inside = zip(inner, dense[len(sources) :], strict=False)
    return gradients, {key: to_numpy(one) for key, one in inside if one is not None}


def make_copy(model: keras.Layer, dtype: str | None = None) -> keras.Layer:
    """A copy with variables, policies and constants of its own, floating ones in the dtype if there is one.

    Keras copies a layer by its configuration, which many layers lack: this copies attributes instead.
    """

    def recast(name: str) -> str:
        return dtype if dtype and "float" in name else name

    def of_object(one: Any, memo: dict[int, Any]) -> Any:
        kind: Any = type(one)
        made = memo[id(one)] = kind.__new__(kind)
        for name, value in vars(one).items():
            if name in LINKS:
                vars(made)[name] = []
            elif name == "_dtype" and isinstance(value, str):
                vars(made)[name] = recast(value)
            elif isinstance(value, tf.Tensor) and value.dtype.is_floating:
                vars(made)[name] = tf.cast(value, recast(value.dtype.name))
            elif name not in BOUND and not name.startswith(TRACKING):
                vars(made)[name] = copy.deepcopy(value, memo)
        return made

    def of_variable(one: Any, memo: dict[int, Any]) -> Any:
        made = memo[id(one)] = object.__new__(type(one))
        vars(made).update(vars(one), _dtype=recast(one.dtype))
        if one._value is not None:
            # A cast of a variable to its own dtype would be that variable, and be shared.
            made._initialize(tf.cast(tf.convert_to_tensor(one._value), made._dtype))
        return made

    def of_symbol(one: Any, memo: dict[int, Any]) -> Any:
        made = memo[id(one)] = copy.copy(one)
        vars(made).update(_dtype=recast(one.dtype), _keras_history=copy.deepcopy(one._keras_history, memo))
        return made

    def of_policy(one: Any, memo: dict[int, Any]) -> Any:
        plain = dtype and one.quantization_mode is None and "float" in (one.compute_dtype or "")
        return keras.DTypePolicy(dtype) if plain else one

    hooks = {
        keras.Optimizer: lambda one, memo: None,
        keras.Operation: of_object,
        keras.Metric: of_object,
        keras.Loss: of_object,
        keras.Variable: of_variable,
        keras.KerasTensor: of_symbol,
        keras.DTypePolicy: of_policy,
    }
    try:
        for kind, hook in hooks.items():
            kind.__deepcopy__ = hook
        with DotNotTrackScope():
            return copy.deepcopy(model, {id(module): module for module in sys.modules.values()})
    finally:
        for kind in hooks:
            del kind.__deepcopy__


def without_dropout(model: keras.Layer) -> None:
    """Set every rate of dropout to 0: those of layers of dropout, and attributes named so."""
    for layer in model._flatten_layers():
        for name, value in vars(layer).items():
            is_rate = "drop" in name or (name == "rate" and "Dropout" in type(layer).__name__)
            if is_rate and isinstance(value, float):
                vars(layer)[name] = 0.0


def arguments(model: keras.Layer, inputs: Mapping[str, tf.Tensor], title: str) -> tuple[list[Any], dict[str, Any]]:
    """The inputs as a layer takes them: by name, or in order; a model of `keras.Input` has the names of these.

    Raises: SideError if it has some of the names only, or another number of inputs.
    """
    if isinstance(model, Function):
        return arguments_of(model.function, inputs, title)
    if not (isinstance(model, keras.Model) and type(model).call.__module__.startswith("keras.")):
        return arguments_of(model.call, inputs, title)
    symbols = getattr(model, "_inputs_struct", None) or getattr(model, "inputs", None) or list(inputs)
    if isinstance(symbols, Mapping):
        names = list(symbols)
    else:
        names = [getattr(one, "name", one) for one in keras.tree.flatten(symbols)]
    known = [name for name in inputs if name in names]
    if len(names) != len(inputs) or (known and len(known) < len(inputs)):
        raise SideError(
            f"{title} does not take {', '.join(map(repr, inputs))}; it takes {', '.join(names)}. Name its inputs in "
            f"the names file, under [inputs]"
        )
    ordered = [inputs[name] for name in names] if known else list(inputs.values())
    if isinstance(symbols, Mapping):
        return [dict(zip(names, ordered, strict=True))], {}
    return [keras.tree.pack_sequence_as(symbols, ordered) if len(names) > 1 else ordered[0]], {}


@contextlib.contextmanager
def recording(
    model: keras.Layer, recorder: Recorder, names: Mapping[int, str], tape: tf.GradientTape | None
) -> Iterator[dict[tuple[int, str], tf.Tensor]]:
    """Record the calls of all sublayers, and yield their floating outputs by call and name, which the tape watches."""
    called: set[str] = set()
    inner: dict[tuple[int, str], tf.Tensor] = {}

    def wrap(path: str, layer: keras.Layer) -> Callable[..., Any]:
        call = layer.call
        parameters = [names[id(variable)] for variable in _variables_of(layer) if id(variable) in names]

        @functools.wraps(call)
        def record_call(*positional: Any, **keywords: Any) -> Any:
            called.add(path)
            tree = {**{str(place): one for place, one in enumerate(positional)}, **keywords}
            kind = type(layer).__name__
            index = recorder.enter(path, kind, flatten(tree, is_array, to_numpy)[0], parameters, _settings(layer))
            outputs = call(*positional, **keywords)
            recorder.leave(index, flatten(outputs, is_array, to_numpy)[0])
            for name, tensor in leaves(outputs, is_array):
                if tape is not None and isinstance(tensor, tf.Tensor) and tensor.dtype.is_floating:
                    tape.watch(tensor)
                    inner[index, name] = tensor
            return outputs

        return record_call

    layers = dict(sublayers(model))
    for path, layer in layers.items():
        vars(layer)["call"] = wrap(path, layer)
    try:
        yield inner
    finally:
        for layer in layers.values():
            del vars(layer)["call"]
    for path, layer in layers.items():
        if path not in called and _variables_of(layer):
            recorder.unseen[f"{path} (not called: its parameters are read by the layer around it)"] = None


def sublayers(model: keras.Layer) -> Iterator[tuple[str, keras.Layer]]:
    """Yield each layer of a model once with its path, which is made of the names of attributes, or else of layers."""
    seen: set[int] = set()

    def visit(path: str, layer: keras.Layer) -> Iterator[tuple[str, keras.Layer]]:
        seen.add(id(layer))
        yield path, layer
        public = {name: value for name, value in vars(layer).items() if not name.startswith("_")}
        attributes = {id(one): name for name, one in leaves(public, _is_layer) if _is_layer(one)}
        taken: set[str] = set()
        for child in layer._layers:
            if id(child) not in seen:
                (name,) = _unique([attributes.get(id(child), child.name)], taken)
                yield from visit(f"{path}.{name}" if path else name, child)

    yield from visit("", model)


@contextlib.contextmanager
def eagerly() -> Iterator[None]:
    """Run functions of TensorFlow as Python, so that what they call has values."""
    before = tf.config.functions_run_eagerly()
    tf.config.run_functions_eagerly(True)
    try:
        yield
    finally:
        tf.config.run_functions_eagerly(before)


def is_array(value: Any) -> bool:
    """Whether it is a dense tensor or a variable of numbers."""
    return isinstance(value, (tf.Tensor, tf.Variable, keras.Variable)) and value.dtype != tf.string


def _is_layer(value: Any) -> bool:
    return isinstance(value, keras.Layer)


def _mode(model: keras.Layer, training: bool) -> dict[str, bool]:
    """The argument that says whether a model is trained; Keras itself leaves it out for a call without it."""
    takes = not isinstance(model, Function) or "training" in inspect.signature(model.function).parameters
    return {"training": training} if takes else {}


def _variables_of(layer: keras.Layer) -> list[keras.Variable]:
    """The variables of a layer itself, and not of those inside."""
    inside = {id(variable) for child in layer._layers for variable in child.weights}
    return [variable for variable in layer.weights if id(variable) not in inside]


def _settings(layer: keras.Layer) -> dict[str, Any]:
    plain = {name: value for name, value in vars(layer).items() if isinstance(value, (bool, int, float, str))}
    plain |= {name: value.__name__ for name, value in vars(layer).items() if inspect.isfunction(value)}
    return {name: value for name, value in plain.items() if not name.startswith("_") and name not in COMMON}


def _unique(names: list[str], taken: set[str] | None = None) -> list[str]:
    """The names, with a number where one was there before."""
    taken = set() if taken is None else taken
    found = []
    for name in names:
        numbered = itertools.chain([name], (f"{name}_{number}" for number in itertools.count(1)))
        free = next(one for one in numbered if one not in taken)
        taken.add(free)
        found.append(free)
    return found


def _tensor(array: np.ndarray, dtype: str) -> tf.Tensor:
    kind = dtype if "float" in array.dtype.name else array.dtype.name
    return tf.cast(tf.constant(array), kind)


def _read(tensor: tf.Tensor) -> np.ndarray:
    """The values of a tensor, floating ones in float64."""
    return np.array(to_numpy(tf.cast(tensor, tf.float64) if tensor.dtype.is_floating else tensor))


__all__ = ["KerasSide", "open_model", "recording", "SideError"]
