"""The bench: its goals, its arithmetic, and that it times nothing that does not agree. No test depends on a time."""

from __future__ import annotations

import importlib
import json
import subprocess
import sys
from collections.abc import Mapping
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner

from backends import FRAMEWORKS, Availability
from parity_tests.bench import charts, measure, runner, worker
from parity_tests.bench.items import (
    DIRECTIONS,
    EAGER,
    GRAPH,
    ITEMS,
    PARTS,
    TEXTBOOK,
    inputs,
    parameters,
    work,
)
from parity_tests.cli.main import main

TO_REACH = [
    *(
        (name, framework, against, figures)
        for name in ("additive", "additive-context")
        for framework, against, figures in (
            ("torch", TEXTBOOK, {"forward": (18, 25), "training": (9, 12), "memory training": (100, None)}),
            ("jax", TEXTBOOK, {"forward": (11, 15), "training": (12, 15), "memory training": (100, None)}),
            ("tf", GRAPH, {"forward": (2.4, 5), "training": (2.2, 4), "memory training": (50, None)}),
            ("mxnet", TEXTBOOK, {"forward": (6, 8), "training": (2.4, 3), "memory training": (50, None)}),
        )
    ),
    ("decoder", "torch", TEXTBOOK, {"forward": (3.1, 4), "training": (2.5, 3), "memory training": (4, 6)}),
    ("decoder", "tf", EAGER, {"forward": (9, 12), "training": (5, 6)}),
    ("decoder", "tf", GRAPH, {"forward": (2.2, 2.7), "compile forward": (18, 30)}),
    ("decoder", "jax", TEXTBOOK, {"forward": (0.97, 1.1), "training": (2.5, 3)}),
    ("decoder", "jax", TEXTBOOK, {"compile forward": (15, 20), "compile training": (11, 12)}),
    ("decoder", "mxnet", TEXTBOOK, {"forward": (3, 3), "training": (2, 2)}),
    ("decoder-short", "torch", TEXTBOOK, {"forward": (1.6, 1.6), "training": (1.4, 1.4)}),
    ("decoder-short", "tf", EAGER, {"forward": (10, 10), "training": (5, 5)}),
    ("decoder-short", "jax", TEXTBOOK, {"forward": (0.97, 0.97), "training": (1.2, 1.2)}),
    ("decoder-short", "mxnet", TEXTBOOK, {"forward": (3, 3), "training": (1.7, 1.7)}),
    ("greedy", "jax", "textbook, uncompiled", {"forward": (100, 100)}),
    *(
        (name, framework, against, figures)
        for name in ("dot", "dot-long")
        for framework, against, figures in (
            ("torch", TEXTBOOK, {"forward": (5.4, 7), "training": (4, 5.5)}),
            ("jax", TEXTBOOK, {"forward": (2.6, 3), "training": (2, 2.5), "memory training": (26, 50)}),
            ("tf", GRAPH, {"forward": (1.3, 2), "training": (1.2, 1.2)}),
        )
    ),
    ("dot-weights", "torch", TEXTBOOK, {"forward": (2, 3), "training": (3, 4)}),
    ("dot-weights-long", "torch", TEXTBOOK, {"forward": (2, 3), "training": (3, 4)}),
]
SIZES = {"batch": 2, "heads": 2, "queries": 3, "keys": 4, "hidden": 6, "layers": 2, "vocabulary": 9, "steps": 2}


def named(goal: Any) -> str:
    return goal.direction if goal.direction == goal.part else f"{goal.direction} {goal.part}"


@pytest.mark.parametrize(("name", "framework", "against", "figures"), TO_REACH)
def test_the_goals_are_those_to_reach(name: str, framework: str, against: str, figures: dict[str, Any]):
    own = [goal for goal in ITEMS[name].goals_in(framework) if goal.against == against]
    found = {named(goal): (goal.least, goal.wanted) for goal in own}
    assert {direction: found[direction] for direction in figures} == figures


def test_there_is_no_goal_beside_those_to_reach():
    listed = {
        (name, framework, against, direction) for name, framework, against, figures in TO_REACH for direction in figures
    }
    items = {
        (item.name, goal.framework, goal.against, named(goal))
        for item in ITEMS.values()
        for goal in item.goals
        if goal.least is not None
    }
    assert items == listed


