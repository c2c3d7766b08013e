"""PyTorch's graphs: one serves every number of keys, compiled or exported, and tokens without values pass unchecked."""

from __future__ import annotations

import io
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.export import Dim, export
from torch.func import functional_call, grad, vmap
from torch.utils._pytree import tree_leaves

from attention_core.draws import uniform
from attention_core.errors import TokenError
from backends import torch as attention

LENS = [2, 4]
TOKENS = torch.arange(8).reshape(2, 4)


def drawn(name: str, *shape: int) -> torch.Tensor:
    return torch.as_tensor(uniform(name, shape).astype("float32"))


def attend(keys: int) -> tuple[torch.Tensor, ...]:
    return drawn("queries", 2, 3, 8), drawn("keys", 2, keys, 8), drawn("values", 2, keys, 8), torch.tensor(LENS)


def decode(keys: int) -> tuple[torch.Tensor, ...]:
    return TOKENS, drawn("outputs", 2, keys, 8), drawn("state", 1, 2, 6), torch.tensor(LENS)


DECODERS: dict[str, Callable[[], torch.nn.Module]] = {
    name: lambda name=name: getattr(attention, name)(11, 4, 6, memory_size=8)  # type: ignore[misc]
    for name in ("BahdanauDecoder", "LuongDecoder", "FixedContextDecoder")
}
LAYERS: dict[str, Callable[[], torch.nn.Module]] = {
    "DotProductAttention": lambda: attention.DotProductAttention(),
    "AdditiveAttention": lambda: attention.AdditiveAttention(8, 8, 6),
    "GeneralAttention": lambda: attention.GeneralAttention(8, 8),
    "ConcatAttention": lambda: attention.ConcatAttention(8, 8, 6),
    "CosineAttention": lambda: attention.CosineAttention(),
    "KernelAttention": lambda: attention.KernelAttention(),
    "MultiHeadAttention": lambda: attention.MultiHeadAttention(8, 2),
    **DECODERS,
}


def made(name: str) -> tuple[torch.nn.Module, Callable[[int], tuple[torch.Tensor, ...]]]:
    """A layer in evaluation mode, and its arguments for a number of keys."""
    return LAYERS[name]().eval(), decode if name in DECODERS else attend


def same(actual: Any, expected: Any) -> None:
    for one, other in zip(tree_leaves(actual), tree_leaves(expected), strict=True):
        torch.testing.assert_close(one, other, rtol=0.0, atol=1e-6)


@pytest.mark.parametrize("name", LAYERS)
def test_an_exported_layer_is_saved_loaded_and_run_with_other_keys(name: str):
    layer, arguments = made(name)
    dynamic = {1: Dim("keys", min=2, max=64)}
    first, *others = ({}, dynamic, {}, {}) if name in DECODERS else ({}, dynamic, dynamic, {})
    file = io.BytesIO()
    torch.export.save(export(layer, arguments(5), dynamic_shapes=(first, *others)), file)
    file.seek(0)
    again = torch.export.load(file).module()
    for keys in (5, 9, 2):
        same(again(*arguments(keys)), layer(*arguments(keys)))


@pytest.mark.parametrize("name", LAYERS)
def test_a_compiled_layer_has_one_graph_for_every_number_of_keys(name: str):
    layer, arguments = made(name)
    graphs = []

    def backend(graph: torch.fx.GraphModule, _: list[Any]) -> Callable[..., Any]:
        graphs.append(graph)
        return graph.forward

    torch._dynamo.reset()
    compiled = torch.compile(layer, backend=backend, dynamic=True, fullgraph=True)
    for keys in (5, 4, 6, 7, 8, 9, 12, 17, 20, 33):
        same(compiled(*arguments(keys)), layer(*arguments(keys)))
    assert len(graphs) == 1


WITH_TOKENS: dict[str, tuple[Callable[[], torch.nn.Module], tuple[torch.Tensor, ...]]] = {
    "GRUEncoder": (lambda: attention.GRUEncoder(11, 4, 6), (TOKENS, torch.tensor(LENS))),
    "Translator": (lambda: attention.Translator(11, 11, 4, 6), (TOKENS, TOKENS, torch.tensor(LENS))),
    **{name: (layer, decode(5)) for name, layer in DECODERS.items()},
}


@pytest.mark.parametrize("name", WITH_TOKENS)
def test_tokens_without_values_are_checked_by_their_shapes_alone(name: str):
    make, arguments = WITH_TOKENS[name]
    layer = make()
    expected = [output.shape for output in tree_leaves(layer(*arguments))]
    on_meta = make().to("meta")(*(argument.to("meta") for argument in arguments))
    with FakeTensorMode(allow_non_fake_inputs=True) as mode:
        faked = layer(*map(mode.from_tensor, arguments))
    for outputs in (on_meta, faked):
        assert [output.shape for output in tree_leaves(outputs)] == expected
    with pytest.raises(TokenError, match="holds the id 11"):
        layer(torch.full_like(arguments[0], 11), *arguments[1:])


@pytest.mark.parametrize("name", WITH_TOKENS)
def test_gradients_of_each_sample_are_those_of_a_loop(name: str):
    make, arguments = WITH_TOKENS[name]
    layer = make()
    parameters = {name: parameter.detach() for name, parameter in layer.named_parameters()}
    axes = tuple(1 if name in DECODERS and place == 2 else 0 for place in range(len(arguments)))  # a state has layers

    def loss(given: dict[str, torch.Tensor], *sample: torch.Tensor) -> torch.Tensor:
        batch = tuple(argument.unsqueeze(axis) for argument, axis in zip(sample, axes, strict=True))
        total: torch.Tensor = (tree_leaves(functional_call(layer, given, batch))[0] ** 2).sum()
        return total

    mapped = vmap(grad(loss), in_dims=(None, *axes))(parameters, *arguments)
    for index in range(2):
        sample = (argument.select(axis, index) for argument, axis in zip(arguments, axes, strict=True))
        for parameter, gradient in grad(loss)(parameters, *sample).items():
            torch.testing.assert_close(mapped[parameter][index], gradient, rtol=0.0, atol=1e-6)
