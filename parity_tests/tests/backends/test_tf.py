"""That the layers are good Keras layers, and that graphs, models, files and policies change none of their answers."""

from __future__ import annotations

import importlib.metadata
import os
import subprocess
import sys
import warnings
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf

from attention_core import reference
from attention_core.draws import integers, uniform
from attention_core.errors import AttentionError, DtypeError, MaskError, OptionError, ShapeError
from backends import tf as attention
from backends.tf import attention as attention_file
from backends.tf import decoders, masking, parameters, pooling, recurrent, runtime, scoring
from backends.tf.blocked import additive, blocks, choice, decoder_steps


def floats(name: str, *shape: int) -> np.ndarray:
    return uniform(name, shape).astype(np.float32)


QUERIES, KEYS, VALUES = floats("queries", 3, 4, 5), floats("keys", 3, 7, 6), floats("values", 3, 7, 8)
LIKE, SCORES, STATE = floats("like queries", 3, 7, 5), floats("scores", 3, 4, 7), floats("state", 2, 3, 5)
MASK, LENS, STEPS = integers("mask", (3, 4, 7), 2) > 0, np.array([6, 0, 7], np.int32), np.array([3, 0, 4], np.int32)
SOURCE, TARGET = integers("source", (3, 7), 11), integers("target", (3, 4), 11)

FUNCTIONS = {
    "attention_mask": (LENS, MASK),
    "masked_softmax": (SCORES, LENS, MASK),
    "dot_score": (QUERIES, LIKE),
    "scaled_dot_score": (QUERIES, LIKE),
    "additive_score": (QUERIES, LIKE, floats("w_v", 5)),
    "attention_pooling": (SCORES, VALUES, LENS, MASK),
}
WORDS = {"vocab_size": 11, "embed_size": 6, "hidden_size": 5, "num_layers": 2}
LAYERS: dict[str, tuple[dict[str, int], tuple[np.ndarray, ...]]] = {
    "DotProductAttention": ({}, (QUERIES, LIKE, VALUES, LENS, MASK)),
    "AdditiveAttention": ({"query_size": 5, "key_size": 6, "hidden_size": 9}, (QUERIES, KEYS, VALUES, LENS, MASK)),
    "GeneralAttention": ({"query_size": 5, "key_size": 6}, (QUERIES, KEYS, VALUES, LENS, MASK)),
    "ConcatAttention": ({"query_size": 5, "key_size": 6, "hidden_size": 9}, (QUERIES, KEYS, VALUES, LENS, MASK)),
    "CosineAttention": ({}, (QUERIES, LIKE, VALUES, LENS, MASK)),
    "KernelAttention": ({"learned": True}, (QUERIES, LIKE, VALUES, LENS, MASK)),
    "LocalAttention": (
        {"query_size": 5, "key_size": 6, "window": 2, "mode": "predictive"},
        (QUERIES, KEYS, VALUES, LENS, MASK),
    ),
    "MultiHeadAttention": (
        {"query_size": 5, "num_heads": 5, "key_size": 6, "value_size": VALUES.shape[-1]},
        (QUERIES, KEYS, VALUES, LENS, MASK),
    ),
    "GRU": ({"input_size": 6, "hidden_size": 5, "num_layers": 2}, (floats("inputs", 3, 4, 6), STEPS, STATE)),
    "GRUEncoder": (WORDS, (TARGET, STEPS, STATE)),
    "BahdanauDecoder": (WORDS | {"memory_size": 8, "attention_size": 9}, (TARGET, VALUES, STATE, LENS, MASK)),
}


@pytest.fixture(autouse=True)
def _seeded():
    keras.utils.set_random_seed(1)


def made(kind: str, **options: Any) -> keras.layers.Layer:
    """The layer, with parameters drawn by name."""
    layer = getattr(attention, kind)(**{**LAYERS[kind][0], **options})
    shapes = layer.specification.shapes(layer.sizes)
    attention.set_parameters(
        layer, {k: uniform(k, shape, 0.7).astype(layer.variable_dtype) for k, shape in shapes.items()}
    )
    return layer


def given(name: str) -> list[tf.Tensor]:
    return [tf.constant(array) for array in (LAYERS[name][1] if name in LAYERS else FUNCTIONS[name])]


def same(found: Any, expected: Any, tolerance: float = 0.0):
    for one, other in zip(tf.nest.flatten(found), tf.nest.flatten(expected), strict=True):
        assert one.dtype == other.dtype
        np.testing.assert_allclose(one, other, rtol=tolerance, atol=tolerance)


def differ(found: Any, expected: Any) -> bool:
    return float(tf.reduce_max(abs(found[0] - expected[0]))) > 1e-2


def graph(function: Callable, tensors: list[tf.Tensor]) -> Callable:
    """The function as a graph for tensors of those types and ranks, and of any size."""
    signature = [tf.TensorSpec([None] * tensor.shape.rank, tensor.dtype) for tensor in tensors]
    return tf.function(function, input_signature=signature)


def with_gradients(layer: keras.layers.Layer) -> Callable:
    """A function of the layer's arguments: its outputs, and the gradients of a cubic form of them."""

    def function(*arguments: tf.Tensor) -> tuple:
        watched = [tensor for tensor in arguments if tensor.dtype.is_floating]
        with tf.GradientTape() as tape:
            tape.watch(watched)
            outputs = layer(*arguments)
            loss = tf.add_n([tf.reduce_sum(output**3) for output in outputs])
        sources = [*watched, *(parameter.value for parameter in layer.trainable_variables)]
        return outputs, [tf.convert_to_tensor(gradient) for gradient in tape.gradient(loss, sources)]

    return function


# ------------------------------------------------------------------------------------------------ graphs


@pytest.mark.parametrize("name", FUNCTIONS)
def test_a_function_in_a_graph_of_unknown_sizes_is_as_in_eager_mode(name: str):
    function, tensors = getattr(attention, name), given(name)
    if name == "attention_mask":
        function = partial(function, 7)
    same(graph(function, tensors)(*tensors), function(*tensors), 1e-6)


