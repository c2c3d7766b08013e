"""Plots: attention weights as heatmaps with the words on both axes, of single sentences or of all layers and heads, and
loss curves of several trainings.

Requires matplotlib, the extra [plot]. No window is opened: save the returned figure, or let a notebook show it.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, get_args

import numpy as np

from parity_tests.colours import colours_of

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

Scale = Literal["full", "shared", "each"]
"""The range of the colours: 0 to 1; 0 to the largest weight of all heatmaps; 0 to the largest of each, with its bar."""
COLOUR_MAP = "viridis"
WIDEST, TALLEST = 15.0, 15.0
"""The size of a figure in inches that heatmaps are made to fit, unless they would be smaller than `SMALLEST`."""
CELL, SMALLEST = 0.3, 1.0
"""The largest side of a cell and the smallest side of a heatmap, in inches."""
BAR, BESIDE, BELOW = 0.2, 1.3, 0.5
"""The width of a colour bar, and the space for it and for the names of the axes, in inches."""
POINTS, LEAST_LABEL = 60.0, 5.0
"""The height in points of a label that fits to an inch, and the smallest that can be read."""
LETTER, LONGEST_LABEL = 0.075, 1.2
"""The width of a letter, and the largest width of a label that is reckoned with, in inches."""
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
    scale: Scale = "full",
) -> Figure:
    """Plot attention weights: a row for each output token, a column for each input token.

    Arguments: weights is an array (rows, columns) of any framework, or several arrays of any sizes (sentences or
    heads); outputs and inputs are the tokens of all, or a list for each. valid_lens, one number or one for each, is the
    number of input tokens without padding: the other columns are cut off or, with padding=True, hatched. The colours
    range from 0 to 1 (scale="full"), to the largest weight of all heatmaps ("shared"), or of each ("each"). In a
    notebook, the figure is shown where it is the last expression of a cell. Raises: ValueError, with the sizes, if
    tokens and weights do not fit; Undrawn if matplotlib is not installed.
    """
    panels = _panels(weights, outputs, inputs, valid_lens, "heatmap")
    if titles is not None and len(titles) != len(panels):
        raise ValueError(f"heatmap: there are {len(titles)} titles for {len(panels)} heatmaps. Pass one for each.")
    return _draw(panels, None, titles, scale, "heatmap", padding)


def grid(
    weights: Any,
    outputs: Sequence[str] | None = None,
    inputs: Sequence[str] | None = None,
    valid_lens: int | None = None,
    *,
    scale: Scale = "shared",
) -> Figure:
    """Plot the attention weights of all layers and heads: a small heatmap for each, with a row of heads for each layer.

    Arguments: weights is an array (layers, heads, rows, columns) of any framework. outputs and inputs are the tokens of
    rows and columns; without them there are no labels. valid_lens is the number of input tokens without padding: the
    other columns are cut off. scale is that of `heatmap`. Raises: ValueError, with the sizes, if tokens and weights do
    not fit; Undrawn if matplotlib is not installed.
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
    titles = [f"layer {layer + 1}, head {head + 1}" for layer in range(layers) for head in range(heads)]
    return _draw(panels, heads, titles, scale, "grid")


@dataclass(frozen=True)
class Layout:
    """Heatmaps beside and below each other: how many, the side of a cell, and the figure's size, both in inches.

    alike is whether all have the same tokens, which are then written once for each row and column of heatmaps.
    """

    across: int
    down: int
    cell: float
    size: tuple[float, float]
    alike: bool


def layout(panels: Sequence[Panel], across: int | None, padding: bool, bars: bool) -> Layout:
    """The layout of heatmaps, so many across as are given, else as many as let the cells be largest."""
    shown = [columns if padding else columns[:valid] for _, _, columns, valid in panels]
    num_rows, num_columns = max(1, *(len(panel[1]) for panel in panels)), max(1, *map(len, shown))
    alike = all(panel[1:] == panels[0][1:] for panel in panels)
    beside = _label_space(token for panel in panels for token in panel[1])
    above = _label_space(token for tokens in shown for token in tokens)
    right, top, left, over = 0.15 + (0.45 if bars else 0.0), 0.4, BESIDE, BELOW
    if alike:
        left, over = left + beside, over + above
    else:
        right, top = right + beside, top + above

    def arrange(across: int) -> Layout:
        """So many across, with the largest cells that fit the figure."""
        down = math.ceil(len(panels) / across)
        fitting = (WIDEST - left) / across - right, (TALLEST - over) / down - top
        cell = min(CELL, max(fitting[0], SMALLEST) / num_columns, max(fitting[1], SMALLEST) / num_rows)
        width = across * (max(cell * num_columns, SMALLEST) + right) + left
        height = down * (max(cell * num_rows, SMALLEST) + top) + over
        return Layout(across, down, cell, (round(width, 3), round(height, 3)), alike)

    if across is not None:
        return arrange(across)
    most = max(1, min(len(panels), int((WIDEST - left) / (SMALLEST + right))))
    layouts = map(arrange, range(1, most + 1))
    best = max(layouts, key=lambda one: (one.size[1] <= TALLEST, one.cell, one.across))
    return arrange(math.ceil(len(panels) / best.down))


