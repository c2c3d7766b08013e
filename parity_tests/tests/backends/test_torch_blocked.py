"""What only PyTorch does in blocks: torch.func, torch.compile, operators, weights, and what a backward keeps."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial

import numpy as np
import pytest
import torch

from attention_core.draws import uniform
from attention_core.operators.training import Batch
from backends import torch as attention
from backends.torch import kernels
from backends.torch.blocked import additive, blocks, decoder_steps, dot_product
from parity_tests.tests.backends import magnitudes

MASKS = {
    "none": None,
    "padding": (torch.arange(7) < torch.tensor([7, 0, 4])[:, None])[:, None],
    "causal": (torch.arange(7) <= torch.arange(5)[:, None])[None],
    "heads": torch.tensor(uniform("hidden", (3, 2, 5, 7))) > 0,
}


@pytest.fixture(autouse=True)
def _small_blocks(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Blocks of which every test has several, with a last one that is smaller: two rows of five, two steps of three."""
    monkeypatch.setattr(additive, "BY_FEATURES", 2 * 7)
    monkeypatch.setattr(additive, "BY_ROWS", 2 * 7 * 40)
    monkeypatch.setattr(blocks, "BY_SCORES", 2 * 7)
    for module in (additive, dot_product):
        monkeypatch.setattr(module, "ROWS", 2)
        monkeypatch.setattr(module, "KEYS", 3)
    monkeypatch.setattr(decoder_steps, "BY_STEPS", 2 * 7 * 8)
    before = kernels.forced
    kernels.set_path("blocked")
    yield
    kernels.set_path(before)


def drawn(*lead: int, hidden: int = 4) -> list[torch.Tensor]:
    """Queries, keys, values and w_v in float64, of 5 queries and 7 keys."""
    shapes = {"q": (*lead, 5, hidden), "k": (*lead, 7, hidden), "v": (*lead, 7, 6), "w": (hidden,)}
    return [torch.tensor(uniform(name, shape)).requires_grad_() for name, shape in shapes.items()]


def plain_score(queries: torch.Tensor, keys: torch.Tensor, w_v: torch.Tensor) -> torch.Tensor:
    return torch.tanh(queries[..., :, None, :] + keys[..., None, :, :]) @ w_v


def plain_context(
    queries: torch.Tensor, keys: torch.Tensor, values: torch.Tensor, mask: torch.Tensor | None, w_v: torch.Tensor
) -> torch.Tensor:
    return attention.attention_pooling(plain_score(queries, keys, w_v), values, mask=mask)[0]


QUERIES, KEYS, VALUES, W_V = (own.detach() for own in drawn(3))
WIDE_QUERIES, WIDE_KEYS, _, WIDE_W_V = (own.detach() for own in drawn(3, hidden=40))
FUNCTIONS: dict[str, tuple[Callable[..., torch.Tensor], Callable[..., torch.Tensor], tuple[torch.Tensor, ...]]] = {
    "additive_score": (attention.additive_score, plain_score, (WIDE_QUERIES, WIDE_KEYS, WIDE_W_V)),
    "dot context": (
        partial(dot_product.blocked_dot_attention, mask=None, scale=0.5),
        lambda q, k, v: attention.attention_pooling(0.5 * q @ k.mT, v)[0],
        (QUERIES, KEYS, VALUES),
    ),
    "additive context": (
        additive.blocked_additive_attention,
        plain_context,
        (QUERIES, KEYS, VALUES, MASKS["padding"], W_V),
    ),
}
"""In blocks, by the plain formula, and arguments of both: w_v is the one without an axis of sequences."""


@pytest.mark.parametrize("name", FUNCTIONS)
def test_blocks_work_under_vmap_and_grad_of_torch_func(name: str):
    *functions, arguments = FUNCTIONS[name]
    axes = tuple(0 if own.ndim > 1 else None for own in arguments)
    floating = tuple(index for index, own in enumerate(arguments) if own.is_floating_point())

    def loss(function: Callable[..., torch.Tensor], *one: torch.Tensor) -> torch.Tensor:
        return (
            function(*(own if axis is None else own[None] for own, axis in zip(one, axes, strict=True))).square().sum()
        )

    for transform in (lambda f: f, partial(torch.func.grad, argnums=floating)):
        both = (torch.func.vmap(transform(partial(loss, function)), in_dims=axes)(*arguments) for function in functions)
        torch.testing.assert_close(*both)


