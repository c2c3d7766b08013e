from __future__ import annotations

import sys
import threading
from dataclasses import replace

from parity_tests.cases import masking
from parity_tests.cases.suite import CORE, all_cases
from parity_tests.format.families import Suite
from tools.count_calls import Counter

MOST_CALLS = 6_000
"""The most Python calls that build the case of a score: all cases take 880,000."""


def one():
    return len(sorted("ba"))


def three():
    return [one() for _ in range(2)]


def generate():
    yield one()


def counted(function) -> tuple[int, int]:
    counter = Counter()
    counter.run(function)
    return counter.total, counter.building


def test_calls_of_functions_count_and_those_of_built_ins_do_not():
    assert counted(one) == (1, 0)
    with_comprehension = sys.version_info < (3, 12)  # a function of its own there
    assert counted(three) == (3 + with_comprehension, 0)


def test_calls_of_other_threads_count():
    class Thread(threading.Thread):
        def run(self):
            three()

    thread, other = Thread(), Thread()
    before, _ = counted(lambda: None)
    of_one, _ = counted(lambda: (thread.start(), thread.join()))
    counter = Counter()
    counter.run(lambda: (other.start(), other.join(), one()))
    assert of_one - before > 4 and len(counter.threads) == 2


def test_an_import_does_not_count(tmp_path, monkeypatch):
    (tmp_path / "calling.py").write_text("def one():\n    return 1\n\n\nnumbers = [one() for _ in range(100)]\n")
    monkeypatch.syspath_prepend(tmp_path)

    def load():
        import calling

        return calling.one()

    assert counted(load) == (2, 0)


def test_the_calls_that_build_cases_count_twice():
    def build():
        one()
        return [*masking.gap_cases("masked_softmax", {"scores": 1.0})]

    total, building = counted(build)
    assert 0 < building == total - 2


def test_a_command_may_exit():
    assert counted(sys.exit) == (0, 0)


def test_the_cases_of_a_score_take_few_calls():
    counter, suite = Counter(), Suite([replace(family) for family in all_cases(trained=True).families], CORE)
    counter.run(lambda: suite.select("additive_score-plain"))
    built = [family for family in suite.families if "cases" in vars(family)]
    assert len(built) == 3 and 0 < counter.total < MOST_CALLS
