"""Weights of ONNX's GRU and LSTM nodes: the canonical arrays compute what the nodes do; the reader refuses the rest."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper
from onnx.reference import ReferenceEvaluator

from attention_core.draws import uniform
from backends import weights

GATES = {"GRU": 3, "LSTM": 4}
INPUTS = uniform("inputs", (2, 6, 5)).astype(np.float32)
STRAIGHT = {"GRU": {"linear_before_reset": 1}, "LSTM": {}}


def model_of(kind: str, directions: int = 1, inputs: tuple[str, ...] = ("W", "R", "B"), **attributes: Any) -> Any:
    """A model of one node with drawn weights."""
    width = 4 * GATES[kind]
    shapes = {"W": (width, 5), "R": (width, 4), "B": (2 * width,), "P": (12,)}
    arrays = {letter: uniform(letter, (directions, *shapes[letter])) for letter in inputs}
    names = {"X": "X"} | {letter: f"weights_{letter}" for letter in inputs}
    slots = ["X", "W", "R", "B", "sequence_lens", "initial_h", "initial_c", "P"]
    listed = [names.get(slot, "") for slot in slots]
    while not listed[-1]:
        listed.pop()
    node = helper.make_node(kind, listed, ["Y"], name="rnn", hidden_size=4, **attributes)
    graph = helper.make_graph(
        [node],
        "graph",
        [helper.make_tensor_value_info("X", TensorProto.FLOAT, [None, None, 5])],
        [helper.make_tensor_value_info("Y", TensorProto.FLOAT, None)],
        [numpy_helper.from_array(array.astype(np.float32), names[letter]) for letter, array in arrays.items()],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 22)], ir_version=10)


def read(model: Any, folder: Path) -> dict[str, np.ndarray]:
    onnx.save(model, str(folder / "model.onnx"))
    return weights.read_arrays(folder / "model.onnx")


@pytest.mark.parametrize("inputs", [("W", "R", "B"), ("W", "R")], ids=["bias", "no bias"])
@pytest.mark.parametrize("kind", GATES)
def test_a_node_and_its_canonical_arrays_compute_the_same(kind: str, inputs: tuple[str, ...], tmp_path: Path, answered):
    model = model_of(kind, inputs=inputs, **STRAIGHT[kind])
    converted = weights.to_canonical(read(model, tmp_path))
    assert converted.source == f"onnx.{kind}"
    # (steps, directions, batch, hidden)
    (steps,) = ReferenceEvaluator(model).run(None, {"X": INPUTS.transpose(1, 0, 2)})
    np.testing.assert_allclose(answered(converted, INPUTS)[0], steps[:, 0].transpose(1, 0, 2), rtol=0, atol=1e-6)


@pytest.mark.parametrize("kind", GATES)
def test_both_directions_compute_what_one_does_in_each(kind: str, tmp_path: Path, answered):
    """The reference evaluator has one direction alone: it runs each half by itself, one of them turned round."""
    arrays = read(model_of(kind, 2, direction="bidirectional", **STRAIGHT[kind]), tmp_path)
    steps = INPUTS.transpose(1, 0, 2)
    halves = []
    for direction, given in enumerate((steps, steps[::-1])):
        half = model_of(kind, **STRAIGHT[kind])
        for letter, initializer in zip("WRB", half.graph.initializer, strict=True):
            one = arrays[f"rnn.{letter}"][direction : direction + 1]
            initializer.CopyFrom(numpy_helper.from_array(one, initializer.name))
        halves.append(ReferenceEvaluator(half).run(None, {"X": np.ascontiguousarray(given)})[0][:, 0])
    expected = np.concatenate([halves[0], halves[1][::-1]], axis=-1).transpose(1, 0, 2)
    np.testing.assert_allclose(answered(weights.to_canonical(arrays), INPUTS)[0], expected, rtol=0, atol=1e-6)


@pytest.mark.parametrize(
    ("kind", "directions", "attributes", "words"),
    [
        ("GRU", 1, {}, "linear_before_reset=0, where the reset gate acts before the recurrent product"),
        ("GRU", 1, {"linear_before_reset": 1, "direction": "reverse"}, "direction='reverse' alone"),
        ("LSTM", 1, {"activations": ["Sigmoid", "Relu", "Tanh"]}, "has the activations 'sigmoid', 'relu', 'tanh'"),
        ("LSTM", 1, {"clip": 3.0}, "has clip=3.0"),
        ("LSTM", 1, {"input_forget": 1}, "has input_forget=1"),
        ("LSTM", 1, {"direction": "bidirectional"}, r"R has shape \(1, 16, 4\), expected 2 directions"),
    ],
)
def test_a_node_that_computes_something_else_is_refused(
    kind: str, directions: int, attributes: dict[str, Any], words: str, tmp_path: Path
):
    with pytest.raises(weights.WeightError, match=words):
        read(model_of(kind, directions, **attributes), tmp_path)


def test_peepholes_are_refused(tmp_path: Path):
    with pytest.raises(weights.WeightError, match=r"rnn.P \(1, 12\): peepholes let the gates see the cells"):
        weights.to_canonical(read(model_of("LSTM", inputs=("W", "R", "B", "P")), tmp_path), "onnx.LSTM")


def test_weights_that_the_graph_computes_are_refused(tmp_path: Path):
    model = model_of("LSTM")
    model.graph.node[0].input[1] = "X"
    with pytest.raises(weights.WeightError, match=r"rnn.W is computed in the graph"):
        read(model, tmp_path)


@pytest.mark.parametrize("content", [b"no model at all, but some bytes", None], ids=["other", "truncated"])
def test_a_wrong_file_is_refused(content: bytes | None, tmp_path: Path):
    data = model_of("LSTM").SerializeToString()
    (tmp_path / "bad.onnx").write_bytes(data[: len(data) // 2] if content is None else content)
    with pytest.raises(weights.WeightError, match=r"bad\.onnx: not a readable ONNX model"):
        weights.read_arrays(tmp_path / "bad.onnx")


def test_an_onnx_file_is_not_written(tmp_path: Path):
    with pytest.raises(weights.WeightError, match=r"a file of this kind cannot be written; one can be: .safetensors"):
        weights.write_arrays(tmp_path / "x.onnx", {"x": np.ones(2)})