@pytest.mark.parametrize("name", FUNCTIONS)
def test_a_second_derivative_through_blocks_is_refused(name: str):
    function, _, arguments = FUNCTIONS[name]
    queries = arguments[0].clone().requires_grad_()
    (first,) = torch.autograd.grad(function(queries, *arguments[1:]).sum(), queries, create_graph=True)
    with pytest.raises(RuntimeError, match="no second derivative is known"):
        first.sum().backward()


def test_blocks_are_one_graph_for_torch_compile():
    torch._dynamo.reset()
    compiled, results = torch.compile(attention.additive_score, backend="aot_eager", fullgraph=True), []
    for function in (compiled, plain_score):
        queries, keys, _, w_v = drawn(3, hidden=40)
        scores = function(queries, keys, w_v)
        cotangent = torch.tensor(uniform("g", (3, 5, 7)))
        results.append([scores, *torch.autograd.grad(scores, (queries, keys, w_v), cotangent)])
    torch.testing.assert_close(*results)


def test_a_context_in_blocks_is_one_graph_for_torch_compile():
    torch._dynamo.reset()
    mask = MASKS["padding"]
    for layer in (attention.DotProductAttention(), attention.AdditiveAttention(4, 4, 5, dtype=torch.float64)):
        compiled = torch.compile(layer, backend="aot_eager", fullgraph=True)
        for need_weights in (False, True):
            both = (own(QUERIES, KEYS, VALUES, mask=mask, need_weights=need_weights) for own in (compiled, layer))
            found, expected = both
            torch.testing.assert_close(found[0], expected[0])
            assert (found[1] is None) == (not need_weights)


def test_blocks_are_an_operator_as_pytorch_checks_them():
    checks, wide = ("test_schema", "test_faketensor"), (WIDE_QUERIES, WIDE_KEYS, WIDE_W_V)
    torch.library.opcheck(additive.score_node, wide, test_utils=checks)
    given = torch.ones(3, 5, 7, dtype=torch.float64), *wide
    torch.library.opcheck(additive.gradients_node, given, test_utils=checks)


# ---------------------------------------------------------------------------------------------- inner products


def attended(path: str, arguments: list[torch.Tensor], mask: torch.Tensor | None) -> list[torch.Tensor]:
    """Context and weights on a path, and their gradients."""
    kernels.set_path(path)
    outputs = attention.DotProductAttention()(*arguments, mask=mask)
    loss = sum((own * torch.tensor(uniform("c", tuple(own.shape)))).sum() for own in outputs)
    return [*outputs, *torch.autograd.grad(loss, arguments)]


@pytest.mark.parametrize("name", MASKS)
def test_context_and_weights_of_inner_products_in_blocks_have_the_numbers_of_the_plain_formula(name: str):
    *arguments, _ = drawn(3, 2) if name == "heads" else drawn(3)
    both = (attended(path, arguments, MASKS[name]) for path in ("blocked", "plain"))
    torch.testing.assert_close(*both, rtol=1e-13, atol=1e-13)


def test_context_and_weights_under_an_infinite_score_are_as_in_the_plain_formula():
    queries, keys, values, _ = (own.detach() for own in drawn(3))
    queries, keys[:, 3], values[:, 3] = queries.abs(), -torch.inf, torch.nan
    arguments = [own.requires_grad_() for own in (queries, keys, values)]
    both = [attended(path, arguments, None) for path in ("blocked", "plain")]
    assert both[0][0].isfinite().all()
    torch.testing.assert_close(*both, equal_nan=True)


@pytest.mark.parametrize("name", MASKS)
def test_a_context_without_gradients_is_the_same(name: str):
    *arguments, _ = drawn(3, 2) if name == "heads" else drawn(3)
    layer = attention.DotProductAttention()
    context, _ = layer(*arguments, mask=MASKS[name], need_weights=False)
    with torch.no_grad():
        found, _ = layer(*arguments, mask=MASKS[name], need_weights=False)
    torch.testing.assert_close(found, context, rtol=1e-13, atol=1e-13)


