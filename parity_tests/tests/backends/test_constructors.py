"""A constructor's arguments reach the layer: each option of the specification, by the base class that picks them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from types import SimpleNamespace
from typing import Any

import pytest

from attention_core.operators import LAYERS
from attention_core.specification import Layer
from parity_tests.cases.suite import all_cases


def configurations(layer: Layer) -> Iterator[Mapping[str, Any]]:
    """Configurations of the layer's cases, in which each option has another value than its default; and a dropout rate.

    Cases pass dropout masks, and have no rate.
    """
    defaults = {option.name: option.default for option in layer.options}
    missing = {*defaults}
    for case in all_cases():
        if case.operator == layer.name and case.method:
            config = {**case.config, "dropout": 0.25} if "dropout" in missing else case.config
            given = {name for name, value in config.items() if repr(value) != defaults[name]}
            if given & missing:
                missing -= given
                yield config
    assert not missing, f"no case of {layer.name} gives {', '.join(sorted(missing))}"


@pytest.mark.parametrize("layer", LAYERS, ids=lambda layer: layer.name)
def test_a_layer_is_constructed_with_every_option(backend: SimpleNamespace, layer: Layer):
    for config in configurations(layer):
        made = backend.runtime.build(getattr(backend.package, layer.name), config, "float32")
        assert {**made.sizes} == layer.sizes(dict(config))
