"""Weights of PyTorch's own layers: the canonical arrays compute what the layer does, and its files are read."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from attention_core.draws import uniform
from backends import torch as attention
from backends import weights
from parity_tests.tests.weights.arrays import STACKS, same

INPUTS = uniform("inputs", (3, 6, 5))


def arrays_of(module: torch.nn.Module) -> dict[str, np.ndarray]:
    return {name: tensor.detach().numpy() for name, tensor in module.state_dict().items()}


@pytest.mark.parametrize("stack", [*STACKS, {"num_layers": 2, "bias": False}], ids=str)
@pytest.mark.parametrize("name", ["GRU", "LSTM"])
def test_a_recurrent_layer_and_its_canonical_arrays_compute_the_same(name: str, stack: dict[str, Any], answered):
    layer = getattr(torch.nn, name)(5, 4, batch_first=True, dtype=torch.float64, **stack)
    expected = layer(torch.from_numpy(INPUTS))[0].detach().numpy()
    converted = weights.to_canonical(arrays_of(layer))
    assert converted.source == f"torch.nn.{name}"
    np.testing.assert_allclose(answered(converted, INPUTS)[0], expected, rtol=0, atol=1e-14)


@pytest.mark.parametrize("stack", STACKS, ids=str)
@pytest.mark.parametrize("name", ["GRU", "LSTM"])
def test_the_way_back_from_canonical_arrays_computes_the_same(name: str, stack: dict[str, Any]):
    layer, other = (getattr(torch.nn, name)(5, 4, dtype=torch.float64, **stack) for _ in range(2))
    converted = weights.to_canonical(arrays_of(layer))
    back = weights.from_canonical(name, converted.arrays, f"torch.nn.{name}")
    other.load_state_dict({key: torch.from_numpy(array) for key, array in back.items()})
    torch.testing.assert_close(
        other(torch.from_numpy(INPUTS))[0], layer(torch.from_numpy(INPUTS))[0], rtol=0, atol=1e-15
    )


@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("sizes", [{}, {"kdim": 7, "vdim": 9}], ids=str)
def test_multihead_attention_and_its_canonical_arrays_compute_the_same(sizes: dict[str, int], bias: bool, answered):
    layer = torch.nn.MultiheadAttention(6, 3, bias=bias, batch_first=True, dtype=torch.float64, **sizes)
    with torch.no_grad():
        for number, parameter in enumerate(layer.parameters()):  # biases begin at 0, which would hide them
            parameter.copy_(torch.from_numpy(uniform(f"parameter {number}", tuple(parameter.shape))))
    inputs = [
        uniform("queries", (2, 4, 6)),
        uniform("keys", (2, 5, sizes.get("kdim", 6))),
        uniform("values", (2, 5, sizes.get("vdim", 6))),
    ]
    expected = [tensor.detach().numpy() for tensor in layer(*map(torch.from_numpy, inputs))]
    converted = weights.to_canonical(arrays_of(layer), num_heads=3)
    for pair in zip(answered(converted, *inputs), expected, strict=True):
        np.testing.assert_allclose(*pair, rtol=0, atol=1e-14)
    back = weights.from_canonical(converted.layer, converted.arrays, converted.source, **converted.config)
    layer.load_state_dict({key: torch.from_numpy(array) for key, array in back.items()})
    assert all(np.array_equal(array, back[name]) for name, array in arrays_of(layer).items())


@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize(("norm", "activation"), [("post", "relu"), ("pre", "gelu")])
@pytest.mark.parametrize("name", ["TransformerEncoderLayer", "TransformerDecoderLayer"])
def test_a_transformer_layer_and_its_canonical_arrays_compute_the_same(
    name: str, norm: str, activation: str, bias: bool, answered
):
    options = {"num_heads": 3, "norm": norm, "activation": activation, "epsilon": 1e-3}
    layer = getattr(torch.nn, name)(
        6,
        3,
        8,
        activation=activation,
        layer_norm_eps=1e-3,
        batch_first=True,
        norm_first=norm == "pre",
        bias=bias,
        dtype=torch.float64,
    ).eval()
    with torch.no_grad():
        for number, parameter in enumerate(layer.parameters()):
            parameter.copy_(torch.from_numpy(uniform(f"parameter {number}", tuple(parameter.shape))))
    inputs, masks = [uniform("inputs", (2, 4, 6))], {}
    if name == "TransformerDecoderLayer":
        inputs, masks = [*inputs, uniform("memory", (2, 5, 6))], {"tgt_mask": torch.ones(4, 4).triu(1).bool()}
    expected = layer(*map(torch.from_numpy, inputs), **masks).detach().numpy()
    converted = weights.to_canonical(arrays_of(layer), **options)
    assert converted.layer == name and options.items() <= converted.config.items()
    np.testing.assert_allclose(answered(converted, *inputs)[0], expected, rtol=0, atol=1e-14)
    back = weights.from_canonical(name, converted.arrays, converted.source, **converted.config)
    assert back.keys() == layer.state_dict().keys()
    assert all(np.array_equal(array, back[key]) for key, array in arrays_of(layer).items())


def with_drawn_parameters(module: torch.nn.Module) -> torch.nn.Module:
    """The module in float64; biases and norms would begin at 0 and 1, which hides them."""
    module = module.double().eval()
    with torch.no_grad():
        for name, parameter in module.named_parameters():
            parameter.copy_(torch.from_numpy(uniform(name, tuple(parameter.shape))))
    return module


STACKED = {"num_heads": 3, "norm": "pre", "activation": "gelu", "epsilon": 1e-3, "positions": "none"}
TRANSFORMER = {"activation": "gelu", "layer_norm_eps": 1e-3, "batch_first": True, "norm_first": True}
SOURCE, INPUT = np.array([[1, 2, 3, 4], [4, 5, 6, 0]]), np.array([[1, 2, 3], [4, 5, 6]])


@pytest.mark.parametrize("last_norm", [True, False])
@pytest.mark.parametrize("norm", ["post", "pre"])
def test_an_encoder_and_its_embedding_compute_the_same(norm: str, last_norm: bool, answered):
    """By prefixes of their own, and by one; the last norm is found in the arrays."""
    layer = torch.nn.TransformerEncoderLayer(6, 3, 8, **{**TRANSFORMER, "norm_first": norm == "pre"})
    last = torch.nn.LayerNorm(6, 1e-3) if last_norm else None
    encoder = torch.nn.TransformerEncoder(layer, 2, last, enable_nested_tensor=False)
    parts = {"tokens": torch.nn.Embedding(7, 6), "stack": encoder, "classes": torch.nn.Linear(6, 2)}
    model = with_drawn_parameters(torch.nn.ModuleDict(parts))
    expected = model["stack"](6**0.5 * model["tokens"](torch.from_numpy(SOURCE))).detach().numpy()
    arrays, options = arrays_of(model), {**STACKED, "norm": norm}
    converted = weights.to_canonical(arrays, prefix={"": "stack.", "embedding": "tokens."}, **options)
    assert converted.source == "torch.nn.TransformerEncoder" and converted.config["num_layers"] == 2
    assert converted.used["embedding"] == ("tokens.weight",)
    np.testing.assert_allclose(answered(converted, SOURCE)[0], expected, rtol=0, atol=1e-13)
    one = weights.from_canonical(converted.layer, converted.arrays, converted.source, prefix="e.", **converted.config)
    assert same(weights.to_canonical(one, **options).arrays, converted.arrays)


class Translator(torch.nn.Module):
    """A Transformer with embeddings of its own names, learned positions that both stacks share, and logits."""

    def __init__(self, norm: str) -> None:
        super().__init__()
        self.transformer = torch.nn.Transformer(6, 3, 2, 2, 8, **{**TRANSFORMER, "norm_first": norm == "pre"})
        self.source, self.target = torch.nn.Embedding(7, 6), torch.nn.Embedding(9, 6)
        self.place, self.generator = torch.nn.Embedding(5, 6), torch.nn.Linear(6, 9)

    def embedded(self, tokens: np.ndarray, embedding: torch.nn.Embedding) -> torch.Tensor:
        return 6**0.5 * embedding(torch.from_numpy(tokens)) + self.place(torch.arange(tokens.shape[1]))

    def forward(self, source: np.ndarray, inputs: np.ndarray) -> torch.Tensor:
        given = self.embedded(source, self.source), self.embedded(inputs, self.target)
        return self.generator(self.transformer(*given, tgt_mask=torch.ones(3, 3).triu(1).bool()))


PARTS = {"": "transformer.", "encoder.embedding": "source.", "decoder.embedding": "target."}
PARTS |= {"encoder.positions": "place.", "decoder.positions": "place.", "decoder.dense": "generator."}


@pytest.mark.filterwarnings("ignore:enable_nested_tensor")
@pytest.mark.parametrize("norm", ["post", "pre"])
def test_a_transformer_with_its_embeddings_computes_the_same(norm: str, answered):
    """It has last norms in any case."""
    model = with_drawn_parameters(Translator(norm))
    expected, arrays = model(SOURCE, INPUT).detach().numpy(), arrays_of(model)
    options = {**STACKED, "norm": norm, "positions": "learned"}
    converted = weights.to_canonical(arrays, prefix=PARTS, **options)
    assert converted.layer == "TransformerTranslator" and converted.config["num_positions"] == 5
    np.testing.assert_allclose(answered(converted, SOURCE, INPUT)[0], expected, rtol=0, atol=1e-13)
    back = weights.from_canonical(converted.layer, converted.arrays, converted.source, prefix=PARTS, **converted.config)
    assert same(dict(sorted(back.items())), dict(sorted(arrays.items())))
    decoder = {"": "transformer.decoder.", "embedding": "target.", "positions": "place.", "dense": "generator."}
    converted = weights.to_canonical(arrays, prefix=decoder, **options)
    assert converted.source == "torch.nn.TransformerDecoder"
    memory = uniform("memory", (2, 4, 6))
    given = torch.from_numpy(memory), torch.ones(3, 3).triu(1).bool()
    expected = model.generator(model.transformer.decoder(model.embedded(INPUT, model.target), *given))
    np.testing.assert_allclose(answered(converted, INPUT, memory)[0], expected.detach().numpy(), rtol=0, atol=1e-13)


@pytest.mark.parametrize(("name", "options"), [("LayerNorm", {}), ("LayerNorm", {"bias": False}), ("RMSNorm", {})])
def test_a_normalization_and_its_canonical_arrays_compute_the_same(name: str, options: dict[str, bool], answered):
    layer = getattr(torch.nn, name)(5, eps=1e-3, dtype=torch.float64, **options)
    arrays = {key: uniform(key, array.shape) for key, array in arrays_of(layer).items()}
    layer.load_state_dict({key: torch.from_numpy(array) for key, array in arrays.items()})
    converted = weights.to_canonical(arrays, f"torch.nn.{name}", epsilon=1e-3)
    expected = layer(torch.from_numpy(INPUTS)).detach().numpy()
    np.testing.assert_allclose(answered(converted, INPUTS), expected, rtol=0, atol=1e-14)


def test_keys_that_every_query_may_attend_to_are_refused():
    layer = torch.nn.MultiheadAttention(6, 3, add_bias_kv=True)
    with pytest.raises(weights.WeightError, match=r"bias_k .* adds a key that every query may attend to"):
        weights.to_canonical(arrays_of(layer), "torch.nn.MultiheadAttention", num_heads=3)


def test_a_projection_of_the_outputs_is_refused():
    layer = torch.nn.LSTM(5, 4, proj_size=3)
    with pytest.raises(weights.WeightError, match=r"weight_hr_l0 \(3, 4\): proj_size projects the outputs"):
        weights.to_canonical(arrays_of(layer), "torch.nn.LSTM")


class Textbook(torch.nn.Module):
    """The names, shapes and formulas of the textbook's decoder, one step at a time."""

    def __init__(self, recurrent: type, vocab: int, embed: int, hidden: int, layers: int) -> None:
        super().__init__()
        self.attention = torch.nn.Module()
        self.attention.W_k = torch.nn.Linear(hidden, hidden, bias=False)
        self.attention.W_q = torch.nn.Linear(hidden, hidden, bias=False)
        self.attention.w_v = torch.nn.Linear(hidden, 1, bias=False)
        self.embedding = torch.nn.Embedding(vocab, embed)
        self.rnn = recurrent(embed + hidden, hidden, layers)
        self.dense = torch.nn.Linear(hidden, vocab)
        self.double()

    def forward(self, tokens: torch.Tensor, memory: torch.Tensor, state: Any) -> torch.Tensor:
        outputs = []
        for embedded in self.embedding(tokens).permute(1, 0, 2):
            top = state[-1] if isinstance(state, torch.Tensor) else state[0][-1]
            query = self.attention.W_q(top[:, None])
            scores = self.attention.w_v(torch.tanh(query + self.attention.W_k(memory))).squeeze(-1)
            context = torch.softmax(scores, -1)[:, None] @ memory
            output, state = self.rnn(torch.cat((context[:, 0], embedded), -1)[None], state)
            outputs.append(output[0])
        return self.dense(torch.stack(outputs, 1))


