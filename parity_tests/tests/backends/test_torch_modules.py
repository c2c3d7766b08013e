"""Inner layers in PyTorch are modules like others: hooks, sharding, new parameters and quantisation reach them."""

from __future__ import annotations

from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard

import backends.torch as attention
from attention_core.operators import LAYERS
from attention_core.operators.training import Batch
from backends.torch.module import Specified
from parity_tests.cases.suite import all_cases
from parity_tests.tests.backends.blocks import on_path

BATCH, STEPS, KEYS, SIZE, WORDS = 2, 3, 5, 4, 7

OPTIONS: dict[str, dict[str, Any]] = {
    "LocalAttention": {"query_size": SIZE, "key_size": SIZE, "window": 2, "mode": "predictive", "score": "additive"},
    "HardAttention": {"query_size": SIZE, "key_size": SIZE, "score": "additive", "hidden_size": 6},
    "MultiHeadAttention": {"query_size": SIZE, "num_heads": 2, "score": "additive"},
    "InducedAttention": {"query_size": SIZE, "num_heads": 2, "num_inducing": 3},
    "BahdanauDecoder": {"vocab_size": WORDS, "embed_size": 3, "hidden_size": SIZE},
    "LuongDecoder": {"vocab_size": WORDS, "embed_size": 3, "hidden_size": SIZE, "score": "concat", "cell": "lstm"},
    "FixedContextDecoder": {"vocab_size": WORDS, "embed_size": 3, "hidden_size": SIZE},
    "GRUEncoder": {"vocab_size": WORDS, "embed_size": 3, "hidden_size": SIZE},
}


def made(name: str) -> tuple[Any, tuple[torch.Tensor, ...]]:
    """A layer with other layers inside, and arguments of a call."""
    torch.manual_seed(0)
    layer = getattr(attention, name)(**OPTIONS[name])
    tokens, memory = (
        torch.arange(BATCH * STEPS).view(BATCH, STEPS) % WORDS,
        torch.randn(BATCH, KEYS, SIZE, requires_grad=True),
    )
    if name.endswith("Decoder"):
        width = layer.sizes["state_size"]
        return layer, (tokens, memory, torch.zeros(1, BATCH, width))
    return layer, (tokens,) if name.endswith("Encoder") else (torch.randn(BATCH, STEPS, SIZE), memory, memory)


def inner(layer: torch.nn.Module) -> list[Any]:
    """The specified layers inside a layer."""
    return [module for module in layer.modules() if isinstance(module, Specified) and module is not layer]


@pytest.mark.parametrize("path", ["plain", "blocked"])
@pytest.mark.parametrize("name", OPTIONS)
def test_hooks_of_inner_layers_are_called_and_change_no_answer(name: str, path: str):
    layer, arguments = made(name)
    with on_path(SimpleNamespace(name="torch"), path):
        expected = layer(*arguments)
        seen: list[torch.nn.Module] = []
        for module in inner(layer):
            module.register_forward_hook(lambda module, _, answer: seen.append(module))
        answers = layer(*arguments)
    assert inner(layer) and {id(module) for module in seen} == {id(module) for module in inner(layer)}
    torch.testing.assert_close(answers, expected)
    assert not [module for module in inner(layer) if "forward" in vars(module)], "a call left its method behind"


def test_a_hook_of_the_attention_sees_the_weights_of_every_step():
    layer, arguments = made("BahdanauDecoder")
    seen: list[Any] = []
    layer.attention.register_forward_hook(lambda module, given, answer: seen.append(answer))
    _, _, weights = layer(*arguments)
    prepared, *steps = seen
    assert isinstance(prepared, attention.Memory) and len(steps) == STEPS
    assert torch.equal(torch.cat([step for _, step in steps], dim=1), weights)


@pytest.mark.parametrize("part", ["translator", "decoder", "compiled"])
def test_a_trainer_calls_what_is_hooked_or_compiled(part: str):
    seen, model = [], attention.Translator(WORDS, WORDS, 3, SIZE)
    if part == "compiled":
        model = torch.compile(model, backend=lambda graph, inputs: seen.append(1) or graph.forward)
    else:
        layer = model if part == "translator" else model.decoder
        layer.register_forward_hook(lambda module, given, answer: seen.append(answer[0].shape))
    lens, tokens = torch.full((BATCH,), 2), torch.ones(BATCH, STEPS, dtype=torch.int32)
    attention.Trainer(model, attention.sgd(0.1)).loss(Batch(tokens, lens, tokens, tokens, lens))
    assert seen == [1 if part == "compiled" else (BATCH, STEPS, WORDS)]