def test_the_number_of_keys_may_be_a_tensor_of_the_graph():
    lens, mask = given("attention_mask")
    found = graph(lambda lens, mask: attention.attention_mask(tf.shape(mask)[2], lens, mask), [lens, mask])(lens, mask)
    same(found, attention.attention_mask(7, lens, mask))


@pytest.mark.parametrize("name", [name for name in LAYERS if name != "GRUEncoder"])
def test_a_layer_and_its_gradients_in_a_graph_of_unknown_sizes_are_as_in_eager_mode(name: str):
    function, tensors = with_gradients(made(name)), given(name)
    same(graph(function, tensors)(*tensors), function(*tensors), 1e-5)


def test_encoder_and_decoder_in_one_graph_are_as_in_eager_mode():
    encoder, decoder = made("GRUEncoder", num_layers=1), made("BahdanauDecoder", num_layers=1, memory_size=5)
    tensors = [tf.constant(array) for array in (SOURCE, LENS, TARGET)]

    def translate(source: tf.Tensor, lens: tf.Tensor, target: tf.Tensor) -> tuple[tf.Tensor, ...]:
        return decoder(target, *encoder(source, lens), lens)

    same(graph(translate, tensors)(*tensors), translate(*tensors), 1e-5)


def test_greedy_in_a_graph_is_as_in_eager_mode():
    decoder, tensors = made("BahdanauDecoder"), [tf.constant(array) for array in (VALUES, STATE, LENS)]

    def greedy(*tensors: tf.Tensor) -> tuple[tf.Tensor, ...]:
        return decoder.greedy(*tensors, bos=1, eos=3, max_steps=9)

    tokens, lengths, weights = graph(greedy, tensors)(*tensors)
    same((tokens, lengths, weights), greedy(*tensors), 1e-6)
    assert 0 <= min(lengths) < max(lengths) < 9


def test_a_graph_may_meet_no_steps():
    layer, (tokens, *tensors) = made("BahdanauDecoder"), given("BahdanauDecoder")[:3]
    logits, state, weights = graph(layer.__call__, [tokens, *tensors])(tokens[:, :0], *tensors)
    assert (logits.shape, weights.shape) == ((3, 0, 11), (3, 0, 7))
    same(state, tensors[1])


@pytest.mark.parametrize("name", ["AdditiveAttention", "BahdanauDecoder"])
def test_weights_are_returned_and_no_tensor_of_a_graph_stays_in_a_layer(name: str):
    layer, tensors = made(name), given(name)
    weights = graph(layer.__call__, tensors)(*tensors)[-1]
    assert weights.shape == (3, 4, 7) and not tf.is_symbolic_tensor(weights)
    for part in layer._flatten_layers():
        for value in keras.tree.flatten(list(vars(part).values())):
            assert not tf.is_symbolic_tensor(value) and not isinstance(value, keras.KerasTensor)


# ------------------------------------------------------------------------------------------------ models and files


class Pair(keras.Model):
    """A layer inside a model, beside another of its kind, whose parameters must not be taken for its own."""

    def __init__(self, name: str) -> None:
        super().__init__()
        self.first, self.second = made(name, dropout=0.3), getattr(attention, name)(**LAYERS[name][0])

    def call(self, inputs: list[tf.Tensor]) -> tuple:
        return self.first(*inputs), self.second(*inputs)


class Translator(keras.Model):
    """An encoder, a decoder and an attention of the source over itself."""

    def __init__(self) -> None:
        super().__init__()
        self.encoder = made("GRUEncoder", num_layers=1)
        self.decoder = made("BahdanauDecoder", num_layers=1, memory_size=5)
        self.attention = attention.AdditiveAttention(5, 5, 9)

    def call(self, inputs: tuple[tf.Tensor, ...]) -> tf.Tensor:
        source, lens, target = inputs
        outputs, state = self.encoder(source, lens)
        outputs += self.attention(outputs, outputs, outputs, lens)[0]
        return self.decoder(target, outputs, state, lens)[0]


@pytest.mark.parametrize("name", ["AdditiveAttention", "BahdanauDecoder"])
def test_weights_come_back_through_a_file_of_keras(name: str, tmp_path: Path):
    first, second, inputs = Pair(name), Pair(name), given(name)
    for weight in second.trainable_weights:
        weight.assign(7.0 * tf.ones_like(weight))
    expected = first(inputs)
    second(inputs)
    first.save_weights(tmp_path / "pair.weights.h5")
    second.load_weights(tmp_path / "pair.weights.h5")
    same(second(inputs), expected)


@pytest.mark.parametrize("name", LAYERS)
def test_a_layer_is_made_again_from_its_configuration(name: str):
    layer = made(name, dropout=0.3, dtype="float64", name="mine")
    for again in (
        type(layer).from_config(layer.get_config()),
        keras.saving.deserialize_keras_object(keras.saving.serialize_keras_object(layer)),
    ):
        assert again.get_config() == layer.get_config()
        assert (again.name, again.variable_dtype, again.sizes) == ("mine", "float64", layer.sizes)
        attention.set_parameters(again, attention.get_parameters(layer))
    assert {**LAYERS[name][0], "dropout": 0.3}.items() <= layer.get_config().items()


@pytest.mark.parametrize("name", LAYERS)
def test_a_layer_has_all_its_weights_when_it_is_made_and_build_adds_none(name: str):
    layer, tensors = made(name), given(name)
    weights = [id(weight) for weight in layer.trainable_weights]
    layer.build(None)
    layer(*tensors)
    assert [id(weight) for weight in layer.trainable_weights] == weights
    assert len(weights) == len(layer.specification.shapes(layer.sizes))


