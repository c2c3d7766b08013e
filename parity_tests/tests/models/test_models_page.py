"""The page of a comparison of two models: what is in the file, without a browser."""

from __future__ import annotations

import re
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from parity_tests.format.case import epsilon
from parity_tests.judge.verdict import Status, Verdict
from parity_tests.models.arrangements import Arrangement
from parity_tests.models.calls import Call, Recorder
from parity_tests.models.difference import Difference
from parity_tests.models.page import (
    breakable_path,
    distances,
    largest_error,
    length,
    page,
    pictures,
    sublayers,
)
from parity_tests.models.parameters import Pair, Pairing
from parity_tests.models.result import Result
from parity_tests.reports.html_report import WIDEST

TAG = '"><img src=x onerror="alert(1)">'
EXPECTED = np.arange(12.0).reshape(3, 4)
CHANGE = np.zeros((3, 4))
CHANGE[2, 1] = -0.5
ACTUAL = EXPECTED + CHANGE


class Page(HTMLParser):
    """The elements of a page, their attributes, and its text."""

    def __init__(self, comparison: Result) -> None:
        super().__init__()
        self.elements: list[tuple[str, dict[str, str | None]]] = []
        self.text = ""
        self.source = page(comparison)
        self.feed(self.source)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, dict(attrs)))

    def handle_data(self, data: str) -> None:
        self.text += data

    def of(self, style: str) -> list[dict[str, str | None]]:
        """The attributes of the elements with a class."""
        return [attributes for _, attributes in self.elements if style in (attributes.get("class") or "").split()]


def verdict(quantity: str = "output.y", status: Status = "pass", error: float | None = 1.0, **others: Any) -> Verdict:
    return Verdict("model", "evaluation", "new", "old", "cpu", "float64", quantity, status, error, 16.0, **others)


def call(folder: Path, path: str, kind: str, output: np.ndarray) -> Call:
    recorder = Recorder(folder)
    recorder.leave(recorder.enter(path, kind, {"0": EXPECTED}), {"output": output})
    return recorder.completed_calls[0]


def comparison(folder: Path, errors: dict[str, tuple[str, float]] | None = None, **others: Any) -> Result:
    """Two models that differ in encoder.norm."""
    sides = []
    for name, kind, output in (("a", "RMSNorm", ACTUAL), ("e", "LayerNorm", EXPECTED)):
        (folder / name).mkdir(exist_ok=True)
        sides.append(call(folder / name, "encoder.norm", kind, output))
    actual, expected = sides
    found = {"embed": ("embed", 0.0), "encoder.norm": ("encoder.norm", 0.05), "the model": ("the model", 1e-3)}
    return Result(
        **{
            "actual": "new",
            "expected": "old",
            "weights": "stored",
            "seed": 0,
            "verdicts": [verdict(), verdict("gradient.parameter.encoder.norm.scale", "fail", 2.0**32)],
            "inputs": {"tokens": "int32 (2, 7)"},
            "first_difference": Difference("output", expected, actual, expected.outputs[0], actual.outputs[0]),
            "looks_like": ["no mean is subtracted"],
            "errors": found if errors is None else errors,
            "pictures": {"actual": ACTUAL, "expected": EXPECTED},
            **others,
        }
    )


@pytest.mark.parametrize(
    ("verdicts", "outcome"),
    [
        ([verdict()], "green"),
        ([verdict(), verdict(status="fail", error=np.inf)], "red"),
        ([verdict(), verdict(status="undecided", condition=1e7)], "undecided"),
        ([], "red"),
    ],
)
def test_a_page_has_the_outcome_as_its_title_and_colour(verdicts: list[Verdict], outcome: str):
    shown = Page(Result("new", "old", "stored", 0, verdicts))
    assert shown.of(outcome)[0] == {"class": outcome} and outcome.capitalize() in shown.text
    assert f"<title>{outcome}, new against old: attention-parity</title>" in shown.source
    assert "The first difference" not in shown.text and "Sublayers" not in shown.text


def test_a_page_has_no_script_and_asks_for_no_other_file(tmp_path: Path):
    shown = Page(comparison(tmp_path))
    assert not {"script", "link", "img"} & {tag for tag, _ in shown.elements}
    assert [one["href"] for tag, one in shown.elements if tag == "a"] == ["#first"]
    assert "url(" not in shown.source and "@import" not in shown.source


