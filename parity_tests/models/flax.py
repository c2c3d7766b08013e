"""Flax models and JAX functions as sides."""

from __future__ import annotations

import contextlib
import functools
import inspect
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import jax
import jax.experimental
import jax.numpy as jnp
import numpy as np
from flax import linen, nnx
from flax.core import meta, unfreeze

from backends.jax.arrays import to_numpy
from parity_tests.models.calls import Answer, Arrays, Recorder, RunOptions, flatten, leaves
from parity_tests.models.sides import Side, SideError, arguments_of, describe

MODES = {"deterministic": False, "use_running_average": False, "train": True, "training": True}
"""The arguments of calls that choose between training and evaluation, and their values in training."""

Around = Callable[..., Any]
"""What makes the call of a sublayer: around(path, layer, function, positional, keywords) returns its outputs."""

enable_x64 = jax.enable_x64 if hasattr(jax, "enable_x64") else jax.experimental.enable_x64  # since 0.8, and before


def open_model(model: nnx.Module | tuple[linen.Module, Mapping[str, Any]] | Callable[..., Any]) -> Side:
    """The side of an nnx module, of a Linen module and its variables, or of a function."""
    if isinstance(model, linen.Module):
        raise SideError(f"{describe(model)} is a Linen module, which holds no parameters: pass (module, variables)")
    if isinstance(model, tuple):
        return FlaxSide(Linen(*model))
    return FlaxSide(Nnx(model) if isinstance(model, nnx.Module) else Function(model))


class Program(ABC):
    """A model as a function of its arrays; nothing else of it changes between calls."""

    parameters: Mapping[str, jax.Array] = {}
    state: Mapping[str, jax.Array] = {}
    tied: Mapping[str, str] = {}
    owners: Mapping[str, tuple[str, ...]] = {}
    """The names of a sublayer's own parameters, by its path."""
    title: str

    @abstractmethod
    def call(
        self, arrays: Mapping[str, jax.Array], inputs: Mapping[str, jax.Array], training: bool, around: Around | None
    ) -> tuple[Any, Mapping[str, jax.Array]]:
        """The result for arrays and inputs, all of the dtype to compute in, and the state after the call."""

    @functools.cached_property
    def dtype(self) -> np.dtype[Any]:
        """The dtype of the first floating parameter."""
        floating = [one.dtype for one in self.parameters.values() if _is_floating(one)]
        return np.dtype(floating[0] if floating else np.float32)

    def computed_in(self, arrays: Mapping[str, jax.Array]) -> np.dtype[Any]:
        """The dtype of floating arrays that are given to a call."""
        return next((one.dtype for one in arrays.values() if _is_floating(one)), self.dtype)

    def adjust(self, layer: Any, dtype: np.dtype[Any]) -> None:
        """Set a layer's probabilities of dropout to 0, and the dtype of its parameters to the one computed in."""
        for name, value in [(str(name), value) for name, value in vars(layer).items()]:
            dropout = "drop" in name or (name == "rate" and isinstance(layer, (nnx.Dropout, linen.Dropout)))
            # Without a dtype nnx.Embed takes that of its parameters, as an np.dtype: no choice of the model's.
            taken = name == "dtype" and isinstance(layer, nnx.Embed) and isinstance(value, np.dtype)
            follows = name == "param_dtype" or taken
            if dropout and isinstance(value, float):
                object.__setattr__(layer, name, 0.0)
            elif follows and value is not None and jnp.dtype(value) == self.dtype:
                object.__setattr__(layer, name, dtype)


class Function(Program):
    """A function, which has no parameters."""

    def __init__(self, function: Callable[..., Any]) -> None:
        self.function, self.title = function, describe(function)

    def call(
        self, arrays: Mapping[str, jax.Array], inputs: Mapping[str, jax.Array], training: bool, around: Around | None
    ) -> tuple[Any, Mapping[str, jax.Array]]:
        """The result, as `Program.call` describes it."""
        positional, keywords = _arguments(self.function, inputs, self.title, training)
        return self.function(*positional, **keywords), {}


