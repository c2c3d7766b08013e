"""A side of a comparison: a model or a function of any framework, run on arrays by name."""

from __future__ import annotations

import importlib
import inspect
import sys
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import replace
from types import ModuleType
from typing import Any

import numpy as np

from parity_tests.models.calls import Answer, Arrays, Recorder, RunOptions

FRAMEWORKS = {
    "torch": "torch",
    "keras": "keras",
    "tensorflow": "keras",
    "flax": "flax",
    "jax": "flax",
    "mxnet": "mxnet",
}
"""The adapter, a file beside this one, by the package that a model or a function is made of."""

DATA = (".onnx", ".npz", ".safetensors")
"""The suffixes of files that are read, and run no code of their own."""


class SideError(ValueError):
    """A side that cannot be run, or not in the way that was asked for."""


class RemoteError(Exception):
    """What a model raised in a process of its own; the message begins with the class."""


class Side(ABC):
    """A model or function whose arrays are kept apart from it: nothing of the user's object is ever changed.

    arrays are the current parameters and state by name, each once: what a run uses. An adapter makes copies of the
    model in the dtypes that are asked for, and writes the arrays to the copy before each run.
    """

    framework: str
    label: str = ""
    parameters: tuple[str, ...] = ()
    """The names of what is trained."""
    state: tuple[str, ...] = ()
    """The names of what is not trained: running means, buffers."""
    tied: Mapping[str, str] = {}
    """The further names of a parameter, and the one that it is kept under."""
    dtype: str = "float32"
    """The dtype that it computes in unless another is asked for."""
    is_fixed: bool = False
    """Whether it answers the inputs that it was kept for alone."""
    dtypes: tuple[str, ...] = ("float64", "float32")
    """The dtypes that it can be asked for."""
    about: Mapping[str, Any] = {}
    """The framework and its versions, if the side runs in a process of its own."""
    environment: Mapping[str, str] = {}
    """The variables that such a process was given."""
    files: Mapping[str, str] = {}
    """The source files that it imported, by their paths from the target's folder."""

    def __init__(self) -> None:
        self.arrays: Arrays = {}

    def run(
        self,
        inputs: Mapping[str, np.ndarray],
        dtype: str,
        *,
        cotangents: Mapping[str, np.ndarray] | None = None,
        training: bool = False,
        recorder: Recorder | None = None,
    ) -> Answer:
        """The answer to these inputs, computed in a dtype, by a copy that holds `arrays`.

        With cotangents, by the name of an output, gradients are those of the sum of their products with the outputs:
        input.<name> for floating inputs, parameter.<name> for parameters. Dropout is off in training, too. An output
        of another dtype than the one asked for keeps it.

        Raises: SideError if the side does not take the inputs; whatever the model raises.
        """
        answer = self.answer(inputs, RunOptions(dtype, cotangents, training, recorder))
        if recorder is None or answer.calls:
            return answer
        return replace(answer, calls=recorder.completed_calls, unseen=tuple(recorder.unseen))

    @abstractmethod
    def answer(self, inputs: Mapping[str, np.ndarray], options: RunOptions) -> Answer:
        """The answer of `run`; calls that the recorder was told of need not be in it."""

    def close(self) -> None:  # noqa: B027  # most have nothing to close
        """Release what the side holds."""


def open_side(given: Any) -> Side:
    """The side of a live object: a model of any framework, a function, a file of arrays, or a side itself.

    Raises: SideError if nothing of it can be run.
    """
    if isinstance(given, Side):
        return given
    adapter = adapter_of(given)
    if adapter is None:
        raise SideError(
            f"{describe(given)} is no model of {', '.join(sorted({*FRAMEWORKS.values()}))}, and no function: pass a "
            f"torch.nn.Module, a Keras layer, an nnx.Module, (a Linen module, its variables), a Gluon block, a "
            f"function or the path of a .onnx, .npz or .safetensors file"
        )
    side: Side = importlib.import_module(f"{__package__}.{adapter}").open_model(given)
    side.label = side.label or describe(given)
    return side


def adapter_of(given: Any) -> str | None:
    """The name of the adapter for an object; None if there is none."""
    if isinstance(given, (str, bytes)) or hasattr(given, "__fspath__"):
        return "onnx" if str(given).endswith(".onnx") else "kept"
    for one in given if isinstance(given, tuple) and given else [given]:
        packages = [kind.__module__.partition(".")[0] for kind in type(one).__mro__]
        found = next((FRAMEWORKS[name] for name in packages if name in FRAMEWORKS), None)
        if found is not None and not _is_function(one):
            return found
    return framework_of(given) if callable(given) else None


def framework_of(function: Callable[..., Any]) -> str:
    """The adapter for a function: that of the framework whose modules it names; NumPy's if it names none."""
    inner = inspect.unwrap(function)
    inner = getattr(inner, "func", inner)  # of a partial
    scope = {**getattr(inner, "__globals__", {}), **_closure(inner)}
    code = getattr(inner, "__code__", None) or getattr(type(inner).__call__, "__code__", None)
    named = [scope[name] for name in (code.co_names + code.co_freevars if code else ()) if name in scope]
    for value in (*named, *scope.values()):
        place = value.__name__ if isinstance(value, ModuleType) else str(getattr(value, "__module__", ""))
        package = place.partition(".")[0]
        if package in FRAMEWORKS and package in sys.modules:
            return FRAMEWORKS[package]
    return "numpy"


def _closure(function: Callable[..., Any]) -> Mapping[str, Any]:
    cells = getattr(function, "__closure__", None) or ()
    names = getattr(getattr(function, "__code__", None), "co_freevars", ())
    return {name: cell.cell_contents for name, cell in zip(names, cells, strict=False)}


def _is_function(given: Any) -> bool:
    return inspect.isroutine(given) or inspect.isclass(given)


def describe(given: Any) -> str:
    """A name for an object: that of the function, or of its class."""
    return str(getattr(given, "__name__", None) or type(given).__name__)


def arguments_of(
    function: Callable[..., Any], inputs: Mapping[str, Any], title: str, first: int = 0
) -> tuple[list[Any], dict[str, Any]]:
    """The inputs as positional and keyword arguments of a function: by name where its signature has the names.

    first is the number of parameters that are given already. A single input, and inputs none of whose names the
    signature has, are passed in order.

    Raises: SideError if it has some of the names only.
    """
    try:
        parameters = list(inspect.signature(function).parameters.values())[first:]
    except (TypeError, ValueError):
        return list(inputs.values()), {}
    names = [one.name for one in parameters if one.kind in (one.POSITIONAL_OR_KEYWORD, one.KEYWORD_ONLY)]
    unknown = [name for name in inputs if name not in names]
    kinds = {one.kind for one in parameters}
    in_order = len(unknown) == len(inputs) and (not names or inspect.Parameter.VAR_KEYWORD not in kinds)
    if not unknown or (inspect.Parameter.VAR_KEYWORD in kinds and not in_order):
        return [], dict(inputs)
    if in_order:
        return list(inputs.values()), {}
    raise SideError(
        f"{title} takes no {', '.join(map(repr, unknown))}; it takes {', '.join(names)}. Name its inputs in the names "
        f"file, under [inputs]"
    )
