"""ONNX's recurrent operators, run by onnxruntime, as targets: parameters are the initialisers W, R and B of a node."""

from __future__ import annotations

import platform
import re
from collections.abc import Callable
from importlib.metadata import version
from types import SimpleNamespace
from typing import Any

import numpy as np
import onnxruntime
from onnx import TensorProto, helper, numpy_helper

from parity_tests.third_party.layers.shared import run_stack
from parity_tests.third_party.signatures import Outputs, Recurrent, takes

Parameters = dict[str, np.ndarray]

OPSET = 14
"""The operator set that last changed GRU and LSTM."""


def describe() -> dict[str, Any]:
    """Versions, the only device, and the dtype that onnxruntime does not have."""
    reason = "onnxruntime has no GRU, LSTM in float64"
    return {
        "framework": "ONNX Runtime",
        "versions": {"onnx": version("onnx"), "onnxruntime": version("onnxruntime")},
        "devices": {"cpu": platform.processor() or platform.machine()},
        "absent": [{"dtype": "float64", "device": "*", "operator": "*", "reason": reason}],
    }


runtime = SimpleNamespace(
    configure=lambda: {"intra_op_num_threads": 1},  # which each session is given
    from_numpy=lambda array, device="cpu": array,
    to_numpy=lambda array: array,
    describe=describe,
)
"""onnxruntime takes and gives NumPy's arrays, and differentiates nothing."""


def recurrent(operator: str) -> Callable[..., Outputs]:
    """ONNX GRU with linear_before_reset=1, or LSTM: a stack of models of one node each.

    The input sequence_lens has the lengths; the arrays determine the directions and the number of layers.
    """

    @takes(Recurrent, "inputs", "valid_lens", "state", "num_layers", "bidirectional")
    def call(call: Recurrent) -> Outputs:
        def layer(
            parameters: Parameters, inputs: np.ndarray, state: np.ndarray | None
        ) -> tuple[np.ndarray, np.ndarray]:
            return one(operator, parameters, inputs, call.valid_lens, state)

        return run_stack(layer, call.parameters, call.inputs, call.state, np.concatenate)

    return call


def one(
    operator: str, parameters: Parameters, inputs: np.ndarray, valid_lens: np.ndarray | None, state: np.ndarray | None
) -> tuple[np.ndarray, np.ndarray]:
    """Outputs and state of a model of that one node; ONNX has steps first, then the batch."""
    attributes = {"linear_before_reset": 1} if operator == "GRU" else {}
    initial = {re.split(r"[./_]", name)[-1]: array for name, array in parameters.items()}
    directions, _, hidden = initial["R"].shape
    given: dict[str, np.ndarray] = {"X": inputs.swapaxes(0, 1)}
    if valid_lens is not None:
        given["sequence_lens"] = valid_lens.astype(np.int32)
    firsts = ("initial_h", "initial_c")[: 1 if operator == "GRU" else 2]
    if state is not None:
        parts = state[0].reshape(len(inputs), -1, directions, hidden).transpose(1, 2, 0, 3)
        given |= dict(zip(firsts, parts, strict=True))
    slots = ["X", "W", "R", "B", "sequence_lens", *firsts]
    lasts = ["Y_h", "Y_c"][: len(firsts)]
    node = helper.make_node(
        operator,
        [slot if slot in given or slot in initial else "" for slot in slots],
        ["Y", *lasts],
        hidden_size=hidden,
        direction="bidirectional" if directions == 2 else "forward",
        **attributes,
    )
    taken = [
        helper.make_tensor_value_info(name, helper.np_dtype_to_tensor_dtype(array.dtype), array.shape)
        for name, array in given.items()
    ]
    kept = [helper.make_tensor_value_info(name, TensorProto.FLOAT, None) for name in ("Y", *lasts)]
    tensors = [numpy_helper.from_array(array, name) for name, array in initial.items()]
    graph = helper.make_graph([node], operator, taken, kept, tensors)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", OPSET)], ir_version=8)
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    session = onnxruntime.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])
    outputs, *last = session.run(None, {name: np.ascontiguousarray(array) for name, array in given.items()})
    steps = outputs.transpose(2, 0, 1, 3).reshape(*inputs.shape[:2], -1)
    return steps, np.concatenate([part.swapaxes(0, 1).reshape(1, len(inputs), -1) for part in last], axis=-1)


GRU, LSTM = recurrent("GRU"), recurrent("LSTM")
