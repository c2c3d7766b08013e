"""Two PyTorch models: planted differences are found where they are, and what is right is green."""

from __future__ import annotations

import copy

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional as F

from parity_tests import assert_models_agree, compare_models
from parity_tests.models.inputs import read_inputs
from parity_tests.models.sides import SideError
from parity_tests.tests.models.planted import INPUTS, PLANTED, Attention, Decoder, Images, Sequence, make

DEEP = 24


def inputs_for(title: str) -> dict[str, np.ndarray]:
    """The inputs of the model that show the difference."""
    inputs = read_inputs(INPUTS[PLANTED[title][0]])
    if title == "fill of -1e4":
        inputs["mask"][1] = False  # a row without keys
    return inputs


@pytest.mark.parametrize("title", PLANTED)
def test_a_planted_difference_is_red_and_found_where_it_is(title: str):
    kind, plant, place, name = PLANTED[title]
    changed = make(kind)
    plant(changed)
    comparison = compare_models(changed, make(kind), inputs=inputs_for(title))
    assert comparison.red and comparison.first_difference is not None
    assert place in comparison.first_difference.sentence
    assert any(name in words for words in comparison.looks_like) or not name
    assert len(str(comparison).splitlines()) <= 30


def test_most_planted_differences_have_a_name():
    assert len(PLANTED) >= 40 and sum(bool(name) for *_, name in PLANTED.values()) >= 30


class Fused(Attention):
    """The same by the framework's function."""

    def forward(self, x, memory, mask=None, causal=False):
        q, k, v = (
            y.unflatten(-1, (self.heads, -1)).transpose(1, 2) for y in (self.q(x), self.k(memory), self.v(memory))
        )
        if self.rotary:
            q, k = self.turn(self, q), self.turn(self, k)
        allowed = torch.ones(q.shape[-2], k.shape[-2], dtype=torch.bool)
        allowed = allowed.tril() if causal else allowed
        allowed = allowed if mask is None else allowed & mask[:, None, None, :]
        return self.o(
            F.scaled_dot_product_attention(q, k, v, allowed.expand(len(q), 1, -1, -1)).transpose(1, 2).flatten(2)
        )


class Stepwise(Sequence):
    """The same, a step at a time, with the framework's cells."""

    def forward(self, tokens):
        x = self.embedding(tokens)
        for layer, cell in ((self.lstm, nn.LSTMCell), (self.gru, nn.GRUCell)):
            with torch.no_grad():
                step = cell(layer.input_size, layer.hidden_size).to(x.dtype)
            weights = {name.removesuffix("_l0"): tensor for name, tensor in layer.named_parameters()}
            state, outputs = None, []
            for index in range(x.shape[1]):
                state = torch.func.functional_call(step, weights, (x[:, index], state))
                outputs.append(state[0] if isinstance(state, tuple) else state)
            x = torch.stack(outputs, 1)
        return self.head(x[:, -1])


class Folded(Images):
    """The first convolution as a product of matrices."""

    def forward(self, images):
        weight = self.first.weight
        columns = F.unfold(images, 3, padding=1)
        x = (weight.flatten(1) @ columns).unflatten(-1, images.shape[-2:]) + self.first.bias[:, None, None]
        x = F.max_pool2d(F.leaky_relu(self.norm(x)), 2)
        return self.head(F.leaky_relu(self.second(x)).mean((-1, -2)))


def fused(model: nn.Module) -> nn.Module:
    for module in model.modules():
        module.__class__ = Fused if type(module) is Attention else type(module)
    return model


def as_class(model: nn.Module, kind: type[nn.Module]) -> nn.Module:
    model.__class__ = kind
    return model


def in_order(model: nn.Module) -> nn.Module:
    """A copy whose arrays lie otherwise in memory."""
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.data = parameter.data.t().contiguous().t() if parameter.ndim == 2 else parameter.data
    return model