def test_one_step_of_fit_is_one_step_of_a_tape():
    inputs, labels = (SOURCE, np.maximum(LENS, 1), TARGET), integers("labels", (3, 4), 11)
    fitted, taped, loss = Translator(), Translator(), keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    attention.set_parameters(taped.attention, attention.get_parameters(fitted.attention))
    fitted(inputs)
    before = [weight.numpy() for weight in fitted.trainable_weights]
    fitted.compile(keras.optimizers.SGD(0.5), loss, jit_compile=False)
    fitted.fit(inputs, labels, batch_size=3, verbose=0)
    with tf.GradientTape() as tape:
        value = loss(labels, taped(inputs))
    taped.compile(keras.optimizers.SGD(0.5))
    taped.optimizer.apply(tape.gradient(value, taped.trainable_variables), taped.trainable_variables)
    same([weight.value for weight in fitted.trainable_weights], [w.value for w in taped.trainable_weights], 1e-5)
    unmoved = [w.path for w, old in zip(fitted.trainable_weights, before, strict=True) if (w.numpy() == old).all()]
    assert not unmoved
    assert loss(labels, taped(inputs)) < value


# ------------------------------------------------------------------------------------------------ training mode


class Outer(keras.layers.Layer):
    """A layer around another one that does not pass `training` on."""

    def __init__(self, inner: keras.layers.Layer) -> None:
        super().__init__()
        self.inner = inner
        self.built = True

    def call(self, *arguments: tf.Tensor) -> tuple[tf.Tensor, ...]:
        return self.inner(*arguments)


@pytest.mark.parametrize("name", LAYERS)
def test_training_drops_and_evaluation_does_not(name: str):
    tensors, layer = given(name), made(name, dropout=0.5)
    expected = made(name)(*tensors)
    same(layer(*tensors, training=False), expected)
    same(layer(*tensors, training=None), expected)
    assert differ(layer(*tensors, training=True), expected)


@pytest.mark.parametrize("name", ["AdditiveAttention", "GRUEncoder", "BahdanauDecoder"])
def test_the_mode_of_the_layer_around_counts(name: str):
    tensors, outer = given(name), Outer(made(name, dropout=0.5))
    expected = made(name)(*tensors)
    same(outer(*tensors), expected)
    assert differ(outer(*tensors, training=True), expected)


@pytest.mark.parametrize("mode", ["eager", "graph"])
def test_dropout_is_drawn_by_the_generator_that_keras_seeds(mode: str):
    def draws() -> list[tuple[tf.Tensor, ...]]:
        keras.utils.set_random_seed(5)
        layer, tensors = made("AdditiveAttention", dropout=0.5), given("AdditiveAttention")

        def call(*tensors: tf.Tensor) -> tuple[tf.Tensor, ...]:
            return layer(*tensors, training=True)

        call = graph(call, tensors) if mode == "graph" else call
        return [call(*tensors), call(*tensors)]

    first, second = draws()
    assert differ(first, second)
    same(draws(), [first, second])


# ------------------------------------------------------------------------------------------------ masks, refusals


@pytest.mark.parametrize("name", ["DotProductAttention", "AdditiveAttention", "BahdanauDecoder"])
def test_a_mask_arrives_unchanged_by_keyword_and_by_position(name: str):
    layer, (*others, mask) = made(name), given(name)
    expected = layer(*others, mask)
    assert differ([layer(*others)[-1]], [expected[-1]])
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        same(layer(*others, mask=mask), expected)
        same(layer(*others, mask=mask.numpy()), expected)


CALLS: dict[str, Callable] = {
    "eager": lambda layer, arrays: layer(*arrays),
    "graph": lambda layer, arrays: tf.function(layer.__call__, autograph=False)(*map(tf.constant, arrays)),
    "model": lambda layer, arrays: layer(*(keras.Input(batch_shape=a.shape, dtype=a.dtype.name) for a in arrays)),
}
REFUSED = {
    "shape": (
        "AdditiveAttention",
        (KEYS, KEYS, VALUES),
        ShapeError,
        "AdditiveAttention: axis 'query_size' is 6 in queries but 5 in the layer. Make the layer with the query_size "
        "of the queries. Shapes: queries=(3, 7, 6), keys=(3, 7, 6), values=(3, 7, 8).",
    ),
    "mask": ("BahdanauDecoder", (TARGET, VALUES, STATE, LENS, SCORES), MaskError, "mask is float32, expected bool."),
    "dtype": ("GRU", (floats("inputs", 3, 4, 6).astype("float64"),), DtypeError, "inputs is float64"),
}


@pytest.mark.parametrize("how", CALLS)
@pytest.mark.parametrize("reason", REFUSED)
def test_a_refusal_keeps_its_class_and_words(reason: str, how: str):
    name, arrays, error, words = REFUSED[reason]
    with pytest.raises(error) as caught:
        CALLS[how](made(name), arrays)
    assert type(caught.value) is error and words in str(caught.value)


def test_autograph_keeps_the_words_of_a_refusal():
    layer = made("AdditiveAttention")
    with pytest.raises(Exception, match="ShapeError: AdditiveAttention: axis 'query_size' is 6 in queries but 5 in"):
        tf.function(lambda: layer(tf.constant(KEYS), tf.constant(KEYS), tf.constant(VALUES)))()


@pytest.mark.parametrize("policy", ["float32", "mixed_float16"])
def test_floats_are_refused_and_not_cast_whatever_the_policy(policy: str):
    keras.config.set_dtype_policy(policy)
    try:
        layer, (queries, *others) = made("AdditiveAttention"), given("AdditiveAttention")
        assert {output.dtype for output in layer(queries, *others)} == {tf.float32}
        for dtype in (tf.float64, tf.float16):
            with pytest.raises(DtypeError, match=f"queries is {dtype.name}"):
                layer(tf.cast(queries, dtype), *others)
    finally:
        keras.config.set_dtype_policy("float32")


