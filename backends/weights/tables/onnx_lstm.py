"""The LSTM of ONNX: gates i, o, f, g, an axis for the directions, biases of input and state side by side.

There are no peepholes in the specification.
https://onnx.ai/onnx/operators/onnx__LSTM.html
"""

from __future__ import annotations

from backends.weights.table import Row
from backends.weights.tables.onnx_gru import table

PEEPHOLES = Row.absent("P", "peepholes let the gates see the cells; LSTM here has none")

SOURCE = table("LSTM", "iofg", "+b", 1, PEEPHOLES, also=(table("LSTM", "iofg", "+b", 2, PEEPHOLES),))
