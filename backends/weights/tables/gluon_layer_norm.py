"""Gluon's LayerNorm over the last axis. Its own epsilon is 1e-5.

https://mxnet.apache.org/versions/1.9.1/api/python/docs/api/gluon/nn/index.html
"""

from __future__ import annotations

from backends.weights.table import Row, Source

SOURCE = Source(
    name="gluon.nn.LayerNorm",
    layer="LayerNorm",
    rows=(Row("gamma", "e -> e", ("g",)), Row("beta", "e -> e", ("b",))),
)