@pytest.mark.parametrize(("recurrent", "cell"), [(torch.nn.GRU, "gru"), (torch.nn.LSTM, "lstm")])
def test_the_textbooks_decoder_and_bahdanau_decoder_compute_the_same(recurrent: type, cell: str, answered):
    decoder = Textbook(recurrent, 11, 5, 4, 2)
    tokens, memory = np.array([[1, 2, 3], [4, 5, 6]]), uniform("memory", (2, 7, 4))
    state = uniform("state", (2, 2, 8 if cell == "lstm" else 4))
    whole = torch.from_numpy(state)
    started = whole if cell == "gru" else (whole[..., :4].contiguous(), whole[..., 4:].contiguous())
    expected = decoder(torch.from_numpy(tokens), torch.from_numpy(memory), started).detach().numpy()
    converted = weights.to_canonical({f"decoder.{name}": array for name, array in arrays_of(decoder).items()})
    assert (converted.source, converted.config["cell"]) == ("textbook.BahdanauDecoder", cell)
    np.testing.assert_allclose(answered(converted, tokens, memory, state)[0], expected, rtol=0, atol=1e-14)


# ------------------------------------------------------------------------------------------------ files


@pytest.mark.parametrize("suffix", [".pt", ".pth", ".bin"])
def test_a_state_dict_is_read_as_it_was_saved(suffix: str, tmp_path: Path):
    layer = torch.nn.GRU(5, 4)
    torch.save(layer.state_dict(), tmp_path / f"gru{suffix}")
    assert same(weights.read_arrays(tmp_path / f"gru{suffix}"), arrays_of(layer))


