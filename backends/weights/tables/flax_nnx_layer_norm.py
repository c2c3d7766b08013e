"""Flax nnx's LayerNorm over the last axis. Its own epsilon is 1e-6.

https://flax.readthedocs.io/en/latest/api_reference/flax.nnx/nn/normalization.html
"""

from __future__ import annotations

from backends.weights.table import Row, Source

SOURCE = Source(
    name="flax.nnx.LayerNorm",
    layer="LayerNorm",
    rows=(Row("scale", "e -> e", ("g",)), Row("bias", "e -> e", ("b",), optional="bias")),
)
