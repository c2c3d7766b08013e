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

from attention_core.draws import integers, uniform
from attention_core.errors import DtypeError, MaskError, ShapeError
from backends import tf as attention
from backends.tf import attention as attention_file
from backends.tf import decoders, masking, parameters, pooling, recurrent, runtime, scoring
from backends.tf.blocked import additive
from parity_tests.tests.backends.blocks import in_graph


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
    "LowRankAttention": ({"num_positions": 8, "rank": 2}, (QUERIES, LIKE, VALUES, LENS, MASK[:, :1])),
    "CompressedAttention": (
        {"query_size": 5, "key_size": 6, "stride": 2, "value_size": VALUES.shape[-1]},
        (QUERIES, KEYS, VALUES, LENS, MASK[:, :1]),
    ),
    "InducedAttention": (
        {"query_size": 5, "num_heads": 5, "num_inducing": 2, "key_size": 6, "value_size": VALUES.shape[-1]},
        (QUERIES, KEYS, VALUES, LENS, MASK[:, :1]),
    ),
    "SegmentAttention": (
        {"query_size": 6, "num_heads": 3},
        (floats("inputs", 3, 4, 6), floats("previous", 3, 3, 6), MASK),
    ),
    "VisionTransformer": (
        {
            "height": 4,
            "width": 6,
            "channels": 2,
            "patch_size": 2,
            "num_classes": 3,
            "features": 8,
            "num_heads": 2,
            "hidden_size": 5,
            "num_layers": 2,
        },
        (floats("images", 3, 4, 6, 2),),
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
    same(in_graph(function, tensors)(*tensors), function(*tensors), 1e-6)


def test_the_number_of_keys_may_be_a_tensor_of_the_graph():
    lens, mask = given("attention_mask")
    found = in_graph(lambda lens, mask: attention.attention_mask(tf.shape(mask)[2], lens, mask), [lens, mask])(
        lens, mask
    )
    same(found, attention.attention_mask(7, lens, mask))


@pytest.mark.parametrize("name", [name for name in LAYERS if name != "GRUEncoder"])
def test_a_layer_and_its_gradients_in_a_graph_of_unknown_sizes_are_as_in_eager_mode(name: str):
    function, tensors = with_gradients(made(name)), given(name)
    same(in_graph(function, tensors)(*tensors), function(*tensors), 1e-5)


def test_encoder_and_decoder_in_one_graph_are_as_in_eager_mode():
    encoder, decoder = made("GRUEncoder", num_layers=1), made("BahdanauDecoder", num_layers=1, memory_size=5)
    tensors = [tf.constant(array) for array in (SOURCE, LENS, TARGET)]

    def translate(source: tf.Tensor, lens: tf.Tensor, target: tf.Tensor) -> tuple[tf.Tensor, ...]:
        return decoder(target, *encoder(source, lens), lens)

    same(in_graph(translate, tensors)(*tensors), translate(*tensors), 1e-5)


def test_greedy_in_a_graph_is_as_in_eager_mode():
    decoder, tensors = made("BahdanauDecoder"), [tf.constant(array) for array in (VALUES, STATE, LENS)]

    def greedy(*tensors: tf.Tensor) -> tuple[tf.Tensor, ...]:
        return decoder.greedy(*tensors, bos=1, eos=3, max_steps=9)

    tokens, lengths, weights = in_graph(greedy, tensors)(*tensors)
    same((tokens, lengths, weights), greedy(*tensors), 1e-6)
    assert 0 <= min(lengths) < max(lengths) < 9


def test_a_graph_may_meet_no_steps():
    layer, (tokens, *tensors) = made("BahdanauDecoder"), given("BahdanauDecoder")[:3]
    logits, state, weights = in_graph(layer.__call__, [tokens, *tensors])(tokens[:, :0], *tensors)
    assert (logits.shape, weights.shape) == ((3, 0, 11), (3, 0, 7))
    same(state, tensors[1])


@pytest.mark.parametrize("name", ["AdditiveAttention", "BahdanauDecoder"])
def test_weights_are_returned_and_no_tensor_of_a_graph_stays_in_a_layer(name: str):
    layer, tensors = made(name), given(name)
    weights = in_graph(layer.__call__, tensors)(*tensors)[-1]
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


def test_a_shared_embedding_is_the_only_one_among_the_weights():
    made = attention.TransformerTranslator(11, 11, 4, 2, 6, shared=True)
    assert [weight.path for weight in made.weights if "embedding" in weight.path] == [
        f"{made.name}/decoder/embedding/embeddings"
    ]
    assert made.encoder.embedding is made.decoder.embedding


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

        call = in_graph(call, tensors) if mode == "graph" else call
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


@pytest.mark.parametrize("shape", [[None, None], None], ids=["sizes", "rank"])
def test_masks_of_other_conventions_are_traced_without_known_sizes(shape: list[None] | None):
    @tf.function(input_signature=[tf.TensorSpec(shape, tf.bool)])
    def there_and_back(padding: tf.Tensor) -> tf.Tensor:
        mask = attention.from_key_padding_mask(tf.ensure_shape(padding, [None, None]))
        added = attention.to_additive_mask(mask, dtype="bfloat16", finite=True)
        return attention.to_key_padding_mask(attention.from_additive_mask(added))

    padding = np.array([[False, True, False], [True, True, True]])
    assert (there_and_back(tf.constant(padding)).numpy() == padding).all()


@pytest.mark.parametrize("each", [False, True], ids=["all", "each"])
def test_one_graph_extends_a_memory_at_every_position_and_of_every_size(each: bool):
    floating, layer = tf.TensorSpec([None, None, 6]), attention.DotProductAttention()
    mask, position = tf.TensorSpec([None, 1, None], tf.bool), tf.TensorSpec([None] if each else [], tf.int32)

    @tf.function(input_signature=[floating] * 5 + [mask, position], autograph=False)
    def step(queries: tf.Tensor, keys: tf.Tensor, values: tf.Tensor, *new: tf.Tensor) -> tuple[tf.Tensor, ...]:
        more_keys, more_values, mask, position = new
        memory = attention.Memory(keys, values, mask)
        memory = layer.extend(memory, more_keys, more_values, position=position)
        return layer.attend(queries, memory)[0], *memory

    keys = tf.constant(KEYS[:, :5])
    expected, _ = layer(keys, keys, keys, mask=attention.causal_mask(5, 5))
    memory = layer.prepare(tf.zeros_like(keys), tf.zeros_like(keys), [0, 0, 0])
    for place in range(5):
        new, position = keys[:, place : place + 1], tf.constant([place] * 3 if each else place)
        context, *memory = step(new, memory[0], memory[1], new, new, memory[2], position)
        np.testing.assert_allclose(context[:, 0], expected[:, place], rtol=1e-5)


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


def test_a_projection_of_patches_is_a_strided_convolution():
    images, W = (tf.constant(uniform(name, shape)) for name, shape in (("images", (2, 4, 6, 3)), ("W_p", (5, 12))))
    convolved = tf.nn.conv2d(images, tf.reshape(tf.transpose(W), (2, 2, 3, 5)), strides=2, padding="VALID")
    projected = tf.matmul(attention.patches(images, patch_size=2), W, transpose_b=True)
    np.testing.assert_allclose(projected, tf.reshape(convolved, (2, 6, 5)), rtol=1e-13, atol=1e-14)
    window = [1, 2, 2, 1]
    extracted = tf.image.extract_patches(images, window, window, [1, 1, 1, 1], "VALID")
    np.testing.assert_array_equal(attention.patches(images, patch_size=2), tf.reshape(extracted, (2, 6, 12)))