def test_a_name_is_never_an_element(tmp_path: Path):
    pairing = Pairing([Pair((TAG,), (TAG, TAG), Arrangement((4,), (2, 2), (0, 1), (2, 2)), "order")], [TAG], [TAG])
    named = comparison(
        tmp_path,
        {TAG: (TAG, 0.5)},
        actual=TAG,
        expected=TAG,
        pairing=pairing,
        notes=[TAG],
        looks_like=[TAG],
        inputs={TAG: TAG},
        verdicts=[verdict(TAG, "fail", reason=TAG)],
    )
    assert "img" not in {tag for tag, _ in Page(named).elements}


def test_the_first_difference_is_opened_with_its_arrays(tmp_path: Path):
    shown = Page(comparison(tmp_path))
    difference = comparison(tmp_path).first_difference
    assert difference and difference.sentence in shown.text and "no mean is subtracted" in shown.text
    assert [one["title"] for one in shown.of("worst")] == ["[2, 1] = 8.5", "[2, 1] = 9.0", "[2, 1] = 0.5"]
    assert largest_error({"actual": ACTUAL, "expected": EXPECTED}) == {
        "largest error at": "[2, 1]",
        "actual": "8.5",
        "expected": "9",
        "error / largest entry": "0.0455",
    }


def test_a_picture_is_the_part_around_the_largest_error():
    expected = np.zeros((2, 40, 50))
    actual = expected.copy()
    actual[1, 3, 45] = -2.0
    shown = pictures({"actual": actual, "expected": expected})
    assert [one.name for one in shown] == ["actual", "expected", "|difference|"]
    assert [one.about for one in shown] == ["2×40×50, 32×32 around the largest error"] * 3
    assert [one.scale for one in shown] == [2.0, 2.0, 2.0]
    for one, number in zip(shown, ("-2.0", "0.0", "2.0"), strict=True):
        assert [len(cells) for _, cells in one.rows] == [WIDEST] * WIDEST
        (worst,) = [cell for _, cells in one.rows for cell in cells if "worst" in cell.style]
        assert worst.title == f"[1, 3, 45] = {number}" and worst.part == abs(float(number)) / 2
    assert [row for row, (is_next, _) in enumerate(shown[0].rows) if is_next] == [40 - (43 - WIDEST // 2)]
    assert not shown[0].has_numbers


def test_arrays_of_other_rows_or_columns_have_no_difference():
    assert distances({"actual": ACTUAL, "expected": EXPECTED.T}) is None
    assert [one.name for one in pictures({"actual": ACTUAL, "expected": EXPECTED.T})] == ["actual", "expected"]
    assert largest_error({"actual": ACTUAL, "expected": EXPECTED.T}) == {}
    for one in (np.zeros((0, 3)), np.zeros(0)):
        assert (
            distances({"actual": one, "expected": one}) is None and len(pictures({"actual": one, "expected": one})) == 2
        )
    assert pictures({}) == [] and largest_error({}) == {}


def test_leading_axes_of_size_one_do_not_matter_and_the_index_is_that_of_the_expected_array():
    flat = {"actual": ACTUAL[None, :, None], "expected": EXPECTED}
    assert largest_error(flat)["largest error at"] == "[2, 1]"
    scalars = {"actual": np.array(2.0), "expected": np.array(1.0)}
    assert largest_error(scalars)["largest error at"] == "[]"
    assert [one.about for one in pictures(scalars)] == ["scalar"] * 3


def test_numbers_that_are_not_finite_are_the_largest_error_unless_both_have_them():
    expected = np.array([[np.nan, np.inf, 1.0, 2.0]])
    both = {"actual": np.array([[np.nan, np.inf, 9.0, np.nan]]), "expected": expected}
    np.testing.assert_array_equal(distances(both), [[0.0, 0.0, 8.0, np.nan]])
    assert largest_error(both)["largest error at"] == "[0, 3]"
    styles = [cell.style for _, cells in pictures(both)[0].rows for cell in cells]
    assert styles == ["strange", "strange", "", "strange worst"]


@pytest.mark.parametrize(
    ("error", "part"),
    [(0.0, 0.0), (1e-20, 0.0), (1e-17, 0.0), (10**-8.5, 0.5), (1.0, 1.0), (30.0, 1.0), (np.inf, 1.0), (np.nan, 1.0)],
)
def test_a_bar_is_logarithmic(error: float, part: float):
    assert length(error) == pytest.approx(part, abs=1e-12)


def test_sublayers_have_errors_of_outputs_and_of_gradients(tmp_path: Path):
    verdicts = [
        verdict("gradient.parameter.encoder.norm.scale", "fail", 100.0),
        verdict("gradient.parameter.encoder.norm.bias", "fail", 300.0),
        verdict("gradient.parameter.temperature", "fail", 7.0),
        verdict("gradient.parameter.embed.weight", "fail", 5.0, check="entry"),
        verdict("gradient.parameter.embed.weight", "missing", None),
    ]
    errors = {
        "embed": ("embed", 0.0),
        "encoder.norm": ("norm", 0.05),
        "encoder.norm (call 2)": ("norm (call 2)", 1e-3),
        "the model": ("the model", 1e-4),
    }
    rows = list(sublayers(comparison(tmp_path, errors, verdicts=verdicts)))
    eps = epsilon("float64")
    assert [row.gradient for row in rows] == [None, 300 * eps, 300 * eps, 7 * eps]
    assert [row.is_first for row in rows] == [False, True, False, False]
    assert [row.depth for row in rows] == [1, 2, 2, 0]
    assert [kind for kind, _ in rows[0].bars] == ["output"]


def test_each_of_300_sublayers_is_a_row_and_the_first_difference_is_marked(tmp_path: Path):
    errors = {f"layers.{number}.norm": (f"block_{number}/norm", 10.0 ** (number / 20 - 16)) for number in range(300)}
    shown = Page(comparison(tmp_path, {**errors, "encoder.norm": ("norm", 0.5)}))
    assert len(shown.of("bars")) == 301 and len(shown.of("output")) == 301 + 1  # and the legend
    (first,) = shown.of("first")
    assert first["id"] == "first" and "layers.299.norm" in shown.text and "block_299/norm" in shown.text
    assert len(shown.source) < 250_000
    gone = Page(comparison(tmp_path, errors))
    assert not gone.of("first") and "#first" not in gone.source


def test_weights_without_a_partner_are_open_and_guesses_are_named(tmp_path: Path):
    turned = Pair(("w",), ("q", "k"), Arrangement((8, 3), (2, 4, 3), (0, 2, 1), (2, 3, 4)), "order")
    shown = Page(comparison(tmp_path, pairing=Pairing([turned], ["head.bias"], [])))
    assert ("details", {"open": None}) in shown.elements
    assert "1 pairs, 1 with other axes, 1 without a partner" in shown.text and "head.bias" in shown.text
    assert "q + k" in shown.text and "axes (0, 2, 1), 2 parts, by order: a guess" in shown.text
    assert ("details", {}) in Page(comparison(tmp_path, pairing=Pairing([turned]))).elements


def test_red_verdicts_are_first_then_the_undecided_ones(tmp_path: Path):
    every = [
        verdict("output.a", reason="a tolerance"),
        verdict("output.b", "undecided", 9e9, condition=3e7),
        verdict("output.c", "fail", None, reason="it differs"),
    ]
    rows = Page(comparison(tmp_path, verdicts=every)).source.partition('<table class="verdicts">')[2]
    cells = [re.findall(r"<t[hd][^>]*>(.*?)</t[hd]>", row) for row in re.findall(r"<tr><td>.*?</tr>", rows)]
    assert [row[1].replace("<wbr>", "") for row in cells] == ["output.c", "output.b", "output.a"]
    assert [row[7] for row in cells] == ["it differs", "", ""]
    assert '<th scope="col">reason</th>' not in page(comparison(tmp_path, verdicts=[verdict(reason="a tolerance")]))
    assert [row[4:7] for row in cells] == [["–", "16", "–"], ["9e+09", "16", "3e+07"], ["1", "16", "–"]]


def test_a_path_may_be_broken_after_its_parts():
    assert breakable_path("layers.0/out_proj") == "layers.<wbr>0/<wbr>out_<wbr>proj"
    assert breakable_path("a<b") == "a&lt;b" and breakable_path("") == ""