RIGHT = {
    "fused": lambda: (fused(make(Decoder)), make(Decoder), INPUTS[Decoder]),
    "fused, rotary": lambda: (fused(make(Decoder, rotary=True)), make(Decoder, rotary=True), INPUTS[Decoder]),
    "24 layers": lambda: (
        fused(make(Decoder, width=32, layers=DEEP)),
        make(Decoder, width=32, layers=DEEP),
        "tokens: int (3, 7) < 37; memory: float (3, 9, 32); mask: mask (3, 9)",
    ),
    "stepwise": lambda: (as_class(make(Sequence), Stepwise), make(Sequence), INPUTS[Sequence]),
    "convolution by products": lambda: (as_class(make(Images), Folded), make(Images), INPUTS[Images]),
    "compiled": lambda: (torch.compile(make(Sequence), backend="aot_eager"), make(Sequence), INPUTS[Sequence]),
    "compiled images": lambda: (torch.compile(make(Images), backend="aot_eager"), make(Images), INPUTS[Images]),
    "another layout": lambda: (in_order(make(Decoder)), make(Decoder), INPUTS[Decoder]),
    "float32 and bfloat16": lambda: (make(Sequence).bfloat16(), make(Sequence).bfloat16().float(), INPUTS[Sequence]),
    "saturated": lambda: (scaled(fused(make(Decoder))), scaled(make(Decoder)), INPUTS[Decoder]),
    "a function": lambda: (
        lambda x, y: (x @ y).sum(-1),
        lambda x, y: x @ y.sum(-1),
        "x: float (5, 7); y: float (7, 3)",
    ),
}
"""Pairs that differ by rounding alone."""


def scaled(model: nn.Module) -> nn.Module:
    """With weights as large as those of trained models."""
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            parameter.mul_(3.0 if name.endswith(("q.weight", "k.weight", "up.weight")) else 1.0)
    return model


@pytest.mark.parametrize("title", RIGHT)
def test_what_differs_by_rounding_is_green(title: str):
    actual, expected, inputs = RIGHT[title]()
    comparison = assert_models_agree(actual, expected, inputs=inputs)
    assert comparison.verdicts and {verdict.dtype for verdict in comparison.verdicts} >= {"float64"}


@pytest.mark.parametrize("kind", INPUTS)
def test_training_agrees_and_a_momentum_does_not(kind: type[nn.Module]):
    comparison = compare_models(make(kind), make(kind), inputs=INPUTS[kind], train_steps=3)
    assert comparison.agree and any(one.quantity == "trained.loss.3" for one in comparison.verdicts)
    if kind is Images:
        changed = make(kind)
        changed.norm.momentum = 0.2
        red = compare_models(changed, make(kind), inputs=INPUTS[kind]).red
        assert {one.quantity for one in red} == {"state.norm.running_mean", "state.norm.running_var"}


def test_nothing_of_a_model_is_changed():
    model = make(Images)
    before, inputs = copy.deepcopy(model.state_dict()), read_inputs(INPUTS[Images])
    kept = {name: array.copy() for name, array in inputs.items()}
    compare_models(model, make(Images), inputs=inputs, weights="seeded", train_steps=1)
    assert all(torch.equal(tensor, before[name]) for name, tensor in model.state_dict().items())
    assert not model.training and all(np.array_equal(inputs[name], array) for name, array in kept.items())


class Random(Sequence):
    """Dropout that no mode turns off."""

    def forward(self, tokens):
        x, _ = self.lstm(F.dropout(self.embedding(tokens), 0.5, True))
        return self.head(self.gru(x)[0][:, -1])


def test_dropout_that_is_left_on_is_named_as_not_deterministic():
    comparison = compare_models(as_class(make(Sequence), Random), make(Sequence), inputs=INPUTS[Sequence])
    assert "lstm is not deterministic" in comparison.red[0].reason


def test_an_overflow_in_float32_alone_is_red():
    x = np.linspace(0.0, 100.0, 12).reshape(3, 4)
    naive = lambda x: torch.exp(x) / torch.exp(x).sum(-1, keepdim=True)  # noqa: E731
    comparison = compare_models(naive, lambda x: torch.softmax(x, -1), inputs={"x": x}, gradients=False)
    assert {verdict.case for verdict in comparison.red} == {"evaluation in float32"}


