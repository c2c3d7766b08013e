"""A decoder moves from one framework to another: `python examples/move_weights.py mxnet torch`."""

from __future__ import annotations

import importlib
import sys
import tempfile
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np

import backends
from attention_core.draws import integers, uniform

SIZES = {"vocab_size": 50, "embed_size": 16, "hidden_size": 32, "num_layers": 2}
TOKENS = integers("example/tokens", (4, 9), 50)
OUTPUTS, STATE = uniform("example/outputs", (4, 7, 32)), uniform("example/state", (2, 4, 32))


def open_decoder(name: str) -> tuple[ModuleType, Any, Any]:
    """The backend, its runtime, and a decoder in float64."""
    attention = backends.load(name)
    runtime = importlib.import_module(f"backends.{name}.runtime")
    runtime.configure()
    return attention, runtime, runtime.build(attention.BahdanauDecoder, SIZES, "float64")


def train(attention: ModuleType, decoder: Any) -> None:
    """Give the decoder parameters, as a training would."""
    shapes = {name: array.shape for name, array in attention.get_parameters(decoder).items()}
    attention.set_parameters(decoder, {name: uniform(name, shape, bound=0.2) for name, shape in shapes.items()})


def logits(runtime: Any, decoder: Any) -> np.ndarray:
    """The logits of a decoder for the same tokens."""
    return runtime.to_numpy(decoder(*map(runtime.from_numpy, (TOKENS, OUTPUTS, STATE)))[0])


def main(source: str, target: str) -> None:
    """Write the source's parameters to a file, load them into the target, and compare the logits of both."""
    old, old_runtime, old_decoder = open_decoder(source)
    new, new_runtime, new_decoder = open_decoder(target)
    train(old, old_decoder)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "decoder.safetensors"
        backends.save_arrays(path, old.get_parameters(old_decoder))
        new.set_parameters(new_decoder, backends.load_arrays(path))
    before, after = logits(old_runtime, old_decoder), logits(new_runtime, new_decoder)
    error = np.abs(before - after).max() / np.abs(before).max() / np.finfo(np.float64).eps
    print(f"{source} -> {target}: {before.size} logits, largest difference {error:.1f} eps of the largest logit")
    assert error < 100


if __name__ == "__main__":
    main(*sys.argv[1:3] if len(sys.argv) > 2 else ("torch", "jax"))
