"""What every backend promises beyond agreement: the hidden is hidden to the last bit, a fully masked row is 0."""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from functools import partial
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

import backends
from attention_core.draws import uniform
from attention_core.operators import FILE_OF, LAYERS
from parity_tests.cases.suite import all_cases
from parity_tests.format.call import bind
from parity_tests.format.case import Case
from parity_tests.format.expected import cotangents
from parity_tests.tests.backends.blocks import on_path

CASES = {case.id: case for case in all_cases()}
# The first of each file and method: the others share its code. Encoders and translators hide it in a parameter, the
# embedding of the padding.
HIDING = {
    (FILE_OF[case.operator], case.method): name
    for name, case in reversed(CASES.items())
    if name.endswith("hidden_nan")
    and case.drawn is None
    and any(np.isnan(array).any() for array in case.inputs.values())
}.values()


def layer_of(backend: SimpleNamespace, case: Case, dtype: str) -> Any:
    """The layer of a case, with its parameters; None for a function's."""
    if not case.method:
        return None
    layer = backend.runtime.build(getattr(backend.package, case.operator), case.config, dtype)
    backend.package.set_parameters(layer, case.at(dtype)[1])
    return layer


def answers(backend: SimpleNamespace, case: Case, dtype: str, **changed: np.ndarray) -> dict[str, np.ndarray]:
    """Outputs and gradients of a case, with some inputs changed."""
    inputs, _ = case.at(dtype)
    inputs |= {name: array.astype(inputs[name].dtype) for name, array in changed.items()}
    layer = layer_of(backend, case, dtype)
    function = bind(backend.package, case.operator, case.method, case.options)
    given = {name: backend.runtime.from_numpy(array) for name, array in inputs.items()}
    factors = {index: backend.runtime.from_numpy(array) for index, array in cotangents(case, dtype).items()}
    outputs, of_inputs, of_parameters = backend.runtime.vjp(function, given, factors, layer)
    found = {f"output {index}": backend.runtime.to_numpy(array) for index, array in enumerate(outputs)}
    found |= {f"gradient {name}": backend.runtime.to_numpy(array) for name, array in of_inputs.items()}
    found |= {f"gradient {name}": array for name, array in of_parameters.items()}
    for name, array in given.items():
        np.testing.assert_array_equal(backend.runtime.to_numpy(array), inputs[name], f"{name} was changed by the call")
    return found


@pytest.mark.parametrize("case_id", HIDING)
def test_what_is_hidden_changes_not_one_bit(backend: SimpleNamespace, case_id: str):
    """In float32: the parity has these cases in float64, too."""
    (case,) = all_cases().select(case_id)
    spoilt = {name: array for name, array in case.inputs.items() if array.dtype.kind == "f" and np.isnan(array).any()}
    assert spoilt
    with_nan = answers(backend, case, "float32")
    assert all(np.isfinite(array).all() for array in with_nan.values() if array.dtype.kind == "f")
    for value in (0.0, -1e30, np.inf):
        other = answers(backend, case, "float32", **{n: np.where(np.isnan(a), value, a) for n, a in spoilt.items()})
        for name, array in with_nan.items():
            assert array.tobytes() == other[name].tobytes(), f"{name} differs with {value} where NaN was hidden"


@pytest.mark.parametrize("name", ["AdditiveAttention", "DotProductAttention-context", "BahdanauDecoder"])
def test_what_is_hidden_changes_not_one_bit_in_blocks(backend: SimpleNamespace, name: str):
    case_id = next(case_id for case_id in CASES if case_id.startswith(name) and case_id.endswith("hidden_nan"))
    with on_path(backend, "blocked"):
        test_what_is_hidden_changes_not_one_bit(backend, case_id)


def torch_gradients(function: Any, given: dict[str, Any], factors: dict[int, Any]) -> Iterator[list[Any]]:
    import torch

    own = [array.requires_grad_() for array in given.values() if array.is_floating_point()]
    outputs = function(**given)
    wanted = [outputs[index] for index in factors]
    while True:
        yield torch.autograd.grad(wanted, own, [*factors.values()], retain_graph=True, materialize_grads=True)