# ---------------------------------------------------------------------------------------------- additive scores


def additive_context(arguments: list[torch.Tensor], mask: torch.Tensor | None) -> list[torch.Tensor]:
    """The context in blocks, and its gradients."""
    queries, keys, values, w_v = arguments
    context = additive.blocked_additive_attention(queries, keys, values, mask, w_v)
    cotangent = torch.tensor(uniform("c", tuple(context.shape))).bfloat16()  # numbers that every dtype holds
    return [context, *torch.autograd.grad(context, arguments, cotangent.to(context.dtype))]


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_an_additive_context_is_computed_in_float32(dtype: torch.dtype):
    arguments = [own.detach().to(dtype).requires_grad_() for own in drawn(3)]
    precise = [own.detach().float().requires_grad_() for own in arguments]
    found, expected = additive_context(arguments, None), additive_context(precise, None)
    torch.testing.assert_close(found, [own.to(dtype) for own in expected], rtol=0.0, atol=0.0)


@pytest.mark.parametrize("number", [torch.nan, torch.inf])
@pytest.mark.parametrize("place", [3, 6], ids=["between", "padding"])
def test_what_is_hidden_from_all_has_no_influence_on_an_additive_context(place: int, number: float):
    mask, arguments = (torch.arange(7) != place) & MASKS["causal"].flip(1), drawn(3)
    expected = additive_context(arguments, mask)
    with torch.no_grad():
        arguments[1][:, place], arguments[2][:, place] = number, number
    torch.testing.assert_close(additive_context(arguments, mask), expected, rtol=0.0, atol=0.0)


def test_a_nan_in_the_gradient_of_an_additive_context_does_not_reach_what_is_hidden():
    (queries, keys, values, w_v), mask = drawn(3), torch.arange(7) != 3
    cotangent = torch.ones(3, 5, 6, dtype=torch.float64)
    cotangent[1, 2] = torch.nan
    results = []
    for function in (additive.blocked_additive_attention, plain_context):
        context = function(queries, keys, values, mask.expand(1, 1, 7), w_v)
        results.append(torch.autograd.grad(context, (keys, values), cotangent))
        assert all((own.isnan().any(dim=(0, 2)) == mask).all() for own in results[-1])
    torch.testing.assert_close(*results, equal_nan=True)


@pytest.mark.parametrize("mask", [None, MASKS["causal"]], ids=["open", "causal"])
def test_an_additive_context_keeps_its_arguments_alone(mask: torch.Tensor | None):
    kept: list[torch.Tensor] = []
    queries, keys, values, w_v = arguments = drawn(3)
    with torch.autograd.graph.saved_tensors_hooks(lambda own: kept.append(own) or own, lambda own: own):
        additive.blocked_additive_attention(queries, keys, values, mask, w_v)
    given = {own.data_ptr() for own in (*arguments, mask) if own is not None}
    assert {own.data_ptr() for own in kept} == given


@pytest.mark.parametrize(
    "layer",
    [
        attention.AdditiveAttention(4, 4, 5, dtype=torch.float64),
        attention.ConcatAttention(4, 4, 5, dtype=torch.float64),
        attention.MultiHeadAttention(4, 2, value_size=6, score="additive", dtype=torch.float64),
    ],
    ids=lambda layer: type(layer).__name__,
)
def test_a_layer_uses_the_additive_context_where_it_can(monkeypatch: pytest.MonkeyPatch, layer: torch.nn.Module):
    calls: list[tuple[torch.Tensor, ...]] = []
    own = additive.blocked_additive_attention
    monkeypatch.setattr(additive, "blocked_additive_attention", lambda *given: calls.append(given) or own(*given))
    *arguments, _ = drawn(3)
    mask = torch.ones((3, 2, 5, 7) if "MultiHead" in layer.specification.name else (3, 5, 7), dtype=torch.float64)
    results = []
    for path, options, taken in (
        ("blocked", {"need_weights": False}, True),
        ("plain", {"need_weights": False}, False),
        ("blocked", {}, False),
        ("blocked", {"need_weights": False, "dropout_mask": mask}, False),
    ):
        kernels.set_path(path)
        calls.clear()
        context, weights = layer(*arguments, mask=MASKS["padding"], **options)
        assert bool(calls) == taken and (weights is None) == ("need_weights" in options)
        cotangent = torch.tensor(uniform("c", tuple(context.shape)))
        results.append([context, *torch.autograd.grad(context, [*arguments, *layer.parameters()], cotangent)])
    for found in results[1:]:
        torch.testing.assert_close(found, results[0])


