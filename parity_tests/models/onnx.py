"""ONNX files as sides: run by onnxruntime, and by ONNX's reference where onnxruntime lacks a kernel for float64."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np

import backends
from backends.schema import clean
from backends.weights import WeightError
from backends.weights.errors import import_library
from backends.weights.formats.limits import Limits
from backends.weights.formats.onnx import ACTIVATIONS, LARGEST
from parity_tests.models.calls import Answer, Arrays, Recorder, RunOptions, flatten
from parity_tests.models.sides import Side, SideError

DTYPES = {"float64": "DOUBLE", "float32": "FLOAT", "float16": "FLOAT16", "bfloat16": "BFLOAT16"}
"""ONNX's names of the types that are cast to the one computed in."""
RECURRENT = ("GRU", "LSTM", "RNN")
NARROW = ("AffineGrid", "CausalConvWithState", "GridSample", "LinearAttention", "MelWeightMatrix", "TfIdfVectorizer")
"""What ONNX's reference computes in float32, whatever the type."""

Run = Callable[[list[str], Arrays], list[Any]]
"""Computes the outputs with these names."""


def open_model(path: str | Path) -> Side:
    """The side of an .onnx file.

    Raises: SideError if it cannot be read, needs another file, or cannot be run.
    """
    try:
        onnx = import_library("onnx")
        return OnnxSide(_load(backends.regular_file(path), onnx), onnx, Path(path).name)
    except (WeightError, backends.ArchiveError) as error:
        raise SideError(str(error)) from error


