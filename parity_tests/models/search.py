"""Where a difference begins: both sides run again, recorded."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from pathlib import Path

import numpy as np

from parity_tests.format.case import epsilon
from parity_tests.judge.nudges import Nudge
from parity_tests.models.alignment import Alignment, errors_of
from parity_tests.models.calls import Answer, Arrays, Call, Recorder, Seen, distance
from parity_tests.models.difference import Difference
from parity_tests.models.mistakes import explain
from parity_tests.models.precision import PERSISTENT, SIZES, allowed_change, changes_by, nudged_arrays
from parity_tests.models.sides import Side
from parity_tests.models.trial import Trial

MOST_NAMES = 6
"""The number of sublayers that a note names."""


def find_indeterminate(trial: Trial, side: Side, dtype: str) -> str:
    """The first sublayer of a side whose output differs between two runs."""
    with tempfile.TemporaryDirectory() as folder:
        before = trial.run_side(side, dtype=dtype, recorder=Recorder(Path(folder))).calls
        again = trial.run_side(side, dtype=dtype, recorder=Recorder(Path(folder), before)).calls
    moved = (call.name for call in again if any(seen.change for seen in call.outputs))
    return next(moved, "something outside of its sublayers")


def find_difference(trial: Trial, dtype: str, cotangents: Arrays) -> None:
    """Record both sides, and find the first sublayer that differs, and what its error looks like.

    Where a side rounds to its own dtype inside, a note says so, and what lies behind is judged in that dtype.
    """
    result = trial.result
    with ExitStack() as stack:
        folders = [Path(stack.enter_context(tempfile.TemporaryDirectory())) for _ in range(4)]
        recorded = []
        for side, folder in zip((trial.actual, trial.expected), folders[:2], strict=True):
            factors = trial.with_gradients(side, cotangents)
            answer = trial.run_side(side, dtype=dtype, recorder=Recorder(folder), **factors)
            recorded.append(answer)
            _note_recording(trial, side, answer, trial.run_side(side, dtype=dtype, **factors))
        changes = _changes(trial, recorded[1].calls, dtype, cotangents, folders[1])

        def align(judged: str) -> Alignment:
            def allowance(seen: Seen) -> float:
                finite = np.nan_to_num(seen.array.astype(np.float64), nan=0.0, posinf=0.0, neginf=0.0)
                return allowed_change(changes.get(seen.file, 0.0), float(np.abs(finite).max(initial=0.0)), judged)

            return Alignment(recorded[0].calls, recorded[1].calls, allowance, trial.names)

        alignment = align(result.decided_in)
        difference = alignment.first_difference() or alignment.first_gradient()
        rounds = (
            difference is not None and dtype != trial.expected.dtype and _is_rounding(trial, difference, folders[2:])
        )
        if difference is not None and rounds:
            result.notes.append(
                f"{difference.actual.name} ({difference.actual.kind}) on one side rounds to fewer bits than {dtype} "
                f"has: what is behind it is judged in {trial.expected.dtype}"
            )
            alignment = align(trial.expected.dtype)
            difference = alignment.first_difference() or alignment.first_gradient()
        result.first_difference = difference
        result.errors = errors_of(alignment)
        actual, expected = ({call.name: call.kind for call in answer.calls} for answer in recorded)
        result.kinds = {name: (expected[name], actual[other]) for name, (other, _) in result.errors.items()}
        if alignment.unpaired:
            result.notes.append(f"sublayers without a partner: {', '.join(alignment.unpaired[:MOST_NAMES])}")
        if difference is not None:
            mistakes, errors = explain(difference, trial.actual, trial.expected, result.pairing)
            result.looks_like, result.has_mistakes = mistakes + errors, bool(mistakes)
            arrays = difference.actual_array.array, difference.expected_array.array
            result.pictures = {"actual": np.array(arrays[0]), "expected": np.array(arrays[1])}
        elif not rounds and (gradient := _first_parameter(trial)):
            result.notes.append(gradient)


def _is_rounding(trial: Trial, difference: Difference, folders: Sequence[Path]) -> bool:
    """Whether a difference is drawn anew if inputs and parameters are nudged alike on both sides."""
    one, other = difference.actual_array, difference.expected_array
    if difference.kind == "gradient" or one.size != other.size:
        return False
    before = one.array.reshape(other.shape) - other.array
    with trial.nudged_alike(Nudge(0, SIZES["float64"])) as inputs:
        calls = [
            trial.run_side(side, given, dtype="float64", recorder=Recorder(folder)).calls
            for side, given, folder in zip((trial.actual, trial.expected), inputs, folders, strict=True)
        ]
    moved = [
        next(
            seen
            for call in every
            if (call.path, call.number) == (known.path, known.number)
            for seen in (call.outputs if difference.kind == "output" else call.inputs)
            if seen.name == array.name
        )
        for every, known, array in zip(calls, (difference.actual, difference.expected), (one, other), strict=True)
    ]
    return changes_by(before, moved[0].array.reshape(other.shape) - moved[1].array) > PERSISTENT


def _first_parameter(trial: Trial) -> str:
    """A sentence on the parameter whose gradient differs, if no recorded array does."""
    names = [one.quantity.removeprefix("gradient.parameter.") for one in trial.result.red if "gradient" in one.quantity]
    return f"no recorded array differs; gradients that do: {', '.join(names[:MOST_NAMES])}" if names else ""


def _changes(trial: Trial, calls: Sequence[Call], dtype: str, cotangents: Arrays, folder: Path) -> dict[str, float]:
    """How far nudges of one eps move each recorded array of the expected side, by its file."""
    largest: dict[str, float] = {}
    files = {(call.path, call.number, kind, seen.name): seen.file for call in calls for kind, seen in _arrays_of(call)}
    factors = trial.with_gradients(trial.expected, cotangents)
    for turn in range(2):
        nudge = Nudge(turn, SIZES[dtype])
        with nudged_arrays(trial.expected, nudge):
            recorder = Recorder(folder, calls)
            nudged = nudge.all(dict(trial.inputs))
            answer = trial.run_side(trial.expected, nudged, dtype=dtype, recorder=recorder, **factors)
        for call in answer.calls:
            for kind, seen in _arrays_of(call):
                file = files.get((call.path, call.number, kind, seen.name), "")
                if np.isfinite(seen.change):
                    largest[file] = max(largest.get(file, 0.0), seen.change / SIZES[dtype])
    return largest


def _note_recording(trial: Trial, side: Side, recorded: Answer, plain: Answer) -> None:
    """Note what recording changed, and what it could not see."""
    others = [name for name, array in recorded.outputs.items() if not _close(array, plain.outputs.get(name))]
    if others:
        trial.result.notes.append(f"recording changes an answer of {side.label}: {', '.join(others)}")
    if recorded.unseen:
        reasons: dict[str, list[str]] = {}
        for name, _, reason in (text.partition(" (") for text in recorded.unseen):
            reasons.setdefault(reason.removesuffix(")"), []).append(name)
        words = (f"{', '.join(names[:MOST_NAMES])} ({reason})" for reason, names in reasons.items())
        trial.result.notes.append(f"not seen in {side.label}: {'; '.join(words)}")


def _arrays_of(call: Call) -> Iterator[tuple[str, Seen]]:
    for kind, every in (("in", call.inputs), ("out", call.outputs), ("gradient", tuple(call.gradients.values()))):
        for seen in every:
            yield kind, seen


def _close(one: np.ndarray, other: np.ndarray | None) -> bool:
    """Whether two answers are the same up to rounding."""
    if other is None:
        return False
    dtype = "float64" if one.dtype == np.float64 else "float32"
    scale = float(np.abs(np.nan_to_num(other.astype(np.float64))).max(initial=0.0)) or 1.0
    return distance(one, other) <= 1e3 * epsilon(dtype) * scale
