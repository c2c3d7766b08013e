"""The JAX backend under the transformations of jax and flax.nnx: jit, vmap, grad, split and merge; and its dropout."""

from __future__ import annotations

import os
import subprocess
import sys
from functools import partial
from itertools import count
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

import backends
from attention_core.draws import uniform
from attention_core.errors import OptionError, TokenError
from backends import jax as attention
from backends.jax import masking, recurrent, runtime
from parity_tests.cases.suite import all_cases
from parity_tests.format.call import bind
from parity_tests.format.case import Case
from parity_tests.format.expected import cotangents, gradients, programs_folder
from parity_tests.format.selection import cells_of
from parity_tests.judge.compare import judge_all
from parity_tests.judge.question import Questions
from parity_tests.judge.run import run
from parity_tests.tests.places import ROOT
from parity_tests.workers.environment import environment
from parity_tests.workers.process import Job

FUNCTIONS = ["attention_mask-lens_and_mask", "masked_softmax-ragged", "attention_pooling-fully_masked"]
ATTENTION = [f"{name}Attention-fully_masked" for name in ("DotProduct", "Additive", "General", "Concat", "Cosine")]
RECURRENT = ["GRU-ragged", "GRUEncoder-ragged", "BahdanauDecoder-ragged"]
DROPPING = ["AdditiveAttention-open", "GRU-open", "BahdanauDecoder-open"]
HIDING = ["masked_softmax-fully_masked", "attention_pooling-hidden_nan", "AdditiveAttention-hidden_nan"]


def found(case_id: str, dtype: str = "float64", **config: Any) -> tuple[Case, Any, dict[str, jax.Array]]:
    """A case, its layer with its parameters (None for a function), and its inputs; no dropout masks are given."""
    (case,) = all_cases().select(case_id)
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


def test_flags_are_those_that_xla_read_at_the_first_computation(monkeypatch: pytest.MonkeyPatch):
    """JAX keeps programs under those of the environment. A file of tests that computes when imported is red here."""
    before = runtime.configure()
    assert before["older_emitters"] == (jax.__version_info__ < (0, 11))
    jnp.zeros(1)
    monkeypatch.setenv("XLA_FLAGS", "--xla_backend_optimization_level=3")
    assert runtime.configure() == before and "--xla_backend_optimization_level=0" in os.environ["XLA_FLAGS"]
    monkeypatch.undo()
    code = "import jax.numpy; jax.numpy.zeros(1); from backends.jax import runtime; print(runtime.configure())"
    flags = {"XLA_FLAGS": "--xla_backend_optimization_level=0", "PYTHONPATH": str(ROOT)}
    answer = subprocess.run([sys.executable, "-c", code], env={**os.environ, **flags}, capture_output=True, text=True)
    assert "'older_emitters': False" in answer.stdout, answer.stderr


def test_compilations_are_counted_once_however_often_the_settings_are_made(monkeypatch: pytest.MonkeyPatch):
    listeners: list[Any] = []
    monkeypatch.setattr(jax.monitoring, "register_event_duration_secs_listener", listeners.append)
    runtime.start_counting.cache_clear()
    for _ in range(2):
        runtime.configure()
    assert listeners == [runtime.count_compilation]


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


@pytest.mark.parametrize("name", ["DotProductAttention", "MultiHeadAttention"])
def test_a_memory_with_room_is_the_state_of_a_scan(name: str):
    _, layer, arrays = found(f"{name}-none")
    queries, keys, values = (arrays[key][:, :5] for key in ("queries", "keys", "values"))

    def step(memory: attention.Memory, new: tuple[Any, ...]) -> tuple[attention.Memory, jax.Array]:
        place, query, key, value = new
        memory = layer.extend(memory, key[:, None], value[:, None], position=place)
        return memory, layer.attend(query[:, None], memory)[0][:, 0]

    def decoded(arrays: tuple[jax.Array, ...]) -> jax.Array:
        room = layer.prepare(keys, values, [0, 0])
        return jax.lax.scan(step, room, (jnp.arange(5), *(jnp.swapaxes(array, 0, 1) for array in arrays)))[1]

    whole = layer(queries, keys, values, mask=attention.causal_mask(5, 5))[0]
    assert_close(jnp.swapaxes(jax.jit(decoded)((queries, keys, values)), 0, 1), whole)


def test_new_values_of_known_shapes_are_not_traced_again():
    _, layer, arrays = found("AdditiveAttention-fully_masked")
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