class OnnxSide(Side):
    """A graph: its floating initialisers are parameters, and its nodes are sublayers. It has no gradients."""

    framework = "onnx"

    def __init__(self, model: Any, onnx: Any, label: str) -> None:
        super().__init__()
        self.model, self.onnx, self.label = model, onnx, label
        graph = model.graph
        self.types = {getattr(onnx.TensorProto, name): dtype for dtype, name in DTYPES.items()}
        stored = {one.name: one for one in graph.initializer}
        floating = {name: one for name, one in stored.items() if one.data_type in self.types}
        self.constants = {name: onnx.numpy_helper.to_array(one) for name, one in stored.items() if name not in floating}
        self.parameters = tuple(floating)
        self.arrays = {name: onnx.numpy_helper.to_array(one).astype(np.float64) for name, one in floating.items()}
        self.inputs = [one.name for one in graph.input if one.name not in stored]
        self.outputs = [one.name for one in graph.output]
        kinds = [one.data_type for one in floating.values()]
        kinds += [one.type.tensor_type.elem_type for one in graph.input]
        self.dtype = next((self.types[kind] for kind in kinds if kind in self.types), "float32")
        every = dict.fromkeys(("float64", "float32", self.dtype))
        self.dtypes = tuple(dtype for dtype in every if dtype == self.dtype or self._takes(dtype))
        self._make(self.dtype)

    def _takes(self, dtype: str) -> bool:
        try:
            self._make(dtype)
        except Exception:  # whatever the two raise for a graph that they do not run
            return False
        return True

    @functools.cache  # noqa: B019  # a side lives as long as its sessions
    def _make(self, dtype: str) -> tuple[Any, Run]:
        """The model in a dtype, with all values as outputs and the parameters as inputs, and what runs it."""
        model = type(self.model)()
        model.CopyFrom(self.model)
        if dtype != self.dtype:
            for graph in _graphs(model):
                self._convert(graph, dtype)
        known = {one.name for one in model.graph.input}
        for one in model.graph.initializer:
            if one.name in self.arrays and one.name not in known:
                shape = self.onnx.helper.make_tensor_value_info(one.name, one.data_type, list(one.dims))
                model.graph.input.append(shape)
        values = {name: None for node in model.graph.node for name in node.output if name}
        model.graph.output.extend(self.onnx.ValueInfoProto(name=name) for name in values if name not in self.outputs)
        model.ir_version = max(model.ir_version, 4)  # from which on an initialiser may be an input
        return model, self._runner(model, dtype)

    def _runner(self, model: Any, dtype: str) -> Run:
        nodes = [node for graph in _graphs(model) for node in graph.node]
        runtime = import_library("onnxruntime")
        options = runtime.SessionOptions()
        options.graph_optimization_level = runtime.GraphOptimizationLevel.ORT_DISABLE_ALL  # nodes as they are written
        options.log_severity_level = 4
        reason = "onnxruntime has recurrent layers in float32 alone"  # which it only tells when it comes to one
        if dtype != "float64" or not any(node.op_type in RECURRENT for node in nodes):
            try:
                content = model.SerializeToString()
                session = runtime.InferenceSession(content, options, providers=["CPUExecutionProvider"])
                return lambda names, given: list(session.run(names, given))
            except Exception as error:  # one class for each of its statuses
                reason = clean((str(error).splitlines() or [type(error).__name__])[0])
        missing = [node.op_type for node in nodes if node.op_type in NARROW or self._is_ignored(node)]
        if missing:
            raise SideError(f"{self.label} cannot be run in {dtype}: {reason}; ONNX's reference lacks {missing[0]}")
        try:
            evaluator = import_library("onnx.reference").ReferenceEvaluator(model, new_ops=_wide_operators())
        except Exception as error:  # whatever the classes of its operators raise
            raise SideError(f"{self.label} cannot be run in {dtype}: {reason}") from error
        return lambda names, given: list(evaluator.run(names, given))

    def _is_ignored(self, node: Any) -> bool:
        """Whether ONNX's reference passes over an input or an attribute of a recurrent node."""
        if node.op_type not in RECURRENT:
            return False
        given = {one.name: self.onnx.helper.get_attribute_value(one) for one in node.attribute}
        activations = [text.decode(errors="replace").lower() for text in given.get("activations", ())]
        due = ACTIVATIONS.get(node.op_type, ["tanh"])
        return (
            (len(node.input) > 4 and bool(node.input[4]))
            or any(given.get(name) for name in ("clip", "input_forget", "activation_alpha", "activation_beta"))
            or activations not in ([], due, due * 2)
        )

    def _convert(self, graph: Any, dtype: str) -> None:
        """Cast a graph or function: arrays, constants, and what casts or makes floating numbers."""
        kind = getattr(self.onnx.TensorProto, DTYPES[dtype])
        for tensor in _arrays(graph):
            self._cast(tensor, kind)
        if hasattr(graph, "initializer"):
            del graph.value_info[:]
            for one in (*graph.input, *graph.output):
                self._retype(one.type, kind)
        for node in graph.node:
            for attribute in node.attribute:
                if attribute.name in ("to", "dtype") and attribute.i in self.types:
                    attribute.i = kind
                elif node.op_type == "Constant" and attribute.name in ("value_float", "value_floats"):
                    numbers = attribute.f if attribute.name == "value_float" else list(attribute.floats)
                    tensor = self.onnx.numpy_helper.from_array(np.array(numbers, np.float32))
                    self._cast(tensor, kind)
                    attribute.CopyFrom(self.onnx.helper.make_attribute("value", tensor))
            if node.op_type == "ConstantOfShape" and not node.attribute:
                zero = self.onnx.helper.make_tensor("", kind, [1], [0.0])
                node.attribute.append(self.onnx.helper.make_attribute("value", zero))

    def _cast(self, tensor: Any, kind: int) -> None:
        if tensor.data_type in self.types:
            array = self.onnx.numpy_helper.to_array(tensor).astype(self.onnx.helper.tensor_dtype_to_np_dtype(kind))
            tensor.CopyFrom(self.onnx.numpy_helper.from_array(array, tensor.name))

    def _retype(self, given: Any, kind: int) -> None:
        which = given.WhichOneof("value")
        if which == "tensor_type" and given.tensor_type.elem_type in self.types:
            given.tensor_type.elem_type = kind
        elif which in ("sequence_type", "optional_type"):
            self._retype(getattr(given, which).elem_type, kind)

    def answer(self, inputs: Mapping[str, np.ndarray], options: RunOptions) -> Answer:
        """The answer to these inputs, as `Side.run` describes it; that of training is the same."""
        dtype, _, _, recorder = options
        if dtype not in self.dtypes:
            raise SideError(f"{self.label} cannot be run in {dtype}; it can in {', '.join(self.dtypes)}")
        model, run = self._make(dtype)
        declared = {one.name: one.type.tensor_type.elem_type for one in model.graph.input}
        given = {name: self._feeds(name, array, declared[name]) for name, array in self._in_order(inputs).items()}
        passed = given | {name: self._feeds(name, array, declared[name]) for name, array in self.arrays.items()}
        names = self.outputs if recorder is None else [one.name for one in model.graph.output]
        values = dict(zip(names, run(names, passed), strict=True))
        outputs, unread = flatten({name: values[name] for name in self.outputs}, _is_array, np.array)
        if recorder is not None:
            index = recorder.enter("", type(model.graph).__name__, given, (), {})
            self._record(model, {**self.constants, **given, **values}, recorder)
            recorder.leave(index, outputs)
        return Answer(outputs, unread=tuple(unread))

    def _record(self, model: Any, values: Mapping[str, Any], recorder: Recorder) -> None:
        """Record the nodes of the graph; those inside a node have no values outside of it."""
        for node in model.graph.node:
            if node.op_type == "Constant":
                continue
            path = node.name or next(name for name in node.output if name)
            read = {str(place): values[name] for place, name in enumerate(node.input) if name in values}
            arrays = flatten(read, _is_array, np.asarray)[0]
            parameters = [name for name in node.input if name in self.arrays]
            settings = {one.name: self._setting(one) for one in node.attribute}
            kept = {name: value for name, value in settings.items() if isinstance(value, (int, float, str))}
            index = recorder.enter(path, node.op_type, arrays, parameters, kept)
            written = [values[name] for name in node.output if name]
            recorder.leave(index, flatten(written[0] if len(written) == 1 else written, _is_array, np.asarray)[0])
            if any(True for attribute in node.attribute for _ in _inner(attribute)):
                recorder.unseen[f"the nodes inside of {path} (a {node.op_type})"] = None

    def _setting(self, attribute: Any) -> Any:
        value = self.onnx.helper.get_attribute_value(attribute)
        return value.decode(errors="replace") if isinstance(value, bytes) else value

    def _in_order(self, inputs: Mapping[str, np.ndarray]) -> Mapping[str, np.ndarray]:
        """The inputs by the names of the graph: its own, or as many as it has in their order."""
        unknown = [name for name in inputs if name not in self.inputs]
        if len(inputs) == len(self.inputs) and len(unknown) in (0, len(inputs)):
            return dict(zip(self.inputs, inputs.values(), strict=True)) if unknown else inputs
        raise SideError(
            f"{self.label} takes {', '.join(self.inputs)}, received {', '.join(inputs)}. Name its inputs in the names "
            f"file, under [inputs]"
        )

    def _feeds(self, name: str, array: np.ndarray, kind: int) -> np.ndarray:
        """The array in the type that the graph has for it."""
        dtype = self.onnx.helper.tensor_dtype_to_np_dtype(kind)
        if "float" in array.dtype.name and kind not in self.types:
            raise SideError(f"{self.label} takes {name} in {np.dtype(dtype)}, received {array.dtype}")
        return np.array(array, dtype)


