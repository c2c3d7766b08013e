"""ONNX's operator Attention, as targets: by ONNX's reference, and by onnxruntime."""

from __future__ import annotations

import functools
import platform
from collections.abc import Callable, Mapping
from importlib.metadata import version
from types import SimpleNamespace
from typing import Any

import numpy as np
import onnx
import onnxruntime
from onnx import helper
from onnx.reference import ReferenceEvaluator

from parity_tests.third_party.signatures import Attention, Outputs, takes

Arrays = dict[str, np.ndarray]
Evaluate = Callable[[Arrays, float | None], np.ndarray]
Kinds = tuple[tuple[str, int, int], ...]
"""Name, type and rank of each input."""

OPSET, LENGTHS_OPSET = 23, 24
"""The opset that has Attention, and the one that gives it lengths."""


def model(kinds: Kinds, scale: float | None) -> onnx.ModelProto:
    """A graph of one node."""
    names = [kind[0] for kind in kinds]
    slots = ["Q", "K", "V", "attn_mask", "past_key", "past_value", "nonpad_kv_seqlen"]
    inputs = [name if name in names else "" for name in slots]
    while not inputs[-1]:
        inputs.pop()
    node = helper.make_node("Attention", inputs, ["Y"], **({} if scale is None else {"scale": scale}))
    graph = helper.make_graph(
        [node],
        "attention",
        [helper.make_tensor_value_info(name, kind, [f"{name}{i}" for i in range(rank)]) for name, kind, rank in kinds],
        [helper.make_tensor_value_info("Y", kinds[0][1], ["batch", "heads", "queries", "features"])],
    )
    opset = LENGTHS_OPSET if "nonpad_kv_seqlen" in names else OPSET
    made = helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)])
    made.ir_version = onnx.IR_VERSION if onnx.IR_VERSION < 11 else 11
    onnx.checker.check_model(made)
    return made


@functools.cache
def evaluator(kinds: Kinds, scale: float | None) -> ReferenceEvaluator:
    """ONNX's reference of the node."""
    return ReferenceEvaluator(model(kinds, scale))


@functools.cache
def session(kinds: Kinds, scale: float | None) -> onnxruntime.InferenceSession:
    """The node in onnxruntime, without optimisations of the graph."""
    options = onnxruntime.SessionOptions()
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    options.intra_op_num_threads = 1
    content = model(kinds, scale).SerializeToString()
    return onnxruntime.InferenceSession(content, options, providers=["CPUExecutionProvider"])


def by(made: Callable[[Kinds, float | None], Any]) -> Evaluate:
    """The node's output, by ONNX's reference or by onnxruntime."""

    def evaluate(arrays: Arrays, scale: float | None) -> np.ndarray:
        kinds = ((name, helper.np_dtype_to_tensor_dtype(array.dtype), array.ndim) for name, array in arrays.items())
        return np.asarray(made(tuple(kinds), scale).run(None, arrays)[0])

    return evaluate


def attend(
    evaluate: Evaluate, arrays: tuple[np.ndarray, ...], scale: float | None, hidden: Mapping[str, np.ndarray]
) -> np.ndarray:
    """Call the node with heads: one where the arrays have none."""
    heads = arrays[0].ndim == 4
    inputs = {name: array if heads else array[:, None] for name, array in zip("QKV", arrays, strict=True)}
    context = evaluate({**inputs, **hidden}, scale)
    return context if heads else context[:, 0]


def masked(evaluate: Evaluate) -> SimpleNamespace:
    """A target that hides keys by attn_mask."""

    @takes(Attention, "mask", "scale")
    def DotProductAttention(call: Attention) -> Outputs:
        hidden = {} if call.mask is None else {"attn_mask": call.head_mask}
        return attend(evaluate, (call.queries, call.keys, call.values), call.scale, hidden), None

    return SimpleNamespace(runtime=runtime, DotProductAttention=DotProductAttention)


def measured(evaluate: Evaluate) -> SimpleNamespace:
    """A target that hides keys by nonpad_kv_seqlen: one length for each sequence, in 64 bits."""

    @takes(Attention, "valid_lens", "scale")
    def DotProductAttention(call: Attention) -> Outputs:
        queries, keys, values, lengths = call.queries, call.keys, call.values, call.valid_lens
        if lengths is None or lengths.ndim == 1:
            hidden = {} if lengths is None else {"nonpad_kv_seqlen": lengths.astype(np.int64)}
            return attend(evaluate, (queries, keys, values), call.scale, hidden), None
        # Make a sequence of every query, which has a length.
        batch, steps = lengths.shape
        heads = queries.shape[1:-2]
        apart = np.moveaxis(queries, -2, 1).reshape(batch * steps, *heads, 1, queries.shape[-1])
        keys, values = (np.repeat(array, steps, axis=0) for array in (keys, values))
        hidden = {"nonpad_kv_seqlen": lengths.reshape(-1).astype(np.int64)}
        context = attend(evaluate, (apart, keys, values), call.scale, hidden)
        return np.moveaxis(context.reshape(batch, steps, *heads, values.shape[-1]), 1, -2), None

    return SimpleNamespace(runtime=runtime, DotProductAttention=DotProductAttention)


def describe() -> dict[str, Any]:
    """Versions and the only device."""
    return {
        "framework": "ONNX",
        "versions": {name: version(name) for name in ("onnx", "onnxruntime")},
        "devices": {"cpu": platform.processor() or platform.machine()},
    }


runtime = SimpleNamespace(from_numpy=lambda array: array, to_numpy=np.asarray, describe=describe)
"""Arrays are NumPy's; without vjp, since neither gives gradients."""

reference_attention, reference_attention_lengths = masked(by(evaluator)), measured(by(evaluator))
onnxruntime_attention, onnxruntime_attention_lengths = masked(by(session)), measured(by(session))
