"""Translators trained epoch by epoch: going on, stopping, and what is the same in every framework."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner

from attention_core import reference
from attention_core.errors import DtypeError
from parity_tests.cli.main import main
from parity_tests.tests.places import ROOT
from parity_tests.tests.translation.translators import FLAGS, PAIRS, differences, small
from parity_tests.translation import corpus
from parity_tests.translation.comparison import CLOSE
from parity_tests.translation.model import MIXED, Model, Settings, new_model, read_data
from parity_tests.translation.trainer import Diverged, Worker

TRANSFORMER = {"model": "transformer", "num_layers": 1, "num_heads": 2, "norm": "pre", "warmup": 4}
MODELS = pytest.mark.parametrize("form", [{}, TRANSFORMER], ids=["recurrent", "transformer"])

COMMAND = """
import signal
from parity_tests.cli.main import main

signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell has its background jobs ignore it
main()
"""


def trained(backend: str, settings: Settings) -> Model:
    """A model trained to its end."""
    data = read_data(settings, PAIRS)
    model = new_model(settings, data, backend)
    worker = Worker(model, backend)
    while not model.is_finished:
        assert len(list(worker.train(data))) == -(-settings.train // settings.batch_size)
    return model


@MODELS
@pytest.mark.parametrize("drawn", [False, True], ids=["dropout as data", "framework dropout"])
def test_resuming_from_a_file_is_the_same_training_to_the_bit(
    backend: SimpleNamespace, drawn: bool, form: dict[str, Any], tmp_path: Path
):
    settings = small(framework_dropout=drawn, epochs=2, validation=2, **form)
    data = read_data(settings, PAIRS)
    whole = new_model(settings, data, backend.name)
    worker = Worker(whole, backend.name)  # one for both epochs
    assert list(worker.train(data))
    whole.save(tmp_path / "model.safetensors")
    assert list(worker.train(data))
    resumed = Model.load(tmp_path / "model.safetensors")
    assert list(Worker(resumed, backend.name).train(data))
    assert not differences(whole, resumed)
    assert whole.losses[-1] < whole.losses[0] and len(whole.losses) == 6


@pytest.mark.parametrize("form", [{}, {"score": "location"}, TRANSFORMER], ids=["default", "location", "transformer"])
def test_another_amount_of_padding_is_the_same_training(
    backend: SimpleNamespace, form: dict[str, Any], monkeypatch: pytest.MonkeyPatch
):
    """With and without the columns that no sentence of a batch reaches."""
    settings = small(
        **{"dtype": "float64", "batch_size": 4, "epochs": 1, "train": 8, "max_tokens": 24, "num_layers": 1} | form
    )
    less = trained(backend.name, settings)
    widths, trimmed = set(), corpus.trim
    monkeypatch.setattr(corpus, "trim", lambda batch, most: widths.add(trimmed(batch, most).source.shape) or batch)
    whole = trained(backend.name, settings)
    assert len(widths) > 1, "some batches have no sentence of 24 tokens"
    np.testing.assert_allclose(less.losses, whole.losses, rtol=1e-11)
    assert less.history[0]["validation_loss"] == pytest.approx(whole.history[0]["validation_loss"], rel=1e-11)


def test_mixed_precision_computes_in_bfloat16_with_parameters_in_float32(backend: SimpleNamespace):
    settings = small(epochs=1)
    half = replace(settings, dtype=MIXED)
    if backend.name == "mxnet":
        with pytest.raises(DtypeError, match=r"backends\.mxnet has no dtype 'mixed_bfloat16': MXNet casts"):
            trained(backend.name, half)
        return
    one, other = trained(backend.name, settings), trained(backend.name, half)
    assert {array.dtype.name for group in (other.last, other.parameters) for array in group.values()} == {"float32"}
    assert one.losses != other.losses and other.losses == pytest.approx(one.losses, rel=CLOSE[MIXED])
    digits = np.array(other.losses, np.float32).view(np.int32)
    assert not (digits & 0xFFFF).any(), "a loss has the digits of bfloat16"


def test_an_epoch_that_was_not_done_leaves_the_model_as_it_was(backend: SimpleNamespace):
    settings = small()
    data = read_data(settings, PAIRS)
    model = new_model(settings, data, backend.name)
    before = replace(model, history=[], losses=[], norms=[])
    next(Worker(model, backend.name).train(data))
    assert not differences(model, before) and model.epoch == 0


@pytest.mark.frameworks("torch")
@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGINT], ids=["kill -9", "Ctrl-C"])
def test_a_training_that_is_cut_short_loses_one_epoch_at_most(number: signal.Signals, tmp_path: Path):
    """A process is cut short behind its first epoch; its file is resumed as if there had been no break."""
    options = [*FLAGS, "--layers", "1", "--dropout", "0"]
    train = [sys.executable, "-c", COMMAND, "translate", "train", "--backend", "torch", *options]
    with subprocess.Popen(
        [*train, "--epochs", "100000", "-o", "cut.safetensors"],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        text=True,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
    ) as process:
        assert process.stdout is not None
        lines = []
        for line in process.stdout:
            lines.append(line)
            if line.startswith("epoch   1/"):
                process.send_signal(number)
                break
        lines += process.stdout
        assert process.wait(timeout=120) == (130 if number == signal.SIGINT else -9), "".join(lines)
    done = Model.load(tmp_path / "cut.safetensors").epoch
    assert done >= 1 and [path.name for path in tmp_path.iterdir()] == ["cut.safetensors"]
    if number == signal.SIGINT:  # what follows is the same, and the other process has lost more
        assert re.search(r"stopped in epoch \d+; cut.safetensors holds epoch", "".join(lines))
        return
    files = [str(tmp_path / f"{name}.safetensors") for name in ("cut", "whole")]
    until = ["--epochs", str(done + 1)]
    for arguments in (["--resume", files[0]], ["--backend", "torch", *options, "-o", files[1]]):
        result = CliRunner().invoke(main, ["translate", "train", *arguments, *until])
        assert result.exit_code == 0, result.output
    one, other = map(Model.load, files)
    assert not differences(one, other) and one.epoch == done + 1


def test_training_stops_early_and_keeps_the_best_epoch(backend: SimpleNamespace):
    """With a learning rate that is far too long, validation soon becomes worse."""
    model = trained(backend.name, small(epochs=40, patience=2, learning_rate=0.3, validation=2, max_tokens=6))
    losses = [epoch["validation_loss"] for epoch in model.history]
    assert model.is_finished and model.epoch < 40
    assert model.epoch == model.best_epoch + 2 and min(losses) == losses[model.best_epoch - 1]
    assert not np.array_equal(model.parameters["decoder.dense.b"], model.last["decoder.dense.b"])


def test_a_loss_that_is_not_finite_is_refused(backend: SimpleNamespace):
    with pytest.raises(Diverged, match=r"the loss is .* in epoch \d+, step \d+: use a smaller --learning-rate"):
        trained(backend.name, small(optimizer="sgd", learning_rate=3e38, max_norm=None, epochs=50))


@MODELS
def test_a_model_translates_as_the_reference_does(backend: SimpleNamespace, form: dict[str, Any]):
    """Greedily and by beam search: the tokens of all backends are those of the reference, so they are the same."""
    settings = small(dtype="float64", epochs=2, **form)
    model = trained(backend.name, settings)
    sources = read_data(settings, PAIRS).validation.sources
    layer = getattr(reference, settings.layer.name)(**settings.arguments(model.source, model.target))
    reference.set_parameters(layer, model.parameters)
    worker = Worker(model, backend.name)
    ends = {"bos": 1, "eos": 2, "max_steps": settings.max_tokens}
    tokens, lengths, weights = layer.greedy(sources.source, sources.source_lens, **ends)
    decoded = list(worker.decode(sources))
    assert [ids for ids, _ in decoded] == [row[:n].tolist() for row, n in zip(tokens, lengths, strict=True)]
    for (_, actual), expected, length in zip(decoded, weights, sources.source_lens, strict=True):
        np.testing.assert_allclose(actual, expected[: len(actual), :length], atol=1e-12)
    tokens, lengths, _, _ = layer.beam(sources.source, sources.source_lens, width=3, **ends)
    expected = [row[0, : n[0]].tolist() for row, n in zip(tokens, lengths, strict=True)]
    assert worker.translate(sources, width=3) == expected
