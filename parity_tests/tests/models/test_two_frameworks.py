"""A model and its port: the same layers written in PyTorch, in Keras, in Flax and in Gluon."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from parity_tests import compare_models

PORTS_OF = "parity_tests.tests.models.ports"
INPUTS = "tokens: int (3, 7) < 30; mask: mask (3, 7)"

ROUNDING = {"nnx": "the weights of attention are float32", "gluon": "the epsilon is rounded to float32"}
PORTS = ("nnx", "linen", "keras", "gluon")
PLANTED = {
    ("nnx", "epsilon"): ("norm", "epsilon 0.001, expected epsilon 1e-05"),
    ("nnx", "activation"): ("dense", "tanh-approximated GELU, expected ReLU"),
    ("linen", "epsilon"): ("norm", "epsilon 0.001, expected epsilon 1e-05"),
    ("linen", "activation"): ("dense", "SiLU, expected ReLU"),
    ("keras", "epsilon"): ("norm", "epsilon 0.001, expected epsilon 1e-05"),
    ("keras", "scale"): ("norm", "counts 3.4641 (√12) times, expected once"),
    ("gluon", "epsilon"): ("norm", "epsilon 0.001, expected epsilon 1e-05"),
    ("gluon", "scale"): ("norm", "counts 3.4641 (√12) times, expected once"),
}
"""What is changed in a port, with a part of where it is and of what it looks like."""


@pytest.fixture(scope="module")
def models() -> Callable[..., Any]:
    """The function that makes a model: the PyTorch one, or a port of it with a change."""
    make: Callable[..., Any] = importlib.import_module(f"{PORTS_OF}.ports_of_one_model").make
    return make


@pytest.fixture(scope="module")
def recurrent() -> Any:
    """The module of the recurrent model and its ports."""
    return importlib.import_module(f"{PORTS_OF}.recurrent_ports")


@pytest.mark.together
@pytest.mark.frameworks("torch", "tf", "jax", "mxnet")
@pytest.mark.parametrize("port", PORTS)
def test_a_right_port_is_green_with_arrays_that_are_paired_by_name(port: str, models: Callable[..., Any]):
    comparison = compare_models(models(port), models("torch"), inputs=INPUTS, weights="copied", train_steps=2)
    assert comparison.agree, str(comparison)
    assert comparison.decided_in == ("float32" if port in ROUNDING else "float64"), str(comparison)
    assert not comparison.pairing.only_expected and not comparison.pairing.only_actual
    assert any(one.quantity.startswith("gradient.parameter.") for one in comparison.verdicts)
    assert any(one.quantity == "trained.loss.2" for one in comparison.verdicts)


@pytest.mark.together
@pytest.mark.frameworks("torch", "tf", "jax", "mxnet")
@pytest.mark.parametrize(("port", "change"), PLANTED)
def test_a_difference_of_a_port_is_found_and_named(port: str, change: str, models: Callable[..., Any]):
    place, name = PLANTED[port, change]
    comparison = compare_models(models(port, change), models("torch"), inputs=INPUTS, weights="copied")
    assert comparison.red and comparison.first_difference is not None, str(comparison)
    assert place in comparison.first_difference.sentence, str(comparison)
    assert any(name in words for words in comparison.looks_like), str(comparison)


@pytest.mark.together
@pytest.mark.frameworks("torch", "tf", "jax", "mxnet")
def test_stored_weights_ask_whether_a_conversion_is_right(models: Callable[..., Any]):
    red = compare_models(models("keras"), models("torch"), inputs=INPUTS).red
    assert red, "each side has arrays of its own"


@pytest.mark.together
@pytest.mark.frameworks("torch", "tf", "jax", "mxnet")
def test_rounding_to_float32_inside_is_found_and_does_not_hide_what_is_behind(models: Callable[..., Any]):
    comparison = compare_models(models("nnx"), models("torch"), inputs=INPUTS, weights="copied")
    assert comparison.decided_in == "float32"
    assert any("attention (MultiHeadAttention) on one side rounds" in note for note in comparison.notes)


@pytest.mark.together
@pytest.mark.frameworks("torch", "tf", "jax", "mxnet")
def test_arrays_of_a_port_keep_their_values(models: Callable[..., Any]):
    model = models("torch")
    before = {name: tensor.detach().clone() for name, tensor in model.state_dict().items()}
    compare_models(models("linen"), model, inputs=INPUTS, weights="copied")
    assert all(np.array_equal(tensor, before[name]) for name, tensor in model.state_dict().items())


@pytest.mark.together
@pytest.mark.frameworks("torch", "tf", "jax", "mxnet")
@pytest.mark.parametrize("port", ("keras", "nnx", "gluon"))
def test_recurrent_layers_are_paired_by_the_tables_of_convert(port: str, recurrent: Any):
    sides = recurrent.Torch(), recurrent.PORTS[port]()
    for actual, expected in (sides,) if port == "nnx" else (sides, sides[::-1]):
        comparison = compare_models(actual, expected, inputs="tokens: int (2, 7) < 30", weights="copied")
        assert comparison.agree, str(comparison)
        assert not comparison.pairing.only_expected and not comparison.pairing.only_actual
        gradients = {one.quantity for one in comparison.verdicts if one.quantity.startswith("gradient.parameter.")}
        assert len(gradients) == sum(len(pair.expected) for pair in comparison.pairing.pairs)
    if port == "nnx":  # whose GRU lacks a bias
        comparison = compare_models(*sides[::-1], inputs="tokens: int (2, 7) < 30", weights="copied")
        assert any("flax.nnx.GRUCell requires 0.b_hn to be zeros" in note for note in comparison.notes)
