"""Measurement: agreement, then interleaved rounds, and the median of their ratios."""

from __future__ import annotations

import ctypes
import math
import os
import re
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.problem import LEARNED, Problem

BOUND = 1024.0
"""How far two forms may be from each other, in eps of float32 and of the largest entry of theirs; whole numbers not
at all. What they round differently grows over the steps of a decoder; a wrong formula is off by 1e5 and more.
"""
LEAST_SECONDS = 0.05
"""A round calls each form as often as it takes to fill this time, so that the clock does not count."""


Call = Callable[[], Any]
Clock = Callable[[Call], float]


class Form(ABC):
    """One form of a problem, with parameters and inputs of its own; each call returns once its result is there."""

    to_numpy: Callable[[Any], np.ndarray]

    def __init__(self, problem: Problem, from_numpy: Callable[[np.ndarray], Any]) -> None:
        self.names = problem.item.outputs
        self.inputs = {name: from_numpy(array) for name, array in problem.inputs.items()}
        self.target = self.inputs.pop(problem.item.target)
        self.learned = {name: array for name, array in self.inputs.items() if name in LEARNED}

    @abstractmethod
    def forward(self) -> Any:
        """Run the forward pass, without what a backward would need."""

    @abstractmethod
    def training(self) -> Any:
        """Run a step of training: forward, backward and Adam."""

    @abstractmethod
    def differentiate(self) -> tuple[Any, Mapping[str, Any], Mapping[str, np.ndarray]]:
        """The loss, its gradients by the inputs that have one, and those by the parameters, canonical."""

    def seconds(self, call: Call) -> float:
        """The seconds of a call; without events on the device, each waits for its result."""
        return wall(call)

    def answers(self, gradients: bool) -> dict[str, np.ndarray]:
        """The outputs, and the gradients by canonical names; nothing is changed."""
        outputs = zip(self.names, self.forward(), strict=False)
        arrays = {name: self.to_numpy(output) for name, output in outputs if output is not None}
        if gradients:
            loss, inputs, parameters = self.differentiate()
            arrays["loss"] = self.to_numpy(loss)
            by_input = {name: self.to_numpy(gradient) for name, gradient in inputs.items()}
            arrays |= {f"gradient of {name}": array for name, array in {**by_input, **parameters}.items()}
        return arrays


class TrainingForm(Form):
    """A translator in training, by a function that takes a step, clipping and Adam included: (loss, norm) before it."""

    def __init__(self, step: Callable[[], tuple[Any, Any]], to_numpy: Callable[[Any], np.ndarray]) -> None:
        self.step, self.to_numpy = step, to_numpy

    def forward(self) -> Any:
        """Refuse: what is measured is a step."""
        raise NotImplementedError

    def training(self) -> Any:
        """Take a step, and wait for its numbers."""
        return tuple(map(self.to_numpy, self.step()))

    def differentiate(self) -> Any:
        """Refuse: the gradients stay inside of a step."""
        raise NotImplementedError

    def answers(self, gradients: bool) -> dict[str, np.ndarray]:
        """The loss and the norm of the gradients of a step; after it, each framework's own Adam has its own epsilon."""
        return dict(zip(("loss", "gradients' norm"), self.training(), strict=True))


class SearchForm(Form):
    """A translator that decodes, by a function that gives (sentences,): the tokens, (batch, steps)."""

    def __init__(self, search: Callable[[], tuple[Any]], to_numpy: Callable[[Any], np.ndarray]) -> None:
        self.search, self.to_numpy, self.names = search, to_numpy, ("sentences",)

    def forward(self) -> Any:
        """Decode."""
        return self.search()

    def training(self) -> Any:
        """Refuse: a search has no gradients."""
        raise NotImplementedError

    differentiate = training


def parameter_path(name: str, gru: Mapping[str, str]) -> str:
    """The attribute of a third-party module that holds a canonical parameter; gru has the paths of a layer's."""
    part, _, rest = name.partition(".")
    if part in ("encoder", "decoder"):
        return f"{part}.{parameter_path(rest, gru)}"
    if name.startswith("rnn."):
        _, layer, *backward, parameter = name.split(".")
        return gru[parameter].format(layer + "_reverse" * len(backward))
    return {"dense.W": "dense.weight", "dense.b": "dense.bias"}.get(name, f"{name}.weight")


def to_stored(array: np.ndarray, shape: Sequence[int]) -> np.ndarray:
    """A canonical array in the shape of a third-party parameter.

    A GRU's hidden bias has redundant entries for the other gates, which come first: they are 0.
    """
    flat = np.zeros(math.prod(shape), array.dtype)
    flat[-array.size :] = array.ravel()
    return flat.reshape(shape)


def canonical(array: np.ndarray, shape: Sequence[int]) -> np.ndarray:
    """The canonical array in a third-party parameter, or its gradient."""
    return array.ravel()[-math.prod(shape) :].reshape(shape)


