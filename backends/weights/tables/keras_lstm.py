"""Keras' LSTM: gates i, f, g (Keras: c), o, kernels (inputs, outputs), one bias.

The second spelling is that of a .weights.h5 file, which numbers a layer's variables.
https://keras.io/api/layers/recurrent_layers/lstm/
"""

from __future__ import annotations

from backends.weights.table import READS_PADDING, REPEATS, Row, Source, gates
from backends.weights.tables.keras_gru import DIRECTIONS, names_of, settings

SOURCE = Source(
    name="keras.LSTM",
    layer="LSTM",
    warnings=(
        READS_PADDING,
        REPEATS,
    ),
    directions=DIRECTIONS,
    settings=settings("LSTM", "LSTMCell"),
    rows=(
        Row(names_of("lstm", "kernel", 0), "i (4 h) -> 4 h i", gates("W", "ifgo")),
        Row(names_of("lstm", "recurrent_kernel", 1), "h' (4 h) -> 4 h h'", gates("U", "ifgo")),
        Row(names_of("lstm", "bias", 2), "(4 h) -> 4 h", gates("b", "ifgo"), optional="bias"),
    ),
)
