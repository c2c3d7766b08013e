"""Gluon's fused GRU: gates r, z, n joined in one axis, and two biases; the hidden one acts by itself for n alone.

The first spelling is that of `save_parameters`, the second that of `collect_params`, behind a prefix such as "gru0_".
https://mxnet.apache.org/versions/1.9.1/api/python/docs/api/gluon/rnn/index.html
"""

from __future__ import annotations

from backends.weights.table import READS_PADDING, Row, Source, gates


def names_of(array: str) -> str:
    """The name of an array in both spellings."""
    return f"_unfused.{{layer}}.{{direction}}{array} | {{direction}}{{layer}}_{array}"


SOURCE = Source(
    name="gluon.rnn.GRU",
    layer="GRU",
    warnings=(READS_PADDING,),
    directions=(("", "l_cell.", "r_cell."), ("l", "l", "r")),
    rows=(
        Row(names_of("i2h_weight"), "(3 h) i -> 3 h i", gates("W", "rzn")),
        Row(names_of("h2h_weight"), "(3 h) h' -> 3 h h'", gates("U", "rzn")),
        Row(names_of("i2h_bias"), "(3 h) -> 3 h", gates("b", "rzn"), optional="bias"),
        Row(names_of("h2h_bias"), "(3 h) -> 3 h", gates("+b +b b_hn", "rzn"), optional="bias"),
    ),
    prefix_ends="._",
)
