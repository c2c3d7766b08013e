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

Arrays = dict[str, np.ndarray]
Evaluate = Callable[[Arrays, float | None], np.ndarray]

OPSET, LENGTHS_OPSET = 23, 24
"""The opset that has Attention, and the one that gives it lengths."""


def model(kinds: tuple[tuple[str, int, int], ...], scale: float | None) -> onnx.ModelProto:
    """A graph of one node; kinds has each input's name, type and rank."""
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
def evaluator(kinds: tuple[tuple[str, int, int], ...], scale: float | None) -> ReferenceEvaluator:
    """ONNX's reference of the node."""
    return ReferenceEvaluator(model(kinds, scale))


@functools.cache
def session(kinds: tuple[tuple[str, int, int], ...], scale: float | None) -> onnxruntime.InferenceSession:
    """Onnxruntime's kernel of the node, as it stands."""
    options = onnxruntime.SessionOptions()
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    options.intra_op_num_threads = 1
    content = model(kinds, scale).SerializeToString()
    return onnxruntime.InferenceSession(content, options, providers=["CPUExecutionProvider"])


def kinds_of(arrays: Mapping[str, np.ndarray]) -> tuple[tuple[str, int, int], ...]:
    """Name, type and rank of each array."""
    return tuple((name, helper.np_dtype_to_tensor_dtype(array.dtype), array.ndim) for name, array in arrays.items())


def by_reference(arrays: Arrays, scale: float | None) -> np.ndarray:
    """The node's output by ONNX's reference."""
    return np.asarray(evaluator(kinds_of(arrays), scale).run(None, arrays)[0])


def by_runtime(arrays: Arrays, scale: float | None) -> np.ndarray:
    """The node's output by onnxruntime."""
    return np.asarray(session(kinds_of(arrays), scale).run(None, arrays)[0])


def called(
    evaluate: Evaluate,
    queries: np.ndarray,
    keys: np.ndarray,
    values: np.ndarray,
    scale: float | None,
    **rest: np.ndarray,
) -> np.ndarray:
    """Call the node with heads, of which there is one unless given."""
    heads = queries.ndim == 4
    arrays = {"Q": queries, "K": keys, "V": values}
    if not heads:
        arrays = {name: array[:, None] for name, array in arrays.items()}
    context = evaluate({**arrays, **rest}, scale)
    return context if heads else context[:, 0]


def _masked(evaluate: Evaluate) -> Callable[..., tuple[np.ndarray, None]]:
    def DotProductAttention(
        parameters: Arrays,
        queries: np.ndarray,
        keys: np.ndarray,
        values: np.ndarray,
        mask: np.ndarray | None = None,
        *,
        scale: float | None = None,
    ) -> tuple[np.ndarray, None]:
        rest = {} if mask is None else {"attn_mask": mask[:, None] if mask.ndim == 3 else mask}
        return called(evaluate, queries, keys, values, scale, **rest), None

    return DotProductAttention


def _lengths(evaluate: Evaluate) -> Callable[..., tuple[np.ndarray, None]]:
    def DotProductAttention(
        parameters: Arrays,
        queries: np.ndarray,
        keys: np.ndarray,
        values: np.ndarray,
        valid_lens: np.ndarray | None = None,
        *,
        scale: float | None = None,
    ) -> tuple[np.ndarray, None]:
        if valid_lens is None or valid_lens.ndim == 1:
            rest = {} if valid_lens is None else {"nonpad_kv_seqlen": valid_lens.astype(np.int64)}
            return called(evaluate, queries, keys, values, scale, **rest), None
        # It takes one length for each sequence: every query becomes a sequence of its own.
        batch, steps = valid_lens.shape
        heads = queries.shape[1:-2]
        apart = np.moveaxis(queries, -2, 1).reshape(batch * steps, *heads, 1, queries.shape[-1])
        keys, values = (np.repeat(array, steps, axis=0) for array in (keys, values))
        lengths = valid_lens.reshape(-1).astype(np.int64)
        context = called(evaluate, apart, keys, values, scale, nonpad_kv_seqlen=lengths)
        return np.moveaxis(context.reshape(batch, steps, *heads, values.shape[-1]), 1, -2), None

    return DotProductAttention


def _describe() -> dict[str, Any]:
    return {
        "framework": "ONNX",
        "versions": {name: version(name) for name in ("onnx", "onnxruntime")},
        "devices": {"cpu": platform.processor() or platform.machine()},
    }


def same(array: np.ndarray) -> np.ndarray:
    """The array itself: NumPy's are what both take."""
    return array


runtime = SimpleNamespace(from_numpy=same, to_numpy=np.asarray, describe=_describe)
"""Without vjp: neither gives gradients."""

reference_attention = SimpleNamespace(runtime=runtime, DotProductAttention=_masked(by_reference))
reference_attention_lengths = SimpleNamespace(runtime=runtime, DotProductAttention=_lengths(by_reference))
onnxruntime_attention = SimpleNamespace(runtime=runtime, DotProductAttention=_masked(by_runtime))
onnxruntime_attention_lengths = SimpleNamespace(runtime=runtime, DotProductAttention=_lengths(by_runtime))
