"""Models of transformers, KerasHub and PyTorch against the same models of other layers, in other frameworks."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Mapping
from typing import Any

import pytest

from parity_tests import compare_models
from parity_tests.models.comparison import Comparison

# Each with the precision that decides: what normalizes in float32, whatever the dtype, is not the same in float64.
PRECISIONS = {
    "gpt2": "float64",
    "llama": "float32",
    "t5": "float32",
    "marian": "float64",
    "vit": "float64",
    "keras_hub": "float64",
    "keras_hub_gelu": "float32",
    "keras_hub_gpt2": "float32",
    "keras_hub_bert": "float32",
    "torch_transformer": "float32",
}
PLANTED: Mapping[str, tuple[Mapping[str, Any], str, str]] = {
    "gpt2": ({"activation": "gelu"}, "mlp.act", "expected tanh-approximated GELU"),
    "llama": ({"rotary_layout": "interleaved"}, "self_attn", ""),
    "t5": ({"score": "scaled_dot"}, "SelfAttention", ""),
    "marian": ({"epsilon": 1e-3}, "self_attn_layer_norm", "epsilon 0.001, expected epsilon 1e-05"),
    "vit": ({"epsilon": 1e-5}, "layernorm_before", "epsilon 1e-05, expected epsilon 1e-12"),
    "keras_hub": ({"epsilon": 1e-3}, "self_attention_layer_norm", "epsilon 0.001, expected epsilon 0.0001"),
    "keras_hub_gpt2": ({"scale_attn_weights": False}, "attn", ""),
    "keras_hub_bert": ({"activation": "gelu"}, "intermediate.dense", "tanh-approximated GELU of the expected output"),
    "torch_transformer": ({"epsilon": 1e-6}, "norm1", "epsilon 1e-06, expected epsilon 1e-05"),
}
"""What is changed in a model, with a part of where that is found, and of what it looks like."""

pytestmark = [pytest.mark.together, pytest.mark.frameworks("torch", "tf", "jax")]


@pytest.fixture(scope="module")
def compare() -> Callable[..., Comparison]:
    """Compares a model with that of a library, with changes of ours."""
    models = importlib.import_module("parity_tests.tests.models.ports.library_models").MODELS

    def compare(name: str, **changes: Any) -> Comparison:
        pair = models[name](**changes)
        return compare_models(pair.actual, pair.expected, inputs=pair.inputs, names=pair.names, weights="copied")

    return compare


@pytest.mark.parametrize("name", PRECISIONS)
def test_a_model_of_a_library_agrees_with_ours_once_its_arrays_are_copied(
    name: str, compare: Callable[..., Comparison]
):
    comparison = compare(name)
    assert comparison.agree, str(comparison)
    assert comparison.decided_in == PRECISIONS[name]
    assert not comparison.pairing.only_actual
    assert any(one.quantity.startswith("gradient.parameter.") for one in comparison.verdicts)


@pytest.mark.parametrize("name", PLANTED)
def test_a_difference_from_a_model_of_a_library_is_found(name: str, compare: Callable[..., Comparison]):
    changes, place, words = PLANTED[name]
    comparison = compare(name, **changes)
    assert comparison.red and comparison.first_difference is not None, str(comparison)
    assert place in comparison.first_difference.sentence, str(comparison)
    assert words in " ".join(comparison.looks_like), str(comparison)