class Linen(Program):
    """A Linen module with its variables."""

    def __init__(self, module: linen.Module, variables: Mapping[str, Any]) -> None:
        self.module, self.title = module, describe(module)
        self.variables = meta.unbox(unfreeze(variables))
        if not isinstance(self.variables, Mapping) or (self.variables and "params" not in self.variables):
            raise SideError(f"expected the variables of {self.title} by collection, as init returns them: params, ...")
        names = _with_names(self.variables)
        self.parameters = {name[7:]: one for name, one in names.items() if name.startswith("params.")}
        self.state = {name: one for name, one in names.items() if not name.startswith("params.")}
        self.places = {name: f"params.{name}" for name in self.parameters}
        self.mutable = [name for name in self.variables if name != "params"]
        owners: dict[str, tuple[str, ...]] = {}
        for name in self.parameters:
            path = name.rpartition(".")[0]
            owners[path] = (*owners.get(path, ()), name)
        self.owners = owners

    def call(
        self, arrays: Mapping[str, jax.Array], inputs: Mapping[str, jax.Array], training: bool, around: Around | None
    ) -> tuple[Any, Mapping[str, jax.Array]]:
        """The result, as `Program.call` describes it."""
        dtype = self.computed_in(arrays)

        def intercept(function: Any, positional: Any, keywords: Any, context: Any) -> Any:
            layer = context.module
            for one in (layer, *vars(layer).values()):  # the cell of an RNN makes its first state uncalled
                if isinstance(one, linen.Module):
                    self.adjust(one, dtype)
            if around is None or context.method_name != "__call__":
                return function(*positional, **keywords)
            return around(".".join(layer.path), layer, function, positional, keywords)

        positional, keywords = _arguments(type(self.module).__call__, inputs, self.title, training, 1)
        given = _replace(self.variables, {self.places.get(name, name): one for name, one in arrays.items()})
        with linen.intercept_methods(intercept):
            result, changed = self.module.apply(
                given, *positional, rngs={"params": jax.random.key(0)}, mutable=self.mutable, **keywords
            )
        return result, _with_names(changed)


