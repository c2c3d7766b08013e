"""ONNX files as sides: float64 throughout, parameters that can be changed, nodes as calls, and refused files."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from attention_core.draws import uniform
from parity_tests.models.calls import Recorder
from parity_tests.models.sides import SideError, open_side

onnx = pytest.importorskip("onnx")
pytest.importorskip("onnxruntime")
helper, numpy_helper, FLOAT = onnx.helper, onnx.numpy_helper, onnx.TensorProto.FLOAT

ARRAYS = {"w": uniform("w", (5, 4)).astype(np.float32), "b": uniform("b", (4,)).astype(np.float32)}
INPUTS = {"x": uniform("x", (3, 5)), "rows": np.array([2, 0])}


def graph_of(
    nodes: list[Any], arrays: dict[str, np.ndarray], inputs: dict[str, Any], name: str = "graph", kind: int = FLOAT
) -> Any:
    """A graph with the output y."""
    types = {key: (onnx.TensorProto.INT64 if key == "rows" else kind, shape) for key, shape in inputs.items()}
    return helper.make_graph(
        nodes,
        name,
        [helper.make_tensor_value_info(key, *given) for key, given in types.items()],
        [helper.make_tensor_value_info("y", kind, None)],
        [numpy_helper.from_array(array, key) for key, array in arrays.items()],
    )


def saved(folder: Path, graph: Any) -> Path:
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20)], ir_version=10)
    onnx.save(model, str(folder / "model.onnx"))
    return folder / "model.onnx"


def chosen(folder: Path) -> Path:
    """The file of a graph that picks rows of a layer's outputs."""
    half = helper.make_node("Constant", [], ["half"], value_float=0.1)
    nodes = [
        half,
        helper.make_node("Gemm", ["x", "w", "b"], ["hidden"], name="layer", alpha=0.5, transB=0),
        helper.make_node("Cast", ["hidden"], ["cast"], to=FLOAT),
        helper.make_node("Shape", ["hidden"], ["shape"]),
        helper.make_node("ConstantOfShape", ["shape"], ["zeros"]),
        helper.make_node("Add", ["cast", "zeros"], ["same"]),
        helper.make_node("Mul", ["same", "half"], ["scaled"]),
        helper.make_node("Tanh", ["scaled"], ["active"], name="activation"),
        helper.make_node("Gather", ["active", "rows"], ["y"], name="pick", axis=0),
    ]
    return saved(folder, graph_of(nodes, ARRAYS, {"x": [None, 5], "rows": [None]}))


def expected(w: np.ndarray, b: np.ndarray) -> np.ndarray:
    factor = np.float64(np.float32(0.1))
    return np.tanh((0.5 * INPUTS["x"] @ w + b) * factor)[INPUTS["rows"]]


def test_float64_is_computed_from_arrays_that_can_be_changed(tmp_path: Path):
    side = open_side(chosen(tmp_path))
    assert (side.framework, side.label, side.dtype) == ("onnx", "model.onnx", "float32")
    assert side.dtypes == ("float64", "float32")
    assert set(side.parameters) == {"w", "b"}
    for _ in range(2):
        output = side.run(INPUTS, "float64").outputs["y"]
        assert output.dtype == np.float64
        np.testing.assert_allclose(output, expected(**side.arrays), rtol=0, atol=1e-14)
        side.arrays["w"] = side.arrays["w"] * (1 + 1e-10)
    narrow = side.run(INPUTS, "float32", cotangents={"y": np.ones((2, 4))}, training=True)
    assert narrow.outputs["y"].dtype == np.float32 and not narrow.gradients and not narrow.state
    np.testing.assert_allclose(narrow.outputs["y"], output, rtol=0, atol=1e-6)


def test_nodes_are_recorded(tmp_path: Path):
    side = open_side(chosen(tmp_path))
    answer = side.run(INPUTS, "float64", recorder=Recorder(tmp_path))
    calls = {call.path: call for call in answer.calls}
    assert list(calls) == ["layer", "cast", "shape", "zeros", "same", "scaled", "activation", "pick", ""]
    assert calls["layer"].kind == "Gemm" and calls["layer"].parameters == ("w", "b")
    assert calls["layer"].settings == {"alpha": 0.5, "transB": 0}
    assert [seen.name for seen in calls["layer"].inputs] == ["0"]
    assert [seen.name for seen in calls["pick"].inputs] == ["0", "1"]
    assert [seen.name for seen in calls["scaled"].inputs] == ["0", "1"]
    np.testing.assert_array_equal(calls["layer"].inputs[0].array, INPUTS["x"])
    due = 0.5 * INPUTS["x"] @ side.arrays["w"] + side.arrays["b"]
    np.testing.assert_allclose(calls["layer"].outputs[0].array, due, rtol=0, atol=1e-14)
    np.testing.assert_array_equal(calls["pick"].outputs[0].array, answer.outputs["y"])
    assert all(calls[""].encloses(call) for path, call in calls.items() if path)
    assert answer.unseen == ()


