"""The bench: its goals, its arithmetic, and that it times nothing that does not agree. No test depends on a time."""

from __future__ import annotations

import importlib
import json
import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from attention_core.operators.translation import TRANSLATORS
from backends import FRAMEWORKS, Availability
from benchmarks import measure, page, runner, worker
from benchmarks.command import other_packages
from benchmarks.items import (
    DIRECTIONS,
    ITEMS,
    LAYERS,
    PARTS,
    THIRD_PARTY,
    TOOLKITS,
    Item,
)
from benchmarks.problem import EOS, PAD, RESERVED, Problem
from parity_tests.tests.checkout import invoke
from parity_tests.tests.commands import squeezed
from parity_tests.tests.places import ROOT
from parity_tests.workers.environment import THREADS

SIZES = {"batch": 2, "heads": 2, "queries": 3, "keys": 4, "hidden": 6, "layers": 2, "vocabulary": 9, "steps": 2}
SIZES["source_vocabulary"] = 7


def test_the_goals_are_those_of_the_page():
    """Each ratio has a row in docs/performance.md, with its goal."""
    table = (ROOT / "docs" / "performance.md").read_text(encoding="utf-8").partition(page.MARKS[0])[2]
    lines = [[cell.strip() for cell in line.split("|")[1:-1]] for line in table.splitlines() if line.count("|") == 10]
    rows = [
        runner.Row(item.name, goal.framework, goal.direction, goal.part, goal.against, {}, goal.least, goal.aim)
        for item in ITEMS.values()
        for goal in item.goals
    ]
    goals = {(row.item, row.framework, page.direction(row), row.against): page.numbers(row)[3] for row in rows}
    assert goals == {tuple(cells[:4]): cells[7] for cells in lines if cells[0] in ITEMS}


@pytest.mark.parametrize("item", ITEMS.values(), ids=ITEMS)
def test_an_item_is_consistent(item):
    assert set(item.quick) <= set(item.sizes)
    assert set(item.special) <= set(item.frameworks) <= set(FRAMEWORKS)
    keys = [(goal.framework, goal.direction, goal.part, goal.against) for goal in item.goals]
    assert len(set(keys)) == len(keys)
    for goal in item.goals:
        assert goal.direction in DIRECTIONS and goal.part in PARTS
        assert (goal.part == goal.direction) == (goal.direction in PARTS)
        assert goal.aim is None or (goal.least is not None and goal.aim >= goal.least)
    for framework in item.frameworks:
        assert all(goal.least is None for goal in item.goals_in(framework, quick=True))
        assert len(item.goals_in(framework, quick=True)) == len(item.goals_in(framework))


@pytest.mark.parametrize("item", ITEMS.values(), ids=ITEMS)
def test_parameters_and_inputs_are_the_same_in_every_process(item):
    first, second = (Problem(item, SIZES) for _ in range(2))
    for arrays, again in ((first.parameters, second.parameters), (first.inputs, second.inputs)):
        for name, array in arrays.items():
            np.testing.assert_array_equal(array, again[name])
            assert array.dtype in (np.float32, np.int32)
    if item.layer in TRANSLATORS:
        lens = first.inputs["source_lens"].tolist()
        assert lens[0] == 4 and lens == sorted(lens, reverse=True) and first.inputs["target_lens"][0] == 2
        for tokens, ends in (("source", []), ("targets", [EOS])):
            for row, length in zip(first.inputs[tokens], first.inputs[tokens.rstrip("s") + "_lens"], strict=True):
                assert row[length - len(ends) :].tolist() == ends + [PAD] * (len(row) - length)
                assert all(row[: length - len(ends)] >= RESERVED)
    else:
        assert first.inputs["valid_lens"].tolist() == [4, 2]


