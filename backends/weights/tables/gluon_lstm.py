"""Gluon's fused LSTM: gates i, f, g, o joined in one axis, and two biases, that add up.

The first spelling is that of `save_parameters`, the second that of `collect_params`, behind a prefix such as "lstm0_".
https://mxnet.apache.org/versions/1.9.1/api/python/docs/api/gluon/rnn/index.html
"""

from __future__ import annotations

from backends.weights.table import READS_PADDING, Row, Source, gates
from backends.weights.tables.gluon_gru import names_of

SOURCE = Source(
    name="gluon.rnn.LSTM",
    layer="LSTM",
    warnings=(READS_PADDING,),
    directions=(("", "l_cell.", "r_cell."), ("l", "l", "r")),
    rows=(
        Row(names_of("i2h_weight"), "(4 h) i -> 4 h i", gates("W", "ifgo")),
        Row(names_of("h2h_weight"), "(4 h) h' -> 4 h h'", gates("U", "ifgo")),
        Row(names_of("i2h_bias"), "(4 h) -> 4 h", gates("b", "ifgo"), optional="bias"),
        Row(names_of("h2h_bias"), "(4 h) -> 4 h", gates("+b", "ifgo"), optional="bias"),
        Row.absent(names_of("h2r_weight"), "projection_size projects the outputs; LSTM here has no projection"),
    ),
    prefix_ends="._",
)
