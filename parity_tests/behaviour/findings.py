"""The behaviour of the frameworks' own attention: questions to each call, and findings from its answers.

A question is a case of the specification, or one with a single thing changed. A finding is a word or two for each
question; nothing states in advance what a framework does. Findings are kept with the versions that they are of, so that
a new version that behaves otherwise is noticed.
"""

from __future__ import annotations

import itertools
import json
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from parity_tests.behaviour.classify import Answer, classify
from parity_tests.behaviour.questions import Question, questions_for
from parity_tests.format.selection import Cell
from parity_tests.third_party.attention import THIRD_PARTY, ThirdParty
from parity_tests.workers.process import Job, Progress, Server, untold
from parity_tests.workers.recordings import Batch, Recording, batch_of

DATA = Path(__file__).with_name("behaviour.json")

Findings = dict[str, str]
"""The findings of a call, by question."""

COLUMNS = {
    "fully_masked": "fully masked rows",
    "hidden_value": "NaN in a hidden value",
    "hidden_key": "NaN in a hidden key",
    "large": "scores to ±2e6",
    "huge": "scores to ±2e10",
    "float16": "float16",
    "bfloat16": "bfloat16",
    "beyond": "lengths beyond the keys",
    "below": "lengths below 0",
    "polarity": "True in a mask",
    "gradients": "gradients",
    "causal": "causal with 5 queries and 7 keys",
    "causal_one": "causal with 1 query and 7 keys",
    "mask_and_causal": "causal together with a mask",
    "padding_and_causal": "causal together with a padding mask",
    "lengths_and_causal": "causal together with lengths",
    "key_head": "key head of a query head",
    "float_mask": "float mask",
    "softcap_and_mask": "soft cap and mask",
    "left_padding": "left padding",
    "steps": "steps with a cache",
    "steps_causal": "steps with a cache, causal",
}
"""The titles of the findings."""

# ------------------------------------------------------------------------------------------------ questions

UNDEFINED = "undefined"
"""The finding of a question that is not put to a target."""


def is_installed(target: ThirdParty) -> bool:
    """Whether the packages are installed that the module of a call imports."""
    module = [other for other in THIRD_PARTY if other.module == target.module]
    return all(find_spec(name) is not None for other in module for name in other.packages)


def questions(target: ThirdParty) -> dict[str, Question]:
    """The questions that are put to a target."""
    every = questions_for(target.operator, target.takes, target.raw)
    left_out = {*target.undefined, *target.leaves, *(name for name in every if target.asks and name not in target.asks)}
    return {name: question for name, question in every.items() if name not in left_out}


def record_answers(
    targets: Sequence[ThirdParty],
    python: str = sys.executable,
    device: str = "cpu",
    more: Callable[[ThirdParty], Sequence[Cell]] = lambda target: (),
) -> Iterator[Recording]:
    """The answers of each target to more cells, if any, and to all questions, from a worker on this machine.

    Raises: RuntimeError if its framework cannot be started.
    """
    with Server(job_of(targets, python, device), every=True) as server:
        yield from answers_of(targets, server.answers, more)


def job_of(targets: Sequence[ThirdParty], python: str = sys.executable, device: str = "cpu") -> Job:
    """The job of targets of one module: one worker answers for all of them, since its import takes longest."""
    first = max(targets, key=lambda target: len(target.packages))  # whose runtime names the versions of all
    return Job(first.name, first.place, python, device)


def answers_of(
    targets: Sequence[ThirdParty],
    answer: Callable[[Batch], Recording],
    more: Callable[[ThirdParty], Sequence[Cell]] = lambda target: (),
) -> Iterator[Recording]:
    """The answers of each target of a module, from a worker of its job, which answers a batch.

    Raises: RuntimeError if its framework cannot be started.
    """
    for target in targets:
        cases = [question.case for question in questions(target).values()]
        cells = [*more(target), *(Cell(case, dtype) for case in cases for dtype in case.dtypes)]
        batch = batch_of({cell.key: cell for cell in cells}.values(), target.place)
        recording = replace(answer(batch), backend=target.name, inputs=batch.digests)
        if not recording.about:
            message = next(iter(recording.answers.values())).message
            raise RuntimeError(f"{target.id} cannot be started: {message}")
        yield recording


def findings_of(target: ThirdParty, recording: Recording) -> tuple[str, Findings]:
    """The versions of a target's packages, and its findings."""
    found = dict.fromkeys(target.undefined, UNDEFINED)
    for name, question in questions(target).items():
        cells = [Cell(question.case, dtype) for dtype in question.case.dtypes]
        words = {cell.dtype: classify(name, Answer.of(recording, cell), question.alternatives) for cell in cells}
        found |= words if name == "half" else {name: summary(**words)}
    versions = recording.about["versions"]  # without what distinguishes builds
    named = ", ".join(f"{name} {versions[name].partition('+')[0]}" for name in target.packages)
    return named, {name: found[name] for name in COLUMNS if name in found}


def summary(float32: str, float64: str = "") -> str:
    """The finding in float32, and that in float64 if it differs."""
    return float32 if float64 in ("", float32) else f"{float32} (float64: {float64})"


def ask_all(
    targets: Sequence[ThirdParty],
    pythons: Mapping[str, str] | None = None,
    workers: int = 2,
    device: str = "cpu",
    progress: Progress = untold,
) -> dict[str, tuple[str, Findings]]:
    """Versions and findings of every target, by id; pythons has interpreters by module of the targets."""
    pythons = pythons or {}
    modules: dict[str, list[ThirdParty]] = {}
    for target in targets:
        modules.setdefault(target.module, []).append(target)

    def one(module: str) -> Iterator[tuple[str, tuple[str, Findings]]]:
        chosen = modules[module]
        progress(module, 0, len(chosen), chosen[0].id)
        for done, recording in enumerate(record_answers(chosen, pythons.get(module, sys.executable), device), 1):
            yield chosen[done - 1].id, findings_of(chosen[done - 1], recording)
            progress(module, done, len(chosen), chosen[done].id if done < len(chosen) else "")

    with ThreadPoolExecutor(max_workers=workers) as pool:
        return dict(itertools.chain.from_iterable(pool.map(lambda module: [*one(module)], modules)))


# ------------------------------------------------------------------------------------------------ records

Records = dict[str, list[dict[str, Any]]]
"""By id, the findings of each version, oldest first: {"versions": ..., "found": ...}."""


def load() -> Records:
    """Return the recorded findings."""
    records: Records = json.loads(DATA.read_text(encoding="utf-8")) if DATA.exists() else {}
    return records


def changes(records: Records, answers: Mapping[str, tuple[str, Findings]]) -> Iterator[str]:
    """Every finding that differs from the record of the same versions, or of the newest."""
    for name, (versions, found) in answers.items():
        before = records.get(name, [])
        same = [entry for entry in before if entry["versions"] == versions]
        if not before:
            yield f"{name} ({versions}) has no record"
            continue
        known = (same or before)[-1]
        for column in dict.fromkeys([*known["found"], *found]):
            was, now = known["found"].get(column, "missing"), found.get(column, "missing")
            if was != now and not near(was, now):
                before_and_now = f"was {was!r} ({known['versions']}), is {now!r} ({versions})"
                yield f"{name}: {COLUMNS.get(column, column)}: {before_and_now}"


def near(was: str, now: str) -> bool:
    """Whether both are figures, and at most a step apart: another processor rounds otherwise."""
    if not (was.startswith("≤ ") and now.startswith("≤ ")):
        return False
    smaller, larger = sorted(float(words.removeprefix("≤ ")) for words in (was, now))
    return larger <= 3.5 * smaller
