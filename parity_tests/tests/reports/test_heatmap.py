"""The interactive heatmap: what is in the fragment, without a browser; test_browser.py points at it in one."""

from __future__ import annotations

import json
import re
from html.parser import HTMLParser
from typing import Any

import numpy as np
import pytest

from parity_tests.reports.heatmap import heatmap_assets, interactive_heatmap

WEIGHTS = np.array([[[0.75, 0.25], [0.123456, 0.876544]], [[1.0, 0.0], [0.5, 0.5]]])
TAG = '"><img src=x onerror="alert(1)">'


class Elements(HTMLParser):
    """The elements of a fragment, with their attributes."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.found: list[tuple[str, dict[str, str | None]]] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.found.append((tag, dict(attrs)))


def data(text: str) -> dict[str, Any]:
    (attributes,) = [attributes for tag, attributes in Elements(text).found if tag == "attention-heatmap"]
    return json.loads(attributes["data"] or "")


def test_a_fragment_has_weights_and_tokens_of_each_head():
    found = data(interactive_heatmap(WEIGHTS, ["va", "!"], ["go", " "]))
    assert (found["outputs"], found["inputs"]) == (["va", "!"], ["go", "␣"])
    assert [head["title"] for head in found["heads"]] == ["head 1", "head 2"]
    assert found["heads"][0]["weights"] == [[0.75, 0.25], [0.1235, 0.8765]]
    assert [head["limit"] for head in found["heads"]] == [1.0, 1.0]
    alone = data(interactive_heatmap(WEIGHTS[0], ["va", "!"], ["go", " "], scale="each"))
    assert [(head["title"], head["limit"]) for head in alone["heads"]] == [("", 0.876544)]


def test_a_weight_that_is_no_number_is_a_word():
    found = data(interactive_heatmap([[np.nan, np.inf, 0.5]], ["a"], ["b", "c", "d"], scale="shared"))
    assert found["heads"] == [{"title": "", "weights": [["nan", "inf", 0.5]], "limit": 0.5}]


def test_a_token_is_never_an_element():
    text = interactive_heatmap(WEIGHTS, [TAG, "!"], [TAG, "."], titles=[TAG, "b"], label=TAG, assets=False)
    assert [tag for tag, _ in Elements(text).found] == ["div", "attention-heatmap"]
    assert data(text)["outputs"][0] == TAG.replace(" ", "␣") and data(text)["heads"][0]["title"] == TAG
    assert Elements(text).found[1][1]["aria-label"] == TAG


def test_several_heatmaps_in_a_page_need_the_script_once_and_request_nothing():
    with_assets = interactive_heatmap(WEIGHTS, ["va", "!"], ["go", "."])
    assert [tag for tag, _ in Elements(with_assets).found] == ["style", "script", "div", "attention-heatmap"]
    assert with_assets == heatmap_assets() + interactive_heatmap(WEIGHTS, ["va", "!"], ["go", "."], assets=False)
    assert not re.search(r"url\(|@import|https?:|fetch|import\(|innerHTML|\bsrc\b", heatmap_assets())


@pytest.mark.parametrize(
    ("arguments", "options", "words"),
    [
        ((WEIGHTS, ["va"], ["go", "."]), {}, r"shape \(2, 2, 2\), expected \(1, 2\) or \(heads, 1, 2\)"),
        ((WEIGHTS[None], ["va", "!"], ["go", "."]), {}, r"shape \(1, 2, 2, 2\), expected \(2, 2\) or"),
        ((WEIGHTS, ["va", "!"], ["go", "."]), {"titles": ["a"]}, "there are 1 titles for 2 heads"),
        ((WEIGHTS, ["va", "!"], ["go", "."]), {"scale": "log"}, "interactive_heatmap: there is no scale 'log'"),
    ],
)
def test_what_does_not_fit_is_refused_with_its_sizes(arguments: Any, options: Any, words: str):
    with pytest.raises(ValueError, match=words):
        interactive_heatmap(*arguments, **options)
