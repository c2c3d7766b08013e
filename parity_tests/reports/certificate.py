"""Certificates: the cells, versions, settings and errors of a run, and how to repeat it."""

from __future__ import annotations

import datetime
import hashlib
import json
import platform
import shlex
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from attention_core.operators import SPECIFICATION_VERSION
from backends.archives import ArchiveError, regular_file
from backends.schema import SchemaError, build, clean
from parity_tests.judge.run import Run
from parity_tests.judge.verdict import Status, Verdict
from parity_tests.reports.table import missing
from parity_tests.workers.recordings import own_version

KIND = "attention-parity certificate"
FORMAT = 2
MOST_TOLD = 20
OF_THIS_MACHINE = ("JAX_COMPILATION_CACHE_DIR",)
"""Environment variables that are omitted, since they change no number and contain local paths."""

Certificate = dict[str, Any]


TARGETS = {"check": ("target",), "convert": ("file",), "compare-models": ("actual", "expected")}
"""The entries of a request that name what was tested, by its kind."""

NOT_COVERED = "who wrote it, when and where: the digest is not a signature"
"""What running the target again cannot verify."""


class CertificateError(ValueError):
    """A file is not a certificate, or was modified."""


@dataclass(frozen=True)
class Entry:
    """The entries of a verdict in a certificate."""

    operator: str
    case: str
    backend: str
    against: str
    dtype: str
    quantity: str
    status: Status
    error: float | None = None
    tolerance: float | None = None
    reason: str = ""
    check: str = ""
    entry_error: float | None = None


@dataclass(frozen=True)
class Content:
    """The schema of a certificate file."""

    kind: str
    format: int
    made: str
    attention_parity: str
    specification: str
    outcome: Literal["green", "red"]
    request: dict[str, Any]
    files: dict[str, str]
    machine: str
    judged: dict[str, dict[str, Any]]
    inputs: dict[str, str]
    drawn: dict[str, str]
    verdicts: list[Entry]
    missing: list[str]
    digest: str


def certify(run: Run, request: Mapping[str, Any], files: Mapping[str, Path]) -> Certificate:
    """Make the certificate of a run; request is its request, and files the tested files by name."""
    content = {
        "kind": KIND,
        "format": FORMAT,
        "made": datetime.datetime.now(datetime.UTC).strftime("%Y-%m-%dT%H:%M:%SZ"),
        "attention_parity": own_version(),
        "specification": SPECIFICATION_VERSION,
        "outcome": "red" if run.red or not run.is_judged else "green",
        "request": dict(request),
        "files": {name: sha256(path) for name, path in sorted(files.items())},
        "machine": processor(),
        "judged": {
            name: {
                **recording.about,
                "environment": {
                    name: value for name, value in recording.environment.items() if name not in OF_THIS_MACHINE
                },
            }
            for name, recording in run.recordings.items()
        },
        "inputs": _inputs(run),
        "drawn": dict(run.drawn),
        "verdicts": [_entry(verdict) for verdict in run.verdicts if verdict.status != "not-implemented"],
        "missing": missing(run.verdicts),
    }
    return {**content, "digest": _digest(content)}


def sha256(path: Path) -> str:
    """The SHA-256 of a file, or the reason why there is none."""
    try:
        return hashlib.sha256(regular_file(path).read_bytes()).hexdigest()
    except (OSError, ArchiveError):
        return "none: it cannot be read"


def processor() -> str:
    """The processor, on which rounding depends."""
    with suppress(OSError):
        for line in Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace").splitlines():
            if line.startswith("model name"):
                return f"{platform.machine()}, {line.partition(':')[2].strip()}"
    return platform.machine()


def _inputs(run: Run) -> dict[str, str]:
    """The digest of the inputs of each compared cell."""
    judged = {f"{verdict.case}/{verdict.dtype}" for verdict in run.verdicts if verdict.status != "not-implemented"}
    return {
        cell: digest
        for recording in run.recordings.values()
        for cell, digest in recording.inputs.items()
        if cell in judged
    }


def _entry(verdict: Verdict) -> dict[str, Any]:
    entry = {name: value for name, value in verdict.as_json().items() if name != "device" and value not in (None, "")}
    if verdict.status in ("pass", "informational"):  # the tolerance's reason, which the project holds
        entry.pop("reason", None)
    return entry


def _digest(content: Mapping[str, Any]) -> str:
    return hashlib.sha256(json.dumps(content, sort_keys=True, allow_nan=False).encode()).hexdigest()


def contents(certificate: Certificate, path: Path) -> dict[Path, str]:
    """The files of a certificate: JSON, and a Markdown page with the suffix .md beside it."""
    text = json.dumps(certificate, indent=1, allow_nan=False)
    return {path: f"{text}\n", path.with_suffix(".md"): page(certificate, path.name)}


