"""Plots: attention weights as heatmaps with the words on both axes, of single sentences or of all layers and heads, and
loss curves of several trainings.

Requires matplotlib. No window is opened; save the returned figure.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

COLOURS = "viridis"
WIDEST = 15.0
"""The maximum width of a figure in inches; further heatmaps start a new row."""
CELL, SMALLEST = 0.3, 1.0
"""The largest side of a cell and the smallest side of a heatmap in a grid, in inches."""
BAR = 0.2
"""The width of the colour bar of a grid in inches."""
POINTS, LEAST_LABEL = 60.0, 5.0
"""The height in points of a label that fits to an inch, and the smallest that can be read."""
PADDING: dict[str, Any] = {"facecolor": "white", "edgecolor": "0.6", "hatch": "////", "linewidth": 0.0}
"""The style of a padded column: hatched on white, unlike any weight."""


class Undrawn(ImportError):
    """The plotting library is not installed."""


def as_numpy(array: Any) -> np.ndarray:
    """An array of any framework, or a list of numbers, as a NumPy array."""
    if hasattr(array, "asnumpy"):  # MXNet would convert element by element
        array = array.asnumpy()
    elif hasattr(array, "detach"):  # PyTorch refuses to convert what has a gradient, or lies on a GPU
        array = array.detach().cpu()
    return np.asarray(array)


def heatmap(
    weights: Any,
    outputs: Sequence[Any],
    inputs: Sequence[Any],
    valid_lens: Any = None,
    *,
    titles: Sequence[str] | None = None,
    padding: bool = False,
) -> Figure:
    """Plot attention weights: a row for each output token, a column for each input token, a fixed colour range of 0..1.

    Arguments: weights is an array (rows, columns) of any framework, or several arrays of any sizes (sentences or
    heads); outputs and inputs are the tokens of all, or a list for each. valid_lens, one number or one for each, is the
    number of input tokens without padding: the other columns are cut off or, with padding=True, hatched. Raises:
    ValueError, with the sizes, if tokens and weights do not fit; Undrawn if matplotlib is not installed.
    """
    panels = _panels(weights, outputs, inputs, valid_lens, "heatmap")
    if titles is not None and len(titles) != len(panels):
        raise ValueError(f"heatmap: there are {len(titles)} titles for {len(panels)} heatmaps. Pass one for each.")
    shown = [len(columns) if padding else valid for _, _, columns, valid in panels]
    width = max(1.2 + 0.3 * max(shown, default=1), 2.0)
    across = max(1, min(len(panels), int(WIDEST / width)))
    down = -(-len(panels) // across)
    height = max(1.1 + 0.34 * max(len(rows) for _, rows, _, _ in panels), 1.6)
    figure = empty_figure(width * across + 0.9, height * down)
    grid = figure.subplots(down, across, squeeze=False)
    image = None
    for position, axes in enumerate(grid.flat):
        if position >= len(panels):
            axes.axis("off")
            continue
        image = _panel(axes, *panels[position], padding)
        if titles is not None:
            axes.set_title(titles[position], fontsize=9)
    assert image is not None
    figure.colorbar(image, ax=grid, label="weight", shrink=0.9, fraction=0.04)
    return figure


def grid(
    weights: Any,
    outputs: Sequence[str] | None = None,
    inputs: Sequence[str] | None = None,
    valid_lens: int | None = None,
    *,
    scale_each: bool = False,
) -> Figure:
    """Plot the attention weights of all layers and heads: a small heatmap for each, with a row of heads for each layer.

    Arguments: weights is an array (layers, heads, rows, columns) of any framework. outputs and inputs are the tokens of
    rows and columns; without them there are no labels. valid_lens is the number of input tokens without padding: the
    other columns are cut off. The colours of all heatmaps range from 0 to the largest weight of all; with
    scale_each=True, those of each range to its own largest weight, and each has a colour bar. Raises: ValueError, with
    the sizes, if tokens and weights do not fit; Undrawn if matplotlib is not installed.
    """
    array = as_numpy(weights)
    if array.ndim != 4 or 0 in array.shape:
        raise ValueError(
            f"grid: weights have shape {array.shape}, expected (layers, heads, rows, columns), none of which is 0."
        )
    layers, heads, num_rows, num_columns = array.shape
    rows = [""] * num_rows if outputs is None else outputs
    columns = [""] * num_columns if inputs is None else inputs
    panels = _panels(array.reshape(-1, num_rows, num_columns), rows, columns, valid_lens, "grid")
    shown = max(panels[0][3], 1)
    bar = 0.6 if scale_each else 0.15
    cell = min(CELL, max((WIDEST - 1.5) / heads - bar, SMALLEST) / shown)
    figure = empty_figure(
        heads * (max(cell * shown, SMALLEST) + bar) + 1.5,
        layers * (max(cell * num_rows, SMALLEST) + 0.4) + 0.9,
    )
    drawn = figure.subplots(layers, heads, squeeze=False)
    largest = max(_largest(panel) for panel in panels)
    for position, (axes, panel) in enumerate(zip(drawn.flat, panels, strict=True)):
        layer, head = divmod(position, heads)
        image = _panel(axes, *panel, padding=False)
        axes.set_title(f"layer {layer + 1}, head {head + 1}", fontsize=9)
        axes.tick_params(labelleft=head == 0, labeltop=layer == 0)
        _thin_out(axes, cell)
        if head == 0:
            axes.set_ylabel("outputs", fontsize=9)
        if layer == layers - 1:
            axes.set_xlabel("inputs", fontsize=9)
        image.set_clim(0.0, (_largest(panel) if scale_each else largest) or 1.0)
        if scale_each:
            figure.colorbar(image, ax=axes).ax.tick_params(labelsize=6)
    if not scale_each:
        width, height = figure.get_size_inches()
        ratio = 0.9 * height / BAR
        figure.colorbar(image, ax=drawn, label="weight", shrink=0.9, fraction=2.0 * BAR / width, aspect=ratio)
    return figure


def _thin_out(axes: Axes, cell: float) -> None:
    """Reduce the size of tick labels to cells of this size in inches, and where it is too small, their number."""
    every = math.ceil(LEAST_LABEL / (POINTS * cell))
    axes.tick_params(labelsize=min(8.0, max(POINTS * cell, LEAST_LABEL)))
    for axis in (axes.xaxis, axes.yaxis):
        for number, label in enumerate(axis.get_ticklabels()):
            label.set_visible(number % every == 0)


Panel = tuple[np.ndarray, list[str], list[str], int]


def _largest(panel: Panel) -> float:
    """The largest weight of a valid column."""
    array, _, _, valid = panel
    return float(array[:, :valid].max(initial=0.0))


def _panels(weights: Any, outputs: Sequence[Any], inputs: Sequence[Any], valid_lens: Any, function: str) -> list[Panel]:
    several = [as_numpy(one) for one in weights]
    if not several or several[0].ndim < 2:
        several = [as_numpy(weights)]
    lens = [None] * len(several) if valid_lens is None else np.ravel(as_numpy(valid_lens)).tolist()
    named = (("outputs", outputs), ("inputs", inputs))
    each = [_for_each(function, name, words, len(several)) for name, words in named]
    if len(lens) == 1:
        lens = lens * len(several)
    if len(lens) != len(several):
        raise ValueError(
            f"{function}: there are {len(lens)} valid_lens for {len(several)} heatmaps. Pass one for each."
        )
    panels = []
    for array, rows, columns, valid in zip(several, *each, lens, strict=True):
        if array.shape != (len(rows), len(columns)):
            raise ValueError(
                f"{function}: weights have shape {array.shape}, expected {(len(rows), len(columns))}: a row for each "
                f"of {len(rows)} output tokens, a column for each of {len(columns)} input tokens."
            )
        length = len(columns) if valid is None else min(max(int(valid), 0), len(columns))
        panels.append((array.astype(np.float64), rows, columns, length))
    return panels


def _for_each(function: str, name: str, tokens: Sequence[Any], count: int) -> list[list[str]]:
    if all(isinstance(token, str) for token in tokens):
        return [list(tokens)] * count
    if len(tokens) != count:
        raise ValueError(
            f"{function}: there are {len(tokens)} lists of {name} for {count} heatmaps. Pass one for each."
        )
    return [list(one) for one in tokens]


def _panel(axes: Axes, array: np.ndarray, rows: list[str], columns: list[str], valid: int, padding: bool) -> Any:
    count = len(columns) if padding else valid
    shown = array[:, :count].copy()
    shown[:, valid:] = np.nan
    image = axes.imshow(shown, cmap=COLOURS, vmin=0.0, vmax=1.0, aspect="auto", interpolation="nearest")
    if count > valid:
        axes.axvspan(valid - 0.5, count - 0.5, **PADDING)
    axes.xaxis.tick_top()
    axes.set_xticks(range(count), map(_visible, columns[:count]))
    axes.set_yticks(range(len(rows)), map(_visible, rows))
    words = any(len(column) > 1 and not column.startswith("<") for column in columns)  # and not characters
    for label in axes.get_xticklabels():
        label.set_rotation(90 if words or len(label.get_text()) > 1 else 0)
    axes.tick_params(length=0, labelsize=8)
    return image


def _visible(token: str) -> str:
    """The token, with a visible symbol for a space."""
    return token.replace(" ", "␣")


def curves(losses: Mapping[str, Sequence[float]], *, validation: Mapping[str, Sequence[float]] | None = None) -> Figure:
    """Plot the loss of every step of several trainings and, below, their distances from the first.

    Arguments: losses by the name of each training; validation likewise, with one loss per epoch. Differences are
    relative, |a - b| / |b|, on a log scale, without a point where they are 0. Raises: ValueError if there is none;
    Undrawn if matplotlib is not installed.
    """
    if not losses:
        raise ValueError("curves: there is no training to plot. Pass the losses of at least one.")
    figure = empty_figure(7.0, 5.6)
    above, below = figure.subplots(2, 1, sharex=True, height_ratios=(3, 2))
    (first, expected), *_ = losses.items()
    styles = ("-", "--", "-.", ":")
    for position, (name, curve) in enumerate(losses.items()):
        steps, style = np.arange(1, len(curve) + 1), styles[position % len(styles)]
        (line,) = above.plot(steps, curve, style, label=name, linewidth=3.2 - 0.7 * (position % 4))
        if validation and validation.get(name):
            ends = np.linspace(0, len(curve), len(validation[name]) + 1)[1:]
            marks = {"marker": "o", "markersize": 5 - position % 4, "linestyle": "none", "color": line.get_color()}
            above.plot(ends, validation[name], label=f"{name}, validation", **marks)
        if position:
            both = min(len(curve), len(expected))
            distance = np.abs(np.subtract(curve[:both], expected[:both])) / np.abs(expected[:both])
            below.plot(steps[:both], np.where(distance > 0, distance, np.nan), ".", markersize=3, label=name)
    above.set_ylabel("loss, nats a token")
    above.legend(fontsize=8, ncols=2 if validation else 1)
    below.set_xlabel("step")
    below.set_ylabel(f"relative distance\nfrom {first}")
    below.set_yscale("log")
    if len(losses) > 1:
        below.legend(fontsize=8, loc="upper left")
    for axes in (above, below):
        axes.grid(alpha=0.3)
    return figure


def empty_figure(width: float, height: float) -> Figure:
    """Make a figure of this size in inches.

    Raises: Undrawn if matplotlib is not installed.
    """
    try:
        from matplotlib.figure import Figure
    except ModuleNotFoundError as error:
        raise Undrawn("pictures need matplotlib. Run: pip install matplotlib") from error
    return Figure(figsize=(width, height), dpi=150, layout="constrained")