@pytest.mark.parametrize("shape", [[None, None], None], ids=["sizes", "rank"])
def test_masks_of_other_conventions_are_traced_without_known_sizes(shape: list[None] | None):
    @tf.function(input_signature=[tf.TensorSpec(shape, tf.bool)])
    def there_and_back(padding: tf.Tensor) -> tf.Tensor:
        mask = attention.from_key_padding_mask(tf.ensure_shape(padding, [None, None]))
        added = attention.to_additive_mask(mask, dtype="bfloat16", finite=True)
        return attention.to_key_padding_mask(attention.from_additive_mask(added))

    padding = np.array([[False, True, False], [True, True, True]])
    assert (there_and_back(tf.constant(padding)).numpy() == padding).all()


def test_rows_that_only_a_running_graph_knows_are_not_dropped():
    @tf.function(input_signature=[tf.TensorSpec([None, None, None], tf.bool)])
    def turned(mask: tf.Tensor) -> tf.Tensor:
        return attention.to_key_padding_mask(mask)

    assert turned(tf.ones([2, 1, 3], tf.bool)).shape == (2, 3)
    with pytest.raises(tf.errors.InvalidArgumentError):
        turned(tf.ones([2, 5, 3], tf.bool))


# ------------------------------------------------------------------------------------------------ imports


def test_another_backend_of_keras_is_refused(tmp_path: Path):
    """A stand-in for Keras says that it runs on JAX, so that no second framework has to be installed."""
    (tmp_path / "keras.py").write_text("class backend:\n    backend = staticmethod(lambda: 'jax')\n")
    path = os.pathsep.join([str(tmp_path), str(Path(attention.__file__).parents[2])])
    done = subprocess.run(
        [sys.executable, "-c", "import backends.tf"],
        env={**os.environ, "PYTHONPATH": path},
        capture_output=True,
        text=True,
    )
    assert "ImportError: backends.tf: Keras runs on jax, expected tensorflow. Set the environment" in done.stderr


@pytest.mark.parametrize(
    "module", [attention_file, additive, decoders, masking, pooling, parameters, recurrent, runtime, scoring]
)
def test_the_tensorflow_of_a_module_is_the_real_one(module: Any):
    assert module.tf is tf and importlib.metadata.version("tensorflow") == tf.__version__


# ------------------------------------------------------------------------------------------------ blocks


@pytest.fixture
def _unforced():
    before = choice.forced
    yield
    choice.set_path(before)


def score_and_gradients(path: str, queries: np.ndarray, keys: np.ndarray, how: str = "eager") -> tuple:
    """The additive score of that path, and the gradients of a random form of it."""
    w_v = uniform("w_v", queries.shape[-1:]).astype(queries.dtype)
    cotangent = uniform("cotangent", (*queries.shape[:-1], keys.shape[-2])).astype(queries.dtype)
    tensors = [tf.constant(array) for array in (queries, keys, w_v)]

    def both(*tensors: tf.Tensor) -> tuple:
        with tf.GradientTape() as tape:
            tape.watch(tensors)
            scores = attention.additive_score(*tensors)
        return scores, tape.gradient(scores, tensors, cotangent)

    choice.set_path(path)
    return (graph(both, tensors) if how == "graph" else both)(*tensors)


@pytest.mark.parametrize("how", ["eager", "graph"])
@pytest.mark.parametrize("lead", [(2,), (2, 3)], ids=["without heads", "with heads"])
def test_blocks_give_the_numbers_of_the_plain_formula(monkeypatch, _unforced, lead: tuple[int, ...], how: str):
    # Four rows, and two in the backward: the last block of nine rows is not full.
    monkeypatch.setattr(additive, "BLOCK", 4 * 7 * 4)
    queries, keys = uniform("queries", (*lead, 9, 4)), uniform("keys", (*lead, 7, 4))
    found, expected = (score_and_gradients(path, queries, keys, how) for path in ("blocked", "plain"))
    same(found, expected, 1e-14)


@pytest.mark.parametrize("large", [353.0, 355.0, 1e300])
def test_blocks_give_the_numbers_of_the_plain_formula_on_both_sides_of_the_bound(_unforced, large: float):
    queries, keys = uniform("queries", (2, 5, 4)), uniform("keys", (2, 7, 4))
    queries[0, 0, 0], queries[0, 1, 1], keys[0, 2, 0], keys[1, 3, 2] = large, -large, -large, large
    found, expected = (score_and_gradients(path, queries, keys) for path in ("blocked", "plain"))
    same(found, expected, 1e-13)


def test_a_nan_in_a_key_reaches_the_same_scores_in_blocks(_unforced):
    queries, keys = floats("queries", 2, 5, 4), floats("keys", 2, 7, 4)
    keys[1, 3, 2] = np.nan
    (found, _), (expected, _) = (score_and_gradients(path, queries, keys) for path in ("blocked", "plain"))
    np.testing.assert_array_equal(np.isnan(found), np.isnan(expected))
    assert np.isnan(expected).sum() == 5
    same(found, expected, 1e-6)


@pytest.mark.parametrize("batch, queries, keys, hidden", [(0, 5, 7, 4), (2, 0, 7, 4), (2, 5, 0, 4), (2, 5, 7, 0)])
def test_blocks_take_empty_axes(_unforced, batch: int, queries: int, keys: int, hidden: int):
    arrays = floats("queries", batch, queries, hidden), floats("keys", batch, keys, hidden)
    found, expected = (score_and_gradients(path, *arrays) for path in ("blocked", "plain"))
    same(found, expected)


def test_second_derivatives_of_blocks_are_refused(_unforced):
    choice.set_path("blocked")
    queries, keys, w_v = tf.constant(QUERIES), tf.constant(LIKE), tf.ones(5)
    with tf.GradientTape() as outer:
        outer.watch(queries)
        with tf.GradientTape() as inner:
            inner.watch(queries)
            scores = attention.additive_score(queries, keys, w_v)
        gradient = inner.gradient(scores, queries)
    with pytest.raises(AttentionError, match="no second derivatives"):
        outer.gradient(gradient, queries)


