"""The examples run as they stand."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

from parity_tests.tests.places import ROOT


def run(*arguments: str) -> str:
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    command = [sys.executable, *arguments]
    said = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False)
    assert said.returncode == 0, said.stderr
    return said.stdout


def test_pick_a_backend(backend: SimpleNamespace):
    said = run("examples/pick_a_backend.py", backend.name)
    assert said.startswith(f"{backend.name}: ") and "[[[2.0, 3.0, 4.0, 5.0]], [[10.0, 11.0, 12.0" in said


def test_move_weights(backend: SimpleNamespace):
    """From the backend to itself: two decoders, one file. Pairs of frameworks are judged by the parity run."""
    said = run("examples/move_weights.py", backend.name, backend.name)
    assert f"{backend.name} -> {backend.name}: 1800 logits" in said


def test_kernel_regression(backend: SimpleNamespace, tmp_path: Path):
    """The learned width is better than a narrow and a wide one, and the picture is drawn."""
    file = tmp_path / "fit.png"
    said = run("examples/kernel_regression.py", backend.name, str(file))
    errors = [float(error) for error in re.findall(r"error ([\d.]+)", said)]
    assert len(errors) == 4 and errors[3] == min(errors) and "learned: 0.46" in said
    assert file.read_bytes().startswith(b"\x89PNG")


def test_prune_heads(backend: SimpleNamespace):
    """Two heads of four came to nothing: both kinds of importance say so, and nothing is lost without them."""
    said = run("examples/prune_heads.py", backend.name)
    table = re.findall(r": +(\d) +([\d.]+) +([\d.]+)\n", said)
    by_ablation, by_taylor = ([float(row[column]) for row in table] for column in (1, 2))
    assert sorted(range(4), key=by_ablation.__getitem__)[:2] == sorted(range(4), key=by_taylor.__getitem__)[:2]
    losses = [float(loss) for loss in re.findall(r"loss ([\d.]+)", said)]
    assert len(losses) == 4 and losses[2] < 2.0 * losses[0] and losses[3] > 50.0 * losses[0]


def test_a_translator_in_twenty_lines(backend: SimpleNamespace):
    """With a tenth of its pairs it learns little, and all of its lines have run."""
    said = run(f"examples/translate/{backend.name}_loop.py", "400")
    losses = [float(loss) for loss in re.findall(r"loss ([\d.]+)", said)]
    assert len(losses) == 3 and losses[2] < losses[0] < 3.0 and "16 may 1984  → " in said


def convert(*arguments: object) -> str:
    return run("-m", "parity_tests", "convert", *map(str, arguments))


@pytest.mark.frameworks("mxnet", "jax")
def test_a_port_from_mxnet_to_jax(tmp_path: Path):
    run("examples/port/gluon_encoder.py", str(tmp_path))
    file, out = tmp_path / "encoder.params", tmp_path / "gru.safetensors"
    assert "jax is the same function as gluon.rnn.GRU" in convert(file, "--prefix", "1.", "--to", "jax", "-o", out)
    said = run("examples/port/jax_encoder.py", str(tmp_path))
    assert float(said.rpartition(" ")[2]) < 1e-6


@pytest.mark.frameworks("tf", "torch")
def test_a_port_from_keras_to_pytorch(tmp_path: Path):
    run("examples/port/keras_reader.py", str(tmp_path))
    file = tmp_path / "reader.weights.h5"
    own = "torch.nn.GRU", "-o", tmp_path / "gru.pt"
    assert "is the same function as keras.GRU" in convert(file, "--prefix", "layers/gru/", "--to", *own)
    own = "torch.nn.MultiheadAttention", "-o", tmp_path / "heads.pt", "--set", "num_heads=4"
    said = convert(file, "--prefix", "layers/multi_head_attention/", "--to", *own)
    assert "is the same function as keras.MultiHeadAttention in float32" in said.replace("\n", " ")
    said = run("examples/port/torch_reader.py", str(tmp_path))
    assert float(said.rpartition(" ")[2]) < 1e-6
