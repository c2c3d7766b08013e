"""Keras' LayerNormalization over the last axis. Its own epsilon is 1e-3.

The second spelling is that of a .weights.h5 file, which numbers a layer's variables.
https://keras.io/api/layers/normalization_layers/layer_normalization/
"""

from __future__ import annotations

from backends.weights.table import OF_EVERY_LAYER, Row, Settings, Source

SOURCE = Source(
    name="keras.LayerNormalization",
    layer="LayerNorm",
    settings=Settings(
        ("LayerNormalization",),
        needed={"axis": -1, "rms_scaling": False},
        options={"epsilon": "epsilon"},
        free=(*OF_EVERY_LAYER, "center", "scale"),
    ),
    rows=(Row("gamma | vars/0", "e -> e", ("g",)), Row("beta | vars/1", "e -> e", ("b",), optional="bias")),
)