def test_the_work_of_a_forward_pass_is_counted():
    sizes = {"batch": 2, "heads": 4, "queries": 3, "keys": 5, "hidden": 7}
    assert Problem(ITEMS["additive"], sizes).work == 2 * 3 * 5 * 7
    assert Problem(ITEMS["dot"], sizes).work == 2 * (2 * 4 * 3 * 5 * 7)
    one = {"batch": 1, "hidden": 2, "layers": 2, "vocabulary": 3, "steps": 1, "keys": 5}
    gates, scores = 3 * 2 * (4 + 2) + 3 * 2 * (2 + 2), 5 * 2 + 5 * 2
    assert Problem(ITEMS["decoder"], one).work == 5 * 2 * 2 + gates + 2 * 2 + scores + 2 * 3
    one = {"batch": 1, "hidden": 2, "layers": 1, "source_vocabulary": 9, "vocabulary": 3, "steps": 1, "keys": 5}
    encoder, step = 2 * 3 * (2 + 1), 3 * 2 * (4 + 2) + scores + 2 * 4 + 2 * 3
    assert Problem(ITEMS["translator-greedy"], one).work == 5 * (2 * 2 + encoder) + step
    assert Problem(ITEMS["translator-beam"], one).work == 5 * (2 * 2 + encoder) + 5 * step
    projected, feed_forward = 2 * 2, 2 * (2 * 8)
    encoder = 5 * (4 * projected + 2 * 5 * 2 + feed_forward)
    step = 4 * projected + 2 * 1 * 2 + 2 * projected + 2 * 5 * 2 + feed_forward
    assert Problem(ITEMS["transformer"], {**one, "heads": 1}).work == encoder + 5 * 2 * projected + step + 2 * 3
    beam = encoder + 5 * 2 * projected + 5 * (step + 2 * 3)
    assert Problem(ITEMS["transformer-beam"], {**one, "heads": 1}).work == beam


# ----------------------------------------------------------------------------------------------------- arithmetic


def test_a_ratio_is_the_median_of_the_ratios_of_the_rounds_and_not_the_ratio_of_medians():
    rounds = [(1.0, 10.0), (2.0, 4.0), (4.0, 12.0)]
    assert measure.ratios(rounds) == [10.0, 2.0, 3.0]
    row = runner.Row("", "", "forward", "forward", "", {}, goal=3.0, aim=None).fill(rounds)
    assert (row.ratio, row.spread, row.rounds) == (3.0, (2.5, 6.5), 3)
    assert (row.ours, row.theirs) == (2.0, 10.0)  # whose ratio would be 5
    assert row.is_reached is True


@pytest.mark.parametrize(
    ("goal", "ratio", "reached"), [(3.0, 2.99, False), (3.0, 3.0, True), (None, 9.0, None), (3.0, None, None)]
)
def test_a_goal_is_reached_by_what_is_at_least_as_much(goal, ratio, reached):
    row = runner.Row("", "", "forward", "forward", "", {}, goal=goal, aim=None, ratio=ratio)
    assert row.is_reached is reached


def test_both_forms_alternate_after_a_warm_up_call():
    called: list[str] = []
    seconds = {"ours": 1.0, "theirs": 3.0}

    def form(name: str) -> measure.Call:
        return lambda: called.append(name) or name

    rounds = measure.interleave(form("ours"), form("theirs"), 3, lambda call: seconds[call()])
    assert rounds == [(1.0, 3.0)] * 3
    assert called == ["ours"] * 2 + ["theirs"] * 2 + ["ours", "theirs"] * 3


def test_a_fast_form_is_called_until_it_fills_a_round():
    called: list[str] = []
    measure.interleave(lambda: called.append("ours"), lambda: called.append("theirs"), 1, lambda call: call() or 0.01)
    assert called.count("ours") == called.count("theirs") == 2 + 5


# ------------------------------------------------------------------------------------------------------ agreement

ONE = {"context": np.array([1.0, -2.0], np.float32)}
EPS = float(np.finfo(np.float32).eps)


def test_an_error_is_in_eps_of_the_largest_entry_of_theirs():
    ours = {"context": np.array([1.0 + 8 * EPS, -2.0], np.float32), "only ours": np.zeros(1)}
    assert measure.agree(ours, ONE) == {"context": 4.0}