def test_a_state_dict_inside_a_checkpoint_keeps_its_place_in_the_names(tmp_path: Path):
    torch.save({"epoch": 3, "model": torch.nn.GRU(5, 4).state_dict()}, tmp_path / "last.pt")
    assert "model.weight_ih_l0" in weights.read_arrays(tmp_path / "last.pt")
    assert weights.recognise(weights.read_arrays(tmp_path / "last.pt")) == ["torch.nn.GRU"]


@pytest.mark.parametrize("dtype", ["float64", "float32", "float16", "bfloat16", "int64", "bool"])
def test_every_dtype_survives_writing_and_reading(dtype: str, tmp_path: Path):
    import ml_dtypes  # noqa: F401  # teaches NumPy bfloat16

    arrays = {"a.b": np.arange(6).reshape(2, 3).astype(dtype), "scalar": np.ones((), dtype)}
    weights.write_arrays(tmp_path / "x.pt", arrays)
    assert same(weights.read_arrays(tmp_path / "x.pt"), arrays)
    assert torch.load(tmp_path / "x.pt", weights_only=True).keys() == arrays.keys()


def test_a_file_with_objects_is_refused_and_nothing_runs(tmp_path: Path):
    torch.save(torch.nn.GRU(5, 4), tmp_path / "module.pt")
    with pytest.raises(weights.WeightError, match=r"that can run any code: save model\.state_dict\(\) instead\.$"):
        weights.read_arrays(tmp_path / "module.pt")


