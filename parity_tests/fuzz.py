"""Fuzzing: cases drawn by the thousand, judged against the reference, and shrunk to one line where they differ.

A case is a `Drawn`: number n of seed s is the same case on every machine and for every backend. Workers answer whole
batches; hypothesis shrinks what differs.
"""

from __future__ import annotations

import contextlib
import functools
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st
from hypothesis.database import InMemoryExampleDatabase

from attention_core import draws
from attention_core.errors import AttentionError
from attention_core.operators import find
from attention_core.specification import INTEGER, Layer, Operator
from parity_tests import expected as reference
from parity_tests.budgets import Budget, EntryBudget, entry_budget_of
from parity_tests.cases import FULL, Arrays, Case, epsilon, is_floating
from parity_tests.comparison import Pair, Verdict, judge
from parity_tests.drawn import COUNTS, INFINITE, MOST, NAMES, WHOLE, Drawn, axes_of, called_of, inputs_of, is_size
from parity_tests.launch import Server
from parity_tests.recordings import Cell, Recording, key, pack_cases

ABSENT: Mapping[str, tuple[str, ...]] = {"mxnet": ("bfloat16", "int16")}
"""The dtypes that a framework has not: a case that needs one, as its tier or for lengths or tokens, is not for it."""

BATCH = 50


@dataclass(frozen=True)
class FuzzBudget:
    """How far rounding alone may move an answer in a tier, in eps of its largest entry.

    eps: the budget of a well-conditioned tensor; `judgeable` multiplies it by what the case makes of an error.
    most: the largest product; beyond it, a case cannot be judged and is left out.
    worst: the largest error ever seen, in eps of a well-conditioned tensor.
    """

    eps: float
    most: float
    worst: float


GROWN = (
    "sums of a few products, and an exponential or a tanh, times how much a nudge of all inputs grows in the outputs, "
    "and how much smaller a gradient is than what it sums"
)

BUDGETS: Mapping[str, FuzzBudget] = {
    "float64": FuzzBudget(15, 1e9, worst=6.6),
    "float32": FuzzBudget(15, 1e6, worst=6.6),
    "float16": FuzzBudget(5, 250, worst=1.8),
    "bfloat16": FuzzBudget(5, 30, worst=1.8),
}
"""By tier. float64: 1e9 eps are 2e-7, so that a scale that is off by 1e-5 is always seen; half tiers: a quarter."""

TIERS = tuple(BUDGETS)
"""The tiers from which cases can be drawn: those that have a budget. Half tiers are drawn on request."""

# ------------------------------------------------------------------------------------------------ what is drawn

FAMILY = 32
"""So many cases in a row differ in their numbers alone: what compiles does it once for all of them."""

SIZES = (1, 2, 3, 4)
MOST_LAYERS = 3
SCALES = (1.0, 1.0, 1.0, 2.0**-10, 2.0)
HALF_SCALES = (1.0, 1.0, 1.0, 0.5, 2.0)
"""Wider ones saturate a tanh, whose gradient is then rounding alone; what is larger than that is `whole`."""

PARAMETER_SCALES = (1.0, 1.0, 1.0, 0.25, 2.0)
LARGE = {"scores": 16.0, "values": 1000.0, "additive_mask": 2e4}
"""Bounds of what may be larger: scores whose softmax still has gradients, values, which are only averaged, and masks
that are compared with a threshold."""

NUMBERS = (0.375, 1.0, -2.0, 0.0)
RATES = (0.0, 0.5)
POSITIVE = (0.375, 1.0, 2.0)
EVEN = (2, 4)
COUNTED = (0, 1, 2, 3)
HIDDEN = ("", "nan", "inf", "-inf", "1e30")
SEEDS = 2**16
ATTEMPTS = 1000
CHOICES = 128
"""More choices than a case takes."""

Pick = Callable[[Sequence[Any]], Any]


