"""The formulas of the specification as MathML."""

from __future__ import annotations

import re
import runpy
from xml.etree import ElementTree

import pytest

from attention_core.operators import ENTRIES
from parity_tests.tests.places import ROOT

mathml = runpy.run_path(str(ROOT / "docs" / "site" / "formulas.py"))["mathml"]


def written(formula: str, *names: str) -> str:
    """The elements of a formula of one line, without what only spaces them."""
    text = re.sub(r"<mspace[^>]*/>|</?mrow>| [a-z]+=(\"[^\"]*\"|'[^']*')", "", mathml(formula, names))
    return text.removeprefix("<math>").removesuffix("</math>")


@pytest.mark.parametrize("name", [entry.name for entry in ENTRIES])
def test_every_formula_is_well_formed_and_keeps_its_words(name: str):
    (formula,) = (entry.formula for entry in ENTRIES if entry.name == name)
    lines = [ElementTree.fromstring(line) for line in mathml(formula).split("\n")]
    shown = "".join("".join(line.itertext()) for line in lines)
    for word in re.findall(r"[A-Za-z]+", re.sub(r"\b(sum|over|floor|of)\b", "", formula)):
        assert word in shown, (word, shown)
    assert "_" not in re.sub(r"[a-z]+_[a-z_]+", "", shown) and "[" not in re.sub(r"\[[^\]]*;", "", shown)


@pytest.mark.parametrize(
    ("formula", "expected"),
    [
        ("x[i, j]", "<msub><mi>x</mi><mi>i</mi><mo>,</mo><mi>j</mi></msub>"),
        ("W_q x", "<msub><mi>W</mi><mi>q</mi></msub><mi>x</mi>"),
        ("sum over c of a[c]", "<munder><mo>∑</mo><mi>c</mi></munder><msub><mi>a</mi><mi>c</mi></msub>"),
        ("u v / c d", "<mfrac><mi>u</mi><mi>v</mi><mi>c</mi><mi>d</mi></mfrac>"),
        ("u v/c d", "<mi>u</mi><mfrac><mi>v</mi><mi>c</mi></mfrac><mi>d</mi>"),
        ("(a + b)/2", "<mfrac><mi>a</mi><mo>+</mo><mi>b</mi><mn>2</mn></mfrac>"),
        ("-a / b", "<mfrac><mo>−</mo><mi>a</mi><mi>b</mi></mfrac>"),
        ("√(σ² + e)", "<msqrt><msup><mi>σ</mi><mn>2</mn></msup><mo>+</mo><mi>e</mi></msqrt>"),
        ("2^(-i/n)", "<msup><mn>2</mn><mo>−</mo><mfrac><mi>i</mi><mi>n</mi></mfrac></msup>"),
        ("h' = r * c", "<mi>h</mi><mo>′</mo><mo>=</mo><mi>r</mi><mo>⊙</mo><mi>c</mi>"),
        ("n is a power", "<mi>n</mi><mtext>is</mtext><mtext>a</mtext><mtext>power</mtext>"),
        ("x if gated", "<mi>x</mi><mtext>if</mtext><mtext>gated</mtext>"),
    ],
)
def test_a_formula_is_set(formula: str, expected: str):
    assert written(formula) == expected


def test_names_are_no_prose_and_long_lines_are_broken():
    assert written("x if gated", "gated").endswith("<mi>gated</mi>")
    long = ", ".join(f"x[{number}] = f(y[{number}], z[{number}])" for number in range(8))
    assert 1 < mathml(f"{long};  a = b").count("<math") < 8
    assert mathml("f(a, b) = [a; b]").count("<math") == 1