def test_inputs_are_taken_by_name_in_order_and_in_the_integers_declared(tmp_path: Path):
    side = open_side(chosen(tmp_path))
    due = side.run(INPUTS, "float64").outputs["y"]
    given = {"first": INPUTS["x"], "second": INPUTS["rows"].astype(np.int32)}
    np.testing.assert_array_equal(side.run(given, "float64").outputs["y"], due)
    np.testing.assert_array_equal(side.run(dict(reversed(INPUTS.items())), "float64").outputs["y"], due)
    for wrong in ({"x": INPUTS["x"]}, {**INPUTS, "z": INPUTS["x"]}, {"x": INPUTS["x"], "other": INPUTS["rows"]}):
        with pytest.raises(SideError, match=r"model\.onnx takes x, rows, received"):
            side.run(wrong, "float64")
    with pytest.raises(SideError, match="takes rows in int64, received float64"):
        side.run({**INPUTS, "rows": np.ones(2)}, "float64")
    with pytest.raises(SideError, match="cannot be run in bfloat16; it can in float64, float32"):
        side.run(INPUTS, "bfloat16")


def test_what_onnxruntime_computes_in_float32_alone_is_wide_by_the_reference(tmp_path: Path):
    kernel = uniform("kernel", (2, 3, 3)).astype(np.float32)
    node = helper.make_node("Conv", ["x", "kernel"], ["y"], name="convolution")
    side = open_side(saved(tmp_path, graph_of([node], {"kernel": kernel}, {"x": [1, 3, 8]})))
    assert side.dtypes == ("float64", "float32")
    x = uniform("signal", (1, 3, 8))
    due = np.stack([(x[0, :, place : place + 3] * kernel.astype(np.float64)).sum((1, 2)) for place in range(6)], 1)
    output = side.run({"x": x}, "float64").outputs["y"]
    assert output.dtype == np.float64
    np.testing.assert_allclose(output[0], due, rtol=0, atol=1e-13)
    np.testing.assert_allclose(side.run({"x": x}, "float32").outputs["y"][0], due, rtol=0, atol=1e-5)


@pytest.mark.parametrize("kind", ["GRU", "LSTM", "LayerNormalization", "Softmax", "Erf", "Gelu", "Gelu tanh"])
def test_float64_is_no_float32_with_more_digits(kind: str, tmp_path: Path):
    gates = {"GRU": 3, "LSTM": 4}.get(kind)
    if gates:
        arrays = {"w": uniform("w", (1, 4 * gates, 5)), "r": uniform("r", (1, 4 * gates, 4))}
        node = helper.make_node(kind, ["x", "w", "r"], ["y"], hidden_size=4)
    else:
        arrays = {"w": uniform("w", (5,))} if kind == "LayerNormalization" else {}
        approximate = {"approximate": "tanh"} if kind == "Gelu tanh" else {}
        node = helper.make_node(kind.partition(" ")[0], ["x", *arrays], ["y"], **approximate)
    arrays = {name: array.astype(np.float32) for name, array in arrays.items()}
    side = open_side(saved(tmp_path, graph_of([node], arrays, {"x": [3, 2, 5]})))
    assert side.dtypes == ("float64", "float32")
    x, direction = uniform("x", (3, 2, 5)), uniform("direction", (3, 2, 5))

    def at(step: float) -> np.ndarray:
        return side.run({"x": x + step * direction}, "float64").outputs["y"]

    # Differences at two steps agree only where the rounding is far below 1e-9.
    np.testing.assert_allclose((at(1e-5) - at(-1e-5)) / 2, at(1e-5) - at(0), rtol=0, atol=1e-9)
    assert np.abs(at(1e-9) - at(0)).max() > 1e-11
    np.testing.assert_allclose(side.run({"x": x}, "float32").outputs["y"], at(0), rtol=0, atol=1e-6)