def tf_gradients(function: Any, given: dict[str, Any], factors: dict[int, Any]) -> Iterator[list[Any]]:
    import tensorflow as tf

    own = [array for array in given.values() if array.dtype.is_floating]
    with tf.GradientTape(persistent=True) as tape:
        tape.watch(own)
        outputs = function(**given)
    wanted = [outputs[index] for index in factors]
    while True:
        yield tape.gradient(wanted, own, [*factors.values()], unconnected_gradients="zero")


def jax_gradients(function: Any, given: dict[str, Any], factors: dict[int, Any]) -> Iterator[list[Any]]:
    import jax

    own = {name: array for name, array in given.items() if array.dtype.kind == "f"}
    outputs, pull = jax.vjp(lambda arrays: function(**{**given, **arrays}), own)
    while True:
        yield list(pull(tuple(factors.get(index, 0.0 * output) for index, output in enumerate(outputs)))[0].values())


def mxnet_gradients(function: Any, given: dict[str, Any], factors: dict[int, Any]) -> Iterator[list[Any]]:
    from mxnet import autograd

    own = [array for array in given.values() if np.dtype(array.dtype).kind == "f"]
    for array in own:
        array.attach_grad()
    with autograd.record():
        outputs = function(**given)
    while True:
        autograd.backward([outputs[index] for index in factors], [*factors.values()], retain_graph=True)
        yield [array.grad.copy() for array in own]


@pytest.mark.parametrize("path", ["blocked", "plain"])
@pytest.mark.parametrize(
    "case_id",
    [
        "additive_score-plain",
        "masked_softmax-lens_and_mask",
        "linear_attention-causal_mask",
        "AdditiveAttention-lens_and_mask",
        "AdditiveAttention-context_fully_masked",
        "DotProductAttention-lens_and_mask",
        "MultiHeadAttention-lens_and_mask",
        "GRU-ragged",
        "BahdanauDecoder-none",
    ],
)
def test_a_second_backward_is_bitwise_equal(backend: SimpleNamespace, case_id: str, path: str):
    (case,) = all_cases().select(case_id)
    function = partial(
        bind(backend.package, case.operator, case.method, case.options), layer_of(backend, case, "float32")
    )
    given = {name: backend.runtime.from_numpy(array) for name, array in case.at("float32")[0].items()}
    factors = {index: backend.runtime.from_numpy(array) for index, array in cotangents(case, "float32").items()}
    with on_path(backend, path):
        backwards = globals()[f"{backend.name}_gradients"](function, given, factors)
        first, second = ([backend.runtime.to_numpy(array) for array in next(backwards)] for _ in range(2))
    assert first and all(one.any() for one in first)
    assert [one.tobytes() for one in first] == [other.tobytes() for other in second]


LAYERS_WITH_A_MEMORY = [
    layer.name for layer in LAYERS if any(method.name.endswith(".extend") for method in layer.methods)
]

CLOSED = [
    f"{operator}-{prefix}fully_masked"
    for operator in (
        "masked_softmax",
        "attention_pooling",
        *LAYERS_WITH_A_MEMORY,
        "NadarayaWatson",
    )
    for prefix in ("", "predictive_")[: 2 if operator == "LocalAttention" else 1]
]


@pytest.mark.parametrize("case_id", CLOSED)
def test_a_query_that_may_attend_to_nothing_gets_zero(backend: SimpleNamespace, case_id: str):
    (case,) = all_cases().select(case_id)
    found = answers(backend, case, "float32")
    lens, mask = case.inputs["valid_lens"], case.inputs["mask"]
    fully_masked = ~(mask & (np.arange(mask.shape[-1]) < lens[..., None])).any(axis=-1)
    assert fully_masked.sum() == 5
    # The context of several heads is projected, with a bias; what hard attention chooses has no gradient.
    left_out = {"output 0"} if "MultiHead" in case_id else {"gradient queries"} if "Hard" in case_id else set()
    for name in {"output 0", "output 1", "gradient queries", "gradient scores"} - left_out:
        if name in found:
            assert (found[name][fully_masked] == 0).all() and (found[name][~fully_masked] != 0).any(), name


def test_a_sequence_without_an_open_key_gets_zero_from_linear_attention(backend: SimpleNamespace):
    (case,) = all_cases().select("linear_attention-fully_masked")
    found = answers(backend, case, "float32")
    for name in ("output 0", "gradient queries", "gradient keys", "gradient values"):
        assert (found[name][0] == 0).all() and (found[name][1] != 0).any(), name


