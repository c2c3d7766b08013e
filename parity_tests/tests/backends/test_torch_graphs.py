"""PyTorch's graphs: one serves every length, compiled or exported, and tokens without values pass unchecked."""

from __future__ import annotations

import functools
import io
import subprocess
import sys
from collections.abc import Callable
from typing import Any, NamedTuple

import pytest
import torch
from torch._dynamo.testing import CompileCounterWithBackend
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.export import Dim, ExportedProgram, export
from torch.func import functional_call, grad, vmap
from torch.utils._pytree import tree_leaves

from attention_core.draws import uniform
from attention_core.errors import TokenError
from backends import torch as attention

LENS = [2, 4]
TOKENS = torch.arange(8).reshape(2, 4)
VOCABULARY = 11


def drawn(name: str, *shape: int) -> torch.Tensor:
    return torch.as_tensor(uniform(name, shape).astype("float32"))


def tokens(steps: int) -> torch.Tensor:
    return torch.arange(2 * steps).reshape(2, steps) % VOCABULARY


def attend(keys: int) -> tuple[torch.Tensor, ...]:
    return drawn("queries", 2, 3, 8), drawn("keys", 2, keys, 8), drawn("values", 2, keys, 8), torch.tensor(LENS)


def decode(keys: int, *, steps: int | None = None, state_size: int = 6) -> tuple[torch.Tensor, ...]:
    """Arguments of a decoder: first sizes that are equal become one symbol, so steps are neither keys nor features."""
    outputs, state = drawn("outputs", 2, keys, 8), drawn("state", 1, 2, state_size)
    return tokens(keys + 4 if steps is None else steps), outputs, state, torch.tensor(LENS)


def run(steps: int) -> tuple[torch.Tensor, ...]:
    return drawn("inputs", 2, steps, 8), torch.tensor([1, steps])


class Graphed(NamedTuple):
    """How to make a layer, its arguments for a number of keys, and the names of the lengths on their second axes."""

    make: Callable[[], torch.nn.Module]
    arguments: Callable[[int], tuple[torch.Tensor, ...]]
    lengths: tuple[str | None, ...]


def attending(make: Callable[[], torch.nn.Module]) -> Graphed:
    return Graphed(make, attend, (None, "keys", "keys", None))


def decoding(name: str, **options: Any) -> Graphed:
    size = 12 if options.get("cell") == "lstm" else 6
    return Graphed(
        lambda: getattr(attention, name)(VOCABULARY, 4, 6, memory_size=8, **options),
        functools.partial(decode, state_size=size),
        ("steps", "keys", None, None),
    )