@pytest.mark.parametrize("change", [{"clip": 0.5}, {"activations": ["Relu", "Tanh"]}, {"lengths": "rows"}])
def test_what_the_reference_would_pass_over_is_run_in_float32_alone(change: dict[str, Any], tmp_path: Path):
    arrays = {name: uniform(name, (1, 12, size)).astype(np.float32) for name, size in {"w": 5, "r": 4}.items()}
    arrays["lengths"] = np.array([3, 1], np.int32)
    given = ["x", "w", "r", "", "lengths"] if "lengths" in change else ["x", "w", "r"]
    attributes = {name: value for name, value in change.items() if name != "lengths"}
    node = helper.make_node("GRU", given, ["y"], hidden_size=4, **attributes)
    side = open_side(saved(tmp_path, graph_of([node], arrays, {"x": [3, 2, 5]})))
    assert side.dtypes == ("float32",)
    assert np.all(np.isfinite(side.run({"x": uniform("x", (3, 2, 5))}, "float32").outputs["y"]))


def test_the_branches_of_a_graph_are_wide_and_their_nodes_unseen(tmp_path: Path):
    def branch(name: str, factor: float) -> Any:
        constant = helper.make_node("Constant", [], ["c"], value=numpy_helper.from_array(np.float32(factor)))
        return graph_of([constant, helper.make_node("Mul", ["x", "c"], ["y"])], {}, {}, name)

    nodes = [
        helper.make_node("ReduceSum", ["x"], ["sum"], keepdims=0),
        helper.make_node("Constant", [], ["zero"], value_float=0.0),
        helper.make_node("Greater", ["sum", "zero"], ["positive"]),
        helper.make_node(
            "If", ["positive"], ["y"], name="either", then_branch=branch("a", 2.0), else_branch=branch("b", 3.0)
        ),
    ]
    side = open_side(saved(tmp_path, graph_of(nodes, {}, {"x": [2]})))
    x = np.array([1.0, 1e-12 + 1.0])
    answer = side.run({"x": x}, "float64", recorder=Recorder(tmp_path))
    np.testing.assert_array_equal(answer.outputs["y"], 2 * x)
    np.testing.assert_array_equal(side.run({"x": -x}, "float64").outputs["y"], -3 * x)
    assert answer.unseen == ("the nodes inside of either (a If)",)


def test_a_half_precision_graph_computes_in_float32_and_float64_too(tmp_path: Path):
    half = {name: array.astype(np.float16) for name, array in ARRAYS.items()}
    node = helper.make_node("Gemm", ["x", "w", "b"], ["y"])
    side = open_side(saved(tmp_path, graph_of([node], half, {"x": [3, 5]}, kind=onnx.TensorProto.FLOAT16)))
    assert (side.dtype, side.dtypes) == ("float16", ("float64", "float32", "float16"))
    due = INPUTS["x"] @ side.arrays["w"] + side.arrays["b"]
    for dtype, allowed in {"float64": 1e-14, "float32": 1e-6, "float16": 1e-2}.items():
        output = side.run({"x": INPUTS["x"]}, dtype).outputs["y"]
        assert output.dtype == dtype
        np.testing.assert_allclose(output, due, rtol=0, atol=allowed)


def test_files_that_are_damaged_or_need_another_one_are_refused(tmp_path: Path):
    model = onnx.load(str(chosen(tmp_path)))
    (tmp_path / "secret").write_bytes(bytes(80))
    tensor = model.graph.initializer[0]
    tensor.ClearField("raw_data")
    tensor.data_location = onnx.TensorProto.EXTERNAL
    tensor.external_data.add(key="location", value="secret")
    inner = helper.make_node("Constant", [], ["c"], value=tensor)
    hidden = graph_of([inner], {}, {}, "inner")
    nested = graph_of([helper.make_node("If", ["p"], ["y"], then_branch=hidden, else_branch=hidden)], {}, {})
    for name, content in {
        "stored in another file": model.SerializeToString(),
        "w.* is stored in another file": helper.make_model(nested).SerializeToString(),
        "no graph": b"",
        "not a readable": b"\x08\x07text",
    }.items():
        (tmp_path / "bad.onnx").write_bytes(content)
        with pytest.raises(SideError, match=name):
            open_side(tmp_path / "bad.onnx")
    with pytest.raises(SideError, match="no such file"):
        open_side(tmp_path / "missing.onnx")
    unknown = graph_of([helper.make_node("Unknown", ["x"], ["y"])], {}, {"x": [2]})
    with pytest.raises(SideError, match="cannot be run in float32"):
        open_side(saved(tmp_path, unknown))
