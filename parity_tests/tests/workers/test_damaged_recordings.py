"""Recordings that are not what they seem: other inputs by digest, damaged files, and headers that say odd things."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from backends.archives import ArchiveError, load_archive, save_arrays
from parity_tests.cases.suite import all_cases
from parity_tests.format.case import Case
from parity_tests.format.selection import Cell, Selection
from parity_tests.tests.commands import invoke
from parity_tests.tests.places import ROOT
from parity_tests.tests.workers.comparisons import CELL, compared, refused
from parity_tests.workers.answers import Answer
from parity_tests.workers.recordings import FIELDS, Mismatch, Recording, batch_of, by_name, common_cells, digests

# ------------------------------------------------------------------------------------------------ digests of cells


def digest(case: Case) -> str:
    """The digest of a case in float64."""
    return digests([Cell(case, "float64")]).popitem()[1]


def test_a_digest_covers_all_inputs_of_a_cell():
    (whole,) = all_cases().select("AdditiveAttention-none")
    case = replace(whole, gradients=False)  # without cotangents, so that nothing has to run
    swapped = dict(zip(case.parameters, reversed(case.parameters.values()), strict=True))
    changed = [
        whole,
        replace(case, config={**case.config, "hidden_size": 9}),
        replace(case, options={"scale": 0.5}),
        replace(case, method="attend"),
        replace(case, name="other"),
        replace(case, operator="DotProductAttention"),
        replace(case, inputs={**case.inputs, "queries": -case.inputs["queries"]}),
        replace(case, inputs={**case.inputs, "queries": case.inputs["queries"].reshape(-1)}),
        replace(case, inputs={**case.inputs, "queries": case.inputs["queries"].view(np.int64)}),
        replace(case, parameters={**case.parameters, "w_v": case.parameters["w_v"] * (1 + 2.0**-52)}),
        replace(case, parameters=swapped),
        replace(case, inputs={name if name != "keys" else "kezs": array for name, array in case.inputs.items()}),
    ]
    first, *others = (digest(one) for one in (case, *changed))
    assert len({first, *others}) == len(changed) + 1
    assert digest(replace(case, shows="other words")) == first


def test_the_cases_are_the_same_on_every_processor():
    """Compared with a process whose NumPy and libm do without AVX2 and FMA, and whose BLAS takes an old processor."""
    variables = {
        **os.environ,
        "PYTHONPATH": str(ROOT),
        "NPY_DISABLE_CPU_FEATURES": "AVX2 FMA3 AVX512F AVX512CD AVX512_SKX",
        "OPENBLAS_CORETYPE": "Prescott",
        "GLIBC_TUNABLES": "glibc.cpu.hwcaps=-AVX2,-FMA,-AVX2_Usable,-FMA_Usable",
    }
    program = """