DECODERS: dict[str, Graphed] = {
    "BahdanauDecoder": decoding("BahdanauDecoder"),
    "BahdanauDecoder-maxout": decoding("BahdanauDecoder", readout="maxout", score="general"),
    "LuongDecoder": decoding("LuongDecoder"),
    "LuongDecoder-predictive": decoding("LuongDecoder", alignment="predictive", window=2, cell="lstm"),
    "FixedContextDecoder": decoding("FixedContextDecoder"),
}
LOOPS: dict[str, Graphed] = {
    "GRU": Graphed(lambda: attention.GRU(8, 6, 2), run, ("keys", None)),
    "LSTM": Graphed(lambda: attention.LSTM(8, 6, bidirectional=True), run, ("keys", None)),
    "GRU-no_lengths": Graphed(lambda: attention.GRU(8, 6), lambda steps: run(steps)[:1], ("keys",)),
    "GRUEncoder": Graphed(lambda: attention.GRUEncoder(VOCABULARY, 4, 6), lambda n: (tokens(n),), ("keys",)),
    "LSTMEncoder": Graphed(
        lambda: attention.LSTMEncoder(VOCABULARY, 4, 6, bidirectional=True),
        lambda steps: (tokens(steps), torch.tensor([1, steps])),
        ("keys", None),
    ),
    **DECODERS,
    "Translator": Graphed(
        lambda: attention.Translator(VOCABULARY, VOCABULARY, 4, 6, bidirectional=True),
        lambda keys: (tokens(keys), tokens(keys + 4), torch.tensor(LENS)),
        ("keys", "steps", None),
    ),
}
LAYERS: dict[str, Graphed] = {
    "DotProductAttention": attending(lambda: attention.DotProductAttention()),
    "AdditiveAttention": attending(lambda: attention.AdditiveAttention(8, 8, 6)),
    "GeneralAttention": attending(lambda: attention.GeneralAttention(8, 8)),
    "ConcatAttention": attending(lambda: attention.ConcatAttention(8, 8, 6)),
    "CosineAttention": attending(lambda: attention.CosineAttention()),
    "KernelAttention": attending(lambda: attention.KernelAttention()),
    "LocationAttention": attending(lambda: attention.LocationAttention(8, 65)),
    "LocalAttention-monotonic": attending(lambda: attention.LocalAttention(8, 8, window=2)),
    "LocalAttention-predictive": attending(lambda: attention.LocalAttention(8, 8, window=2, mode="predictive")),
    "HardAttention": attending(lambda: attention.HardAttention(8, 8)),
    "MultiHeadAttention": attending(lambda: attention.MultiHeadAttention(8, 2)),
    "MultiHeadAttention-additive": attending(lambda: attention.MultiHeadAttention(8, 2, score="additive")),
    "LowRankAttention": attending(lambda: attention.LowRankAttention(65, 3)),
    "CompressedAttention": attending(lambda: attention.CompressedAttention(8, 8, 3)),
    "InducedAttention": attending(lambda: attention.InducedAttention(8, 2, 3)),
    "SegmentAttention": Graphed(
        lambda: attention.SegmentAttention(8, 2),
        lambda keys: (drawn("inputs", 2, keys, 8), drawn("previous", 2, keys + 4, 8)),
        ("keys", "steps"),
    ),
    "NadarayaWatson": Graphed(
        lambda: attention.NadarayaWatson(),
        lambda keys: (drawn("queries", 2, 3), drawn("keys", 2, keys), drawn("values", 2, keys), torch.tensor(LENS)),
        (None, "keys", "keys", None),
    ),
    "Bridge": Graphed(
        lambda: attention.Bridge(6, method="sum"),
        lambda steps: (drawn("outputs", 2, steps, 12), drawn("state", 1, 2, 12)),
        ("keys", None),
    ),
    "LearnedPositions": Graphed(lambda: attention.LearnedPositions(64, 8), lambda n: run(n)[:1], ("keys",)),
    "SinusoidalPositions": Graphed(lambda: attention.SinusoidalPositions(8), lambda n: run(n)[:1], ("keys",)),
    "RotaryPositions": Graphed(lambda: attention.RotaryPositions(8), lambda n: run(n)[:1], ("keys",)),
    **LOOPS,
}


def test_the_compiler_is_not_imported_with_the_backend():
    """It takes seconds."""
    program = "import sys, torch, backends.torch; print('torch._dynamo' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["False"]


def made(name: str) -> tuple[torch.nn.Module, Callable[[int], tuple[torch.Tensor, ...]]]:
    """A layer in evaluation mode, and its arguments for a number of keys."""
    return LAYERS[name].make().eval(), LAYERS[name].arguments


def same(actual: Any, expected: Any, **options: bool) -> None:
    for one, other in zip(tree_leaves(actual), tree_leaves(expected), strict=True):
        torch.testing.assert_close(one, other, rtol=0.0, atol=1e-6, **options)


def saved_and_loaded(program: ExportedProgram) -> torch.nn.Module:
    file = io.BytesIO()
    torch.export.save(program, file)
    file.seek(0)
    return torch.export.load(file).module()


# An export has another graph for a single block, which the lengths here include.
@pytest.mark.parametrize("name", [name for name in LAYERS if name != "CompressedAttention"])
def test_an_exported_layer_is_saved_loaded_and_run_with_other_lengths(name: str):
    layer, arguments = made(name)
    axes = {length: Dim(length, min=2, max=64) for length in ("keys", "steps")}
    dynamic = tuple({1: axes[length]} if length else {} for length in LAYERS[name].lengths)
    again = saved_and_loaded(export(layer, arguments(5), dynamic_shapes=dynamic))
    for keys in (5, 9, 2):
        same(again(*arguments(keys)), layer(*arguments(keys)))


