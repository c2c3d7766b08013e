"""Arrays that were kept, and NumPy functions, as sides."""

from __future__ import annotations

import io
import zipfile
from pathlib import Path

import numpy as np
import pytest

import backends
from attention_core.draws import uniform
from parity_tests.models.calls import Recorder
from parity_tests.models.kept import KeptSide
from parity_tests.models.sides import SideError, open_side

INPUTS = {"x": uniform("x", (2, 3)).astype(np.float32), "tokens": np.array([[3, 1]])}
ARRAYS = {
    "input.x": INPUTS["x"],
    "input.tokens": INPUTS["tokens"],
    "output.logits": uniform("logits", (2, 5)).astype(np.float32),
    "output.state.0": uniform("state", (2, 4)),
    "gradient.input.x": uniform("gradient", (2, 3)),
    "gradient.parameter.cell.weight": uniform("weight", (4,)),
}


def write(folder: Path, suffix: str, arrays: dict[str, np.ndarray]) -> Path:
    path = folder / f"kept{suffix}"
    if suffix == ".npz":
        np.savez(path, **arrays)
    else:
        backends.save_arrays(path, arrays)
    return path


@pytest.mark.parametrize("suffix", [".npz", ".safetensors"])
def test_a_file_gives_its_answer_to_its_inputs(suffix: str, tmp_path: Path):
    side = open_side(write(tmp_path, suffix, ARRAYS))
    assert isinstance(side, KeptSide)
    assert (side.label, side.dtype, side.dtypes) == (f"kept{suffix}", "float32", ("float32",))
    assert (side.parameters, side.state, side.arrays) == ((), (), {})
    assert set(side.inputs) == {"x", "tokens"}
    answer = side.run(side.inputs, "float32", cotangents={"logits": np.ones((2, 5))})
    assert set(answer.outputs) == {"logits", "state.0"}
    assert set(answer.gradients) == {"input.x", "parameter.cell.weight"}
    for name, array in {**answer.outputs, **answer.gradients}.items():
        kept = ARRAYS.get(f"output.{name}", ARRAYS.get(f"gradient.{name}"))
        assert kept is not None and array.dtype == kept.dtype
        np.testing.assert_array_equal(array, kept)
    answer.outputs["logits"][:] = 0
    np.testing.assert_array_equal(side.run(INPUTS, "float64").outputs["logits"], ARRAYS["output.logits"])
    assert not side.run(INPUTS, "float32").gradients


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"x": np.nextafter(INPUTS["x"], np.float32(9))}, "these values of x:"),
        ({"x": INPUTS["x"].astype(np.float64), "tokens": INPUTS["tokens"] + 1}, "these values of x, tokens:"),
        ({"tokens": INPUTS["tokens"].T}, "these values of tokens:"),
        ({"y": INPUTS["x"]}, r"for the inputs .*, received x, tokens, y"),
    ],
    ids=["bit", "dtype", "shape", "name"],
)
def test_other_inputs_are_refused(changed: dict[str, np.ndarray], message: str, tmp_path: Path):
    side = open_side(write(tmp_path, ".npz", ARRAYS))
    with pytest.raises(SideError, match=message):
        side.run({**INPUTS, **changed}, "float32")


def test_a_nan_is_the_same_nan_and_minus_zero_is_not_zero(tmp_path: Path):
    side = open_side(write(tmp_path, ".npz", {"input.x": np.array([np.nan, 0.0]), "output.y": np.ones(1)}))
    side.run({"x": np.array([np.nan, 0.0])}, "float64")
    with pytest.raises(SideError, match="these values of x"):
        side.run({"x": np.array([np.nan, -0.0])}, "float64")


def test_files_of_something_else_are_refused(tmp_path: Path):
    refused = {
        "none of its arrays": {"input.x": np.ones(2)},
        "an array is named": {"x": np.ones(2), "output.y": np.ones(2)},
        "allow_pickle": {"output.y": np.array([object()])},
        "expected a numeric dtype": {"output.y": np.array(["text"])},
    }
    for message, arrays in refused.items():
        with pytest.raises(SideError, match=message):
            open_side(write(tmp_path, ".npz", arrays))
    for name, data in {"text.npz": b"text", "text.safetensors": b"text", "text.h5": b"text"}.items():
        (tmp_path / name).write_bytes(data)
        with pytest.raises(SideError):
            open_side(tmp_path / name)
    with pytest.raises(SideError, match="no such file"):
        open_side(tmp_path / "missing.npz")


def test_a_small_file_cannot_fill_the_memory(tmp_path: Path):
    head = io.BytesIO()
    np.lib.format.write_array_header_1_0(head, {"descr": "<f8", "fortran_order": False, "shape": (2**50,)})
    for name, content in {"claims": head.getvalue(), "expands": head.getvalue() + bytes(2**26)}.items():
        with zipfile.ZipFile(tmp_path / f"{name}.npz", "w", zipfile.ZIP_DEFLATED) as archive:
            archive.writestr("output.y.npy", content)
        with pytest.raises(SideError):
            open_side(tmp_path / f"{name}.npz")


def test_a_function_computes_in_the_dtype_and_tells_which_inputs_it_changed(tmp_path: Path):
    def scale(x: np.ndarray, factor: np.ndarray, count: np.ndarray) -> dict[str, object]:
        x *= factor
        return {"scaled": x, "sum": x.sum(), "more": [count + 1, object(), None]}

    side = open_side(scale)
    assert (side.framework, side.label) == ("numpy", "scale")
    inputs = {"count": np.array([2]), "factor": np.array(3.0), "x": uniform("x", (2, 3))}
    before = {name: array.copy() for name, array in inputs.items()}
    for dtype in ("float64", "float32"):
        answer = side.run(inputs, dtype, recorder=Recorder(tmp_path))
        assert answer.outputs["scaled"].dtype == dtype and answer.outputs["more.0"].dtype == np.int64
        np.testing.assert_array_equal(answer.outputs["scaled"], inputs["x"].astype(dtype) * 3)
        assert (answer.changed, answer.unread) == (("x",), ("more.1 (object)",))
        (call,) = answer.calls
        assert [seen.name for seen in call.inputs] == ["count", "factor", "x"]
        np.testing.assert_array_equal(call.inputs[2].array, inputs["x"].astype(dtype))
    for name, array in before.items():
        np.testing.assert_array_equal(inputs[name], array)
    with pytest.raises(SideError, match="takes no 'y'; it takes x, factor, count"):
        side.run({**inputs, "y": np.ones(2)}, "float64")
