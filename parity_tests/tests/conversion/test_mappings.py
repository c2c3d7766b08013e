"""A wrong mapping is red in outputs and gradients, and the right one is green."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import numpy as np
import pytest

from attention_core.operators import find
from backends import weights
from parity_tests.conversion.validation import (
    MOST_ENTRIES,
    Side,
    chosen_entries,
    validate,
    validation_cases,
    with_parameters,
)
from parity_tests.format.case import FULL
from parity_tests.format.expected import in_memory
from parity_tests.format.selection import cells_of
from parity_tests.judge.run import Run
from parity_tests.tests.conversion.conversions import HEADS, SQUARE, drawn, failures, job, of, swapped, validated
from parity_tests.third_party import layers
from parity_tests.workers.answers import Answer
from parity_tests.workers.process import Job, Progress, Server
from parity_tests.workers.recordings import Batch, Recording, batch_of


def transposed(arrays: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    return {name: array.swapaxes(1, 2) if name.endswith(".U") else array for name, array in arrays.items()}


def exchanged(arrays: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    return {**arrays, "0.W": arrays["0.U"], "0.U": arrays["0.W"]}


def without_hidden_bias(arrays: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    return {name: 0.0 * array if name.endswith("b_hn") else array for name, array in arrays.items()}


def outside_the_gate(arrays: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    bias = arrays["0.b"] + np.stack([0.0 * arrays["0.b_hn"]] * 2 + [arrays["0.b_hn"]])
    return {**arrays, "0.b": bias, "0.b_hn": 0.0 * arrays["0.b_hn"]}


WRONG = (swapped, transposed, exchanged, without_hidden_bias, outside_the_gate)


@pytest.mark.parametrize("wrong", WRONG, ids=lambda wrong: wrong.__name__)
def test_a_wrong_mapping_is_red_in_outputs_and_gradients(wrong: Callable[..., Any], fake_job: Callable[..., Job]):
    right = drawn("GRU", SQUARE)
    run = validate(find("GRU"), SQUARE, right, [Side(fake_job(), wrong(right))])
    red = {(one.dtype, one.quantity) for one in run.red}
    quantities = ("outputs", "state", "gradient_inputs", "gradient_state")
    assert red == {(dtype, quantity) for dtype in ("float64", "float32") for quantity in quantities}


def test_the_right_mapping_is_green(fake_job: Callable[..., Job]):
    right = drawn("GRU", SQUARE)
    run = validate(find("GRU"), SQUARE, right, [Side(fake_job(), right)])
    assert not run.red and len(run.verdicts) == 16, failures(run)


@pytest.mark.frameworks("torch")
def test_every_wrong_mapping_of_a_framework_s_layer_is_red():
    right = drawn("GRU", SQUARE)
    raw = weights.from_canonical("GRU", right, "torch.nn.GRU")
    with Server(job("torch.nn.GRU")) as server:
        assert not validated("torch.nn.GRU", raw, "GRU", SQUARE, right, server).red
        for wrong in WRONG:
            assert validated("torch.nn.GRU", raw, "GRU", SQUARE, wrong(right), server).red, wrong.__name__


TRANSFORMER = {
    "features": 12,
    "num_heads": 3,
    "hidden_size": 12,
    "norm": "pre",
    "activation": "gelu",
    "epsilon": 1e-3,
}
EXCHANGED = [
    ("norm_1", "norm_2"),
    ("self_attention.W_q", "self_attention.W_k"),
    ("feed_forward.W_1", "feed_forward.W_2"),
    ("self_attention", "cross_attention"),
    ("norm_2", "norm_3"),
]
"""Arrays of equal shapes; the last two pairs are those of a decoder's layer."""
OTHER = {"num_heads": 4, "norm": "post", "activation": "gelu_tanh", "epsilon": 1e-5}
"""Other values of the options that no array shows."""
STACKS = {**TRANSFORMER, "num_layers": 2, "positions": "sinusoidal"}
EXCHANGED_IN_STACKS = [
    ("layers.0", "layers.1"),
    ("encoder.embedding", "decoder.embedding"),
    ("decoder.embedding", "decoder.dense.W"),
    ("encoder.norm", "decoder.norm"),
]


def exchanged_parts(right: dict[str, np.ndarray], one: str, other: str) -> dict[str, np.ndarray]:
    """The arrays of the one part under the names of the other, and back."""
    names = {name: name.replace(one, "?").replace(other, one).replace("?", other) for name in right}
    return {name: right[names[name]] for name in right}


def with_option(
    source: str,
    raw: dict[str, np.ndarray],
    layer: str,
    config: dict[str, Any],
    right: dict[str, np.ndarray],
    server: Server,
    changed: dict[str, Any],
) -> Run:
    """The verdicts on the source's layer with another value of an option."""
    cells = cells_of(validation_cases(find(layer), {**config, **changed}, right), FULL)
    batch = with_parameters(batch_of(cells), raw)
    side = Side(server.job, raw, layers.framework_of(source))
    return validate(find(layer), config, right, [side], recorder=lambda *_: server.answers(batch))