def draw(seed: int, number: int, operators: Sequence[str] = NAMES, tiers: Sequence[str] = FULL) -> Drawn:
    """Case `number` of a seed: a call of one of the operators, in one of the tiers."""
    attempt = accepted(seed, number // FAMILY, tuple(operators), tuple(tiers))
    return attempted(seed, number, attempt, operators, tiers)


@functools.lru_cache(maxsize=4096)
def accepted(seed: int, family: int, operators: tuple[str, ...], tiers: tuple[str, ...]) -> int:
    """The first attempt at a family that the specification does not refuse: options depend on each other."""
    for attempt in range(ATTEMPTS):
        try:
            case = Case(**attempted(seed, family * FAMILY, attempt, operators, tiers).as_case())
            with np.errstate(all="ignore"):
                reference.computed_outputs(case, case.inputs, case.parameters)
        except AttentionError:
            continue
        return attempt
    raise RuntimeError(f"seed {seed}, family {family}: {ATTEMPTS} attempts were all refused")


def attempted(seed: int, number: int, attempt: int, operators: Sequence[str], tiers: Sequence[str]) -> Drawn:
    """An attempt at a case, which the specification may refuse."""
    family = f"family/{number // FAMILY}"
    pick, pick_number = picking(family, seed), picking(f"case/{number}", seed)
    entry = find(pick(operators))
    method = pick(methods_of(entry))
    if attempt:  # at the same call
        pick = picking(f"{family}/{attempt}", seed)
    inputs = inputs_of(entry, method)
    sizes = drawn_sizes(entry, method, pick)
    optional = [tensor.name for tensor in inputs if tensor.optional]
    present = [name for name in optional if pick((False, True))]
    if not present and len(optional) == len(inputs):
        present = optional[:1]
    masks = [tensor for tensor in inputs if tensor.broadcast and tensor.name in present]
    lens = "valid_lens" in present
    floating = [tensor.name for tensor in inputs if tensor.kind == "floating" and not tensor.optional]
    # Not for layers, whose gradients are then differences of large numbers, nor for a tanh of large numbers.
    exact = isinstance(entry, Operator) and set(floating) & set(WHOLE) and "w_v" not in floating
    tier = pick(tiers)
    # Half tiers round whole numbers, and lose the products of small ones.
    scales_of_tier = SCALES if tier in FULL else HALF_SCALES
    whole = bool(exact) and tier in FULL and pick_number((False,) * 7 + (True,))
    scales = {
        name: pick_number((*scales_of_tier, LARGE.get(name, 1.0))) for name in floating if not (whole and name in WHOLE)
    }
    if isinstance(entry, Layer) and entry.trainable:
        scales["parameters"] = pick_number(PARAMETER_SCALES)
    numbered = [tensor for tensor in inputs if tensor.kind == "integer"]
    integers = [tensor.name for tensor in numbered if not tensor.optional or tensor.name in present]
    types = {name: pick(("int32", *INTEGER)) for name in integers}
    return Drawn(
        operator=entry.name,
        method=method,
        tier=tier,
        seed=pick_number(range(SEEDS)),
        sizes=sizes,
        options=drawn_options(entry, method, sizes, pick),
        given=tuple(present),
        rows=lens and pick((False, True)),
        ones=tuple(axis.removesuffix("?") for tensor in masks for axis in tensor.axes if pick((False, False, True))),
        types={name: kind for name, kind in types.items() if kind != "int32"},
        wild=lens and pick_number((False, False, True)),
        scales={name: scale for name, scale in scales.items() if scale != 1.0},
        whole=whole,
        infinite=bool(set(INFINITE) & set(floating)) and not whole and pick_number((False, False, True)),
        hidden=pick_number(HIDDEN) if lens or masks or "scores" in floating else "",
    )


def picking(name: str, seed: int) -> Pick:
    """A function that chooses one of a sequence, differently at each call, by name and seed."""
    units = iter(0.5 * (draws.uniform(f"fuzz/{name}", (CHOICES,), seed=seed) + 1.0))
    return lambda choices: choices[int(next(units) * len(choices))]


def drawn_sizes(entry: Operator | Layer, method: str, pick: Pick) -> dict[str, int]:
    """Sizes of axes and of the constructor; now and then, an axis is empty."""
    fixed = [option for option in entry.options if is_size(option)] if isinstance(entry, Layer) else []
    free = sorted(own_axes(entry, method) - {option.name for option in fixed})
    chosen = [option.name for option in fixed if option.default is None or pick((False, True))]
    sizes = {axis: pick(SIZES) for axis in (*free, *chosen)}
    if "num_layers" in sizes:
        sizes["num_layers"] = min(sizes["num_layers"], MOST_LAYERS)
    if "heads" in sizes and pick((True, True, False)):
        del sizes["heads"]
    if free and pick((False,) * 5 + (True,)):
        axis = pick(free)
        sizes |= {axis: 0} if axis in sizes else {}
    return {axis: min(size, sizes.get(MOST.get(axis, axis), size)) for axis, size in sizes.items()}


def own_axes(entry: Operator | Layer, method: str) -> set[str]:
    """The axes whose sizes a call is free to choose.

    An axis that belongs to the preparation alone has size 1: a step takes a memory whose mask has one row.
    """
    called = called_of(entry, method)
    own = {axis.removesuffix("?") for tensor in (*called.inputs, *called.outputs) for axis in tensor.axes}
    return {axis for axis in own & set(axes_of(entry, method)) if " " not in axis and axis != "one"}


def methods_of(entry: Operator | Layer) -> list[str]:
    """The methods of a layer that return arrays: all but `prepare`, whose memory the others read."""
    if isinstance(entry, Operator):
        return [""]
    return [name for method in entry.methods if (name := method.name.rpartition(".")[2]) != "prepare"]


def drawn_options(entry: Operator | Layer, method: str, sizes: Mapping[str, int], pick: Pick) -> dict[str, Any]:
    """Values of the options that state no size of an axis: all that have to be given, and some of the others."""
    called = called_of(entry, method)
    choices = {
        "number": NUMBERS,
        "rate": RATES,
        "token": range(sizes.get("vocab_size", sizes.get("target_vocab_size", 1))),
        "count": COUNTED,
        "size": SIZES,
        "positive": POSITIVE,
        "even": EVEN,
    }
    stated = {COUNTS.get(option.name, option.name) for option in called.options} & {*axes_of(entry, method)}
    own = [option for option in called.options if COUNTS.get(option.name, option.name) not in {*stated, "dtype"}]
    fixed = [option for option in entry.options if not is_size(option)] if isinstance(entry, Layer) else []
    return {
        option.name: pick({"bool": (False, True), "str": option.choices}.get(option.type) or choices[option.domain])
        for option in (*fixed, *own)
        if option.default is None or pick((False, True))
    }


# ------------------------------------------------------------------------------------------------ what is simplest

MOST_SHRINKS = 400


def shrink(drawn: Drawn, differs: Callable[[Drawn], bool], most: int = MOST_SHRINKS) -> Drawn:
    """The simplest case that hypothesis reaches from a case that differs, and that differs, too."""
    simplest, known = drawn, {repr(drawn): True}

    def test(candidate: Drawn) -> None:
        nonlocal simplest
        line = repr(candidate)
        if line not in known:
            known[line] = len(known) <= most and differs(candidate)
        if known[line]:
            simplest = candidate
            raise Difference

    quiet = settings(
        database=InMemoryExampleDatabase(),
        phases=(Phase.reuse, Phase.shrink),
        deadline=None,
        suppress_health_check=list(HealthCheck),
        print_blob=False,
    )
    run: Any = quiet(given(simpler_cases(drawn))(test))
    # Bytes that are all ones choose the last of every list: the case itself. hypothesis keeps it, and shrinks it.
    try:
        run.hypothesis.fuzz_one_input(b"\xff" * 2**12)
    except Difference:
        with contextlib.suppress(Difference):
            run()
    else:
        raise RuntimeError(f"{drawn} is not among its own simplifications")
    return simplest


class Difference(Exception):
    """What hypothesis is told about a case that differs."""


@st.composite
def simpler_cases(draw: st.DrawFn, drawn: Drawn) -> Drawn:
    """The case, or one in which parts of it are said more simply."""

    def pick(*values: Any) -> Any:
        """One of the values, simplest first; the case's own is last, and fills the list to a power of two."""
        values = tuple(value for value in values[:-1] if value != values[-1]) + values[-1:]
        length = 1 << (len(values) - 1).bit_length()
        return draw(st.sampled_from(values + values[-1:] * (length - len(values))))

    def some(values: Mapping[str, Any], *simpler: Any) -> dict[str, Any]:
        return {name: pick(*simpler, value) for name, value in values.items() if pick(False, True)}

    def part(names: Sequence[str]) -> tuple[str, ...]:
        return tuple(name for name in names if pick(False, True))

    entry = find(drawn.operator)
    called = called_of(entry, drawn.method)
    needed = {option.name for option in called.options if option.default is None}
    options = {
        name: pick(0, value) if name in needed else value
        for name, value in drawn.options.items()
        if name in needed or pick(False, True)
    }
    return Drawn(
        operator=drawn.operator,
        method=drawn.method,
        tier=pick("float64", drawn.tier),
        seed=pick(0, 1, 2, drawn.seed),
        sizes=some(drawn.sizes, 1, 2),
        options=options,
        given=part(drawn.given) or (drawn.given[:1] if all(tensor.optional for tensor in called.inputs) else ()),
        rows=pick(False, drawn.rows),
        ones=part(drawn.ones),
        types=some(drawn.types),
        wild=pick(False, drawn.wild),
        scales=some(drawn.scales),
        whole=pick(False, drawn.whole),
        infinite=pick(False, drawn.infinite),
        hidden=pick("", drawn.hidden),
    )


# ------------------------------------------------------------------------------------------------ what is allowed


LEAST = {name: {"features": 2} for name in ("cosine_score", "CosineAttention")}
"""Sizes below which an operator is degenerate: on a line, a cosine is 1 or -1, and its gradient rounding alone."""

BESIDE = {"gradient_b_k": "gradient_W_k"}
"""What is 0 but for rounding, and what its errors are measured by: see `parity_tests.budgets`."""

NUDGE = 2.0**-12
NUDGES = 3


@dataclass(frozen=True)
class Judged:
    """A case with what the reference answers, the budget of every quantity, and of each entry of some."""

    drawn: Drawn
    case: Case
    expected: Arrays
    budgets: Mapping[str, Budget]
    entry_budgets: Mapping[str, EntryBudget]

    @property
    def cell(self) -> Cell:
        """The case in its tier."""
        return self.case, self.drawn.tier

    def budget_for(self, operator: str, case: str, tier: str, quantity: str) -> Budget:
        """The budget of a quantity, as `judge` asks for it."""
        return self.budgets[quantity]

    def entry_budget_for(self, operator: str, case: str, tier: str, quantity: str) -> EntryBudget | None:
        """The budget of each entry of a quantity, as `judge` asks for it."""
        return self.entry_budgets.get(quantity)

    def verdicts(self, recording: Recording) -> list[Verdict]:
        """What is found for the case in a recording."""
        return list(
            judge(
                self.cell,
                self.expected,
                recording,
                budget_for=self.budget_for,
                entry_budget_for=self.entry_budget_for,
            )
        )


def judgeable(drawn: Drawn) -> Judged | None:
    """The case and what is expected of it; None where rounding alone could change the answer."""
    least = LEAST.get(drawn.operator, {})
    if any(drawn.sizes.get(axis, 1) in range(1, size) for axis, size in least.items()):
        return None
    case = Case(**drawn.as_case())
    wanted = reference.expected(case, drawn.tier)
    grown, size = growth_of_outputs(drawn, case), answer_size(case, drawn.tier)
    if grown is None:
        return None
    distance = distance_of_kernel(drawn, case)
    growth = grown.worst * distance
    allowed, budgets, entry_budgets = BUDGETS[drawn.tier], {}, {}
    for name, array in wanted.items():
        eps = allowed.eps * growth
        if name.startswith("gradient_") and (largest := np.abs(array).max(initial=0.0)) > 0.0:
            # It sums terms as large as what flows back times all other factors, of which little may be left.
            argument = {**case.inputs, **case.parameters}[name.removeprefix("gradient_")]
            own = np.abs(argument[np.isfinite(argument)]).max(initial=2.0**-20)
            eps *= max(1.0, size * max((1.0, *drawn.scales.values())) / min(1.0, own) / largest)
        if not eps <= allowed.most:
            return None
        budgets[name] = Budget(eps, allowed.worst, GROWN, (drawn.tier,), beside=BESIDE.get(name, ""))
        own = entry_budget_of(case.operator, case.id, drawn.tier, name)
        by_entry = allowed.eps * grown.by_entry.get(name, 1.0) * distance
        if own is not None and by_entry <= allowed.most:
            entry_budgets[name] = replace(own, eps=by_entry)
    return Judged(drawn, case, wanted, budgets, entry_budgets)


@dataclass
class Growth:
    """How many times a relative change of every input and parameter grows in the outputs, and by entry in some."""

    worst: float = 1.0
    by_entry: dict[str, float] = field(default_factory=dict)


def growth_of_outputs(drawn: Drawn, case: Case) -> Growth | None:
    """How a relative change of every input and parameter grows in the outputs, at least 1.

    None if it changes an output that is no floating number, as the best token of greedy decoding.
    """
    growth, nudge = Growth(), max(NUDGE, 2.0 * epsilon(drawn.tier))
    if drawn.whole or not any(map(is_floating, {**case.inputs, **case.parameters}.values())):
        return growth  # every product and sum is exact, or there is none
    before = reference.outputs(case, drawn.tier)
    for turn in range(NUDGES):
        moved = nudged(case, turn, nudge)
        after = reference.computed_outputs(moved, *moved.at("float64"))
        for name, array in before.items():
            if array.dtype.kind != "f":
                if not np.array_equal(array, after[name]):
                    return None
            elif array.size and (largest := np.abs(array).max()) > 0.0:
                growth.worst = max(growth.worst, float(np.abs(after[name] - array).max() / (nudge * largest)))
                own = entry_budget_of(case.operator, case.id, drawn.tier, name)
                if own is not None:
                    pair = Pair(name, "float64", after[name], array, array, 0.0, by_entry=own)
                    moved_by = float(pair.entry_errors.max() * epsilon("float64") / nudge)
                    growth.by_entry[name] = max(growth.by_entry.get(name, 1.0), moved_by)
    return growth


def distance_of_kernel(drawn: Drawn, case: Case) -> float:
    """How far the scores of a Gaussian kernel may lie from 0, in eighths, at least 1.

    Where all keys are far from a query and near each other, a nudge moves all scores alike, and the softmax takes that
    back; what rounding did to each score of that size it does not.
    """
    if case.operator not in ("KernelAttention", "NadarayaWatson"):
        return 1.0
    apart = sum(drawn.scales.get(name, 1.0) for name in ("queries", "keys"))
    w = max([1.0 / case.config.get("width", 1.0), *(float(abs(array)) for array in case.parameters.values())])
    features = case.inputs["keys"].shape[-1] if case.operator == "KernelAttention" else 1
    return max(1.0, 0.5 * features * (w * apart) ** 2 / 8.0)


def nudged(case: Case, turn: int, nudge: float) -> Case:
    """The case with every floating number but a dropout mask's multiplied by 1 ± nudge."""

    def moved(arrays: Arrays) -> Arrays:
        return {
            name: array * (1.0 + nudge * np.sign(draws.uniform(f"nudge/{turn}/{name}", array.shape)))
            if array.dtype.kind == "f" and not name.endswith("dropout_mask")
            else array
            for name, array in arrays.items()
        }

    return replace(case, inputs=moved(case.inputs), parameters=moved(case.parameters))


def answer_size(case: Case, tier: str) -> float:
    """The sum of |cotangent · output|: how much flows back."""
    outputs = list(reference.outputs(case, tier).values())
    return float(
        sum(np.abs(factor * outputs[index]).sum() for index, factor in reference.cotangents(case, tier).items())
    )


# ------------------------------------------------------------------------------------------------ who answers


# ------------------------------------------------------------------------------------------------ the campaign

MOST_TRIES = {"crash": 20, "timeout": 4}
"""How many simpler cases may cost a worker, by what became of the first."""


@dataclass(frozen=True)
class Finding:
    """A difference: the number of the case that showed it first, the simplest case that does, and its worst verdict."""

    number: int
    drawn: Drawn
    verdict: Verdict


Batch = dict[str, tuple[int, Judged]]
"""Judged cases with their numbers, by the keys of their cells."""


@dataclass
class Campaign:
    """Every step-th case from number `first` of a seed on, put to every backend, and what came of them.

    left_out counts the cases that rounding alone could change, repeated what is red in the way of an earlier finding.
    worst holds, by backend and operator, the largest share of a budget that an error took.
    """

    servers: Sequence[Server]
    seed: int
    first: int = 0
    step: int = 1
    operators: Sequence[str] = NAMES
    tiers: Sequence[str] = FULL
    done: int = 0
    left_out: int = 0
    seconds: float = 0.0
    cases: Counter[tuple[str, str]] = field(default_factory=Counter)
    worst: dict[tuple[str, str], float] = field(default_factory=dict)
    findings: dict[tuple[str, ...], Finding] = field(default_factory=dict)
    repeated: Counter[tuple[str, ...]] = field(default_factory=Counter)

    def run(self, seconds: float | None = None, examples: int | None = None) -> Iterator[Finding | None]:
        """Judge cases until the time is over or there are enough of them; yield each finding, and None after a batch.

        Raises: WorkerFault if a worker cannot start.
        """
        begun = time.monotonic()
        with ThreadPoolExecutor(max(1, len(self.servers))) as pool:
            asked: list[tuple[Server, Batch, Future[Recording]]] = []
            while True:
                over = seconds is not None and time.monotonic() - begun >= seconds
                count = 0 if over else BATCH if examples is None else min(BATCH, examples - self.done)
                with reference.in_memory():
                    ready = self._drawn(count)
                    packed = {server: self._packed(server, ready) for server in self.servers}
                # While this batch was drawn and its reference computed, the workers answered the one before.
                for server, batch, future in asked:
                    yield from self._collected(server, batch, future.result())
                self.seconds = time.monotonic() - begun
                if asked:
                    yield None
                if not count:
                    return
                asked = [
                    (server, own, pool.submit(server.answers, cells, data))
                    for server, (own, cells, data) in packed.items()
                ]

    def _drawn(self, count: int) -> Batch:
        ready = {}
        for number in (self.first + self.step * (self.done + index) for index in range(count)):
            judged = judgeable(draw(self.seed, number, self.operators, self.tiers))
            if judged is None:
                self.left_out += 1
            else:
                ready[key(judged.cell)] = number, judged
        self.done += count
        return ready

    def _packed(self, server: Server, ready: Batch) -> tuple[Batch, list[Cell], bytes]:
        own = {name: (number, judged) for name, (number, judged) in ready.items() if self._is_for(server, judged.drawn)}
        cells = [judged.cell for _, judged in own.values()]
        return own, cells, pack_cases(cells)

    def _is_for(self, server: Server, drawn: Drawn) -> bool:
        """Whether the backend has the dtypes, and no such call has ended its worker before."""
        deadly = (drawn.operator, drawn.method) in server.deadly
        return not deadly and not {drawn.tier, *drawn.types.values()} & {*ABSENT.get(server.job.backend, ())}

    def _collected(self, server: Server, batch: Batch, recording: Recording) -> Iterator[Finding]:
        for name, (number, judged) in batch.items():
            if recording.status.get(name, {}).get("status") in (None, "not-applicable"):
                continue
            verdicts = judged.verdicts(recording)
            drawn, place = judged.drawn, (recording.backend, judged.drawn.operator)
            self.cases[place] += 1
            shares = [v.error / v.budget for v in verdicts if v.status == "pass" and v.budget and v.error is not None]
            self.worst[place] = max(self.worst.get(place, 0.0), *shares, 0.0)
            red = next((verdict for verdict in verdicts if verdict.red), None)
            if red is None:
                continue
            kind = (recording.backend, drawn.operator, drawn.method, red.status)
            self.repeated[kind] += 1
            if kind not in self.findings:
                self.findings[kind] = self._simplest(server, number, drawn, red)
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
        recording = server.answers([judged.cell], pack_cases([judged.cell]))
    return next((verdict for verdict in judged.verdicts(recording) if verdict.red), None)