@pytest.mark.parametrize("name", [name for name in LAYERS if name not in LOOPS])
def test_a_compiled_layer_has_one_graph_for_every_length(name: str):
    one_graph("eager", *made(name), (5, 4, 6, 7, 8, 9, 12, 17, 20, 33))


@pytest.mark.parametrize("name", DECODERS)
def test_a_compiled_decoder_of_some_steps_has_one_graph_for_every_number_of_keys(name: str):
    layer, arguments = made(name)
    one_graph("eager", layer, functools.partial(arguments, steps=3), (5, 4, 6, 7, 8, 9, 12, 17, 20, 33))


@pytest.mark.parametrize("name", [name for name in LOOPS if "-" not in name])  # variants do not change the loop
@torch.no_grad()
def test_a_compiled_loop_has_one_graph_for_every_number_of_steps(name: str):
    # By a backend that compiles the step, too: PyTorch would trace it anew in every call.
    one_graph("aot_eager", *made(name), (5, 4, 9, 33))


def one_graph(backend: str, layer: torch.nn.Module, arguments: Callable[..., Any], lengths: tuple[int, ...]) -> None:
    """Assert that what the first length has compiled is right for all."""
    graphs, counts = CompileCounterWithBackend(backend), set()
    torch._dynamo.reset()
    compiled = torch.compile(layer, backend=graphs, dynamic=True, fullgraph=True)
    for length in lengths:
        same(compiled(*arguments(length)), layer(*arguments(length)))
        counts.add(graphs.frame_count)
    assert counts == {1 if backend == "eager" else 2}  # the second is that of a step


@pytest.mark.parametrize("name", LOOPS)
def test_a_layer_is_compiled_once_for_all_lengths_where_graphs_may_end(name: str):
    """By PyTorch's own compiler, which fails at a scan there, and takes long: for one layer of each loop."""
    layer, arguments = LAYERS[name].make(), LAYERS[name].arguments
    compiler = "inductor" if name in ("GRU", "BahdanauDecoder", "LuongDecoder") else "aot_eager"
    graphs, counts = CompileCounterWithBackend(compiler), set()
    torch._dynamo.reset()
    compiled = torch.compile(layer, backend=graphs, dynamic=True)
    for keys in (5, 7, 12):
        same(trained(layer, compiled, arguments(keys)), trained(layer, layer, arguments(keys)))
        counts.add(graphs.frame_count)
    assert len(counts) == 1


def trained(layer: torch.nn.Module, called: Callable[..., Any], arguments: tuple[torch.Tensor, ...]) -> list[Any]:
    """The outputs of a call, and the gradients of a loss of them by inputs and parameters."""
    inputs = [array.requires_grad_(array.is_floating_point()) for array in arguments]
    layer.zero_grad()
    outputs = [output for output in tree_leaves(called(*inputs)) if output.is_floating_point()]
    sum((output * drawn(f"{n}", *output.shape)).sum() for n, output in enumerate(outputs)).backward()
    return [*outputs, *(array.grad for array in (*inputs, *layer.parameters()))]


@pytest.mark.parametrize("name", ["BahdanauDecoder", "LuongDecoder"])
def test_each_step_of_one_graph_reads_its_own_masks(name: str):
    layer = getattr(attention, name)(VOCABULARY, 4, 6, 2, memory_size=8).eval()
    torch._dynamo.reset()
    compiled = torch.compile(layer, backend="aot_eager", dynamic=True, fullgraph=True)
    for steps in (9, 7):
        arguments = tokens(steps), drawn("outputs", 2, 5, 8), drawn("state", 2, 2, 6)
        masks = {
            "mask": drawn("mask", 2, steps, 5) > -0.3,
            "dropout_mask": 2.0 * (drawn("between", 1, 2, steps, 6) > 0.0),
            "attention_dropout_mask": 2.0 * (drawn("attention", 2, steps, 5) > 0.0),
        }
        arguments[1][0, 0] = torch.nan  # which only the last step sees
        masks["mask"][0, :, 0] = torch.arange(steps) == steps - 1
        with torch.no_grad():
            expected = layer(*arguments, **masks)
            same(compiled(*arguments, **masks), expected, equal_nan=True)
        assert not expected[0][:, :-1].isnan().any() and expected[0][0, -1].isnan().all()