@pytest.mark.parametrize("item", ITEMS.values(), ids=ITEMS)
def test_an_item_is_consistent(item):
    assert set(item.quick) <= set(item.sizes)
    assert set(item.own) <= set(item.frameworks) <= set(FRAMEWORKS)
    keys = [(goal.framework, goal.direction, goal.part, goal.against) for goal in item.goals]
    assert len(set(keys)) == len(keys)
    for goal in item.goals:
        assert goal.direction in DIRECTIONS and goal.part in PARTS
        assert (goal.part == goal.direction) == (goal.direction in PARTS)
        assert goal.wanted is None or (goal.least is not None and goal.wanted >= goal.least)
    for framework in item.frameworks:
        assert all(goal.least is None for goal in item.goals_in(framework, quick=True))
        assert len(item.goals_in(framework, quick=True)) == len(item.goals_in(framework))


@pytest.mark.parametrize("item", ITEMS.values(), ids=ITEMS)
def test_parameters_and_inputs_are_the_same_in_every_process(item):
    for made in (parameters, inputs):
        first, second = made(item, SIZES), made(item, SIZES)
        assert {name: array.dtype.kind for name, array in first.items() if array.dtype.kind not in "fi"} == {}
        for name, array in first.items():
            np.testing.assert_array_equal(array, second[name])
            assert array.dtype in (np.float32, np.int32)
    assert inputs(item, SIZES)["valid_lens"].tolist() == [4, 2]


def test_the_work_of_a_forward_pass_is_counted():
    assert work(ITEMS["additive"], {"batch": 2, "queries": 3, "keys": 5, "hidden": 7}) == 2 * 3 * 5 * 7
    assert work(ITEMS["dot"], {"batch": 2, "heads": 4, "queries": 3, "keys": 5, "hidden": 7}) == 2 * (2 * 4 * 3 * 5 * 7)
    one = {"batch": 1, "hidden": 2, "layers": 2, "vocabulary": 3, "steps": 1, "keys": 5}
    gates, scores = 3 * 2 * (4 + 2) + 3 * 2 * (2 + 2), 5 * 2 + 5 * 2
    assert work(ITEMS["decoder"], one) == 5 * 2 * 2 + gates + 2 * 2 + scores + 2 * 3


# ----------------------------------------------------------------------------------------------------- arithmetic


def test_a_ratio_is_the_median_of_the_ratios_of_the_rounds_and_not_the_ratio_of_medians():
    rounds = [(1.0, 10.0), (2.0, 4.0), (4.0, 12.0)]
    assert measure.ratios(rounds) == [10.0, 2.0, 3.0]
    row = runner.Row("", "", "forward", "forward", "", {}, goal=3.0, wanted=None).measured(rounds)
    assert (row.ratio, row.spread, row.rounds) == (3.0, (2.5, 6.5), 3)
    assert (row.ours, row.theirs) == (2.0, 10.0)  # whose ratio would be 5
    assert row.reached is True


@pytest.mark.parametrize(
    ("goal", "ratio", "reached"), [(3.0, 2.99, False), (3.0, 3.0, True), (None, 9.0, None), (3.0, None, None)]
)
def test_a_goal_is_reached_by_what_is_at_least_as_much(goal, ratio, reached):
    row = runner.Row("", "", "forward", "forward", "", {}, goal=goal, wanted=None, ratio=ratio)
    assert row.reached is reached


def test_both_forms_take_turns_and_are_called_before():
    said: list[str] = []
    clocked = {"ours": 1.0, "theirs": 3.0}

    def clock(call: measure.Call) -> float:
        return clocked[call()]

    def calls(name: str) -> measure.Call:
        return lambda: said.append(name) or name

    found = measure.interleave(calls("ours"), calls("theirs"), 3, clock)
    assert found == [(1.0, 3.0)] * 3
    assert said == ["ours"] * 2 + ["theirs"] * 2 + ["ours", "theirs"] * 3


def test_a_fast_form_is_called_as_often_as_it_takes_to_fill_a_round():
    said: list[str] = []
    measure.interleave(lambda: said.append("ours"), lambda: said.append("theirs"), 1, lambda call: call() or 0.01)
    assert said.count("ours") == said.count("theirs") == 2 + 5


