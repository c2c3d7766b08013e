"""Validation of converted weights: compare the source's layer and the converted layer on the same inputs.

Three sides run the same cases: the reference and the converted layer with the canonical arrays, and the source's layer
in its framework with the arrays of the file. They are compared pairwise.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np

from attention_core import draws
from attention_core.specification import Layer
from backends.archives import pack_arrays, unpack_arrays
from parity_tests.format.case import FULL, SEED, Arrays, Case, drawn_tensor, is_floating
from parity_tests.format.drawn import IDS
from parity_tests.format.expected import computed_gradients, computed_outputs, cotangents, in_memory, outputs
from parity_tests.format.selection import Cell, cells_of
from parity_tests.judge.compare import excuse_missing
from parity_tests.judge.question import Questions
from parity_tests.judge.run import Run, conclude, missing_verdict
from parity_tests.workers.process import Job, Progress, record, untold
from parity_tests.workers.recordings import Batch, Recording, batch_of

SIZES = {"batch": 2, "steps": 3, "queries": 3, "keys": 5, "features": 6, "value_features": 4}
"""The sizes of input axes that no parameter determines."""
BOUNDS = tuple(2.0**-halvings for halvings in range(10))
"""The bounds that floating inputs may have."""
NOISE = 2.0**-10
"""By which part of its bound an input moves, to see whether the outputs still depend on it."""
TINY = float(np.finfo(float).tiny)
MOST_ENTRIES = 32
"""The number of compared entries of an input's gradient: the reference computes one at a time."""

JUDGED = ("pass", "fail")

Recorder = Callable[[Job, Iterable[Batch], Progress], Recording]
"""Runs the cells of batches in a job."""


@dataclass(frozen=True)
class Side:
    """A job, its parameters under its own names, and the framework whose determinism settings are required."""

    job: Job
    parameters: Arrays
    framework: str = ""


# ------------------------------------------------------------------------------------------------ cases


def validation_cases(layer: Layer, config: Mapping[str, Any], parameters: Arrays) -> list[Case]:
    """Cases of the layer's call with drawn inputs: full-length and ragged sequences."""
    sizes = {**SIZES, **layer.sizes(config)}
    call = layer.method("call")
    inputs: Arrays = {}
    for tensor in call.inputs:
        stated = tensor.name == "state" and sizes.get("initial", "encoder") == "encoder"
        if tensor.kind == "floating" and (not tensor.optional or stated):
            inputs[tensor.name] = drawn_tensor(tensor, sizes, "validation")
        elif tensor.kind == "integer" and not tensor.optional:
            shape = tuple(sizes[axis] for axis in tensor.axes)
            inputs[tensor.name] = draws.integers(f"validation/{tensor.name}", shape, sizes[IDS[tensor.name]], SEED)
    # The weights of every head distinguish more than their mean.
    options = {option.name: True for option in call.options if option.name == "per_head"}
    made = partial(Case, layer.name, options=options, method="call", config=dict(config), parameters=parameters)
    whole = made(name="converted", shows="Full-length sequences.", inputs=inputs)
    inputs = with_bound(inputs, bound_of(whole))
    whole = replace(whole, inputs=inputs)
    if not any(tensor.name == "valid_lens" for tensor in call.inputs):
        return [whole]
    lens = np.array([sizes["keys" if any("keys" in tensor.axes for tensor in call.inputs) else "steps"], 2], np.int32)
    return [whole, made(name="converted_ragged", shows="Ragged sequences.", inputs={**inputs, "valid_lens": lens})]


def with_bound(inputs: Arrays, bound: float) -> Arrays:
    """The inputs with floating numbers from -bound to bound, in place of -1 to 1."""
    return {name: bound * array if is_floating(array) else array for name, array in inputs.items()}


def bound_of(case: Case) -> float:
    """The largest of BOUNDS at which each floating input moves the outputs at least half as far as it can.

    Trained weights have inputs of some range; beyond it a tanh or a softmax saturates, and gradients are mere rounding.
    """
    if not any(map(is_floating, case.inputs.values())):
        return 1.0
    effects = np.array([effects_of(case, bound) for bound in BOUNDS])
    least = (effects / np.maximum(effects.max(axis=0), TINY)).min(axis=1)
    return BOUNDS[int(np.argmax(least >= 0.5 * least.max()))]


def effects_of(case: Case, bound: float) -> list[float]:
    """How far noise in each floating input moves an output, beside the largest entry of the output."""
    inputs = with_bound(case.inputs, bound)
    before, effects = computed_outputs(case, inputs, case.parameters), []
    for name, array in inputs.items():
        if is_floating(array):
            noise = draws.uniform(f"validation/{name}/noise", array.shape, NOISE * bound, SEED)
            after = computed_outputs(case, {**inputs, name: array + noise}, case.parameters)
            sizes = {one: max(np.abs(output).max(), TINY) for one, output in before.items()}
            effects.append(max(np.abs(after[one] - before[one]).max() / size for one, size in sizes.items()))
    return effects


