"""The LSTM of ONNX: gates i, o, f, g, an axis for the directions, biases of input and state side by side.

There are no peepholes in the specification.
https://onnx.ai/onnx/operators/onnx__LSTM.html
"""

from __future__ import annotations

from backends.weights.table import Row, Source, gates


def table(directions: int, *also: Source) -> Source:
    """The table for one direction, or for two."""
    paths = ("{layer}.", "{layer}.backward.")[:directions]

    def each(names: str) -> tuple[str, ...]:
        return tuple(hold for path in paths for hold in gates(names, "iofg", path))

    biases = tuple(hold for path in paths for hold in (*gates("b", "iofg", path), *gates("+b", "iofg", path)))
    return Source(
        name="onnx.LSTM",
        layer="LSTM",
        rows=(
            Row("W", f"{directions} (4 h) i -> ({directions} 4) h i", each("W")),
            Row("R", f"{directions} (4 h) h' -> ({directions} 4) h h'", each("U")),
            Row("B", f"{directions} (2 4 h) -> ({directions} 2 4) h", biases, optional="bias"),
            Row.refused("P", "peepholes let the gates see the cells; LSTM here has none"),
        ),
        also=also,
    )


SOURCE = table(1, table(2))