class Nnx(Program):
    """An nnx module, copied. nnx keeps what is shared under the first of its paths in alphabetical order."""

    def __init__(self, model: nnx.Module) -> None:
        self.model, self.title = nnx.clone(model), describe(model)
        _, _, parameters, state = nnx.split(self.model, nnx.RngState, nnx.Param, ...)
        self.parameters, self.state = _with_names(parameters), _with_names(state)
        places = {".".join(path): id(variable) for path, variable in _places(self.model)}
        first = {places[name]: name for name in self.parameters if name in places}
        self.tied = {name: first[key] for name, key in places.items() if key in first and first[key] != name}
        modules = ((path, node) for path, node in nnx.iter_graph(self.model) if isinstance(node, nnx.Module))
        self.modules = {".".join(map(str, path)): node for path, node in modules if _own_call(type(node)) is not None}
        owners: dict[str, list[str]] = {path: [] for path in self.modules}
        for name in (*self.parameters, *self.tied):
            around = [path for path in owners if not path or name.startswith(f"{path}.")]
            if around:
                owners[max(around, key=len)].append(self.tied.get(name, name))
        self.owners = {path: tuple(names) for path, names in owners.items() if names}
        for path, module in self.modules.items():
            module.parity_path = path  # kept by the copies that transformations make

    @functools.cache  # noqa: B019  # a program lives as long as its copies
    def _copy(self, dtype: np.dtype[Any]) -> tuple[Any, ...]:
        model = nnx.clone(self.model)
        for _, node in nnx.iter_graph(model):
            if isinstance(node, nnx.Module):
                self.adjust(node, dtype)
        return tuple(nnx.split(model, nnx.RngState, ...))

    def call(
        self, arrays: Mapping[str, jax.Array], inputs: Mapping[str, jax.Array], training: bool, around: Around | None
    ) -> tuple[Any, Mapping[str, jax.Array]]:
        """The result, as `Program.call` describes it."""
        graph, *states = self._copy(self.computed_in(arrays))
        model = nnx.merge(graph, *(_replace(state, arrays) for state in states))
        model.train() if training else model.eval()
        positional, keywords = _arguments(type(model).__call__, inputs, self.title, training, 1)
        with self._calls(around):
            result = model(*positional, **keywords)
        return result, _with_names(nnx.split(model, nnx.RngState, ...)[2])

    @contextlib.contextmanager
    def _calls(self, around: Around | None) -> Iterator[None]:
        """Let the calls of all sublayers be made by a function, through their classes."""
        running: set[int] = set()

        def replacement(original: Any) -> Callable[..., Any]:
            @functools.wraps(original)
            def call(layer: Any, *positional: Any, **keywords: Any) -> Any:
                function = original.__get__(layer, type(layer))
                path = vars(layer).get("parity_path")
                if around is None or path is None or id(layer) in running:  # its own class calls that of its base
                    return function(*positional, **keywords)
                running.add(id(layer))
                try:
                    return around(path, layer, function, positional, keywords)
                finally:
                    running.discard(id(layer))

            return call

        kinds = {type(module) for module in self.modules.values()} if around else set()
        kept = {kind: vars(kind).get("__call__") for kind in kinds}
        replaced = {kind: replacement(_own_call(kind)) for kind in kinds}
        try:
            for kind, function in replaced.items():
                kind.__call__ = function
            yield
        finally:
            for kind, function in kept.items():
                if function is None:
                    del kind.__call__
                else:
                    kind.__call__ = function


class FlaxSide(Side):
    """A module or function; every run is eager. JAX has float64 in runs of it only, as its users have."""

    framework = "flax"

    def __init__(self, program: Program) -> None:
        super().__init__()
        self.program, self.label = program, program.title
        self.parameters, self.state, self.tied = tuple(program.parameters), tuple(program.state), program.tied
        self.kinds = {name: one.dtype for name, one in {**program.parameters, **program.state}.items()}
        self.arrays = {name: _read(one) for name, one in {**program.parameters, **program.state}.items()}
        self.dtype = program.dtype.name
        self.dtypes = tuple(dict.fromkeys(("float64", "float32", "bfloat16", self.dtype)))

    def answer(self, inputs: Mapping[str, np.ndarray], options: RunOptions) -> Answer:
        """The answer to these inputs, as `Side.run` describes it."""
        dtype, cotangents, training, recorder = options
        with enable_x64("float64" in (dtype, self.dtype)), jax.default_matmul_precision("highest"):
            arrays = {name: _array(array, dtype, self.kinds[name]) for name, array in self.arrays.items()}
            given = {name: _array(array, dtype, array.dtype) for name, array in inputs.items()}
            recording = None if recorder is None else Recording(recorder, self.program.owners)
            result, after = self.program.call(arrays, given, training, recording.around if recording else None)
            outputs, unread = flatten(result, _is_array, to_numpy)
            state = {name: _read(after.get(name, arrays[name])) for name in self.state} if training else {}
            gradients = self._gradients(arrays, given, cotangents, training, recording) if cotangents else {}
        for path in self.program.owners:
            if recording is not None and path not in recording.met:
                recording.recorder.unseen[f"{path} (not called: its parameters are read by the layer around it)"] = None
        return Answer(outputs, gradients, state, tuple(unread))

    def _gradients(
        self,
        arrays: Mapping[str, jax.Array],
        inputs: Mapping[str, jax.Array],
        cotangents: Mapping[str, np.ndarray],
        training: bool,
        recording: Recording | None,
    ) -> Arrays:
        """The gradients of floating inputs and parameters; those of sublayers' outputs go to the recording."""
        sources = {f"input.{name}": array for name, array in inputs.items()}
        sources |= {f"parameter.{name}": arrays[name] for name in self.parameters}
        sources = {name: array for name, array in sources.items() if _is_floating(array)}

        def function(sources: Mapping[str, jax.Array], zeros: Mapping[Any, Any]) -> dict[str, jax.Array]:
            merged = {name: sources.get(f"parameter.{name}", array) for name, array in arrays.items()}
            given = {name: sources.get(f"input.{name}", array) for name, array in inputs.items()}
            around = Adding(zeros).around if zeros else None
            result, _ = self.program.call(merged, given, training, around)
            return {name: one for name, one in leaves(result, _is_array) if name in cotangents and _is_floating(one)}

        zeros = {} if recording is None else recording.zeros
        outputs, pull = jax.vjp(function, sources, zeros)
        factors = {name: jnp.asarray(cotangents[name]).astype(one.dtype) for name, one in outputs.items()}
        computed, inside = pull(factors)
        if recording is not None:
            recording.gradients(inside)
        return {name: _read(gradient) for name, gradient in computed.items()}