def _load(path: Path, onnx: Any) -> Any:
    """The model of a file; its arrays are within the limits of weight files, and none is in another file.

    Raises: WeightError if it cannot be read.
    """
    limits = Limits(path)
    if limits.size > LARGEST:
        raise WeightError(f"{path}: the file is larger than {LARGEST:,} bytes, the most that an ONNX file can have")
    try:
        model = onnx.load(str(path), load_external_data=False)
    except Exception as error:  # of protobuf
        raise WeightError(f"{path} is not a readable ONNX model ({clean(str(error))})") from error
    if not model.ir_version or not model.graph.node:
        raise WeightError(f"{path} is not a readable ONNX model (it has no graph)")
    for tensor in (one for graph in _graphs(model) for one in _arrays(graph)):
        if tensor.data_location == onnx.TensorProto.EXTERNAL:
            raise WeightError(
                f"{path}: {clean(tensor.name)} is stored in another file, which is not read: save the model as one, "
                f"with onnx.save(model, FILE, save_as_external_data=False)"
            )
        limits.count(tensor.name, tensor.dims, 8)
    return model


def _wide_operators() -> list[type]:
    """The operators that ONNX's reference computes with a float32 error function, in the type of their input."""
    operator = import_library("onnx.reference.op_run").OpRun

    class Erf(operator):  # type: ignore[misc,valid-type]
        op_domain = ""

        def _run(self, x: np.ndarray) -> tuple[np.ndarray]:
            return (np.vectorize(math.erf, otypes=[x.dtype])(x),)

    class Gelu(operator):  # type: ignore[misc,valid-type]
        op_domain = ""

        def _run(self, x: np.ndarray, approximate: str = "none") -> tuple[np.ndarray]:
            if approximate == "tanh":
                inside = np.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3))
            else:
                inside = np.vectorize(math.erf, otypes=[x.dtype])(x / math.sqrt(2))
            return ((0.5 * x * (1 + inside)).astype(x.dtype),)

    return [Erf, Gelu]


def _graphs(model: Any) -> list[Any]:
    """The graph of a model, its functions, and the graphs inside of their nodes."""
    found = [model.graph, *model.functions]
    for graph in found:
        found += (inner for node in graph.node for attribute in node.attribute for inner in _inner(attribute))
    return found


def _inner(attribute: Any) -> list[Any]:
    return [*attribute.graphs, *([attribute.g] if attribute.HasField("g") else [])]


def _arrays(graph: Any) -> Iterator[Any]:
    """Yield the arrays of a graph or function, and those of its nodes."""
    yield from getattr(graph, "initializer", ())
    sparse = list(getattr(graph, "sparse_initializer", ()))
    for attribute in (attribute for node in graph.node for attribute in node.attribute):
        yield from (*attribute.tensors, *([attribute.t] if attribute.HasField("t") else []))
        sparse += (
            *attribute.sparse_tensors,
            *([attribute.sparse_tensor] if attribute.HasField("sparse_tensor") else []),
        )
    for one in sparse:
        yield from (one.values, one.indices)


def _is_array(value: Any) -> bool:
    return isinstance(value, (np.ndarray, np.generic))


__all__ = ["OnnxSide", "open_model", "SideError"]
