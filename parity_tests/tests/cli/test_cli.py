"""The command line, in processes of its own or through click's runner."""

from __future__ import annotations

import io
import json
import re
import shlex
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any

import click
import pytest
from click.shell_completion import ShellComplete
from click.testing import CliRunner
from rich.console import Console

import backends
from parity_tests.cases.suite import all_cases
from parity_tests.cli import terminal
from parity_tests.cli.main import main
from parity_tests.format.families import OPERATORS
from parity_tests.format.selection import cells_of
from parity_tests.judge.run import Run, batches_of, deal, run
from parity_tests.judge.verdict import Verdict
from parity_tests.reports.table import MOST_ROWS, reproduce, rows
from parity_tests.tests.checkout import COMMANDS, invoke
from parity_tests.workers.answers import Answer
from parity_tests.workers.process import Job, Progress, record
from parity_tests.workers.recordings import Batch, Recording

COMPLETE = "_ATTENTION_PARITY_COMPLETE"


@pytest.fixture
def only_fake(monkeypatch: pytest.MonkeyPatch, fake_job):
    """A registry of one backend, made of the reference, and one that cannot run."""

    def registered() -> dict[str, backends.Availability]:
        gone = backends.Availability("gone", "backends.gone", {}, "gone is not installed: pip install it.")
        return {"fake": backends.Availability("fake", "numpy_backend", {"numpy": "1"}), "gone": gone}

    monkeypatch.setattr(backends, "available", registered)

    def with_fault(fault: str = "") -> None:
        def recorder(job: Job, batches: Iterable[Batch], progress: Progress, **keywords) -> Recording:
            return record(fake_job(fault), batches, progress, **keywords)

        monkeypatch.setattr("parity_tests.cli.run.record", recorder)

    with_fault()
    return with_fault


def test_the_help_of_each_command_describes_it():
    text = invoke("--help").output
    for name in ("run", "record", "compare", "calibrate", "mutate", "backends", "list", "show"):
        assert re.search(rf"^  {name} +\w", text, re.MULTILINE)
        assert invoke(name, "--help").exit_code == 0
    assert "Exits with 0 only if nothing is red." in invoke("run", "--help").output


@pytest.mark.parametrize("names", COMMANDS, ids=" ".join)
def test_the_help_of_each_command_ends_with_two_valid_examples(names: tuple[str, ...]):
    heading, *examples = invoke(*names, "--help").output.splitlines()[-3:]
    assert heading.strip() == "Examples:" and examples[0] != examples[1]
    command = COMMANDS[names]
    for example in examples:
        words = shlex.split(example.partition("|")[0].partition(">")[0])
        words = words[words.index(names[0]) :]
        assert tuple(words[: len(names)]) == names
        with click.Context(command) as context:
            values, rest, _ = command.make_parser(context).parse_args(words[len(names) :])
            missing = [option.name for option in command.params if option.required and not values.get(str(option.name))]
        assert not rest and not missing


@pytest.mark.parametrize(
    ("line", "begun", "expected"),
    [
        ("run --backend", "torch,", {"torch,tf", "torch,jax", "torch,mxnet"}),
        ("run --operator", "masked_softmax,GRU", {"masked_softmax,GRU", "masked_softmax,GRUEncoder"}),
        ("run --dtype", "float64,b", {"float64,bfloat16"}),
        ("run --case", "GRU-ragg", {"GRU-ragged"}),
        ("run --path", "", {"plain", "blocked"}),
        ("fuzz --backend", "mx", {"mxnet"}),
        ("record --backend", "j", {"jax"}),
        ("show", "GRUEncoder-fu", {"GRUEncoder-fully_masked"}),
        ("diff scoring torch", "m", {"mxnet"}),
        ("convert --to", "keras.G", {"keras.GRU"}),
        ("translate train --dtype", "float6", {"float64"}),
        ("translate compare --backend", "torch,t", {"torch,tf"}),
    ],
)
def test_a_shell_completes(line: str, begun: str, expected: set[str]):
    shell = ShellComplete(main, {}, "attention-parity", COMPLETE)
    assert expected <= {item.value for item in shell.get_completions(line.split(), begun)}
    assert all(item.value.startswith(begun) for item in shell.get_completions(line.split(), begun))