# ------------------------------------------------------------------------------------------------------ agreement

ONE = {"context": np.array([1.0, -2.0], np.float32)}
EPS = float(np.finfo(np.float32).eps)


def test_an_error_is_in_eps_of_the_largest_entry_of_theirs():
    own = {"context": np.array([1.0 + 8 * EPS, -2.0], np.float32), "only ours": np.zeros(1)}
    assert measure.agree(own, ONE) == {"context": 4.0}


@pytest.mark.parametrize(
    ("own", "why"),
    [
        ({"context": np.array([1.0 + 2 * 1025 * EPS, -2.0], np.float32)}, "eps"),
        ({"context": np.array([np.nan, -2.0], np.float32)}, "eps"),
        ({"context": np.array([1.0], np.float32)}, "shape"),
        ({"weights": np.array([1.0], np.float32)}, "share no array"),
    ],
)
def test_what_is_too_far_of_another_shape_or_not_there_disagrees(own, why: str):
    with pytest.raises(measure.Disagreement, match=why):
        measure.agree(own, ONE)


def test_whole_numbers_have_to_be_the_same():
    theirs = {"sentences": np.array([100_000, 2])}
    assert measure.agree(theirs, theirs) == {"sentences": 0.0}
    with pytest.raises(measure.Disagreement):
        measure.agree({"sentences": np.array([100_001, 2])}, theirs)


class Planted:
    """A framework whose forms answer what they are told, and count their calls."""

    def __init__(self, ours: float, gradient: float = 1.0) -> None:
        self.answered = {None: (ours, gradient), TEXTBOOK: (1.0, 1.0)}
        self.calls = 0

    def form(self, item, against, sizes, parameters, given, device):
        return PlantedForm(self, *self.answered[against])

    def clock(self, device: str) -> measure.Clock:
        return lambda call: call() or 1.0


class PlantedForm:
    def __init__(self, framework: Planted, output: float, gradient: float) -> None:
        self.framework, self.output, self.gradient = framework, output, gradient

    def forward(self) -> None:
        self.framework.calls += 1

    training = forward

    def answers(self, gradients: bool) -> dict[str, np.ndarray]:
        found = {"context": np.full(3, self.output, np.float32)}
        return found | ({"gradient of keys": np.full(3, self.gradient, np.float32)} if gradients else {})


def job(**given: Any) -> dict[str, Any]:
    parts = {"item": "additive", "sizes": SIZES, "device": "cpu", "against": TEXTBOOK, "rounds": 2}
    return {**parts, "parts": ["forward", "training"], **given}


def test_forms_that_agree_are_timed():
    framework = Planted(1.0)
    found = worker.times(framework, job())
    assert found["errors"] == {"context": 0.0, "gradient of keys": 0.0}
    assert {part: len(rounds) for part, rounds in found["rounds"].items()} == {"forward": 2, "training": 2}
    assert framework.calls > 0


@pytest.mark.parametrize("planted", [Planted(1.001), Planted(1.0, gradient=1.001)], ids=["output", "gradient"])
def test_forms_that_disagree_are_not_timed(planted: Planted):
    found = worker.times(planted, job())
    assert set(found) == {"refused"} and "eps from the other form" in found["refused"]
    assert planted.calls == 0


# --------------------------------------------------------------------------------------------------- rows and JSON


def answering(**refusing: str):
    """A run of jobs that are not done: ours takes 2, theirs 6, and frameworks that are named refuse."""
    asked: list[Mapping[str, Any]] = []

    def run(asked_for: Mapping[str, Any]) -> dict[str, Any]:
        asked.append(asked_for)
        if asked_for["task"] == "times":
            if asked_for["framework"] in refusing:
                return {"refused": refusing[asked_for["framework"]]}
            rounds = {part: [(2.0, 6.0)] * asked_for["rounds"] for part in asked_for["parts"]}
            return {"errors": {"context": 3.0}, "rounds": rounds}
        taken = 2 if asked_for["form"] is None else 6
        return {"seconds": float(taken), "bytes": taken, "how": "told"}

    run.asked = asked
    return run


@pytest.fixture
def installed(monkeypatch: pytest.MonkeyPatch) -> None:
    """A registry in which all frameworks can run but MXNet."""
    reasons = {"mxnet": "mxnet is not here."}
    known = {name: Availability(name, f"backends.{name}", {name: "1.0"}, reasons.get(name)) for name in FRAMEWORKS}
    monkeypatch.setattr(runner.registry, "available", lambda: known)


