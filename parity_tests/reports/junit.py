"""Verdicts as JUnit XML, which CI services show: a suite for each operator, a test for each cell.

What is not implemented, and need not be, is left out.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from xml.etree import ElementTree

from parity_tests.judge.run import Run
from parity_tests.judge.verdict import Verdict
from parity_tests.reports.table import repeat
from parity_tests.workers.answers import MISSING


def junit(run: Run) -> bytes:
    """The run's verdicts as a file."""
    suites: dict[str, dict[tuple[str, str, str], list[Verdict]]] = defaultdict(lambda: defaultdict(list))
    for verdict in run.verdicts:
        if verdict.status == "not-implemented":
            continue
        suites[verdict.operator][verdict.name, verdict.case, verdict.dtype].append(verdict)
    root = ElementTree.Element("testsuites", name="attention-parity")
    for operator, tests in suites.items():
        suite = ElementTree.SubElement(root, "testsuite", name=operator)
        for (name, case, dtype), verdicts in tests.items():
            answers = run.recordings[name].answers if name in run.recordings else {}
            seconds = answers.get(f"{case}/{dtype}", MISSING).seconds
            test = ElementTree.SubElement(
                suite, "testcase", classname=f"{name}.{operator}", name=f"{case}[{dtype}]", time=f"{seconds:.6f}"
            )
            _tell(test, verdicts, run)
        _count(suite)
    _count(root)
    ElementTree.indent(root)
    return bytes(ElementTree.tostring(root, encoding="utf-8", xml_declaration=True))


def _tell(test: ElementTree.Element, verdicts: Sequence[Verdict], run: Run) -> None:
    """Add a failure with all red quantities; skip only if nothing of the cell was compared."""
    red = [verdict for verdict in verdicts if verdict.red]
    if red:
        kind = "failure" if all(verdict.status == "fail" for verdict in red) else "error"
        lines = [f"{verdict.quantity} ({verdict.against}): {verdict.reason}" for verdict in red]
        failure = ElementTree.SubElement(test, kind, message=_legal(lines[0]), type=red[0].status)
        failure.text = _legal("\n".join([*lines, repeat(run, red[0])]))
    elif not any(verdict.is_judged for verdict in verdicts):
        ElementTree.SubElement(test, "skipped", message=_legal(verdicts[0].reason))
    rest = [v for v in verdicts if v.status in ("known-divergence", "informational")]
    if rest:
        text = "\n".join(f"{v.status}: {v.quantity}: {v.reason}" for v in rest)
        ElementTree.SubElement(test, "system-out").text = _legal(text)


def _count(element: ElementTree.Element) -> None:
    tests = list(element.iter("testcase"))
    element.set("tests", str(len(tests)))
    for kind, name in (("failure", "failures"), ("error", "errors"), ("skipped", "skipped")):
        element.set(name, str(len(list(element.iter(kind)))))
    element.set("time", f"{sum(float(test.get('time', 0.0)) for test in tests):.6f}")


def _legal(text: str) -> str:
    """The text without characters that are invalid in XML."""
    return "".join(letter if letter >= " " or letter in "\t\n\r" else "\ufffd" for letter in text)
