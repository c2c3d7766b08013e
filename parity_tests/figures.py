"""Figures of matplotlib that a notebook shows, which those that are made without pyplot are not by themselves.

Imported by `plots.empty_figure`, where matplotlib is installed.
"""

from __future__ import annotations

import io
from typing import Any

from matplotlib.figure import Figure

DPI = 150


class ShownFigure(Figure):
    """A figure that is displayed as a picture where it is the last expression of a notebook's cell."""

    def __init__(self, width: float, height: float) -> None:
        super().__init__(figsize=(width, height), dpi=DPI, layout="constrained")

    def _repr_png_(self) -> tuple[bytes, dict[str, Any]]:
        """The picture, and the size at which to show it: sharp on screens with two pixels to a point, too."""
        drawn = io.BytesIO()
        self.savefig(drawn, format="png")
        width, height = (round(inches * DPI / 2) for inches in self.get_size_inches())
        return drawn.getvalue(), {"width": width, "height": height}
