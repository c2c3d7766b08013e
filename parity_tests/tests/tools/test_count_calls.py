from __future__ import annotations

import sys
import threading

from parity_tests.cases import masking
from tools.count_calls import Counter


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
