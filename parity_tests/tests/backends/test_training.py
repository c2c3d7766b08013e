"""Training in every backend: steps held against the reference's, seeds, states that move, and edges of the clipping."""

from __future__ import annotations

import re
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from attention_core import draws, reference
from attention_core.errors import AttentionError, OptionError, ParameterError, TokenError
from attention_core.operators.training import Batch
from attention_core.operators.translation import TRANSLATORS
from parity_tests.tests.backends.blocks import on_path

VOCABULARIES = {"source_vocab_size": 11, "target_vocab_size": 13}
SIZES = {
    "Translator": {**VOCABULARIES, "embed_size": 4, "hidden_size": 6},
    "TransformerTranslator": {**VOCABULARIES, "features": 4, "num_heads": 2, "hidden_size": 6},
}

EACH = pytest.mark.parametrize("name", SIZES)


def drawn_batch() -> Batch:
    def whole(name: str, shape: tuple[int, ...], high: int, low: int = 0) -> np.ndarray:
        return draws.integers(f"training/{name}", shape, high - low) + np.int32(low)

    lens = {"source_lens": whole("s", (5,), 8, 1), "target_lens": whole("t", (5,), 5, 1)}
    inputs = {"source": whole("source", (5, 7), 11), "inputs": whole("inputs", (5, 4), 13)}
    return Batch(**inputs, **lens, targets=whole("targets", (5, 4), 13))


def given(backend: SimpleNamespace, batch: Batch) -> Batch:
    return batch.map_arrays(backend.runtime.from_numpy)


def drawn_parameters(name: str, config: dict[str, Any], dtype: str) -> dict[str, np.ndarray]:
    shapes = TRANSLATORS[name].shapes(TRANSLATORS[name].sizes(config))
    return {name: draws.uniform(f"training/{name}", shape, 0.4).astype(dtype) for name, shape in shapes.items()}


def trainer(
    backend: SimpleNamespace, optimizer: Any, dtype: str = "float64", name: str = "Translator", **options: Any
) -> Any:
    """A Trainer of a small model with drawn parameters."""
    max_norm = options.pop("max_norm", None)
    config = {**SIZES[name], **options}
    model = backend.runtime.build(getattr(backend.package, name), config, dtype)
    backend.package.set_parameters(model, drawn_parameters(name, config, dtype))
    return backend.package.Trainer(model, optimizer, max_norm=max_norm)


def reference_model(name: str, **options: Any) -> Any:
    config = {**SIZES[name], **options}
    model = getattr(reference, name)(**config)
    reference.set_parameters(model, drawn_parameters(name, config, "float64"))
    return model


def number(backend: SimpleNamespace, found: Any) -> float:
    return float(backend.runtime.to_numpy(found))


@EACH
@pytest.mark.parametrize("kind", ["sgd", "adam"])
def test_a_training_begun_in_the_reference_goes_on_in_the_backend(backend: SimpleNamespace, kind: str, name: str):
    """Parameters and state are all that is needed: two steps there and two here are four steps there."""
    batch, model = drawn_batch(), reference_model(name)
    there = reference.Trainer(model, getattr(reference, kind)(0.05, warmup=3), max_norm=0.2)
    for _ in range(2):
        there.step(batch)
    here = trainer(backend, getattr(backend.package, kind)(0.05, warmup=3), name=name, max_norm=0.2)
    backend.package.set_parameters(here.model, reference.get_parameters(model))
    here.set_state(there.get_state())
    for _ in range(2):
        wanted, found = there.step(batch), here.step(given(backend, batch))
        np.testing.assert_allclose([number(backend, own) for own in found], wanted, rtol=1e-13)
    for key, array in here.get_state().items():
        np.testing.assert_allclose(array, there.get_state()[key], rtol=1e-9, atol=1e-14, err_msg=key)
    for key, array in backend.package.get_parameters(here.model).items():
        if not key.endswith("attention.b_k"):  # has no gradient but rounding, which Adam scales to whole steps
            np.testing.assert_allclose(array, model.parameters[key], rtol=1e-9, atol=1e-12, err_msg=key)
    np.testing.assert_allclose(number(backend, here.evaluate(given(backend, batch))), there.evaluate(batch), rtol=1e-13)