def test_each_shell_keeps_names_with_commas_whole():
    """In fish and bash, a kind stands before the name, with a comma between."""
    shown = {}
    for shell in ("bash", "zsh", "fish"):
        result = CliRunner().invoke(main, prog_name="attention-parity", env={COMPLETE: f"{shell}_source"})
        shown[shell] = result.output
    assert "IFS=',' read type value" in shown["bash"] and 'string split --max 1 ","' in shown["fish"]
    assert "#compdef attention-parity" in shown["zsh"]


def test_list_names_every_operator_with_formula_and_source():
    text = invoke("list").output
    assert "masked_softmax(scores, valid_lens=None, mask=None)" in text
    assert "Bahdanau et al. 2015" in text and "r = σ(W0 x" in text
    assert "masked_softmax-fully_masked" not in text
    assert "masked_softmax-fully_masked" in invoke("list", "--cases").output


def test_show_prints_formula_shapes_and_source():
    text = invoke("show", "scaled_dot_score-scale").output
    assert "scale · sum over c" in text and "scale=0.375" in text and "(2, 5, 4)" in text and "Vaswani" in text
    assert "gradient_queries" in text
    assert invoke("show", "Translator-sentences_greedy").exit_code == 0


def test_calibrate_shows_what_reports_would_change(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("parity_tests.cli.show.console", Console(width=200))
    verdict = Verdict(
        "dot_score", "dot_score-plain", "torch", "reference", "cpu", "float64", "scores", "pass", 1.0, 15.0
    )
    path = tmp_path / "report.json"
    other = replace(verdict, operator="location_score", case="location_score-plain", entry_error=0.0)
    missed = replace(other, status="fail", check="entry", error=7.0, tolerance=0.0, entry_error=7.0)
    verdicts = [verdict, replace(verdict, error=60.0, against="tf"), other, missed]
    path.write_text(json.dumps(Run([], verdicts).as_json()))
    text = invoke("calibrate", str(path)).output
    words = re.sub(r"[\s│]+", " ", text)
    assert "float64, float32 60 5 15 200 torch against tf, dot_score-plain, scores, float64" in words
    assert "location_score, scores, by entry 7 0 0 30 torch, location_score-plain, scores, float64" in words


def test_a_device_has_a_name_that_the_judge_knows():
    result = invoke("run", "--device", "gpu")
    assert result.exit_code == 2 and "expected cpu, cuda, or an index such as cuda:1" in result.output


def test_what_cannot_exist_is_neither_green_nor_red(only_fake, monkeypatch: pytest.MonkeyPatch):
    def recorder(job: Job, batches: Iterable[Batch], progress: Progress, **limits: Any) -> Recording:
        recording = Recording(job.backend, job.device)
        cells = [cell for batch in batches for cell in batch.cells]
        recording.answers = {cell.key: Answer("not-applicable", "no halves here") for cell in cells}
        return recording

    monkeypatch.setattr("parity_tests.cli.run.record", recorder)
    result = invoke("run", "--backend", "fake", "--case", "dot_score-plain", "--dtype", "float16")
    assert result.exit_code == 0 and "n/a         fake  float16  1 case: no halves here" in result.output
    assert re.search(r"dot_score +│ +1 │ +n/a │", result.output)


def test_backends_reports_why_one_cannot_run(only_fake):
    text = invoke("backends").output
    assert "numpy_backend" in text and "gone is not installed" in text


def test_a_green_run_exits_with_zero_and_writes_its_outputs(only_fake, tmp_path: Path):
    outputs = ("--output", str(tmp_path), "--json", str(tmp_path / "verdicts.json"))
    result = invoke("run", "--case", "dot_score-[!cp]*", "--dtype", "float64", *outputs)
    assert result.exit_code == 0, result.output
    assert "green" in result.output and "not judged  gone" in result.output and "time" in result.output
    assert (tmp_path / "fake-cpu.safetensors").exists()
    written = json.loads((tmp_path / "verdicts.json").read_text())
    assert written == json.loads((tmp_path / "report.json").read_text())
    header = written["header"]
    assert header["backends"]["fake"]["versions"]["numpy"] and header["not_installed"] == {
        "gone": "gone is not installed: pip install it."
    }
    assert {cell["status"] for cell in written["cells"]} == {"pass"} and len(written["cells"]) == 31


def test_two_runs_give_the_same_json_but_for_times(only_fake, tmp_path: Path):
    files = [tmp_path / "a.json", tmp_path / "b.json"]
    chosen = ["--case", "*-[!c]*", "--operator", "masked_softmax,dot_score", "--dtype", "float32"]
    for file in files:
        invoke("run", *chosen, "--json", str(file))
    first, second = (json.loads(file.read_text()) for file in files)
    del first["header"]["times"], second["header"]["times"]
    assert first == second


def test_a_red_run_exits_with_one_and_prints_the_command_that_repeats_it(only_fake):
    only_fake("raise@valid_lens")
    result = invoke("run", "--case", "attention_mask-l*", "--dtype", "float64")
    assert result.exit_code == 1
    assert "ValueError: this backend was told to raise" in result.output
    assert "attention-parity run --backend fake --case 'attention_mask-lens' --dtype float64" in result.output


def test_a_requested_backend_that_is_missing_is_red(only_fake):
    assert invoke("run", "--case", "dot_score-plain").exit_code == 0
    for arguments in (["--require-all"], ["--backend", "fake,gone"]):
        result = invoke("run", "--case", "dot_score-plain", *arguments)
        assert result.exit_code == 1 and "gone is not installed" in result.output


@pytest.mark.parametrize(
    ("code", "line", "words"),
    [
        (0, "run --case dot_score-plain", "green"),
        (1, "run --backend fake,gone --case dot_score-plain", "gone is not installed"),
        (1, "run --backend gone", "no backend can run here: gone is not installed"),
        (1, "record --backend gone -o {folder}/gone.safetensors", "no backend can run here"),
        (1, "fuzz --backend gone --examples 1", "no backend can run here"),
        (1, "benchmarks --framework torch", "not measured: torch: torch is not installed."),
        (1, "translate train --backend torch -o {folder}/model.safetensors", "Error: torch is not installed."),
        (1, "translate compare --backend fake,torch --output {folder}/out", "Error: torch is not installed."),
        (2, "run --case nothing-*", "no case matches"),
        (2, "run --backend nobody", "no backend 'nobody'; there are fake, gone"),
        (2, "run --dtype float8", "'float8': expected some of float64, float32"),
        (2, "run --operator softmax", "'softmax': expected some of attention_mask, causal_mask"),
        (2, "run --python fake", "expected NAME=PATH"),
        (2, "run --python fake=/no/such/python", "does not exist"),
        (2, "run --corpus /no/such/corpus", "there is no such file"),
        (2, "run --frobnicate", "No such option"),
        (2, "record --backend nobody -o {folder}/nobody.safetensors", "no backend 'nobody'"),
        (2, "fuzz --examples 1 --backend nobody", "no backend 'nobody'"),
        (2, "fuzz --backend fake", "--seconds, --examples, or both"),
        (2, "fuzz --examples 1 --dtype float8", "'float8': expected some of float64, float32"),
        (2, "show nothing", "attention-parity list --cases"),
        (2, "diff nothing torch jax", "torch has no file 'nothing'"),
        (2, "check nowhere.py", "nowhere.py"),
        (2, "compare nowhere.safetensors", "there is no such file"),
        (2, "benchmarks --framework nobody", "'nobody': expected some of torch"),
        (2, "convert nowhere.safetensors --to jax -o {folder}/out.safetensors", "there is no such file"),
        (2, "translate train --backend nobody", "no backend 'nobody'"),
    ],
)
def test_exit_codes_are_the_same_in_every_command_and_a_wrong_argument_gets_a_sentence(
    only_fake, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, code: int, line: str, words: str
):
    absent = backends.Availability("torch", "backends.torch", {}, "torch is not installed.")
    known = {**backends.available(), "torch": absent}
    monkeypatch.setattr(backends, "available", lambda: known)
    result = invoke(*line.format(folder=tmp_path).split())
    assert result.exit_code == code, result.output
    assert words in re.sub(r"\s+", " ", result.output)
    assert "Traceback" not in result.output or line.startswith("check")  # which prints that of a worker


def test_two_backends_are_judged_against_each_other(fake_job):
    cases = all_cases().select("dot_score-plain")
    jobs = [Job("one", "numpy_backend"), Job("two", "numpy_backend")]

    def recorder(job: Job, batches: Iterable[Batch], progress: Progress) -> Recording:
        recording = record(fake_job(), batches, progress)
        recording.backend = job.backend
        return recording

    outcome = run(cells_of(cases, ["float64"]), jobs, recorder=recorder)
    pairs = {(verdict.backend, verdict.against) for verdict in outcome.verdicts}
    assert pairs == {("one", "reference"), ("two", "reference"), ("one", "two")} and not outcome.red


def test_progress_is_a_bar_with_what_is_running_or_a_line_for_each_finished_part(monkeypatch: pytest.MonkeyPatch):
    def printed(interactive: bool) -> str:
        written = io.StringIO()
        shown = Console(file=written, force_terminal=interactive, width=100, color_system=None)
        monkeypatch.setattr(terminal, "errors", shown)
        with terminal.progress() as report:
            report("torch", 0, 1_234, "waiting")
            report("torch", 0, 1_234, "starting")
            report("jax", 40, 1_234, "GRU-plain")
            report("tf", 617, 617)
        return written.getvalue()

    bars = printed(interactive=True)
    assert re.search(r"torch[ ━]+0 of 1,234 0:00:00 --:-- left starting", bars), bars
    assert re.search(r"jax[ ━]+40 of 1,234 0:00:00 --:-- left GRU-plain", bars)
    assert printed(interactive=False).splitlines()[0] == "finished    tf: 617 of 617 in 0 s"


def test_nothing_but_times_depends_on_the_number_of_workers(fake_job, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("parity_tests.judge.run.requirements_of", lambda backend: backends.Requirements((), share=1))
    cases = all_cases().select(operators=["masked_softmax"])
    reports = []

    def judged(workers: int) -> dict:
        done: list[int] = []
        outcome = run(
            cells_of(cases, ["float64", "float32"]),
            [fake_job("raise@mask")],
            workers=workers,
            progress=lambda part, count, of, doing="": done.append(count),
        )
        assert max(done) == len(outcome.cells)
        reports.append(outcome.as_json())
        del reports[-1]["header"]["times"]
        return reports[-1]

    assert judged(1) == judged(3)
    assert any(cell["status"] == "error" for cell in reports[0]["cells"])


def test_each_batch_goes_to_one_worker_with_all_cells_of_a_program():
    cases = all_cases().select(operators=["masked_softmax"])
    cells = cells_of(cases, ["float64", "float32"])
    batches = list(batches_of(cells))
    assert len(batches) > 1 and {cell.key for cell in cells} == {key for batch in batches for key in batch.digests}
    repeated = [case for case in cases if case.again]
    assert repeated
    for case in repeated:
        assert any({f"{case.id}/float64", f"{case.again}/float64"} <= set(batch.digests) for batch in batches)
    first, second, third = deal(batches, 3)
    assert [next(first), next(second), *first] == batches and list(second) == list(third) == []


def test_the_command_that_repeats_a_verdict_names_both_backends():
    verdict = Verdict("GRU", "GRU-step", "jax", "torch", "cuda", "float32", "output", "fail")
    assert reproduce(verdict) == (
        "attention-parity run --backend jax,torch --case 'GRU-step' --dtype float32 --device cuda"
    )


def test_many_operators_share_a_row_for_each_file_and_what_is_red_has_its_own():
    names = list(OPERATORS)
    listed = list(rows(names, {"GRU", "LuongDecoder"}, every=False))
    labels = [label for label, _ in listed]
    assert labels[:3] == ["masking (13)", "scoring (6)", "pooling"] and labels[-1] == "translation (2)"
    assert [label for label in labels if label.startswith("  ")] == ["  GRU", "  LuongDecoder"]
    assert sorted(name for label, group in listed if not label.startswith("  ") for name in group) == sorted(names)
    assert [label for label, _ in rows(names, set(), every=True)] == names
    assert [label for label, _ in rows(names[:MOST_ROWS], set(), every=False)] == names[:MOST_ROWS]
