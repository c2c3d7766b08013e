"""Flax nnx's LSTMCell: the arrays of linen's, with dots in their names; the layer of the gate f is `if_` here.

In an `nnx.RNN` the names begin with "cell.", in an `nnx.Bidirectional` of two with "forward_rnn.cell.".
https://flax.readthedocs.io/en/latest/api_reference/flax.nnx/nn/recurrent.html
"""

from __future__ import annotations

from dataclasses import replace

from backends.weights.table import with_dots
from backends.weights.tables.flax_linen_lstm_cell import SOURCE as LINEN

ROWS = tuple(replace(row, name=row.name.replace("if/", "if_/")) for row in LINEN.rows)

SOURCE = with_dots(replace(LINEN, rows=ROWS), "flax.nnx.LSTMCell")