@pytest.mark.parametrize(
    ("ours", "why"),
    [
        ({"context": np.array([1.0 + 2 * 1025 * EPS, -2.0], np.float32)}, "eps"),
        ({"context": np.array([np.nan, -2.0], np.float32)}, "eps"),
        ({"context": np.array([1.0], np.float32)}, "shape"),
        ({"weights": np.array([1.0], np.float32)}, "share no array"),
    ],
)
def test_arrays_too_far_apart_of_another_shape_or_missing_disagree(ours, why: str):
    with pytest.raises(measure.Disagreement, match=why):
        measure.agree(ours, ONE)


def test_whole_numbers_have_to_be_the_same():
    theirs = {"sentences": np.array([100_000, 2])}
    assert measure.agree(theirs, theirs) == {"sentences": 0.0}
    with pytest.raises(measure.Disagreement):
        measure.agree({"sentences": np.array([100_001, 2])}, theirs)


class Planted:
    """A framework whose forms answer given numbers, and count their calls."""

    def __init__(self, ours: float, gradient: float = 1.0) -> None:
        self.answered = {None: (ours, gradient), THIRD_PARTY: (1.0, 1.0)}
        self.calls = 0

    def form(self, problem, against, device):
        return PlantedForm(self, *self.answered[against])


class PlantedForm:
    def __init__(self, framework: Planted, output: float, gradient: float) -> None:
        self.framework, self.output, self.gradient = framework, output, gradient

    def forward(self) -> None:
        self.framework.calls += 1

    training = forward

    def seconds(self, call: measure.Call) -> float:
        return call() or 1.0

    def answers(self, gradients: bool) -> dict[str, np.ndarray]:
        arrays = {"context": np.full(3, self.output, np.float32)}
        return arrays | ({"gradient of keys": np.full(3, self.gradient, np.float32)} if gradients else {})


def job(**given: Any) -> dict[str, Any]:
    parts = {"item": "additive", "sizes": SIZES, "device": "cpu", "against": THIRD_PARTY, "rounds": 2}
    return {**parts, "parts": ["forward", "training"], **given}


def test_forms_that_agree_are_timed():
    framework = Planted(1.0)
    measured = worker.times(framework, job())
    assert measured["errors"] == {"context": 0.0, "gradient of keys": 0.0}
    assert measured["rounds"] == {part: [(1.0, 1.0)] * 2 for part in ("forward", "training")}  # as the form says
    assert framework.calls > 0


@pytest.mark.parametrize("planted", [Planted(1.001), Planted(1.0, gradient=1.001)], ids=["output", "gradient"])
def test_forms_that_disagree_are_not_timed(planted: Planted):
    measured = worker.times(planted, job())
    assert set(measured) == {"refused"} and "eps from the other form" in measured["refused"]
    assert planted.calls == 0


# --------------------------------------------------------------------------------------------------- rows and JSON


def answering(threads: int = 1, **refusing: str):
    """Answer jobs without running them: ours takes 2, theirs 6, and the frameworks that are named refuse.

    Ours has so many threads.
    """
    jobs: list[Mapping[str, Any]] = []

    def run(job: Mapping[str, Any]) -> dict[str, Any]:
        jobs.append(job)
        if job["task"] == "times":
            if job["framework"] in refusing:
                return {"refused": refusing[job["framework"]]}
            rounds = {part: [(2.0, 6.0)] * job["rounds"] for part in job["parts"]}
            return {"errors": {"context": 3.0}, "rounds": rounds}
        other = job["form"] is not None or "packages" in job or job.get("threads", 1) != threads
        taken = 6 if other else 2
        if job["task"] == "alone":
            return {"seconds": dict.fromkeys(job["parts"], taken)}
        return {"seconds": float(taken), "bytes": taken, "how": "counted"}

    run.jobs = jobs
    return run


