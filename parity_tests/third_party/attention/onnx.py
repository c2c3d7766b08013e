"""ONNX's operator Attention, as targets: by ONNX's reference, and by onnxruntime."""

from __future__ import annotations

import functools
import platform
from collections.abc import Callable, Mapping
from dataclasses import replace
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
Attributes = tuple[tuple[str, float | int], ...]
Evaluate = Callable[[Arrays, Attributes], list[np.ndarray]]
Kinds = tuple[tuple[str, int, int], ...]
"""Name, type and rank of each input."""

OPSET, LENGTHS_OPSET = 23, 24
"""The opset that has Attention, and the one that gives it lengths."""


def model(kinds: Kinds, attributes: Attributes) -> onnx.ModelProto:
    """A graph of one node, which returns its keys and values if it takes earlier ones."""
    names = [kind[0] for kind in kinds]
    slots = ["Q", "K", "V", "attn_mask", "past_key", "past_value", "nonpad_kv_seqlen"]
    inputs = [name if name in names else "" for name in slots]
    while not inputs[-1]:
        inputs.pop()
    outputs = ["Y", "present_key", "present_value"] if "past_key" in names else ["Y"]
    node = helper.make_node("Attention", inputs, outputs, **dict(attributes))
    graph = helper.make_graph(
        [node],
        "attention",
        [helper.make_tensor_value_info(name, kind, [f"{name}{i}" for i in range(rank)]) for name, kind, rank in kinds],
        [helper.make_tensor_value_info(name, kinds[0][1], [f"{name}{i}" for i in range(4)]) for name in outputs],
    )
    opset = LENGTHS_OPSET if "nonpad_kv_seqlen" in names else OPSET
    made = helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)])
    made.ir_version = onnx.IR_VERSION if onnx.IR_VERSION < 11 else 11
    onnx.checker.check_model(made)
    return made


@functools.cache
def evaluator(kinds: Kinds, attributes: Attributes) -> ReferenceEvaluator:
    """ONNX's reference of the node."""
    return ReferenceEvaluator(model(kinds, attributes))


@functools.cache
def session(kinds: Kinds, attributes: Attributes) -> onnxruntime.InferenceSession:
    """The node in onnxruntime, without optimisations of the graph."""
    options = onnxruntime.SessionOptions()
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    options.intra_op_num_threads = 1
    content = model(kinds, attributes).SerializeToString()
    return onnxruntime.InferenceSession(content, options, providers=["CPUExecutionProvider"])


def by(made: Callable[[Kinds, Attributes], Any]) -> Evaluate:
    """The node's outputs, by ONNX's reference or by onnxruntime."""

    def evaluate(arrays: Arrays, attributes: Attributes) -> list[np.ndarray]:
        kinds = ((name, helper.np_dtype_to_tensor_dtype(array.dtype), array.ndim) for name, array in arrays.items())
        return [np.asarray(output) for output in made(tuple(kinds), attributes).run(None, arrays)]

    return evaluate


def attributes_of(call: Attention) -> Attributes:
    """The attributes of the node that are not at their defaults."""
    attributes = {"scale": call.scale, "softcap": call.softcap, "is_causal": int(call.causal) or None}
    return tuple((name, value) for name, value in attributes.items() if value is not None)


def attend(evaluate: Evaluate, call: Attention, hidden: Mapping[str, np.ndarray]) -> np.ndarray:
    """Call the node with heads: one where the arrays have none."""
    arrays, heads = (call.queries, call.keys, call.values), call.queries.ndim == 4
    inputs = {name: array if heads else array[:, None] for name, array in zip("QKV", arrays, strict=True)}
    context = (in_steps if call.steps else whole)(evaluate, {**inputs, **hidden}, attributes_of(call))
    return context if heads else context[:, 0]


def whole(evaluate: Evaluate, inputs: Arrays, attributes: Attributes) -> np.ndarray:
    """All queries in one call."""
    return evaluate(inputs, attributes)[0]


def in_steps(evaluate: Evaluate, inputs: Arrays, attributes: Attributes) -> np.ndarray:
    """One query, key and value in a call, whose present keys and values are the past ones of the next."""
    past = {f"past_{name}": inputs[name[0].upper()][:, :, :0] for name in ("key", "value")}
    contexts = []
    for step in range(inputs["Q"].shape[2]):
        one = {name: array[:, :, step : step + 1] for name, array in inputs.items()}
        context, *present = evaluate({**one, **past}, attributes)
        contexts.append(context)
        past = dict(zip(past, present, strict=True))
    return np.concatenate(contexts, axis=2)


SETTINGS = ("scale", "softcap", "num_key_heads", "causal")


def by_mask(evaluate: Evaluate) -> SimpleNamespace:
    """A target that hides keys by attn_mask."""

    @takes(Attention, "mask", "steps", *SETTINGS)
    def DotProductAttention(call: Attention) -> Outputs:
        return attend(evaluate, call, {} if call.mask is None else {"attn_mask": call.head_mask}), None

    return SimpleNamespace(runtime=runtime, DotProductAttention=DotProductAttention)


def by_lengths(evaluate: Evaluate) -> SimpleNamespace:
    """A target that hides keys by nonpad_kv_seqlen: one length for each sequence, in 64 bits."""

    @takes(Attention, "valid_lens", *SETTINGS)
    def DotProductAttention(call: Attention) -> Outputs:
        queries, lengths = call.queries, call.valid_lens
        if lengths is None or lengths.ndim == 1:
            return attend(
                evaluate, call, {} if lengths is None else {"nonpad_kv_seqlen": lengths.astype(np.int64)}
            ), None
        # Make a sequence of every query, which has a length.
        batch, steps = lengths.shape
        heads = queries.shape[1:-2]
        apart = np.moveaxis(queries, -2, 1).reshape(batch * steps, *heads, 1, queries.shape[-1])
        keys, values = (np.repeat(array, steps, axis=0) for array in (call.keys, call.values))
        hidden = {"nonpad_kv_seqlen": lengths.reshape(-1).astype(np.int64)}
        context = attend(evaluate, replace(call, queries=apart, keys=keys, values=values), hidden)
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

reference_attention, reference_attention_lengths = by_mask(by(evaluator)), by_lengths(by(evaluator))
onnxruntime_attention, onnxruntime_attention_lengths = by_mask(by(session)), by_lengths(by(session))
