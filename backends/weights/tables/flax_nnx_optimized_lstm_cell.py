"""Flax nnx's OptimizedLSTMCell: gates i, f, g, o joined in one axis; the bias is on the hidden side.

https://flax.readthedocs.io/en/latest/api_reference/flax.nnx/nn/recurrent.html
"""

from __future__ import annotations

from backends.weights.table import GOES_ON, READS_PADDING, Row, Settings, Source, gates

SOURCE = Source(
    name="flax.nnx.OptimizedLSTMCell",
    layer="LSTM",
    settings=Settings(needed={"gate_fn": "sigmoid", "activation_fn": "tanh"}),
    warnings=(
        READS_PADDING,
        GOES_ON,
    ),
    directions=(("", "forward_rnn.cell.", "backward_rnn.cell."),),
    rows=(
        Row("{direction}dense_i.kernel", "i (4 h) -> 4 h i", gates("W", "ifgo")),
        Row("{direction}dense_h.kernel", "h' (4 h) -> 4 h h'", gates("U", "ifgo")),
        Row("{direction}dense_h.bias", "(4 h) -> 4 h", gates("b", "ifgo"), optional="bias"),
    ),
)
