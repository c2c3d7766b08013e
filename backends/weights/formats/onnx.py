"""The initialisers of an ONNX file, with those of GRU and LSTM nodes under "<node>.W", "<node>.R" and "<node>.B"."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from backends.schema import clean
from backends.weights.errors import WeightError, import_library
from backends.weights.formats.limits import Limits

INPUTS = {"GRU": {1: "W", 2: "R", 3: "B"}, "LSTM": {1: "W", 2: "R", 3: "B", 7: "P"}}
"""Which inputs of a node are weights."""
ACTIVATIONS = {"GRU": ["sigmoid", "tanh"], "LSTM": ["sigmoid", "tanh", "tanh"]}
KINDS = {
    "direction": "STRING",
    "activations": "STRINGS",
    "linear_before_reset": "INT",
    "clip": "FLOAT",
    "input_forget": "INT",
    "hidden_size": "INT",
}
"""The attributes of a node that are read, with their types."""
LARGEST = 2**31
"""The bytes that protobuf can read, at most."""


def read(path: Path, limits: Limits) -> dict[str, np.ndarray]:
    """The arrays of a file, without the graph's own shapes and axes.

    Raises: WeightError if it is not a model, or a GRU or LSTM node computes a different function from the layers here.
    """
    onnx = import_library("onnx")
    if limits.size > LARGEST:
        raise WeightError(f"the file is larger than {LARGEST:,} bytes, the most that an ONNX file can have")
    try:
        model = onnx.load(str(path), load_external_data=False)
        graph = model.graph
        arrays = {entry.name: _array(entry.name, entry, onnx, limits) for entry in graph.initializer}
        constants = {
            node.output[0]: _array(node.output[0], attribute.t, onnx, limits)
            for node in graph.node
            if node.op_type == "Constant" and node.output
            for attribute in node.attribute
            if attribute.name == "value"
        }
    except WeightError:
        raise
    except Exception as error:
        reason = str(error).splitlines() or [type(error).__name__]
        raise WeightError(f"not a readable ONNX model ({clean(reason[0])})") from error
    if not model.ir_version or not graph.node:
        raise WeightError("not a readable ONNX model (it has no graph)")
    named: dict[str, np.ndarray] = {}
    taken: set[str] = set()
    for index, node in enumerate(graph.node):
        if node.op_type in INPUTS and node.domain in ("", "ai.onnx"):
            name = node.name or f"{node.op_type}_{index}"
            limits.count(name)
            weights = {
                letter: node.input[place]
                for place, letter in INPUTS[node.op_type].items()
                if place < len(node.input) and node.input[place]
            }
            for letter, initializer in weights.items():
                if initializer not in arrays and initializer not in constants:
                    raise WeightError(
                        f"{name}.{letter} is computed in the graph ({clean(initializer)}), expected an initialiser: "
                        "fold the constants of the model first"
                    )
                named[f"{name}.{letter}"] = arrays[initializer] if initializer in arrays else constants[initializer]
            if f"{name}.R" not in named:
                raise WeightError(
                    f"{name} has no recurrent weights, input 2 (R) of {node.op_type}: the file is damaged"
                )
            _check(node, name, named[f"{name}.R"], onnx)
            taken |= set(weights.values())
    # Whole numbers in a row are shapes and axes of the graph.
    weights = {name: array for name, array in arrays.items() if array.dtype != np.int64 or array.ndim > 1}
    return named | {name: array for name, array in weights.items() if name not in taken}


def _array(name: str, tensor: Any, onnx: Any, limits: Limits) -> np.ndarray:
    if tensor.data_location == onnx.TensorProto.EXTERNAL:
        raise WeightError(
            f"{clean(name)} is stored in another file, which is not read: save the model as one, with onnx.save(model, "
            "FILE, save_as_external_data=False)"
        )
    limits.count(name, tensor.dims, 8)
    return np.array(onnx.numpy_helper.to_array(tensor))


def _check(node: Any, name: str, recurrent: np.ndarray, onnx: Any) -> None:
    """Refuse a node whose attributes select a different function."""
    given = {}
    for attribute in node.attribute:
        if attribute.name in KINDS:
            if attribute.type != getattr(onnx.AttributeProto, KINDS[attribute.name]):
                raise WeightError(f"{name} has an invalid {attribute.name}, expected {KINDS[attribute.name]}")
            given[attribute.name] = onnx.helper.get_attribute_value(attribute)
    direction = given.get("direction", b"forward").decode(errors="replace")
    activations = [text.decode(errors="replace").lower() for text in given.get("activations", [])]
    if direction not in ("forward", "reverse", "bidirectional"):
        raise WeightError(f"{name} has direction={clean(direction)}, expected forward, reverse or bidirectional")
    repeats = 2 if direction == "bidirectional" else 1
    if node.op_type == "GRU" and given.get("linear_before_reset", 0) != 1:
        raise WeightError(
            f"{name} has linear_before_reset=0, where the reset gate acts before the recurrent product: a different "
            "function from GRU here, which converted weights cannot express. Retrain it with linear_before_reset=1"
        )
    if direction == "reverse":
        raise WeightError(f"{name} has direction='reverse' alone; a layer here reads forward, or in both directions")
    if activations not in ([], ACTIVATIONS[node.op_type] * repeats):
        raise WeightError(
            f"{name} has the activations {', '.join(map(clean, activations))}, expected those of the default"
        )
    for option in ("clip", "input_forget"):
        if given.get(option):
            raise WeightError(f"{name} has {option}={given[option]}, which is not supported")
    hidden = given.get("hidden_size", recurrent.shape[-1])
    if recurrent.ndim != 3 or recurrent.shape[0] != repeats or recurrent.shape[-1] != hidden:
        raise WeightError(
            f"{name}.R has shape {recurrent.shape}, expected {repeats} direction{'s' * (repeats > 1)} (direction="
            f"{direction!r}) and hidden_size={hidden}"
        )