def test_vjp_compiles_once_for_new_parameters_and_for_a_second_layer(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(runtime, "CALLS", count(1))  # at every 128th call, programs are let go of
    traces = []

    def counted(layer: nnx.Module, **arrays: jax.Array) -> tuple[jax.Array, ...]:
        traces.append(1)
        return layer(**arrays)

    case, layer, arrays = found("AdditiveAttention-fully_masked")
    _, second, _ = found("AdditiveAttention-fully_masked")
    attention.set_parameters(second, {name: 0.5 * a for name, a in attention.get_parameters(layer).items()})
    factors = {index: jnp.asarray(array) for index, array in cotangents(case, "float64").items()}
    _, _, first = runtime.vjp(counted, arrays, factors, layer)
    _, _, other = runtime.vjp(counted, arrays, factors, second)
    assert len(traces) == 1 and all((first[name] != other[name]).any() for name in first)


def test_nnx_grad_by_the_parameters_equals_the_references_gradient():
    case, layer, arrays = found("AdditiveAttention-fully_masked")
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
def test_debug_nans_finds_none_where_all_are_hidden_and_rows_are_fully_masked(case_id: str):
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
from parity_tests.cases.suite import all_cases
from parity_tests.format.call import bind
from parity_tests.workers.target import open_target

backend = open_target("backends.jax", "cpu:1")
assert list(backend.runtime.describe()["devices"]) == ["cpu", "cpu:1"]
(case,) = all_cases().select("AdditiveAttention-open")
inputs, parameters = case.at("float32")
layer = backend.runtime.build(backend.package.AdditiveAttention, case.config, "float32", "cpu:1")
backend.package.set_parameters(layer, parameters)
given = {name: backend.runtime.from_numpy(array, "cpu:1") for name, array in inputs.items()}
ones = {0: backend.runtime.from_numpy(inputs["values"][:, :5], "cpu:1")}
outputs, gradients, _ = backend.runtime.vjp(bind(backend.package, case.operator, "call", {}), given, ones, layer)
print({device.id for array in (*outputs, *gradients.values(), layer.w_v[...]) for device in array.devices()})
"""


def test_arrays_on_another_device_are_computed_there():
    variables = {**os.environ, **environment("jax", programs_folder(), "cpu:1")}
    done = subprocess.run([sys.executable, "-c", ON_ANOTHER], capture_output=True, text=True, env=variables)
    assert done.stdout.strip() == "{1}", done.stderr


def test_a_backend_is_compared_with_itself_on_another_device():
    cases = all_cases().select("scaled_dot_score-*")
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


@pytest.mark.parametrize("layout", ["interleaved", "concatenated"])
def test_rotary_positions_without_float64_are_exact_at_large_positions(layout: str):
    layer = attention.RotaryPositions(64, layout=layout, base=500.0)
    inputs = np.random.default_rng(0).uniform(-1.0, 1.0, (6, 3, 64)).astype(np.float32)
    offset = np.array([0, 9_999, -131_071, 2**24 + 1, -5, 2**30], np.int32)
    exact = jax.jit(layer)(jnp.asarray(inputs.astype(np.float64)), offset=jnp.asarray(offset))
    assert exact.dtype == jnp.float64
    jax.config.update("jax_enable_x64", False)
    try:
        single = jax.jit(layer)(jnp.asarray(inputs), offset=jnp.asarray(offset))
    finally:
        jax.config.update("jax_enable_x64", True)
    assert single.dtype == jnp.float32
    np.testing.assert_allclose(single, exact, rtol=0.0, atol=3e-7)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_masks_of_other_conventions_are_traced(dtype: str):
    @jax.jit
    def there_and_back(padding: jax.Array) -> jax.Array:
        mask = attention.from_key_padding_mask(padding)
        added = attention.to_additive_mask(mask, dtype=dtype, finite=True)
        return attention.to_key_padding_mask(attention.from_additive_mask(added))

    padding = jnp.array([[False, True, False], [True, True, True]])
    assert (there_and_back(padding) == padding).all()


def test_a_projection_of_patches_is_a_strided_convolution():
    images, W = (jnp.asarray(uniform(name, shape)) for name, shape in (("images", (2, 4, 6, 3)), ("W_p", (5, 12))))
    filters, axes = W.T.reshape(2, 2, 3, 5), ("NHWC", "HWIO", "NHWC")
    convolved = jax.lax.conv_general_dilated(images, filters, (2, 2), "VALID", dimension_numbers=axes)
    projected = attention.patches(images, patch_size=2) @ W.T
    np.testing.assert_allclose(projected, convolved.reshape(2, 6, 5), rtol=1e-13, atol=1e-14)
