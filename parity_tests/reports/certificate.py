"""Certificates: what a run judged, under which versions and settings, how large each error was, how to repeat it."""

from __future__ import annotations

import datetime
import hashlib
import json
import platform
import shlex
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from attention_core.operators import SPECIFICATION_VERSION
from parity_tests.judge.run import Run
from parity_tests.judge.verdict import Verdict
from parity_tests.reports.table import missing
from parity_tests.workers.recordings import own_version

KIND = "attention-parity certificate"
FORMAT = 1
MOST_TOLD = 20
OF_THIS_MACHINE = ("JAX_COMPILATION_CACHE_DIR",)
"""What a worker is told that changes no number, and would say where files lie."""

Certificate = dict[str, Any]


class CertificateError(ValueError):
    """A file is no certificate, or is not as it was written."""


def certify(run: Run, request: Mapping[str, Any], files: Mapping[str, Path]) -> Certificate:
    """The certificate of a run: request is what was asked for, files what was judged, by the name that it was given."""
    content = {
        "kind": KIND,
        "format": FORMAT,
        "made": datetime.datetime.now(datetime.UTC).strftime("%Y-%m-%dT%H:%M:%SZ"),
        "attention_parity": own_version(),
        "specification": SPECIFICATION_VERSION,
        "outcome": "red" if run.red or not run.judged else "green",
        "request": dict(request),
        "files": {name: hashlib.sha256(path.read_bytes()).hexdigest() for name, path in files.items()},
        "machine": platform.machine(),
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


def _inputs(run: Run) -> dict[str, str]:
    """The digest of what each judged cell asked."""
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
    """What is written for a certificate: it as JSON, and beside it, with the suffix .md, a page for people."""
    text = json.dumps(certificate, indent=1, allow_nan=False)
    return {path: f"{text}\n", path.with_suffix(".md"): page(certificate, path.name)}


def load(path: Path) -> Certificate:
    """Read a certificate.

    Raises: CertificateError if the file is none, or is not as it was written.
    """
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        raise CertificateError(f"{path} is no certificate: {error}") from error
    if not isinstance(content, dict) or content.get("kind") != KIND:
        raise CertificateError(f"{path} is no certificate: expected a JSON file that `check --certificate` wrote")
    if content.get("format") != FORMAT:
        raise CertificateError(f"{path} has the format {content.get('format')!r}, expected {FORMAT}")
    digest = content.pop("digest", None)
    if digest != _digest(content):
        raise CertificateError(f"{path} does not match its digest: it is not as it was written")
    return {**content, "digest": digest}


# ------------------------------------------------------------------------------------------------ repeated


def differences(before: Certificate, after: Certificate) -> list[str]:
    """What a repetition says otherwise: other inputs, other verdicts, files that were changed. Rounding may differ."""
    changes = [
        f"the {what} is {after[name]} here, and was {before[name]}"
        for name, what in (("specification", "version of the specification"), ("outcome", "outcome"))
        if after[name] != before[name]
    ]
    files = after["files"]
    changes += [
        f"{name} is not the file that was judged"
        for name, digest in before["files"].items()
        if files.get(name) != digest
    ]
    there, here = before["inputs"], after["inputs"]
    other = [cell for cell in there if cell in here and here[cell] != there[cell]]
    changes += [f"{cell} has other inputs" for cell in other]
    drawn, anew = before.get("drawn", {}), after["drawn"]
    gone = [case for case in drawn if case not in anew]
    if gone:  # reported once, and not for every quantity
        seed = before["request"].get("seed")
        changes.append(
            f"{len(gone)} of {len(drawn)} drawn cases are other ones: seed {seed} draws otherwise in this version"
        )
    kept = {*drawn} & {*anew}
    statuses, again = (
        {
            _place(verdict): verdict["status"]
            for verdict in certificate["verdicts"]
            if not gone or verdict["case"] in kept or verdict["case"] not in {*drawn, *anew}
        }
        for certificate in (before, after)
    )
    changes += [
        f"{place} was {statuses.get(place, 'not judged')}, and is {again.get(place, 'not judged')}"
        for place in [*statuses, *(place for place in again if place not in statuses)]
        if statuses.get(place) != again.get(place)
    ]
    return changes


def environment_changes(before: Certificate, after: Certificate) -> list[str]:
    """Versions, devices and settings that differ from those of the certificate: worth knowing, and no fault."""
    versions = before["attention_parity"], after["attention_parity"]
    changes = [f"attention-parity {versions[0]} -> {versions[1]}"] if versions[0] != versions[1] else []
    for name, earlier in before["judged"].items():
        there, here = (dict(_flat(about)) for about in (earlier, after["judged"].get(name, {})))
        for key in sorted({*there, *here}):
            if there.get(key) != here.get(key):
                changes.append(f"{name} {key}: {there.get(key, 'none')} -> {here.get(key, 'none')}")
    return changes


def _flat(about: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    for name, value in about.items():
        if isinstance(value, dict):
            yield from _flat(value, f"{prefix}{name}.")
        else:
            yield prefix + name, value


def _place(verdict: Mapping[str, Any]) -> str:
    against = "" if verdict["against"] == "reference" else f" against {verdict['against']}"
    return f"{verdict['backend']}{against} {verdict['case']} {verdict['dtype']} {verdict['quantity']}"


# ------------------------------------------------------------------------------------------------ for people


def page(certificate: Certificate, name: str) -> str:
    """The certificate as a Markdown page."""
    verdicts = certificate["verdicts"]
    counts = Counter(verdict["status"] for verdict in verdicts)
    lines = [
        f"# {', '.join(certificate['judged'])}: {certificate['outcome']}",
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
        "said no, with the tolerance of that quantity.",
        "",
        "| operator | dtype | cases | worst error | tolerance | where |",
        "|---|---|---|---|---|---|",
        *_rows(verdicts),
        "",
        "## Judged under",
        "",
    ]
    for backend, about in certificate["judged"].items():
        settings = {**about.get("environment", {}), **about.get("determinism", {})}
        versions = ", ".join(f"{package} {version}" for package, version in about.get("versions", {}).items())
        lines += [f"- **{backend}**: {about.get('framework', '')} on {about.get('device', '')} ({versions})"]
        lines += ["", "  " + " ".join(f"`{name}={_shown(value)}`" for name, value in settings.items()), ""]
    lines += [f"- `{file}`: SHA-256 {digest}" for file, digest in certificate["files"].items()]
    cells = certificate["inputs"]
    lines += [f"- inputs of {len(cells):,} cells: SHA-256 {_digest(cells)}", ""]
    lines += _reasons("Red", verdicts, lambda status: status not in NOT_RED)
    lines += _reasons("Known divergences", verdicts, lambda status: status == "known-divergence")
    if certificate["missing"]:
        lines += ["## Missing", "", *(f"- {missing}" for missing in certificate["missing"]), ""]
    lines += ["## Repeat", "", "```", shlex.join(["attention-parity", "verify", name]), "```", ""]
    lines += ["runs", "", "```", str(certificate["request"].get("command", "")), "```", ""]
    lines += [f"again and compares. SHA-256 of the certificate: {certificate['digest']}", ""]
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
        f"- {_escaped(reason)} ({len(places)}: {places[0]}{', ...' if places[1:] else ''})"
        for reason, places in reasons.items()
    ]
    more = [f"- ... and {len(lines) - MOST_TOLD} more in the JSON"] if len(lines) > MOST_TOLD else []
    return [f"## {title}", "", *lines[:MOST_TOLD], *more, ""]


def _escaped(text: str) -> str:
    return text.replace("\n", " ").replace("|", "\\|").replace("<", "&lt;")


def _shown(value: object) -> str:
    return str(value).replace("`", "'")