class Recording:
    """Records the calls of sublayers. Those inside transformations have no values to record."""

    def __init__(self, recorder: Recorder, owners: Mapping[str, tuple[str, ...]]) -> None:
        self.recorder, self.owners = recorder, owners
        self.met: set[str] = set()
        self.zeros: dict[str, list[dict[str, jax.Array]]] = {}
        """For each call by path, zeros like its floating outputs: what these are differentiated by."""
        self.indices: dict[str, list[int]] = {}

    def around(self, path: str, layer: Any, function: Any, positional: Any, keywords: Any) -> Any:
        """Make a call, and record it."""
        self.met.add(path)
        given = {**{str(place): value for place, value in enumerate(positional)}, **keywords}
        if self._hides(path, given):
            return function(*positional, **keywords)
        settings = {name: _setting(value) for name, value in vars(layer).items() if _is_setting(str(name), value)}
        named, kind = flatten(given, _is_array, to_numpy)[0], type(layer).__name__
        index = self.recorder.enter(path, kind, named, self.owners.get(path, ()), settings)
        outputs = function(*positional, **keywords)
        if not self._hides(path, outputs):
            self.recorder.leave(index, flatten(outputs, _is_array, to_numpy)[0])
            names = {id(one): name for name, one in leaves(outputs, _is_array)}
            added = {names[id(one)]: jnp.zeros_like(one) for one in jax.tree.leaves(outputs) if _is_floating(one)}
            self.zeros.setdefault(path, []).append(added)
            self.indices.setdefault(path, []).append(index)
        return outputs

    def gradients(self, computed: Mapping[str, list[dict[str, jax.Array]]]) -> None:
        """Record the gradients of outputs, in the structure of `zeros`."""
        for path, calls in computed.items():
            for index, named in zip(self.indices[path], calls, strict=True):
                for name, gradient in named.items():
                    self.recorder.gradient(index, name, to_numpy(gradient))

    def _hides(self, path: str, tree: Any) -> bool:
        traced = any(isinstance(one, jax.core.Tracer) for one in jax.tree.leaves(tree))
        if traced:
            self.recorder.unseen[f"{path or 'the model'} (inside a transformation)"] = None
        return traced


class Adding:
    """Adds to the outputs of each call the zeros that they are differentiated by."""

    def __init__(self, zeros: Mapping[str, list[dict[str, jax.Array]]]) -> None:
        self.zeros = {path: iter(calls) for path, calls in zeros.items()}

    def around(self, path: str, layer: Any, function: Any, positional: Any, keywords: Any) -> Any:
        """Make a call, and add its zeros."""
        outputs = function(*positional, **keywords)
        added = next(self.zeros.get(path, iter(())), {})
        names = {id(one): name for name, one in leaves(outputs, _is_array)}
        return jax.tree.map(lambda one: one + added[names[id(one)]] if names.get(id(one)) in added else one, outputs)


