"""Beam search over small models whose hypotheses end early, late or never, against the reference, which runs on."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from attention_core import draws, reference
from attention_core.operators.decoders import BAHDANAU_DECODER

SIZES = {"vocab_size": 12, "embed_size": 5, "hidden_size": 6}
BOS, EOS, MAX_STEPS = 2, 3, 9


def parameters(seed: int, towards_eos: float) -> dict[str, np.ndarray]:
    """Wide parameters, whose probabilities differ; the bias makes the end more or less likely."""
    shapes = BAHDANAU_DECODER.shapes(BAHDANAU_DECODER.sizes(SIZES))
    arrays = {name: draws.uniform(f"search/{name}", shape, 1.2, seed=seed) for name, shape in shapes.items()}
    arrays["dense.b"][EOS] += towards_eos
    return arrays


def made(backend: SimpleNamespace, arrays: dict[str, np.ndarray]) -> Any:
    decoder = backend.runtime.build(backend.package.BahdanauDecoder, SIZES, "float64")
    backend.package.set_parameters(decoder, arrays)
    return decoder


def inputs(seed: int) -> tuple[np.ndarray, ...]:
    outputs, state = (draws.uniform(f"search/{shape}", shape, 1.0, seed=seed) for shape in ((4, 5, 6), (1, 4, 6)))
    return outputs, state, np.array([5, 1, 3, 2], np.int32)


@pytest.mark.parametrize("towards_eos", [1.0, 3.0])
@pytest.mark.parametrize(
    "options",
    [
        {"width": 4},
        {"width": 4, "length_penalty": 4.0},
        {"width": 4, "num_best": 2, "length_penalty": 2.0},
        {"width": 3, "num_best": 2, "length_penalty": -0.5},
    ],
    ids=str,
)
def test_what_ends_early_is_what_the_reference_finds_at_the_end(
    backend: SimpleNamespace, options: dict[str, Any], towards_eos: float
):
    for seed in range(12):
        arrays, given = parameters(seed, towards_eos), inputs(seed)
        there = reference.BahdanauDecoder(**SIZES)
        reference.set_parameters(there, arrays)
        ends = {"bos": BOS, "eos": EOS, "max_steps": MAX_STEPS}
        expected = there.beam(*given, **ends, **options)
        actual = made(backend, arrays).beam(*map(backend.runtime.from_numpy, given), **ends, **options)
        tokens, lengths, scores, weights = map(backend.runtime.to_numpy, actual)
        assert np.array_equal(tokens, expected[0]) and np.array_equal(lengths, expected[1])
        np.testing.assert_allclose(scores, expected[2], rtol=1e-12)
        np.testing.assert_allclose(weights, expected[3], atol=1e-13)


def test_search_stops_once_nothing_can_overtake(backend: SimpleNamespace, monkeypatch: pytest.MonkeyPatch):
    """The best hypotheses end long before the others: in 23 steps of twelve searches, all of them in 71."""
    if backend.name == "jax":
        pytest.skip("jax.lax.while_loop has no gradient in reverse mode: all steps are taken")
    decoder, taken = made(backend, parameters(0, 2.0)), []
    step = type(decoder)._step

    def counted(self: Any, *arguments: Any, **options: Any) -> Any:
        taken.append(1)
        return step(self, *arguments, **options)

    monkeypatch.setattr(type(decoder), "_step", counted)
    for seed in range(12):
        backend.package.set_parameters(decoder, parameters(seed, 2.0))
        given = map(backend.runtime.from_numpy, inputs(seed))
        decoder.beam(*given, bos=BOS, eos=EOS, max_steps=MAX_STEPS, width=4)
    assert len(taken) == 23
