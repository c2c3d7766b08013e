"""The steps of Bahdanau's decoder as one function: the numbers of the loop over them."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from attention_core.draws import integers, uniform
from attention_core.operators import LAYERS
from parity_tests.tests.backends.blocks import blocked, in_small_blocks, on_path

pytestmark = pytest.mark.implements("blocked/decoder_steps.py")

SMALL = {"torch": {"decoder_steps.BY_STEPS": 2 * 7 * 8}, "tf": {}}
"""Two sequences of three in a block; TensorFlow has no blocks of them."""

(SPECIFIED,) = (layer for layer in LAYERS if layer.name == "BahdanauDecoder")
SIZES = {"vocab_size": 11, "embed_size": 4, "hidden_size": 5, "num_layers": 2, "memory_size": 6, "attention_size": 8}
TOKENS, MEMORY, STATE = integers("tokens", (3, 4), 11), uniform("memory", (3, 7, 6)), uniform("state", (2, 3, 5))
LENS = np.array([6, 2, 7], np.int32)
MASKS: dict[str, dict[str, np.ndarray]] = {
    "plain": {},
    "dropout": {
        "dropout_mask": 2.0 * (uniform("d", (1, 3, 4, 5)) > 0),
        "attention_dropout_mask": 2.0 * (uniform("a", (3, 4, 7)) > 0),
    },
    "fully masked": {"mask": np.array([True, False, True])[:, None, None]},
}


@pytest.fixture
def taken(backend: SimpleNamespace, monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """One entry for each time that steps were one function."""
    calls: list[int] = []
    name = f"backends.{backend.name}.decoders.blocked_steps"
    steps = blocked(backend, "decoder_steps").blocked_steps
    monkeypatch.setattr(name, lambda *given: calls.append(1) or steps(*given))
    return calls


def made(backend: SimpleNamespace, dtype: str = "float64", scale: float = 1.0, **options: Any) -> Any:
    """A decoder with drawn parameters, those of queries and keys multiplied by the scale."""
    config = {**SIZES, **options}
    decoder = backend.runtime.build(backend.package.BahdanauDecoder, config, dtype)
    shapes = SPECIFIED.shapes(SPECIFIED.sizes(config))
    arrays = {name: uniform(name, shape, 0.7).astype(dtype) for name, shape in shapes.items()}
    for name in ("attention.W_q", "attention.W_k"):
        arrays[name] *= scale
    backend.package.set_parameters(decoder, arrays)
    return decoder


def decoded(backend: SimpleNamespace, path: str, decoder: Any, masks: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    """The outputs on a path, and the gradients of inputs, dropout masks and parameters."""
    given = {"tokens": TOKENS, "encoder_outputs": MEMORY, "state": STATE, "valid_lens": LENS, **masks}
    tensors = {name: backend.runtime.from_numpy(array) for name, array in given.items()}
    # In PyTorch steps are no function where a dropout mask has a gradient.
    fixed = {name: tensors.pop(name) for name in masks} if backend.name == "torch" else {}
    shapes = (3, 4, 11), (2, 3, 5), (3, 4, 7)
    cotangents = {index: backend.runtime.from_numpy(uniform(str(index), shape)) for index, shape in enumerate(shapes)}
    with in_small_blocks(backend, SMALL[backend.name]), on_path(backend, path):
        outputs, gradients, parameters = backend.runtime.vjp(
            lambda decoder, **named: decoder(**named, **fixed), tensors, cotangents, decoder
        )
    arrays = {str(index): output for index, output in enumerate(outputs)} | gradients
    return {name: backend.runtime.to_numpy(array) for name, array in arrays.items()} | parameters


@pytest.mark.parametrize("masks", MASKS.values(), ids=MASKS)
@pytest.mark.parametrize("scale", [1.0, 100.0, 1000.0])
@pytest.mark.parametrize("readout", ["dense", "maxout"])
def test_steps_as_one_function_have_the_numbers_of_the_loop(
    backend: SimpleNamespace, readout: str, scale: float, masks: dict[str, np.ndarray], taken: list[int]
):
    decoder = made(backend, scale=scale, readout=readout)  # large keys have no exponentials, and queries are clipped
    expected = decoded(backend, "plain", decoder, masks)
    actual = decoded(backend, "blocked", decoder, masks)
    assert taken == [1]
    for name, array in expected.items():
        np.testing.assert_allclose(actual[name], array, rtol=1e-14 * scale, atol=1e-14 * scale, err_msg=name)


def test_steps_as_one_function_see_a_nan_where_the_loop_does(backend: SimpleNamespace, taken: list[int]):
    decoder, memory = made(backend, "float32"), MEMORY.astype(np.float32)
    memory[:, 6], memory[2, 1] = np.nan, np.nan  # hidden from the first two sequences; open to the last
    given = [backend.runtime.from_numpy(array) for array in (TOKENS, memory, STATE.astype(np.float32), LENS)]
    for path in ("blocked", "plain"):
        with on_path(backend, path):
            logits = backend.runtime.to_numpy(decoder(*given)[0])
        np.testing.assert_array_equal(np.isnan(logits).any(axis=(1, 2)), [False, False, True], path)
    assert taken == [1]


def test_steps_are_one_function_where_they_share_a_mask_and_there_are_some(backend: SimpleNamespace, taken: list[int]):
    decoder = made(backend)
    tokens, memory, state = (backend.runtime.from_numpy(array) for array in (TOKENS, MEMORY, STATE))
    for mask, steps, expected in (((1, 1, 7), 4, 1), ((1, 4, 7), 4, 0), ((1, 1, 7), 0, 0)):
        taken.clear()
        with on_path(backend, "blocked"):
            decoder(tokens[:, :steps], memory, state, mask=backend.runtime.from_numpy(np.ones(mask, bool)))
        assert len(taken) == expected, (mask, steps)
