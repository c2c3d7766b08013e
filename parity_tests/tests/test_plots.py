"""Pictures: what stands on their axes, and that colours mean the same everywhere."""

from __future__ import annotations

import sys
from types import SimpleNamespace

import numpy as np
import pytest

from backends import FRAMEWORKS
from parity_tests import plots
from parity_tests.colours import FRAMEWORK_COLOURS, OTHER_COLOURS, colours_of

WEIGHTS = np.array([[0.7, 0.3, 0.0, 0.0], [0.1, 0.9, 0.0, 0.0]])
OUTPUTS, INPUTS = ["va", "!"], ["go", ".", "<pad>", "<pad>"]


def labels(axes) -> tuple[list[str], list[str]]:
    return tuple([label.get_text() for label in axis.get_ticklabels()] for axis in (axes.yaxis, axes.xaxis))


def test_both_axes_have_words_up_to_the_valid_length_and_colours_are_fixed():
    figure = plots.heatmap(WEIGHTS, OUTPUTS, INPUTS, 2)
    axes, _ = figure.axes
    assert labels(axes) == (["va", "!"], ["go", "."])
    (image,) = axes.images
    assert image.get_clim() == (0.0, 1.0) and image.get_array().shape == (2, 2)
    np.testing.assert_array_equal(image.get_array(), WEIGHTS[:, :2])


def test_visible_padding_is_hatched_and_has_no_colour_of_a_weight():
    axes = plots.heatmap(WEIGHTS, OUTPUTS, INPUTS, 2, padding=True).axes[0]
    assert labels(axes)[1] == INPUTS
    assert axes.images[0].get_array().mask.tolist() == [[False, False, True, True]] * 2
    (patch,) = axes.patches
    assert patch.get_hatch() and patch.get_x() == 1.5 and patch.get_width() == 2.0
    assert plots.heatmap(WEIGHTS, OUTPUTS, INPUTS, 4, padding=True).axes[0].patches[:] == []


def test_several_sentences_and_heads_share_a_figure():
    several = plots.heatmap([WEIGHTS, WEIGHTS[:1, :3]], [OUTPUTS, ["va"]], [INPUTS, INPUTS[:3]], [2, 3])
    assert [labels(axes)[1] for axes in several.axes[:2]] == [["go", "."], ["go", ".", "<pad>"]]
    heads = plots.heatmap(np.stack([WEIGHTS] * 5), OUTPUTS, INPUTS, 2, titles=[f"head {n}" for n in range(5)])
    drawn = [axes for axes in heads.axes if axes.images]
    assert [axes.get_title() for axes in drawn] == [f"head {n}" for n in range(5)]
    assert {axes.images[0].get_clim() for axes in drawn} == {(0.0, 1.0)}
    assert [labels(axes)[0] for axes in drawn] == [OUTPUTS] + [[]] * 4  # they have the same tokens


@pytest.mark.parametrize("plot", [plots.heatmap, plots.grid])
@pytest.mark.parametrize(
    ("scale", "limits"), [("full", [1.0, 1.0, 1.0]), ("shared", [0.5, 0.5, 0.5]), ("each", [0.5, 0.25, 1.0])]
)
def test_the_colours_range_to_one_or_to_the_largest_valid_weight(plot, scale, limits):
    weights = np.array([[[0.5, 0.1, 0.8]], [[0.25, 0.1, 0.0]], [[0.0, 0.0, 0.0]]])
    figure = plot(weights[None] if plot is plots.grid else weights, ["va"], ["go", ".", "<pad>"], 2, scale=scale)
    drawn = [axes for axes in figure.axes if axes.images]
    assert [axes.images[0].get_clim() for axes in drawn[:3]] == [(0.0, limit) for limit in limits]
    bars = [axes for axes in figure.axes if axes.get_label() == "<colorbar>"]
    assert len(bars) == (3 if scale == "each" else 1)


