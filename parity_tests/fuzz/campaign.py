"""Fuzzing: draw cases, compare them with the reference, and minimise failures to one line.

A case is a `Drawn`: number n of seed s is the same case on every machine and for every backend. Workers answer whole
batches; hypothesis shrinks what differs.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Collection, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field, replace

from attention_core.errors import AttentionError
from parity_tests.cases.draw import draw
from parity_tests.format import expected as reference
from parity_tests.format.case import FULL
from parity_tests.format.drawn import NAMES, Drawn
from parity_tests.fuzz.shrink import MOST_SHRINKS, shrink
from parity_tests.judge.compare import excuse_missing, judge_all
from parity_tests.judge.condition import Judged, judgeable
from parity_tests.judge.drawn_cells import Abilities
from parity_tests.judge.question import Questions
from parity_tests.judge.verdict import Explanation, Verdict
from parity_tests.mutants.explain import explanations
from parity_tests.workers.process import Progress, Server, untold
from parity_tests.workers.recordings import Batch, Recording, batch_of

BATCH = 50


MOST_TRIES = {"crash": 20, "timeout": 4}
"""The maximum number of simpler cases that may end a worker, by the status of the first."""


@dataclass(frozen=True)
class Finding:
    """A failure: the number of the first failing case, its minimised form, and its worst verdict.

    explanation is the known mistake with the same answers, if there is one.
    """

    number: int
    drawn: Drawn
    verdict: Verdict
    explanation: Explanation | None = None


Kind = tuple[str, str, str, str]
"""A kind of failure: backend, operator, method and status."""

Numbered = dict[str, tuple[int, Judged]]
"""Judged cases with their numbers, by the keys of their cells."""


@dataclass
class Campaign:
    """A run of every step-th case of a seed from number `first`, on every backend or target, and its failures.

    left_out counts the cases that rounding alone could change; missing those that a target does not implement, by the
    missing part; repeated the failing cases of the same kind as an earlier finding. worst has the largest error as a
    share of its tolerance, by backend and operator. Failures of familiar kinds are counted, and not minimised.
    """

    servers: Sequence[Server]
    seed: int
    first: int = 0
    step: int = 1
    operators: Sequence[str] = NAMES
    dtypes: Sequence[str] = FULL
    done: int = 0
    left_out: int = 0
    seconds: float = 0.0
    cases: Counter[tuple[str, str]] = field(default_factory=Counter)
    worst: dict[tuple[str, str], float] = field(default_factory=dict)
    findings: dict[Kind, Finding] = field(default_factory=dict)
    repeated: Counter[Kind] = field(default_factory=Counter)
    missing: Counter[str] = field(default_factory=Counter)
    familiar: Collection[Kind] = ()
    known: dict[str, Abilities] = field(default_factory=dict)
    """What each backend implements; other cases are not run."""

    def __post_init__(self) -> None:
        for server in self.servers:
            name = server.job.backend
            self.known.setdefault(name, Abilities(name).with_functions(server.about))

    @property
    def names(self) -> list[str]:
        """The backends that cases were or will be run on."""
        servers = [server.job.backend for server in self.servers]
        return list(dict.fromkeys([*servers, *(name for name, _ in self.cases)]))

    @property
    def last(self) -> int:
        """The number of the last case that was drawn."""
        return self.first + self.step * max(0, self.done - 1)

    def run(
        self, seconds: float | None = None, examples: int | None = None, progress: Progress = untold
    ) -> Iterator[Finding]:
        """Run cases until the time or number is reached, and yield each finding.

        Raises: WorkerFault if a worker cannot start.
        """
        begun = time.monotonic()
        with ThreadPoolExecutor(max(1, len(self.servers))) as pool:
            running: list[tuple[Server, Numbered, Future[Recording]]] = []
            while True:
                over = seconds is not None and time.monotonic() - begun >= seconds
                over |= any(server.stopped() for server in self.servers)
                count = 0 if over else BATCH if examples is None else min(BATCH, examples - self.done)
                with reference.in_memory():
                    ready = self._draw(count)
                    batches = {server: self._batch(server, ready) for server in self.servers}
                # While this batch was drawn and its reference computed, the workers answered the one before.
                for server, cases, future in running:
                    yield from self._findings(server, cases, future.result())
                self.seconds = time.monotonic() - begun
                self._tell(progress, seconds, examples, over=not count)
                if not count:
                    return
                running = [
                    (server, cases, pool.submit(server.answers, batch)) for server, (cases, batch) in batches.items()
                ]

    def _tell(self, progress: Progress, seconds: float | None, examples: int | None, over: bool) -> None:
        done, of = (self.done, examples) if examples is not None else (int(self.seconds), int(seconds or 0))
        doing = f"{self.done:,} cases, {len(self.findings)} findings"
        progress("fuzz", done, done if over else max(done + 1, of), "" if over else doing)

    def _draw(self, count: int) -> Numbered:
        ready = {}
        for number in (self.first + self.step * (self.done + index) for index in range(count)):
            drawn = draw(self.seed, number, self.operators, self.dtypes)
            if not any(self._is_for(server, drawn) for server in self.servers):
                continue
            judged = judgeable(drawn)
            if judged is None:
                self.left_out += 1
            else:
                ready[judged.cell.key] = number, judged
        self.done += count
        return ready

    def _batch(self, server: Server, ready: Numbered) -> tuple[Numbered, Batch]:
        cases = {name: case for name, case in ready.items() if self._is_for(server, case[1].drawn)}
        return cases, batch_of(judged.cell for _, judged in cases.values())

    def _is_for(self, server: Server, drawn: Drawn) -> bool:
        """Whether the backend implements all that the case needs, and no such call has ended its worker before."""
        known = self.known[server.job.backend]
        if (drawn.operator, drawn.method) in server.deadly or not known.concerns(drawn):
            return False
        refusal = known.refusal(drawn)
        if refusal:
            self.missing[refusal] += 1
        return not refusal

    def _findings(self, server: Server, cases: Numbered, recording: Recording) -> Iterator[Finding]:
        judgements: dict[str, list[Verdict]] = {}
        with reference.in_memory():
            for name, (_, judged) in cases.items():
                answer = recording.answers.get(name)
                if answer is None:
                    continue
                if answer.status in ("not-applicable", "not-implemented"):
                    self.missing[answer.message] += 1
                    self.known[recording.backend].learn(answer)
                    continue
                judgements[name] = list(excuse_missing(judge_all([judged.cell], [recording], Questions())))
                self.left_out += not judgements[name]
        for name, verdicts in judgements.items():
            if not verdicts:
                continue
            number, judged = cases[name]
            drawn, place = judged.drawn, (recording.backend, judged.drawn.operator)
            self.cases[place] += 1
            shares = [
                v.error / v.tolerance for v in verdicts if v.status == "pass" and v.tolerance and v.error is not None
            ]
            self.worst[place] = max(self.worst.get(place, 0.0), *shares, 0.0)
            red = next((verdict for verdict in verdicts if verdict.red), None)
            if red is None:
                continue
            kind = (recording.backend, drawn.operator, drawn.method, red.status)
            self.repeated[kind] += 1
            if kind not in self.findings and kind not in self.familiar:
                finding = self._simplest(server, number, drawn, red)
                cells = [judged.cell for _, judged in cases.values()]
                alike = [one for verdicts in judgements.values() for one in verdicts if one.operator == drawn.operator]
                with reference.in_memory():
                    known = next(explanations(cells, recording, alike), None)
                self.findings[kind] = replace(finding, explanation=known)
                yield self.findings[kind]

    def _simplest(self, server: Server, number: int, drawn: Drawn, verdict: Verdict) -> Finding:
        worst = verdict

        def differs(candidate: Drawn) -> bool:
            nonlocal worst
            try:
                red = verdict_of(server, candidate)
            except AttentionError:  # the simpler parts do not fit each other, as a token and a smaller vocabulary
                return False
            if red is not None and red.status == verdict.status:
                worst = red
                return True
            return False

        simplest = shrink(drawn, differs, MOST_TRIES.get(verdict.status, MOST_SHRINKS))
        return Finding(number, simplest, worst)


def verdict_of(server: Server, drawn: Drawn) -> Verdict | None:
    """The first red verdict on a drawn case, None if it is green or cannot be judged."""
    with reference.in_memory():
        judged = judgeable(drawn)
        if judged is None:
            return None
        recording = server.answers(batch_of([judged.cell]))
        verdicts = excuse_missing(judge_all([judged.cell], [recording], Questions()))
        return next((verdict for verdict in verdicts if verdict.red), None)
