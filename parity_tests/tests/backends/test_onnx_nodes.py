"""The node tests of ONNX's Attention, which come with onnx, through every backend."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from parity_tests import assert_parity

onnx = pytest.importorskip("onnx")
from onnx.backend.test.case.node import collect_testcases  # noqa: E402

pytestmark = pytest.mark.together

HALF = ("float16", "bfloat16")


def nodes() -> dict[str, Any]:
    """The tests of the operator itself, not of its expansion, by name; without those of other outputs than ours."""
    named = {case.name.removeprefix("test_attention_"): case for case in collect_testcases("Attention")}
    named = {name: case for name, case in named.items() if not name.endswith("_expanded")}
    return {name: case for name, case in named.items() if output_mode(case) in (None, WEIGHTS)}


WEIGHTS = 3
"""The qk_matmul_output_mode of weights; those of scores are not returned here."""


def output_mode(case: Any) -> int | None:
    """What a node gives beside its context and the cache, if anything."""
    node = case.model.graph.node[0]
    modes = [one.i for one in node.attribute if one.name == "qk_matmul_output_mode"]
    return (modes or [0])[0] if "qk_matmul_output" in node.output else None


NODES = nodes()


def test_onnx_brings_nodes_of_every_kind():
    words = " ".join(NODES)
    assert len(NODES) > 50 and all(
        word in words for word in ("gqa", "softcap", "past", "causal", "3d", "fp16", "neginf")
    )


def in_heads(array: np.ndarray, heads: int | None) -> np.ndarray:
    """(batch, steps, features of all heads) as (batch, heads, steps, features of a head), if it is not yet."""
    if array.ndim == 4:
        return array
    batch, steps, features = array.shape
    assert heads is not None
    return array.reshape(batch, steps, heads, features // heads).swapaxes(1, 2)


def seen(attributes: dict[str, Any], queries: int, keys: int, offset: np.ndarray) -> np.ndarray:
    """What causality and a window leave open, (batch or 1, 1, queries, keys): a query is at its number + offset."""
    distance = np.arange(keys) - (np.arange(queries)[:, None] + offset[:, None, None, None])
    left, right = (attributes.get(f"{side}_window_size", -1) for side in ("left", "right"))
    opened = distance <= 0 if attributes.get("is_causal") else np.ones_like(distance, bool)
    if left >= 0:
        opened &= distance >= -left
    return opened & (distance <= right) if right >= 0 else opened


def asked(node: Any, arrays: dict[str, np.ndarray]) -> tuple[dict[str, Any], dict[str, np.ndarray]]:
    """The options of DotProductAttention, and the arrays of its call."""
    attributes = {one.name: onnx.helper.get_attribute_value(one) for one in node.attribute}
    queries = in_heads(arrays["Q"], attributes.get("q_num_heads"))
    keys, values = (in_heads(arrays[name], attributes.get("kv_num_heads")) for name in ("K", "V"))
    past = arrays["past_key"].shape[2] if "past_key" in arrays else 0
    if past:
        keys = np.concatenate([arrays["past_key"], keys], axis=2)
        values = np.concatenate([arrays["past_value"], values], axis=2)
    shape = queries.shape[2], keys.shape[2]
    lens = arrays.get("nonpad_kv_seqlen")
    # In a cache of its own, the last query is at the last key of its sequence.
    opened = seen(attributes, *shape, np.array([past]) if lens is None else lens - shape[0])
    call = {"queries": queries, "keys": keys, "values": values}
    if lens is not None:
        call["valid_lens"] = lens
    added = arrays.get("attn_mask")
    if added is not None:
        missing = [(0, 0)] * (added.ndim - 1) + [(0, shape[1] - added.shape[-1] if added.shape[-1] > 1 else 0)]
        fill = False if added.dtype == bool else -np.inf
        added = np.pad(added.astype(added.dtype), missing, constant_values=fill)
        added = added.reshape((1,) * (4 - added.ndim) + added.shape)
        if added.dtype == bool:
            opened = opened & added
        else:
            call["bias"] = added
    if not opened.all():
        call["mask"] = opened
    options = {"scale": attributes.get("scale"), "softcap": attributes.get("softcap") or None}
    return {name: value for name, value in options.items() if value is not None}, call


@pytest.mark.parametrize("name", NODES)
def test_a_node_of_onnx_gives_the_same(backend: SimpleNamespace, name: str):
    case, node = NODES[name], NODES[name].model.graph.node[0]
    inputs, outputs = case.data_sets[0]
    arrays = dict(zip([name for name in node.input if name], inputs, strict=True))
    expected = dict(zip([name for name in node.output if name], outputs, strict=True))
    dtype = arrays["Q"].dtype.name
    if backend.name == "mxnet" and dtype in HALF:
        pytest.skip("MXNet has no half precision on a CPU")
    options, call = asked(node, arrays)
    layer = backend.package.DotProductAttention(**options)
    given = {name: backend.runtime.from_numpy(array) for name, array in call.items()}
    context, weights = (backend.runtime.to_numpy(array) for array in layer(**given))
    if expected["Y"].ndim == 3:
        context = context.swapaxes(1, 2).reshape(expected["Y"].shape)
    assert_parity(context, expected["Y"], operator="DotProductAttention", quantity="context")
    if output_mode(case) == WEIGHTS:
        assert_parity(weights, expected["qk_matmul_output"], operator="DotProductAttention", quantity="weights")