def test_the_size_chooses_the_path_unless_one_is_forced(_unforced):
    queries, keys = tf.constant(QUERIES), tf.constant(LIKE)
    choice.set_path(None)
    assert choice.use_blocks(queries, keys, 3 * 4 * 7 * 5)
    assert not choice.use_blocks(queries, keys, 3 * 4 * 7 * 5 + 1)
    choice.set_path("blocked")
    assert choice.use_blocks(queries, keys, 3 * 4 * 7 * 5 + 1)
    choice.set_path("plain")
    assert not choice.use_blocks(queries, keys, 1)


def test_a_size_that_is_unknown_counts_as_small(_unforced):
    taken = []
    choice.set_path(None)
    call = graph(lambda *pair: taken.append(choice.use_blocks(*pair, 1)), [tf.constant(QUERIES), tf.constant(LIKE)])
    call(QUERIES, LIKE)
    assert taken == [False]


def test_an_unknown_path_is_refused(_unforced):
    with pytest.raises(OptionError, match="path is 'fast', expected 'blocked' or 'plain', or None"):
        choice.set_path("fast")


def by_blocks(
    queries: np.ndarray, keys: np.ndarray, w_v: np.ndarray, cotangent: np.ndarray, path: str = "blocked"
) -> list[np.ndarray]:
    """Additive scores by that path, and the gradients of queries, keys and w_v."""
    choice.set_path(path)
    tensors = [tf.constant(array) for array in (queries, keys, w_v)]
    with tf.GradientTape() as tape:
        tape.watch(tensors)
        scores = attention.additive_score(*tensors)
    return [array.numpy() for array in (scores, *tape.gradient(scores, tensors, cotangent))]


def derived(arrays: list[np.ndarray], cotangent: np.ndarray) -> list[np.ndarray]:
    """Scores and gradients in float64, by the reference and by hand."""
    queries, keys, w_v, g = (array.astype(np.float64) for array in (*arrays, cotangent))
    tanh = np.tanh(queries[:, :, None] + keys[:, None])
    terms = g[..., None] * w_v * (1 - tanh) * (1 + tanh)
    of_w_v = (g[..., None] * tanh).sum(axis=(0, 1, 2))
    return [reference.additive_score(queries, keys, w_v), terms.sum(axis=2), terms.sum(axis=1), of_w_v]


def spans(name: str, *shape: int, least: float) -> np.ndarray:
    """Positive numbers of all magnitudes from that one up to 1."""
    return least ** (0.5 - 0.5 * uniform(name, shape))


def features(magnitudes: list[float], w_v: np.ndarray) -> list[np.ndarray]:
    """Queries and keys of a magnitude for each feature, and w_v."""
    return [uniform("queries", (2, 5, 4)) * magnitudes, uniform("keys", (2, 7, 4)) * magnitudes, w_v]


def pairs(centre: float, spread: float) -> list[np.ndarray]:
    """Queries and keys that cancel but for the spread, and w_v."""
    queries, keys, w_v = features([spread] * 4, uniform("w_v", (4,)))
    return [queries + centre, keys - centre, w_v]


MAGNITUDES = [1e-30, 1e-6, 1e-4, 1e-3, 0.1, 1.0, 3.0, 10.0, 100.0, 1e30]
ADDENDS: dict[str, list[np.ndarray]] = {
    **{f"{size:g}": features([size] * 4, uniform("w_v", (4,))) for size in MAGNITUDES},
    **{f"cancelling {centre:g}": pairs(centre, 1e-4 * centre) for centre in (1e-3, 0.5, 5.0, 15.0)},
    "cancelling by one": [np.full((2, 5, 4), 3.0), np.full((2, 7, 4), -3.0 * (1 + 2**-20)), uniform("w_v", (4,))],
    "one tiny": features([1e-6, 3.0, 3.0, 3.0], uniform("w_v", (4,))),
    "one tiny of large weight": features([1e-6, 3.0, 3.0, 3.0], np.array([1e6, 1e-3, 1e-3, 1e-3])),
    "tiny keys": [uniform("queries", (2, 5, 4), 3.0), uniform("keys", (2, 7, 4), 1e-6), uniform("w_v", (4,))],
    "tiny queries": [uniform("queries", (2, 5, 4), 1e-6), uniform("keys", (2, 7, 4), 3.0), uniform("w_v", (4,))],
    "large weights": features([1e-3] * 4, uniform("w_v", (4,), 1e30)),
}


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("name", ADDENDS)
def test_blocks_are_accurate_at_every_magnitude(_unforced, name: str, dtype: type):
    arrays, cotangent = [array.astype(dtype) for array in ADDENDS[name]], uniform("cotangent", (2, 5, 7)).astype(dtype)
    expected = derived(arrays, cotangent)
    # Where tanh is near 1, the slope 1 - tanh² keeps an error of eps: so do the terms of the gradients.
    term = float(np.abs(arrays[2]).max())
    scales = [np.abs(expected[0]).max(), term, term, np.abs(expected[3]).max()]
    for own, other, scale in zip(by_blocks(*arrays, cotangent), expected, scales, strict=True):
        np.testing.assert_allclose(own, other, rtol=0, atol=15 * np.finfo(dtype).eps * scale)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("sign", [1.0, -1.0])
def test_scores_of_one_sign_are_accurate_one_by_one(_unforced, sign: float, dtype: type):
    queries, keys = spans("queries", 2, 5, 4, least=1e-6), spans("keys", 2, 7, 4, least=1e-6)
    queries[0, 0], keys[1, 3] = 1e-6, 1e-6  # so that some scores are small
    arrays = [array.astype(dtype) for array in (sign * queries, sign * keys, spans("w_v", 4, least=1e-6))]
    found = by_blocks(*arrays, np.ones((2, 5, 7), dtype))
    expected = derived(arrays, np.ones((2, 5, 7)))
    for own, other in zip(found, expected, strict=True):
        np.testing.assert_allclose(own, other, rtol=50 * np.finfo(dtype).eps, atol=0)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_scores_of_zeros_are_exactly_zero_in_blocks(_unforced, dtype: type):
    arrays = [np.zeros((2, 5, 4), dtype), np.zeros((2, 7, 4), dtype), uniform("w_v", (4,)).astype(dtype)]
    scores, *_, of_w_v = by_blocks(*arrays, uniform("cotangent", (2, 5, 7)).astype(dtype))
    assert not np.any(scores) and not np.any(of_w_v)


