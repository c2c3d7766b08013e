"""Forward mode in PyTorch: where sizes or `set_path` ask for blocks, the plain formula is taken, which has tangents."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace

import pytest
import torch
from torch.func import functional_call, hessian, jacfwd, jacrev, jvp

from attention_core.draws import uniform
from backends import torch as attention
from parity_tests.tests.backends.blocks import on_path

Function = Callable[..., torch.Tensor]


def drawn(name: str, *shape: int) -> torch.Tensor:
    return torch.as_tensor(uniform(name, shape))


def context(layer: torch.nn.Module, need_weights: bool) -> tuple[Function, list[torch.Tensor]]:
    """The context as a function of queries, keys and values."""
    arguments = [drawn("queries", 2, 3, 8), drawn("keys", 2, 5, 8), drawn("values", 2, 5, 4)]
    return lambda *given: layer(*given, torch.tensor([2, 5]), need_weights=need_weights)[0], arguments


def logits(decoder: torch.nn.Module) -> tuple[Function, list[torch.Tensor]]:
    """The logits as a function of encoder outputs and state."""
    tokens = torch.arange(8).reshape(2, 4)
    return lambda outputs, state: decoder(tokens, outputs, state)[0], [
        drawn("outputs", 2, 5, 8),
        drawn("state", 1, 2, 6),
    ]


DOUBLE = {"dtype": torch.float64}


def functions() -> dict[str, tuple[Function, list[torch.Tensor]]]:
    """Functions of layers whose parameters are the same in every run, with their arguments."""
    with torch.random.fork_rng():
        torch.manual_seed(0)
        layers = {
            "dot": attention.DotProductAttention(),
            "additive": attention.AdditiveAttention(8, 8, 6, **DOUBLE),
            "heads": attention.MultiHeadAttention(8, 2, value_size=4, **DOUBLE),
        }
        decoder = attention.BahdanauDecoder(11, 4, 6, memory_size=8, **DOUBLE)
    contexts = {f"{name}-{need}": context(layer, need) for name, layer in layers.items() for need in (True, False)}
    return {**contexts, "decoder": logits(decoder)}


FUNCTIONS = functions()


@pytest.mark.parametrize("name", FUNCTIONS)
def test_forward_mode_has_the_derivatives_of_reverse_mode(name: str):
    function, arguments = FUNCTIONS[name]
    with on_path(SimpleNamespace(name="torch"), "blocked"):
        for place, argument in enumerate(arguments):

            def alone(given: torch.Tensor, place: int = place) -> torch.Tensor:
                return function(*arguments[:place], given, *arguments[place + 1 :])

            expected = jacrev(alone)(argument)
            torch.testing.assert_close(jacfwd(alone)(argument), expected, rtol=0.0, atol=1e-14)
            tangent = drawn("tangent", *argument.shape)
            actual = jvp(alone, (argument,), (tangent,))[1]
            torch.testing.assert_close(actual, torch.tensordot(expected, tangent, argument.ndim), rtol=0.0, atol=1e-13)


@pytest.mark.parametrize("name", FUNCTIONS)
def test_a_hessian_is_that_of_the_plain_formula(name: str):
    function, arguments = FUNCTIONS[name]
    by_path = {}
    for path in ("plain", "blocked"):
        with on_path(SimpleNamespace(name="torch"), path):
            by_path[path] = hessian(lambda given: (function(given, *arguments[1:]) ** 2).sum())(arguments[0])
    assert by_path["plain"].abs().max() > 1e-3
    torch.testing.assert_close(by_path["blocked"], by_path["plain"], rtol=0.0, atol=0.0)


def test_parameters_have_tangents():
    layer = attention.AdditiveAttention(8, 8, 6, **DOUBLE)
    _, arguments = context(layer, False)
    parameters = dict(layer.named_parameters())

    def answer(given: dict[str, torch.Tensor]) -> torch.Tensor:
        return functional_call(layer, given, tuple(arguments), {"need_weights": False})[0]

    with on_path(SimpleNamespace(name="torch"), "blocked"):
        forward, reverse = jacfwd(answer)(parameters), jacrev(answer)(parameters)
    for name in parameters:
        torch.testing.assert_close(forward[name], reverse[name], rtol=0.0, atol=1e-14)
