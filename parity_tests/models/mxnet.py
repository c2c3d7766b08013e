"""Gluon blocks and MXNet functions as sides, with NumPy arrays (`npx.set_np`)."""

from __future__ import annotations

import contextlib
import copy
import functools
import inspect
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import mxnet as mx
import numpy
from mxnet import autograd, np
from mxnet.gluon import Block, HybridBlock, Parameter, SymbolBlock

from backends.mxnet.arrays import to_numpy
from parity_tests.models.calls import Answer, Arrays, Recorder, RunOptions, flatten, leaves
from parity_tests.models.sides import Side, SideError, arguments_of

PLAIN = (bool, int, float, str)
COMMON = ("prefix", "name", "active", "empty_prefix", "monitor_all", "out_format", "in_format")
"""The attributes that say nothing about what a block computes."""
Anchors = dict[tuple[int, str], np.ndarray]
"""Arrays of zeros that are added to the outputs of calls, whose gradients they have."""


def open_model(model: Block | Callable[..., Any]) -> Side:
    """The side of a block or function."""
    return MXNetSide(model if isinstance(model, Block) else Function(model), model)


class Function(Block):
    """A function as a block without parameters."""

    def __init__(self, function: Callable[..., Any]) -> None:
        super().__init__()
        self.forward = function


class MXNetSide(Side):
    """A block, copied; a hybridized one is run as it is, and record_call as the one that is not.

    Parameters whose shapes are not known yet are drawn by the first run.
    """

    framework = "mxnet"

    def __init__(self, model: Block, given: Any) -> None:
        super().__init__()
        self.model = make_copy(model)
        self.given = given
        self._name_arrays()
        floating = [str(numpy.dtype(one.dtype)) for one in named_parameters(self.model)[0].values()]
        self.dtype = next((name for name in floating if "float" in name), "float32")
        self.dtypes = tuple(dict.fromkeys(("float64", "float32", self.dtype)))

    def _name_arrays(self) -> None:
        """Name the parameters, and read those that have no array yet."""
        known, self.tied = named_parameters(self.model)
        self.parameters = tuple(name for name, one in known.items() if one.grad_req != "null")
        self.state = tuple(name for name in known if name not in self.parameters)
        drawn = {name: _read(one.data()) for name, one in known.items() if one._data is not None}
        self.arrays = {**drawn, **self.arrays}

    @functools.cache  # noqa: B019  # a side lives as long as its copies
    def _copy(self, dtype: str, plain: bool) -> Block:
        made = make_copy(self.model)
        if plain:
            made.hybridize(active=False)
        if dtype != self.dtype:
            recast(made, dtype)
        without_dropout(made)
        for parameter in named_parameters(made)[0].values():
            if parameter.grad_req != "null" and parameter._data is not None:
                parameter.grad_req = "write"
                parameter._init_grad()  # a copied array is no variable of autograd
        return made

    def answer(self, inputs: Mapping[str, numpy.ndarray], options: RunOptions) -> Answer:
        """The answer to these inputs, as `Side.run` describes it."""
        dtype, cotangents, training, recorder = options
        title = self.label or type(self.model).__name__
        if any(one._data is None for one in named_parameters(self.model)[0].values()):
            first = {name: _tensor(array, self.dtype) for name, array in inputs.items()}
            call(self.model, first, title)
            self._name_arrays()
        model = self._copy(dtype, recorder is not None)
        parameters = named_parameters(model)[0]
        for name, parameter in parameters.items():
            parameter.set_data(np.array(self.arrays[name], dtype=parameter.dtype))
        given = {name: _tensor(array, dtype) for name, array in inputs.items()}
        before = {name: to_numpy(tensor) for name, tensor in given.items()}
        floating = {name: tensor for name, tensor in given.items() if tensor.dtype.kind == "f" and cotangents}
        for tensor in floating.values():
            tensor.attach_grad()
        for name in self.parameters:
            parameters[name].grad()[:] = 0.0
        anchors: Anchors = {}
        with contextlib.ExitStack() as stack:
            # MXNet changes the statistics of a layer in the backward pass, which a run for training needs for them.
            record_call = bool(cotangents) or training
            stack.enter_context(autograd.record(train_mode=training) if record_call else autograd.predict_mode())
            if recorder is not None:
                stack.enter_context(recording(model, recorder, anchors if record_call else None))
            result = call(model, given, title)
            found = {name: one for name, one in leaves(result, is_array) if is_array(one) and one.size}
            heads = [one + _anchor(one) for one in found.values() if one.dtype.kind == "f" and record_call]
        outputs, unread = flatten(result, is_array, to_numpy)
        gradients: Arrays = {}
        if heads:
            factors = [
                _factor(one, (cotangents or {}).get(name)) for name, one in found.items() if one.dtype.kind == "f"
            ]
            autograd.backward(heads, factors, train_mode=training)
        if cotangents:
            gradients = {f"input.{name}": _read(tensor.grad) for name, tensor in floating.items()}
            gradients |= {f"parameter.{name}": _read(parameters[name].grad()) for name in self.parameters}
            for (index, name), anchor in anchors.items():
                recorder.gradient(index, name, to_numpy(anchor.grad))  # type: ignore[union-attr]
        changed = tuple(
            name for name, one in given.items() if not numpy.array_equal(to_numpy(one), before[name], equal_nan=True)
        )
        state = {name: _read(parameters[name].data()) for name in self.state} if training else {}
        return Answer(outputs, gradients, state, tuple(unread), changed)