@pytest.mark.parametrize("kind", ["sgd", "adam"])
def test_a_state_comes_back_to_the_bit_and_so_does_what_follows(backend: SimpleNamespace, kind: str):
    batch = given(backend, drawn_batch())
    first = trainer(backend, getattr(backend.package, kind)(0.05), "float32", num_layers=2)
    blank = first.get_state()
    assert int(blank["step"]) == 0 and blank["step"].dtype == np.int64 and blank["step"].shape == ()
    assert not any(array.any() for array in blank.values())
    first.step(batch)
    second = trainer(backend, getattr(backend.package, kind)(0.05), "float32", num_layers=2)
    backend.package.set_parameters(second.model, backend.package.get_parameters(first.model))
    second.set_state(first.get_state())
    for one, other in ((first.get_state(), second.get_state()), (first.step(batch), second.step(batch))):
        named = one.values() if isinstance(one, dict) else map(backend.runtime.to_numpy, one)
        found = other.values() if isinstance(other, dict) else map(backend.runtime.to_numpy, other)
        assert [array.tobytes() for array in named] == [array.tobytes() for array in found]
    ends = [backend.package.get_parameters(own.model) for own in (first, second)]
    assert all(ends[0][name].tobytes() == array.tobytes() for name, array in ends[1].items())
    names = ["step"] if kind == "sgd" else ["step", *(f"{m}.{name}" for m in "mv" for name in ends[0])]
    assert sorted(first.get_state()) == sorted(names) and int(first.get_state()["step"]) == 2


def test_a_state_of_another_optimiser_is_refused(backend: SimpleNamespace):
    own = trainer(backend, backend.package.adam(0.1))
    state = own.get_state()
    missing = {name: array for name, array in state.items() if name != "v.decoder.dense.b"}
    with pytest.raises(ParameterError, match=r"Trainer: the arrays are not .*missing: v.decoder.dense.b"):
        own.set_state(missing)
    with pytest.raises(ParameterError, match=r"m.decoder.dense.b has shape \(2,\), expected \(13,\)"):
        own.set_state({**state, "m.decoder.dense.b": np.zeros(2)})
    with pytest.raises(ParameterError, match=r"m\.decoder\.dense\.b is float32, expected float64"):
        own.set_state({**state, "m.decoder.dense.b": np.zeros(13, np.float32)})
    with pytest.raises(ParameterError, match=re.escape("(unknown: m.decoder.dense.b)")):
        trainer(backend, backend.package.sgd(0.1)).set_state({"step": state["step"], "m.decoder.dense.b": np.zeros(13)})


@EACH
def test_dropout_begins_anew_with_a_seed_and_evaluation_drops_nothing(backend: SimpleNamespace, name: str):
    batch = given(backend, drawn_batch())
    one, other = (trainer(backend, backend.package.sgd(1e-6), name=name, num_layers=2, dropout=0.5) for _ in range(2))
    before = backend.package.get_parameters(one.model)
    other.step(batch)  # whatever was drawn before
    found = []
    for own, seed in ((one, 7), (other, 7), (one, 8)):
        backend.package.set_parameters(own.model, before)
        evaluated = number(backend, own.evaluate(batch))
        own.seed(seed)
        found.append([number(backend, own.step(batch)[0]) for _ in range(3)])
        assert abs(number(backend, own.evaluate(batch)) - evaluated) < 1e-4
        assert len(set(np.round(found[-1], 4))) == 3, "each step draws anew"
    assert found[0] == found[1] and found[0] != found[2]


@EACH
def test_dropout_masks_of_the_batch_replace_random_dropout(backend: SimpleNamespace, name: str):
    batch, own = drawn_batch(), trainer(backend, backend.package.sgd(1e-6), name=name, num_layers=2, dropout=0.5)
    sizes = {**own.model.sizes, "num_layers - 1": 1, "batch": 5, "keys": 7, "steps": 4}
    tensors = TRANSLATORS[name].method("call").keyword_tensors
    ones = {tensor.name: np.ones([sizes[axis] for axis in tensor.axes]) for tensor in tensors}
    whole = number(backend, own.evaluate(given(backend, batch)))
    dropped = number(backend, own.step(given(backend, batch._replace(masks=ones)))[0])
    assert abs(dropped - whole) < 1e-12
    for masked in ("encoder_dropout_mask", next(key for key in ones if key.endswith("attention_dropout_mask"))):
        halved = given(backend, batch._replace(masks={**ones, masked: np.zeros_like(ones[masked])}))
        assert abs(number(backend, own.step(halved)[0]) - whole) > 1e-4
        assert number(backend, own.evaluate(halved)) == number(backend, own.evaluate(given(backend, batch)))


