"""Masks that Keras attaches to tensors: what reads them, where they travel on, and what Keras' own layers do."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf

from attention_core.draws import integers, uniform
from attention_core.operators.translation import TRANSLATORS
from backends import tf as attention
from parity_tests.tests.backends.keras_layers import LAYERS, example

SOURCE = np.array([[3, 5, 2, 0, 0, 0, 0], [1, 0, 4, 0, 2, 7, 0], [0, 0, 6, 1, 2, 3, 9]])
"""Three sentences: padded at the end, with gaps, and padded at the beginning."""
TARGET = np.array([[3, 5, 0, 0], [1, 4, 4, 2], [2, 0, 1, 0]])
OPEN, OPEN_STEPS = SOURCE != 0, TARGET != 0


@pytest.fixture(autouse=True)
def _no_warnings() -> Iterator[None]:
    keras.utils.set_random_seed(1)
    with warnings.catch_warnings():
        warnings.filterwarnings("error", message=".*mask.*")
        yield


def embedded(tokens: np.ndarray, features: int) -> tf.Tensor:
    """Vectors of tokens, which Keras masks where the token is 0."""
    return keras.layers.Embedding(11, features, mask_zero=True)(tf.constant(tokens))


def masked(array: tf.Tensor, mask: np.ndarray) -> tf.Tensor:
    """The array with a mask as Keras attaches it."""
    array._keras_mask = tf.constant(mask)
    return array


def mask_of(array: tf.Tensor) -> np.ndarray | None:
    return getattr(array, "_keras_mask", None)


def same(actual: Any, expected: Any, tolerance: float = 0.0):
    for one, other in zip(tf.nest.flatten(actual), tf.nest.flatten(expected), strict=True):
        np.testing.assert_allclose(one, other, rtol=tolerance, atol=tolerance)


SELF_ATTENTION = "SegmentAttention"
ATTENTION = [kind for kind in LAYERS if kind.endswith(("Attention", "Decoder")) or kind == "NadarayaWatson"]
ATTENTION.remove(SELF_ATTENTION)


@pytest.mark.parametrize("kind", ATTENTION)
def test_the_masks_of_keys_and_values_and_explicit_masks_combine_by_and(kind: str):
    layer, inputs = example(kind)
    inputs.pop("valid_lens", None)
    decoding = kind.endswith("Decoder")
    names = ["encoder_outputs"] if decoding else ["keys", "values"]
    batch, keys = inputs[names[0]].shape[:2]
    lens, given = np.arange(keys - 1, keys - 1 - batch, -1), integers("mask", (batch, 1, keys), 4) > 0
    hiding = [integers(f"attached {name}", (batch, keys), 4) > 0 for name in names]
    every = given & np.all(hiding, axis=0)[:, None] & (np.arange(keys) < lens[:, None])[:, None]
    assert every.any(axis=-1).all() and not every.all(axis=-1).any()
    expected = layer(**inputs, mask=tf.constant(every))
    for name, mask in zip(names, hiding, strict=True):
        masked(inputs[name], mask)
    same(layer(**inputs, valid_lens=tf.constant(lens), mask=tf.constant(given)), expected)
    if hasattr(layer, "prepare"):
        memory = layer.prepare(*(inputs[name] for name in names), tf.constant(lens), tf.constant(given))
        same(tf.reshape(memory.mask, every.shape), every)


@pytest.mark.parametrize("names", [("inputs",), ("previous",), ("inputs", "previous")])
def test_the_masks_of_a_segment_and_of_those_before_and_an_explicit_mask_combine_by_and(names: tuple[str, ...]):
    layer, inputs = example(SELF_ATTENTION)
    attached = {name: integers(f"attached {name}", inputs[name].shape[:2], 4) > 0 for name in names}
    steps = [attached.get(name, np.ones(inputs[name].shape[:2], bool)) for name in ("previous", "inputs")]
    given = integers("mask", (2, 5, 9), 4) > 0
    every = given & np.concatenate(steps, axis=1)[:, None]
    expected, alone = (
        layer(**inputs, mask=tf.constant(every)),
        layer(inputs["inputs"], None, tf.constant(every[..., 4:])),
    )
    for name, mask in attached.items():
        masked(inputs[name], mask)
    same(layer(**inputs, mask=tf.constant(given)), expected)
    same(layer(inputs["inputs"], mask=tf.constant(given[..., 4:])), alone)


@pytest.mark.parametrize("cell", ["GRU", "LSTM"])
@pytest.mark.parametrize("bidirectional", [False, True])
def test_recurrent_layers_skip_masked_steps_at_any_position(cell: str, bidirectional: bool):
    layer, _ = example(cell, num_layers=2, bidirectional=False)
    if bidirectional:
        layer = getattr(attention, cell)(8, 5, 2, bidirectional=True)
    inputs = uniform("inputs", (3, 7, 8)).astype(np.float32)
    dropped = np.round(uniform("dropped", (1, 3, 7, layer.sizes["output_size"]), 1.0)).astype(np.float32) + 1.0
    outputs, state = layer(masked(tf.constant(inputs), OPEN), tf.constant([7, 6, 7]), dropout_mask=tf.constant(dropped))
    same(mask_of(outputs), OPEN)
    for row, kept in enumerate(OPEN):
        alone, after = layer(
            tf.constant(inputs[row, kept][None]), dropout_mask=tf.constant(dropped[:, row, kept][:, None])
        )
        same(outputs[row].numpy()[kept], alone[0], 1e-6)
        same(outputs[row].numpy()[~kept], 0.0 * outputs[row].numpy()[~kept])
        same(state[:, row], after[:, 0], 1e-6)


@pytest.mark.parametrize("kind", ["GRUEncoder", "LSTMEncoder"])
def test_encoders_skip_masked_tokens_wherever_they_stand(kind: str):
    layer, _ = example(kind)
    outputs, state = layer(masked(tf.constant(SOURCE), OPEN), tf.constant([7, 6, 7]))
    same(mask_of(outputs), OPEN)
    for row, kept in enumerate(OPEN):
        alone, after = layer(tf.constant(SOURCE[row, kept][None]))
        same(outputs[row].numpy()[kept], alone[0], 1e-6)
        same(outputs[row].numpy()[~kept], 0.0 * outputs[row].numpy()[~kept])
        same(state[:, row], after[:, 0], 1e-6)


def test_a_gru_skips_the_steps_that_that_of_keras_skips():
    ours, theirs = attention.GRU(6, 5), keras.layers.GRU(5, return_sequences=True, return_state=True)
    inputs = embedded(SOURCE, 6)
    theirs.build(inputs.shape)
    W, U, b, b_hn = attention.get_parameters(ours).values()
    stacked = [np.concatenate([part[gate].T for gate in (1, 0, 2)], axis=-1) for part in (W, U)]
    hidden = np.concatenate([np.zeros(10, np.float32), b_hn])
    theirs.set_weights([*stacked, np.stack([np.concatenate([b[1], b[0], b[2]]), hidden])])
    outputs, state = theirs(inputs)
    actual, last = ours(inputs)
    same(tf.boolean_mask(actual, OPEN), tf.boolean_mask(outputs, OPEN), 1e-6)
    same(last[0], state, 1e-6)
    same(mask_of(actual), mask_of(outputs))


@pytest.mark.parametrize("heads", [False, True])
def test_the_axes_of_a_mask_are_the_leading_axes_of_its_array(heads: bool):
    layer, shape = attention.DotProductAttention(), (3, 2, 7, 4) if heads else (3, 7, 4)
    keys, mask = tf.constant(uniform("keys", shape)), integers("mask", shape[:-1], 3) > 0
    expected = layer(keys, keys, keys, mask=tf.constant(mask[..., None, :]))
    given = tf.ones((1, 2, 1, 7) if heads else (1, 1, 7), tf.bool)
    same(layer(masked(keys, mask), keys, keys, mask=given), expected)
    if not heads:
        swapped, first = attention.DotProductAttention(time_major=True), tf.transpose(keys, (1, 0, 2))
        context, weights = swapped(masked(first, mask.T), first, first)
        same((weights, mask_of(context)), (expected[1], mask.T))


def test_attention_hides_what_that_of_keras_hides():
    queries, keys = embedded(TARGET, 6), embedded(SOURCE[:, ::-1], 6)
    additive = keras.layers.AdditiveAttention(use_scale=False)
    expected, weights = additive([queries, keys], return_attention_scores=True)
    layer = attention.AdditiveAttention(6, 6, 6)
    eye = np.eye(6, dtype=np.float32)
    attention.set_parameters(layer, {"W_q": eye, "W_k": eye, "w_v": np.ones(6, np.float32)})
    context, ours = layer(queries, keys, keys)
    same(ours, weights, 1e-6)
    # That of Keras also clears the context of masked queries, which is left to whoever reads its mask here.
    same(tf.boolean_mask(context, OPEN_STEPS), tf.boolean_mask(expected, OPEN_STEPS), 1e-6)
    same(mask_of(context), mask_of(expected))
    heads = keras.layers.MultiHeadAttention(2, 3, use_bias=False)
    heads.build(queries.shape, keys.shape)
    kernels = [np.reshape(array, (6, 6)).T for array in heads.get_weights()]
    layer = attention.MultiHeadAttention(6, 2, bias=False)
    attention.set_parameters(layer, {f"W_{of}": kernel for of, kernel in zip("qkvo", kernels, strict=True)})
    context, ours = layer(queries, keys, keys, per_head=True)
    expected, weights = heads(queries, keys, return_attention_scores=True)
    same(
        tf.boolean_mask(tf.transpose(ours, (0, 2, 1, 3)), OPEN_STEPS),
        tf.boolean_mask(tf.transpose(weights, (0, 2, 1, 3)), OPEN_STEPS),
        1e-6,
    )
    same(tf.boolean_mask(context, OPEN_STEPS), tf.boolean_mask(expected, OPEN_STEPS), 1e-6)
    same(mask_of(context), OPEN_STEPS)


@pytest.mark.parametrize("kind", LAYERS)
def test_the_mask_of_the_first_input_travels_on_with_the_first_output(kind: str):
    layer, inputs = example(kind)
    name = "inputs" if kind in TRANSLATORS else next(iter(inputs))
    mask = integers("travels", tuple(inputs[name].shape[:2]), 3) > 0
    masked(inputs[name], mask)
    first, *others = tf.nest.flatten(layer(**inputs))
    same(mask_of(first), mask)
    assert all(mask_of(other) is None for other in others)
    if kind in TRANSLATORS:
        layer, inputs = example(kind)
        hidden = integers("hidden", tuple(inputs["source"].shape), 3) == 0
        masked(inputs["source"], ~hidden)
        logits, weights = layer(**inputs)
        assert mask_of(logits) is None and hidden.any()
        assert not tf.boolean_mask(weights, np.repeat(hidden[:, None], weights.shape[1], axis=1)).numpy().any()


@pytest.mark.parametrize("traced", [False, True])
def test_the_loss_counts_the_steps_that_both_the_mask_of_the_logits_and_the_lengths_leave_open(traced: bool):
    logits = keras.layers.Dense(11)(embedded(TARGET, 6))
    labels, lens = tf.constant(integers("labels", TARGET.shape, 11)), np.array([4, 3, 2])
    same(mask_of(logits), OPEN_STEPS)

    def measured(lens: tf.Tensor | None, spoiled: np.ndarray) -> tf.Tensor:
        given = masked(tf.where(spoiled[:, :, None], np.nan, logits), OPEN_STEPS)
        return attention.masked_cross_entropy(given, labels, lens)

    for given, counts in ((None, OPEN_STEPS), (tf.constant(lens), OPEN_STEPS & (np.arange(4) < lens[:, None]))):
        call = tf.function(measured, autograph=False) if traced else measured
        rows = tf.boolean_mask(logits, counts)[None]
        expected = attention.masked_cross_entropy(rows, tf.boolean_mask(labels, counts)[None])
        same(call(given, ~counts), expected, 1e-6)


def test_padding_has_no_part_in_a_model_of_keras():
    """What stands in masked steps changes neither the loss nor a gradient, as with Keras' own layers."""
    source, target = keras.Input((7,), dtype="int32"), keras.Input((4,), dtype="int32")
    embed = keras.layers.Embedding(11, 6, mask_zero=True)
    outputs, _ = attention.GRU(6, 6, bidirectional=True)(embed(source))
    queries = attention.LearnedPositions(4, 6)(embed(target))
    context, weights = attention.AdditiveAttention(6, 12, 5)(queries, outputs, outputs)
    model = keras.Model([source, target], [keras.layers.Dense(11)(context), weights])
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    labels = integers("labels", TARGET.shape, 11)

    def measured(changed: bool) -> list[tf.Tensor]:
        with tf.GradientTape() as tape:
            logits, weights = model([tf.constant(SOURCE), tf.constant(TARGET)])
            value = loss(tf.where(OPEN_STEPS, labels, labels + changed) % 11, logits)
        same(tf.boolean_mask(weights, np.repeat(~OPEN[:, None], 4, axis=1)), np.zeros(4 * (~OPEN).sum()))
        same(mask_of(logits), OPEN_STEPS)
        return [value, *map(tf.convert_to_tensor, tape.gradient(value, model.trainable_variables))]

    before = measured(False)
    same(measured(True), before)
    embed.embeddings.assign(tf.tensor_scatter_nd_update(embed.embeddings.value, [[0]], [[1e3] * 6]))
    same(measured(False), before)


