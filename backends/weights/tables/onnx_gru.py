"""The GRU of ONNX: gates z, r, n, an axis for the directions, biases of input and state side by side.

Only linear_before_reset=1 is this layer; the reader of .onnx files refuses the default, 0.
https://onnx.ai/onnx/operators/onnx__GRU.html
"""

from __future__ import annotations

from backends.weights.table import Row, Source, gates


def table(directions: int, *also: Source) -> Source:
    """The table for one direction, or for two."""
    paths = ("{layer}.", "{layer}.backward.")[:directions]

    def each(names: str) -> tuple[str, ...]:
        return tuple(hold for path in paths for hold in gates(names, "zrn", path))

    biases = tuple(hold for path in paths for hold in (*gates("b", "zrn", path), *gates("+b +b b_hn", "zrn", path)))
    return Source(
        name="onnx.GRU",
        layer="GRU",
        rows=(
            Row("W", f"{directions} (3 h) i -> ({directions} 3) h i", each("W")),
            Row("R", f"{directions} (3 h) h' -> ({directions} 3) h h'", each("U")),
            Row("B", f"{directions} (2 3 h) -> ({directions} 2 3) h", biases, optional="bias"),
        ),
        also=also,
    )


SOURCE = table(1, table(2))
