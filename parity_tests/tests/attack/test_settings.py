"""Hostile settings: what a certificate, a report or a file of divergences says is checked against a schema before use.

Each try replaces, removes or adds one entry of a file that was right, and gives it a digest that fits.
"""

from __future__ import annotations

import copy
import json
from collections.abc import Callable, Iterator
from pathlib import Path
from random import Random
from typing import Any

import pytest

from attention_core.operators import SPECIFICATION_VERSION
from parity_tests.cases.suite import all_cases
from parity_tests.cli.verify import request_of
from parity_tests.conversion.conversion import Conversion
from parity_tests.judge.check import check as judge
from parity_tests.judge.divergences import Divergence, DivergenceError, load_divergences
from parity_tests.judge.request import Request
from parity_tests.judge.run import Run
from parity_tests.reports import certificate
from parity_tests.reports.certificate import CertificateError, certify
from parity_tests.tests.attack.mutations import KINDS
from parity_tests.tests.commands import invoke, squeezed

Count = Callable[[str, int, int], None]
NESTED = "nested 5,000 times"
HOSTILE: tuple[Any, ...] = (
    None, True, -1, 3.5, 10**400, 1e308, "", "x", "../../etc/passwd", "\x1b[2J", "\ud800", "x" * 100_000, [], [1, 2],
    {}, {"a": {"b": []}}, [[["a"]]], NESTED, "__class__", float("nan"), float("inf"),
)  # fmt: skip


