"""The GRU of ONNX: gates z, r, n, an axis for the directions, biases of input and state side by side.

Only linear_before_reset=1 is this layer; the reader of .onnx files refuses the default, 0.
https://onnx.ai/onnx/operators/onnx__GRU.html
"""

from __future__ import annotations

from backends.weights.table import READS_PADDING, Row, Source, gates


def table(
    layer: str, order: str, hidden_biases: str, directions: int, *rest: Row, also: tuple[Source, ...] = ()
) -> Source:
    """The table for one direction, or for two; hidden_biases are those of the state, in the order of the gates."""
    count = len(order)
    paths = ("{layer}.", "{layer}.backward.")[:directions]

    def each(*names: str) -> tuple[str, ...]:
        return tuple(hold for path in paths for name in names for hold in gates(name, order, path))

    return Source(
        name=f"onnx.{layer}",
        layer=layer,
        warnings=(READS_PADDING,),
        rows=(
            Row("W", f"{directions} ({count} h) i -> ({directions} {count}) h i", each("W")),
            Row("R", f"{directions} ({count} h) h' -> ({directions} {count}) h h'", each("U")),
            Row(
                "B",
                f"{directions} (2 {count} h) -> ({directions} 2 {count}) h",
                each("b", hidden_biases),
                optional="bias",
            ),
            *rest,
        ),
        also=also,
    )


SOURCE = table("GRU", "zrn", "+b +b b_hn", 1, also=(table("GRU", "zrn", "+b +b b_hn", 2),))
