"""Write the pages of operators: specification, files of the backends and measurements go in; Markdown comes out."""

from __future__ import annotations

import ast
import functools
from collections.abc import Iterator, Sequence
from pathlib import Path

from attention_core.operators import ENTRIES, FILE_OF, OF_FILES
from attention_core.specification import Layer, Operator
from backends import FRAMEWORKS, idiom_of
from parity_tests.behaviour import findings
from parity_tests.cases.suite import all_cases
from parity_tests.format.case import Case
from parity_tests.format.expected import outputs
from parity_tests.judge.tolerances import ENTRY_TOLERANCES, TOLERANCES, Tolerance
from parity_tests.reports import operators_page, side_by_side
from parity_tests.reports.heatmap import interactive_heatmap
from parity_tests.third_party.attention import THIRD_PARTY
from tools.behaviour_page import FRAMEWORKS as COLUMNS
from tools.behaviour_page import SECTIONS, answer_of, name_of

Entry = Operator | Layer

DRAWN = ("mask", "ragged", "plain")
"""The cases whose weights are drawn: the first that there is."""
CASES = {case.id: case for case in all_cases()}
PUBLIC = (
    *(f"attention_core/{name}.py" for name in ("__init__", "specification", "errors", "draws", "differentiation")),
    *(f"attention_core/reference/{name}.py" for name in ("__init__", *OF_FILES)),
    *(f"backends/{name}.py" for name in ("__init__", "requirements", "archives", "weights/__init__")),
    *(f"backends/{framework}/{name}.py" for framework in FRAMEWORKS for name in ("__init__", "runtime")),
    *(f"backends/torch/{name}.py" for name in OF_FILES),
    *(f"parity_tests/{name}.py" for name in ("__init__", "judge/__init__", "judge/assertion", "pytest_plugin")),
    *(f"parity_tests/{name}.py" for name in ("plots", "polarity", "flow")),
)
"""The files of the API pages: what users import; of the operators in the backends, which are alike, one."""


MAIN = ("Fully masked rows", "NaN in a hidden key", "True in a mask")
"""The sections that the page of an operator shows."""


def ignored_by_the_api(root: Path) -> list[str]:
    """The files of the packages that have no API page."""
    public = {root / path for path in PUBLIC}
    packages = [root / name for name in ("attention_core", "backends", "parity_tests")]
    return [str(path) for package in packages for path in package.rglob("*.py") if path not in public]


def write(docs: Path) -> None:
    """Write a page for each operator, and their index; a page that is up to date stays as it is."""
    folder = docs / "operators"
    folder.mkdir(exist_ok=True)
    texts = {f"{entry.name}.md": "\n".join(operator_page(entry)) for entry in ENTRIES}
    texts["index.md"] = "\n".join(index())
    for path in folder.iterdir():
        if path.name not in texts:
            path.unlink()
    for name, text in texts.items():
        path = folder / name
        if not path.exists() or path.read_text(encoding="utf-8") != text:
            path.write_text(text, encoding="utf-8")


def index() -> Iterator[str]:
    """What all operators share, and their list."""
    yield from operators_page.head()
    for file, title in operators_page.TITLES.items():
        yield from ("", f"## {title}", "", "| | |", "|---|---|")
        yield from (f"| [{entry.name}]({entry.name}.md) | {entry.summary} |" for entry in operators_page.entries(file))
        names = [f"{entry.name}.md" for entry in operators_page.entries(file)]
        yield from ("", "```{toctree}", ":hidden:", f":caption: {title}", "", *names, "```")
    yield ""


def operator_page(entry: Entry) -> Iterator[str]:
    """The page of one operator."""
    yield from (f"# {entry.name}", "", entry.summary, "")
    yield from ("```{formula}", f":names: {' '.join(sorted(names_of(entry)))}", "", entry.formula, "```", "")
    yield from operators_page.details(entry)
    yield from ("", "## In each framework", "")
    yield from _implementations(entry)
    rows = [*calls_of(entry.name)]
    if rows:
        yield from (
            "",
            "## The frameworks' own calls",
            "",
            "Measured; [all questions](../behaviour.md) and their cases.",
        )
        yield from ("", *rows)
    case = next((f"{entry.name}-{name}" for name in DRAWN if f"{entry.name}-{name}" in CASES), "")
    if case and "weights" in outputs(CASES[case], "float64"):
        yield from ("", "## What its weights look like", "", *_weights(CASES[case]))
    yield from ("", "## Measured errors", "")
    yield from _errors(entry)
    yield ""


def _weights(case: Case) -> Iterator[str]:
    """The expected weights of a case: those of two sequences, or of the heads of one."""
    weights = outputs(case, "float64")["weights"]
    while weights.ndim > 4:  # the first layer alone
        weights = weights[0]
    heads = weights.ndim == 4
    shown = weights[0] if heads else weights[:2]
    titles = [f"{'head' if heads else 'sequence'} {number + 1}" for number in range(len(shown))]
    queries, keys = (
        [f"{letter}{number + 1}" for number in range(size)] for letter, size in zip("qk", shown.shape[1:], strict=True)
    )
    yield f"Of the case that `attention-parity show {case.id}` explains. Point at a query, or use the arrow keys."
    yield from ("", "```{raw} html")
    yield interactive_heatmap(shown, queries, keys, titles=titles, label=f"Weights of {case.id}", assets=False)
    yield "```"