def _label_space(tokens: Iterable[str]) -> float:
    """The length of the longest label in inches."""
    return min(LETTER * max(map(len, tokens), default=0), LONGEST_LABEL)


def _draw(
    panels: Sequence[Panel],
    across: int | None,
    titles: Sequence[str] | None,
    scale: Scale,
    function: str,
    padding: bool = False,
) -> Figure:
    """A figure of heatmaps, with a bar of their colours, or one for each."""
    limits = colour_limits(panels, scale, function)
    chosen = layout(panels, across, padding, scale == "each")
    figure = empty_figure(*chosen.size)
    drawn = figure.subplots(chosen.down, chosen.across, squeeze=False)
    for axes in drawn.flat[len(panels) :]:
        axes.axis("off")
    for position, (axes, panel, limit) in enumerate(zip(drawn.flat, panels, limits, strict=False)):
        image = _panel(axes, panel, padding, limit)
        first, highest = position % chosen.across == 0, position < chosen.across
        axes.tick_params(labelleft=first or not chosen.alike, labeltop=highest or not chosen.alike)
        _thin_out(axes, chosen.cell)
        if titles is not None:
            axes.set_title(titles[position], fontsize=9)
        if first:
            axes.set_ylabel("outputs", fontsize=9)
        if position + chosen.across >= len(panels):
            axes.set_xlabel("inputs", fontsize=9)
        if scale == "each":
            figure.colorbar(image, ax=axes).ax.tick_params(labelsize=6)
    if scale != "each":
        width, height = chosen.size
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
"""The weights of a heatmap, the tokens of its rows and columns, and the number of columns without padding."""


def colour_limits(panels: Sequence[Panel], scale: Scale, function: str) -> list[float]:
    """The weight with the last colour, for each heatmap; 1 where all weights are 0.

    Raises: ValueError if there is no such scale.
    """
    if scale not in get_args(Scale):
        raise ValueError(f"{function}: there is no scale {scale!r}. Pass one of {', '.join(get_args(Scale))}.")
    if scale == "full":
        return [1.0] * len(panels)
    largest = [
        float(array[:, :valid].max(initial=0.0, where=np.isfinite(array[:, :valid]))) for array, _, _, valid in panels
    ]
    return [(one if scale == "each" else max(largest)) or 1.0 for one in largest]


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


def _panel(axes: Axes, panel: Panel, padding: bool, limit: float) -> Any:
    array, rows, columns, valid = panel
    count = len(columns) if padding else valid
    shown = array[:, :count].copy()
    shown[:, valid:] = np.nan
    image = axes.imshow(shown, cmap=COLOUR_MAP, vmin=0.0, vmax=limit, aspect="auto", interpolation="nearest")
    if count > valid:
        axes.axvspan(valid - 0.5, count - 0.5, **PADDING)
    axes.xaxis.tick_top()
    axes.set_xticks(range(count), map(visible, columns[:count]))
    axes.set_yticks(range(len(rows)), map(visible, rows))
    words = any(len(column) > 1 and not column.startswith("<") for column in columns)  # and not characters
    for label in axes.get_xticklabels():
        label.set_rotation(90 if words or len(label.get_text()) > 1 else 0)
    axes.tick_params(length=0, labelsize=8)
    return image


def visible(token: str) -> str:
    """The token, with a visible symbol for a space."""
    return token.replace(" ", "␣")


WIDTHS = (7.0, 4.6, 2.5, 0.9)
"""Of curves above each other, from below, in points."""


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
    colours = colours_of(losses)
    for position, (name, curve) in enumerate(losses.items()):
        steps, colour = np.arange(1, len(curve) + 1), colours[name]
        # Where curves coincide, each is seen on both sides of the next one.
        above.plot(steps, curve, color=colour, label=name, linewidth=WIDTHS[position % len(WIDTHS)])
        if validation and validation.get(name):
            ends = np.linspace(0, len(curve), len(validation[name]) + 1)[1:]
            marks = {"marker": "o", "markersize": 5 - position % 4, "linestyle": "none", "color": colour}
            above.plot(ends, validation[name], label=f"{name}, validation", **marks)
        if position:
            both = min(len(curve), len(expected))
            distance = np.abs(np.subtract(curve[:both], expected[:both])) / np.abs(expected[:both])
            distance = np.where(distance > 0, distance, np.nan)
            below.plot(steps[:both], distance, ".", color=colour, markersize=3, label=name)
    above.set_title("Training loss", fontsize=10)
    above.set_ylabel("loss, nats per token")
    above.legend(fontsize=8, ncols=2 if validation else 1)
    below.set_xlabel("step")
    below.set_ylabel("|a − b| / |b|")
    below.set_yscale("log")
    if len(losses) > 1:
        below.set_title(f"Relative distance of the losses from {first}", fontsize=10)
        below.legend(fontsize=8, loc="upper left")
    for axes in (above, below):
        axes.grid(alpha=0.3)
    return figure


def empty_figure(width: float, height: float) -> Figure:
    """Make a figure of this size in inches.

    Raises: Undrawn if matplotlib is not installed.
    """
    try:
        from parity_tests.figures import ShownFigure
    except ModuleNotFoundError as error:
        raise Undrawn("pictures need matplotlib, the extra [plot]. Run: pip install matplotlib") from error
    return ShownFigure(width, height)
