"""What only TensorFlow does in blocks: second derivatives that are refused, unknown sizes, and what a graph keeps."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from operator import attrgetter

import numpy as np
import pytest
import tensorflow as tf
from keras import layers

from attention_core.draws import integers, uniform
from attention_core.errors import AttentionError
from attention_core.operators.training import Batch
from backends import tf as attention
from backends.tf import kernels
from backends.tf.blocked import additive, blocks, decoder_steps, dot_product
from parity_tests.tests.backends.blocks import in_graph


def floats(name: str, *shape: int) -> np.ndarray:
    return uniform(name, shape).astype(np.float32)


QUERIES, KEYS, W_V = floats("queries", 3, 4, 5), floats("keys", 3, 7, 5), floats("w_v", 5)
TOKENS, MEMORY, STATE = integers("target", (3, 4), 11), floats("values", 3, 7, 8), floats("state", 2, 3, 5)


@pytest.fixture(autouse=True)
def _blocked() -> Iterator[None]:
    before = kernels.forced
    kernels.set_path("blocked")
    yield
    kernels.set_path(before)


def decoder(num_layers: int = 2, name: str = "BahdanauDecoder") -> layers.Layer:
    return getattr(attention, name)(11, 6, 5, num_layers, memory_size=8, attention_size=9, score="additive")


FUNCTIONS: dict[str, tuple[tuple[np.ndarray, np.ndarray], Callable[[tf.Tensor, tf.Tensor], tf.Tensor], str]] = {
    "additive_score": (
        (QUERIES, KEYS),
        lambda q, k: attention.additive_score(q, k, tf.constant(W_V)),
        "no second derivatives",
    ),
    "dot context": (
        (QUERIES, KEYS),
        lambda q, k: attention.DotProductAttention()(q, k, k, need_weights=False)[0],
        "no second derivatives",
    ),
    "additive context": (
        (QUERIES, KEYS),
        lambda q, k: additive.blocked_additive_attention(q, k, k, None, tf.constant(W_V)),
        "no second derivatives",
    ),
    **{
        name: (
            (MEMORY, STATE),
            lambda memory, state, name=name: decoder(name=name)(tf.constant(TOKENS), memory, state)[0],
            f"{name}: no second derivative is known where its steps are one function",
        )
        for name in ("BahdanauDecoder", "LuongDecoder")
    },
}


@pytest.mark.parametrize("name", FUNCTIONS)
def test_second_derivatives_through_blocks_are_refused(name: str):
    arrays, function, words = FUNCTIONS[name]
    tensors = [tf.constant(array) for array in arrays]
    with tf.GradientTape() as outer:
        outer.watch(tensors)
        with tf.GradientTape() as inner:
            inner.watch(tensors[0])
            output = function(*tensors)
        gradient = inner.gradient(output, tensors[0])
    with pytest.raises(AttentionError, match=words) as raised:
        outer.gradient(gradient, tensors)
    assert 'backends.tf.kernels.set_path("plain")' in str(raised.value)


def test_sizes_that_are_unknown_count_as_small():
    taken: list[bool] = []
    tensors = [tf.constant(array) for array in (TOKENS, STATE, MEMORY, MEMORY)]
    in_graph(lambda *given: taken.append(decoder_steps.takes_steps(*given, None)), tensors)(*tensors)
    kernels.set_path(None)
    pair = tf.constant(QUERIES), tf.constant(KEYS)
    in_graph(lambda *given: taken.append(kernels.use_blocks(*given, 1)), pair)(*pair)
    assert taken == [False, False]


def test_dropout_is_not_lost_with_the_weights():
    layer, ones = attention.DotProductAttention(dropout=0.5), tf.ones((2, 3, 4))
    context, _ = layer(ones, ones, ones, need_weights=False, dropout_mask=tf.zeros((2, 3, 3)))
    np.testing.assert_array_equal(context, tf.zeros((2, 3, 4)))
    assert not np.allclose(layer(ones, ones, ones, need_weights=False, training=True)[0], 1.0)


def test_the_size_of_a_head_chooses_the_path_of_a_context(monkeypatch: pytest.MonkeyPatch):
    kernels.set_path(None)
    layer, queries, keys = attention.DotProductAttention(), tf.zeros((2, 3, 4, 5)), tf.zeros((2, 3, 7, 5))
    memory = layer.prepare(keys, keys)
    monkeypatch.setattr(kernels, "EAGER_MIN_ELEMENTS", 0)
    arguments = layer._form(5), queries, memory, False, None
    monkeypatch.setattr(dot_product, "DOT_MIN_ELEMENTS", 4 * 7 * 5)
    assert kernels.of("attention", *arguments) is dot_product.attend
    monkeypatch.setattr(dot_product, "DOT_MIN_ELEMENTS", 4 * 7 * 5 + 1)
    assert kernels.of("attention", *arguments) is None


@pytest.mark.parametrize(
    ("name", "sizes", "elements"),
    [("DotProductAttention", (), 4 * 7 * 5), ("AdditiveAttention", (5, 5, 5), 2 * 3 * 4 * 7 * 5)],
)
def test_eager_mode_uses_blocks_above_a_larger_size_than_a_graph(
    name: str, sizes: tuple[int, ...], elements: int, monkeypatch: pytest.MonkeyPatch
):
    """There the first call waits longer for blocks than they gain, unless it is large."""
    kernels.set_path(None)
    monkeypatch.setattr(dot_product, "DOT_MIN_ELEMENTS", 1)
    for least in ("ADDITIVE_MIN_ELEMENTS", "SEQUENCE_MIN_ELEMENTS"):
        monkeypatch.setattr(additive, least, 1)
    layer = getattr(attention, name)(*sizes)
    queries, keys = tf.zeros((2, 3, 4, 5)), tf.zeros((2, 3, 7, 5))
    taken: list[bool] = []

    def call() -> None:
        arguments = layer._form(5), queries, layer.prepare(keys, keys), False, None
        taken.append(kernels.of("attention", *arguments) is not None)

    for eager in (elements, elements + 1):
        monkeypatch.setattr(kernels, "EAGER_MIN_ELEMENTS", eager)
        call()
    tf.function(call, autograph=False)()
    assert taken == [True, False, True]


def test_eager_mode_computes_scores_in_blocks_later_than_a_graph(monkeypatch: pytest.MonkeyPatch):
    kernels.set_path(None)
    taken: list[int] = []
    monkeypatch.setattr(additive, "ADDITIVE_MIN_ELEMENTS", 1)
    (kernel,) = kernels.registry["additive_score"]
    counted = kernel._replace(compute=lambda *given: taken.append(len(taken)) or given[0])
    monkeypatch.setitem(kernels.registry, "additive_score", [counted])
    arrays = tf.constant(QUERIES), tf.constant(KEYS), tf.constant(W_V)
    attention.additive_score(*arrays)
    assert not taken
    tf.function(attention.additive_score, autograph=False)(*arrays)
    monkeypatch.setattr(kernels, "EAGER_MIN_ELEMENTS", 3 * 4 * 7 * 5)
    attention.additive_score(*arrays)
    assert len(taken) == 2


@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("AdditiveAttention", {"hidden_size": 9}),
        ("ConcatAttention", {"hidden_size": 9}),
        ("MultiHeadAttention", {"num_heads": 5, "value_size": 8, "score": "additive"}),
    ],
)
def test_an_additive_context_alone_keeps_no_weights(name: str, options: dict[str, int | str]):
    layer = getattr(attention, name)(query_size=5, key_size=6, **options)
    arrays = floats("queries", 2, 11, 5), floats("keys", 2, 13, 6), floats("values", 2, 13, 8)

    def kept(need_weights: bool) -> bool:
        @tf.function(autograph=False)
        def gradients(*arrays: tf.Tensor) -> list[tf.Tensor]:
            with tf.GradientTape() as tape:
                tape.watch(arrays)
                context = layer(*arrays, need_weights=need_weights)[0]
            return tape.gradient(context, arrays)

        operations = gradients.get_concrete_function(*map(tf.constant, arrays)).graph.get_operations()
        return any(out.shape.rank and out.shape[-2:] == (11, 13) for op in operations for out in op.outputs)

    assert kept(True) and not kept(False)


@pytest.fixture
def called(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """One entry for each time that steps were one function."""
    calls: list[int] = []
    (kernel,) = kernels.registry["decoder_steps"]
    counted = kernel._replace(compute=lambda *given: calls.append(1) or kernel.compute(*given))
    monkeypatch.setitem(kernels.registry, "decoder_steps", [counted])
    return calls


@pytest.mark.parametrize("num_layers", [1, 2])
@pytest.mark.parametrize("name", ["BahdanauDecoder", "LuongDecoder"])
def test_steps_in_a_graph_are_one_function_from_a_size_on(
    monkeypatch: pytest.MonkeyPatch, name: str, num_layers: int, called: list[int]
):
    kernels.set_path(None)
    layer = decoder(num_layers, name)
    given = {"encoder_outputs": tf.constant(MEMORY), "state": tf.constant(STATE[:num_layers])}

    def gradients(given: dict[str, tf.Tensor]) -> list[tf.Tensor]:
        with tf.GradientTape() as tape:
            tape.watch(given)
            found = layer(tf.constant(TOKENS), **given, valid_lens=tf.constant([6, 0, 7]))
            outputs = [own for own in tf.nest.flatten(found) if own.dtype.is_floating]
            loss = tf.add_n([tf.reduce_sum(own * floats("c", *own.shape)) for own in outputs])
        sources = [*given.values(), *(parameter.value for parameter in layer.trainable_variables)]
        return [*outputs, *map(tf.convert_to_tensor, tape.gradient(loss, sources))]

    def decoded(least: int) -> list[tf.Tensor]:
        monkeypatch.setattr(decoder_steps, "STEPS_MIN_ELEMENTS", least)
        return tf.function(gradients, autograph=False)(given)

    found = decoded(3 * 4 * 7 * 9)
    assert called == [1]
    for one, other in zip(found, decoded(3 * 4 * 7 * 9 + 1), strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-5, atol=1e-5)
    monkeypatch.setattr(decoder_steps, "STEPS_MIN_ELEMENTS", 1)
    gradients(given)
    assert called == [1]


@pytest.fixture(params=[1, 2, 4])
def running(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> list[list[int]]:
    """The rows of each step where sequences end, with parts of 3, 2 and 1 sequences."""
    found: list[list[int]] = []

    class Watched(blocks.Rows):
        def __init__(self, shape: tf.TensorShape, lens: tf.Tensor | None) -> None:
            super().__init__(shape, lens)
            if self.ragged:
                found.append(self.running.numpy().tolist())

    monkeypatch.setattr(blocks, "WIDTHS", request.param)
    monkeypatch.setattr(decoder_steps, "Rows", Watched)
    return found


RUNNING = {1: [3, 3, 3, 0], 2: [2, 2, 2, 0], 4: [2, 2, 1, 0]}
"""Of sequences that take 2, 3 and 0 steps of 4."""


def given_steps(dropout: bool = True) -> dict[str, tf.Tensor | None]:
    """What a decoder attends to in `_features`, and its dropout masks."""
    shapes = {"dropout_mask": (1, 3, 4, 5), "attention_dropout_mask": (3, 4, 7)}
    factors = {name: tf.constant(2.0 * (uniform(name, shape) > 0)) for name, shape in shapes.items()}
    memory = {"encoder_outputs": tf.constant(uniform("values", (3, 7, 8))), "valid_lens": tf.constant([7, 0, 4])}
    return {**memory, "mask": None, "training": False, **(factors if dropout else dict.fromkeys(shapes))}


@pytest.mark.parametrize("cell", ["gru", "lstm"])
@pytest.mark.parametrize("score", ["additive", "general"])
@pytest.mark.parametrize("name", ["BahdanauDecoder", "LuongDecoder"])
def test_what_nobody_reads_of_a_sequence_is_left_out(name: str, score: str, cell: str, running: list[list[int]]):
    layer = getattr(attention, name)(11, 6, 5, 2, memory_size=8, score=score, cell=cell, dtype="float64")
    given, lens = given_steps(), tf.constant([2, 3, 0])
    read = np.arange(4) < lens.numpy()[:, None]
    state, found = tf.constant(uniform("s", (2, 3, layer.sizes["state_size"]))), []
    differentiated = [state, *(array for key, array in given.items() if "dropout" in key or "outputs" in key)]
    for left_out, counts in ((None, read), (lens, np.ones_like(read))):
        with tf.GradientTape() as tape:
            tape.watch(differentiated)
            features, _, weights = layer._features(tf.constant(TOKENS), state, **given, lens=left_out)
            loss = tf.reduce_sum(features * uniform("d", (3, 4, 5)) * counts[..., None])
            loss += tf.reduce_sum(weights * uniform("w", (3, 4, 7)) * counts[..., None])
        sources = [*differentiated, *(parameter.value for parameter in layer.trainable_variables)]
        gradients = tape.gradient(loss, sources, unconnected_gradients="zero")
        found.append([features[read], weights[read], *map(tf.convert_to_tensor, gradients)])
    for actual, expected in zip(*found, strict=True):
        np.testing.assert_allclose(actual, expected, rtol=1e-13, atol=1e-14)
    assert not np.any(features[~read]) and not np.any(weights[~read])
    assert running == [RUNNING[blocks.WIDTHS]]


@pytest.mark.parametrize("name", ["BahdanauDecoder", "LuongDecoder"])
def test_the_state_of_a_sequence_is_that_after_its_last_step(name: str, running: list[list[int]]):
    layer = getattr(attention, name)(11, 6, 5, 2, memory_size=8, score="additive", dtype="float64")
    given, state = given_steps(dropout=False), tf.constant(uniform("s", (2, 3, 5)))
    with tf.GradientTape(persistent=True) as tape:
        tape.watch(state)
        _, last, _ = layer._features(tf.constant(TOKENS), state, **given, lens=tf.constant([2, 3, 0]))
        ours = [last if name == "BahdanauDecoder" else last.rnn] * 3
        ended = [layer._features(tf.constant(TOKENS[:, :steps]), state, **given)[1] for steps in (2, 3, 1)]
        theirs = [after if name == "BahdanauDecoder" else after.rnn for after in ended[:2]] + [state]
        pairs = [
            [tf.reduce_sum(one[:, index] * uniform("c", (2, 5))) for one in (mine, other)]
            for index, (mine, other) in enumerate(zip(ours, theirs, strict=True))
        ]
    for index, (mine, other) in enumerate(zip(ours, theirs, strict=True)):
        np.testing.assert_allclose(mine[:, index], other[:, index], rtol=1e-14, atol=1e-15)
        gradients = [tape.gradient(one, state) for one in pairs[index]]
        np.testing.assert_allclose(*gradients, rtol=1e-13, atol=1e-15)


def test_a_training_step_leaves_out_what_does_not_count_in_its_loss(running: list[list[int]]):
    model = attention.Translator(9, 11, 4, 5, dtype="float64")
    source, lens = tf.constant(TOKENS % 9), tf.constant([2, 3, 0])
    batch = Batch(source, tf.constant([4, 3, 4]), tf.constant(TOKENS), tf.constant(TOKENS), lens)
    trainer = attention.Trainer(model, attention.sgd(0.1))
    loss = trainer.loss(batch, training=True)
    assert running == [RUNNING[blocks.WIDTHS]]
    kernels.set_path("plain")
    np.testing.assert_allclose(loss, trainer.loss(batch, training=True), rtol=1e-14)


@pytest.mark.parametrize(("inner", "expected"), [("W_c", 0), ("attention.W_q", 0), ("embedding", 1)])
def test_quantized_inner_layers_are_called(inner: str, expected: int, called: list[int]):
    layer = decoder(name="LuongDecoder")
    given = tf.constant(TOKENS), tf.constant(MEMORY), tf.constant(STATE)
    logits = layer(*given)[0]
    attrgetter(inner)(layer).quantize("int8")
    called.clear()
    np.testing.assert_allclose(layer(*given)[0], logits, atol=0.05)
    assert len(called) == expected


def test_blocks_are_used_from_a_size_of_their_own_on_where_there_is_a_gpu(monkeypatch: pytest.MonkeyPatch):
    kernels.set_path(None)
    monkeypatch.setattr(tf.config, "list_logical_devices", lambda kind: [kind] if kind == "GPU" else [])
    queries, keys = tf.zeros((3, 4, 5)), tf.zeros((3, 7, 5))
    assert not kernels.use_blocks(queries, keys, 1)
    assert [kernels.use_blocks(queries, keys, 1, 3 * 4 * 7 * 5 + more) for more in (0, 1)] == [True, False]
