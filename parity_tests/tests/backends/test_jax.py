"""The JAX backend under the transformations of jax and flax.nnx: jit, vmap, grad, split and merge; and its dropout."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

import backends
from attention_core.errors import PATHS, OptionError, TokenError
from backends import jax as attention
from backends.jax import masking, recurrent, runtime
from backends.jax.blocked import additive, blocks, choice, dot_product
from parity_tests.cases.call import bind
from parity_tests.cases.case import Case
from parity_tests.cases.expected import cotangents, gradients, programs_folder
from parity_tests.cases.selection import cells_of
from parity_tests.cases.suite import all_cases, select
from parity_tests.judge.compare import judge_all
from parity_tests.judge.question import Questions
from parity_tests.judge.run import run
from parity_tests.tests.backends import magnitudes
from parity_tests.workers.environment import environment
from parity_tests.workers.process import Job

FUNCTIONS = ["attention_mask-lens_and_mask", "masked_softmax-ragged", "attention_pooling-closed"]
ATTENTION = [f"{name}Attention-closed" for name in ("DotProduct", "Additive", "General", "Concat", "Cosine")]
RECURRENT = ["GRU-ragged", "GRUEncoder-ragged", "BahdanauDecoder-ragged"]
DROPPING = ["AdditiveAttention-open", "GRU-open", "BahdanauDecoder-open"]
HIDING = ["masked_softmax-closed", "attention_pooling-hidden_nan", "AdditiveAttention-hidden_nan"]


def found(case_id: str, dtype: str = "float64", **config: Any) -> tuple[Case, Any, dict[str, jax.Array]]:
    """A case, its layer with its parameters (None for a function), and its inputs; no dropout masks are given."""
    (case,) = select(all_cases(), case_id)
    inputs, parameters = case.at(dtype)
    layer = None
    if case.method:
        layer = runtime.build(getattr(attention, case.operator), {**case.config, **config}, dtype)
        attention.set_parameters(layer, parameters)
    return case, layer, {name: jnp.asarray(array) for name, array in inputs.items() if "dropout" not in name}


def call(layer: nnx.Module, arrays: dict[str, jax.Array]) -> tuple[jax.Array, ...]:
    return layer(**arrays)


def assert_close(actual: Any, desired: Any):
    assert jax.tree.structure(actual) == jax.tree.structure(desired)
    jax.tree.map(partial(np.testing.assert_allclose, rtol=1e-12, atol=1e-14), actual, desired)


def differ(first: Any, second: Any) -> bool:
    return any((a != b).any() for a, b in zip(jax.tree.leaves(first), jax.tree.leaves(second), strict=True))


def test_bare_jax_inside_the_backend_is_the_framework():
    assert masking.jax is jax and attention is not jax and "site-packages" in jax.__file__


@pytest.mark.parametrize("case_id", FUNCTIONS)
def test_a_function_under_jit_equals_the_plain_call(case_id: str):
    case, _, arrays = found(case_id)
    function = partial(getattr(attention, case.operator), **case.options)
    assert_close(jax.jit(function)(**arrays), function(**arrays))


@pytest.mark.parametrize("case_id", ["masked_softmax-ragged", "AdditiveAttention-ragged"])
def test_vmap_over_one_more_leading_axis_equals_a_loop(case_id: str):
    case, layer, arrays = found(case_id)
    function = partial(bind(attention, case.operator, case.method, case.options), layer)
    pair = [arrays, {name: jnp.flip(array) for name, array in arrays.items()}]
    stacked = jax.tree.map(lambda *each: jnp.stack(each), *pair)
    together = jax.vmap(lambda each: function(**each))(stacked)
    for index, each in enumerate(pair):
        assert_close(jax.tree.map(lambda array, index=index: array[index], together), function(**each))


@pytest.mark.parametrize("case_id", [*ATTENTION, *RECURRENT])
def test_a_layer_under_nnx_jit_equals_the_plain_call(case_id: str):
    _, layer, arrays = found(case_id)
    assert_close(nnx.jit(call)(layer, arrays), layer(**arrays))


@pytest.mark.parametrize("case_id", ATTENTION)
def test_a_layer_survives_split_and_merge_inside_jax_jit(case_id: str):
    _, layer, arrays = found(case_id)
    graphdef, state = nnx.split(layer)
    assert dict(nnx.merge(graphdef, state).sizes) == dict(layer.sizes)

    @partial(jax.jit, static_argnums=0)
    def merged(graphdef: Any, state: Any, arrays: dict[str, jax.Array]) -> tuple[jax.Array, ...]:
        return nnx.merge(graphdef, state)(**arrays)

    assert_close(merged(graphdef, state, arrays), layer(**arrays))


def test_greedy_under_nnx_jit_equals_the_plain_call():
    case, decoder, arrays = found("BahdanauDecoder-greedy")
    plain = decoder.greedy(**arrays, **case.options)
    jitted = nnx.jit(lambda decoder, arrays: decoder.greedy(**arrays, **case.options))(decoder, arrays)
    assert_close(jitted, plain)
    assert len(np.unique(plain[0])) > 2


def test_new_values_of_known_shapes_are_not_traced_again():
    _, layer, arrays = found("AdditiveAttention-closed")
    traces = []

    @nnx.jit
    def counted(layer: nnx.Module, arrays: dict[str, jax.Array]) -> tuple[jax.Array, ...]:
        traces.append(arrays["queries"].shape)
        return layer(**arrays)

    first = counted(layer, arrays)
    attention.set_parameters(layer, {name: 0.5 * a for name, a in attention.get_parameters(layer).items()})
    assert differ(counted(layer, arrays), first)
    counted(layer, jax.tree.map(jnp.flip, arrays))
    assert traces == [(2, 5, 9)]
    counted(layer, {name: array[:1] for name, array in arrays.items()})
    assert traces == [(2, 5, 9), (1, 5, 9)]


@pytest.mark.parametrize("case_id", ["GRU-ragged", "BahdanauDecoder-greedy"])
def test_a_plain_call_traces_its_loop_only_once(case_id: str, monkeypatch: pytest.MonkeyPatch):
    case, layer, arrays = found(case_id)
    function = bind(attention, case.operator, case.method, case.options)
    function(layer, **arrays)
    steps = []
    multiply = recurrent.multiply
    monkeypatch.setattr(recurrent, "multiply", lambda *given: steps.append(1) or multiply(*given))
    function(layer, **arrays)
    assert not steps
    function(layer, **{name: a[:, :2] if name == "state" else a[:2] for name, a in arrays.items()})
    assert steps


def test_vjp_compiles_once_for_new_parameters_and_for_a_second_layer():
    traces = []

    def counted(layer: nnx.Module, **arrays: jax.Array) -> tuple[jax.Array, ...]:
        traces.append(1)
        return layer(**arrays)

    case, layer, arrays = found("AdditiveAttention-closed")
    _, second, _ = found("AdditiveAttention-closed")
    attention.set_parameters(second, {name: 0.5 * a for name, a in attention.get_parameters(layer).items()})
    factors = {index: jnp.asarray(array) for index, array in cotangents(case, "float64").items()}
    _, _, first = runtime.vjp(counted, arrays, factors, layer)
    _, _, other = runtime.vjp(counted, arrays, factors, second)
    assert len(traces) == 1 and all((first[name] != other[name]).any() for name in first)


def test_nnx_grad_by_the_parameters_equals_the_references_gradient():
    case, layer, arrays = found("AdditiveAttention-closed")
    factors = cotangents(case, "float64")
    graphdef, parameters, rest = nnx.split(layer, nnx.Param, ...)

    @nnx.jit
    @nnx.grad
    def slope(layer: nnx.Module) -> jax.Array:
        return sum((factors[index] * output).sum() for index, output in enumerate(layer(**arrays)))

    slopes = slope(layer)
    assert jax.tree.structure(slopes) == jax.tree.structure(parameters)
    canonical = attention.get_parameters(nnx.merge(graphdef, slopes, rest))
    expected = gradients(case, "float64")
    assert_close(canonical, {name: expected[name] for name in canonical})


def test_a_step_of_gradient_descent_changes_every_parameter():
    _, decoder, arrays = found("BahdanauDecoder-ragged")
    before = attention.get_parameters(decoder)

    @nnx.jit
    def step(decoder: nnx.Module) -> jax.Array:
        def loss(decoder: nnx.Module) -> jax.Array:
            return -jax.nn.log_softmax(decoder(**arrays)[0])[..., 1].mean()

        value, slopes = nnx.value_and_grad(loss)(decoder)
        nnx.update(decoder, jax.tree.map(lambda a, slope: a - 0.1 * slope, nnx.state(decoder, nnx.Param), slopes))
        return value

    assert step(decoder) > step(decoder)
    assert len(before) == 14
    for name, array in attention.get_parameters(decoder).items():
        assert (array != before[name]).any(), name


@pytest.mark.parametrize("case_id", HIDING)
def test_debug_nans_finds_none_where_all_are_hidden_and_rows_are_closed(case_id: str):
    """It does where a hidden score is float16 or bfloat16, outside of jit: in the cast to float32, NaN is visible."""
    case, layer, arrays = found(case_id, "float32")
    function = bind(attention, case.operator, case.method, case.options)
    factors = {index: jnp.asarray(array) for index, array in cotangents(case, "float32").items()}
    with jax.debug_nans(True):
        function(layer, **arrays)
        runtime.vjp(function, arrays, factors, layer)


def test_debug_nans_finds_one_that_is_visible():
    _, layer, arrays = found("AdditiveAttention-none")
    spoilt = {**arrays, "values": arrays["values"].at[1, 3].set(jnp.nan)}
    with jax.debug_nans(True), pytest.raises(FloatingPointError):
        layer(**spoilt)


@pytest.mark.parametrize("case_id", DROPPING)
def test_training_draws_a_new_mask_in_every_call(case_id: str):
    _, layer, arrays = found(case_id, dropout=0.5)
    layer.train()
    assert differ(layer(**arrays), layer(**arrays))


def test_training_draws_a_new_mask_in_every_call_under_nnx_jit():
    _, layer, arrays = found("AdditiveAttention-open", dropout=0.5)
    layer.train()
    compiled = nnx.jit(call)
    assert differ(compiled(layer, arrays), compiled(layer, arrays))


@pytest.mark.parametrize("case_id", DROPPING)
def test_eval_after_training_switches_dropout_off(case_id: str):
    _, layer, arrays = found(case_id, dropout=0.5)
    _, without, _ = found(case_id)
    layer.train()
    layer(**arrays)
    layer.eval()
    assert not differ(layer(**arrays), without(**arrays))


def test_the_seed_of_the_layer_decides_what_is_dropped():
    _, _, arrays = found("DotProductAttention-open")
    first, again, other = (
        attention.DotProductAttention(dropout=0.5, rngs=nnx.Rngs(seed))(**arrays) for seed in (0, 0, 1)
    )
    assert not differ(first, again) and differ(first, other)


def test_dropout_without_a_stream_to_draw_from_raises():
    _, _, arrays = found("DotProductAttention-open")
    with pytest.raises(ValueError, match="rngs"):
        attention.DotProductAttention(dropout=0.5)(**arrays)


@pytest.mark.parametrize("token", [-1, 11])
def test_token_ids_are_checked_where_they_are_known(token: int):
    _, encoder, _ = found("GRUEncoder-none")
    tokens = jnp.array([[1, token, 3]])
    with pytest.raises(TokenError, match=f"id {token}, expected 0 to 10"):
        encoder(tokens)
    with pytest.raises(TokenError):
        nnx.jit(lambda encoder: encoder(tokens))(encoder)


def test_token_ids_pass_unchecked_while_tracing():
    _, encoder, _ = found("GRUEncoder-none")
    outputs, _ = nnx.jit(call)(encoder, {"tokens": jnp.array([[1, 11, 3]])})
    assert outputs.shape == (1, 3, 5)


def test_float32_works_without_64_bit_types():
    program = """