class Disagreement(Exception):
    """Two forms do not compute the same numbers: their times do not compare."""


def agree(ours: Mapping[str, np.ndarray], theirs: Mapping[str, np.ndarray], bound: float = BOUND) -> dict[str, float]:
    """Compare every array that both forms give; return the distances in eps.

    Raises: Disagreement if one is farther than the bound, or a shape differs, or no array was given by both.
    """
    errors = {}
    for name in [name for name in theirs if name in ours]:
        one, other = np.asarray(ours[name]), np.asarray(theirs[name])
        if one.shape != other.shape:
            raise Disagreement(f"{name} has shape {one.shape}, and {other.shape} in the other form")
        errors[name] = _error(one, other)
        if not errors[name] <= bound:
            raise Disagreement(f"{name} is {errors[name]:.3g} eps from the other form, expected at most {bound:g}")
    if not errors:
        raise Disagreement(f"the forms share no array: there are {', '.join(ours)}, and {', '.join(theirs)}")
    return errors


def _error(one: np.ndarray, other: np.ndarray) -> float:
    if not np.issubdtype(other.dtype, np.floating):
        return 0.0 if np.array_equal(one, other) else np.inf
    scale = float(np.max(np.abs(other), initial=0.0)) * float(np.finfo(other.dtype).eps)
    distance = float(np.max(np.abs(one.astype(np.float64) - other), initial=0.0))
    return distance / scale if scale else (0.0 if distance == 0 else np.inf)


def validate(ours: Form, theirs: Form, gradients: bool) -> dict[str, float]:
    """Compare the outputs, and gradients, of two forms; return the distances in eps.

    Raises: Disagreement, as agree does.
    """
    return agree(ours.answers(gradients), theirs.answers(gradients))


def wall(call: Call) -> float:
    """The seconds that a call takes, if it returns once its result is there."""
    start = time.perf_counter()
    call()
    return time.perf_counter() - start


def interleave(ours: Call, theirs: Call, rounds: int, clock: Clock = wall) -> list[tuple[float, float]]:
    """Time both implementations alternately in the same process; returns (ours, theirs) in seconds for each round.

    Each is called once before, to exclude compilation and initial allocation.
    """
    calls, counts = (ours, theirs), []
    for call in calls:
        clock(call)
        counts.append(max(1, int(LEAST_SECONDS / max(clock(call), 1e-9))))
    measured = []
    for _ in range(rounds):
        one, other = (sum(clock(call) for _ in range(n)) / n for call, n in zip(calls, counts, strict=True))
        measured.append((one, other))
    return measured


def ratios(measured: Iterable[tuple[float, float]]) -> list[float]:
    """Theirs / ours of every round: above 1 ours is the faster, or smaller."""
    return [theirs / ours for ours, theirs in measured]


def median(numbers: Sequence[float]) -> float:
    """The median."""
    return float(np.median(numbers))


def quartiles(numbers: Sequence[float]) -> tuple[float, float]:
    """The first and the third quartile."""
    low, high = np.quantile(numbers, (0.25, 0.75))
    return float(low), float(high)


# ---------------------------------------------------------------------------------------------- memory of a process

STATUS, CLEAR = Path("/proc/self/status"), Path("/proc/self/clear_refs")


def resident(peak: bool = False) -> int:
    """The bytes of this process in memory now, or at most since `forget_peak`."""
    line = re.search(rf"{'VmHWM' if peak else 'VmRSS'}:\s+(\d+) kB", STATUS.read_text())
    assert line is not None
    return int(line[1]) * 1024


def forget_peak() -> None:
    """Let the peak of this process begin anew from what is in memory now."""
    CLEAR.write_text("5")


def peak_growth(call: Call) -> int:
    """The bytes by which a call lets this process grow at most."""
    ctypes.CDLL(None).malloc_trim(0)  # what was freed before would be taken again unseen
    forget_peak()
    before = resident()
    call()
    return max(resident(peak=True) - before, 1)


def rates(rounds: int = 7) -> dict[str, float]:
    """What one core does in NumPy, in 10⁹ per second: multiply-adds of a product, elements of a tanh, bytes copied."""
    matrix = np.ones((1024, 1024), np.float32)
    small, large = np.ones(2**16, np.float32), np.ones(2**26, np.uint8)
    room = np.empty_like(large)
    calls: dict[str, tuple[float, Call]] = {
        "multiply-adds": (1024.0**3, lambda: matrix @ matrix),
        "tanh": (float(small.size), lambda: np.tanh(small)),
        "bytes copied": (float(large.size), lambda: np.copyto(room, large)),
    }
    return {
        name: amount / median([wall(call) for _ in range(rounds + 1)][1:]) / 1e9
        for name, (amount, call) in calls.items()
    }


def pin(threads: int = 1) -> list[int]:
    """Let this process run on one core for each thread, the last that it may run on, and name them."""
    cores = sorted(os.sched_getaffinity(0))[-threads:]
    os.sched_setaffinity(0, cores)
    return cores
