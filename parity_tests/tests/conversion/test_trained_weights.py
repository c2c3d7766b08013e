"""Trained weights are validated where their layer is not saturated: right conversions are green, wrong ones red."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from attention_core.operators import find
from backends import FRAMEWORKS, weights
from parity_tests.cases.trained_layers import LAYERS, trained_cases
from parity_tests.conversion.validation import expected_answers, validation_cases
from parity_tests.format.case import FULL, Arrays, Case
from parity_tests.format.selection import cells_of
from parity_tests.judge.run import Run
from parity_tests.tests.conversion.conversions import drawn, failures, job, of, validated
from parity_tests.workers.process import Server

UNSEEN = {"transformer": {"activation": "relu", "epsilon": 1e-5}}
"""The arguments that the shapes of the arrays do not tell."""
CALLS = {name: next(iter(trained_cases(name))) for name in LAYERS}
CASES = {name: replace(case, config={**case.config, **UNSEEN.get(name, {})}) for name, case in CALLS.items()}
ATTENTION = {
    "additive": "W_q",
    "translator": "decoder.attention.W_q",
    "transformer": "decoder.layers.1.cross_attention.W_q",
}
"""A matrix of each layer."""
SOURCES = [of("torch.nn.Transformer"), *(of(f"attention_parity.{name}") for name in FRAMEWORKS)]


def wide(case: Case) -> Arrays:
    return {name: array.astype(np.float64) for name, array in case.parameters.items()}


def validated_with(matrix: np.ndarray, name: str, source: str, server: Server) -> Run:
    """The verdicts on the source's layer with the trained weights, and a matrix of its attention."""
    case, right = CASES[name], wide(CASES[name])
    written = weights.from_canonical(case.operator, {**right, ATTENTION[name]: matrix}, source, **case.config)
    return validated(source, written, case.operator, dict(case.config), right, server)


@pytest.mark.parametrize("source", SOURCES)
def test_right_weights_are_green_and_wrong_ones_red(source: str):
    layer = weights.SOURCES[source].layer
    with Server(job(source)) as server:
        for name, case in CASES.items():
            if layer in ("", case.operator):
                matrix = wide(case)[ATTENTION[name]]
                run = validated_with(matrix, name, source, server)
                assert not run.red and {one.status for one in run.verdicts} == {"pass"}, f"{name}\n{failures(run)}"
                wrong = matrix.T if matrix.shape[0] == matrix.shape[1] else 1.001 * matrix
                assert validated_with(wrong, name, source, server).red, name


def validated_inputs(case: Case, parameters: Arrays) -> Arrays:
    return validation_cases(find(case.operator), case.config, parameters)[0].inputs


def test_inputs_do_not_saturate_trained_weights():
    case = CASES["additive"]
    for cell in cells_of(validation_cases(find(case.operator), case.config, wide(case)), FULL):
        gradients = {name: array for name, array in expected_answers(cell).items() if name.startswith("gradient_")}
        assert all(np.abs(array).max() > 1e-5 for array in gradients.values()), gradients


def test_inputs_of_other_weights_are_bounded_by_1():
    case = CASES["additive"]
    inputs = validated_inputs(case, drawn(case.operator, dict(case.config)))
    assert all(0.9 < np.abs(array).max() < 1.0 for array in inputs.values())