def named_parameters(model: Block) -> tuple[dict[str, Parameter], dict[str, str]]:
    """The parameters by their paths, or else by their own names, each once, and the further names of shared ones."""
    parameters: dict[str, Parameter] = {}
    tied: dict[str, str] = {}
    first: dict[int, str] = {}
    paths = {
        f"{path}.{name}" if path else name: parameter
        for path, block in blocks(model, repeated=True)
        for name, parameter in block._reg_params.items()
    }
    named = {id(parameter) for parameter in paths.values()}
    paths |= {name: one for name, one in model.collect_params().items() if id(one) not in named}
    for name, parameter in paths.items():
        if id(parameter) in first:
            tied[name] = first[id(parameter)]
        else:
            first[id(parameter)] = name
            parameters[name] = parameter
    return parameters, tied


def make_copy(model: Block) -> Block:
    """A copy without compiled graphs and trainers; a function has nothing to copy."""
    if isinstance(model, Function):
        return model
    graphs = {id(block._cached_op): None for _, block in blocks(model) if isinstance(block, HybridBlock)}
    trainers = {id(one._trainer): None for one in model.collect_params().values()}
    made = copy.deepcopy(model, {**graphs, **trainers})
    for _, block in blocks(made):
        if isinstance(block, HybridBlock):
            block._clear_cached_op()
    return made


def recast(model: Block, dtype: str) -> None:
    """Cast the parameters of a block, its constants, and the dtypes that its layers keep."""
    model.cast(dtype)
    for _, block in blocks(model):
        for name, value in vars(block).items():
            if isinstance(value, np.ndarray) and value.dtype.kind == "f":
                vars(block)[name] = value.astype(dtype)
            elif name == "_kwargs" and "float" in str(value.get("dtype", "")):
                value["dtype"] = dtype


def without_dropout(model: Block) -> None:
    """Set every rate of dropout to 0: those of layers of dropout, and attributes named so."""
    for _, block in blocks(model):
        for name, value in vars(block).items():
            is_rate = "drop" in name or ("rate" in name and "Dropout" in type(block).__name__)
            if is_rate and isinstance(value, float):
                vars(block)[name] = 0.0


def call(model: Block, inputs: Mapping[str, np.ndarray], title: str) -> Any:
    """Call a block, which takes positions alone, with inputs by name or in order.

    Raises: SideError if it has some of the names only.
    """
    if isinstance(model, Function):
        positional, keywords = arguments_of(model.forward, inputs, title)
        return model.forward(*positional, **keywords)
    if isinstance(model, SymbolBlock):
        names = [symbol.name for symbol in model._cached_graph[0]]
        return model(*(inputs[name] for name in names if name in inputs) if {*names} == {*inputs} else inputs.values())
    hybrid = type(model).forward is HybridBlock.forward
    function = model.hybrid_forward if hybrid else model.forward
    positional, keywords = arguments_of(function, inputs, title, first=int(hybrid))
    if keywords:
        taken = list(inspect.signature(function).parameters.values())[int(hybrid) :]
        last = max((place for place, one in enumerate(taken) if one.name in keywords), default=-1)
        positional = [keywords.get(one.name, one.default) for one in taken[: last + 1]]
    return model(*positional)