class Trap:
    """What runs code when it is unpickled."""

    def __reduce__(self) -> tuple:
        return Path.touch, (Path("sprung"),)


def test_a_pickle_that_would_run_code_is_refused_and_nothing_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.chdir(tmp_path)
    torch.save({"weight": Trap()}, tmp_path / "trap.pt")
    with pytest.raises(weights.WeightError):
        weights.read_arrays(tmp_path / "trap.pt")
    assert not (tmp_path / "sprung").exists()


def test_a_truncated_file_and_one_of_another_kind_are_refused(tmp_path: Path):
    torch.save(torch.nn.GRU(5, 4).state_dict(), tmp_path / "gru.pt")
    data = (tmp_path / "gru.pt").read_bytes()
    for content in (data[:-200], data[: len(data) // 2], b"weights, but no file of them"):
        (tmp_path / "bad.pt").write_bytes(content)
        with pytest.raises(weights.WeightError, match=r"not a file that torch.save wrote, or truncated"):
            weights.read_arrays(tmp_path / "bad.pt")


def test_a_tensor_alone_is_no_state_dict(tmp_path: Path):
    torch.save(torch.ones(3), tmp_path / "tensor.pt")
    with pytest.raises(weights.WeightError, match="holds a Tensor, expected a state_dict"):
        weights.read_arrays(tmp_path / "tensor.pt")


@pytest.mark.filterwarnings("ignore")  # the older exporter is the one that needs no further package
@pytest.mark.parametrize("stack", STACKS, ids=str)
@pytest.mark.parametrize("name", ["GRU", "LSTM"])
def test_an_exported_layer_has_the_weights_that_it_was_exported_with(name: str, stack: dict[str, Any], tmp_path: Path):
    pytest.importorskip("onnx")
    layer = getattr(torch.nn, name)(5, 4, **stack)
    torch.onnx.export(layer, (torch.ones(6, 2, 5),), str(tmp_path / "model.onnx"), dynamo=False)
    arrays = weights.read_arrays(tmp_path / "model.onnx")
    assert weights.recognise(arrays) == [f"onnx.{name}"]
    prefixes = [f"/{name}.", f"/{name}_1."][: layer.num_layers]
    assert same(weights.to_canonical(arrays, prefix=prefixes).arrays, weights.to_canonical(arrays_of(layer)).arrays)


# ------------------------------------------------------------------------------------------------ our own layers


@pytest.mark.parametrize("norm", ["pre", "post"])
def test_a_whole_transformer_converts_through_its_state_dict(norm: str):
    model = attention.TransformerTranslator(11, 13, 6, 3, 8, 2, positions="learned", num_positions=9, norm=norm)
    arrays = {f"model.{name}": array for name, array in arrays_of(model).items()}
    options = {"num_heads": 3, "norm": norm, "activation": "relu", "epsilon": 1e-5}
    converted = weights.to_canonical(arrays, "attention_parity.torch", **options)
    assert converted.layer == "TransformerTranslator" and same(converted.arrays, attention.get_parameters(model))
    there = weights.from_canonical(converted.layer, converted.arrays, "attention_parity.torch", **converted.config)
    model.load_state_dict({name: torch.from_numpy(array) for name, array in there.items()})


OPTIONS = [
    {"readout": "maxout"},
    {"cell": "lstm", "encoder_cell": "gru"},
    {"decoder": "luong", "input_feeding": "context"},
    {"reads": "context"},
    {"reads": "context", "score": "concat"},
]


@pytest.mark.parametrize("options", OPTIONS, ids=str)
def test_a_whole_translator_converts_through_its_state_dict(options: dict[str, Any], tmp_path: Path):
    model = attention.Translator(11, 13, 5, 4, 2, bidirectional=True, **options)
    torch.save(model.state_dict(), tmp_path / "translator.pt")
    arrays = weights.read_arrays(tmp_path / "translator.pt")
    converted = weights.to_canonical(arrays, "attention_parity.torch")
    assert converted.layer == "Translator" and same(converted.arrays, attention.get_parameters(model))
    back = weights.from_canonical("Translator", converted.arrays, "attention_parity.torch", **converted.config)
    model.load_state_dict({name: torch.from_numpy(array) for name, array in back.items()})
