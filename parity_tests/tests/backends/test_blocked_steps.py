"""The steps of a decoder as one function, or at once: the numbers of the loop over them."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from attention_core.draws import integers, uniform
from attention_core.operators import find
from attention_core.specification import Layer
from parity_tests.tests.backends.blocks import in_small_blocks, kernels_of, on_path

pytestmark = pytest.mark.implements("blocked/decoder_steps.py")

SMALL = {"torch": {"decoder_steps.BY_STEPS": 2 * 7 * 8}, "tf": {}}
"""Two sequences of three in a block; TensorFlow has no blocks of them."""

SIZES = {"vocab_size": 11, "embed_size": 4, "hidden_size": 5, "num_layers": 2, "memory_size": 6}
ADDITIVE = {**SIZES, "attention_size": 8}
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
    (kernel,) = kernels_of(backend).registry["decoder_steps"]
    counted = kernel._replace(compute=lambda *given: calls.append(1) or kernel.compute(*given))
    monkeypatch.setitem(kernels_of(backend).registry, "decoder_steps", [counted])
    return calls


def made(
    backend: SimpleNamespace,
    dtype: str = "float64",
    scale: float = 1.0,
    name: str = "BahdanauDecoder",
    sizes: dict[str, Any] = ADDITIVE,
    **options: Any,
) -> Any:
    """A decoder with drawn parameters, those of queries and keys multiplied by the scale."""
    config, specified = {**sizes, **options}, find(name)
    assert isinstance(specified, Layer)
    decoder = backend.runtime.build(getattr(backend.package, name), config, dtype)
    shapes = specified.shapes(specified.sizes(config))
    arrays = {name: uniform(name, shape, 0.7).astype(dtype) for name, shape in shapes.items()}
    for name in arrays.keys() & {"attention.W_q", "attention.W_k"}:
        arrays[name] *= scale
    backend.package.set_parameters(decoder, arrays)
    return decoder


def decoded(
    backend: SimpleNamespace, path: str, decoder: Any, masks: dict[str, np.ndarray], lens: np.ndarray = LENS
) -> dict[str, np.ndarray]:
    """The floating outputs on a path, and the gradients of inputs, dropout masks and parameters."""
    width, features = decoder.sizes["state_size"], decoder.sizes["memory_size"]
    state = uniform("state", (2, 3, width))
    given = {"tokens": TOKENS, "encoder_outputs": MEMORY[..., :features], "state": state, "valid_lens": lens, **masks}
    tensors = {name: backend.runtime.from_numpy(array) for name, array in given.items()}
    # In PyTorch steps are no function where a dropout mask has a gradient.
    fixed = {name: tensors.pop(name) for name in masks} if backend.name == "torch" else {}

    def outputs_of(decoder: Any, **named: Any) -> tuple[Any, ...]:
        logits, state, weights = decoder(**named, **fixed)
        return logits, weights, *(state[:2] if isinstance(state, tuple) else [state])  # a position has no gradient

    fed = [(3, decoder.sizes["fed_size"])] if hasattr(decoder, "W_c") else []
    shapes = (3, 4, 11), (3, 4, 7), (2, 3, width), *fed
    cotangents = {index: backend.runtime.from_numpy(uniform(str(index), shape)) for index, shape in enumerate(shapes)}
    with in_small_blocks(backend, SMALL[backend.name]), on_path(backend, path):
        outputs, gradients, parameters = backend.runtime.vjp(outputs_of, tensors, cotangents, decoder)
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


FORMS: dict[str, dict[str, Any]] = {
    "Bahdanau": {"name": "BahdanauDecoder"},
    "maxout": {"name": "BahdanauDecoder", "readout": "maxout"},
    "context": {"name": "BahdanauDecoder", "reads": "context"},
    "context, maxout": {"name": "BahdanauDecoder", "reads": "context", "readout": "maxout"},
    "Luong": {"name": "LuongDecoder"},
}


@pytest.mark.parametrize("cell", ["gru", "lstm"])
@pytest.mark.parametrize("score", ["additive", "concat", "concat_bias", "dot", "scaled_dot", "general"])
@pytest.mark.parametrize("form", FORMS.values(), ids=FORMS)
def test_the_steps_of_every_form_are_those_of_the_loop(
    backend: SimpleNamespace, form: dict[str, Any], score: str, cell: str, taken: list[int]
):
    sizes = {**SIZES, "memory_size": 5 if "dot" in score else 6}  # an inner product with the state itself
    decoder = made(backend, sizes=sizes, score=score, cell=cell, **form)
    masks = {**MASKS["dropout"], **MASKS["fully masked"]}
    expected, actual = (decoded(backend, path, decoder, masks) for path in ("plain", "blocked"))
    assert taken == [1]
    for name, array in expected.items():
        np.testing.assert_allclose(actual[name], array, rtol=0, atol=1e-13, err_msg=name)


@pytest.mark.parametrize(
    "options",
    [
        {"score": "cosine", "memory_size": 5},
        {"alignment": "monotonic", "window": 2},
        {"alignment": "predictive", "window": 2},
        {"input_feeding": "none"},
        {"input_feeding": "context"},
    ],
    ids=str,
)
def test_the_steps_of_other_forms_are_not_one_function(
    backend: SimpleNamespace, options: dict[str, Any], taken: list[int]
):
    decoded(backend, "blocked", made(backend, name="LuongDecoder", sizes=SIZES, **options), {})
    assert not taken


@pytest.mark.parametrize("score", ["additive", "general"])
def test_steps_as_one_function_see_a_nan_where_the_loop_does(backend: SimpleNamespace, score: str, taken: list[int]):
    decoder, memory = made(backend, "float32", sizes=SIZES, score=score), MEMORY.astype(np.float32)
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


@pytest.mark.parametrize("cell", ["gru", "lstm"])
@pytest.mark.parametrize(
    "form",
    [
        {"name": "FixedContextDecoder"},
        {"name": "LuongDecoder", "input_feeding": "none"},
        {"name": "LuongDecoder", "input_feeding": "none", "alignment": "monotonic", "window": 2},
        {"name": "LuongDecoder", "input_feeding": "none", "alignment": "predictive", "window": 2},
    ],
    ids=str,
)
def test_steps_that_wait_for_none_before_them_are_computed_at_once(
    backend: SimpleNamespace, form: dict[str, Any], cell: str, monkeypatch: pytest.MonkeyPatch
):
    decoder, calls = made(backend, sizes=SIZES, cell=cell, **form), []
    of_one_step = type(decoder.rnn)._advance
    monkeypatch.setattr(type(decoder.rnn), "_advance", lambda *given: calls.append(1) or of_one_step(*given))
    lens = np.array([6, 0, 7], np.int32)
    at_once = decoded(backend, "plain", decoder, MASKS["dropout"], lens)
    assert not calls
    one_by_one = decoded(backend, "plain", decoder, MASKS["dropout"], np.repeat(lens[:, None], 4, axis=1))
    assert len(calls) == 4  # a mask for each step
    for name, array in one_by_one.items():
        np.testing.assert_allclose(at_once[name], array, rtol=0, atol=1e-13, err_msg=name)


@pytest.mark.parametrize("name", ["BahdanauDecoder", "LuongDecoder"])
def test_a_score_of_minus_infinity_hides_a_value_from_a_step(backend: SimpleNamespace, name: str, taken: list[int]):
    """Where the key of that value is infinite, some queries score it -inf, others inf: they alone see NaN."""
    layer, memory = made(backend, name=name, sizes={**SIZES, "memory_size": 5}, score="dot"), MEMORY[..., :5].copy()
    memory[range(3), 2, range(3)] = np.inf
    given, results = [backend.runtime.from_numpy(array) for array in (TOKENS, memory, STATE)], []
    for path in ("plain", "blocked"):
        with on_path(backend, path):
            results.append([backend.runtime.to_numpy(array) for array in layer(*given)[::2]])
    for expected, actual in zip(*results, strict=True):
        np.testing.assert_allclose(actual, expected, rtol=1e-12, atol=1e-14)
    logits, weights = results[0]
    hidden = np.isfinite(logits).all(axis=-1) & (weights[..., 2] == 0.0)
    assert len(taken) == 1 and hidden.any()