def load(path: Path) -> Certificate:
    """Read a certificate.

    Raises: CertificateError if the file is not a certificate, was modified, or has an invalid entry.
    """
    try:
        content = json.loads(regular_file(path).read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        raise CertificateError(f"{path} is not a certificate: {error}") from error
    if not isinstance(content, dict) or content.get("kind") != KIND:
        raise CertificateError(f"{path} is not a certificate: expected a JSON file written by `check --certificate`")
    if content.get("format") != FORMAT:
        raise CertificateError(f"{path} has the format {clean(content.get('format'))}, expected {FORMAT}")
    try:
        build(Content, content)
    except SchemaError as error:
        raise CertificateError(f"{path} is not a certificate: {error}") from error
    if content["digest"] != _digest({name: value for name, value in content.items() if name != "digest"}):
        raise CertificateError(f"{path} does not match its digest: it was modified")
    return content


# ------------------------------------------------------------------------------------------------ repeated


def differences(before: Certificate, after: Certificate) -> list[str]:
    """The inputs, files, verdicts and tolerances that differ in a repetition. Errors are in `other_errors`."""
    changes = [
        f"the {what} is {after[name]} here, and was {_safe(before[name])}"
        for name, what in (("specification", "version of the specification"), ("outcome", "outcome"))
        if after[name] != before[name]
    ]
    files, listed = after["files"], before["files"]
    changes += [f"{_safe(name)} is not the file that was tested" for name in listed if files.get(name) != listed[name]]
    changes += [
        f"{_safe(name)} is tested here, but not listed in the certificate" for name in files if name not in listed
    ]
    drawn, anew = before["drawn"], after["drawn"]
    gone = [case for case in drawn if case not in anew]
    if gone:  # reported once, and not for every quantity
        seed = before["request"].get("seed")
        changes.append(f"{len(gone)} of {len(drawn)} drawn cases differ: seed {seed} draws other cases in this version")
    kept = {*drawn} & {*anew}

    def is_compared(case: str) -> bool:
        return not gone or case in kept or case not in {*drawn, *anew}

    there, here = (
        {cell: digest for cell, digest in one["inputs"].items() if is_compared(cell.partition("/")[0])}
        for one in (before, after)
    )
    changes += [f"{_safe(cell)} has other inputs" for cell in {**there, **here} if there.get(cell) != here.get(cell)]
    stated, again = (
        {_place(one): one for one in certificate["verdicts"] if is_compared(one["case"])}
        for certificate in (before, after)
    )
    for name, blank in (("status", "not compared"), ("tolerance", "none"), ("operator", "none")):
        for place in {**stated, **again}:
            was, now = (one.get(place, {}).get(name, blank) for one in (stated, again))
            if was != now:
                of = "" if name == "status" else f": the {name}"
                changes.append(f"{place}{of} was {_safe(was)}, and is {_safe(now)}")
    if not gone:  # else it counts other cases
        there, here = before["missing"], after["missing"]
        changes += [f"{_safe(entry)} is missing here" for entry in here if entry not in there]
        changes += [f"{_safe(entry)} was missing" for entry in there if entry not in here]
    return changes


MEASURED = {"error": "error", "entry_error": "error by entry", "check": "check that failed", "reason": "reason"}
"""The entries of a verdict that rounding may change."""


def other_errors(before: Certificate, after: Certificate) -> list[str]:
    """The errors that differ in a repetition: not a fault of the target if the environment differs."""
    again = {_place(verdict): verdict for verdict in after["verdicts"]}
    return [
        f"{place}: the {what} was {_safe(stated.get(name, 'none'))}, and is {_safe(again[place].get(name, 'none'))}"
        for place, stated in ((_place(verdict), verdict) for verdict in before["verdicts"])
        for name, what in MEASURED.items()
        if place in again and stated.get(name) != again[place].get(name)
    ]


def environment_changes(before: Certificate, after: Certificate) -> list[str]:
    """Versions, devices and settings that differ from those of the certificate; reported, but not a failure."""
    changes = [
        f"{what} {_safe(before[name])} -> {_safe(after[name])}"
        for name, what in (("attention_parity", "attention-parity"), ("machine", "machine"))
        if before[name] != after[name]
    ]
    for name, earlier in before["judged"].items():
        there, here = (dict(_flat(about)) for about in (earlier, after["judged"].get(name, {})))
        for key in sorted({*there, *here}):
            if there.get(key) != here.get(key):
                changes.append(
                    f"{_safe(name)} {_safe(key)}: {_safe(there.get(key, 'none'))} -> {_safe(here.get(key, 'none'))}"
                )
    return changes


def _flat(about: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    for name, value in about.items():
        if isinstance(value, dict):
            yield from _flat(value, f"{prefix}{name}.")
        else:
            yield prefix + name, value


def _place(verdict: Mapping[str, Any]) -> str:
    against = "" if verdict["against"] == "reference" else f" against {verdict['against']}"
    return _safe(f"{verdict['backend']}{against} {verdict['case']} {verdict['dtype']} {verdict['quantity']}")


def _safe(value: object) -> str:
    """A value from a file, without control characters."""
    text = str(value)
    return text if text.isprintable() else ascii(text)


# ------------------------------------------------------------------------------------------------ for people


def page(certificate: Certificate, name: str) -> str:
    """The certificate as a Markdown page."""
    verdicts = certificate["verdicts"]
    counts = Counter(verdict["status"] for verdict in verdicts)
    lines = [
        f"# {', '.join(about.get('target', name) for name, about in certificate['judged'].items())}: "
        f"{certificate['outcome']}",
        "",
        f"attention-parity {certificate['attention_parity']}, specification {certificate['specification']}, "
        f"{certificate['made']}",
        "",
        "| comparisons | |",
        "|---|---|",
        *(f"| {status} | {count:,} |" for status, count in counts.items()),
        "",
        "## Worst errors",
        "",
        "In eps of the dtype and of the largest entry of the reference, or of the entry itself where the check `entry` "
        "failed, with the tolerance of that quantity.",
        "",
        "| operator | dtype | cases | worst error | tolerance | where |",
        "|---|---|---|---|---|---|",
        *_rows(verdicts),
        "",
        "## Environment",
        "",
    ]
    for backend, about in certificate["judged"].items():
        settings = {**about.get("environment", {}), **about.get("determinism", {})}
        versions = ", ".join(f"{package} {version}" for package, version in about.get("versions", {}).items())
        lines += [f"- **{backend}**: {about.get('framework', '')} on {about.get('device', '')} ({versions})"]
        lines += ["", "  " + " ".join(f"`{name}={_format(value)}`" for name, value in settings.items()), ""]
    lines += [f"- `{file}`: SHA-256 {digest}" for file, digest in certificate["files"].items()]
    cells = certificate["inputs"]
    lines += [f"- inputs of {len(cells):,} cells: SHA-256 {_digest(cells)}", ""]
    lines += _reasons("Red", verdicts, lambda status: status not in NOT_RED)
    lines += _reasons("Known divergences", verdicts, lambda status: status == "known-divergence")
    if certificate["missing"]:
        lines += ["## Missing", "", *(f"- {missing}" for missing in certificate["missing"]), ""]
    request = certificate["request"]
    targets = [str(request[argument]) for argument in TARGETS[request["kind"]]]
    lines += ["## Repeat", "", "```", shlex.join(["attention-parity", "verify", name, *targets]), "```", ""]
    lines += ["runs", "", "```", str(request.get("command", "")), "```", ""]
    lines += [f"again and compares. SHA-256 of the certificate (not a signature): {certificate['digest']}", ""]
    return "\n".join(lines)


NOT_RED = ("pass", "informational", "not-applicable", "known-divergence")


def _rows(verdicts: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    groups: dict[tuple[str, str], list[Mapping[str, Any]]] = {}
    for verdict in verdicts:
        groups.setdefault((verdict["operator"], verdict["dtype"]), []).append(verdict)
    for (operator, dtype), alike in groups.items():
        measured = [verdict for verdict in alike if verdict.get("error") is not None]
        worst = max(measured, key=lambda verdict: verdict["error"], default=None)
        cases = len({verdict["case"] for verdict in alike})
        if worst is None:
            yield f"| {operator} | {dtype} | {cases} | | | |"
        else:
            where = f"{worst['case']}, {worst['quantity']}"
            figures = f"{cases} | {worst['error']:.3g} | {worst.get('tolerance', 0.0):g}"
            yield f"| {operator} | {dtype} | {figures} | {where} |"


def _reasons(title: str, verdicts: Sequence[Mapping[str, Any]], chosen: Callable[[str], bool]) -> list[str]:
    reasons: dict[str, list[str]] = {}
    for verdict in verdicts:
        if chosen(verdict["status"]):
            reasons.setdefault(verdict.get("reason", verdict["status"]), []).append(
                f"{verdict['case']} {verdict['quantity']}"
            )
    if not reasons:
        return []
    lines = [
        f"- {_escape(reason)} ({len(places)}: {places[0]}{', ...' if places[1:] else ''})"
        for reason, places in reasons.items()
    ]
    more = [f"- ... and {len(lines) - MOST_TOLD} more in the JSON"] if len(lines) > MOST_TOLD else []
    return [f"## {title}", "", *lines[:MOST_TOLD], *more, ""]


def _escape(text: str) -> str:
    return text.replace("\n", " ").replace("|", "\\|").replace("<", "&lt;")


def _format(value: object) -> str:
    return str(value).replace("`", "'")