@pytest.mark.parametrize("number", [np.inf, -np.inf, np.nan], ids=str)
@pytest.mark.parametrize("size", [1e-9, 1.0, 30.0])
def test_a_weight_that_is_not_finite_gives_the_same_scores_in_blocks(
    monkeypatch, _unforced, size: float, number: float
):
    monkeypatch.setattr(additive, "BLOCK", 4 * 7 * 4)
    arrays = features([size] * 4, uniform("w_v", (4,)))
    arrays[0], arrays[1] = np.abs(arrays[0][:, :3]), np.abs(arrays[1])
    arrays[0][1], arrays[1][1] = -arrays[0][1], -arrays[1][1]  # one infinity of either sign
    arrays[2][1] = number
    cotangent = np.abs(uniform("cotangent", (2, 3, 7)))
    for own, other in zip(by_blocks(*arrays, cotangent), by_blocks(*arrays, cotangent, path="plain"), strict=True):
        np.testing.assert_allclose(own, other, rtol=1e-13, atol=1e-13)


# ------------------------------------------------------------------------------------------------ the context alone


def context_and_gradients(
    path: str,
    queries: np.ndarray,
    keys: np.ndarray,
    values: np.ndarray,
    mask: np.ndarray | None = None,
    how: str = "eager",
) -> tuple:
    """The context alone of inner products, by that path, and the gradients of a random form of it."""
    cotangent = uniform("cotangent", (*queries.shape[:-1], values.shape[-1])).astype(queries.dtype)
    tensors, layer = [tf.constant(array) for array in (queries, keys, values)], attention.DotProductAttention()

    def both(*tensors: tf.Tensor) -> tuple:
        with tf.GradientTape() as tape:
            tape.watch(tensors)
            context, weights = layer(*tensors, mask=mask, need_weights=False)
        assert weights is None
        return context, tape.gradient(context, tensors, cotangent)

    choice.set_path(path)
    return (graph(both, tensors) if how == "graph" else both)(*tensors)


@pytest.mark.parametrize("path", ["blocked", "plain"])
@pytest.mark.parametrize("name", sorted(attention_file.LAYERS))
def test_who_needs_no_weights_gets_none(_unforced, name: str, path: str):
    options = {
        "AdditiveAttention": (4, 4, 3),
        "ConcatAttention": (4, 4, 3),
        "GeneralAttention": (4, 4),
        "LocalAttention": (4, 4, 2),
        "LocationAttention": (4, 9),
    }
    layer = attention_file.LAYERS[name](*options.get(name, ()))
    arrays = [tf.constant(floats(part, 2, 7, 4)) for part in ("queries", "keys", "values")]
    choice.set_path(path)
    context, weights = layer(*arrays, tf.constant([3, 0]), need_weights=False)
    assert weights is None
    same(context, layer(*arrays, tf.constant([3, 0]))[0], 1e-6)


@pytest.mark.parametrize("how", ["eager", "graph"])
@pytest.mark.parametrize("axes", [None, (2, 1, 1, 7), (1, 3, 9, 7), (2, 3, 9, 1)], ids=str)
def test_a_context_in_blocks_is_that_of_the_plain_formula(monkeypatch, _unforced, axes: tuple | None, how: str):
    monkeypatch.setattr(blocks, "DOT_BLOCK", 2 * 7)  # two rows: the last block of nine rows is not full
    queries, keys, values = uniform("queries", (2, 3, 9, 4)), uniform("keys", (2, 3, 7, 4)), uniform("v", (2, 3, 7, 5))
    mask = None if axes is None else uniform("mask", axes) > -0.3
    found, expected = (context_and_gradients(path, queries, keys, values, mask, how) for path in ("blocked", "plain"))
    same(found, expected, 1e-14)


@pytest.mark.parametrize(
    "key, value", [(-np.inf, np.nan), (-np.inf, 1.0), (1e200, np.inf), (np.nan, 1.0), (1.0, np.nan)]
)
@pytest.mark.parametrize("closed", [False, True])
def test_what_is_not_finite_reaches_the_same_numbers_in_blocks(_unforced, closed: bool, key: float, value: float):
    queries, keys, values = abs(uniform("queries", (2, 5, 4))), uniform("keys", (2, 7, 4)), uniform("values", (2, 7, 4))
    keys[1, 3], values[1, 3] = key, value
    mask = np.ones((2, 5, 7), bool)
    mask[1, : 3 if not closed else 5, 3] = False
    found, expected = (context_and_gradients(path, queries, keys, values, mask) for path in ("blocked", "plain"))
    same(found, expected, 1e-14)


@pytest.mark.parametrize("batch, queries, keys, features", [(0, 5, 7, 4), (2, 0, 7, 4), (2, 5, 0, 4), (2, 5, 7, 0)])
@pytest.mark.parametrize("how", ["eager", "graph"])
def test_a_context_in_blocks_takes_empty_axes(_unforced, batch: int, queries: int, keys: int, features: int, how: str):
    arrays = floats("q", batch, queries, features), floats("k", batch, keys, features), floats("v", batch, keys, 3)
    found, expected = (context_and_gradients(path, *arrays, how=how) for path in ("blocked", "plain"))
    same(found, expected, 1e-6)


def test_second_derivatives_of_a_context_in_blocks_are_refused(_unforced):
    choice.set_path("blocked")
    queries, keys, layer = tf.constant(QUERIES), tf.constant(LIKE), attention.DotProductAttention()
    with tf.GradientTape() as outer:
        outer.watch(keys)
        with tf.GradientTape() as inner:
            inner.watch(queries)
            context, _ = layer(queries, keys, keys, need_weights=False)
        gradient = inner.gradient(context, queries)
    with pytest.raises(AttentionError, match="no second derivatives"):
        outer.gradient(gradient, keys)


