"""Test vectors: what `export` writes, what `compare --vectors` accepts and refuses, and a program in C."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import safetensors.numpy

from attention_core.operators import ENTRIES
from backends.archives import load_arrays
from backends.schema import build
from parity_tests import assert_parity
from parity_tests.cases.suite import all_cases
from parity_tests.format.call import OPTIMISERS
from parity_tests.format.case import Arrays
from parity_tests.format.selection import Cell
from parity_tests.judge.compare import compare
from parity_tests.judge.question import Question
from parity_tests.judge.verdict import Verdict
from parity_tests.tests.commands import invoke, squeezed
from parity_tests.tests.places import ROOT
from parity_tests.vectors import onnx as onnx_models
from parity_tests.vectors.description import answer_name, description
from parity_tests.vectors.export import Index, arrays_of, as_json, is_exportable

pytestmark = pytest.mark.once

CASE = "attention_pooling-lens_and_mask"


def exported(folder: Path, *options: str) -> str:
    """What `export` prints as it writes vectors into a folder."""
    result = invoke("export", "-o", folder, *options)
    assert result.exit_code == 0, result.output
    return squeezed(result)


@pytest.fixture
def vectors(tmp_path: Path) -> Path:
    """The vectors of a case in three dtypes."""
    exported(tmp_path / "vectors", "--case", CASE, "--dtype", "float64,float32,bfloat16")
    return tmp_path / "vectors"


def right(vectors: Path) -> Arrays:
    """The expected arrays as answers, each in the dtype of its answer."""
    answers = {}
    for key, entry in json.loads((vectors / "index.json").read_text())["vectors"].items():
        arrays = load_arrays(vectors / f"{key}.safetensors")
        described = json.loads((vectors / f"{key}.json").read_text(encoding="utf-8"))["expected"]
        assert [one["name"] for one in described] == entry["answers"]
        answers |= {f"{key}/{one['name']}": arrays[one["name"]].astype(one["answer_dtype"]) for one in described}
    return answers


@pytest.fixture
def judged(vectors: Path, tmp_path: Path) -> Callable[..., tuple[int, str]]:
    """The exit code and the words of `compare` on the right answers with a change."""

    def judge(change: Callable[[Arrays], Any] = len, *options: str) -> tuple[int, str]:
        answers = right(vectors)
        change(answers)
        safetensors.numpy.save_file(answers, tmp_path / "mine.safetensors")
        result = invoke("compare", tmp_path / "mine.safetensors", "--vectors", vectors, *options)
        return result.exit_code, squeezed(result)

    return judge


# ------------------------------------------------------------------------------------------------ what is written


def test_the_same_export_has_the_same_digest(vectors: Path, tmp_path: Path):
    index = json.loads((vectors / "index.json").read_text())
    again = exported(tmp_path / "again", "--case", CASE, "--dtype", "float64,float32,bfloat16")
    assert again.endswith(f"digest {index['digest']}") and len(index["files"]) == 6
    assert index["digest"] not in exported(tmp_path / "other", "--case", CASE, "--dtype", "float64,float32")


def test_arrays_are_those_of_the_case_exactly(vectors: Path):
    for dtype in ("float64", "float32", "bfloat16"):
        arrays = load_arrays(vectors / CASE / f"{dtype}.safetensors")
        assert {array.dtype.name for array in arrays.values()} == {"float64", "int64", "bool"}
        for name, array in arrays.items():
            if name.startswith(("inputs/", "cotangents/")):
                np.testing.assert_array_equal(array.astype(dtype).astype(array.dtype), array, name)
        case = next(case for case in all_cases() if case.id == CASE)
        for name, quantity in Question(Cell(case, dtype)).quantities.items():
            np.testing.assert_array_equal(arrays[answer_name(name)], quantity.reference)


def test_what_a_file_cannot_state_is_not_exported():
    cases = all_cases(trained=True)
    kept = cases.where(is_exportable)
    assert not [case.id for case in kept if case.again or case.twice or case.method == "pruned"]
    left_out = {"training", "ablation_importance", "taylor_importance"}
    assert {case.operator for case in cases} - {case.operator for case in kept} == left_out


def one_of_each() -> list[Cell]:
    """The first case in float64 of every function and method, and those that are described in another way."""
    chosen: dict[Any, Cell] = {}
    for case in all_cases().where(is_exportable):
        unlike = "time_major" in case.config, bool(case.shared), case.name in ("one_key", "no_keys", "fully_masked")
        if "float64" in case.dtypes:
            chosen.setdefault((case.operator, case.method, *unlike), Cell(case, "float64"))
    return list(chosen.values())


@pytest.fixture(scope="module")
def described() -> list[tuple[Question, Arrays, dict[str, Any]]]:
    """Cells with their arrays and descriptions."""
    made = []
    for question in map(Question, one_of_each()):
        arrays = arrays_of(question)
        made.append((question, arrays, json.loads(as_json(description(question, arrays, "")))))
    return made


def test_a_description_explains_every_name_and_every_array(described):
    names = {entry.name for entry in ENTRIES}
    for question, arrays, text in described:
        parts = [text, *text["calls"], *text["inner_layers"].values(), *text["definitions"].values()]
        stated = [
            part.get(f"{kind}{of}", "") for part in parts for kind in ("formula", "notes") for of in ("", "_of_call")
        ]
        words = set(re.findall(r"\w+", " ".join(stated)))
        explained = {text["operator"], *text["definitions"], *(one["layer"] for one in text["inner_layers"].values())}
        if {"valid_lens", "mask"} <= set(question.cell.case.inputs):
            words.add("attention_mask")
        assert words & names <= explained, question.cell.key
        assert [one["name"] for one in (*text["inputs"], *text["expected"])] == list(arrays)
        taken = {name for call in text["calls"] for name in call["arguments"]}
        lists = text["operator"] in (*OPTIMISERS, "clip_by_global_norm")  # which the remarks explain
        assert taken == {*question.cell.case.inputs, *text["same_arrays"]} or lists, question.cell.key
        assert bool(text["remarks"]) == (lists or bool(text["same_arrays"])), question.cell.key
        sizes: dict[str, set[int]] = {}
        for one in (*text["inputs"], *text["expected"]):
            assert (one["axes"] is not None and one["meaning"]) or lists, (question.cell.key, one["name"])
            if one["name"].partition("/")[2] not in question.cell.case.parameters:
                for axis, size in zip(one["axes"] or (), one["shape"], strict=bool(one["axes"])):
                    sizes.setdefault(axis, {1}).add(size)
        assert all(len(size) <= 2 for size in sizes.values()), (question.cell.key, sizes)


def accepts(answer: np.ndarray, expected: np.ndarray, described: dict[str, Any]) -> bool:
    """The comparison as a description states it."""
    tolerance, finite = described["tolerance"], np.isfinite(expected)
    if tolerance is None:
        return bool((answer == expected).all())
    if not np.array_equal(answer[~finite], expected[~finite], equal_nan=True):
        return False
    if described["exact_zeros"] == "all":
        return not answer[finite].any()
    by_entry, zeros = tolerance["by_entry"], expected == 0.0
    near = np.abs(answer - expected) <= tolerance["absolute"]
    if described["exact_zeros"] == "each":
        near &= ~zeros | (answer == 0.0)
    if by_entry is not None:
        least = by_entry["least_normal"]
        small, size = (np.where(np.abs(x) < least, np.copysign(least, expected), x) for x in (answer, expected))
        logarithms = -np.log(expected, where=expected > 0.0, out=np.zeros_like(expected))
        row = 1.0 + logarithms.max(axis=-1, keepdims=True, initial=0.0) if by_entry["softmax"] else 1.0
        near &= zeros | (np.abs(small - size) <= by_entry["n"] * tolerance["eps"] * np.abs(size) * row)
    return bool(near[finite].all())


def test_a_description_decides_as_the_judge_does(described):
    decided = set()
    for question, arrays, text in described:
        for name, quantity in question.quantities.items():
            one = next(one for one in text["expected"] if one["name"] == answer_name(name))
            expected = arrays[one["name"]]
            if not expected.size:
                continue
            size = (one["tolerance"] or {}).get("absolute") or 1.0
            for where, change in ((np.argmax, 0.0), (np.argmax, 0.9), (np.argmax, 1.1), (np.argmin, 1e-9)):
                answer = expected.copy()
                place = where(np.abs(expected) if quantity.floating else expected)
                answer.flat[place] += change * size if quantity.floating else 0
                if change > 1.0 and not quantity.floating:
                    answer.flat[place] = answer.flat[place] == 0
                blank = Verdict(question.cell.case.operator, "x", "x", "reference", "", "float64", name, "missing")
                plain = replace(quantity, measured=lambda: None)  # a description has no condition
                verdict = compare(blank, plain, answer.astype(one["answer_dtype"]), quantity.reference)
                assert accepts(answer, expected, one) != verdict.red, (question.cell.key, verdict)
                decided.add((one["exact_zeros"], verdict.red))
    assert decided == {(zeros, red) for zeros in ("all", "each", "none") for red in (False, True)}


# ------------------------------------------------------------------------------------------------ answers


def without(*patterns: str) -> Callable[[Arrays], None]:
    """Remove the answers whose names match."""

    def change(answers: Arrays) -> None:
        for name in [name for name in answers if any(re.search(pattern, name) for pattern in patterns)]:
            del answers[name]

    return change


def test_right_answers_are_green_in_each_dtype(judged: Callable[..., tuple[int, str]]):
    code, words = judged()
    assert code == 0 and "green 15 comparisons of mine: all within tolerance" in words
    code, words = judged(without("/float"), "--dtype", "bfloat16")
    assert code == 0 and "green 5 comparisons of mine" in words


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (without("float32/gradients/scores"), "missing mine attention_pooling gradient_scores: 1 of 1"),
        (without("float32/"), "missing mine attention_pooling: 1 of 1 float32 case"),
        (lambda answers: answers.update({f"{CASE}/float64/outputs/context": np.zeros((2, 5, 6))}), "15 eps"),
        (
            lambda answers: answers.update({f"{CASE}/float32/outputs/context": np.zeros((2, 5, 6))}),
            "context is float64, expected float32",
        ),
    ],
)
def test_a_wrong_or_missing_answer_is_red(judged: Callable[..., tuple[int, str]], change, words: str):
    code, output = judged(change)
    assert code == 1 and words in output and "red 1 of " in output, output


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("outputs/context", "'outputs/context' answers no vector: expected an id and an answer of"),
        (f"{CASE}/float16/outputs/context", "answers no vector"),
        (f"{CASE}/float64/outputs/scores", "is no answer to this vector: expected outputs/context, outputs/weights"),
        (f"{CASE}/float64/inputs/scores", "is no answer to this vector"),
    ],
)
def test_an_answer_that_no_vector_needs_is_refused(judged: Callable[..., tuple[int, str]], name: str, words: str):
    code, output = judged(lambda answers: answers.update({name: np.zeros(3)}))
    assert code == 2 and words in output


def edited(**entries: Any) -> Callable[[Path], object]:
    """Change entries of the index, which gets a new digest."""

    def change(vectors: Path) -> None:
        index = json.loads((vectors / "index.json").read_text()) | entries
        made = build(Index, index)
        (vectors / "index.json").write_text(json.dumps(index | {"digest": made.compute_digest()}))

    return change


@pytest.mark.parametrize(
    ("damage", "words"),
    [
        (lambda folder: (folder / "index.json").unlink(), "there is no such file; expected a folder written by"),
        (lambda folder: (folder / "index.json").write_text("[]"), "is not an index of vectors"),
        (lambda folder: (folder / CASE / "float32.json").write_text("{}"), "float32.json does not match its digest"),
        (lambda folder: (folder / CASE / "float64.safetensors").unlink(), "there is no such file"),
        (
            lambda folder: (folder / "index.json").write_text((folder / "index.json").read_text().replace("e3", "3e")),
            "index.json does not match its digest",
        ),
        (edited(specification="5"), "the version of the specification is 5 there and"),
        (edited(files={"../mine.safetensors": "0" * 64}), "is not the path of a file in its folder"),
        (edited(selection={"dtypes": ["float64"], "pattern": CASE}), f"absent here: {CASE}/float32, {CASE}/bfloat16"),
        (edited(vectors={}), f"absent there: {CASE}/float64"),
    ],
)
def test_other_vectors_than_were_exported_are_refused(vectors: Path, damage: Callable[[Path], object], words: str):
    file = vectors.parent / "mine.safetensors"
    safetensors.numpy.save_file(right(vectors), file)
    damage(vectors)
    result = invoke("compare", file, "--vectors", vectors)
    assert result.exit_code == 2 and words in squeezed(result), result.output


def test_answers_without_their_vectors_are_refused(vectors: Path):
    file = vectors.parent / "mine.safetensors"
    safetensors.numpy.save_file(right(vectors), file)
    result = invoke("compare", file)
    assert result.exit_code == 2 and "If it has the answers to test vectors, pass --vectors DIR" in squeezed(result)


def test_programs_are_compared_with_each_other(judged: Callable[..., tuple[int, str]], vectors: Path):
    safetensors.numpy.save_file(right(vectors), vectors.parent / "other.safetensors")
    code, words = judged(len, vectors.parent / "other.safetensors")
    assert code == 0 and "green 45 comparisons of mine, other: all within tolerance" in words


def test_what_is_no_safetensors_is_refused(vectors: Path):
    result = invoke("compare", vectors / "index.json", "--vectors", vectors)
    assert result.exit_code == 2 and "index.json is not safetensors" in squeezed(result)


def test_gradients_that_vectors_lack_are_reported_as_missing(tmp_path: Path):
    folder, file = tmp_path / "vectors", tmp_path / "mine.safetensors"
    assert "1 vectors, without gradients" in exported(folder, "--case", CASE, "--dtype", "float64", "--no-gradients")
    assert not [name for name in load_arrays(folder / CASE / "float64.safetensors") if "cotangents" in name]
    answers = right(folder)
    assert sorted(answers) == [f"{CASE}/float64/outputs/{name}" for name in ("context", "weights")]
    safetensors.numpy.save_file(answers, file)
    result = invoke("compare", file, "--vectors", folder)
    assert result.exit_code == 0 and "missing gradients of attention_pooling" in squeezed(result)
    assert "green 2 comparisons of mine: all within tolerance; 3 more are missing" in squeezed(result)


def test_a_folder_that_is_not_empty_is_left_alone(vectors: Path):
    result = invoke("export", "-o", vectors, "--case", CASE)
    assert result.exit_code == 2 and "is not empty: name a new folder" in squeezed(result)
    assert invoke("export", "-o", vectors / "new", "--case", "nothing").exit_code == 2


# ------------------------------------------------------------------------------------------------ ONNX


def test_onnx_reads_a_node_test_and_gives_its_outputs(tmp_path: Path):
    onnx = pytest.importorskip("onnx")
    from onnx.reference import ReferenceEvaluator

    operators = ("--operator", "DotProductAttention,masked_softmax")
    words = exported(tmp_path, *operators)
    models = sorted(tmp_path.glob("*/*/model.onnx"))
    assert len(models) > 30 and f"{len(models)} of them also as ONNX models" in words
    assert "ONNX's Attention has no dropout mask" in words and "ONNX's Softmax has no mask" in words
    assert "ONNX's reference differs in context of DotProductAttention-context_scale in float64" in words
    ids = {path.parts[-3].partition("-")[2] for path in models}
    assert {"none", "fully_masked", "bias_softcap", "groups_one", "context_scale", "heads_mask"} <= ids
    for path in models:
        read = {}
        for kind in ("input", "output"):
            count = len(list((path.parent / "test_data_set_0").glob(f"{kind}_*.pb")))
            files = [path.parent / "test_data_set_0" / f"{kind}_{number}.pb" for number in range(count)]
            tensors = [onnx.TensorProto.FromString(file.read_bytes()) for file in files]
            read[kind] = {tensor.name: onnx.numpy_helper.to_array(tensor) for tensor in tensors}
        results = ReferenceEvaluator(onnx.load(path)).run(None, read["input"])
        for (name, expected), actual in zip(read["output"].items(), results, strict=True):
            operator = path.parts[-3].partition("-")[0]
            assert_parity(actual, expected, operator=operator, quantity=name)


def test_without_onnx_its_absence_is_reported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(onnx_models, "find_spec", lambda name: None)
    words = exported(tmp_path, "--case", "DotProductAttention-none")
    assert "not in ONNX 2 of 2: onnx is not installed. Run: pip install onnx" in words
    assert "exported 2 vectors; " in words and not list(tmp_path.rglob("*.onnx"))


# ------------------------------------------------------------------------------------------------ another language


def test_a_program_in_c_is_green_and_with_a_planted_bug_red(tmp_path: Path):
    compiler = next(filter(None, map(shutil.which, ("cc", "gcc", "clang"))), None)
    if compiler is None:
        pytest.skip("examples/vectors/attention.c needs a C compiler: none of cc, gcc, clang is there")
    exported(tmp_path / "vectors", "--case", "DotProductAttention-[!e]*")  # it has no memory that could be extended

    def answer(name: str, dtype: str, *flags: str, case: str = "*") -> Any:
        program, file = tmp_path / name, tmp_path / f"{name}.safetensors"
        source = ROOT / "examples" / "vectors" / "attention.c"
        subprocess.run([compiler, "-O2", *flags, "-o", program, source, "-lm"], check=True)
        paths = sorted((tmp_path / "vectors").glob(f"*/{dtype}.safetensors"))
        subprocess.run([program, file, *paths], check=True)
        return invoke("compare", file, "--vectors", tmp_path / "vectors", "--dtype", dtype, "--case", case)

    for result in (answer("double", "float64"), answer("single", "float32", "-DREAL=float")):
        assert result.exit_code == 0 and "all within tolerance" in result.output, result.output
    wrong = answer("wrong", "float64", "-DBUG", case="DotProductAttention-fully_masked")
    assert wrong.exit_code == 1 and "red 6 of 6 comparisons of wrong" in squeezed(wrong)
