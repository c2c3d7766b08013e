"""The page of a benchmark."""

from __future__ import annotations

import re

from benchmarks.report import page
from benchmarks.runner import Bench, Length, Row

MACHINE = {"cpu": "a processor", "cores": 2, "device": "cpu", "versions": {"torch": {"torch": "2.13.0"}}}


def row(ratio: float | None, goal: float | None = 2.0, refused: str = "") -> Row:
    spread = None if ratio is None else (ratio / 1.1, ratio * 1.1)
    sizes = {"batch": 8, "keys": 512}
    return Row("additive", "torch", "forward", "forward", "textbook", sizes, goal, None, ratio, spread, refused=refused)


def test_a_page_has_every_ratio_and_whether_it_reaches_its_goal():
    bench = Bench([row(4.0), row(1.5), row(1.25, goal=None), row(None, refused="outputs differ: <b>")], machine=MACHINE)
    text = page(bench)
    assert re.findall(r"<strong>([\d.]+)</strong>", text) == ["4.00", "1.50", "1.25"]
    assert text.count("2 ✓") == 1 and text.count("2 ✕") == 1 and "<dd>1 of 2</dd>" in text
    assert "outputs differ: &lt;b&gt;" in text and "batch 8, keys 512" in text and "torch 2.13.0" in text
    places = [float(place) for place in re.findall(r'x="([\d.]+)"', text)]
    assert len(places) == 9 and all(0.0 <= place <= 100.0 for place in places)
    assert "<script" not in text and "default-src 'none'" in text and "http" not in re.sub("http-equiv", "", text)


def test_a_page_without_ratios_has_lengths_and_what_is_missing():
    lengths = [Length("torch", "plain", 512, 0.5, 2**20, 4.0), Length("jax", "plain", 512, refused="too long")]
    text = page(Bench(lengths=lengths, machine=MACHINE, missing={"tf": "tf is not installed"}))
    assert "Over the length" in text and "too long" in text and "tf is not installed" in " ".join(text.split())
    assert "<svg" not in text and "quartiles" not in text