@pytest.fixture
def installed(monkeypatch: pytest.MonkeyPatch) -> None:
    """A registry in which all frameworks can run but MXNet."""
    reasons = {"mxnet": "mxnet is not here."}
    known = {name: Availability(name, f"backends.{name}", {name: "1.0"}, reasons.get(name)) for name in FRAMEWORKS}
    monkeypatch.setattr(runner.registry, "available", lambda: known)
    monkeypatch.setattr(runner, "TOOLKITS", {})


WHAT = {"item", "framework", "direction", "part", "against", "sizes", "goal", "aim", "work", "tokens"}
MEASURED = {"ratio", "spread", "rounds", "ours", "theirs", "unit", "how", "eps", "refused"}
MEASURED |= {"tokens_per_second", "rate", "reached"}


@pytest.mark.usefixtures("installed")
def test_the_json_is_as_stated():
    measured = runner.bench(list(ITEMS.values()), FRAMEWORKS, run=answering(), lengths=True)
    report = json.loads(json.dumps(measured.as_json()))
    assert {"machine", "seconds", "rounds", "rows", "lengths", "missing"} <= set(report)
    assert {"cpu", "cores", "threads", "versions"} <= set(report["machine"])
    assert report["rounds"] == 7 and report["missing"] == {"mxnet": "mxnet is not here."}
    goals = [goal for item in ITEMS.values() for goal in item.goals if goal.framework != "mxnet"]
    assert len(report["rows"]) == len(goals)
    for row in report["rows"]:
        assert set(row) == WHAT | MEASURED
        assert (row["ratio"], row["spread"]) == (3.0, [3.0, 3.0])
        assert row["direction"] in DIRECTIONS
        assert row["reached"] == (None if row["goal"] is None else row["goal"] <= 3.0)
    assert {(length["framework"], length["form"]) for length in report["lengths"]} == {
        (framework, form) for framework in ("torch", "tf", "jax") for form in ("ours", THIRD_PARTY)
    }


@pytest.mark.usefixtures("installed")
def test_a_form_that_disagrees_has_no_ratio_and_starts_no_further_process():
    run = answering(jax="context is 1e6 eps from the other form")
    measured = runner.bench([ITEMS["decoder"]], ["torch", "jax"], run=run)
    assert {row.framework for row in measured.refused_rows} == {"jax"}
    assert all(row.ratio is None and row.is_reached is None for row in measured.refused_rows)
    assert {job["task"] for job in run.jobs if job["framework"] == "jax"} == {"times"}
    assert {job["task"] for job in run.jobs if job["framework"] == "torch"} == {"machine", "times", "memory", "compile"}