def _arguments(
    function: Callable[..., Any], inputs: Mapping[str, jax.Array], title: str, training: bool, first: int = 0
) -> tuple[list[Any], dict[str, Any]]:
    """The arguments of a call, with those that choose between training and evaluation."""
    try:
        parameters = dict(list(inspect.signature(function).parameters.items())[first:])
    except (TypeError, ValueError):
        parameters = {}
    if any(one.kind is one.VAR_POSITIONAL for one in parameters.values()) and not {*parameters} & {*inputs}:
        return list(inputs.values()), {}  # a Sequential passes on whatever it is given
    positional, keywords = arguments_of(function, inputs, title, first)
    left = [name for name in list(parameters)[len(positional) :] if name in MODES and name not in keywords]
    return positional, {**keywords, **{name: training is MODES[name] for name in left}}


def _own_call(kind: type) -> Any:
    """The __call__ of a class or its bases; that of its metaclass makes objects, and is none."""
    return next((vars(one)["__call__"] for one in kind.__mro__ if "__call__" in vars(one)), None)


def _places(node: Any, path: tuple[str, ...] = (), above: tuple[int, ...] = ()) -> Iterator[tuple[Any, nnx.Variable]]:
    """Yield the variables of a model with all paths to each; nnx gives one."""
    if isinstance(node, nnx.Variable):
        yield path, node
    elif isinstance(node, (nnx.Module, Mapping, list, tuple)) and id(node) not in above:
        inside = dict(enumerate(node)) if isinstance(node, (list, tuple)) else getattr(node, "__dict__", node)
        for key, child in inside.items():
            yield from _places(child, (*path, str(key)), (*above, id(node)))


def _name(path: tuple[Any, ...]) -> str:
    """The name of an array in a tree; a variable's value has none of its own."""
    inside = [key for key in path if key != jax.tree_util.GetAttrKey("value")]
    return ".".join(jax.tree_util.keystr((key,), simple=True) for key in inside)


def _with_names(tree: Any) -> dict[str, jax.Array]:
    """The arrays of a tree by name, without keys of random numbers."""
    named = {_name(path): leaf for path, leaf in jax.tree_util.tree_flatten_with_path(tree)[0]}
    return {
        name: leaf
        for name, leaf in named.items()
        if _is_array(leaf) and not jnp.issubdtype(leaf.dtype, jax.dtypes.prng_key)
    }


def _replace(tree: Any, arrays: Mapping[str, jax.Array]) -> Any:
    return jax.tree_util.tree_map_with_path(lambda path, leaf: arrays.get(_name(path), leaf), tree)


def _is_setting(name: str, value: Any) -> bool:
    if name.startswith("_") or name in ("parity_path", "name", "parent"):
        return False
    return isinstance(value, (bool, int, float, str)) or (name.endswith(("_fn", "activation")) and callable(value))


def _setting(value: Any) -> Any:
    return describe(value) if callable(value) else value


def _is_array(value: Any) -> bool:
    return isinstance(value, (jax.Array, np.ndarray))


def _is_floating(value: Any) -> bool:
    return _is_array(value) and jnp.issubdtype(value.dtype, jnp.floating)


def _array(array: np.ndarray, dtype: str, kind: Any) -> jax.Array:
    """The values on the device; floating ones in the dtype."""
    return jnp.asarray(np.array(array), jnp.dtype(dtype) if jnp.issubdtype(kind, jnp.floating) else None)


def _read(array: jax.Array) -> np.ndarray:
    """The values of an array, floating ones in float64."""
    return to_numpy(array).astype(np.float64) if _is_floating(array) else to_numpy(array)


__all__ = ["FlaxSide", "open_model", "SideError"]