KERAS_HUB = {"norm": "post", "activation": "silu", "epsilon": 1e-5}
"""Those of KerasHub's layers, whose arrays show the heads; TensorFlow's gelu is not precise in float64."""
CAUSAL = {"causal": True}


@pytest.mark.parametrize(
    ("source", "layer", "pairs", "changed", "others"),
    [
        of("torch.nn.TransformerEncoderLayer", "TransformerEncoderLayer", 3, {}, OTHER),
        of("torch.nn.TransformerDecoderLayer", "TransformerDecoderLayer", 5, {}, OTHER),
        of("keras_hub.TransformerEncoder", "TransformerEncoderLayer", 3, {}, KERAS_HUB),
        of("keras_hub.TransformerDecoder", "TransformerDecoderLayer", 5, {}, KERAS_HUB),
        of("keras_hub.TransformerDecoder", "TransformerEncoderLayer", 3, CAUSAL, {**KERAS_HUB, "causal": False}),
    ],
)
def test_every_wrong_mapping_and_option_of_a_transformer_layer_is_red(
    source: str, layer: str, pairs: int, changed: dict[str, Any], others: dict[str, Any]
):
    config = {**TRANSFORMER, **changed, "activation": "gelu" if others is OTHER else "relu"}
    right = drawn(layer, config)
    raw = weights.from_canonical(layer, right, source, **config)
    with Server(job(source)) as server, in_memory():
        assert not validated(source, raw, layer, config, right, server).red
        for one, other in EXCHANGED[:pairs]:
            wrong = exchanged_parts(right, one, other)
            assert validated(source, raw, layer, config, wrong, server).red, (one, other)
        for option, value in others.items():
            run = with_option(source, raw, layer, config, right, server, {option: value})
            # In float32, the approximation of gelu is within the tolerance of a whole layer.
            dtypes = {"float64", "float32"} - ({"float32"} if value == "gelu_tanh" else set())
            assert {one.dtype for one in run.red} >= dtypes, option


@pytest.mark.frameworks("torch")
@pytest.mark.parametrize(
    ("source", "vocabularies", "pairs"),
    [
        ("torch.nn.TransformerEncoder", {"vocab_size": 9}, 1),
        ("torch.nn.Transformer", {"source_vocab_size": 9, "target_vocab_size": 9}, 4),
    ],
)
def test_every_wrong_mapping_and_option_of_stacks_is_red(source: str, vocabularies: dict[str, int], pairs: int):
    """In float32, the approximation of gelu is within the tolerance of these logits."""
    layer, config = weights.SOURCES[source].layer, {**STACKS, **vocabularies}
    right = drawn(layer, config)
    raw = weights.from_canonical(layer, right, source, **config)
    with Server(job(source)) as server, in_memory():
        assert not validated(source, raw, layer, config, right, server).red
        for one, other in EXCHANGED_IN_STACKS[:pairs]:
            wrong = exchanged_parts(right, one, other)
            assert validated(source, raw, layer, config, wrong, server).red, (one, other)
        for option, value in {**OTHER, "positions": "none"}.items():
            changed = {option: value, "last_norm": True}
            run = with_option(source, raw, layer, config, right, server, changed)
            assert {one.dtype for one in run.red} >= {"float64"}, option


def test_heads_that_are_interleaved_are_red(fake_job: Callable[..., Job]):
    """(head size, heads) for (heads, head size): the shapes are the same."""
    right = drawn("MultiHeadAttention", HEADS)
    wrong = {**right, "W_q": right["W_q"].reshape(3, 4, 12).swapaxes(0, 1).reshape(12, 12)}
    run = validate(find("MultiHeadAttention"), HEADS, right, [Side(fake_job(), wrong)])
    assert {"context", "weights"} <= {one.quantity for one in run.red}


def test_a_side_of_which_nothing_is_judged_is_red(fake_job: Callable[..., Job]):
    right = drawn("GRU", SQUARE)

    def silent(job: Job, batches: Iterable[Batch], progress: Progress) -> Recording:
        answers = {cell.key: Answer("not-implemented", "nothing") for batch in batches for cell in batch.cells}
        return Recording("fake", "cpu", about={"framework": "none"}, answers=answers)

    run = validate(find("GRU"), SQUARE, right, [Side(fake_job(), right)], recorder=silent)
    assert [one.reason for one in run.red] == ["nothing of it could be compared"]


def test_a_large_input_is_judged_in_as_many_entries_as_the_reference_differentiates_by():
    entries = chosen_entries("inputs", np.zeros((3, 5, 400)))
    assert len(set(entries)) == MOST_ENTRIES and entries.max() < 6000
    assert list(chosen_entries("inputs", np.zeros((2, 3)))) == list(range(6))


@pytest.mark.frameworks("torch")
def test_a_source_without_its_determinism_settings_is_red():
    right = drawn("GRU", SQUARE)
    side = Side(job("torch.nn.GRU"), weights.from_canonical("GRU", right, "torch.nn.GRU"), "tf")
    red = {one.check for one in validate(find("GRU"), SQUARE, right, [side]).red}
    assert red == {"determinism"}