def names_of(entry: Entry) -> set[str]:
    """The names that stand in the formula of an entry for an array or a number."""
    operators = [*entry.methods] if isinstance(entry, Layer) else [entry]
    names = {tensor.name for operator in operators for tensor in (*operator.tensors, *operator.outputs)}
    names |= {option.name for operator in operators for option in operator.options}
    if isinstance(entry, Layer):
        names |= {option.name for option in entry.options} | {*entry.parts}
        names |= {parameter.name for parameter in entry.parameters}
    return names


def _implementations(entry: Entry) -> Iterator[str]:
    """A tab for each backend: how it is called, what is particular to it, and its lines."""
    file = FILE_OF[entry.name]
    yield from ("::::{tab-set}", ":sync-group: framework", "")
    for name in FRAMEWORKS:
        parts = definitions(name, file)
        each = ["\n".join(line.text for line in parts.get(part, ())) for part in (f"_{entry.name}", entry.name)]
        code, particular = without_docstrings("\n\n\n".join(filter(None, each)), idiom_of(name).title)
        yield from (f":::{{tab-item}} {idiom_of(name).title}", f":sync: {name}", "")
        yield from ("```python", operators_page.IMPORTS[name])
        yield from (
            operators_page.example(entry, name) if isinstance(entry, Layer) else [operators_page.call_of(entry)]
        )
        yield from ("```", "", *particular, "", f"From `backends/{name}/{file}.py`:", "")
        yield from ("```python", code, "```", ":::", "")
    yield from ("::::", "", f"Two of them aligned, line by line: `attention-parity diff {file} torch jax`.")


@functools.cache
def definitions(backend: str, file: str) -> dict[str, list[side_by_side.Line]]:
    """The definitions of a backend's file."""
    return side_by_side.definitions(side_by_side.source(backend, file))


def without_docstrings(code: str, framework: str) -> tuple[str, list[str]]:
    """The code without docstrings, which the page has already, and their paragraphs about the framework."""
    lines: list[str | None] = [*code.split("\n"), ""]
    particular: list[str] = []
    for node in ast.walk(ast.parse(code)):
        if not isinstance(node, ast.FunctionDef | ast.ClassDef):
            continue
        text = ast.get_docstring(node)
        if text is None:
            continue
        first, last = node.body[0].lineno - 1, node.body[0].end_lineno or 0
        if lines[last] == "" and isinstance(node, ast.ClassDef):  # the empty line behind it
            last += 1
        lines[first:last] = [None] * (last - first)
        particular += [part for part in text.split("\n\n") if part.startswith(f"In {framework}:")]
    return "\n".join(line for line in lines if line is not None).strip("\n"), particular


@functools.cache
def _records() -> findings.Records:
    return findings.load()


def calls_of(operator: str) -> Iterator[str]:
    """A table of the frameworks' own calls of an operator and their answers to the MAIN questions; nothing if none."""
    records = _records()
    sections = [section for section in SECTIONS if section.title in MAIN]
    targets = [target for target in THIRD_PARTY if target.operator == operator and target.id in records]
    rows: dict[tuple[str, ...], list[str]] = {}
    for target in targets:
        answers = [answer_of(section, records[target.id][-1]["found"]) for section in sections]
        if any(answers):
            rows.setdefault((COLUMNS[target.module], *answers), []).append(name_of(target, settings=True))
    if rows:
        yield f"| framework | call | {' | '.join(section.title for section in sections)} |"
        yield "|---|---|" + "---|" * len(sections)
    for (framework, *answers), calls in rows.items():
        yield f"| {framework} | {'<br>'.join(calls)} | {' | '.join(answers)} |"


def _errors(entry: Entry) -> Iterator[str]:
    """The tolerances that name the operator, then the general ones, each with the largest error."""
    yield "In eps of the dtype: the largest error seen in any backend on any case, and the tolerance made from it."
    yield from ("", "| dtypes | quantity | cases | largest | tolerance | why it grows |", "|---|---|---|---|---|---|")
    for tolerance in _tolerances_of(entry.name):
        entries = ", each entry" if tolerance in ENTRY_TOLERANCES else ""
        quantity = f"`{tolerance.quantity}`" if tolerance.quantity != "*" else "all"
        cases = f"`{tolerance.case}`" if tolerance.case != "*" else "all"
        figures = f"{tolerance.worst:g} | {tolerance.eps:g}"
        yield f"| {', '.join(tolerance.dtypes)} | {quantity}{entries} | {cases} | {figures} | {tolerance.grows} |"


def _tolerances_of(operator: str) -> Sequence[Tolerance]:
    """What applies to an operator, up to the first rule for each dtype that holds for all of its tensors."""
    applied: list[Tolerance] = []
    for table in (TOLERANCES, ENTRY_TOLERANCES):
        general: set[str] = set()
        for tolerance in table:
            fits = any(
                tolerance.fits(operator, f"{operator}-", dtype, "") or tolerance.operator == operator
                for dtype in tolerance.dtypes
            )
            if not fits or tolerance.informational or general >= {*tolerance.dtypes}:
                continue
            applied.append(tolerance)
            if (tolerance.case, tolerance.quantity) == ("*", "*"):
                general |= {*tolerance.dtypes}
    return applied