@pytest.mark.usefixtures("installed")
def test_a_toolkit_that_is_not_installed_is_reported_and_left_out(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(runner, "TOOLKITS", {"JoeyNMT": "no_such_package"})
    run = answering()
    measured = runner.bench([ITEMS["translator-luong"]], ["torch"], run=run)
    assert [row.against for row in measured.rows] == [THIRD_PARTY] and not measured.refused_rows
    assert measured.missing["JoeyNMT"].startswith("no_such_package is not installed")
    assert {job.get("against") for job in run.jobs} == {None, THIRD_PARTY}
    assert "JoeyNMT" not in runner.bench([ITEMS["translator"]], ["torch"], run=run).missing


@pytest.mark.usefixtures("installed")
def test_an_interrupted_bench_returns_what_was_measured():
    answer = answering()

    def run(job: Mapping[str, Any]) -> dict[str, Any]:
        if job["task"] == "memory":
            raise KeyboardInterrupt
        return answer(job)

    measured = runner.bench([ITEMS["additive"]], ["torch", "jax"], run=run)
    assert measured.interrupted and measured.as_json()["interrupted"]
    assert [(row.framework, row.direction) for row in measured.rows] == [("torch", "forward"), ("torch", "training")]


@pytest.mark.usefixtures("installed")
def test_processes_that_measure_memory_or_compiling_alternate():
    run = answering()
    runner.bench([ITEMS["decoder"]], ["jax"], run=run)
    forms = [job["form"] for job in run.jobs if job["task"] == "compile" and job["part"] == "training"]
    assert forms == [None, THIRD_PARTY] * runner.FRESH


@pytest.mark.usefixtures("installed")
def test_another_version_of_ours_takes_turns_in_fresh_processes():
    run, item = answering(), ITEMS["decoder"].against("before")
    measured = runner.bench([item], ["jax"], packages="/folder", run=run)
    assert [job.get("packages") for job in run.jobs if job["task"] == "alone"] == [None, "/folder"] * runner.FRESH
    assert not [job for job in run.jobs if job["task"] != "machine" and job["form"] is not None]
    assert {(row.against, row.ratio, row.goal, row.refused) for row in measured.rows} == {("before", 3.0, None, "")}
    directions = {(goal.direction, goal.part) for goal in ITEMS["decoder"].goals if goal.framework == "jax"}
    assert {(row.direction, row.part) for row in measured.rows} == directions and len(measured.rows) == len(directions)


@pytest.mark.usefixtures("installed")
def test_two_threads_take_turns_with_one_and_what_is_timed_alone_is_measured():
    run, item = answering(threads=2), ITEMS["decoder"].against_one_thread(2)
    measured = runner.bench([item], ["torch", "jax"], threads=2, run=run)
    jobs = [job for job in run.jobs if job["task"] != "machine"]
    assert {job["task"] for job in jobs} == {"alone"} and {job["form"] for job in jobs} == {None}
    assert [job["threads"] for job in jobs] == [2, 1] * runner.FRESH * 2
    rows = [(row.framework, row.direction, row.against, row.ratio, row.goal) for row in measured.rows]
    assert rows == [(name, part, "one thread", 3.0, 1.7) for name in ("torch", "jax") for part in PARTS]
    assert measured.as_json()["machine"]["threads"] == 2
    text = page.with_table(page.with_table("# Before\n", measured) + "after\n", measured)
    assert text.count(page.THREAD_MARKS[0]) == 1 and page.MARKS[0] not in text
    assert "| decoder | jax | training | 6 | 2 | 3.00 | 3.00 to 3.00 | yes |" in text and "2 threads (" not in text


@pytest.mark.parametrize("framework", FRAMEWORKS)
def test_a_job_has_as_many_threads_as_it_says(framework: str):
    for threads in (1, 2):
        chosen = runner.environment_of({"framework": framework, "device": "cpu", "threads": threads})
        assert {chosen[name] for name in THREADS} == {str(threads)}
        # In JAX, devices have a thread each.
        assert ("--xla_cpu_multi_thread_eigen=false" in chosen.get("XLA_FLAGS", "")) == (framework == "jax")


def test_threads_have_cores(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(os, "sched_getaffinity", lambda process: {3})
    result = invoke("benchmarks", "--item", "dot", "--threads", "2")
    assert result.exit_code == 2 and "may run on 1 cores" in squeezed(result)
    for options, words in ((("--item", "length"), "leave length out"), (("--against", "."), "cannot be combined")):
        result = invoke("benchmarks", "--threads", "2", *options)
        assert result.exit_code == 2 and words in squeezed(result)


def test_another_version_has_its_own_packages_and_the_bench_of_this_one(tmp_path: Path):
    for name in ("attention_core", "backends"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "__init__.py").write_text(f"raise RuntimeError('the other {name}')")
    (tmp_path / "parity_tests").mkdir()
    result = invoke("benchmarks", "--item", "length", "--against", tmp_path)
    assert result.exit_code == 2 and "leave length out" in squeezed(result)
    result = invoke("benchmarks", "--against", tmp_path / "parity_tests")
    assert result.exit_code == 2 and "there is no folder" in squeezed(result)
    with other_packages(tmp_path) as packages, pytest.raises(runner.Failed, match="the other "):
        runner.process({"framework": "torch", "device": "cpu", "task": "machine", "packages": packages})


@pytest.mark.usefixtures("installed")
def test_lengths_stop_at_the_first_that_does_not_fit():
    def run(job: Mapping[str, Any]) -> dict[str, Any]:
        keys = job.get("sizes", {"keys": 1})["keys"]
        if job.get("form") is not None and keys > 512:
            raise runner.Failed("does not fit in 1.0 GiB")
        return {"seconds": keys**2 / 1e6, "bytes": 2**20, "how": ""}

    measured = runner.bench([], ["torch"], lengths=True, run=run)
    ours, theirs = ([at for at in measured.lengths if at.form == form] for form in ("ours", THIRD_PARTY))
    assert [at.length for at in ours] == [256, 512, 1024, 2048, 4096, 8192, 16384]
    assert [at.growth for at in ours] == [None, *[4.0] * 6]
    assert [(at.length, at.refused) for at in theirs][-1] == (1024, "does not fit in 1.0 GiB")


@pytest.mark.usefixtures("installed")
def test_the_table_is_written_between_its_marks_only():
    measured = runner.bench([ITEMS["dot"]], ["torch", "tf"], run=answering(), lengths=True)
    text = page.with_table(page.with_table("# Before\n", measured) + "after\n", measured)
    assert text.startswith("# Before\n") and text.endswith("after\n") and text.count(page.MARKS[0]) == 1
    assert "| dot | tf | forward | third party, tf.function | 3.00 | 3.00 to 3.00 | 1.1 | 1.3 → 2 | yes |" in text
    assert "| dot | torch | forward | third party | 3.00 | 3.00 to 3.00 | 1.1 | 5.4 → 7 | no |" in text


@pytest.mark.usefixtures("installed")
def test_the_speed_of_a_translator_is_in_tokens_per_second():
    """Of the translations without padding, in 2 seconds, and in 6 by the other implementation."""
    names = ["transformer", "transformer-beam", "translator-greedy", "dot"]
    measured = runner.bench([ITEMS[name] for name in names], ["torch"], run=answering())
    tokens = [int(Problem(ITEMS["transformer"], ITEMS["transformer"].sizes).inputs["target_lens"].sum()), 64 * 20]
    assert tokens[0] < tokens[1]
    speeds = {(row.item, row.against, row.direction): row.tokens_per_second for row in measured.rows}
    assert speeds["transformer", LAYERS["torch"], "training"] == (tokens[0] / 2, tokens[0] / 6)
    assert speeds["transformer-beam", LAYERS["torch"], "forward"] == (640, 1280 / 6)
    assert not any(speeds[key] for key in speeds if key[0] == "dot" or key[2] == "memory")
    line = f"| transformer-beam | torch | {LAYERS['torch']} | 640 | 213 |"
    assert line in page.markdown(measured).splitlines()


def test_a_process_that_fails_reports_the_reason():
    with pytest.raises(runner.Failed, match="no backend 'none'"):
        runner.process({"framework": "none", "device": "cpu", "task": "times"})


def test_a_process_that_exceeds_its_share_of_memory_is_ended(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(runner, "free_bytes", lambda: 1)
    monkeypatch.setattr(runner, "LOOKS_SECONDS", 0.001)  # before it ends by itself: there is no such backend
    with pytest.raises(runner.Failed, match="does not fit"):
        runner.process({"framework": "none", "device": "cpu", "task": "times"})


def test_no_process_outlives_a_bench_that_is_killed(running):
    code = (
        "from benchmarks import items, runner\n"
        "runner.process({'framework': 'torch', 'device': 'cpu', 'task': 'times', 'rounds': 9, 'item': 'additive',\n"
        "    'sizes': items.ADDITIVE.sizes, 'against': 'third party', 'parts': ['forward']})"
    )
    bench = subprocess.Popen([sys.executable, "-c", code], start_new_session=True)
    assert len(running(2)) == 2
    bench.kill()
    bench.wait()
    assert running(0) == []


def test_memory_is_what_a_call_lets_the_process_grow_by():
    taken = measure.peak_growth(lambda: np.ones(2**24).sum())  # 128 MiB
    assert taken == pytest.approx(2**27, rel=0.1)


# ------------------------------------------------------------------------------------------------- with frameworks


def kind(item: Item) -> tuple[Any, ...]:
    """What is computed; items of one kind differ in their sizes."""
    return item.layer, *item.options.items(), *item.keywords.items(), item.outputs


KINDS = {kind(item): item for item in reversed(ITEMS.values())}
"""The first item of each kind."""


@pytest.mark.parametrize("item", ITEMS.values(), ids=ITEMS)
def test_the_first_item_of_a_kind_has_all_of_its_forms(item):
    first, forms = KINDS[kind(item)], {(goal.framework, goal.against, goal.part) for goal in item.goals}
    assert forms <= {(goal.framework, goal.against, goal.part) for goal in first.goals}


def agrees(framework: Any, problem: Problem, against: str, gradients: bool) -> None:
    """Compare that form with ours, and run what is measured of it."""
    ours, theirs = framework.form(problem, None), framework.form(problem, against)
    errors = measure.validate(ours, theirs, gradients)
    assert max(errors.values()) < 32
    assert gradients == any(name.startswith("gradient") for name in errors)
    if problem.item.layer in TRANSLATORS:
        assert set(errors) == ({"loss", "gradients' norm"} if gradients else {"sentences"})
    elif gradients:
        assert {f"gradient of {name}" for name in problem.parameters} <= set(errors)
    for part in {goal.part for goal in problem.item.goals if goal.against == against}:
        for form in (ours, theirs):
            getattr(form, part)()


@pytest.mark.parametrize("item", KINDS.values(), ids=lambda item: item.name)
def test_every_form_agrees_with_ours(item, backend):
    framework = importlib.import_module(f"benchmarks.{backend.name}")
    sizes = {name: size for name, size in SIZES.items() if name != "heads" or "heads" in item.sizes}
    parts: dict[str, set[str]] = {}
    for goal in item.goals_in(backend.name):
        parts.setdefault(goal.against, set()).add(goal.part)
    for against in parts.keys() - TOOLKITS.keys():
        agrees(framework, Problem(item, sizes), against, "training" in parts[against])


COMPARED = dict.fromkeys((item.name, goal.against) for item in KINDS.values() for goal in item.goals)


@pytest.mark.parametrize(("name", "toolkit"), [pair for pair in COMPARED if pair[1] in TOOLKITS])
def test_every_toolkit_agrees_with_ours(name: str, toolkit: str, backend):
    """Of one layer: JoeyNMT's decoder begins all of its layers with the same state."""
    item = ITEMS[name]
    if toolkit not in [goal.against for goal in item.goals_in(backend.name)]:
        return  # nothing to compare with
    pytest.importorskip(TOOLKITS[toolkit])
    framework = importlib.import_module(f"benchmarks.{backend.name}")
    agrees(
        framework,
        Problem(item, {**SIZES, "batch": 8, "layers": 1, "vocabulary": 30, "steps": 12}),
        toolkit,
        "sentences" not in item.outputs,
    )


def test_a_quick_run_of_one_item_runs_end_to_end(all_backends, tmp_path):
    file, chart, page = tmp_path / "bench.json", tmp_path / "bench.png", tmp_path / "performance.md"
    framework = all_backends[0]
    arguments = ["--item", "additive", "--framework", framework, "--quick", "--rounds", "1"]
    result = invoke("benchmarks", *arguments, "--json", file, "--chart", chart, "--page", page)
    assert result.exit_code == 0, result.output
    report = json.loads(file.read_text())
    assert report["quick"] and report["rounds"] == 1
    assert [row["direction"] for row in report["rows"]][:3] == ["forward", "training", "memory"]
    assert all(row["ratio"] > 0 and row["goal"] is None and not row["refused"] for row in report["rows"])
    assert chart.stat().st_size > 1000 and "additive" in page.read_text()
