"""The porter's map says what the specification says, and two backends can be laid side by side."""

from __future__ import annotations

import re
from html.parser import HTMLParser

import pytest
from click.testing import CliRunner

from attention_core.operators import ENTRIES
from backends import FRAMEWORKS
from parity_tests.cli.main import main
from parity_tests.reports import operators_page, side_by_side
from parity_tests.reports.porting import PORTING
from parity_tests.tests.places import ROOT
from parity_tests.tests.structure.source import files_of, public


def test_the_command_prints_the_page():
    assert CliRunner().invoke(main, ["operators"]).output == operators_page.page()


def test_every_row_of_porting_has_other_names_and_whole_sentences():
    assert all(porting.also for porting in PORTING.values())
    assert all(sentence.endswith(".") for porting in PORTING.values() for sentence in porting.pitfalls)


@pytest.mark.parametrize("entry", ENTRIES, ids=lambda entry: entry.name)
def test_a_row_has_formula_source_shapes_parameters_and_a_call_in_each_backend(entry):
    page = operators_page.page()
    part = page.partition(f"### {entry.name}\n")[2].partition("\n### ")[0]
    assert entry.summary in part and entry.source in part
    assert entry.formula.split(";  ")[0] in part
    for option in entry.options:
        assert f"| `{option.name}` |" in part
    if hasattr(entry, "methods"):
        assert all(f"**{name}**: `layer = attention.{entry.name}(" in part for name in FRAMEWORKS)
        assert all(f"| `{parameter.name}` |" in part for parameter in entry.parameters)
        assert all(f"| `{name}.*` |" in part for name in entry.parts)
    else:
        assert f"`attention.{entry.name}({entry.signature})`" in part


def test_the_page_has_the_sentences_that_a_porter_needs():
    page = re.sub(r"\s+", " ", operators_page.page())
    for sentence in (
        "queries with the previous state, Luong's with the current one",
        "neither Bahdanau's attention nor Luong's is local",
        "The paper concatenates [query; key]",
        "Without the tanh, the query has no effect",
        "unscaled by default",
        "the bias of the keys has no effect",
    ):
        assert sentence.lower() in page.lower(), sentence


class Cells(HTMLParser):
    """The text of a page, and the tags that were left open."""

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.text: list[str] = []

    def handle_starttag(self, tag, attrs):
        if tag not in ("meta", "col"):
            self.open.append(tag)

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        self.text.append(data)


def test_the_page_of_two_backends_has_both_files_complete(tmp_path):
    target = tmp_path / "page.html"
    result = CliRunner().invoke(main, ["diff", "scoring", "torch", "jax", "-o", str(target)])
    assert result.exit_code == 0, result.output
    parser = Cells()
    page = target.read_text(encoding="utf-8")
    parser.feed(page)
    assert parser.open == []
    text = "".join(parser.text)
    for name in ("torch", "jax"):
        source = (ROOT / "backends" / name / "scoring.py").read_text(encoding="utf-8")
        assert all(line.strip() in text for line in source.splitlines())
    assert 'id="additive_score"' in page and 'class="other"' in page
    assert "http" not in page, "the page needs no network"


@pytest.mark.parametrize("file", files_of("jax"))
def test_definitions_of_the_same_name_are_aligned(file: str):
    sections = list(side_by_side.sections(side_by_side.source("torch", file), side_by_side.source("jax", file)))
    names = [section.name for section in sections]
    handed_on = {*public("torch", "arrays")} if file == "runtime" else set()
    assert len(set(names)) == len(names) and {*public("torch", file)} - handed_on <= {*names}
    for section in sections:
        if section.name in {*public("torch", file)} & {*public("jax", file)}:
            assert any(left is not None for left, _ in section.rows) and any(right for _, right in section.rows)


def test_rows_that_are_the_same_are_equal_and_none_is_lost():
    left, right = "def f():\n    a\n    b\n", "def g():\n    z\n\n\ndef f():\n    a\n    c\n    d\n"
    sections = {
        section.name: [tuple(line and line.text for line in row) for row in section.rows]
        for section in side_by_side.sections(left, right)
    }
    numbers = [line.number for section in side_by_side.sections(left, right) for _, line in section.rows if line]
    assert sorted(numbers) == [1, 2, 5, 6, 7, 8]
    assert sections["f"] == [("def f():", "def f():"), ("    a", "    a"), ("    b", "    c"), (None, "    d")]
    assert sections["g"] == [(None, "def g():"), (None, "    z")]


def test_a_backend_or_a_file_that_is_not_there_is_named():
    for arguments, words in (
        (["scoring", "torch", "caffe"], "no backend 'caffe'; there are torch, tf, jax, mxnet"),
        (["scores", "torch", "jax"], "torch has no file 'scores'; there are"),
    ):
        result = CliRunner().invoke(main, ["diff", *arguments])
        assert result.exit_code == 2 and words in re.sub(r"\s+", " ", result.output)