# ---------------------------------------------------------------------------------------------- a decoder's steps

TOKENS = torch.arange(12).reshape(3, 4) % 11
MASKS_OF_STEPS = "dropout_mask", "attention_dropout_mask"
MEMORY, STATE = (torch.tensor(uniform(name, shape)) for name, shape in (("m", (3, 7, 6)), ("s", (2, 3, 5))))


@pytest.fixture
def decoder() -> torch.nn.Module:
    """A decoder of those tokens, that memory and that state."""
    return attention.BahdanauDecoder(11, 4, 5, 2, memory_size=6, attention_size=8, dtype=torch.float64)


@pytest.fixture
def taken(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """One entry for each time that steps were one function."""
    calls: list[int] = []
    apply = decoder_steps.Steps.apply
    monkeypatch.setattr(decoder_steps.Steps, "apply", lambda *given: calls.append(1) or apply(*given))
    return calls


def test_a_hook_of_what_one_function_passes_by_is_called_at_each_step(taken: list[int]):
    decoder, calls = attention.LuongDecoder(11, 4, 5, 2, memory_size=6, dtype=torch.float64), []
    decoder.W_c.register_forward_hook(lambda *_: calls.append(1))
    decoder(TOKENS, MEMORY, STATE)
    assert len(calls) == 4 and not taken


@pytest.mark.parametrize("scale", [1e-30, 1e-6, 1e-3, 1.0])
def test_the_scores_of_a_step_keep_the_digits_of_a_small_tanh(scale: float):
    center = uniform("center", (3, 1, 40))
    near = scale * uniform("q", (3, 1, 40)) + center, scale * uniform("k", (3, 7, 40)) - center, uniform("w", (40,))
    arrays = [own.astype(np.float32) for own in near]
    expected = magnitudes.exact(*arrays, np.ones((3, 1, 7)))
    queries, keys, w_v = map(torch.tensor, arrays)
    features, scores = decoder_steps.Features(keys, w_v), torch.empty(3, 7)
    features.score(queries[:, 0], scores)
    d_scores, d_queries = torch.ones(1, 3, 7), torch.empty_like(queries)
    features.retreat(queries[:, 0], d_scores[0], d_queries[:, 0])
    gradients = d_queries, *features.gradients(queries.transpose(0, 1), d_scores)
    found = [own.numpy() for own in (scores[:, None], *gradients)]
    assert not features.exact and max(magnitudes.errors("", found, expected, arrays[2])) < 1.0


def test_steps_keep_nothing_without_gradients(decoder: torch.nn.Module, monkeypatch: pytest.MonkeyPatch):
    found = []
    apply = decoder_steps.Steps.apply
    monkeypatch.setattr(decoder_steps.Steps, "apply", lambda *given: found.append(apply(*given)) or found[-1])
    expected = decoder(TOKENS, MEMORY, STATE)
    with torch.no_grad():
        outputs = decoder(TOKENS, MEMORY, STATE)
    assert [own[5].shape[1] for own in found] == [4, 1]
    torch.testing.assert_close(outputs, expected, rtol=0, atol=0)


@pytest.mark.parametrize("cell", ["gru", "lstm"])
@pytest.mark.parametrize("score", ["additive", "general"])
@pytest.mark.parametrize("name", ["BahdanauDecoder", "LuongDecoder"])
def test_what_nobody_reads_of_a_sequence_is_left_out(name: str, score: str, cell: str):
    layer = getattr(attention, name)(11, 4, 5, 2, memory_size=6, score=score, cell=cell, dtype=torch.float64)
    factors = {"dropout_mask": (1, 3, 4, 5), "attention_dropout_mask": (3, 4, 7)}
    given = {"encoder_outputs": MEMORY, "valid_lens": torch.tensor([7, 0, 4]), "mask": None} | {
        name: 2.0 * (torch.tensor(uniform(name, shape)) > 0) for name, shape in factors.items()
    }
    lens = torch.tensor([2, 4, 0])
    read = torch.arange(4) < lens[:, None]
    state = torch.tensor(uniform("s", (2, 3, layer.sizes["state_size"])), requires_grad=True)
    cotangent, found = torch.tensor(uniform("d", (3, 4, 5))) * read[..., None], []
    for path, left_out in (("plain", None), ("blocked", lens)):
        kernels.set_path(path)
        features, _, weights = layer._features(TOKENS, state, **given, lens=left_out)
        gradients = torch.autograd.grad(features, [state, *layer.parameters()], cotangent, allow_unused=True)
        found.append([features[read], weights[read], *gradients])
    torch.testing.assert_close(*found, rtol=1e-13, atol=1e-14)
    assert not features[~read].any() and not weights[~read].any()


def test_the_state_of_a_sequence_is_that_after_its_last_step(decoder: torch.nn.Module):
    given = {"encoder_outputs": MEMORY, "valid_lens": None, "mask": None, **dict.fromkeys(MASKS_OF_STEPS)}
    state = STATE.clone().requires_grad_()
    _, last, _ = decoder._features(TOKENS, state, **given, lens=torch.tensor([2, 4, 0]))
    for sequence, steps in enumerate((2, 4, 0)):
        expected = decoder(TOKENS[:, :steps], MEMORY, state)[1]
        gradients = [torch.autograd.grad(one[:, sequence].sum(), state, retain_graph=True) for one in (last, expected)]
        torch.testing.assert_close(last[:, sequence], expected[:, sequence], rtol=1e-14, atol=1e-15)
        torch.testing.assert_close(*gradients, rtol=1e-14, atol=1e-15)


def test_a_training_step_leaves_out_what_does_not_count_in_its_loss(monkeypatch: pytest.MonkeyPatch):
    model, running, apply = attention.Translator(9, 11, 4, 5, dtype=torch.float64), [], decoder_steps.Steps.apply
    monkeypatch.setattr(decoder_steps.Steps, "apply", lambda *given: running.append(given[2].tolist()) or apply(*given))
    lens = torch.tensor([2, 4, 1])
    batch = Batch(TOKENS % 9, torch.tensor([4, 3, 4]), TOKENS, TOKENS, lens)
    attention.Trainer(model, attention.sgd(0.1)).step(batch)
    assert running == [[3, 2, 1, 1]]


def test_steps_are_computed_one_by_one_if_a_dropout_mask_has_a_gradient(decoder: torch.nn.Module):
    memory = decoder.prepare(MEMORY)
    assert decoder_steps.takes_steps(TOKENS, STATE, *memory, None, torch.ones(3, 4, 7))
    assert not decoder_steps.takes_steps(TOKENS, STATE, *memory, None, torch.ones(3, 4, 7, requires_grad=True))


def test_a_second_derivative_through_steps_is_refused(decoder: torch.nn.Module):
    memory = MEMORY.clone().requires_grad_()
    (first,) = torch.autograd.grad(decoder(TOKENS, memory, STATE)[0].sum(), memory, create_graph=True)
    with pytest.raises(RuntimeError, match="no second derivative is known where its steps are one function"):
        first.sum().backward()


def test_steps_work_under_vmap_and_grad_of_torch_func(decoder: torch.nn.Module):
    def loss(memory: torch.Tensor) -> torch.Tensor:
        return decoder(TOKENS, memory, STATE)[0].square().sum()

    memories = torch.stack([MEMORY, 2 * MEMORY])
    found = torch.func.vmap(torch.func.grad(loss))(memories)
    kernels.set_path("plain")  # whose cell torch.func does not map
    torch.testing.assert_close(found, torch.stack([torch.func.grad(loss)(own) for own in memories]))


def test_other_devices_than_a_cpu_use_blocks_from_a_size_of_their_own_on():
    kernels.set_path(None)
    queries, keys = torch.zeros(3, 4, 5, device="meta"), torch.zeros(3, 7, 5, device="meta")
    assert not kernels.use_blocks(queries, keys, 1)
    assert [kernels.use_blocks(queries, keys, 1, 3 * 4 * 7 * 5 + more) for more in (0, 1)] == [True, False]
