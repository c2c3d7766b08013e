"""PyTorch's LayerNorm over the last axis. Its own epsilon is 1e-5.

https://docs.pytorch.org/docs/stable/generated/torch.nn.LayerNorm.html
"""

from __future__ import annotations

from backends.weights.table import Row, Source

SOURCE = Source(
    name="torch.nn.LayerNorm",
    layer="LayerNorm",
    rows=(Row("weight", "e -> e", ("g",)), Row("bias", "e -> e", ("b",), optional="bias")),
)
