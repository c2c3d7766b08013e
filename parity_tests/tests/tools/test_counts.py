"""The documents state the numbers of the code."""

from __future__ import annotations

import re

import pytest

from parity_tests.judge.compare import CELL_CHECKS, CHECKS
from parity_tests.tests.places import ROOT
from tools.counts import STATEMENTS, Statement, rewrite

pytestmark = pytest.mark.once


@pytest.mark.parametrize("page", dict.fromkeys(statement.page for statement in STATEMENTS))
def test_a_page_has_the_numbers_of_the_code(page: str):
    assert (ROOT / page).read_text(encoding="utf-8") == rewrite(page), "write it again: python -m tools.counts"


def test_every_check_is_in_the_document():
    text = (ROOT / "docs" / "reliability.md").read_text(encoding="utf-8")
    section = text.partition("## Checks\n")[2].partition("\n## ")[0]
    assert set(re.findall(r"\*\*(\w+)\*\*", section)) == {*CELL_CHECKS, *CHECKS}


def test_numbers_are_written_where_the_words_occur_once():
    statement = Statement("page", "the core, {} of {} cells", lambda: (1234, 7))
    assert statement.rewrite("a; the core,\n9 of 2,680 cells") == "a; the core,\n1,234 of 7 cells"
    assert Statement("page", "│ a │ {} │", lambda: (7,)).rewrite("│ a │   152 │") == "│ a │     7 │"
    for text in ("nothing", 2 * "the core, 1 of 2 cells; "):
        with pytest.raises(ValueError, match="page has these words"):
            statement.rewrite(text)
