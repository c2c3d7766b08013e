"""What a layer shows where one types a dot behind it: what the specification names, and nothing by accident."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from attention_core.operators import LAYERS
from attention_core.specification import Layer
from backends import read_requirements
from parity_tests.cases.suite import all_cases

CASES = {case.operator: case for case in all_cases() if case.method}

BESIDE = {
    "bounded": "what an attention layer of one's own says of its score",
    "dropout": "of the common class, where a layer has none: HardAttention",
    "attention": "of the common class, where a layer has none: FixedContextDecoder",
    "layers": "the layers of a stack, whose arrays are the canonical 0.W, 1.W and so on",
    "backward_layers": "the same for the other direction",
    "encode": "the first half of a Translator's call, whose memory serves several searches",
    "reset_parameters": "the method by which PyTorch draws parameters anew",
}
"""The public names that a layer has beside those of the specification and of its framework."""


@pytest.mark.parametrize("specification", LAYERS, ids=lambda layer: layer.name)
def test_a_layer_shows_what_the_specification_names(backend: SimpleNamespace, specification: Layer):
    config = CASES[specification.name].config
    layer = backend.runtime.build(getattr(backend.package, specification.name), config, "float64")
    framework = next(made for made in type(layer).__mro__ if not made.__module__.startswith("backends."))
    requirements = read_requirements(backend.package.__name__)
    assert requirements is not None
    named = {"specification", "sizes", *requirements.keywords, *BESIDE}
    named |= {method.name.partition(".")[2] for method in specification.methods}
    named |= {parameter.name.partition(".")[0] for parameter in specification.parameters}
    named |= {option.name for option in specification.options}
    named |= {*specification.parts, *specification.inside(specification.sizes(config))}
    shown = {name for name in dir(layer) if not name.startswith("_")} - {*dir(framework())}
    assert not sorted(shown - named)