def test_dropout_is_not_lost_with_the_weights(_unforced):
    choice.set_path("blocked")
    layer, ones = attention.DotProductAttention(dropout=0.5), tf.ones((2, 3, 4))
    context, _ = layer(ones, ones, ones, need_weights=False, dropout_mask=tf.zeros((2, 3, 3)))
    same(context, tf.zeros((2, 3, 4)))
    assert not np.allclose(layer(ones, ones, ones, need_weights=False, training=True)[0], 1.0)


def test_the_size_of_a_head_chooses_the_path_of_a_context(monkeypatch, _unforced):
    choice.set_path(None)
    layer, queries, keys = attention.DotProductAttention(), tf.zeros((2, 3, 4, 5)), tf.zeros((2, 3, 7, 5))
    memory = layer.prepare(keys, keys)
    monkeypatch.setattr(attention_file, "DOT_MIN_ELEMENTS", 4 * 7 * 5)
    assert layer._in_blocks(queries, memory, False) is not None
    monkeypatch.setattr(attention_file, "DOT_MIN_ELEMENTS", 4 * 7 * 5 + 1)
    assert layer._in_blocks(queries, memory, False) is None


def additive_context_and_gradients(
    path: str, *arrays: np.ndarray, mask: np.ndarray | None = None, how: str = "eager"
) -> tuple:
    """The context alone of additive scores of queries, keys, values and w_v, by that path, and its gradients."""
    cotangent = uniform("cotangent", (*arrays[0].shape[:-1], arrays[2].shape[-1])).astype(arrays[0].dtype)
    tensors = [tf.constant(array) for array in arrays]

    def both(queries: tf.Tensor, keys: tf.Tensor, values: tf.Tensor, w_v: tf.Tensor) -> tuple:
        with tf.GradientTape() as tape:
            tape.watch((queries, keys, values, w_v))
            if path == "blocked":
                context = additive.blocked_additive_attention(queries, keys, values, mask, w_v)
            else:
                context = pooling.attention_pooling(scoring.additive_score(queries, keys, w_v), values, mask=mask)[0]
        return context, tape.gradient(context, (queries, keys, values, w_v), cotangent)

    choice.set_path(path)
    return (graph(both, tensors) if how == "graph" else both)(*tensors)


@pytest.mark.parametrize("how", ["eager", "graph"])
@pytest.mark.parametrize("axes", [None, (2, 1, 1, 7), (1, 3, 9, 7), (2, 3, 9, 1)], ids=str)
def test_an_additive_context_in_blocks_is_that_of_the_plain_formula(
    monkeypatch, _unforced, axes: tuple | None, how: str
):
    monkeypatch.setattr(blocks, "DOT_BLOCK", 4 * 7)  # four rows: the last block of nine rows is not full
    monkeypatch.setattr(additive, "BLOCK", 2 * 7 * 4)
    arrays = uniform("queries", (2, 3, 9, 4)), uniform("keys", (2, 3, 7, 4)), uniform("v", (2, 3, 7, 5))
    mask = None if axes is None else uniform("mask", axes) > -0.3
    if mask is not None:
        mask[0, :, 0] = False
    w_v = uniform("w_v", (4,), 1000.0)  # a score of a row that only fills a block has no exponential
    found, expected = (
        additive_context_and_gradients(path, *arrays, w_v, mask=mask, how=how) for path in ("blocked", "plain")
    )
    same(found, expected, 1e-11)


@pytest.mark.parametrize("part, number", [(0, np.nan), (0, np.inf), (1, 400.0), (2, np.nan), (2, 1e300), (3, np.inf)])
@pytest.mark.parametrize("closed", [False, True])
def test_what_is_not_finite_reaches_the_same_additive_context(_unforced, closed: bool, part: int, number: float):
    shapes = {"queries": (2, 5, 4), "keys": (2, 7, 4), "values": (2, 7, 3), "w_v": (4,)}
    arrays = [uniform(name, shape) for name, shape in shapes.items()]
    arrays[part].flat[-1] = number
    mask = np.ones((2, 5, 7), bool)
    mask[1, : 5 if closed else 3, 6] = False
    found, expected = (additive_context_and_gradients(path, *arrays, mask=mask) for path in ("blocked", "plain"))
    same(found, expected, 1e-13)


@pytest.mark.parametrize("batch, queries, keys, hidden", [(0, 5, 7, 4), (2, 0, 7, 4), (2, 5, 0, 4), (2, 5, 7, 0)])
@pytest.mark.parametrize("how", ["eager", "graph"])
def test_an_additive_context_in_blocks_takes_empty_axes(
    _unforced, batch: int, queries: int, keys: int, hidden: int, how: str
):
    arrays = floats("q", batch, queries, hidden), floats("k", batch, keys, hidden), floats("v", batch, keys, 3)
    found, expected = (
        additive_context_and_gradients(path, *arrays, floats("w_v", hidden), how=how) for path in ("blocked", "plain")
    )
    same(found, expected, 1e-6)


def test_second_derivatives_of_an_additive_context_in_blocks_are_refused(_unforced):
    choice.set_path("blocked")
    queries, keys, w_v = tf.constant(QUERIES), tf.constant(LIKE), tf.ones(5)
    with tf.GradientTape() as outer:
        outer.watch(keys)
        with tf.GradientTape() as inner:
            inner.watch(queries)
            context = additive.blocked_additive_attention(queries, keys, keys, None, w_v)
        gradient = inner.gradient(context, queries)
    with pytest.raises(AttentionError, match="no second derivatives"):
        outer.gradient(gradient, keys)


