"""assert_parity at the sizes of real networks: right layers pass, and a row that is off does not."""

from __future__ import annotations

from collections.abc import Sequence
from random import Random
from types import SimpleNamespace

import numpy as np
import pytest

from attention_core import draws, reference
from parity_tests import assert_parity

SCORES = (1.0, 4.0, 20.0, 100.0, 500.0)


@pytest.mark.parametrize("seeds", [range(5), range(5, 100)], ids=["few", "many"])
def test_a_layer_is_never_red_and_a_wrong_row_always(backend: SimpleNamespace, seeds: Sequence[int]):
    layer = backend.package.DotProductAttention()
    for seed in seeds:
        sizes = Random(seed)
        keys, features, largest = sizes.choice((64, 128, 240, 512, 1024)), sizes.choice((64, 128)), SCORES[seed % 5]
        shapes = {"queries": (1, 8, features), "keys": (1, keys, features), "values": (1, keys, features)}
        arrays = {name: draws.uniform(name, shape, 3.0**0.5, seed) for name, shape in shapes.items()}
        arrays["queries"] *= largest / 4.0
        arrays = {name: array.astype(np.float32) for name, array in arrays.items()}
        expected = reference.DotProductAttention()(**{name: array.astype(float) for name, array in arrays.items()})
        given = {name: backend.runtime.from_numpy(array) for name, array in arrays.items()}
        actual = [backend.runtime.to_numpy(array) for array in layer(**given)]
        for quantity, one, right in zip(("context", "weights"), actual, expected, strict=True):
            assert_parity(one, right, operator="DotProductAttention", quantity=quantity, inputs=arrays)
        wrong = expected[0].astype(np.float32)
        wrong[:, seed % 8] *= 1.0 + (1e-4 if largest <= 20.0 else 1e-3)
        with pytest.raises(AssertionError):
            assert_parity(wrong, expected[0], operator="DotProductAttention", quantity="context", inputs=arrays)