def places(data: Any, at: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """The way to every entry."""
    entries = data.items() if isinstance(data, dict) else enumerate(data) if isinstance(data, list) else ()
    for name, value in entries:
        yield (*at, name)
        yield from places(value, (*at, name))


def changed(data: Any, random: Random) -> Any:
    """The same with one entry that is hostile, gone or one too many."""
    data = copy.deepcopy(data)
    *way, last = random.choice([*places(data)])
    owner = data
    for name in way:
        owner = owner[name]
    kind = random.randrange(8)
    if kind == 0:
        del owner[last]
    elif kind == 1 and isinstance(owner, dict):
        owner[random.choice(["command", "python", "__init__", "x\x1b[2J"])] = random.choice(HOSTILE)
    else:
        owner[last] = random.choice(HOSTILE)
    return data


def written(data: Any, path: Path) -> Path:
    """A file of JSON, in which one value is nested more often than a parser can go."""
    path.write_text(json.dumps(data).replace(f'"{NESTED}"', "[" * 5_000 + "]" * 5_000))
    return path


@pytest.fixture(scope="module")
def run(fake_job: Callable) -> Run:
    """A run of the fake backend."""
    return judge(all_cases().select("masked_softmax-m*"), ["float64"], [fake_job()], require_all=True)


@pytest.fixture(scope="module")
def certified(run: Run) -> certificate.Certificate:
    """The certificate of the fake backend."""
    return certify(run, Request("numpy_backend", ["float64"], "masked_softmax-m*").certificate_entries, run.files)


@pytest.fixture
def converted(run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> certificate.Certificate:
    """A certificate of `convert`, whose validation ends in that run: no framework need be there."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(Conversion, "validate", lambda self, move, written, progress: run)
    KINDS["safetensors"].write(Path("x.safetensors"))
    Path("new.safetensors").write_text("what was written")
    request = Conversion("x.safetensors", "keras.GRU", "new.safetensors")
    return certify(run, request.certificate_entries, request.files)


def signed(content: certificate.Certificate) -> certificate.Certificate:
    """The content of a certificate with a digest that fits."""
    content = {name: value for name, value in content.items() if name != "digest"}
    try:
        return {**content, "digest": certificate._digest(content)}
    except ValueError:  # no digest is known of NaN
        return {**content, "digest": "0" * 64}


def test_a_hostile_certificate_is_refused_or_compared(
    certified: certificate.Certificate,
    tmp_path: Path,
    pytestconfig: pytest.Config,
    counted: Count,
):
    random, refused, tries = Random(18), 0, 5 * pytestconfig.getoption("--attack")
    for _ in range(tries):
        content = signed(changed({name: certified[name] for name in certified if name != "digest"}, random))
        try:
            before = certificate.load(written(content, tmp_path / "hostile.json"))
            request_of(before["request"], ["mine.py"], ())
        except CertificateError as error:
            refused += 1
            assert str(error).isprintable() and len(str(error)) < 1_000
            continue
        lines = [
            *certificate.differences(before, certified),
            *certificate.other_errors(before, certified),
            *certificate.environment_changes(before, certified),
        ]
        other = {name for name in before if before[name] != certified[name]}
        assert lines or other <= {"made", "request", "digest", "judged"}, other
        assert all(line.isprintable() for line in lines)
    counted("certificates", tries, refused)


def test_the_message_has_the_path_of_what_is_wrong(certified: certificate.Certificate, tmp_path: Path):
    for way, value, message in (
        (("request",), "check", "request: 'check', expected an object"),
        (("request", "dtypes"), 7, "request.dtypes: 7, expected a list"),
        (("request", "dtypes"), ["float8"], "dtypes: 'float8', expected some of float64"),
        (("request", "device"), "cuda; rm", "device: 'cuda; rm', expected cpu, cuda"),
        (("verdicts", 1, "error"), "0", "verdicts[1].error: '0', expected a finite number or null"),
        (("files",), [], "files: a list of 0, expected an object"),
    ):
        content = copy.deepcopy({name: certified[name] for name in certified if name != "digest"})
        owner: Any = content
        for name in way[:-1]:
            owner = owner[name]
        owner[way[-1]] = value
        path = written(signed(content), tmp_path / "hostile.json")
        result = invoke("verify", path, "mine.py")
        assert result.exit_code == 2 and message in squeezed(result), result.output


def test_a_hostile_certificate_of_convert_is_refused_or_compared(
    converted: certificate.Certificate, pytestconfig: pytest.Config, counted: Count
):
    random, refused, tries = Random(18), 0, pytestconfig.getoption("--attack")
    for _ in range(tries):
        content = signed({**converted, "request": changed(converted["request"], random)})
        result = invoke("verify", written(content, Path("hostile.json")), "x.safetensors")
        assert result.exit_code in (0, 1, 2) and isinstance(result.exception, (SystemExit, type(None))), content
        assert "\x1b" not in result.output and len(result.output) < 5_000
        refused += result.exit_code == 2
    counted("certificates of convert", tries, refused)


def test_a_file_that_a_certificate_names_is_looked_for_beside_what_the_command_line_names(
    converted: certificate.Certificate, tmp_path: Path
):
    path = written(converted, tmp_path / "own.json")
    assert invoke("verify", path, "x.safetensors").exit_code == 0
    assert "it lists no file x.safetensors" in squeezed(invoke("verify", path, "mine.py", "--file", "x.safetensors"))
    moved = tmp_path / "elsewhere" / "new.safetensors"
    moved.parent.mkdir()
    Path("new.safetensors").rename(moved)
    stated = {**converted["request"], "output": str(moved)}
    files = {name.replace("new.safetensors", str(moved)): digest for name, digest in converted["files"].items()}
    written(signed({**converted, "request": stated, "files": files}), path)
    result = invoke("verify", path, "x.safetensors")
    assert result.exit_code == 2 and "name the file with --file" in squeezed(result), result.output
    assert invoke("verify", path, "x.safetensors", "--file", moved).exit_code == 0
    moved.write_text("something else")
    result = invoke("verify", path, "x.safetensors", "--file", moved)
    assert result.exit_code == 1 and "is not the file that was tested" in squeezed(result), result.output


def test_a_certificate_whose_framework_is_missing_is_refused(
    converted: certificate.Certificate, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    def missing(*arguments: object) -> Run:
        raise ImportError("keras.GRU cannot be validated here: not installed: keras")

    monkeypatch.setattr(Conversion, "validate", missing)
    result = invoke("verify", written(converted, tmp_path / "own.json"), "x.safetensors")
    assert result.exit_code == 2 and "not installed: keras" in squeezed(result), result.exception


def test_a_certificate_raises_no_limit(converted: certificate.Certificate, tmp_path: Path):
    entry = {"dtype": "F32", "shape": [0, 2**40], "data_offsets": [0, 0]}
    header = json.dumps({"w": entry}).encode()
    Path("x.safetensors").write_bytes(len(header).to_bytes(8, "little") + header)
    path = written(signed({**converted, "request": {**converted["request"], "max_bytes": 10**15}}), tmp_path / "a.json")
    result = invoke("verify", path, "x.safetensors")
    assert result.exit_code == 2 and "its arrays take" in squeezed(result) and "--max-bytes" in result.output
    result = invoke("verify", path, "x.safetensors", "--max-bytes", 10**15)
    assert result.exit_code == 2 and "its arrays take" not in squeezed(result), result.output


VERDICT = {
    "operator": "masked_softmax", "case": "masked_softmax-mask", "backend": "torch", "against": "reference",
    "device": "cpu", "dtype": "float64", "quantity": "weights", "status": "pass", "error": 1.5, "tolerance": 15.0,
    "reason": "", "check": "", "entry_error": 0.5,
}  # fmt: skip
REPORT = {"header": {"specification": SPECIFICATION_VERSION, "times": {"total": 1.5}}, "cells": [VERDICT, VERDICT]}


def test_a_hostile_report_is_refused_or_calibrated(tmp_path: Path, pytestconfig: pytest.Config, counted: Count):
    assert invoke("calibrate", written(REPORT, tmp_path / "report.json")).exit_code == 0
    random, refused, tries = Random(18), 0, 3 * pytestconfig.getoption("--attack")
    for _ in range(tries):
        result = invoke("calibrate", written(changed(REPORT, random), tmp_path / "hostile.json"))
        assert result.exit_code in (0, 2) and (result.exception is None or result.exit_code == 2), result.exception
        assert "\x1b" not in result.output and len(result.output) < 5_000
        refused += result.exit_code == 2
    counted("reports", tries, refused)


def toml(value: Any) -> str:
    """A value as TOML writes it."""
    if isinstance(value, dict):
        return "{" + ", ".join(f"{json.dumps(name)} = {toml(one)}" for name, one in value.items()) + "}"
    if isinstance(value, list):
        return f"[{', '.join(map(toml, value))}]"
    return "[" * 5_000 + "]" * 5_000 if value == NESTED else '""' if value is None else json.dumps(value).lower()


def test_a_hostile_file_of_divergences_is_refused_or_read(tmp_path: Path, pytestconfig: pytest.Config, counted: Count):
    entry = {"case": "masked_softmax-*", "quantity": "weights", "reason": "Off by a half.", "link": "https://a.b/1"}
    random, refused, tries = Random(18), 0, 5 * pytestconfig.getoption("--attack")
    path = tmp_path / "hostile.toml"
    for _ in range(tries):
        content = changed({"divergence": [entry, entry]}, random)
        lines = [f"{json.dumps(name)} = {toml(value)}" for name, value in content.items()]
        path.write_text("\n".join(lines), encoding="utf-8", errors="surrogatepass")
        try:
            assert all(isinstance(one, Divergence) for one in load_divergences(path, "mine"))
        except DivergenceError as error:
            refused += 1
            assert str(error).startswith(str(path)) and len(str(error)) < 1_000
    counted("files of divergences", tries, refused)