@pytest.mark.parametrize("kind", LAYERS)
def test_the_shapes_of_the_outputs_are_computed_from_those_of_the_inputs(kind: str):
    layer, inputs = example(kind)
    shapes = keras.tree.map_structure(lambda array: tuple(array.shape), inputs)
    expected = keras.tree.map_structure(lambda array: tuple(array.shape), layer(**inputs))
    assert layer.compute_output_shape(*shapes.values()) == expected
    assert layer.compute_output_shape(**{f"{name}_shape": shape for name, shape in shapes.items()}) == expected
    if kind == "AdditiveAttention":
        assert layer.compute_output_shape((None, None, 9), (None, 7, 10), (None, 7, 6)) == (
            (None, None, 6),
            (None, None, 7),
        )


@pytest.mark.parametrize(
    ("kind", "options"),
    [
        ("BahdanauDecoder", {}),
        ("LuongDecoder", {}),
        ("LuongDecoder", {"input_feeding": "none"}),
        ("FixedContextDecoder", {}),
    ],
)
def test_the_mask_of_tokens_travels_to_the_logits_and_hides_no_step(kind: str, options: dict[str, bool]):
    layer, tokens = getattr(attention, kind)(11, 4, 5, memory_size=6, **options), tf.constant(TARGET)
    given = tf.constant(uniform("memory", (3, 7, 6)), tf.float32), tf.constant(uniform("state", (1, 3, 5)), tf.float32)
    expected = layer(tokens, *given)
    actual = layer(masked(tokens, OPEN_STEPS), *given)
    same(actual, expected)
    same(mask_of(actual[0]), OPEN_STEPS)
