"""Test vectors as ONNX's node tests, where a node of ONNX is the same function: model.onnx and test_data_set_0."""

from __future__ import annotations

from collections.abc import Mapping
from importlib.util import find_spec
from typing import Any

import numpy as np

from attention_core import reference
from parity_tests.format.case import Arrays, Case
from parity_tests.judge.compare import compare
from parity_tests.judge.question import Question
from parity_tests.judge.verdict import Verdict

OPSET = 24
"""The opset whose Attention bounds scores before it adds the mask."""
IR_VERSION = 11
WEIGHTS = 3
"""The qk_matmul_output_mode that returns the weights."""
DTYPES = ("float64", "float32", "float16")
"""The dtypes that ONNX's reference computes in."""

Node = tuple[str, dict[str, Any], Arrays]
"""The operator's name, the attributes, and the inputs by name; one that is left out has no entry."""


def attention(case: Case, inputs: Arrays) -> Node | str:
    """Attention, with lengths, mask and bias in attn_mask; a reason if it is another function."""
    factors = inputs.get("dropout_mask")
    if factors is not None and not (factors == 1.0).all():
        return "ONNX's Attention has no dropout mask"
    if case.config.get("time_major"):
        return "ONNX's Attention takes the batch first"
    queries, keys, values = (inputs[case.shared.get(name, name)] for name in ("queries", "keys", "values"))
    arrays = {name: _in_heads(array) for name, array in zip("QKV", (queries, keys, values), strict=True)}
    opened = reference.attention_mask(keys.shape[-2], inputs.get("valid_lens"), inputs.get("mask"))
    added = inputs.get("bias")
    if added is not None:
        added = _in_heads(added) if added.ndim > 2 else added[None, None]
        arrays["attn_mask"] = added if opened is None else np.where(_in_heads(opened), added, added.dtype.type(-np.inf))
    elif opened is not None:
        shape = (*opened.shape[:-2], queries.shape[-2], keys.shape[-2])
        arrays["attn_mask"] = _in_heads(np.broadcast_to(opened, shape))
    attributes = {name: case.config[name] for name in ("scale", "softcap") if case.config.get(name) is not None}
    return "Attention", attributes, arrays


def softmax(case: Case, inputs: Arrays) -> Node | str:
    """Softmax over the last axis, where everything is open."""
    if set(inputs) != {"scores"}:
        return "ONNX's Softmax has no mask"
    return "Softmax", {"axis": -1}, {"input": inputs["scores"]}


NODES = {"DotProductAttention": attention, "masked_softmax": softmax}
SLOTS = {"Attention": ("Q", "K", "V", "attn_mask"), "Softmax": ("input",)}


def node_test(question: Question) -> tuple[dict[str, bytes], str]:
    """The files of a node test by name; if there are none, the reason, which is empty for other operators.

    The node is evaluated by ONNX's reference: it is left out where its outputs are not those of the specification.
    """
    case, dtype = question.cell
    if case.operator not in NODES:
        return {}, ""
    if find_spec("onnx") is None:
        return {}, "onnx is not installed. Run: pip install onnx"
    if dtype not in DTYPES:
        return {}, f"ONNX's reference does not compute in {dtype}"
    inputs = case.at(dtype)[0]
    if any(array.size == 0 or not np.isfinite(array).all() for name, array in inputs.items() if name != "bias"):
        return {}, "ONNX does not define the effect of empty inputs, and of hidden NaN and inf"
    node = NODES[case.operator](case, inputs)
    if isinstance(node, str):
        return {}, node
    expected = {
        name: quantity.reference.astype(dtype)
        for name, quantity in question.quantities.items()
        if name in ("context", "weights")
    }
    operator, attributes, arrays = node
    if operator == "Attention":
        expected = {name: _in_heads(array) for name, array in expected.items()}
    return _files(question, operator, attributes, arrays, expected)


def _in_heads(array: np.ndarray) -> np.ndarray:
    return array if array.ndim == 4 else array[:, None]


def _files(
    question: Question, operator: str, attributes: Mapping[str, Any], arrays: Arrays, expected: Arrays
) -> tuple[dict[str, bytes], str]:
    import onnx
    from onnx import helper, numpy_helper
    from onnx.reference import ReferenceEvaluator

    if onnx.defs.onnx_opset_version() < OPSET:
        return {}, f"onnx {onnx.__version__} has no opset {OPSET}. Run: pip install -U onnx"
    outputs = list(expected)
    if operator == "Attention" and "weights" in expected:
        attributes = {**attributes, "qk_matmul_output_mode": WEIGHTS}
        outputs = ["context", "", "", "weights"]
    inputs = [name if name in arrays else "" for name in SLOTS[operator]]
    while not inputs[-1]:
        inputs.pop()

    def values(given: Arrays) -> list[Any]:
        return [
            helper.make_tensor_value_info(name, helper.np_dtype_to_tensor_dtype(array.dtype), array.shape)
            for name, array in given.items()
        ]

    graph = helper.make_graph(
        [helper.make_node(operator, inputs, outputs, **attributes)], operator, values(arrays), values(expected)
    )
    model = helper.make_model(
        graph, opset_imports=[helper.make_opsetid("", OPSET)], ir_version=IR_VERSION, producer_name="attention-parity"
    )
    onnx.checker.check_model(model, full_check=True)
    with np.errstate(invalid="ignore"):  # where all scores are -inf
        actual = ReferenceEvaluator(model).run(None, arrays)
    case, dtype = question.cell
    blank = Verdict(case.operator, case.id, "onnx", "reference", "", dtype, "*", "missing")
    for name, computed in zip(expected, actual, strict=True):
        quantity = question.quantities[name]
        verdict = compare(blank, quantity, computed.reshape(quantity.reference.shape), quantity.reference)
        if verdict.red:
            return {}, f"ONNX's reference differs in {name} of {case.id} in {dtype}: {verdict.reason}"
    files = {"model.onnx": model.SerializeToString(deterministic=True)}
    for kind, given in (("input", arrays), ("output", expected)):
        for number, (name, array) in enumerate(given.items()):
            content = numpy_helper.from_array(np.ascontiguousarray(array), name).SerializeToString(deterministic=True)
            files[f"test_data_set_0/{kind}_{number}.pb"] = content
    return files, ""
