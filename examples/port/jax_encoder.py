"""The other end of the port: the Gluon encoder's weights in JAX, and how far apart the two are.

python examples/port/jax_encoder.py FOLDER
"""

from __future__ import annotations

import sys
from pathlib import Path

import jax.numpy as jnp
import numpy as np
from flax import nnx

import backends
from backends import jax as attention
from backends import weights

folder = Path(sys.argv[1] if len(sys.argv) > 1 else ".")
embedding = jnp.asarray(weights.read_arrays(folder / "encoder.params")["0.weight"])  # (tokens, features) in both
gru = attention.GRU(16, 32, num_layers=2, bidirectional=True, rngs=nnx.Rngs(0))
attention.set_parameters(gru, backends.load_arrays(folder / "gru.safetensors"))

expected = np.load(folder / "outputs.npz")
outputs, _ = gru(embedding[expected["tokens"]])
print(f"{outputs.size} outputs, largest {jnp.abs(outputs).max():.3f}", end=", ")
print(f"largest difference to Gluon's {np.abs(outputs - expected['outputs']).max():.1e}")