def test_sums_that_are_the_keys_themselves_make_dot_product_attention(backend: SimpleNamespace):
    arrays = (uniform(name, shape) for name, shape in (("q", (2, 5, 4)), ("k", (2, 7, 4)), ("v", (2, 7, 6))))
    given = [backend.runtime.from_numpy(array) for array in arrays]
    dot, low_rank = (
        backend.runtime.build(getattr(backend.package, name), config, "float64")
        for name, config in (("DotProductAttention", {}), ("LowRankAttention", {"num_positions": 7, "rank": 7}))
    )
    backend.package.set_parameters(low_rank, {"E": np.eye(7), "F": np.eye(7)})
    for actual, expected in zip(low_rank(*given), dot(*given), strict=True):
        actual, expected = map(backend.runtime.to_numpy, (actual, expected))
        np.testing.assert_allclose(actual, expected, rtol=1e-14, atol=1e-15)


def test_blocks_of_one_key_each_make_dot_product_attention(backend: SimpleNamespace):
    arrays = (uniform(name, shape) for name, shape in (("q", (2, 5, 4)), ("k", (2, 7, 4)), ("v", (2, 7, 6))))
    given = [backend.runtime.from_numpy(array) for array in arrays]
    sizes = {"query_size": 4, "key_size": 4, "stride": 1, "value_size": 6}
    dot, compressed = (
        backend.runtime.build(getattr(backend.package, name), config, "float64")
        for name, config in (("DotProductAttention", {}), ("CompressedAttention", sizes))
    )
    identity = {"W_k": np.eye(4), "W_v": np.eye(6), "b_k": np.zeros(4), "b_v": np.zeros(6)}
    backend.package.set_parameters(compressed, identity)
    for actual, expected in zip(compressed(*given, [3, 0]), dot(*given, [3, 0]), strict=True):
        actual, expected = map(backend.runtime.to_numpy, (actual, expected))
        np.testing.assert_allclose(actual, expected, rtol=1e-14, atol=1e-15)


def test_inducing_points_are_queries_of_one_attention_and_keys_of_another(backend: SimpleNamespace):
    """The parts, called by hand, give the same."""
    layer, case = layer_of(backend, CASES["InducedAttention-lens_and_mask"], "float64"), CASES["InducedAttention-none"]
    queries, keys, values = (backend.runtime.from_numpy(case.inputs[name]) for name in ("queries", "keys", "values"))
    inducing = backend.package.get_parameters(layer)["inducing"]
    points = backend.runtime.from_numpy(np.repeat(inducing[None], len(case.inputs["keys"]), axis=0))
    memory, _ = layer.gather(points, keys, values, [3, 6])
    by_hand = layer.spread(queries, memory, memory)
    for actual, expected in zip(layer(queries, keys, values, [3, 6]), by_hand, strict=True):
        actual, expected = map(backend.runtime.to_numpy, (actual, expected))
        np.testing.assert_allclose(actual, expected, rtol=1e-13, atol=1e-15)


def test_the_gradient_of_a_hidden_key_is_zero(backend: SimpleNamespace):
    (case,) = all_cases().select("AdditiveAttention-hidden_inf")
    found = answers(backend, case, "float32")
    for batch, length in enumerate(case.inputs["valid_lens"][:, 0]):
        for name in ("gradient keys", "gradient values"):
            assert (found[name][batch, length:] == 0).all() and (found[name][batch, :length] != 0).any()


def test_a_finite_fill_would_be_noticed(backend: SimpleNamespace):
    scores = backend.runtime.from_numpy(np.full((1, 1, 3), -3e38, np.float32))
    mask = backend.runtime.from_numpy(np.array([[[True, True, False]]]))
    weights = backend.runtime.to_numpy(backend.package.masked_softmax(scores, None, mask))
    np.testing.assert_array_equal(weights, [[[0.5, 0.5, 0.0]]])