@pytest.mark.parametrize("name", ["AdditiveAttention", "ConcatAttention", "MultiHeadAttention"])
def test_an_additive_context_alone_keeps_no_weights(_unforced, name: str):
    choice.set_path("blocked")
    layer = made(name, **({"score": "additive"} if name == "MultiHeadAttention" else {}))
    queries, keys, values = floats("queries", 2, 11, 5), floats("keys", 2, 13, 6), floats("values", 2, 13, 8)

    def kept(need_weights: bool) -> bool:
        @tf.function(autograph=False)
        def gradients(*arrays: tf.Tensor) -> list[tf.Tensor]:
            with tf.GradientTape() as tape:
                tape.watch(arrays)
                context = layer(*arrays, need_weights=need_weights)[0]
            return tape.gradient(context, arrays)

        graph = gradients.get_concrete_function(*map(tf.constant, (queries, keys, values))).graph
        return any(out.shape.rank and out.shape[-2:] == (11, 13) for op in graph.get_operations() for out in op.outputs)

    assert kept(True) and not kept(False)


# ------------------------------------------------------------------------------------------------ a decoder's steps

DECODING: dict[str, dict[str, np.ndarray]] = {
    "plain": {},
    "dropout": {
        "dropout_mask": 2.0 * (uniform("d", (1, 3, 4, 5)) > 0),
        "attention_dropout_mask": 2.0 * (uniform("a", (3, 4, 7)) > 0),
    },
    "closed": {"mask": np.array([True, False, True])[:, None, None]},
}


def decoded(decoder: keras.layers.Layer, path: str | None, masks: dict[str, np.ndarray], how: str = "eager") -> list:
    """The outputs on a path, and the gradients of inputs, dropout masks and parameters."""
    tokens, lens = tf.constant(TARGET), tf.constant(LENS)
    learned = {"encoder_outputs": VALUES, "state": STATE[: decoder.sizes["num_layers"]]}
    learned |= {name: own for name, own in masks.items() if own.dtype != bool}
    others = {name: tf.constant(own) for name, own in masks.items() if name not in learned}
    given = {name: tf.constant(own.astype(decoder.variable_dtype)) for name, own in learned.items()}

    def both(tensors: dict[str, tf.Tensor]) -> list[tf.Tensor]:
        with tf.GradientTape() as tape:
            tape.watch(tensors)
            outputs = decoder(tokens, **tensors, valid_lens=lens, **others)
            cotangents = [uniform("c", tuple(own.shape)).astype(own.dtype.name) for own in outputs]
            loss = tf.add_n([tf.reduce_sum(own * c) for own, c in zip(outputs, cotangents, strict=True)])
        sources = [*tensors.values(), *(parameter.value for parameter in decoder.trainable_variables)]
        return [*outputs, *map(tf.convert_to_tensor, tape.gradient(loss, sources))]

    choice.set_path(path)
    return (tf.function(both, autograph=False) if how == "graph" else both)(given)


@pytest.mark.parametrize("masks", DECODING.values(), ids=DECODING)
@pytest.mark.parametrize("readout, scale", [("dense", 1.0), ("dense", 1e3), ("maxout", 1.0)])
def test_steps_as_one_function_have_the_numbers_of_the_loop(_unforced, readout: str, scale: float, masks: dict):
    decoder = made("BahdanauDecoder", readout=readout, dtype="float64")
    for own in (decoder.attention.W_q.kernel, decoder.attention.W_k.kernel):
        own.assign(scale * own)  # then keys are beyond their bound, and e^(-2k) does not hold
    same(*(decoded(decoder, path, masks) for path in ("blocked", "plain")), 1e-14 * scale)


@pytest.mark.parametrize("layers", [1, 2])
def test_steps_in_a_graph_are_one_function_from_a_size_on(monkeypatch, _unforced, layers: int):
    decoder, called, steps = made("BahdanauDecoder", num_layers=layers), [], decoders.blocked_steps
    monkeypatch.setattr(decoders, "blocked_steps", lambda *given: called.append(1) or steps(*given))
    monkeypatch.setattr(decoder_steps, "STEPS_MIN_ELEMENTS", 3 * 4 * 7 * 9)
    found = decoded(decoder, None, {}, "graph")
    assert called == [1]
    monkeypatch.setattr(decoder_steps, "STEPS_MIN_ELEMENTS", 3 * 4 * 7 * 9 + 1)
    same(found, decoded(decoder, None, {}, "graph"), 1e-5)
    monkeypatch.setattr(decoder_steps, "STEPS_MIN_ELEMENTS", 1)
    decoded(decoder, None, {})
    assert called == [1]


def test_steps_as_one_function_see_a_nan_where_the_loop_does(_unforced):
    decoder, values = made("BahdanauDecoder"), VALUES.copy()
    values[:, 6], values[2, 1] = np.nan, np.nan  # hidden from the first two sequences; open to the last
    for path in ("blocked", "plain"):
        choice.set_path(path)
        logits, *_ = decoder(TARGET, values, STATE, LENS)
        np.testing.assert_array_equal(np.isnan(logits).any(axis=(1, 2)), [False, False, True])


def test_steps_that_differ_in_their_mask_or_size_are_taken_one_by_one(_unforced):
    choice.set_path("blocked")
    decoder, (tokens, values, state, _, mask) = made("BahdanauDecoder"), given("BahdanauDecoder")
    assert decoder_steps.takes_steps(tokens, state, *decoder.prepare(values, mask=mask[:, :1]))
    assert not decoder_steps.takes_steps(tokens, state, *decoder.prepare(values, mask=mask))
    assert not decoder_steps.takes_steps(tokens[:, :0], state, *decoder.prepare(values))
    taken = []
    graph(lambda *own: taken.append(decoder_steps.takes_steps(*own, None)), [tokens, state, values, values])(
        tokens, state, values, values
    )
    assert taken == [False]


def test_a_second_derivative_through_steps_is_refused(_unforced):
    choice.set_path("blocked")
    decoder, (tokens, values, state) = made("BahdanauDecoder"), given("BahdanauDecoder")[:3]
    with tf.GradientTape() as outer:
        outer.watch(values)
        with tf.GradientTape() as inner:
            inner.watch(values)
            logits, *_ = decoder(tokens, values, state)
        gradient = inner.gradient(logits, values)
    with pytest.raises(AttentionError, match="no second derivative is known where its steps are one function"):
        outer.gradient(gradient, values)
