"""Attention weights as a heatmap to point at, in a page: an element of HTML, with its style sheet and script."""

from __future__ import annotations

import html
import json
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from parity_tests.plots import Scale, as_numpy, colour_limits, visible

FOLDER = Path(__file__).parent
STYLES, SCRIPT = FOLDER / "heatmap.css", FOLDER / "heatmap.js"
"""What the element needs once in a page. Neither requests anything."""


def interactive_heatmap(
    weights: Any,
    outputs: Sequence[str],
    inputs: Sequence[str],
    *,
    titles: Sequence[str] | None = None,
    label: str = "Attention weights",
    scale: Scale = "full",
    assets: bool = True,
) -> str:
    """A fragment of HTML with a heatmap for each head: pointing at a query, or the arrow keys, list its weights.

    Arguments: weights is an array (queries, keys) or (heads, queries, keys) of any framework; outputs are the tokens
    of the queries, inputs those of the keys. titles are those of the heads (by default their numbers), label is what a
    screen reader calls the whole. scale is that of `plots.heatmap`. Of several heatmaps in a page, one needs the style
    sheet and the script: pass assets=False for the others, or for all where the page links `heatmap.css` and
    `heatmap.js`. Raises: ValueError, with the sizes, if tokens, titles and weights do not fit.
    """
    array = as_numpy(weights).astype(np.float64)
    heads = array[None] if array.ndim == 2 else array
    if heads.ndim != 3 or heads.shape[1:] != (len(outputs), len(inputs)):
        raise ValueError(
            f"interactive_heatmap: weights have shape {array.shape}, expected {(len(outputs), len(inputs))} or (heads, "
            f"{len(outputs)}, {len(inputs)}): a row for each of {len(outputs)} output tokens, a column for each of "
            f"{len(inputs)} input tokens."
        )
    if titles is None:
        titles = [f"head {number + 1}" for number in range(len(heads))] if array.ndim == 3 else [""]
    if len(titles) != len(heads):
        raise ValueError(
            f"interactive_heatmap: there are {len(titles)} titles for {len(heads)} heads. Pass one for each."
        )
    limits = colour_limits([(head, [], [], len(inputs)) for head in heads], scale, "interactive_heatmap")
    data = {
        "outputs": [visible(token) for token in outputs],
        "inputs": [visible(token) for token in inputs],
        "heads": [
            {"title": title, "weights": plain(head), "limit": limit}
            for title, head, limit in zip(titles, heads, limits, strict=True)
        ],
    }
    written = html.escape(json.dumps(data, separators=(",", ":"), ensure_ascii=False, allow_nan=False))
    element = f'<attention-heatmap aria-label="{html.escape(label)}" data="{written}"></attention-heatmap>'
    # The block is for Markdown, which takes an element that it does not know for one within a line.
    return f"{heatmap_assets() if assets else ''}<div>{element}</div>\n"


def heatmap_assets() -> str:
    """The style sheet and the script of heatmaps, as elements of HTML."""
    styles, script = (file.read_text(encoding="utf-8") for file in (STYLES, SCRIPT))
    return f"<style>\n{styles}</style>\n<script>\n{script}</script>\n"


def plain(array: np.ndarray) -> list[list[Any]]:
    """The elements of a matrix as numbers of four digits, or as the words nan, inf and -inf."""
    if array.dtype.kind in "biu":
        return [[int(number) for number in row] for row in array]
    return [[_round(number) for number in row] for row in array.astype(np.float64).tolist()]


def _round(number: float) -> float | str:
    text = f"{number:.4g}"
    return float(text) if math.isfinite(float(text)) else text  # the largest of float64 become inf by rounding
