"""Compare two models: the same arrays in, and outputs, gradients, state and training out, down to rounding."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, get_args

import numpy as np

from parity_tests.format.case import epsilon
from parity_tests.judge.compare import compare
from parity_tests.judge.nudges import Nudge
from parity_tests.judge.pair import Quantity
from parity_tests.judge.tolerances import MOST
from parity_tests.judge.verdict import Verdict
from parity_tests.models.calls import Answer, Arrays
from parity_tests.models.inputs import constants_of, read_inputs
from parity_tests.models.names import read_names
from parity_tests.models.precision import MOVES, PERSISTENT, SIZES, TOLERANCE, Spreads, changes_by, quantities
from parity_tests.models.result import Result, Weights
from parity_tests.models.search import find_difference, find_indeterminate
from parity_tests.models.sides import Side, SideError, open_side
from parity_tests.models.text import as_markdown, as_text
from parity_tests.models.trial import SideFailure, Trial
from parity_tests.workers.package import same

CONSTANT = 0.25
"""The error that a constant rounded to float32 may make, in eps of float32: measured 0.004 for the tanh form of GELU in
TensorFlow, and 2e-6 for the epsilon of LayerNorm in MXNet."""

RATE = 1e-2
"""The learning rate of the steps of gradient descent."""


class Comparison(Result):
    """The outcome for two models: printed as text, and written as a page."""

    def __str__(self) -> str:
        return as_text(self)

    @property
    def page(self) -> str:
        """The comparison as one HTML page."""
        from parity_tests.models.page import page  # jinja2, which it needs, is an extra

        return page(self)

    @property
    def markdown(self) -> str:
        """The comparison for the page of a CI job."""
        return as_markdown(self)

    def html(self, path: str | Path) -> None:
        """Write the page."""
        Path(path).write_text(self.page, encoding="utf-8")


def compare_models(
    actual: Any,
    expected: Any,
    *,
    inputs: Any,
    names: Any = None,
    weights: Weights = "stored",
    gradients: bool = True,
    train_steps: int = 0,
    seed: int = 0,
) -> Comparison:
    """Compare two models or functions, of one framework or of two.

    In float64, where both compute in it, the two must be the same function: errors are at most what rounding does to
    these inputs and parameters. In the dtype that each was made in, errors are those of rounding in it. If anything is
    red, both are run again with their sublayers recorded, and the first one that differs is found.

    Args:
        actual, expected: a function, a torch.nn.Module, a Keras layer or model, an nnx.Module, (a Linen module, its
            variables), a Gluon block, or the path of an .onnx file or of arrays kept from an earlier run (.npz); none
            of them is changed
        inputs: arrays by name, the path of an .npz file, or a text that declares them: "tokens: int (2, 7) < 100"
        names (default None): the names file (TOML), or a mapping with its parts: which input, output, parameter and
            sublayer of the actual side is which of the expected one
        weights (default "stored"): "stored", each side with its own arrays; "copied", the expected side's arrays in
            both; "seeded", arrays drawn anew in both
        gradients (default True): whether gradients are compared, of inputs and parameters, for drawn cotangents
        train_steps (default 0): how many steps of gradient descent are compared
        seed (default 0): that of what is drawn
    Raises:
        SideError: a side, the inputs or the names cannot be used
    Example:
        comparison = compare_models(jax_model, torch_model, inputs={"tokens": tokens}, weights="copied")
        print(comparison)
    """
    if weights not in get_args(Weights):
        raise SideError(f"weights: {weights!r}, expected one of {', '.join(get_args(Weights))}")
    sides = open_side(actual), open_side(expected)
    given = read_inputs(getattr(sides[1], "inputs", {}) if inputs is None else inputs, seed)
    comparison = Comparison(sides[0].label or "actual", sides[1].label or "expected", weights, seed)
    _Comparing(*sides, given, read_names(names), comparison).run(gradients, train_steps)
    return comparison


def assert_models_agree(
    actual: Any,
    expected: Any,
    *,
    inputs: Any,
    names: Any = None,
    weights: Weights = "stored",
    gradients: bool = True,
    train_steps: int = 0,
    seed: int = 0,
) -> Comparison:
    """Assert that two models agree, as `compare_models` compares them, and return the comparison.

    Raises:
        AssertionError: they do not, or it is undecided; the message has the first difference
        SideError: a side, the inputs or the names cannot be used
    Example:
        assert_models_agree(new, old, inputs="tokens: int (2, 7) < 100", weights="copied")
    """
    comparison = compare_models(
        actual,
        expected,
        inputs=inputs,
        names=names,
        weights=weights,
        gradients=gradients,
        train_steps=train_steps,
        seed=seed,
    )
    if not comparison.agree:
        raise AssertionError(f"\n{comparison}")
    return comparison


class _Comparing(Trial):
    """One comparison of two open sides."""

    # ------------------------------------------------------------------------------------ the run

    def run(self, gradients: bool, train_steps: int) -> None:
        """Compare outputs, then gradients, rounding, training mode and training; find the first difference if red."""
        try:
            self.compare(gradients, train_steps)
        except SideFailure as failure:
            self.add("*", failure.status, str(failure))
        self.result.notes = list(dict.fromkeys((*self.result.notes, *constants_of(self.inputs))))

    def compare(self, gradients: bool, train_steps: int) -> None:
        """All parts of `run`. Raises: SideFailure."""
        self.place_weights()
        result = self.result
        exact = self.exact_dtype
        result.decided_in = exact
        before = self.run_side(self.expected, dtype=exact), self.run_side(self.actual, dtype=exact)
        self.pair_outputs(*before)
        self.check_determinism(*before, exact)
        cotangents = self.cotangents(before[1].outputs) if gradients else {}
        kept = list(result.verdicts)
        spreads = self.compare_in(exact, cotangents)
        if result.red and (self.rounded_inside(exact, cotangents) or self.has_rounded_constant(exact, cotangents)):
            result.verdicts = kept
            spreads = self.compare_in(exact, cotangents, result.decided_in)
        if not result.red:
            for dtype in dict.fromkeys((self.expected.dtype, self.actual.dtype)):
                if dtype != exact:
                    self.compare_rounding(dtype, cotangents, spreads)
        if self.expected.state and self.actual.state and not result.red:
            self.compare_in(exact, {}, result.decided_in, training=True)
        elif self.expected.state or self.actual.state:
            result.notes.append("one side alone has state: training mode was not compared")
        if train_steps and not result.red:
            self.compare_training(train_steps, exact, cotangents)
        if result.red and (self.expected.is_fixed or self.actual.is_fixed):
            result.notes.append("one side is a file of outputs: the sublayers cannot be compared")
        elif result.red:
            find_difference(self, exact, cotangents)

    @property
    def exact_dtype(self) -> str:
        """float64 if both compute in it, else the dtype of the side that does not."""
        for side in (self.expected, self.actual):
            if "float64" not in side.dtypes:
                self.result.notes.append(f"{side.label} does not compute in float64: {side.dtype} decided")
                return side.dtype
        return "float64"

    def check_determinism(self, expected: Answer, actual: Answer, dtype: str) -> None:
        """Run each side again: what differs is drawn anew in each call, and cannot be compared."""
        for side, before in ((self.expected, expected), (self.actual, actual)):
            after = quantities(self.run_side(side, dtype=dtype))
            known = quantities(before)
            first = next((name for name in known if name not in after or not same(known[name], after[name])), None)
            if first is not None:
                place = find_indeterminate(self, side, dtype)
                self.add(
                    first, "fail", f"{side.label} answers the same inputs differently: {place} is not deterministic"
                )

    # ------------------------------------------------------------------------------------ verdicts

    def compare_in(self, dtype: str, cotangents: Arrays, judged: str = "", training: bool = False) -> Spreads:
        """Compare both sides computed in one dtype; judged is another one that errors are measured in.

        Returns the spreads of the expected side, with its answer.
        """
        expected, actual = (
            partial(self.run_side, side, dtype=dtype, training=training, **self.with_gradients(side, cotangents))
            for side in (self.expected, self.actual)
        )
        spreads = Spreads(self.expected, self.inputs, dtype, expected)
        answer = actual()
        for label, one in ((self.result.expected, spreads.answer), (self.result.actual, answer)):
            if cotangents and not one.gradients:
                self.result.notes.append(f"gradients were not compared: {label} has none")
        given = self.in_names_of_expected(answer, spreads.answer)
        case = "training" if training else "evaluation"
        self.result.verdicts += self.judge(given, spreads, judged or dtype, case, self.result.actual)
        return spreads

    def judge(self, given: Arrays, spreads: Spreads, dtype: str, case: str, label: str) -> Iterator[Verdict]:
        """Yield a verdict on each quantity of the expected side; the largest gradient scales the errors of others."""
        expected = spreads.answer
        largest: dict[str, np.ndarray] = {}
        for name, array in expected.gradients.items():
            kind = name.partition(".")[0]
            largest[kind] = np.maximum(largest.get(kind, np.zeros(())), np.abs(array).max(initial=0.0))
        for name, array in quantities(expected).items():
            if name in given:
                beside = largest.get(name.split(".")[1]) if name.startswith("gradient.") else None
                verdict = self.verdict(name, given[name], array, dtype, spreads, case, beside)
                yield replace(verdict, backend=label)
            elif name.removeprefix("output.") in self.outputs.values():
                reason = f"{label} returned it before, and does not here"
                yield replace(self.blank(dtype, case), backend=label, quantity=name, reason=reason)

    def verdict(
        self,
        name: str,
        actual: np.ndarray,
        expected: np.ndarray,
        dtype: str,
        spreads: Spreads,
        case: str,
        beside: np.ndarray | None = None,
    ) -> Verdict:
        reference = expected.astype(np.float64) if expected.dtype.kind in "fV" else expected
        stored = (dtype, actual.dtype.name) if expected.dtype.kind in "fV" else (expected.dtype.name, actual.dtype.name)
        if expected.dtype.kind in "iub" and actual.dtype.kind in "iub":
            actual = actual.astype(expected.dtype)
        quantity = Quantity(name, dtype, reference, TOLERANCE, None, beside, stored, partial(spreads.of, name))
        verdict = compare(self.blank(dtype, case), quantity, actual, expected)
        if verdict.check == "exact" and spreads.flips(name, dtype):
            return replace(verdict, status="undecided", reason=f"rounding alone changes it: {verdict.reason}")
        moves = float(quantity.condition.max(initial=0.0)) if verdict.check in ("value", "zero") else 0.0
        if moves > MOST[dtype]:
            words = f"chaotic: a nudge of one eps moves it by {moves:.3g} eps; {verdict.reason}"
            return replace(verdict, status="undecided", condition=moves, reason=words)
        return verdict

    def compare_rounding(self, dtype: str, cotangents: Arrays, spreads: Spreads) -> None:
        """Compare each side that was made in a dtype with what the expected one gives in float64."""
        for side in (self.actual, self.expected):
            if side.dtype == dtype:
                answer = self.run_side(side, dtype=dtype, **self.with_gradients(side, cotangents))
                is_same = side is self.expected
                given = quantities(answer) if is_same else self.in_names_of_expected(answer, spreads.answer)
                self.result.verdicts += self.judge(given, spreads, dtype, f"evaluation in {dtype}", side.label)

    def compare_training(self, steps: int, dtype: str, cotangents: Arrays) -> None:
        """Take steps of gradient descent on both sides, and compare losses and parameters."""
        if not cotangents:
            self.result.notes.append("no training was compared: no output has a gradient")
            return
        run = partial(self.train, self.expected, steps, dtype, cotangents)
        actual = self.train(self.actual, steps, dtype, cotangents, self.actual_inputs)
        spreads = Spreads(self.expected, self.inputs, dtype, run)
        expected = spreads.answer
        given = {f"output.{name}": array for name, array in actual.outputs.items() if name.startswith("loss")}
        for pair in self.result.pairing.pairs:
            given |= {f"output.{name}": array for name, array in pair.to_expected(actual.outputs).items()}
        for name, array in quantities(expected).items():
            if name in given:
                verdict = self.verdict(
                    name, given[name], array, self.result.decided_in, spreads, f"{steps} steps of training"
                )
                self.result.verdicts.append(replace(verdict, quantity=name.replace("output.", "trained.")))

    def train(self, side: Side, steps: int, dtype: str, cotangents: Arrays, inputs: Mapping[str, np.ndarray]) -> Answer:
        """Losses and final parameters of a few steps of gradient descent on the products with the cotangents."""
        before = side.arrays
        factors = self.with_gradients(side, cotangents)
        losses: Arrays = {}
        # A parameter that is a multiple of the expected one takes the same step if its rate is the square's.
        scaled = {name: pair.scale for pair in self.result.pairing.pairs for name in pair.actual}
        rates = {} if side is self.expected else {name: RATE * scale**2 for name, scale in scaled.items()}
        try:
            for step in range(steps):
                answer = self.run_side(side, inputs, dtype=dtype, training=True, **factors)
                sums = (np.sum(factors["cotangents"][name] * answer.outputs[name]) for name in factors["cotangents"])
                losses[f"loss.{step + 1}"] = np.asarray(sum(sums))
                moved = {name: answer.gradients.get(f"parameter.{name}", 0.0) for name in side.parameters}
                side.arrays = {
                    **side.arrays,
                    **{name: side.arrays[name] - rates.get(name, RATE) * gradient for name, gradient in moved.items()},
                    **answer.state,
                }
            return Answer({**losses, **{name: side.arrays[name] for name in (*side.parameters, *side.state)}})
        finally:
            side.arrays = before

    # ------------------------------------------------------------------------------------ inside

    def rounded_inside(self, dtype: str, cotangents: Arrays) -> bool:
        """Whether what is red in float64 is rounding to the sides' own dtype inside; a note says where.

        Inputs and parameters are nudged alike on both sides: then rounding is drawn anew, and a difference stays.
        """
        if not self.may_round_inside(dtype):
            return False
        red = {verdict.quantity for verdict in self.result.red}
        before = self.distances(dtype, cotangents)
        moved = dict.fromkeys(red & {*before}, 0.0)
        for turn in range(MOVES):
            with self.nudged_alike(Nudge(turn, SIZES[dtype])) as inputs:
                after = self.distances(dtype, cotangents, inputs)
            moved = {name: max(most, changes_by(before[name], after[name])) for name, most in moved.items()}
        if not moved or min(moved.values()) < PERSISTENT:
            return False
        find_difference(self, dtype, cotangents)
        self.decide_in(self.expected.dtype)
        return True

    def has_rounded_constant(self, dtype: str, cotangents: Arrays) -> bool:
        """Whether all that is red in float64 is no more than a constant that is rounded to float32 may make.

        Frameworks round constants to float32 whatever the dtype, such as TensorFlow that of the tanh form of GELU. It
        is not so if the first difference looks like a known mistake. A note has its place and size.
        """
        result = self.result
        if not self.may_round_inside(dtype) or self.actual.dtype == dtype:
            return False
        if any(one.check != "value" for one in result.red):
            return False
        largest = max(one.error or 0.0 for one in result.red) * epsilon(dtype)
        if largest > CONSTANT * epsilon("float32"):
            return False
        find_difference(self, dtype, cotangents)
        if result.has_mistakes or result.first_difference is None:
            return False
        result.notes.append(
            f"in float64 the sides differ by {largest:.1g}, as by a constant that is rounded to float32: "
            f"{result.first_difference.sentence}"
        )
        self.decide_in("float32")
        return True

    def may_round_inside(self, dtype: str) -> bool:
        """Whether both sides compute in float64 here, and parts of the expected one may have the dtype of before."""
        fixed = self.expected.is_fixed or self.actual.is_fixed
        return dtype == "float64" and self.expected.dtype != dtype and not fixed

    def decide_in(self, dtype: str) -> None:
        """Let this dtype decide, and forget the difference that was found in float64."""
        self.result.first_difference, self.result.looks_like, self.result.errors = None, [], {}
        self.result.decided_in = dtype
