"""The pictures of the bench: panels, colours, styles and guides. No test draws what was measured."""

from __future__ import annotations

import numpy as np
import pytest
from matplotlib.colors import to_hex

from benchmarks import charts
from benchmarks.items import THIRD_PARTY
from benchmarks.runner import Bench, Length, Row
from parity_tests.colours import FRAMEWORK_COLOURS

LENGTHS = [
    Length(framework, form, length, factor * length**2, int(factor * length))
    for framework, factor in (("jax", 1.0), ("torch", 2.0))
    for form in ("ours", THIRD_PARTY)
    for length in (256, 512)
]
REFUSED = Length("torch", "third party", 1024, refused="does not fit")


def test_over_the_length_a_framework_has_a_colour_a_form_a_style_and_slopes_are_drawn():
    figure = charts.chart(Bench(lengths=[*LENGTHS, REFUSED]))
    seconds, taken = figure.get_axes()
    for axes in (seconds, taken):
        assert [line.get_linestyle() for line in axes.lines] == ["-", "--", "-", "--", ":", "-."]
        colours = [FRAMEWORK_COLOURS[name] for name in ("jax", "jax", "torch", "torch")]
        assert [line.get_color() for line in axes.lines[:4]] == colours
        for exponent, line in enumerate(axes.lines[4:], start=1):
            (x0, x1), (y0, y1) = line.get_data()
            assert (x0, x1) == (256, 512) and np.log(y1 / y0) == pytest.approx(exponent * np.log(x1 / x0))
        assert axes.get_xscale() == axes.get_yscale() == "log" and "length" in axes.get_xlabel()
    assert (seconds.get_ylabel(), taken.get_ylabel()) == ("seconds", "MiB")
    assert [axes.get_title() for axes in (seconds, taken)] == ["Time of a training step", "Memory of a training step"]
    (legend,) = figure.legends
    texts = [text.get_text() for text in legend.get_texts()]
    assert texts == ["jax", "torch", "ours", "third party", "linear growth", "quadratic growth"]


def ratio(item: str, framework: str, direction: str, goal: float | None = None, against: str = THIRD_PARTY):
    row = Row(item, framework, direction, "training", against, {}, goal, None, 2.0, (1.9, 2.1))
    row.unit = "bytes" if direction == "memory" else "seconds"
    return row


def test_a_chart_has_a_panel_for_each_item_and_one_colour_for_each_framework():
    rows = [ratio("dot", name, "training", goal) for name, goal in (("jax", 3.0), ("torch", 1.0), ("tf", None))]
    rows += [ratio("dot", "torch", "memory"), ratio("greedy", "torch", "training", against="third party, eager")]
    figure = charts.chart(Bench(rows, LENGTHS))
    above, below = figure.subfigs
    assert len(below.get_axes()) == 2
    shown = [axes for axes in above.get_axes() if axes.axison]
    assert [axes.get_title("left") for axes in shown] == ["dot: time", "dot: memory", "greedy: time"]
    assert [axes.get_xlabel() for axes in shown] == ["", "memory, theirs / ours", "time, theirs / ours"]
    colours = [FRAMEWORK_COLOURS[name] for name in ("jax", "torch", "tf")]
    assert [to_hex(bar.get_edgecolor()).upper() for bar in shown[0].patches] == colours
    assert [bar.get_hatch() for bar in shown[0].patches] == [charts.MISSED, None, None]
    (legend,) = above.legends
    handles = [to_hex(handle.get_facecolor()).upper() for handle in legend.legend_handles[:3]]
    assert [*zip([text.get_text() for text in legend.get_texts()], handles, strict=False)] == [
        *zip(("jax", "torch", "tf"), colours, strict=True)
    ]
    assert [label.get_text() for label in shown[2].get_yticklabels()] == ["torch training, eager"]