@contextlib.contextmanager
def recording(model: Block, recorder: Recorder, anchors: Anchors | None) -> Iterator[None]:
    """Record the calls of all sublayers; where there are anchors, add one to each output, for its gradient.

    A hook cannot change an output, and one that gets a gradient of its own would end the graph.
    """
    called: set[str] = set()
    known = {id(parameter): name for name, parameter in named_parameters(model)[0].items()}

    def wrap(path: str, block: Block) -> Callable[..., Any]:
        forward = block.forward
        parameters = [known[id(one)] for one in block.params.values() if one.grad_req != "null"]

        @functools.wraps(forward)
        def record_call(*positional: Any, **keywords: Any) -> Any:
            called.add(path)
            tree = {**{str(place): one for place, one in enumerate(positional)}, **keywords}
            kind = type(block).__name__
            index = recorder.enter(path, kind, flatten(tree, is_array, to_numpy)[0], parameters, _settings(block))
            outputs = forward(*positional, **keywords)
            recorder.leave(index, flatten(outputs, is_array, to_numpy)[0])
            return outputs if anchors is None else _anchor_all(outputs, index, anchors)

        return record_call

    every = dict(blocks(model))
    before = {path: vars(block).get("forward") for path, block in every.items()}
    for path, block in every.items():
        vars(block)["forward"] = wrap(path, block)
    try:
        yield
    finally:
        for path, block in every.items():
            vars(block).pop("forward")
            vars(block).update({"forward": before[path]} if before[path] else {})
    for path, block in every.items():
        if isinstance(block, SymbolBlock):
            recorder.unseen[f"{path or 'the model'} (an imported graph: its inside is not seen)"] = None
        elif path not in called and len(block.params):
            recorder.unseen[f"{path} (not called: its parameters are read by the layer around it)"] = None


def _anchor_all(tree: Any, index: int, anchors: Anchors, name: str = "") -> Any:
    """The outputs of a call, each with an anchor added."""
    if is_array(tree) and tree.dtype.kind == "f" and tree.size:
        anchors[index, name or "output"] = anchor = _anchor(tree)
        return tree + anchor
    if isinstance(tree, (tuple, list)):
        inside = enumerate(tree)
        made = [_anchor_all(one, index, anchors, f"{name}.{place}" if name else str(place)) for place, one in inside]
        return type(tree)(*made) if hasattr(tree, "_fields") else type(tree)(made)
    return tree


def _anchor(array: np.ndarray) -> np.ndarray:
    with autograd.pause():
        anchor = np.zeros_like(array)
        anchor.attach_grad()
    return anchor


def _factor(array: np.ndarray, cotangent: numpy.ndarray | None) -> np.ndarray:
    return np.zeros_like(array) if cotangent is None else np.array(cotangent, dtype=array.dtype)


def blocks(model: Block, repeated: bool = False) -> Iterator[tuple[str, Block]]:
    """Yield each block of a model with its path, made of the names of children: once, or wherever it is."""
    seen: set[int] = set()

    def visit(path: str, block: Block) -> Iterator[tuple[str, Block]]:
        if repeated or id(block) not in seen:
            seen.add(id(block))
            yield path, block
            for name, child in block._children.items():
                yield from visit(f"{path}.{name}" if path else name, child)

    yield from visit("", model)


def is_array(value: Any) -> bool:
    """Whether it is an array of MXNet."""
    return isinstance(value, mx.nd.NDArray)


def _settings(block: Block) -> dict[str, Any]:
    """What was set when a block was made: its attributes, and what it keeps for its operator."""
    kept = {name.lstrip("_"): value for name, value in {**vars(block), **vars(block).get("_kwargs", {})}.items()}
    return {name: value for name, value in kept.items() if isinstance(value, PLAIN) and name not in COMMON}


def _tensor(array: numpy.ndarray, dtype: str) -> np.ndarray:
    return np.array(array, dtype=dtype if "float" in array.dtype.name else array.dtype)


def _read(tensor: np.ndarray) -> numpy.ndarray:
    """The values of an array, floating ones in float64."""
    array: numpy.ndarray = to_numpy(tensor)
    return array.astype(numpy.float64) if array.dtype.kind == "f" else array


__all__ = ["MXNetSide", "open_model", "recording", "SideError"]