def test_clipping_leaves_what_is_short_alone_and_keeps_the_direction_of_what_is_long(backend: SimpleNamespace):
    arrays = [backend.runtime.from_numpy(np.array([3.0])), backend.runtime.from_numpy(np.array([[4.0]]))]
    for max_norm, wanted in ((2.5, [1.5, 2.0]), (5.0, [3.0, 4.0]), (7.0, [3.0, 4.0]), (None, [3.0, 4.0])):
        clipped, norm = backend.package.clip_by_global_norm(arrays, max_norm=max_norm)
        assert [backend.runtime.to_numpy(own).item() for own in clipped] == wanted
        assert backend.runtime.to_numpy(clipped[1]).shape == (1, 1) and number(backend, norm) == 5.0
    zeros = [backend.runtime.from_numpy(np.zeros(3))]
    clipped, norm = backend.package.clip_by_global_norm(zeros, max_norm=1.0)
    assert not backend.runtime.to_numpy(clipped[0]).any() and number(backend, norm) == 0.0


def test_the_norm_of_a_large_gradient_is_exact_to_rounding(backend: SimpleNamespace):
    """PyTorch's own norm of so many float32 is off by 1e-4; the worst here is MXNet's, by 5e-6."""
    whole = np.tile(draws.uniform("norm", (2**11,)).astype(np.float32), 2**11)
    _, norm = backend.package.clip_by_global_norm([backend.runtime.from_numpy(whole)])
    np.testing.assert_allclose(number(backend, norm), np.linalg.norm(whole.astype(np.float64)), rtol=1.5e-5)


def test_numbers_outside_their_domain_and_unknown_targets_are_refused(backend: SimpleNamespace):
    package = backend.package
    for call, words in (
        (lambda: package.sgd(0.0), "sgd: learning_rate is 0.0, expected a finite number above 0"),
        (lambda: package.adam(0.1, 1.0), "adam: beta1 is 1.0, expected a rate of at least 0 and less than 1"),
        (lambda: package.adam(0.1, epsilon=0.0), "adam: epsilon is 0.0, expected a finite number above 0"),
        (lambda: package.adam(0.1, warmup=0), "adam: warmup is 0, expected a whole number of at least 1"),
        (lambda: package.clip_by_global_norm([], max_norm=-1.0), "clip_by_global_norm: max_norm is -1.0, expected"),
        (lambda: trainer(backend, package.sgd(0.1), max_norm=0.0), "clip_by_global_norm: max_norm is 0.0, expected"),
    ):
        with pytest.raises(OptionError, match=re.escape(words)):
            call()
    own = trainer(backend, package.sgd(0.1))
    before = package.get_parameters(own.model)
    batch = drawn_batch()
    wrong = {
        "targets": "masked_cross_entropy: targets holds the id 13",
        "inputs": "BahdanauDecoder: tokens holds the id 13",
        "source": "GRUEncoder: tokens holds the id 13",
    }
    for name, words in wrong.items():
        tokens = getattr(batch, name).copy()
        tokens[0, 0] = 13
        with pytest.raises(TokenError, match=re.escape(words)):
            own.step(given(backend, batch._replace(**{name: tokens})))
    with pytest.raises(AttentionError, match="axis 'batch' is"):
        own.step(given(backend, batch._replace(target_lens=batch.target_lens[:3])))
    after = package.get_parameters(own.model)
    assert (
        all(np.array_equal(before[name], array) for name, array in after.items()) and int(own.get_state()["step"]) == 0
    )


@pytest.fixture(params=[None, "blocked"])
def path(request: pytest.FixtureRequest, backend: SimpleNamespace):
    with on_path(backend, request.param):
        yield request.param


FORMS = [
    ("Translator", {"readout": "maxout"}),
    ("Translator", {"decoder": "luong"}),
    ("Translator", {"decoder": "fixed"}),
    ("TransformerTranslator", {"norm": "pre"}),
]


