"""What is inside of a file: recognised layers, an optimizer's state, and what no table has."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from backends import weights
from backends.weights import SavedLayer
from parity_tests.conversion.inventory import parts_of
from parity_tests.tests.commands import invoke, squeezed
from parity_tests.tests.conversion.conversions import drawn

GRU = weights.from_canonical("GRU", drawn("GRU", {"input_size": 8, "hidden_size": 5}), "torch.nn.GRU", prefix="rnn.")
NORM = {"norm.weight": np.ones(5), "norm.bias": np.zeros(5)}
BATCH = {f"batch.{name}": np.ones(5) for name in ("weight", "bias", "running_mean", "running_var")}
REST = {"out.weight": np.ones((7, 5)), "out.bias": np.ones(7), "optimizer.rnn.momentum": np.ones(3)}


def test_each_layer_is_found_under_its_prefix_and_the_rest_is_left():
    parts = {part.prefix: part for part in parts_of({**GRU, **NORM, **BATCH, **REST})}
    assert list(parts) == ["rnn.", "norm.", "batch.", "out.", "optimizer.rnn."]
    assert parts["rnn."].source == "torch.nn.GRU" and "input_size=8" in parts["rnn."].remark
    assert parts["norm."].source == "torch.nn.LayerNorm" and "pass epsilon=" in parts["norm."].remark
    assert all(parts[name].can_be_converted for name in ("rnn.", "norm."))
    assert not any(parts[name].source for name in ("batch.", "out.", "optimizer.rnn."))
    assert parts["optimizer.rnn."].remark == "state of an optimizer, left alone: 3"
    assert sum(len(part.names) for part in parts.values()) == len({**GRU, **NORM, **BATCH, **REST})


def test_a_setting_that_is_refused_is_said():
    arrays = {
        name.replace(".", "/"): array
        for name, array in weights.from_canonical(
            "GRU", drawn("GRU", {"input_size": 8, "hidden_size": 5}), "keras.GRU", spelling=1, prefix="layers/gru/"
        ).items()
    }
    saved = [SavedLayer("layers/gru", "GRU", {"activation": "relu"})]
    (part,) = parts_of(arrays, saved)
    assert not part.can_be_converted and "activation='relu'" in part.remark


def test_the_command_prints_the_parts_and_what_converts_them(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.chdir(tmp_path)
    weights.write_arrays("model.safetensors", {**GRU, **REST})
    result = invoke("convert", "model.safetensors")
    assert result.exit_code == 0
    assert "attention-parity convert model.safetensors --prefix rnn. --from torch.nn.GRU --to NAME" in squeezed(result)
    weights.write_arrays("model.safetensors", REST)
    assert "No layer can be converted." in invoke("convert", "model.safetensors").output
    for arguments, words in ((("--to", "jax"), "--to requires -o"), (("-o", "out.safetensors"), "-o requires --to")):
        result = invoke("convert", "model.safetensors", *arguments)
        assert result.exit_code == 2 and words in squeezed(result)