def test_dropout_is_the_frameworks_own_in_training_and_absent_in_evaluation(backend: SimpleNamespace):
    """build() gives evaluation mode: a rate without a mask changes nothing there."""
    (case,) = all_cases().select("AdditiveAttention-open")
    inputs, parameters = case.at("float32")
    results = []
    for rate in (0.0, 0.5):
        layer = backend.runtime.build(backend.package.AdditiveAttention, {**case.config, "dropout": rate}, "float32")
        backend.package.set_parameters(layer, parameters)
        context, _ = layer(**{name: backend.runtime.from_numpy(array) for name, array in inputs.items()})
        results.append(backend.runtime.to_numpy(context))
    np.testing.assert_array_equal(*results)


# ------------------------------------------------------------------------------------------------ parameters


TRAINABLE = [layer.name for layer in LAYERS if layer.trainable]


def fullest(name: str) -> Case:
    """The case with the most parameters of a layer."""
    return max((case for case in CASES.values() if case.operator == name), key=lambda case: len(case.parameters))


@pytest.mark.parametrize("dtype", ["float64", "float32"])
@pytest.mark.parametrize("name", TRAINABLE)
def test_parameters_come_back_exactly_through_a_file(backend: SimpleNamespace, name: str, dtype: str, tmp_path):
    case = fullest(name)
    _, parameters = case.at(dtype)
    first, second = (backend.runtime.build(getattr(backend.package, name), case.config, dtype) for _ in range(2))
    backend.package.set_parameters(first, parameters)
    path = tmp_path / "weights.safetensors"
    backends.save_arrays(path, backend.package.get_parameters(first))
    backend.package.set_parameters(second, backends.load_arrays(path))
    found = backend.package.get_parameters(second)
    assert list(found) == list(parameters)
    for key, array in parameters.items():
        assert found[key].dtype == array.dtype and found[key].tobytes() == array.tobytes(), key


def test_initial_parameters_are_drawn_and_finite(backend: SimpleNamespace):
    """Uninitialised memory as weights has happened to others."""
    keywords = {}
    if backend.name == "jax":
        from flax import nnx

        keywords = {"rngs": nnx.Rngs(0)}
    for name in TRAINABLE:
        case = fullest(name)
        layer = getattr(backend.package, name)(**case.config, **keywords)
        for key, array in backend.package.get_parameters(layer).items():
            assert np.isfinite(array).all() and np.abs(array).max() < 10, key
            constant = array.size == 1 or key.rpartition(".")[2].startswith(("b", "g"))
            assert constant or array.std() > 0, key


def test_the_words_of_the_specification_are_where_help_shows_them(backend: SimpleNamespace):
    for name in ("masked_softmax", "AdditiveAttention", "BahdanauDecoder"):
        assert "Args:\n" in inspect.getdoc(getattr(backend.package, name))


# ------------------------------------------------------------------------------------------------ others' defects


def test_lengths_count_for_each_sequence_and_not_for_each_query(backend: SimpleNamespace):
    """Lengths repeated by the batch size work while it equals the number of queries."""
    scores = backend.runtime.from_numpy(np.zeros((2, 5, 7), np.float32))
    lens = backend.runtime.from_numpy(np.array([2, 4], np.int32))
    weights = backend.runtime.to_numpy(backend.package.masked_softmax(scores, lens))
    assert ((weights > 0).sum(axis=-1) == [[2] * 5, [4] * 5]).all()


def test_an_offset_may_be_a_number_an_array_or_a_list(backend: SimpleNamespace):
    arrays, causal = backend.runtime, backend.package.causal_mask

    def opened(offset: Any) -> Any:
        return arrays.to_numpy(causal(3, 5, offset=offset)).sum(axis=-1).tolist()

    assert opened(2) == opened(arrays.from_numpy(np.array(2, np.int32))) == [[3, 4, 5]]
    each = arrays.from_numpy(np.array([2, -1], np.int8))
    assert opened([2, -1]) == opened(each) == [[3, 4, 5], [0, 1, 2]]
    assert opened(None) == [[1, 2, 3]]


