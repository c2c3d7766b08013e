"""Pictures: what stands on their axes, and that colours mean the same everywhere."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import pytest

from parity_tests import plots

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


def test_curves_share_an_axis_with_their_distance_below_on_a_log_scale(tmp_path):
    losses = {"torch": [4.0, 2.0, 1.0], "jax": [4.0, 2.0 + 2e-10, 1.0 - 1e-9], "mxnet": [4.0, 2.0]}
    figure = plots.curves(losses, validation={"torch": [3.0, 1.5]})
    above, below = figure.axes
    assert [line.get_label() for line in above.lines] == ["torch", "torch, validation", "jax", "mxnet"]
    assert above.lines[1].get_xdata().tolist() == [1.5, 3.0]
    assert below.get_yscale() == "log" and [line.get_label() for line in below.lines] == ["jax", "mxnet"]
    np.testing.assert_allclose(below.lines[0].get_ydata(), [np.nan, 1e-10, 1e-9], rtol=1e-6)
    figure.savefig(tmp_path / "curves.png")
    assert (tmp_path / "curves.png").read_bytes().startswith(b"\x89PNG")
    with pytest.raises(ValueError, match="no training to plot"):
        plots.curves({})
