"""Recordings that travel: made on one machine, judged on another, and refused when they are not what they seem."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Callable, Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner, Result
from hypothesis import given, settings
from hypothesis import strategies as st

import backends
from attention_core.operators import SPECIFICATION_VERSION
from backends import FRAMEWORKS
from backends.archives import ArchiveError, load_archive, save_arrays
from parity_tests.cases.case import SEED, Case
from parity_tests.cases.expected import programs_folder
from parity_tests.cases.selection import Cell, Selection
from parity_tests.cases.suite import all_cases, select
from parity_tests.cli.main import main
from parity_tests.judge.divergences import Divergence, apply
from parity_tests.judge.verdict import Verdict
from parity_tests.tests.places import ROOT
from parity_tests.workers.answers import Answer
from parity_tests.workers.environment import determinism, environment
from parity_tests.workers.process import Job, Progress, record
from parity_tests.workers.recordings import (
    FIELDS,
    Batch,
    Mismatch,
    Recording,
    batch_of,
    common_cells,
    digests,
    named,
    own_version,
)

CELL = "dot_score-plain/float64"


def invoke(*arguments: str | Path) -> Result:
    return CliRunner().invoke(main, [str(argument) for argument in arguments])


def in_one_line(result: Result) -> str:
    return re.sub(r"\s+", " ", result.output)


@pytest.fixture
def registry(monkeypatch: pytest.MonkeyPatch, fake_job: Callable[..., Job]) -> Callable[[str], None]:
    """Two backends, both made of the reference, and one that cannot run; a fault may be ordered for them."""
    known = {name: backends.Availability(name, "numpy_backend", {}) for name in ("one", "two")}
    known["gone"] = backends.Availability("gone", "backends.gone", {}, "gone is not installed: pip install it.")
    monkeypatch.setattr(backends, "available", lambda: known)

    def with_fault(fault: str) -> None:
        def recorder(job: Job, batches: Iterable[Batch], progress: Progress, **limits: Any) -> Recording:
            return record(replace(fake_job(fault), backend=job.backend), batches, progress, **limits)

        for module in ("cli.run", "workers.process"):
            monkeypatch.setattr(f"parity_tests.{module}.record", recorder)

    with_fault("")
    return with_fault


@pytest.fixture(scope="session")
def made(tmp_path_factory: pytest.TempPathFactory, fake_job: Callable[..., Job]) -> Recording:
    """What the fake backend answers to the plain cases of two score functions; the tests change copies of it."""
    selection = Selection(["float64"], "*-plain", ["dot_score", "scaled_dot_score"])
    cells = selection.cells(all_cases())
    return replace(record(fake_job(), [batch_of(cells)]), selection=selection)


def posing(made: Recording, backend: str, device: str = "cpu") -> Recording:
    """The recording under the name of another backend, with the switches that this one has to run under."""
    return replace(made, backend=backend, device=device, about={**made.about, "switches": dict(determinism(backend))})


def compared(folder: Path, *recordings: Recording, options: tuple[str, ...] = ()) -> Result:
    """What `compare` says of recordings that are written to the files 0.safetensors, 1.safetensors, ..."""
    files = [folder / f"{number}.safetensors" for number in range(len(recordings))]
    for file, recording in zip(files, recordings, strict=True):
        recording.save(file)
    return invoke("compare", *files, *options)


def refused(result: Result) -> str:
    """The reason, of a comparison in which nothing was judged."""
    assert result.exit_code == 2 and "comparisons" not in result.output and "worst error" not in result.output
    assert isinstance(result.exception, SystemExit)
    return in_one_line(result)


@pytest.mark.parametrize(
    ("given", "trained"),
    [({}, False), ({"training": True}, True), ({"operators": ["training"]}, True), ({"operators": ["GRU"]}, False)],
)
def test_trainings_are_chosen_where_they_are_asked_for(given: dict[str, Any], trained: bool):
    chosen = Selection(["float64"], **given).cases(all_cases(trained=True))
    assert any(case.operator == "training" for case in chosen) == trained


# ------------------------------------------------------------------------------------------------ record


def test_a_recording_says_what_ran_where_and_on_what(registry, tmp_path: Path):
    path = tmp_path / "one.safetensors"
    result = invoke(
        "record", "--backend", "one", "--case", "dot_score-[!cp]*", "--dtype", "float32,float64", "-o", path
    )
    assert result.exit_code == 0 and "one on cpu: 9 of 9 cells answered; " in in_one_line(result)
    recording = Recording.load(path)
    selection = Selection(["float32", "float64"], "dot_score-[!cp]*", [])
    assert (recording.backend, recording.device, recording.selection) == ("one", "cpu", selection)
    assert (recording.seed, recording.specification) == (SEED, SPECIFICATION_VERSION)
    assert recording.attention_parity == own_version()
    assert recording.asked == environment("one", programs_folder(), "cpu") and recording.asked["OMP_NUM_THREADS"] == "1"
    assert recording.about["switches"] == {} and recording.about["device"] == "cpu"
    assert recording.about["versions"] == {"numpy": np.__version__, "python": sys.version.split()[0]}
    cells = selection.cells(all_cases())
    assert recording.inputs == digests(cells) and list(recording.inputs) == sorted(cell.key for cell in cells)
    assert set(recording.cells) == set(recording.inputs) and not recording.unanswered


@pytest.mark.parametrize(
    ("fault", "kind", "words"),
    [
        ("SIGKILL@valid_lens", "1 crash", "crash attention_mask-lens/float64 the worker was killed by SIGKILL"),
        ("raise@valid_lens", "1 error", "error attention_mask-lens/float64 ValueError: this backend was told to raise"),
    ],
)
def test_record_says_what_became_of_cells_that_were_not_answered(
    registry, tmp_path: Path, fault: str, kind: str, words: str
):
    registry(fault)
    path = tmp_path / "one.safetensors"
    result = invoke("record", "--backend", "one", "--case", "attention_mask-[lm][ea][ns][sk]", "-o", path)
    assert result.exit_code == 1
    assert f"1 of 2 cells answered, {kind}; " in in_one_line(result) and words in in_one_line(result)
    judged = invoke("compare", path)
    assert judged.exit_code == 1 and words.partition("float64 ")[2] in judged.output


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--backend", "gone"], "no backend can run here: gone is not installed"),
        (["--backend", "theano"], "no backend 'theano'; there are one, two, gone"),
        (["--backend", "one", "--case", "nothing-*"], "no case matches"),
        (["--backend", "one", "--python", "one"], "expected NAME=PATH"),
        (
            ["--backend", "one", "--case", "dot_score-plain", "-o", "/no/such/folder/file"],
            "there is no folder /no/such/folder",
        ),
        ([], "Missing option '--backend'"),
    ],
)
def test_a_wrong_argument_gets_a_sentence_before_anything_runs(registry, arguments: list[str], words: str):
    registry("exit")
    result = invoke("record", "-o", "never.safetensors", *arguments)
    assert result.exit_code != 0 and words in in_one_line(result) and "Traceback" not in result.output
    assert not Path("never.safetensors").exists()


# ------------------------------------------------------------------------------------------------ compare


def test_compare_says_what_run_said_whatever_the_files_are_called(registry, tmp_path: Path):
    """The header names the backend: files that were swapped are the same recordings."""
    chosen = ["--operator", "dot_score,attention_mask", "--dtype", "float64,float32"]
    ran = invoke("run", *chosen, "--backend", "one,two", "--output", tmp_path)
    one, two, report = (tmp_path / name for name in ("one-cpu.safetensors", "two-cpu.safetensors", "report.json"))
    wanted = json.loads(report.read_text())
    assert ran.exit_code == 0 and len(wanted["cells"]) > 300

    def judged(*files: Path) -> dict[str, Any]:
        result = invoke("compare", *files, "--json", tmp_path / "compared.json")
        assert result.exit_code == 0
        tables = [re.sub(r"finished .*\n", "", text.output).partition("time ")[0] for text in (ran, result)]
        assert tables[0] == tables[1]
        return json.loads((tmp_path / "compared.json").read_text())

    assert judged(one, two)["cells"] == wanted["cells"]
    assert judged(two, one)["cells"] == wanted["cells"]
    one.rename(tmp_path / "kept")
    two.rename(one)
    (tmp_path / "kept").rename(two)
    swapped = judged(one, two)
    assert swapped["cells"] == wanted["cells"]
    assert swapped["header"]["backends"]["one"]["backend"] == "one"
    for report in (wanted, swapped):
        del report["header"]["times"]
    assert swapped["header"] == wanted["header"]


def test_two_devices_of_one_backend_are_one_more_pair(made: Recording, tmp_path: Path):
    recordings = posing(made, "jax", "cuda"), posing(made, "jax"), posing(made, "torch")
    result = compared(tmp_path, *recordings, options=("--json", f"{tmp_path}/a.json"))
    assert result.exit_code == 0
    cells = json.loads((tmp_path / "a.json").read_text())["cells"]
    assert {(cell["backend"], cell["against"], cell["device"]) for cell in cells} == {
        ("torch", "reference", "cpu"),
        ("jax", "reference", "cpu"),
        ("jax", "reference", "cuda"),
        ("torch", "jax", "cpu"),
        ("torch", "jax:cuda", "cpu"),
        ("jax", "jax:cuda", "cpu"),
    }


def test_a_known_divergence_of_a_backend_is_one_on_every_device():
    entry = Divergence("jax", "dot_score-plain", "scores", "an example")
    verdict = Verdict("dot_score", entry.case, "jax:cuda", "jax", "cuda", "float64", entry.quantity, "fail")
    assert [known.status for known in apply([verdict], [entry])] == ["known-divergence"]
    stale = apply([replace(verdict, status="pass")], [entry])
    assert [known.status for known in stale] == ["pass", "fail"] and "delete its entry" in stale[1].reason


def test_two_recordings_of_one_backend_on_one_device_are_refused(made: Recording, tmp_path: Path):
    said = refused(compared(tmp_path, made, made))
    assert re.search(r"0\.safetensors and \S+1\.safetensors are both of fake on cpu: give one", said)


def test_a_wrong_answer_is_red_alone_and_beside_another(made: Recording, tmp_path: Path):
    answers = {name: array.copy() for name, array in made.cells[CELL].items()}
    answers["scores"].flat[3] += 1e-9
    wrong = replace(made, backend="jax", cells={**made.cells, CELL: answers})
    result = compared(tmp_path, wrong)
    assert result.exit_code == 1 and "fail        jax  dot_score-plain  float64  scores" in result.output
    assert "attention-parity run --backend jax --case 'dot_score-plain' --dtype float64" in result.output
    assert compared(tmp_path, made).exit_code == 0
    both = compared(tmp_path, wrong, made)
    assert both.exit_code == 1 and "jax against fake  dot_score-plain" in both.output


def test_the_command_that_repeats_a_verdict_names_no_device_in_the_backend(made: Recording, tmp_path: Path):
    wrong = replace(made, device="cuda", cells={cell: {} for cell in made.cells})
    result = compared(tmp_path, made, wrong)
    assert "run --backend fake --case 'dot_score-plain' --dtype float64 --device cuda" in result.output


def test_a_cell_without_an_answer_is_red(made: Recording, tmp_path: Path):
    cells = {cell: arrays for cell, arrays in made.cells.items() if cell != CELL}
    answers = {cell: answer for cell, answer in made.answers.items() if cell != CELL}
    recording = replace(made, cells=cells, answers=answers)
    assert list(recording.unanswered) == [CELL]
    result = compared(tmp_path, recording)
    assert result.exit_code == 1 and "missing     fake  dot_score-plain" in result.output


def test_compare_needs_no_framework(made: Recording, tmp_path: Path):
    """In a process in which no framework, and no backend, can be imported."""
    path = tmp_path / "fake.safetensors"
    made.save(path)
    blocked = ["torch", "tensorflow", "keras", "jax", "flax", "mxnet", *(f"backends.{name}" for name in FRAMEWORKS)]
    program = f"""
