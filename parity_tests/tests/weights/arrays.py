"""The sources that have a table, and canonical arrays that each of them can hold."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from attention_core.draws import uniform
from backends.weights import SOURCES, WeightError, from_canonical
from backends.weights.configs import layer_named
from backends.weights.table import Source, sinusoid_halves

Arrays = dict[str, np.ndarray]

TABLES = {name: source for name, source in SOURCES.items() if not source.framework}
FORMS = [
    pytest.param(form, id=f"{name}-{number}")
    for name, source in TABLES.items()
    for number, form in enumerate(source.forms)
]
TRANSFORMER = {
    "features": 6,
    "num_heads": 2,
    "hidden_size": 8,
    "norm": "pre",
    "activation": "gelu",
    "epsilon": 1e-3,
}
STACK = {**TRANSFORMER, "num_layers": 2, "positions": "learned", "num_positions": 9}
CONFIGS: dict[str, dict[str, Any]] = {
    "GRU": {"input_size": 7, "hidden_size": 4},
    "LSTM": {"input_size": 7, "hidden_size": 4},
    "AdditiveAttention": {"query_size": 3, "key_size": 5, "hidden_size": 4},
    "GeneralAttention": {"query_size": 3, "key_size": 5},
    "DotProductAttention": {},
    "MultiHeadAttention": {"query_size": 6, "num_heads": 2, "key_size": 5, "value_size": 7, "hidden_size": 8},
    "GRUEncoder": {"vocab_size": 11, "embed_size": 5, "hidden_size": 4},
    "LSTMEncoder": {"vocab_size": 11, "embed_size": 5, "hidden_size": 4},
    "BahdanauDecoder": {"vocab_size": 11, "embed_size": 5, "hidden_size": 4, "memory_size": 3, "attention_size": 6},
    "LayerNorm": {"features": 6, "epsilon": 1e-3},
    "RMSNorm": {"features": 6, "epsilon": 1e-3},
    "TransformerEncoderLayer": TRANSFORMER,
    "TransformerDecoderLayer": TRANSFORMER,
    "TransformerEncoder": {**STACK, "vocab_size": 11},
    "TransformerDecoder": {**STACK, "vocab_size": 11},
    "TransformerTranslator": {**STACK, "source_vocab_size": 11, "target_vocab_size": 13},
}
CONFIGS["VisionTransformer"] = {
    "height": 4,
    "width": 4,
    "channels": 3,
    "patch_size": 2,
    "num_classes": 5,
    "features": 6,
    "num_heads": 2,
    "hidden_size": 8,
    "num_layers": 2,
    "activation": "gelu",
    "epsilon": 1e-3,
}
ONE_VOCABULARY = {"target_vocab_size": 11}
OF_SOURCES: dict[str, dict[str, Any]] = {
    "transformers.GPT2Model": {"features": 16},
    "transformers.LlamaModel": {"features": 16, "num_positions": None},
    "transformers.MarianMTModel": ONE_VOCABULARY,
    "transformers.T5ForConditionalGeneration": {
        **ONE_VOCABULARY,
        "features": 16,
        "num_positions": None,
        "num_buckets": 4,
    },
}
"""What the layers of a source have in place of CONFIGS; times and by the root of 16 features, no bit is lost."""
UNSEEN = ("num_heads", "positions", "norm", "activation", "epsilon")
"""The options that no shape shows."""
UNSEEN_OF_IMAGES = ("height", "width", "channels", "patch_size", "num_layers", "hidden_size")
STACKS = [{}, {"num_layers": 2}, {"bidirectional": True}, {"num_layers": 2, "bidirectional": True}]


def drawn(layer: str, **config: Any) -> Arrays:
    """Canonical arrays of a layer."""
    specification = layer_named(layer)
    shapes = specification.shapes(specification.sizes({**CONFIGS[layer], **config}))
    return {name: uniform(name, shape) for name, shape in shapes.items()}


def canonical(form: Source, **stack: Any) -> tuple[Arrays, dict[str, Any]]:
    """Canonical arrays that a table can hold, and the options that no shape shows."""
    if form.name == "torch.nn.MultiheadAttention":
        equal = "in_proj_weight" in form.rows[0].name
        sizes = {"hidden_size": 6, **({"key_size": 6, "value_size": 6} if equal else {})}
        return drawn("MultiHeadAttention", **sizes), {"num_heads": 2}
    config = {**CONFIGS[form.layer], **OF_SOURCES.get(form.name, {}), **form.config, **stack}
    arrays = drawn(form.layer, **config)
    arrays |= {name: sinusoid_halves(*arrays[name].shape).astype(np.float64) for name in form.sinusoids}
    for name, array in arrays.items():
        fixed = form.fixed_value(name)
        if fixed is not None:
            arrays[name] = fixed.build(arrays[fixed.like], float) if fixed.like else np.zeros_like(array)
    for row in form.rows:
        arrays |= {
            hold[1:]: uniform(hold, (11, 16) if hold == "*head" else (3, 8) if "weight" in row.name else (3,))
            for hold in row.holds
            if hold[0] == "*"
        }
    unseen = (
        *UNSEEN,
        *(UNSEEN_OF_IMAGES if form.layer == "VisionTransformer" else ()),
        *(("num_positions",) if form.sinusoids else ()),
        *(("tied",) if form.name == "transformers.T5ForConditionalGeneration" else ()),
    )
    return arrays, {name: value for name, value in config.items() if name in unseen}


def same(actual: Arrays, expected: Arrays) -> bool:
    """Whether names, their order, dtypes, shapes and values are the same."""
    return list(actual) == list(expected) and all(
        actual[name].dtype == array.dtype and np.array_equal(actual[name], array) for name, array in expected.items()
    )


def torch_gru(**changed: np.ndarray | None) -> Arrays:
    arrays: dict[str, Any] = {**from_canonical("GRU", drawn("GRU"), "torch.nn.GRU"), **changed}
    return {name: array for name, array in arrays.items() if array is not None}


def refusal(call: Callable[[], object]) -> str:
    """The message with which a call is refused."""
    with pytest.raises(WeightError) as refused:
        call()
    return str(refused.value)