def test_copied_weights_are_those_of_the_expected_side():
    other = make(Decoder)
    with torch.no_grad():
        other.layers[0].up.weight.mul_(2.0)
    assert compare_models(other, make(Decoder), inputs=INPUTS[Decoder]).red
    assert compare_models(other, make(Decoder), inputs=INPUTS[Decoder], weights="copied").agree
    assert compare_models(other, make(Decoder), inputs=INPUTS[Decoder], weights="seeded").agree


def test_an_input_that_is_changed_in_place_is_red():
    red = compare_models(lambda x: x.mul_(2.0), lambda x: 2.0 * x, inputs="x: float (2, 3)", gradients=False).red
    assert [verdict.quantity for verdict in red] == ["input.x"]


@pytest.mark.parametrize(
    ("function", "words"),
    [
        (lambda x: torch.ones(3) @ torch.ones(4), "RuntimeError: inconsistent tensor size"),
        (lambda x: {"a": x, "b": x}, "returns a, b"),
        (lambda x: x[:, :2], "has shape (2, 2), expected (2, 3)"),
    ],
    ids=["raises", "another tree", "another shape"],
)
def test_what_cannot_be_compared_is_one_sentence(function, words: str):
    comparison = compare_models(function, lambda x: 2.0 * x, inputs="x: float (2, 3)", gradients=False)
    assert any(words in verdict.reason for verdict in comparison.red)


def test_an_unknown_input_names_those_there_are():
    with pytest.raises(SideError, match="takes no 'ids'; it takes tokens, memory, mask"):
        compare_models(
            make(Decoder), make(Decoder), inputs="ids: int (2, 7) < 37; memory: float (2, 9, 16); mask: mask (2, 9)"
        )


def test_an_export_without_state_is_compared_in_evaluation_alone(tmp_path):
    pytest.importorskip("onnxscript")
    onnx_file = tmp_path / "images.onnx"
    model = make(Images)
    torch.onnx.export(
        model, (torch.zeros(4, 3, 8, 10),), str(onnx_file), input_names=["images"], dynamo=True, external_data=False
    )
    comparison = compare_models(onnx_file, model, inputs=INPUTS[Images], names={"outputs": {}})
    assert comparison.agree, str(comparison)
    assert any("training mode was not compared" in note for note in comparison.notes)
    assert any("gradients were not compared: images.onnx has none" in note for note in comparison.notes)


class Changing(Images):
    """Another tree of outputs in training."""

    def forward(self, images):
        scores = super().forward(images)
        return {"extra": scores} if self.training else {"scores": scores}


def test_an_output_that_training_leaves_out_is_missing():
    class Same(Images):
        def forward(self, images):
            return {"scores": super().forward(images)}

    comparison = compare_models(as_class(make(Images), Changing), as_class(make(Images), Same), inputs=INPUTS[Images])
    assert [(one.case, one.quantity, one.status) for one in comparison.red] == [
        ("training", "output.scores", "missing")
    ]


class Failing(Sequence):
    """A model that refuses most numbers."""

    def forward(self, tokens):
        if not torch.equal(self.head.bias, self.head.bias.float().to(self.head.bias.dtype)):
            raise ValueError("the bias is no float32")
        return super().forward(tokens)


def test_a_side_that_raises_when_it_is_nudged_is_one_line():
    changed = make(Sequence)
    with torch.no_grad():
        changed.head.bias.add_(1e-3)
    comparison = compare_models(changed, as_class(make(Sequence), Failing), inputs=INPUTS[Sequence], gradients=False)
    assert any(one.status == "error" and "ValueError: the bias is no float32" in one.reason for one in comparison.red)


def test_names_pair_inputs_outputs_and_axes():
    def channels_last(pictures):
        return {"y": torch.relu(pictures) * 2.0}

    names = {
        "inputs": {"pictures": {"name": "images", "axes": [0, 2, 3, 1]}},
        "outputs": {"y": {"name": "features", "axes": [0, 2, 3, 1]}},
    }
    comparison = compare_models(
        channels_last,
        lambda images: {"features": 2.0 * torch.relu(images)},
        inputs="images: float (2, 3, 4, 5)",
        names=names,
    )
    assert comparison.agree and any(one.quantity == "gradient.input.images" for one in comparison.verdicts)