import sys
sys.modules.update(dict.fromkeys({blocked!r}))
from parity_tests.cli.main import main
main(["compare", {str(path)!r}])
"""
    variables = {**os.environ, "PYTHONPATH": str(ROOT)}
    said = subprocess.run([sys.executable, "-c", program], env=variables, capture_output=True, text=True)
    assert said.returncode == 0 and "6 comparisons of fake: all within tolerance" in said.stdout, said.stderr


# ------------------------------------------------------------------------------------------------ what is refused


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (
            {"specification": "99"},
            f"the version of the specification is 99 there and {SPECIFICATION_VERSION} here: judge it with",
        ),
        ({"seed": 7}, f"the seed is 7 there and {SEED} here: judge it with attention-parity"),
        (
            {"inputs": {CELL: "0" * 64}},
            "other cases: absent there: scaled_dot_score-plain/float64; other inputs: dot_score-plain/float64. It was",
        ),
        ({"inputs": {}}, "absent there: dot_score-plain/float64, scaled_dot_score-plain/float64. It was"),
        ({"selection": Selection(["float32"], "nothing")}, "was recorded for no case that is here"),
        ({"selection": Selection(["float64"], "dot_score-plain")}, "absent here: scaled_dot_score-plain/float64. It"),
    ],
    ids=["specification", "seed", "inputs", "nothing", "no case", "selection"],
)
def test_a_recording_of_something_else_is_refused_with_the_difference(
    made: Recording, tmp_path: Path, change: dict[str, Any], words: str
):
    said = refused(compared(tmp_path, replace(made, **({"cells": {}, "answers": {}} | change))))
    assert "0.safetensors" in said and words in said


def test_many_differences_are_counted(made: Recording):
    many = {f"dot_score-new{number}/float64": "0" * 64 for number in range(20)}
    with pytest.raises(Mismatch, match=r"absent here: dot_score-new0/float64, .*, dot_score-new4/float64 and 15 more"):
        common_cells({"file": replace(made, inputs={**made.inputs, **many})}, all_cases())


def test_recordings_of_different_cells_are_refused_with_the_difference(made: Recording, tmp_path: Path):
    fewer = replace(
        posing(made, "jax"),
        selection=Selection(["float64"], "*-plain", ["dot_score"]),
        **{name: {CELL: getattr(made, name)[CELL]} for name in ("cells", "answers", "inputs")},
    )
    assert compared(tmp_path, fewer).exit_code == 0
    for pair in ((made, fewer), (fewer, made)):
        said = refused(compared(tmp_path, *pair))
        assert re.search(r"only \S+\.safetensors has scaled_dot_score-plain/float64: record both with the same", said)


def test_another_corpus_is_refused_until_the_same_is_given(registry, tmp_path: Path):
    corpus, path = tmp_path / "pairs.txt", tmp_path / "one.safetensors"
    corpus.write_text("Go now.\tVa maintenant !\nI won!\tJ'ai gagné !\nHe ran away.\tIl a fui.\n", encoding="utf-8")
    arguments = ["--case", "Translator-sentences_greedy", "--dtype", "float64", "--corpus", corpus]
    assert invoke("record", "--backend", "one", *arguments, "-o", path).exit_code == 0
    said = refused(invoke("compare", path))
    assert (
        "is of another corpus: give the same --corpus and --sentences "
        "(other inputs: Translator-sentences_greedy/float64)" in said
    )
    assert "another corpus" in refused(invoke("compare", path, "--corpus", corpus, "--sentences", "2"))
    assert invoke("compare", path, "--corpus", corpus).exit_code == 0


def test_files_of_another_kind_are_refused_by_what_they_are(tmp_path: Path):
    other, plain = tmp_path / "other", tmp_path / "plain"
    save_arrays(other, {}, {"kind": "weights"})
    save_arrays(plain, {})
    assert f"{other}: this is a 'weights', expected a 'recording'" in refused(invoke("compare", other))
    assert f"{plain}: this is a 'file of arrays', expected a 'recording'" in refused(invoke("compare", plain))


# ------------------------------------------------------------------------------------------------ digests of cells


def test_a_digest_covers_all_that_a_cell_asks():
    (whole,) = select(all_cases(), "AdditiveAttention-none")
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
    found = [*(digests([Cell(own, "float64")]).popitem()[1] for own in (case, *changed))]
    assert len(set(found)) == len(changed) + 1
    assert digests([Cell(replace(case, shows="other words"), "float64")]).popitem()[1] == found[0]


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
    said = subprocess.run(command, env=variables, capture_output=True, text=True, check=True)
    there, here = json.loads(said.stdout), digests(Selection().cells(all_cases()))
    assert [cell for cell in here if there[cell] != here[cell]] == [] and list(there) == list(here)


# ------------------------------------------------------------------------------------------------ damage


@pytest.fixture(params=["recording", "batch"])
def small(request: pytest.FixtureRequest, tmp_path: Path) -> tuple[Path, Callable[[Path], object]]:
    """A small archive of each kind, and the public function that reads it."""
    path = tmp_path / "small.safetensors"
    if request.param == "recording":
        answers = {CELL: Answer(seconds=0.5), "a-b/float64": Answer("crash", "killed")}
        cells = {CELL: {"scores": np.array([[1.5, -2.0]]), "gradient_keys": np.zeros(1)}}
        about = {"framework": "JAX", "switches": {"jax_enable_x64": True}}
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


WRONG: list[tuple[str, Any]] = [
    *((name, value) for name in FIELDS for value in ([], [1], 0.5, True)),
    *((name, {}) for name in FIELDS if name not in ("about", "asked", "inputs", "answers")),
    ("backend", ""),
    ("backend", ".."),
    ("backend", "../jax"),
    ("backend", "[red]jax"),
    ("backend", "jax\n"),
    ("backend", "j" * 65),
    ("device", "cuda:0/.."),
    ("device", "\x1b[2J"),
    ("specification", 1),
    ("specification", "\x1b[2J"),
    ("attention_parity", "1" * 65),
    ("seed", "0"),
    ("about", {"versions": {"a": {"b": 1}}}),
    ("about", {"versions": ["1"]}),
    ("asked", {"A": 1}),
    ("asked", {"A": None}),
    ("inputs", {CELL: "0" * 63}),
    ("inputs", {CELL: "Z" * 64}),
    ("inputs", {CELL: 1}),
    ("inputs", {"../x": "0" * 64}),
    ("inputs", {"dot_score-plain": "0" * 64}),
    ("inputs", {f"{'x' * 65}/float64": "0" * 64}),
    ("answers", {CELL: "ok"}),
    ("answers", {CELL: {}}),
    ("answers", {CELL: {"status": "pass"}}),
    ("answers", {CELL: {"status": "known-divergence"}}),
    ("answers", {CELL: {"status": ["ok"]}}),
    ("answers", {CELL: {"status": "error", "message": 1}}),
    ("answers", {CELL: {"status": "ok", "seconds": "1"}}),
    ("answers", {CELL: {"status": "ok", "missing": "scores"}}),
    ("answers", {CELL: {"status": "ok", "else": 1}}),
    ("answers", {"\x1b": {"status": "ok"}}),
    ("selection", {"dtypes": ["float64"], "pattern": None}),
    ("selection", {"dtypes": ["float64"], "pattern": None, "operators": [], "more": 1}),
    ("selection", {"dtypes": ["float8"], "pattern": None, "operators": []}),
    ("selection", {"dtypes": "float64", "pattern": None, "operators": []}),
    ("selection", {"dtypes": ["float64"], "pattern": 1, "operators": []}),
    ("selection", {"dtypes": ["float64"], "pattern": None, "operators": ["softmax"]}),
    ("selection", {"dtypes": [["float64"]], "pattern": None, "operators": []}),
]


@pytest.mark.parametrize(("name", "value"), WRONG, ids=[f"{name}-{str(value)[:30]!a}" for name, value in WRONG])
def test_a_header_that_says_something_odd_is_refused(made: Recording, tmp_path: Path, name: str, value: Any):
    path = tampered(made, tmp_path / "odd.safetensors", **{name: value})
    with pytest.raises(ArchiveError, match=f"odd.safetensors: {name} is wrong in the recording's header: expected "):
        Recording.load(path)


@pytest.mark.parametrize("name", FIELDS)
def test_a_header_that_lacks_an_entry_is_refused(made: Recording, tmp_path: Path, name: str):
    with pytest.raises(ArchiveError, match=f"{name} is wrong in the recording's header"):
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
    LEAVES | st.text(max_size=8), lambda own: st.lists(own) | st.dictionaries(st.text(), own), max_leaves=9
)
TEXTS = st.sampled_from([CELL, "ok", "status", "message", "dtypes", "operators", "pattern", "float64", "0" * 64])
NEAR = st.dictionaries(TEXTS, TEXTS | st.lists(TEXTS) | st.dictionaries(TEXTS, TEXTS))


@settings(deadline=None, derandomize=True)
@given(st.sampled_from(sorted(FIELDS)), JSON | NEAR)
def test_whatever_a_header_says_it_is_refused_or_means_what_it_says(
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
        common_cells(named({"random": recording}), all_cases())
    except Mismatch:
        return
    raise AssertionError("a recording without cells cannot be judged")