def test_a_weight_that_is_not_finite_does_not_decide_the_colours():
    axes = plots.heatmap([[0.2, np.nan, np.inf, 0.4]], ["va"], list("abcd"), scale="shared").axes[0]
    assert axes.images[0].get_clim() == (0.0, 0.4)


def test_an_unknown_scale_is_refused_with_those_there_are():
    with pytest.raises(ValueError, match=r"no scale 'own'\. Pass one of full, shared, each\."):
        plots.heatmap(WEIGHTS, OUTPUTS, INPUTS, scale="own")


def test_the_axes_of_a_heatmap_have_names_at_the_edges():
    figure = plots.heatmap([np.full((2, 40), 0.1)] * 3, OUTPUTS, [f"word{n}" for n in range(40)])
    drawn = [axes for axes in figure.axes if axes.images]
    across = len({axes.get_subplotspec().colspan.start for axes in drawn})
    assert across == 1 and [axes.get_ylabel() for axes in drawn] == ["outputs"] * 3
    assert [axes.get_xlabel() for axes in drawn] == ["", "", "inputs"]
    figure = plots.heatmap(np.full((5, 9, 9), 0.1), list("abcdefghi"), list("abcdefghi"))
    drawn = [axes for axes in figure.axes if axes.images]
    assert [axes.get_ylabel() for axes in drawn] == ["outputs", "", "", "outputs", ""]
    assert [axes.get_xlabel() for axes in drawn] == ["", "", "inputs", "inputs", "inputs"]


@pytest.mark.parametrize("count", [1, 2, 5, 12, 24])
@pytest.mark.parametrize(("rows", "columns"), [(3, 4), (12, 16), (40, 40), (5, 80)])
@pytest.mark.parametrize("scale", ["full", "each"])
def test_heatmaps_of_any_number_fit_a_page(count: int, rows: int, columns: int, scale: str):
    panels = [(np.zeros((rows, columns)), ["word"] * rows, ["word"] * columns, columns)] * count
    for several in (panels, [(*panel[:2], [f"word{n}"] * columns, columns) for n, panel in enumerate(panels)]):
        layout = plots.layout(several, None, False, scale == "each")
        width, height = layout.size
        assert width <= plots.WIDEST and height <= plots.TALLEST
        assert layout.across * (layout.down - 1) < count <= layout.across * layout.down
        assert layout.cell <= plots.CELL and (rows * columns > 200 or count > 12 or layout.cell > 0.12)


def test_arrays_of_any_framework_are_accepted(backend: SimpleNamespace):
    weights = backend.package.masked_softmax(
        backend.runtime.from_numpy(np.zeros((1, 2, 4), np.float32)), backend.runtime.from_numpy(np.array([2], np.int32))
    )
    lens = backend.runtime.from_numpy(np.array([2], np.int32))
    axes = plots.heatmap(weights, OUTPUTS, INPUTS, lens).axes[0]
    np.testing.assert_array_equal(axes.images[0].get_array(), [[0.5, 0.5]] * 2)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ((WEIGHTS, ["va"], INPUTS), r"weights have shape \(2, 4\), expected \(1, 4\)"),
        ((WEIGHTS, OUTPUTS, INPUTS, [2, 2]), "there are 2 valid_lens for 1 heatmaps"),
        (([WEIGHTS] * 2, [OUTPUTS], INPUTS), "there are 1 lists of outputs for 2 heatmaps"),
    ],
)
def test_what_does_not_fit_is_refused_with_its_sizes(arguments, words: str):
    with pytest.raises(ValueError, match=words):
        plots.heatmap(*arguments)


def test_titles_have_to_be_as_many_as_heatmaps():
    with pytest.raises(ValueError, match="there are 2 titles for 1 heatmaps"):
        plots.heatmap(WEIGHTS, OUTPUTS, INPUTS, titles=["a", "b"])


def layers_of_heads(layers: int, heads: int, rows: int, columns: int) -> np.ndarray:
    """Weights whose largest entry differs from head to head."""
    return np.arange(1.0, layers * heads * rows * columns + 1.0).reshape(layers, heads, rows, columns) / 1000.0


