"""Keras' RMSNormalization over the last axis. Its own epsilon is 1e-6.

The second spelling is that of a .weights.h5 file, which numbers a layer's variables.
https://keras.io/api/layers/normalization_layers/rms_normalization/
"""

from __future__ import annotations

from backends.weights.table import Row, Settings, Source

SOURCE = Source(
    name="keras.RMSNormalization",
    layer="RMSNorm",
    settings=Settings(("RMSNormalization",), needed={"axis": -1}, options={"epsilon": "epsilon"}),
    rows=(Row("scale | vars/0", "e -> e", ("g",)),),
)
