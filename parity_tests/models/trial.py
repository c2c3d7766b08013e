"""Two open sides with the same inputs and weights: what is run, and whose names an answer has."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import numpy as np

from attention_core import draws
from parity_tests.judge.nudges import Nudge
from parity_tests.judge.verdict import RED, Status, Verdict
from parity_tests.models.calls import Answer, Arrays
from parity_tests.models.names import Names
from parity_tests.models.parameters import Pairing, pair_parameters
from parity_tests.models.precision import quantities
from parity_tests.models.result import Result
from parity_tests.models.sides import RemoteError, Side, SideError
from parity_tests.workers.answers import harmless
from parity_tests.workers.process import WorkerFault

MOST_WORDS = 500
"""The characters that are kept of what a model raises."""


class SideFailure(Exception):
    """A model raised, hung or died."""

    def __init__(self, message: str, status: Status) -> None:
        super().__init__(message)
        self.status = status


class Trial:
    """Two sides, and the comparison that their answers lead to."""

    def __init__(self, actual: Side, expected: Side, inputs: Arrays, names: Names, result: Result) -> None:
        self.actual, self.expected, self.names, self.result = actual, expected, names, result
        names.check(inputs)
        self.inputs, self.actual_inputs = inputs, names.actual_inputs(inputs)
        self.result.inputs = {name: f"{array.dtype} {array.shape}" for name, array in inputs.items()}
        self.outputs: dict[str, str] = {}
        """The outputs of the actual side, and their names on the expected one."""

    def run_side(self, side: Side, inputs: Mapping[str, np.ndarray] | None = None, **keywords: Any) -> Answer:
        """The answer of a side, to its own inputs if there are no others.

        Raises: SideFailure if the model raises, hangs or dies; SideError.
        """
        if inputs is None:
            inputs = self.inputs if side is self.expected else self.actual_inputs
        try:
            return side.run(inputs, **keywords)
        except SideError:
            raise
        except Exception as error:  # whatever a model raises
            kind = "" if isinstance(error, (RemoteError, WorkerFault)) else f"{type(error).__name__}: "
            status: Status = "error"
            if isinstance(error, WorkerFault) and error.status in RED:
                status = error.status
            raise SideFailure(f"{side.label}: {kind}{harmless(str(error), MOST_WORDS)}", status) from error

    def blank(self, dtype: str, case: str) -> Verdict:
        """A verdict to be filled in."""
        return Verdict("model", case, self.result.actual, self.result.expected, "cpu", dtype, "*", "missing")

    def place_weights(self) -> None:
        """Pair the arrays of both sides, and copy or draw them if that is asked for."""
        for side in (self.actual, self.expected):
            if not side.parameters:  # a layer that is built by its first call
                self.run_side(side, dtype=side.dtype)
        result, stored = self.result, dict(self.expected.arrays)
        result.pairing = pairing = pair_parameters(
            self.actual, self.expected, self.names, by_values=result.weights == "stored"
        )
        result.notes += pairing.notes
        if result.weights == "seeded":
            self.expected.arrays = {name: self._draw(name, array) for name, array in stored.items()}
        if result.weights != "stored":
            self.actual.arrays = {**self.actual.arrays, **pairing.copy(self.expected.arrays)}
            if left := pairing.only_actual + pairing.only_expected:
                result.notes.append(f"without a partner, and not copied: {', '.join(left)}")
        elif pairing.has_guesses:
            guessed = ", ".join(pairing.guesses)
            result.notes.append(f"paired by shape or order, which is a guess: {guessed}")

    def _draw(self, name: str, array: np.ndarray) -> np.ndarray:
        """An array drawn around the mean of the stored one, as wide as it, and not narrower than 1/√n."""
        if array.dtype.kind != "f" or name in self.expected.state:
            return array
        bound = max(float(array.std()) * 3.0**0.5, 0.3 / max(array.shape[-1:] or (1,)) ** 0.5)
        center = 1.0 if array.ndim == 1 and abs(float(array.mean()) - 1.0) < 0.5 else 0.0
        return center + draws.uniform(f"parameter.{name}", array.shape, bound, self.result.seed)

    def pair_outputs(self, expected: Answer, actual: Answer) -> None:
        """Name the outputs of the actual side as the expected one does: by the names file, by name, or in order."""
        listed = {name: self.names.expected_output(name, array)[0] for name, array in actual.outputs.items()}
        known = {name: other for name, other in listed.items() if other in expected.outputs}
        if not known and len(listed) == len(expected.outputs):
            known = dict(zip(listed, expected.outputs, strict=True))
        self.outputs = known
        for side, answer in ((self.expected, expected), (self.actual, actual)):
            if answer.changed:
                self.add(f"input.{answer.changed[0]}", "fail", f"{side.label} changes its input {answer.changed[0]}")
            if answer.unread:
                self.result.notes.append(f"outputs of {side.label} that hold no arrays: {', '.join(answer.unread)}")
        missing = [name for name in expected.outputs if name not in known.values()]
        extra = [name for name in actual.outputs if name not in known]
        if not known or (missing and extra):
            self.add(
                "outputs",
                "missing",
                f"{self.actual.label} returns {', '.join(actual.outputs) or 'nothing'}, {self.expected.label} returns "
                f"{', '.join(expected.outputs) or 'nothing'}: pair them in the names file, under [outputs]",
            )
        elif missing or extra:
            self.result.notes.append(f"outputs of one side alone: {', '.join(missing + extra)}")

    def add(self, quantity: str, status: Status, reason: str) -> None:
        """Add a verdict on what could not be compared."""
        blank = self.blank(self.result.decided_in, "evaluation")
        self.result.verdicts.append(replace(blank, quantity=quantity, status=status, reason=reason))

    def cotangents(self, outputs: Arrays) -> Arrays:
        """Drawn factors for the floating outputs that both sides have, by their names on the expected side."""
        return {
            other: draws.uniform(
                f"cotangent.{other}", self.in_expected(name, outputs[name]).shape, 1.0, self.result.seed
            )
            for name, other in self.outputs.items()
            if outputs[name].dtype.kind in "fV"
        }

    def in_expected(self, name: str, array: np.ndarray) -> np.ndarray:
        """An output of the actual side, arranged as on the expected one."""
        return self.names.expected_output(name, array)[1]

    def with_gradients(self, side: Side, cotangents: Arrays) -> dict[str, Any]:
        """The keywords of a run with these cotangents, as the side has its outputs."""
        if not cotangents:
            return {}
        if side is self.expected:
            return {"cotangents": cotangents}
        given = {name: other for name, other in self.outputs.items() if other in cotangents}
        return {
            "cotangents": {name: self.names.actual_output(name, cotangents[other]) for name, other in given.items()}
        }

    def in_names_of_expected(self, actual: Answer, expected: Answer) -> Arrays:
        """The quantities of the actual side under the names, and in the arrangement, of the expected one."""
        found: Arrays = {}
        for name, other in self.outputs.items():
            if name in actual.outputs:  # which another mode, or other values, may leave out
                found[f"output.{other}"] = self.in_expected(name, actual.outputs[name])
        for name, array in actual.gradients.items():
            if name.startswith("input."):
                other, arranged = self.names.expected_gradient(name.removeprefix("input."), array)
                found[f"gradient.input.{other}"] = arranged
        of_parameters = {name.removeprefix("parameter."): array for name, array in actual.gradients.items()}
        for pair in self.result.pairing.pairs:
            gradients = pair.gradients_to_expected(of_parameters)
            found |= {f"gradient.parameter.{name}": array for name, array in gradients.items()}
            found |= {f"state.{name}": array for name, array in pair.to_expected(actual.state).items()}
        return found

    @contextmanager
    def nudged_alike(self, nudge: Nudge) -> Iterator[tuple[Arrays, Arrays]]:
        """Nudge the paired arrays of both sides by the same, and yield nudged inputs of both."""
        before = self.actual.arrays, self.expected.arrays
        inputs = nudge.all(dict(self.inputs))
        self.expected.arrays = nudge.all(self.expected.arrays)
        change = {
            name: array - before[1][name] for name, array in self.expected.arrays.items() if array.dtype.kind == "f"
        }
        pairs = Pairing([pair for pair in self.result.pairing.pairs if {*pair.expected} <= {*change}])
        self.actual.arrays = {
            **before[0],
            **{name: before[0][name] + array for name, array in pairs.copy(change).items()},
        }
        try:
            yield self.names.actual_inputs(inputs), inputs
        finally:
            self.actual.arrays, self.expected.arrays = before

    def distances(
        self, dtype: str, cotangents: Arrays, inputs: tuple[Arrays, Arrays] | None = None
    ) -> dict[str, np.ndarray]:
        """The distance of both sides in each floating quantity."""
        actual, expected = (
            self.run_side(side, given, dtype=dtype, **self.with_gradients(side, cotangents))
            for side, given in zip((self.actual, self.expected), inputs or (None, None), strict=True)
        )
        given = self.in_names_of_expected(actual, expected)
        return {
            name: given[name].astype(np.float64) - array.astype(np.float64)
            for name, array in quantities(expected).items()
            if name in given and given[name].shape == array.shape and array.dtype.kind in "fV"
        }
