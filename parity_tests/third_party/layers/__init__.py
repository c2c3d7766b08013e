"""The layers that weights come from, in their own frameworks: targets whose parameters are the layer's own arrays.

`attention-parity convert` runs them beside the converted ones. Each module here imports its framework, and is imported
in a worker process alone.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from importlib.util import find_spec
from typing import Any

import backends

PLACES = {
    "torch.nn.GRU": "torch:GRU",
    "torch.nn.LSTM": "torch:LSTM",
    "torch.nn.MultiheadAttention": "torch:MultiheadAttention",
    "keras.GRU": "keras:GRU",
    "keras.LSTM": "keras:LSTM",
    "keras.MultiHeadAttention": "keras:MultiHeadAttention",
    "keras.AdditiveAttention": "keras:AdditiveAttention",
    "flax.linen.GRUCell": "flax:LinenGRUCell",
    "flax.linen.LSTMCell": "flax:LinenLSTMCell",
    "flax.linen.MultiHeadDotProductAttention": "flax:LinenMultiHeadDotProductAttention",
    "flax.nnx.GRUCell": "flax:NnxGRUCell",
    "flax.nnx.LSTMCell": "flax:NnxLSTMCell",
    "flax.nnx.OptimizedLSTMCell": "flax:NnxOptimizedLSTMCell",
    "flax.nnx.MultiHeadAttention": "flax:NnxMultiHeadAttention",
    "gluon.rnn.GRU": "mxnet:GRU",
    "gluon.rnn.LSTM": "mxnet:LSTM",
    "onnx.GRU": "onnx:GRU",
    "onnx.LSTM": "onnx:LSTM",
    "textbook.Encoder": "torch:TextbookEncoder",
    "textbook.BahdanauDecoder": "torch:TextbookBahdanauDecoder",
    "textbook.Encoder in Gluon": "mxnet:TextbookEncoder",
    "textbook.BahdanauDecoder in Gluon": "mxnet:TextbookBahdanauDecoder",
    "opennmt.GlobalAttention": "torch:OpenNMTGlobalAttention",
    "tfa.BahdanauAttention": "keras:AddonsBahdanauAttention",
    "tfa.LuongAttention": "keras:AddonsLuongAttention",
    "attention_parity.torch": "torch:Own",
    "attention_parity.tf": "keras:Own",
    "attention_parity.jax": "flax:Own",
    "attention_parity.mxnet": "mxnet:Own",
}
"""Where each source of `backends.weights` is a target, below this package; a table may hold for two frameworks."""

FRAMEWORKS = {
    "torch": "torch",
    "keras": "tf",
    "tfa": "tf",
    "flax": "jax",
    "gluon": "mxnet",
    "onnx": "onnx",
    "textbook": "torch",
    "opennmt": "torch",
}
"""The framework that a source runs in, by the first word of its name: a backend's name, or onnx."""


IN_GLUON = " in Gluon"


def spoken(name: str, arrays: Iterable[str]) -> str:
    """The entry of a source among PLACES, by how the names of its arrays are written: i2h and h2h are Gluon's."""
    other = f"{name}{IN_GLUON}"
    return other if other in PLACES and any("i2h_" in array for array in arrays) else name


def stacked(
    run: Callable[[dict[str, Any], Any, Any], tuple[Any, Any]],
    parameters: Mapping[str, Any],
    inputs: Any,
    state: Any,
    join: Callable[[list[Any]], Any],
) -> tuple[Any, Any]:
    """Outputs and states of layers that were made one by one: their numbers stand before the names, as "0/kernel"."""
    states = []
    for layer in sorted({int(name.partition("/")[0]) for name in parameters}):
        start = f"{layer}/"
        own = {name.removeprefix(start): array for name, array in parameters.items() if name.startswith(start)}
        inputs, last = run(own, inputs, None if state is None else state[layer : layer + 1])
        states.append(last)
    return inputs, join(states)


def framework_of(name: str) -> str:
    """The framework that a source, or a backend of ours, runs in."""
    first, _, rest = name.partition(".")
    if name.endswith(IN_GLUON):
        return "mxnet"
    return rest if first == "attention_parity" else FRAMEWORKS.get(first, first)


def place_of(name: str) -> str:
    """The place of a source as a target, or of a backend of ours."""
    return f"{__name__}.{PLACES[name]}" if name in PLACES else backends.available()[name].module


def absence(framework: str) -> str | None:
    """Why the framework cannot run here, if so."""
    if framework != "onnx":
        return backends.available()[framework].reason
    lacking = [name for name in ("onnx", "onnxruntime") if find_spec(name) is None]
    return f"not installed: {', '.join(lacking)}. Run: pip install {' '.join(lacking)}" if lacking else None
