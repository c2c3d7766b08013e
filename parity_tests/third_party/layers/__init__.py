"""The layers that weights come from, as targets of a conversion.

`attention-parity convert` runs them beside the converted ones. Each module imports its framework, and a worker alone
imports the module.
"""

from __future__ import annotations

import subprocess
from collections.abc import Iterable
from importlib.util import find_spec

import backends
from backends.weights import SOURCES

PROBE = "import sys; from importlib.util import find_spec; print(*(n for n in sys.argv[1:] if find_spec(n) is None))"
"""Prints those of the modules that an interpreter does not have."""

IN_GLUON = " in Gluon"

FRAMEWORKS = {"torch": "torch", "transformers": "torch", "keras": "tf", "flax": "jax", "mxnet": "mxnet", "onnx": "onnx"}
"""The framework of each module: a backend's name, or onnx."""

LIBRARIES = {
    "torch.nn": "torch",
    "keras": "keras",
    "keras_hub": "keras",
    "flax.linen": "flax:linen_layers",
    "flax.nnx": "flax:nnx_layers",
    "gluon.nn": "mxnet",
    "gluon.rnn": "mxnet",
    "onnx": "onnx",
    "textbook": "torch",
    "opennmt": "torch",
    "joeynmt": "torch:joeynmt",
    "tfa": "keras:addons",
    "transformers": "transformers",
}
"""The target of each library, below this package."""

PLACES = {name: LIBRARIES[name.rpartition(".")[0]] for name, source in SOURCES.items() if not source.framework} | {
    "flax.nnx.OptimizedLSTMCell": "flax:nnx_optimized",
    "keras.GroupQueryAttention": "keras:grouped",
    "transformers.GPT2Model": "transformers:GPT2",
    "transformers.LlamaModel": "transformers:LLAMA",
    "transformers.MarianMTModel": "transformers:MARIAN",
    "transformers.T5ForConditionalGeneration": "transformers:T5",
    "transformers.ViTForImageClassification": "transformers:VIT",
    f"textbook.Encoder{IN_GLUON}": "mxnet",
    f"textbook.BahdanauDecoder{IN_GLUON}": "mxnet",
    "attention_parity.torch": "torch:attention_parity",
    "attention_parity.tf": "keras:attention_parity",
    "attention_parity.jax": "flax:attention_parity",
    "attention_parity.mxnet": "mxnet:attention_parity",
}
"""The target of each source of `backends.weights`; a table may be for two frameworks."""


def entry_of(source: str, arrays: Iterable[str]) -> str:
    """The entry of a source among PLACES, by the names of its arrays: i2h and h2h are Gluon's."""
    gluon = f"{source}{IN_GLUON}"
    return gluon if gluon in PLACES and any("i2h_" in array for array in arrays) else source


def framework_of(name: str) -> str:
    """The framework of an entry of PLACES, or of a backend."""
    return FRAMEWORKS[PLACES[name].partition(":")[0]] if name in PLACES else name


def place_of(name: str) -> str:
    """The target of an entry of PLACES, or a backend's module."""
    return f"{__name__}.{PLACES[name]}" if name in PLACES else backends.available()[name].module


def library_of(name: str) -> tuple[str, ...]:
    """The library that an entry of PLACES needs beside its framework, if it does."""
    return ("transformers",) if PLACES.get(name, "").startswith("transformers:") else ()


def absence(framework: str, python: str | None = None, also: tuple[str, ...] = ()) -> str | None:
    """Why the framework, or a library beside it, cannot run here, or with that interpreter, if it cannot."""
    needed: tuple[str, ...] = ("onnx", "onnxruntime")
    if framework != "onnx":
        known = backends.available()[framework]
        if python is None and (known.reason is not None or not also):
            return known.reason
        requirements = backends.read_requirements(known.module)
        needed = also if python is None else (*(requirements.distributions if requirements is not None else ()), *also)
    if python is None:
        missing = [name for name in needed if find_spec(name) is None]
        return f"not installed: {', '.join(missing)}. Run: pip install {' '.join(missing)}" if missing else None
    command = [python, "-c", PROBE, "numpy", "safetensors", *needed]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    except (OSError, subprocess.TimeoutExpired) as error:
        return f"{python} does not run: {error}"
    if done.returncode != 0:
        return f"{python} does not run: {(done.stderr.strip().splitlines() or ['no reason given'])[-1]}"
    missing = done.stdout.split()
    return f"{python} does not have {', '.join(missing)}" if missing else None