@pytest.mark.parametrize(
    ("path", "name", "options"),
    [*((None, *form) for form in FORMS), ("blocked", *FORMS[0])],  # the loss is the same on either path
    indirect=["path"],
    ids=str,
)
def test_only_open_steps_contribute_to_the_loss_and_its_gradients(
    backend: SimpleNamespace, path: str | None, name: str, options: dict[str, Any]
):
    model = reference_model(name, **options)
    drawn = dict(model.parameters)
    there = reference.Trainer(model, reference.sgd(0.5))
    # One for all lengths: TensorFlow traces its step once.
    here = trainer(backend, backend.package.sgd(0.5), name=name, **options)
    for lens in ([4, 1, 0, 7, 2], [4, 4, 4, 4, 4], [0, 0, 0, 0, 1], None):
        batch = drawn_batch()._replace(target_lens=None if lens is None else np.array(lens, np.int32))
        reference.set_parameters(model, drawn)
        backend.package.set_parameters(here.model, drawn)
        evaluated = number(backend, here.evaluate(given(backend, batch)))
        np.testing.assert_allclose(evaluated, there.evaluate(batch), rtol=1e-13, err_msg=str(lens))
        expected, actual = there.step(batch), here.step(given(backend, batch))
        np.testing.assert_allclose(
            [number(backend, value) for value in actual], expected, rtol=1e-13, err_msg=str(lens)
        )
        for key, array in backend.package.get_parameters(here.model).items():
            message = f"{key} {lens}"
            np.testing.assert_allclose(array, model.parameters[key], rtol=1e-11, atol=1e-14, err_msg=message)


@EACH
def test_no_logits_are_computed_of_steps_that_do_not_count(
    backend: SimpleNamespace, path: str | None, name: str, monkeypatch: pytest.MonkeyPatch
):
    """The features show it; JAX does so above a size threshold, and fills up to a multiple of an eighth."""
    here, seen = trainer(backend, backend.package.sgd(0.5), name=name), []
    decoder = type(here.model.decoder)
    logits = decoder._logits

    def watched(self: Any, features: Any) -> Any:
        seen.append(int(np.prod(features.shape[:-1])))
        return logits(self, features)

    monkeypatch.setattr(decoder, "_logits", watched)
    batch = drawn_batch()._replace(target_lens=np.array([4, 1, 0, 7, 2], np.int32))
    here.loss(given(backend, batch))
    assert seen == [11 if backend.name != "jax" else 12 if path else 20]


@pytest.mark.parametrize("part", ["translator", "decoder"])
def test_a_call_that_is_overridden_is_the_one_that_is_trained(backend: SimpleNamespace, path: str | None, part: str):
    method = {"torch": "forward", "tf": "call", "jax": "__call__", "mxnet": "forward"}[backend.name]
    here, batch = trainer(backend, backend.package.sgd(0.5)), given(backend, drawn_batch())
    base = type(here.model) if part == "translator" else type(here.model.decoder)

    def doubled(self: Any, *arguments: Any, **options: Any) -> Any:
        logits, *others = getattr(base, method)(self, *arguments, **options)
        return (logits * 2, *others)

    logits, _ = here.model(**batch.arguments)
    expected = backend.package.masked_cross_entropy(logits * 2, batch.targets, batch.target_lens)
    (here.model if part == "translator" else here.model.decoder).__class__ = type("Own", (base,), {method: doubled})
    assert number(backend, here.loss(batch)) == pytest.approx(number(backend, expected), rel=1e-12)


def test_the_loss_refuses_what_a_step_refuses(backend: SimpleNamespace, path: str | None):
    here, batch = trainer(backend, backend.package.sgd(0.5)), drawn_batch()
    for name in ("source", "inputs", "targets"):
        with pytest.raises(TokenError, match="holds the id 13"):
            here.loss(given(backend, batch._replace(**{name: np.full_like(getattr(batch, name), 13)})))
    with pytest.raises(AttentionError, match="axis 'batch' is"):
        here.loss(given(backend, batch._replace(target_lens=batch.target_lens[:3])))


def test_a_batch_without_an_open_step_moves_nothing(backend: SimpleNamespace):
    own = trainer(backend, backend.package.sgd(0.5), max_norm=1.0)
    before = backend.package.get_parameters(own.model)
    batch = drawn_batch()
    loss, norm = own.step(given(backend, batch._replace(target_lens=np.zeros(5, np.int32))))
    assert number(backend, loss) == number(backend, norm) == 0.0
    after = backend.package.get_parameters(own.model)
    assert all(np.array_equal(before[name], array) for name, array in after.items())


@EACH
def test_rows_without_a_token_fill_a_batch_and_change_nothing(backend: SimpleNamespace, name: str):
    """So that the last, smaller batch of an epoch has the shape of the others."""
    batch = drawn_batch()
    filled = batch.map_arrays(lambda own: np.concatenate([own, np.zeros((2, *own.shape[1:]), own.dtype)]))
    found = []
    for own in (batch, filled):
        made = trainer(backend, backend.package.sgd(0.5), name=name)
        found.append([number(backend, value) for value in made.step(given(backend, own))])
        found[-1] += [array.sum() for array in backend.package.get_parameters(made.model).values()]
    np.testing.assert_allclose(*found, rtol=1e-12)