import warnings, jax, jax.numpy as jnp
from flax import nnx
from backends import jax as attention
warnings.simplefilter("error")
assert not jax.config.jax_enable_x64
layer = attention.AdditiveAttention(4, 3, 8, rngs=nnx.Rngs(0))
found = layer(jnp.ones((2, 5, 4)), jnp.ones((2, 7, 3)), jnp.ones((2, 7, 6)), jnp.array([3, 0]))
print(*(f"{array.dtype}{array.shape}".replace(" ", "") for array in found))
"""
    root = Path(backends.__file__).parents[1]
    variables = {**os.environ, "JAX_ENABLE_X64": "0", "PYTHONPATH": str(root)}
    done = subprocess.run([sys.executable, "-c", program], env=variables, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert done.stdout.split() == ["float32(2,5,6)", "float32(2,5,7)"]


# ------------------------------------------------------------------------------------------------ devices

ON_ANOTHER = """
from parity_tests.cases.suite import all_cases, select
from parity_tests.cases.call import bind
from parity_tests.workers.target import opened

backend = opened("backends.jax", "cpu:1")
assert list(backend.runtime.describe()["devices"]) == ["cpu", "cpu:1"]
(case,) = select(all_cases(), "AdditiveAttention-open")
inputs, parameters = case.at("float32")
layer = backend.runtime.build(backend.package.AdditiveAttention, case.config, "float32", "cpu:1")
backend.package.set_parameters(layer, parameters)
given = {name: backend.runtime.from_numpy(array, "cpu:1") for name, array in inputs.items()}
ones = {0: backend.runtime.from_numpy(inputs["values"][:, :5], "cpu:1")}
outputs, gradients, _ = backend.runtime.vjp(bind(backend.package, case.operator, "call", {}), given, ones, layer)
print({device.id for array in (*outputs, *gradients.values(), layer.w_v[...]) for device in array.devices()})
"""


def test_what_is_put_on_another_device_is_computed_there():
    variables = {**os.environ, **environment("jax", programs_folder(), "cpu:1")}
    done = subprocess.run([sys.executable, "-c", ON_ANOTHER], capture_output=True, text=True, env=variables)
    assert done.stdout.strip() == "{1}", done.stderr


def test_a_backend_is_held_against_itself_on_another_device():
    cases = select(all_cases(), "scaled_dot_score-*")
    jobs = [Job("jax", "backends.jax", device=device) for device in ("cpu:1", "cpu")]
    outcome = run(cells_of(cases, ["float64"]), jobs)
    assert list(outcome.recordings) == ["jax:cpu:1", "jax"] and not outcome.red
    told = {(verdict.device, verdict.against) for verdict in outcome.verdicts}
    assert told == {("cpu:1", "reference"), ("cpu", "reference"), ("cpu:1", "jax")}
    outcome.recordings["jax"].cells["scaled_dot_score-scale/float64"]["scores"] += 1e-9
    red = [v for v in judge_all(outcome.cells, list(outcome.recordings.values()), Questions()) if v.red]
    assert [(v.name, v.against, v.quantity) for v in red] == [
        ("jax", "reference", "scores"),
        ("jax:cpu:1", "jax", "scores"),
    ]


def test_an_additive_mask_in_float64_needs_x64():
    mask = jnp.array([[[True, False]]])
    jax.config.update("jax_enable_x64", False)
    try:
        assert attention.to_additive_mask(mask).dtype == jnp.float32
        with pytest.raises(OptionError) as raised:
            attention.to_additive_mask(mask, dtype="float64")
    finally:
        jax.config.update("jax_enable_x64", True)
    assert str(raised.value) == (
        "to_additive_mask: dtype is 'float64', expected one of 'float32', 'float16', 'bfloat16': JAX has it only where "
        "jax_enable_x64 is set."
    )


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_masks_of_other_conventions_are_traced(dtype: str):
    @jax.jit
    def there_and_back(padding: jax.Array) -> jax.Array:
        mask = attention.from_key_padding_mask(padding)
        added = attention.to_additive_mask(mask, dtype=dtype, finite=True)
        return attention.to_key_padding_mask(attention.from_additive_mask(added))

    padding = jnp.array([[False, True, False], [True, True, True]])
    assert (there_and_back(padding) == padding).all()


@pytest.fixture(params=PATHS)
def path(request: pytest.FixtureRequest) -> Any:
    """Both paths in turn, and the choice by size again after them."""
    choice.set_path(request.param)
    yield request.param
    choice.set_path(None)


def projected(scale: float = 1.0) -> tuple[jax.Array, jax.Array, jax.Array]:
    rng = np.random.default_rng(0)
    return tuple(jnp.asarray(scale * rng.normal(size=shape)) for shape in ((2, 3, 4), (2, 5, 4), (4,)))


def squares(queries: jax.Array, keys: jax.Array, w_v: jax.Array) -> jax.Array:
    return jnp.sum(attention.additive_score(queries, keys, w_v) ** 2)


def gradient_square(*arrays: jax.Array) -> jax.Array:
    return sum(jnp.sum(part**2) for part in jax.grad(squares, argnums=(0, 1, 2))(*arrays))


# Of saturated tanh, 1 - tanh² has lost digits in either formula.
@pytest.mark.parametrize(
    ("scale", "tolerance"), [(1.0, 1e-12), (35.0, 1e-12), (300.0, 1e-8)], ids=["narrow", "at the bound", "wide"]
)
def test_blocks_have_the_scores_and_two_derivatives_of_the_plain_formula(scale: float, tolerance: float):
    found = []
    for path in PATHS:
        choice.set_path(path)
        arrays = projected(scale)
        found.append((attention.additive_score(*arrays), jax.grad(gradient_square, argnums=(0, 1, 2))(*arrays)))
    choice.set_path(None)
    for actual, desired in zip(*map(jax.tree.leaves, found), strict=True):
        np.testing.assert_allclose(actual, desired, rtol=0.0, atol=tolerance * float(jnp.max(jnp.abs(desired))))


@jax.jit
def score_and_gradients(*arrays: jax.Array) -> tuple[jax.Array, ...]:
    *arguments, cotangents = arrays
    scores, back = jax.vjp(additive.blocked_additive_score, *arguments)
    return scores, *back(cotangents)


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("name", magnitudes.CASES)
def test_blocks_are_right_at_every_magnitude(name: str, dtype: str):
    arrays = [own.astype(dtype) for own in (*magnitudes.CASES[name], magnitudes.cotangent())]
    found, expected = [np.asarray(own) for own in score_and_gradients(*arrays)], magnitudes.exact(*arrays)
    assert max(magnitudes.errors(name, found, expected)) < 1.0
    if name in magnitudes.OF_ONE_SIGN:
        assert magnitudes.own_error(found[0], expected[0]) < magnitudes.OWN


@pytest.mark.parametrize("number", [np.inf, -np.inf, np.nan])
def test_a_w_v_that_is_not_finite_gives_the_scores_of_the_plain_formula(number: float):
    queries, keys, w_v = projected()
    w_v = w_v.at[2].set(number)
    found = additive.blocked_additive_score(queries, keys, w_v)
    np.testing.assert_allclose(found, jnp.tanh(queries[:, :, None] + keys[:, None]) @ w_v)


def test_an_odd_number_of_features_is_paired_as_well(path: str):
    queries, keys, w_v = (array[..., :3] for array in projected())
    assert_close(attention.additive_score(queries, keys, w_v), jnp.tanh(queries[:, :, None] + keys[:, None]) @ w_v)


def test_blocks_under_jit_and_vmap_give_the_same(path: str):
    arrays = projected()
    one_by_one = jax.jit(jax.vmap(lambda q, k: attention.additive_score(q[None], k[None], arrays[2])[0]))
    assert_close(one_by_one(*arrays[:2]), attention.additive_score(*arrays))


def test_a_nan_in_a_key_reaches_the_scores_of_that_key_alone(path: str):
    queries, keys, w_v = projected()
    scores = attention.additive_score(queries, keys.at[1, 2, 3].set(jnp.nan), w_v)
    assert np.argwhere(np.isnan(scores)).tolist() == [[1, row, 2] for row in range(3)]


def heads(queries: int = 5, keys: int = 7) -> tuple[jax.Array, jax.Array, jax.Array, jax.Array]:
    """Queries, keys and values of two heads, and a mask of rows that closes one row and hides one key from all."""
    rng = np.random.default_rng(1)
    arrays = (jnp.asarray(rng.normal(size=(2, 2, size, 4))) for size in (queries, keys, keys))
    mask = jnp.asarray(rng.random((2, 1, queries, keys)) < 0.7).at[0, 0, 1].set(False).at[1, :, :, 2].set(False)
    return *arrays, mask


@pytest.fixture
def small_blocks(monkeypatch: pytest.MonkeyPatch):
    """Blocks that do not fill their axes."""
    for name, size in {"ROWS": 3, "COLUMNS": 2}.items():
        monkeypatch.setattr(dot_product, name, size)
    monkeypatch.setattr(blocks, "BLOCK", 16)


W_V = np.array([0.5, -1.0, 2.0, 0.25])

Context = Callable[..., jax.Array]


def plain(score: Callable[[jax.Array, jax.Array], jax.Array]) -> Context:
    """The context by the plain formula."""
    return lambda queries, keys, values, mask: attention.attention_pooling(score(queries, keys), values, mask=mask)[0]


@pytest.fixture(params=["dot", "additive"])
def pair(request: pytest.FixtureRequest) -> tuple[Context, Context]:
    """The context alone in blocks, and by the plain formula."""
    if request.param == "dot":
        in_blocks: Context = partial(dot_product.blocked_dot_attention, scale=0.5)
        return in_blocks, plain(partial(attention.scaled_dot_score, scale=0.5))
    in_blocks = partial(additive.blocked_additive_attention, w_v=W_V)
    return in_blocks, plain(lambda queries, keys: jnp.tanh(queries[..., :, None, :] + keys[..., None, :, :]) @ W_V)


def contexts(pair: tuple[Context, Context], *arrays: jax.Array) -> list[jax.Array]:
    return [function(*arrays) for function in pair]


def context_gradients(pair: tuple[Context, Context], *arrays: jax.Array) -> list[tuple[jax.Array, ...]]:
    return [jax.grad(lambda *own, at=at: jnp.sum(at(*own) ** 2), argnums=(0, 1, 2))(*arrays) for at in pair]


@pytest.mark.parametrize("rows", ["its own rows", "one row", "none"])
def test_blocks_of_any_size_give_the_context_and_gradients_of_the_plain_formula(pair, small_blocks: None, rows: str):
    *sides, mask = heads()
    mask = {"its own rows": mask, "one row": mask[:, :, :1], "none": None}[rows]
    for actual, desired in zip(*context_gradients(pair, *sides, mask), strict=True):
        assert_close(actual, desired)
    assert_close(*contexts(pair, *sides, mask))


def test_the_gradient_of_w_v_is_summed_over_all_blocks(small_blocks: None):
    *sides, mask = heads()

    def plainly(w_v: jax.Array) -> jax.Array:
        return plain(lambda q, k: jnp.tanh(q[..., :, None, :] + k[..., None, :, :]) @ w_v)(*sides, mask)

    functions = partial(additive.blocked_additive_attention, *sides, mask), plainly
    assert_close(*(jax.grad(lambda w_v, at=at: jnp.sum(at(w_v) ** 2))(W_V) for at in functions))


def test_second_derivatives_of_a_context_alone_are_right(pair, small_blocks: None):
    *sides, mask = heads()
    found = []
    for function in pair:
        gradient = jax.grad(lambda *own, at=function: jnp.sum(at(*own, mask) ** 2), argnums=(0, 1, 2))
        square = lambda *own, of=gradient: sum(jnp.sum(part**2) for part in of(*own))  # noqa: E731
        found.append(jax.grad(square, argnums=(0, 1, 2))(*sides))
    for actual, desired in zip(*found, strict=True):
        assert_close(actual, desired)


def test_a_value_hidden_from_all_by_mask_or_by_score_changes_nothing(small_blocks: None):
    queries, keys, values, mask = heads()
    inner = partial(dot_product.blocked_dot_attention, scale=0.5), plain(partial(attention.scaled_dot_score, scale=0.5))
    keys = keys.at[0, 0, 4].set(-jnp.inf)
    clean = contexts(inner, jnp.abs(queries), keys, values, mask)
    values = values.at[0, 0, 4].set(jnp.nan).at[1, :, 2].set(jnp.nan)
    for own, actual in zip(clean, contexts(inner, jnp.abs(queries), keys, values, mask), strict=True):
        np.testing.assert_array_equal(actual, own)
    assert_close(*clean)


def test_a_value_hidden_from_all_by_an_infinite_w_v_changes_nothing(small_blocks: None):
    queries, keys, values, mask = heads()
    w_v = jnp.asarray(W_V).at[0].set(jnp.inf)
    queries = queries.at[..., 0].set(0.0)
    keys = jnp.abs(keys).at[0, 0, 4, 0].set(-1.0).at[1, :, 2].set(jnp.nan)  # hidden by its score, and by the mask
    values = values.at[0, 0, 4].set(jnp.nan).at[1, :, 2].set(jnp.nan)
    mask = mask.at[0, :, 0].set(jnp.arange(7) == 4).at[1, :, :, 2].set(False)
    scores = jnp.where(mask, jnp.tanh(queries[..., :, None, :] + keys[..., None, :, :]) @ w_v, 0.0)
    desired = attention.attention_pooling(scores, values, mask=mask)[0]
    np.testing.assert_allclose(additive.blocked_additive_attention(queries, keys, values, mask, w_v), desired)
    assert jnp.isfinite(desired[0, 0, 0]).all() and jnp.isnan(desired).any()


def test_a_key_hidden_from_all_changes_no_gradient(pair, small_blocks: None):
    queries, keys, values, mask = heads()
    gradients = jax.grad(lambda *own: jnp.sum(pair[0](*own, mask) ** 2), argnums=(0, 1, 2))
    clean, spoilt = (gradients(queries, own, values) for own in (keys, keys.at[1, :, 2].set(jnp.nan)))
    for actual, desired in zip(spoilt, clean, strict=True):
        np.testing.assert_array_equal(actual, desired)


def test_a_nan_in_a_value_reaches_what_it_reaches_in_the_plain_formula(pair):
    *sides, mask = heads()
    sides[2] = sides[2].at[0, 1, 3, 2].set(jnp.nan)
    for actual, desired in [contexts(pair, *sides, mask), *zip(*context_gradients(pair, *sides, mask), strict=True)]:
        np.testing.assert_array_equal(np.isnan(actual), np.isnan(desired))


@pytest.mark.parametrize("name", ["DotProductAttention", "AdditiveAttention", "ConcatAttention"])
def test_a_context_alone_comes_without_weights_on_both_paths(name: str, path: str):
    queries, keys, values, mask = heads()
    sizes = {} if name == "DotProductAttention" else {"query_size": 4, "key_size": 4, "hidden_size": 6}
    given = {**sizes, "rngs": nnx.Rngs(0), "dtype": "float64"} if sizes else {}
    layer = getattr(attention, name)(**given)
    context, weights = layer(queries, keys, values, mask=mask, need_weights=False)
    assert weights is None
    assert_close(context, layer(queries, keys, values, mask=mask)[0])


def test_a_context_alone_under_jit_and_vmap_is_the_same(pair, small_blocks: None):
    *sides, mask = heads()
    one_by_one = jax.jit(jax.vmap(lambda *own: pair[0](*(array[None] for array in own))[0]))
    assert_close(one_by_one(*sides, mask), contexts(pair, *sides, mask)[0])


def test_a_context_alone_keeps_nothing_of_queries_by_keys():
    """As XLA plans it, a step takes less than one array of scores."""
    rng = np.random.default_rng(0)
    arrays = tuple(jnp.asarray(rng.normal(size=(1, size, 4)), "float32") for size in (4096, 4096, 4096))

    def loss(*sides: jax.Array) -> jax.Array:
        return jnp.sum(additive.blocked_additive_attention(*sides, None, W_V.astype("float32")))

    step = jax.jit(jax.grad(loss, argnums=(0, 1, 2))).lower(*arrays).compile()
    assert step.memory_analysis().temp_size_in_bytes < 4096 * 4096 * 4 / 8


def test_the_condition_counts_elements_and_gives_way_to_force():
    large = jnp.zeros((1, 512, 8)), jnp.zeros((1, 2**16 // 4096, 8))
    assert choice.use_blocks(*large, 2**16) and not choice.use_blocks(large[0][:, 1:], large[1], 2**16)
    choice.set_path("plain")
    assert not choice.use_blocks(*large, 2**16)
    choice.set_path(None)


def test_an_unknown_path_is_refused():
    with pytest.raises(OptionError, match="path is 'fast', expected 'blocked' or 'plain', or None"):
        choice.set_path("fast")