def test_a_grid_has_a_row_of_heads_for_each_layer_and_one_scale():
    weights = layers_of_heads(2, 3, 2, 4)
    figure = plots.grid(weights, OUTPUTS, INPUTS)
    drawn = [axes for axes in figure.axes if axes.images]
    titles = [f"layer {layer}, head {head}" for layer in (1, 2) for head in (1, 2, 3)]
    assert [axes.get_title() for axes in drawn] == titles and len(figure.axes) == len(drawn) + 1
    assert [axes.get_subplotspec().rowspan.start for axes in drawn] == [0, 0, 0, 1, 1, 1]
    assert {axes.images[0].get_clim() for axes in drawn} == {(0.0, 0.048)}
    for axes, array in zip(drawn, weights.reshape(-1, 2, 4), strict=True):
        np.testing.assert_array_equal(axes.images[0].get_array(), array)
    assert [axes.get_ylabel() for axes in drawn] == ["outputs", "", "", "outputs", "", ""]
    assert [axes.get_xlabel() for axes in drawn] == ["", "", "", "inputs", "inputs", "inputs"]
    assert [labels(axes) for axes in drawn] == [
        (OUTPUTS if head == 0 else [], INPUTS if layer == 0 else []) for layer in range(2) for head in range(3)
    ]


def test_each_heatmap_of_a_grid_may_have_a_scale_of_its_own():
    weights = layers_of_heads(2, 3, 2, 4)
    figure = plots.grid(weights, OUTPUTS, INPUTS, scale="each")
    drawn = [axes for axes in figure.axes if axes.images and axes.get_title()]
    largest = weights.max(axis=(2, 3)).ravel()
    assert [axes.images[0].get_clim() for axes in drawn] == [(0.0, one) for one in largest]
    assert len(figure.axes) == 12


def test_a_grid_cuts_padding_off_and_needs_no_tokens():
    weights = layers_of_heads(1, 2, 2, 4)
    axes = plots.grid(weights, OUTPUTS, INPUTS, 2).axes[1]
    assert labels(axes)[1] == ["go", "."] and axes.images[0].get_array().shape == (2, 2)
    assert axes.images[0].get_clim() == (0.0, 0.014)
    assert labels(plots.grid(weights).axes[0]) == ([""] * 2, [""] * 4)


@pytest.mark.parametrize(("layers", "heads", "steps"), [(1, 1, 3), (2, 4, 12), (6, 8, 12), (1, 24, 40)])
def test_a_grid_of_any_size_fits_a_page_and_its_labels_their_cells(layers: int, heads: int, steps: int, tmp_path):
    tokens = [f"word{number}" for number in range(steps)]
    figure = plots.grid(layers_of_heads(layers, heads, steps, steps), tokens, tokens)
    assert figure.get_figwidth() <= max(plots.WIDEST, heads * (plots.SMALLEST + 0.15) + 2.0)
    visible = [label for label in figure.axes[0].get_xticklabels() if label.get_visible()]
    assert len(visible) == (steps if steps <= 12 else 10)
    if layers == 2:
        figure.savefig(tmp_path / "grid.png")
        assert (tmp_path / "grid.png").read_bytes().startswith(b"\x89PNG")


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ((WEIGHTS,), r"grid: weights have shape \(2, 4\), expected \(layers, heads, rows, columns\)"),
        ((np.zeros((1, 0, 2, 4)),), r"grid: weights have shape \(1, 0, 2, 4\), expected .* none of which is 0"),
        ((np.zeros((1, 3, 2, 4)), ["va"], INPUTS), r"grid: weights have shape \(2, 4\), expected \(1, 4\)"),
    ],
)
def test_a_grid_that_does_not_fit_is_refused_with_its_sizes(arguments, words: str):
    with pytest.raises(ValueError, match=words):
        plots.grid(*arguments)