def test_one_graph_under_autocast_is_compiled_for_its_number_of_steps():
    layer, arguments = made("GRU-no_lengths")
    torch._dynamo.reset()
    compiled = torch.compile(layer, backend="aot_eager", dynamic=True, fullgraph=True)
    with torch.autocast("cpu", torch.bfloat16), torch.no_grad():
        same(compiled(*arguments(3)), layer(*arguments(3)))


class Prepared(torch.nn.Module):
    """What prepares a memory."""

    def __init__(self, layer: Any) -> None:
        super().__init__()
        self.layer = layer

    def forward(self, *given: torch.Tensor) -> Any:
        return self.layer.prepare(*given)


class Stepped(Prepared):
    """One step that reads a memory."""

    def forward(self, *given: Any) -> Any:
        return self.layer.step(*given)


def test_a_memory_goes_out_of_an_exported_program_and_into_another():
    layer, arguments = made("LuongDecoder")
    words, outputs, state, lens = arguments(5)
    axes = {1: Dim("keys", min=2, max=64)}
    prepare = saved_and_loaded(export(Prepared(layer), (outputs, lens), dynamic_shapes=(((axes, {})),)))
    memory = layer.prepare(outputs, lens)
    same(prepare(outputs, lens), memory)
    first = layer.start(memory, state)
    step = saved_and_loaded(export(Stepped(layer), (words[:, 0], first, memory)))
    actual = step(words[:, 0], first, prepare(outputs, lens))
    assert isinstance(prepare(outputs, lens), attention.Memory) and isinstance(actual[1], attention.LuongState)
    same(actual, layer.step(words[:, 0], first, memory))
    words, outputs, _, lens = arguments(9)
    same(prepare(outputs, lens), layer.prepare(outputs, lens))


WITH_TOKENS: dict[str, tuple[Callable[[], torch.nn.Module], tuple[torch.Tensor, ...]]] = {
    "GRUEncoder": (lambda: attention.GRUEncoder(11, 4, 6), (TOKENS, torch.tensor(LENS))),
    "Translator": (lambda: attention.Translator(11, 11, 4, 6), (TOKENS, TOKENS, torch.tensor(LENS))),
    **{name: (DECODERS[name].make, (TOKENS, *DECODERS[name].arguments(5)[1:])) for name in DECODERS if "-" not in name},
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


@pytest.mark.parametrize("search", [{"width": 2, "num_best": 2}, {}], ids=["beam", "greedy"])
@pytest.mark.parametrize("name", [name for name in WITH_TOKENS if name != "GRUEncoder"])
def test_a_search_runs_all_steps_where_it_sees_no_tokens(name: str, search: dict[str, int]):
    make, (first, *others) = WITH_TOKENS[name]
    given = (first, torch.tensor(LENS)) if name == "Translator" else tuple(others)
    options = {"bos": 1, "eos": 2, "max_steps": 3, **search}

    def called(layer: Any, *arguments: torch.Tensor) -> list[torch.Size]:
        answers = (layer.beam if search else layer.greedy)(*arguments, **options)
        return [answer.shape for answer in answers]

    expected = called(make(), *given)
    assert called(make().to("meta"), *(argument.to("meta") for argument in given)) == expected
    with FakeTensorMode(allow_non_fake_inputs=True) as mode:
        assert called(make(), *map(mode.from_tensor, given)) == expected


@pytest.mark.parametrize("name", WITH_TOKENS)
def test_gradients_of_each_sample_are_those_of_a_loop(name: str):
    make, given = WITH_TOKENS[name]
    layer = make().double()  # in float32 the two differ by rounding, by more or less for other parameters
    arguments = tuple(argument.double() if argument.is_floating_point() else argument for argument in given)
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
            torch.testing.assert_close(mapped[parameter][index], gradient, rtol=0.0, atol=1e-13)
