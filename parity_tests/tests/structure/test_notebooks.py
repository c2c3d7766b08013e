"""The notebooks run from the first cell to the last, and show what they claim.

Needs the extra [notebooks]: `tox run -e together` has it; other environments leave this file out.
"""

from __future__ import annotations

import re
from pathlib import Path

import jupytext
import pytest
from nbclient import NotebookClient
from nbformat import NotebookNode

from parity_tests.tests.places import ROOT

pytestmark = pytest.mark.together
FOLDER = ROOT / "examples" / "notebooks"
LONGEST_SECONDS = 600
COLOURS = re.compile("\x1b\\[[0-9;]*m")


@pytest.fixture
def executed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """Execute a notebook in a kernel of this environment, and return its code cells."""
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    monkeypatch.setenv("JUPYTER_DATA_DIR", str(tmp_path))  # a user's kernels may be of another environment

    def execute(name: str) -> list[NotebookNode]:
        notebook = jupytext.read(FOLDER / f"{name}.py")
        resources = {"metadata": {"path": str(tmp_path)}}
        NotebookClient(notebook, timeout=LONGEST_SECONDS, kernel_name="python3", resources=resources).execute()
        assert any(cell.cell_type == "markdown" for cell in notebook.cells)
        return [cell for cell in notebook.cells if cell.cell_type == "code"]

    return execute


def printed(cells: list[NotebookNode]) -> str:
    """All that was printed, without colours."""
    outputs = [output for cell in cells for output in cell.outputs if output.output_type == "stream"]
    return COLOURS.sub("", "".join(output.text for output in outputs))


def shown(cells: list[NotebookNode], kind: str) -> list[str]:
    """What of a MIME type is shown."""
    return [output.data[kind] for cell in cells for output in cell.outputs if kind in output.get("data", {})]


@pytest.mark.frameworks("torch", "tf", "jax", "mxnet")
def test_attention_in_four_frameworks(executed):
    cells = executed("four_frameworks")
    distances = re.findall(r"^(\w+) +context (\S+) +weights (\S+)$", printed(cells), re.MULTILINE)
    assert [name for name, *_ in distances] == ["torch", "tf", "jax", "mxnet"]
    assert all(float(distance) < 1e-5 for _, *both in distances for distance in both)
    assert len(shown(cells, "image/png")) == 2
    (html,) = shown(cells, "text/html")
    assert "<attention-heatmap" in html and html.count("<script>") == 1


@pytest.mark.frameworks("mxnet", "jax")
def test_a_port_of_a_textbooks_translator_from_mxnet_to_jax(executed):
    cells = executed("port_a_decoder")
    text = " ".join(printed(cells).split())
    assert "jax is the same function as textbook.BahdanauDecoder in float64 and float32" in text
    assert "textbook.Encoder → GRUEncoder" in text
    assert text.count("as in MXNet") == 8 and "they won . → ils ont gagné . as in MXNet" in text
    assert len(shown(cells, "image/png")) == 1


@pytest.mark.frameworks("torch")
def test_the_verdict_names_the_mistake_of_an_attention(executed):
    cells = executed("your_own_attention")
    text = printed(cells)
    named, green = text.index("looks like  masked_softmax: A fully masked row is NaN."), text.index("\ngreen ")
    assert text.index("\nred ") < named < green
    assert len(shown(cells, "image/png")) == 2


def test_every_notebook_is_executed():
    source = Path(__file__).read_text(encoding="utf-8")
    assert {path.stem for path in FOLDER.glob("*.py")} == set(re.findall(r'executed\("(\w+)"\)', source))
    assert not list(FOLDER.glob("*.ipynb"))
