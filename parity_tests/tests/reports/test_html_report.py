"""The report: what is in the file, without a browser; test_browser.py opens it in one."""

from __future__ import annotations

import base64
import gzip
import hashlib
import json
import re
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import numpy as np
import pytest
from markupsafe import escape

from parity_tests.cli import paths
from parity_tests.judge.run import Run, missing_verdict
from parity_tests.judge.verdict import Status, Verdict
from parity_tests.reports.ci_summary import badge, markdown
from parity_tests.reports.html_report import WIDEST, breakable, page, window
from parity_tests.reports.matrix import Entry, columns, entry, share
from parity_tests.reports.table import red_groups
from parity_tests.tests.commands import invoke
from parity_tests.tests.reports import runs


def verdict(status: Status, error: float | None = None, tolerance: float | None = 10.0) -> Verdict:
    return Verdict("op", "op-case", "mine", "reference", "cpu", "float64", "weights", status, error, tolerance)


def unpacked(text: str, name: str) -> Any:
    """The data in a page."""
    packed = re.search(rf'<script type="application/octet-stream" id="{name}">(.*?)</script>', text)
    assert packed
    return json.loads(gzip.decompress(base64.b64decode(packed[1])))


class Tags(HTMLParser):
    """The attributes of a page by name, and its style sheet and script."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.attributes: dict[str, list[str | None]] = {}
        self.code: list[str] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        for name, value in attrs:
            self.attributes.setdefault(name, []).append(value)

    @staticmethod
    def of_matrix(text: str) -> str:
        """The matrix of a page."""
        return text.partition('<table id="matrix">')[2].partition("</table>")[0]

    def handle_data(self, data: str) -> None:
        if self.cdata_elem is not None:
            self.code.append(data)


@pytest.mark.parametrize(
    ("verdicts", "expected"),
    [
        ([verdict("pass", 0.0)], Entry("exact", "exact")),
        ([verdict("pass", 0.01), verdict("pass", 0.0)], Entry("step1", "<1%")),
        ([verdict("pass", 1.0), verdict("pass", 0.5)], Entry("step1", "10%")),
        ([verdict("pass", 2.0)], Entry("step2", "20%")),
        ([verdict("pass", 10.0)], Entry("step4", "100%")),
        ([verdict("pass", 10.0), verdict("fail", 11.0), verdict("missing", None, None)], Entry("red", "✕ 2")),
        ([verdict("pass", 5.0), verdict("known-divergence", 90.0)], Entry("step3", "50% †")),
        ([verdict("known-divergence", 90.0)], Entry("none", "known †")),
        ([verdict("not-applicable", None, None)], Entry("none", "n/a")),
        ([verdict("not-implemented", None, None)], Entry("none", "missing")),
        ([verdict("informational", 90.0)], Entry("none", "measured")),
        ([], Entry("red", "blank")),
    ],
)
def test_a_place_shows_what_is_worst(verdicts: list[Verdict], expected: Entry):
    assert entry(verdicts) == expected


def test_what_tolerates_nothing_has_no_share_unless_it_is_exact():
    assert share(verdict("pass", 0.0, 0.0)) == 0.0 and share(verdict("fail", 1.0, 0.0)) is None


def test_a_backend_that_did_not_run_has_a_column():
    run = Run([], [missing_verdict("gone", "gone is not installed")])
    assert columns(run) == ["gone"]
    assert "all operators" in page(run)


@pytest.mark.parametrize("red", [False, True])
def test_a_page_has_every_comparison_and_asks_for_no_other_file(red: bool):
    run = runs.judged(red)
    text = page(run)
    rows = unpacked(text, "comparisons")["rows"]
    assert {len(column) for column in rows.values()} == {len(run.verdicts)}
    tags = Tags(text)
    assert not set(tags.attributes) & {"src", "srcset", "action", "data", "poster", "background"}
    assert all(address and address.startswith("#") for address in tags.attributes.get("href", []))
    assert not re.search(r"url\(|@import|https?:", styles_and_script := "".join(tags.code)) and styles_and_script
    assert "default-src 'none'" in text
    script = text.rpartition("<script>")[2].partition("</script>")[0]
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    assert f"'sha256-{digest}'" in text


def test_a_red_page_names_the_mutant_the_command_and_the_reason_as_text():
    run = runs.judged(red=True)
    text = page(run)
    assert "A fully masked row is NaN." in text and str(escape(runs.CODE)) in text and runs.CODE not in text
    assert re.search(
        "attention-parity run --backend torch --case &#39;masked_softmax-[a-z_]+&#39; --dtype float64", text
    )
    comparisons = unpacked(text, "comparisons")
    row = next(
        number
        for number, one in enumerate(run.verdicts)
        if (one.case, one.dtype, one.quantity, one.name, one.against)
        == ("masked_softmax-fully_masked", "float32", "weights", "torch", "reference")
    )
    texts = {name: comparisons["texts"][comparisons["rows"][name][row]] for name in ("reason", "sentence", "command")}
    assert texts["reason"].startswith("weights[0, 1, 0] is nan, expected 0.0")
    assert "largest measured error" in texts["sentence"] and texts["command"].endswith("--dtype float32")
    values = unpacked(text, "arrays")["values"][str(row)]
    assert "nan" in values["actual"]["rows"][1] and 0.0 in values["expected"]["rows"][1]
    assert values["difference"]["worst"] == [1, 0]
    assert "scores" in unpacked(text, "arrays")["inputs"]["masked_softmax-fully_masked/float32"]
    drawn = unpacked(text, "arrays")["parameters"]
    shapes = {cell.key: {name: array.shape for name, array in cell.case.parameters.items()} for cell in run.cells}
    assert any(drawn.values()), "there is a layer with parameters"
    for cell, parts in drawn.items():
        assert {name: tuple(part["shape"]) for name, part in parts.items()} == shapes[cell]


def test_a_place_that_an_interrupted_run_has_not_reached_is_not_red():
    run = replace(runs.judged(), interrupted=True, verdicts=runs.judged().verdicts[:5])
    text = page(run)
    assert "Interrupted</h1>" in text and "5 comparisons red" in text and 'class="red"' not in Tags.of_matrix(text)
    assert 'class="red"' in Tags.of_matrix(page(replace(run, interrupted=False)))


def test_a_command_that_cannot_select_cells_repeats_all_of_them():
    run = replace(runs.judged(red=True), command="attention-parity convert gru.pt", selects_cells=False)
    assert {group.command for group in red_groups(run)} == {run.command}
    assert unpacked(page(run), "comparisons")["texts"].count(run.command) == 1


def test_a_green_page_has_the_arrays_of_the_largest_error_of_each_place():
    run = runs.judged()
    numbers = {int(number) for number in unpacked(page(run), "arrays")["values"]}
    worst = max(one.error or 0.0 for one in run.verdicts if one.operator == "dot_score" and one.name == "torch")
    shown = [run.verdicts[number] for number in numbers if run.verdicts[number].operator == "dot_score"]
    assert worst in [one.error for one in shown if one.name == "torch"]


def test_a_window_is_around_the_largest_error():
    array = np.zeros((2, 50, 3, 70))
    array[1, 20, 2, 60] = 1.0
    found = window(array, int(array.argmax()))
    row, column = found["worst"]
    assert np.shape(found["rows"]) == (WIDEST, WIDEST) and found["rows"][row][column] == 1.0
    assert found["top"] + row == 50 * 3 + 20 * 3 + 2 and found["left"] + column == 60


@pytest.mark.parametrize("shape", [(), (0,), (3, 0), (0, 4), (5,)])
def test_a_window_of_few_elements_has_all_of_them(shape: tuple[int, ...]):
    assert sum(map(len, window(np.ones(shape), 0)["rows"])) == int(np.prod(shape))


def test_numbers_beyond_a_double_are_words():
    rows = window(np.array([[np.finfo(np.float64).max, np.inf, -np.inf, np.nan, 0.123456]]))["rows"]
    assert rows == [["1.798e+308", "inf", "-inf", "nan", 0.1235]]


def test_names_are_broken_between_words():
    broken = {name: breakable(name).split("<wbr>") for name in ("from_key_padding", "GRUEncoder", "alibi_bias", "GRU")}
    assert broken["from_key_padding"] == ["from_", "key_", "padding"] and broken["GRUEncoder"] == ["GRU", "Encoder"]
    assert all("".join(parts) == name for name, parts in broken.items())


def test_a_summary_and_a_badge_have_the_outcome():
    green, red = runs.judged(), runs.judged(red=True)
    assert markdown(green).startswith("## ✅ attention-parity: green\n") and "| masked_softmax | " in markdown(green)
    text = markdown(red)
    assert text.startswith("## ❌ attention-parity: red\n") and "**Looks like** torch masked\\_softmax" in text
    assert "&lt;img" in text and "<img" not in text
    assert re.search(
        "  - `attention-parity run --backend torch --case 'masked_softmax-[a-z_]+' --dtype float64`\n", text
    )
    for run, colour in ((green, "#1a7f37"), (red, "#b3400a")):
        picture = ElementTree.fromstring(badge(run))
        assert picture.tag.endswith("svg") and colour in badge(run)
        assert f"{len(run.verdicts):,}" in picture.get("aria-label", "")


def test_compare_writes_the_pages(tmp_path: Path):
    files = [tmp_path / f"{name}.safetensors" for name in ("torch", "jax")]
    for file in files:
        runs.recording(file.stem).save(file)
    pages = {option: tmp_path / f"page.{option}" for option in ("html", "summary", "badge")}
    named = [word for option, file in pages.items() for word in (f"--{option}", str(file))]
    result = invoke("compare", *files, *named)
    assert "page.html" in result.output, result.output
    starts = {"html": "<!doctype html>", "summary": "## ", "badge": "<svg "}
    assert all(file.read_text(encoding="utf-8").startswith(starts[option]) for option, file in pages.items())


def test_a_page_without_jinja_is_refused_before_any_work(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(paths, "find_spec", lambda name: None)
    result = invoke("compare", __file__, "--html", tmp_path / "page.html")
    assert result.exit_code == 1 and "Run: pip install jinja2" in result.output