@pytest.mark.parametrize("name", LAYERS_WITH_A_MEMORY)
def test_steps_through_a_memory_give_what_a_causal_call_gives(backend: SimpleNamespace, name: str):
    """One key and one query at a time: behind the others, and in a memory with room for all."""
    case = CASES[f"{name}-none"]
    layer, (arrays, _) = layer_of(backend, case, "float64"), case.at("float64")
    arrays = {key: backend.runtime.from_numpy(arrays[key][:, :3]) for key in ("queries", "keys", "values")}
    keys, values = arrays["keys"], arrays["values"]
    expected = layer(**arrays, mask=backend.package.causal_mask(3, 3))
    room = grown = layer.prepare(keys, values, [0, 0])
    moved = name == "LocalAttention"  # whose windows are around the query's position
    for step in range(3):
        new = keys[:, step : step + 1], values[:, step : step + 1]
        grown = layer.extend(grown, *new) if step else layer.prepare(*new)
        room = layer.extend(room, *new, position=[step, step] if step % 2 else step)
        for memory in (grown, room):
            offset = {"offset": step} if moved else {}
            context, weights = layer.attend(arrays["queries"][:, step : step + 1], memory, **offset)
            for actual, whole in ((context, expected[0]), (weights, expected[1])):
                right = backend.runtime.to_numpy(whole)[:, step : step + 1]
                actual = backend.runtime.to_numpy(actual)
                np.testing.assert_allclose(actual, right[..., : actual.shape[-1]], rtol=1e-12, atol=1e-14)


def test_additive_weights_depend_on_the_query(backend: SimpleNamespace):
    """Without its tanh the score is a sum, and the query cancels in the softmax."""
    queries, keys, w_v = (
        backend.runtime.from_numpy(uniform(n, s).astype(np.float32))
        for n, s in (("q", (2, 5, 8)), ("k", (2, 7, 8)), ("w", (8,)))
    )
    weights = backend.runtime.to_numpy(
        backend.package.masked_softmax(backend.package.additive_score(queries, keys, w_v))
    )
    assert np.abs(np.diff(weights, axis=1)).max() > 0.01


def test_dropout_of_an_encoder_lands_on_dropout(backend: SimpleNamespace):
    """A rate given by position has landed on `bias` elsewhere; here it is a keyword alone."""
    with pytest.raises(TypeError, match="positional argument"):
        backend.package.GRUEncoder(11, 4, 5, 2, 0.1)


def test_every_layer_of_a_stack_has_an_effect(backend: SimpleNamespace):
    """A stack that feeds its input to every middle layer loses the first one."""
    (case,) = all_cases().select("GRU-three_layers")
    found = answers(backend, case, "float64")
    for layer in range(3):
        assert (found[f"gradient {layer}.W"] != 0).all()


def test_queries_and_keys_of_different_sizes_meet_their_own_matrices(backend: SimpleNamespace):
    layer = backend.runtime.build(
        backend.package.AdditiveAttention, {"query_size": 2, "key_size": 3, "hidden_size": 4}, "float32"
    )
    shapes = {name: array.shape for name, array in backend.package.get_parameters(layer).items()}
    assert shapes == {"W_q": (4, 2), "W_k": (4, 3), "w_v": (4,)}


def test_a_layer_keeps_nothing_of_a_call(backend: SimpleNamespace):
    """Weights left on an attribute leak tracers."""
    (case,) = all_cases().select("AdditiveAttention-open")
    inputs, _ = case.at("float32")
    layer = backend.runtime.build(backend.package.AdditiveAttention, case.config, "float32")
    arrays = {name: backend.runtime.from_numpy(array) for name, array in inputs.items()}
    layer(**arrays)
    before = set(vars(layer))
    layer(**arrays)
    assert set(vars(layer)) == before
    assert not [name for name in vars(layer) if "attention_weights" in name]


WITH_LENGTHS = {
    FILE_OF[case.operator]: case
    for case in CASES.values()
    if case.method in ("", "call") and not case.shared and case.inputs.get("valid_lens", np.empty(0)).dtype == np.int32
}


@pytest.mark.parametrize("file", WITH_LENGTHS)
def test_lengths_may_be_a_list(backend: SimpleNamespace, file: str):
    case = WITH_LENGTHS[file]
    function = bind(backend.package, case.operator, case.method, case.options)
    layer = layer_of(backend, case, "float32")
    given = {name: backend.runtime.from_numpy(array) for name, array in case.at("float32")[0].items()}
    expected = function(layer, **given)
    listed = function(layer, **{**given, "valid_lens": case.inputs["valid_lens"].tolist()})
    for actual, array in zip(listed, expected, strict=True):
        np.testing.assert_array_equal(backend.runtime.to_numpy(actual), backend.runtime.to_numpy(array))