def test_hooks_of_inner_layers_are_called_in_a_compiled_decoder():
    layer = attention.LuongDecoder(11, 4, 6, memory_size=8)
    arguments, seen = (torch.arange(6).reshape(2, 3), torch.ones(2, 5, 8), torch.zeros(1, 2, 6)), []
    expected = layer(*arguments)[0]
    layer.rnn.register_forward_hook(lambda *_: seen.append("rnn"))
    torch._dynamo.reset()
    actual = torch.compile(layer, backend="eager")(*arguments)[0]
    torch.testing.assert_close(actual, expected, rtol=0.0, atol=1e-6)
    assert seen == ["rnn"] * 3


def test_a_hook_that_changes_an_answer_is_honoured():
    layer, arguments = made("MultiHeadAttention")
    layer.scored.register_forward_hook(lambda module, given, answer: answer * 0.0)
    _, weights = layer(*arguments)  # the projected keys are 0, too, and all scores
    torch.testing.assert_close(weights, torch.full((BATCH, STEPS, KEYS), 1.0 / KEYS))


def test_an_error_inside_a_hooked_layer_leaves_it_as_it_was():
    layer, arguments = made("BahdanauDecoder")
    expected = layer(*arguments)[0]

    def fail(*_: Any) -> None:
        raise KeyboardInterrupt

    handle = layer.attention.register_forward_hook(fail)
    with pytest.raises(KeyboardInterrupt):
        layer(*arguments)
    handle.remove()
    assert torch.equal(layer(*arguments)[0], expected)


@pytest.mark.parametrize("name", [layer.name for layer in LAYERS if layer.trainable])
def test_new_parameters_are_drawn_as_the_first_ones(name: str):
    torch.manual_seed(0)
    case = next(case for case in all_cases() if case.operator == name and case.parameters)
    sizes = {"hidden_size": 192, "patch_size": 2}  # another number of summands than the features are
    wide = {key: 96 for key in case.config if key.endswith("_size") or key == "features"}
    large = {**case.config, **wide, **{key: size for key, size in sizes.items() if key in case.config}}
    layer = getattr(attention, name)(**large)
    before = {key: parameter.detach().clone() for key, parameter in layer.named_parameters()}
    layer.to_empty(device="cpu")
    for parameter in layer.parameters():
        torch.nn.init.constant_(parameter, torch.nan)
    layer.reset_parameters()
    for key, parameter in layer.named_parameters():
        first = before[key]
        if len(first.unique()) == 1:  # a single number, or the gain or bias of a normalization
            assert torch.equal(parameter, first)
        else:
            assert not torch.equal(parameter, first)
            assert parameter.std().item() == pytest.approx(first.std().item(), rel=0.25), key


@pytest.fixture(scope="module")
def mesh(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    """A mesh of this process alone, in which parameters are sharded and gathered all the same."""
    store = dist.FileStore(str(tmp_path_factory.mktemp("mesh") / "store"), 1)
    dist.init_process_group("gloo", store=store, rank=0, world_size=1)
    yield init_device_mesh("cpu", (1,))
    dist.destroy_process_group()


@pytest.mark.parametrize("path", ["plain", "blocked"])
@pytest.mark.parametrize("name", OPTIONS)
def test_inner_layers_can_be_sharded(name: str, path: str, mesh: Any):
    layer, arguments = made(name)
    with on_path(SimpleNamespace(name="torch"), path):
        expected = layer(*arguments)[0]
        expected.square().sum().backward()
        gradients = [parameter.grad for parameter in layer.parameters()]
        layer.zero_grad()
        for module in (*inner(layer)[::-1], layer):
            fully_shard(module, mesh=mesh)
        answer = layer(*arguments)[0]
        answer.square().sum().backward()
    torch.testing.assert_close(answer, expected)
    for parameter, gradient in zip(layer.parameters(), gradients, strict=True):
        assert (parameter.grad is None) == (gradient is None)
        if gradient is not None:
            torch.testing.assert_close(parameter.grad.full_tensor(), gradient)


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
@pytest.mark.parametrize("path", ["plain", "blocked"])
@pytest.mark.parametrize("name", OPTIONS)
def test_a_layer_with_quantised_linear_maps_answers_nearly_as_before(name: str, path: str):
    layer, arguments = made(name)
    with on_path(SimpleNamespace(name="torch"), path), torch.no_grad():
        expected = layer.eval()(*arguments)[0]
        quantised = torch.ao.quantization.quantize_dynamic(layer, {torch.nn.Linear}, dtype=torch.qint8)
        assert name.endswith("Encoder") or [m for m in quantised.modules() if "quantized" in type(m).__module__]
        torch.testing.assert_close(quantised(*arguments)[0], expected, rtol=0.05, atol=0.05)
