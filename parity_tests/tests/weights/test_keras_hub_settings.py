"""KerasHub's layers in .keras archives: their options are read from the file, and the converted layer is the same."""

from __future__ import annotations

import itertools
from pathlib import Path

import numpy as np
import pytest

from attention_core.draws import uniform
from backends import weights

pytestmark = pytest.mark.frameworks("tf", "torch")  # in the environment of both, which has KerasHub

INPUTS = uniform("inputs", (3, 6, 8))
OPTIONS = list(itertools.product(("relu", "gelu", "silu"), (True, False), (1e-5, 0.1)))


def converted_from(path: Path, **options: object):
    """A saved TransformerEncoder with drawn weights, and what it is converted to."""
    import keras
    import keras_hub

    inputs = keras.Input((6, 8), dtype="float64")
    model = keras.Model(inputs, keras_hub.layers.TransformerEncoder(5, 2, dtype="float64", **options)(inputs))
    model.set_weights([uniform(f"weight {number}", tuple(one.shape)) for number, one in enumerate(model.weights)])
    model.save(path)
    return model, weights.to_canonical(weights.read_arrays(path), settings=weights.read_settings(path))


@pytest.mark.parametrize(("activation", "first", "epsilon"), OPTIONS)
def test_the_options_of_an_encoder_are_those_of_its_file(
    activation: str, first: bool, epsilon: float, tmp_path: Path, answered
):
    options = {"activation": activation, "normalize_first": first, "layer_norm_epsilon": epsilon}
    model, converted = converted_from(tmp_path / "model.keras", **options)
    assert converted.source == "keras_hub.TransformerEncoder" and not converted.assumed
    expected = {"activation": activation, "norm": "pre" if first else "post", "epsilon": epsilon, "num_heads": 2}
    assert expected.items() <= converted.config.items()
    # Keras holds the scale of the scores, and the constants of gelu, in float32.
    np.testing.assert_allclose(answered(converted, INPUTS)[0], model(INPUTS), rtol=0, atol=2e-6)


def test_another_activation_is_refused_by_its_name(tmp_path: Path):
    with pytest.raises(weights.WeightError, match="with activation='tanh', which the specification lacks"):
        converted_from(tmp_path / "model.keras", activation="tanh")