ROW = {"item", "framework", "direction", "part", "against", "sizes", "goal", "wanted", "ratio", "spread", "rounds"} | {
    "ours",
    "theirs",
    "unit",
    "how",
    "eps",
    "refused",
    "work",
    "rate",
    "reached",
}


@pytest.mark.usefixtures("installed")
def test_the_json_is_as_stated():
    found = runner.bench(list(ITEMS.values()), FRAMEWORKS, run=answering(), lengths=True)
    told = json.loads(json.dumps(found.as_json()))
    assert {"machine", "seconds", "rounds", "rows", "lengths", "missing"} <= set(told)
    assert {"cpu", "cores", "threads", "versions"} <= set(told["machine"])
    assert told["rounds"] == 7 and told["missing"] == {"mxnet": "mxnet is not here."}
    goals = [goal for item in ITEMS.values() for goal in item.goals if goal.framework != "mxnet"]
    assert len(told["rows"]) == len(goals)
    for row in told["rows"]:
        assert set(row) == ROW
        assert (row["ratio"], row["spread"]) == (3.0, [3.0, 3.0])
        assert row["direction"] in DIRECTIONS
        assert row["reached"] == (None if row["goal"] is None else row["goal"] <= 3.0)
    assert {(own["framework"], own["form"]) for own in told["lengths"]} == {
        (framework, form) for framework in ("torch", "jax") for form in ("ours", "textbook")
    }


@pytest.mark.usefixtures("installed")
def test_what_disagrees_is_neither_compiled_nor_weighed_and_has_no_ratio():
    run = answering(jax="context is 1e6 eps from the other form")
    found = runner.bench([ITEMS["decoder"]], ["torch", "jax"], run=run)
    assert {row.framework for row in found.refused} == {"jax"}
    assert all(row.ratio is None and row.reached is None for row in found.refused)
    assert {own["task"] for own in run.asked if own["framework"] == "jax"} == {"times"}
    assert {own["task"] for own in run.asked if own["framework"] == "torch"} == {"machine", "times", "memory"}


@pytest.mark.usefixtures("installed")
def test_what_was_measured_before_an_interruption_is_given():
    told = answering()

    def run(asked_for: Mapping[str, Any]) -> dict[str, Any]:
        if asked_for["task"] == "memory":
            raise KeyboardInterrupt
        return told(asked_for)

    found = runner.bench([ITEMS["additive"]], ["torch", "jax"], run=run)
    assert found.interrupted and found.as_json()["interrupted"]
    assert [(row.framework, row.direction) for row in found.rows] == [("torch", "forward"), ("torch", "training")]


@pytest.mark.usefixtures("installed")
def test_processes_that_compile_or_are_weighed_alternate():
    run = answering()
    runner.bench([ITEMS["decoder"]], ["jax"], run=run)
    forms = [own["form"] for own in run.asked if own["task"] == "compile" and own["part"] == "training"]
    assert forms == [None, TEXTBOOK] * runner.FRESH


@pytest.mark.usefixtures("installed")
def test_lengths_stop_at_the_first_that_does_not_fit():
    def run(asked_for: Mapping[str, Any]) -> dict[str, Any]:
        if asked_for["form"] is not None and asked_for["sizes"]["keys"] > 512:
            raise runner.Failed("does not fit in 1.0 GiB")
        return {"seconds": 1.0, "bytes": 2**20, "how": ""}

    found = runner.bench([], ["torch"], lengths=True, run=run)
    own = {form: [at for at in found.lengths if at.form == form] for form in ("ours", TEXTBOOK)}
    assert [at.length for at in own["ours"]] == [256, 512, 1024, 2048, 4096, 8192]
    assert [(at.length, at.refused) for at in own[TEXTBOOK]][-1] == (1024, "does not fit in 1.0 GiB")