def test_curves_share_an_axis_with_their_distance_below_on_a_log_scale(tmp_path):
    losses = {"torch": [4.0, 2.0, 1.0], "jax": [4.0, 2.0 + 2e-10, 1.0 - 1e-9], "mxnet": [4.0, 2.0]}
    figure = plots.curves(losses, validation={"torch": [3.0, 1.5]})
    above, below = figure.axes
    assert [line.get_label() for line in above.lines] == ["torch", "torch, validation", "jax", "mxnet"]
    assert above.lines[1].get_xdata().tolist() == [1.5, 3.0]
    assert below.get_yscale() == "log" and [line.get_label() for line in below.lines] == ["jax", "mxnet"]
    np.testing.assert_allclose(below.lines[0].get_ydata(), [np.nan, 1e-10, 1e-9], rtol=1e-6)
    for line in above.lines:
        assert line.get_color() == FRAMEWORK_COLOURS[line.get_label().partition(",")[0]]
    assert [line.get_color() for line in below.lines] == [FRAMEWORK_COLOURS[name] for name in ("jax", "mxnet")]
    assert {line.get_linestyle() for line in above.lines if "," not in line.get_label()} == {"-"}
    assert "torch" in below.get_title() and below.get_xlabel() == "step" and "nats" in above.get_ylabel()
    figure.savefig(tmp_path / "curves.png")
    assert (tmp_path / "curves.png").read_bytes().startswith(b"\x89PNG")
    with pytest.raises(ValueError, match="no training to plot"):
        plots.curves({})


def test_each_framework_has_a_colour_that_differs_from_all_others():
    assert tuple(FRAMEWORK_COLOURS) == FRAMEWORKS
    assert len({*FRAMEWORK_COLOURS.values(), *OTHER_COLOURS}) == len(FRAMEWORK_COLOURS) + len(OTHER_COLOURS)


VISION = {
    "trichromacy": np.eye(3),
    "protanopia": [[0.11238, 0.88762, 0.0], [0.11238, 0.88762, 0.0], [0.00401, -0.00401, 1.0]],
    "deuteranopia": [[0.29275, 0.70725, 0.0], [0.29275, 0.70725, 0.0], [-0.02234, 0.02234, 1.0]],
}
"""What of a colour is seen, as matrices of linear RGB: Viénot, Brettel and Mollon 1999."""


@pytest.mark.parametrize("vision", VISION)
def test_all_kinds_of_colour_vision_tell_the_frameworks_apart(vision: str):
    values = [
        [int(colour[place : place + 2], 16) / 255.0 for place in (1, 3, 5)] for colour in FRAMEWORK_COLOURS.values()
    ]
    seen = np.array(values) ** 2.2 @ np.transpose(VISION[vision])
    seen = np.clip(seen, 0.0, 1.0) ** (1 / 2.2)
    distances = [np.linalg.norm(one - other) for place, one in enumerate(seen) for other in seen[:place]]
    assert min(distances) > 0.25


def test_a_name_has_the_colour_of_its_framework_whatever_stands_beside_it():
    colours = colours_of(["mine", "jax", "dates-torch", "torch_adam", "theirs"])
    assert [colours["jax"], colours["dates-torch"]] == [FRAMEWORK_COLOURS["jax"], FRAMEWORK_COLOURS["torch"]]
    assert [colours["mine"], colours["torch_adam"], colours["theirs"]] == list(OTHER_COLOURS[:3])
    assert colours_of(["torch", "mine"])["torch"] == colours["dates-torch"]


def test_a_notebook_shows_a_figure():
    picture, metadata = plots.heatmap(WEIGHTS, OUTPUTS, INPUTS)._repr_png_()
    assert picture.startswith(b"\x89PNG")
    width, height = (int.from_bytes(picture[place : place + 4], "big") for place in (16, 20))
    assert abs(metadata["width"] - width / 2) <= 1 and abs(metadata["height"] - height / 2) <= 1


def test_without_matplotlib_the_error_names_the_extra(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setitem(sys.modules, "parity_tests.figures", None)
    with pytest.raises(plots.Undrawn, match=r"the extra \[plot\]\. Run: pip install matplotlib"):
        plots.heatmap(WEIGHTS, OUTPUTS, INPUTS)