import json
from parity_tests.cases.suite import all_cases
from parity_tests.workers.recordings import Selection, digests
print(json.dumps(digests(Selection().cells(all_cases()))))
"""
    command = [sys.executable, "-W", "ignore", "-c", program]
    done = subprocess.run(command, env=variables, capture_output=True, text=True, check=True)
    there, here = json.loads(done.stdout), digests(Selection().cells(all_cases()))
    assert [cell for cell in here if there[cell] != here[cell]] == [] and list(there) == list(here)


# ------------------------------------------------------------------------------------------------ damage


@pytest.fixture(params=["recording", "batch"])
def small(request: pytest.FixtureRequest, tmp_path: Path) -> tuple[Path, Callable[[Path], object]]:
    """A small archive of each kind, and the public function that reads it."""
    path = tmp_path / "small.safetensors"
    if request.param == "recording":
        answers = {CELL: Answer(seconds=0.5), "a-b/float64": Answer("crash", "killed")}
        cells = {CELL: {"scores": np.array([[1.5, -2.0]]), "gradient_keys": np.zeros(1)}}
        about = {"framework": "JAX", "determinism": {"jax_enable_x64": True}}
        Recording("jax", "cuda", about, cells, answers, {"A": "1"}, dict.fromkeys(answers, "0" * 64)).save(path)
        return path, Recording.load
    case = Case("dot_score", "tiny", "", {"queries": np.ones((1, 2)), "keys": np.ones((3, 2))}, gradients=False)
    path.write_bytes(batch_of([Cell(case, "float64")]).packed)
    return path, load_archive


def test_every_flipped_bit_of_a_file_is_refused(small):
    path, read = small
    read(path)
    data = path.read_bytes()
    assert 300 < len(data) < 2048
    unnoticed = []
    with path.open("r+b", buffering=0) as file:
        for bit in range(8 * len(data)):
            place = bit // 8
            os.pwrite(file.fileno(), bytes([data[place] ^ 1 << bit % 8]), place)
            try:
                read(path)
                unnoticed.append(bit)
            except ArchiveError:
                os.pwrite(file.fileno(), data[place : place + 1], place)
    assert unnoticed == []
    read(path)  # the last bit is back in its place, and so was every other


def test_truncation_at_every_length_and_appended_bytes_of_a_file_are_refused(small):
    path, read = small
    data = path.read_bytes()
    for damaged in [data[:length] for length in range(len(data))] + [data + b"\0", data + b"\n", data + data]:
        path.write_bytes(damaged)
        with pytest.raises(ArchiveError, match=r"small\.safetensors: the file"):
            read(path)


def test_a_damaged_recording_is_refused_and_nothing_is_judged(made: Recording, tmp_path: Path):
    good, bad = tmp_path / "good.safetensors", tmp_path / "bad.safetensors"
    for recording, path in ((made, good), (replace(made, backend="jax"), bad)):
        recording.save(path)
    data = bytearray(bad.read_bytes())
    data[-1] ^= 1
    bad.write_bytes(data)
    assert "bad.safetensors: the file does not match its digest" in refused(invoke("compare", good, bad))


# ------------------------------------------------------------------------------------------------ hostile recordings


def tampered(made: Recording, path: Path, **changes: Any) -> Path:
    """A recording whose digest is right and whose header says something else; None takes an entry out."""
    made.save(path)
    arrays, header = load_archive(path)
    header = {name: value for name, value in {**header, **changes}.items() if value is not None}
    save_arrays(path, arrays, header)
    return path


def selection(**changes: Any) -> dict[str, Any]:
    """A selection in a header, which is right without the changes."""
    kinds = {"training": False, "core": False, "once": False}
    return {"dtypes": ["float64"], "pattern": None, "operators": [], **kinds, **changes}


STRANGE: dict[str, list[Any]] = {
    "backend": ["", "..", "../jax", "[red]jax", "jax\n", "j" * 65],
    "device": ["cuda:0/..", "\x1b[2J"],
    "specification": [1, "\x1b[2J"],
    "attention_parity": ["1" * 65],
    "seed": ["0"],
    "about": [{"versions": {"a": {"b": 1}}}, {"versions": ["1"]}],
    "environment": [{"A": 1}, {"A": None}],
    "inputs": [
        *({CELL: digest} for digest in ("0" * 63, "Z" * 64, 1)),
        *({cell: "0" * 64} for cell in ("../x", "dot_score-plain", f"{'x' * 65}/float64")),
    ],
    "answers": [
        *({CELL: answer} for answer in ("ok", {"status": "pass"}, {"status": "known-divergence"})),
        {CELL: {"status": ["ok"]}},
        {CELL: {"status": "error", "message": 1}},
        *(
            {CELL: {"status": "ok", name: value}}
            for name, value in (("seconds", "1"), ("missing", "scores"), ("else", 1))
        ),
        {"\x1b": {"status": "ok"}},
    ],
    "selection": [
        {"dtypes": ["float64"], "pattern": None},
        *(selection(dtypes=dtypes) for dtypes in (["float8"], "float64", [["float64"]])),
        *(selection(**change) for change in ({"more": 1}, {"pattern": 1}, {"operators": ["softmax"]})),
    ],
}
WRONG = [
    *((name, value) for name in FIELDS for value in ([], [1], 0.5, True)),
    *((name, {}) for name in FIELDS if name not in ("about", "environment", "inputs", "answers")),
    *((name, value) for name, values in STRANGE.items() for value in values),
]


@pytest.mark.parametrize(("name", "value"), WRONG, ids=[f"{name}-{str(value)[:30]!a}" for name, value in WRONG])
def test_an_invalid_header_is_refused(made: Recording, tmp_path: Path, name: str, value: Any):
    path = tampered(made, tmp_path / "odd.safetensors", **{name: value})
    with pytest.raises(ArchiveError, match=f"odd.safetensors: the recording's header is invalid: {name}"):
        Recording.load(path)


@pytest.mark.parametrize("name", FIELDS)
def test_a_header_that_lacks_an_entry_is_refused(made: Recording, tmp_path: Path, name: str):
    with pytest.raises(ArchiveError, match=f"the recording's header is invalid: {name}: "):
        Recording.load(tampered(made, tmp_path / "less.safetensors", **{name: None}))


@pytest.mark.parametrize(
    "name", ["scores", "dot_score-plain/float64", "a-b/float64/scores", "dot_score-plain/f/scores"]
)
def test_an_array_of_no_cell_is_refused(made: Recording, tmp_path: Path, name: str):
    path = tmp_path / "more.safetensors"
    made.save(path)
    arrays, header = load_archive(path)
    save_arrays(path, {**arrays, name: np.zeros(1)}, header)
    with pytest.raises(ArchiveError, match=f"{name} belongs to no cell that was answered"):
        Recording.load(path)


def test_an_array_of_a_cell_that_crashed_is_refused(made: Recording, tmp_path: Path):
    path = tampered(made, tmp_path / "a", answers={cell: {"status": "crash"} for cell in made.answers})
    with pytest.raises(ArchiveError, match="dot_score-plain/float64/scores belongs to no cell that was answered"):
        Recording.load(path)


def test_a_cell_without_inputs_is_refused(made: Recording, tmp_path: Path):
    answers = {cell: answer.as_json() for cell, answer in made.answers.items()}
    path = tampered(made, tmp_path / "a", answers={**answers, "a-b/float64": {"status": "ok"}})
    with pytest.raises(ArchiveError, match="a-b/float64 has a status but no inputs"):
        Recording.load(path)


def test_a_message_cannot_steer_a_terminal(made: Recording, tmp_path: Path):
    answers = dict.fromkeys(made.answers, Answer("error", "\x1b[2Jgreen\u202e\r\nline"))
    result = compared(tmp_path, replace(made, cells={}, answers=answers))
    assert result.exit_code == 1 and "\ufffd[2Jgreen\ufffd\ufffd\nline" in result.output and "\x1b" not in result.output


LEAVES = st.none() | st.booleans() | st.integers(-(2**70), 2**70) | st.floats(allow_nan=False, allow_infinity=False)
JSON = st.recursive(
    LEAVES | st.text(max_size=8), lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner), max_leaves=9
)
TEXTS = st.sampled_from([CELL, "ok", "status", "message", "dtypes", "operators", "pattern", "float64", "0" * 64])
NEAR = st.dictionaries(TEXTS, TEXTS | st.lists(TEXTS) | st.dictionaries(TEXTS, TEXTS))


@settings(deadline=None, derandomize=True)
@given(st.sampled_from(sorted(FIELDS)), JSON | NEAR)
def test_a_mutated_header_is_refused_or_read_as_written(
    tmp_path_factory: pytest.TempPathFactory, name: str, value: Any
):
    folder = tmp_path_factory.getbasetemp()
    path = tampered(Recording("jax", "cpu"), folder / "random.safetensors", **{name: value})
    try:
        recording = Recording.load(path)
    except ArchiveError:
        return
    recording.save(folder / "again.safetensors")
    assert Recording.load(folder / "again.safetensors") == recording
    try:
        common_cells(by_name({"random": recording}), all_cases())
    except Mismatch:
        return
    raise AssertionError("a recording without cells cannot be judged")