@pytest.mark.usefixtures("installed")
def test_the_page_holds_the_table_between_its_marks_and_the_rest_stays(tmp_path):
    path = tmp_path / "performance.md"
    found = runner.bench([ITEMS["dot"]], ["torch", "tf"], run=answering(), lengths=True)
    path.write_text("# Before\n")
    runner.write_page(found, path)
    path.write_text(path.read_text() + "after\n")
    runner.write_page(found, path)
    text = path.read_text()
    assert text.startswith("# Before\n") and text.endswith("after\n") and text.count(runner.OPENING) == 1
    assert "| dot | tf | forward | textbook, tf.function | 3.00 | 3.00 to 3.00 | 1.1 | 1.3 → 2 | yes |" in text
    assert "| dot | torch | forward | textbook | 3.00 | 3.00 to 3.00 | 1.1 | 5.4 → 7 | no |" in text


@pytest.mark.usefixtures("installed")
def test_a_chart_has_a_bar_for_each_ratio_and_a_line_for_each_form():
    found = runner.bench([ITEMS["dot"]], ["torch"], run=answering(), lengths=True)
    bars, seconds, taken = charts.chart(found).get_axes()
    assert len(bars.patches) == len(found.rows)
    assert [len(axes.lines) for axes in (seconds, taken)] == [2, 2]


def test_a_process_that_fails_says_why():
    with pytest.raises(runner.Failed, match="no backend 'none'"):
        runner.process({"framework": "none", "device": "cpu", "task": "times"})


def test_a_process_that_takes_more_memory_than_its_share_is_ended(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(runner, "free_bytes", lambda: 1)
    with pytest.raises(runner.Failed, match="does not fit"):
        runner.process({"framework": "none", "device": "cpu", "task": "times"})


def test_no_process_outlives_a_bench_that_is_killed(running):
    code = (
        "from parity_tests.bench import items, runner\n"
        "runner.process({'framework': 'torch', 'device': 'cpu', 'task': 'times', 'rounds': 9, 'item': 'additive',\n"
        "    'sizes': items.ADDITIVE.sizes, 'against': 'textbook', 'parts': ['forward']})"
    )
    bench = subprocess.Popen([sys.executable, "-c", code], start_new_session=True)
    assert len(running(2)) == 2
    bench.kill()
    bench.wait()
    assert running(0) == []


def test_memory_is_what_a_call_lets_the_process_grow_by():
    taken = measure.taken(lambda: np.ones(2**24).sum())  # 128 MiB
    assert taken == pytest.approx(2**27, rel=0.1)


# ------------------------------------------------------------------------------------------------- with frameworks


@pytest.mark.parametrize("item", ITEMS.values(), ids=ITEMS)
def test_every_form_agrees_with_ours(item, backend):
    framework = importlib.import_module(f"parity_tests.bench.{backend.name}")
    sizes = {name: size for name, size in SIZES.items() if name != "heads" or "heads" in item.sizes}
    given = parameters(item, sizes), inputs(item, sizes)
    for against in dict.fromkeys(goal.against for goal in item.goals_in(backend.name)):
        gradients = any(goal.part == "training" for goal in item.goals_in(backend.name) if goal.against == against)
        ours, theirs = (framework.form(item, form, sizes, *given) for form in (None, against))
        errors = measure.prove(ours, theirs, gradients)
        assert max(errors.values()) < 32
        assert gradients == any(name.startswith("gradient") for name in errors)
        learned = [name for name in errors if name.startswith("gradient of ")]
        if gradients:
            assert {f"gradient of {name}" for name in given[0]} <= set(learned)
        for form in (ours, theirs):
            form.forward()
            if gradients:
                form.training()


def test_a_quick_run_of_one_item_runs_end_to_end(all_backends, tmp_path):
    file, chart, page = tmp_path / "bench.json", tmp_path / "bench.png", tmp_path / "performance.md"
    framework = all_backends[0]
    arguments = ["--item", "additive", "--framework", framework, "--quick", "--rounds", "1"]
    result = CliRunner().invoke(
        main, ["bench", *arguments, "--json", str(file), "--chart", str(chart), "--page", str(page)]
    )
    assert result.exit_code == 0, result.output
    told = json.loads(file.read_text())
    assert told["quick"] and told["rounds"] == 1
    assert [row["direction"] for row in told["rows"]][:3] == ["forward", "training", "memory"]
    assert all(row["ratio"] > 0 and row["goal"] is None and not row["refused"] for row in told["rows"])
    assert chart.stat().st_size > 1000 and "additive" in page.read_text()