def chosen_entries(name: str, array: np.ndarray) -> np.ndarray:
    """The compared entries of an input's gradient: all, or MOST_ENTRIES drawn ones."""
    if array.size <= MOST_ENTRIES:
        return np.arange(array.size)
    noise = draws.uniform(f"validation/{name}/entries", (array.size,), seed=SEED)
    return np.argsort(noise, kind="stable")[:MOST_ENTRIES]


def entries_of(case: Case) -> Arrays:
    """The compared entries of the gradient of each floating input."""
    return {name: chosen_entries(name, array) for name, array in case.inputs.items() if is_floating(array)}


def expected_answers(cell: Cell) -> Arrays:
    """The reference's outputs, and its gradients with respect to the chosen entries of each floating input."""
    case, dtype = cell
    inputs, parameters = case.at(dtype)
    factors = cotangents(case, dtype)
    gradients = computed_gradients(case, inputs, parameters, factors, entries=entries_of(case))
    return {**outputs(case, dtype), **{f"gradient_{name}": array for name, array in gradients.items()}}


def sample(recording: Recording, cells: Sequence[Cell]) -> Recording:
    """The recording restricted to the chosen entries of input gradients, without parameter gradients.

    The sides have different parameters, which are compared through their effect on the input gradients.
    """
    answers: dict[str, Arrays] = {}
    for cell in cells:
        inputs = cell.case.inputs
        answers[cell.key] = arrays = {}
        for name, array in recording.cells.get(cell.key, {}).items():
            by = name.removeprefix("gradient_")
            if by == name:
                arrays[name] = array
            elif by in inputs:
                whole = array.shape == inputs[by].shape  # else the judge says so
                arrays[name] = array.reshape(-1)[chosen_entries(by, array)] if whole else array
    return replace(recording, cells={name: answers[name] for name in recording.cells})


def with_parameters(batch: Batch, parameters: Arrays) -> Batch:
    """The batch with the parameters of a side."""
    arrays, header = unpack_arrays(batch.packed)
    rest = {name: array for name, array in arrays.items() if name.split("/")[2] != "parameter"}
    sent = {
        f"{cell.key}/parameter/{name}": array.astype(cell.dtype)
        for cell in batch.cells
        for name, array in parameters.items()
    }
    return batch._replace(packed=pack_arrays({**rest, **sent}, header))


# ------------------------------------------------------------------------------------------------ verdicts


def validate(
    layer: Layer,
    config: Mapping[str, Any],
    parameters: Arrays,
    sides: Sequence[Side],
    *,
    progress: Progress = untold,
    recorder: Recorder = record,
) -> Run:
    """Compare every side with the reference with the canonical parameters, and with each other side.

    Parameters are those of the file, cast to float64. Lengths, gradients and dtypes that a side does not support are
    reported, but not compared.
    """
    start = time.perf_counter()
    cells = cells_of(validation_cases(layer, config, parameters), FULL)
    outcome = Run(cells, dtypes=FULL)
    with in_memory():
        batch = batch_of(cells)

        def run(side: Side) -> Recording:
            begun = time.perf_counter()
            recording = sample(recorder(side.job, [with_parameters(batch, side.parameters)], progress), cells)
            recording.environment |= side.job.variables or {}
            outcome.seconds[side.job.name] = time.perf_counter() - begun
            return recording

        with ThreadPoolExecutor(max_workers=max(1, len(sides))) as pool:
            futures = {side.job.name: pool.submit(run, side) for side in sides}
            begun = time.perf_counter()
            answers = {cell.key: expected_answers(cell) for cell in cells}
            outcome.seconds["reference"] = time.perf_counter() - begun
            outcome.recordings = {name: future.result() for name, future in futures.items()}
        frameworks = {side.job.name: side.framework for side in sides}
        questions = Questions(answers, {cell.key: entries_of(cell.case) for cell in cells})
        conclude(outcome, cells, questions, {}, frameworks=frameworks, forgive=excuse_missing, progress=progress)
    outcome.verdicts += [
        missing_verdict(name, "nothing of it could be compared", layer.name)
        for name in outcome.recordings
        if not any(one.name == name and one.quantity != "*" and one.status in JUDGED for one in outcome.verdicts)
        and not any(one.name == name and one.red for one in outcome.verdicts)
    ]
    outcome.seconds["total"] = time.perf_counter() - start
    return outcome
