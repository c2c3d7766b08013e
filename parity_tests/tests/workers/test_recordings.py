"""Recordings that travel: made on one machine, judged on another, and refused when they are of something else."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from attention_core.operators import SPECIFICATION_VERSION
from backends import FRAMEWORKS
from backends.archives import save_arrays
from parity_tests.cases.suite import all_cases
from parity_tests.format.case import DTYPES, SEED
from parity_tests.format.expected import programs_folder
from parity_tests.format.selection import Selection
from parity_tests.judge.divergences import Divergence, apply
from parity_tests.judge.verdict import Verdict
from parity_tests.tests.commands import invoke, squeezed
from parity_tests.tests.places import ROOT
from parity_tests.tests.workers.comparisons import CELL, compared, refused
from parity_tests.workers.environment import determinism, environment
from parity_tests.workers.recordings import Mismatch, Recording, common_cells, digests, own_version


def posing(made: Recording, backend: str, device: str = "cpu") -> Recording:
    """The recording under the name of another backend, with the settings that this one has to run under."""
    return replace(
        made, backend=backend, device=device, about={**made.about, "determinism": dict(determinism(backend))}
    )


@pytest.mark.parametrize(
    ("given", "trained"),
    [({}, False), ({"training": True}, True), ({"operators": ["training"]}, True), ({"operators": ["GRU"]}, False)],
)
def test_trainings_are_selected_on_request(given: dict[str, Any], trained: bool):
    chosen = Selection(["float64"], **given).cases(all_cases(trained=True))
    assert any(case.operator == "training" for case in chosen) == trained


def test_each_case_is_selected_once_and_the_core_in_every_dtype():
    chosen = Selection(DTYPES, once=True).cells(all_cases())
    every, kept = Selection(DTYPES).cells(all_cases()), Selection(DTYPES, core=True).cells(all_cases())
    assert {cell.case.id for cell in chosen} == {cell.case.id for cell in every}
    assert {cell.key for cell in kept} < {cell.key for cell in chosen} < {cell.key for cell in every}
    for cell in chosen:
        assert cell in kept or cell.dtype == next(filter(cell.case.has, DTYPES))


def test_all_cells_and_some_of_them_are_not_asked_for_together():
    result = invoke("run", "--all", "--once")
    assert result.exit_code == 2 and "--all cannot be combined with --once" in squeezed(result)


# ------------------------------------------------------------------------------------------------ record


def test_a_recording_has_versions_device_and_settings(registry, tmp_path: Path):
    path = tmp_path / "one.safetensors"
    result = invoke(
        "record", "--backend", "one", "--case", "dot_score-[!cps]*", "--dtype", "float32,float64", "-o", path
    )
    assert result.exit_code == 0 and "one on cpu: 10 of 10 cells answered; " in squeezed(result)
    recording = Recording.load(path)
    selection = Selection(["float32", "float64"], "dot_score-[!cps]*", [])
    assert (recording.backend, recording.device, recording.selection) == ("one", "cpu", selection)
    assert (recording.seed, recording.specification) == (SEED, SPECIFICATION_VERSION)
    assert recording.attention_parity == own_version()
    assert (
        recording.environment == environment("one", programs_folder(), "cpu")
        and recording.environment["OMP_NUM_THREADS"] == "1"
    )
    assert recording.about["determinism"] == {} and recording.about["device"] == "cpu"
    assert recording.about["versions"] == {"numpy": np.__version__, "python": sys.version.split()[0]}
    cells = selection.cells(all_cases())
    assert recording.inputs == digests(cells) and list(recording.inputs) == sorted(cell.key for cell in cells)
    assert set(recording.cells) == set(recording.inputs) and not recording.unanswered_cells


@pytest.mark.parametrize(
    ("fault", "kind", "words"),
    [
        ("SIGKILL@valid_lens", "1 crash", "crash attention_mask-lens/float64 the worker was killed by SIGKILL"),
        ("raise@valid_lens", "1 error", "error attention_mask-lens/float64 ValueError: this backend was told to raise"),
    ],
)
def test_record_reports_cells_without_an_answer(registry, tmp_path: Path, fault: str, kind: str, words: str):
    registry(fault)
    path = tmp_path / "one.safetensors"
    result = invoke("record", "--backend", "one", "--case", "attention_mask-[lm][ea][ns][sk]", "-o", path)
    assert result.exit_code == 1
    assert f"1 of 2 cells answered, {kind}; " in squeezed(result) and words in squeezed(result)
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
    assert result.exit_code != 0 and words in squeezed(result) and "Traceback" not in result.output
    assert not Path("never.safetensors").exists()


# ------------------------------------------------------------------------------------------------ compare


def test_compare_agrees_with_run_whatever_the_file_names(registry, tmp_path: Path):
    """The header names the backend: files that were swapped are the same recordings."""
    chosen = ["--operator", "dot_score,attention_mask", "--dtype", "float64,float32"]
    ran = invoke("run", *chosen, "--backend", "one,two", "--output", tmp_path)
    one, two, report = (tmp_path / name for name in ("one-cpu.safetensors", "two-cpu.safetensors", "report.json"))
    expected = json.loads(report.read_text())
    assert ran.exit_code == 0 and len(expected["cells"]) > 300

    def judged(*files: Path) -> dict[str, Any]:
        result = invoke("compare", *files, "--json", tmp_path / "compared.json")
        assert result.exit_code == 0
        tables = [re.sub(r"finished .*\n", "", text.output).partition("time ")[0] for text in (ran, result)]
        assert tables[0] == tables[1]
        return json.loads((tmp_path / "compared.json").read_text())

    assert judged(one, two)["cells"] == expected["cells"]
    assert judged(two, one)["cells"] == expected["cells"]
    one.rename(tmp_path / "kept")
    two.rename(one)
    (tmp_path / "kept").rename(two)
    swapped = judged(one, two)
    assert swapped["cells"] == expected["cells"]
    assert swapped["header"]["backends"]["one"]["backend"] == "one"
    for report in (expected, swapped):
        del report["header"]["times"]
    assert swapped["header"] == expected["header"]


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
    reason = refused(compared(tmp_path, made, made))
    assert re.search(r"0\.safetensors and \S+1\.safetensors are both of fake on cpu: pass one of them", reason)


def test_a_wrong_answer_is_red_alone_and_beside_another(made: Recording, tmp_path: Path):
    answers = {name: array.copy() for name, array in made.cells[CELL].items()}
    answers["scores"].flat[3] += 1e-9
    wrong = replace(made, backend="jax", cells={**made.cells, CELL: answers})
    result = compared(tmp_path, wrong)
    assert result.exit_code == 1 and "fail        jax  dot_score  scores: 1 of 1 float64 case" in result.output
    assert "attention-parity run --backend jax --case 'dot_score-plain' --dtype float64" in result.output
    assert compared(tmp_path, made).exit_code == 0
    both = compared(tmp_path, wrong, made)
    assert both.exit_code == 1 and "jax against fake  dot_score  scores: 1 of 1" in both.output


def test_the_command_that_repeats_a_verdict_names_no_device_in_the_backend(made: Recording, tmp_path: Path):
    wrong = replace(made, device="cuda", cells={cell: {} for cell in made.cells})
    result = compared(tmp_path, made, wrong)
    assert "run --backend fake --case 'dot_score-plain' --dtype float64 --device cuda" in result.output


def test_a_cell_without_an_answer_is_red(made: Recording, tmp_path: Path):
    cells = {cell: arrays for cell, arrays in made.cells.items() if cell != CELL}
    answers = {cell: answer for cell, answer in made.answers.items() if cell != CELL}
    recording = replace(made, cells=cells, answers=answers)
    assert list(recording.unanswered_cells) == [CELL]
    result = compared(tmp_path, recording)
    assert result.exit_code == 1 and "missing     fake  dot_score: 1 of 1" in result.output


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
    done = subprocess.run([sys.executable, "-c", program], env=variables, capture_output=True, text=True)
    assert done.returncode == 0 and "6 comparisons of fake: all within tolerance" in done.stdout, done.stderr


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
        ({"selection": Selection(["float32"], "nothing")}, "has no case that exists here"),
        ({"selection": Selection(["float64"], "dot_score-plain")}, "absent here: scaled_dot_score-plain/float64. It"),
    ],
    ids=["specification", "seed", "inputs", "nothing", "no case", "selection"],
)
def test_a_recording_of_something_else_is_refused_with_the_difference(
    made: Recording, tmp_path: Path, change: dict[str, Any], words: str
):
    reason = refused(compared(tmp_path, replace(made, **({"cells": {}, "answers": {}} | change))))
    assert "0.safetensors" in reason and words in reason


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
        reason = refused(compared(tmp_path, *pair))
        assert re.search(r"only \S+\.safetensors has scaled_dot_score-plain/float64: record both with the same", reason)


def test_a_different_corpus_is_refused_until_the_same_is_passed(registry, tmp_path: Path):
    corpus, path = tmp_path / "pairs.txt", tmp_path / "one.safetensors"
    corpus.write_text("Go now.\tVa maintenant !\nI won!\tJ'ai gagné !\nHe ran away.\tIl a fui.\n", encoding="utf-8")
    arguments = ["--case", "Translator-sentences_greedy", "--dtype", "float64", "--corpus", corpus]
    assert invoke("record", "--backend", "one", *arguments, "-o", path).exit_code == 0
    reason = refused(invoke("compare", path))
    assert "was recorded with a different corpus; pass the same --corpus and --sentences" in reason
    assert "(other inputs: Translator-sentences_greedy/float64)" in reason
    assert "a different corpus" in refused(invoke("compare", path, "--corpus", corpus, "--sentences", "2"))
    assert invoke("compare", path, "--corpus", corpus).exit_code == 0


def test_files_of_another_kind_are_refused_by_what_they_are(tmp_path: Path):
    other, plain = tmp_path / "other", tmp_path / "plain"
    save_arrays(other, {}, {"kind": "weights"})
    save_arrays(plain, {})
    assert f"{other}: this is a 'weights', expected a 'recording'" in refused(invoke("compare", other))
    assert f"{plain}: this is a 'file of arrays', expected a 'recording'" in refused(invoke("compare", plain))
