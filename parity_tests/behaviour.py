"""What the frameworks' own attention does: asked of each call, classified from what it answered, and written as a page.

A question is a case of the specification, or one with a single thing changed. A finding is a word or two for each
question; what a framework is believed to do is nowhere. Findings are kept with the versions they are of, so that a new
version that does otherwise is noticed.
"""

from __future__ import annotations

import functools
import json
import math
import re
import sys
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np

from attention_core import draws, reference
from parity_tests.budgets import budget_of
from parity_tests.cases import FULL, Arrays, Case, all_cases, epsilon
from parity_tests.comparison import Verdict, compare
from parity_tests.expected import computed_outputs, expected
from parity_tests.launch import Job, Progress, record_cells, untold
from parity_tests.peers import PEERS, Peer
from parity_tests.polarity import answer, question
from parity_tests.recordings import Cell, Recording, answered, cells_of, is_gradient, key, pack_cases, withheld

DATA = Path(__file__).parent / "peers" / "behaviour.json"
PAGE = Path(__file__).parents[1] / "docs" / "behaviour.md"

Findings = dict[str, str]
"""What was found of a call, by question."""

# ------------------------------------------------------------------------------------------------ questions

HALF = ("float16", "bfloat16")
WITH_CLOSED = np.array([[7, 0, 3, 5, 0], [2, 7, 0, 1, 3]], np.int32)
BEYOND = np.array([[7, 3, 9, 5, 6], [2, 12, 4, 1, 8]], np.int32)
BELOW = np.array([[7, 3, -2, 5, 6], [2, 7, 4, -1, 3]], np.int32)


@functools.cache
def cases_by_id() -> dict[str, Case]:
    """The cases of the specification."""
    return {case.id: case for case in all_cases()}


@dataclass(frozen=True)
class Asked:
    """A question to one operator: the case that is put, and how it comes from one of the specification."""

    case: Case
    source: str
    change: str = ""


ASKED = ("open", "mask", "ragged", "ragged_rows", "closed", "hidden_nan")


def asked(operator: str, takes: str) -> dict[str, Asked]:
    """The questions to a call of an operator that knows hidden keys by a mask, or by lengths."""
    own = {name: cases_by_id()[f"{operator}-{name}"] for name in ASKED}
    masked = takes == "mask"
    plain = own["mask"] if masked else own["ragged"]

    def lengths(lens: np.ndarray) -> Case:
        return replace(own["ragged_rows"], inputs={**own["ragged_rows"].inputs, "valid_lens": lens})

    def spoilt(name: str) -> Case:
        """NaN in the hidden keys alone, or in the hidden values alone."""
        inputs = {**own["hidden_nan"].inputs}
        inputs[name] = own["open"].inputs[name]
        return replace(own["hidden_nan"], inputs=inputs)

    asked = {
        "closed": Asked(own["closed"], own["closed"].id)
        if masked
        else Asked(lengths(WITH_CLOSED), own["ragged_rows"].id, "lengths of 0 among the others"),
        "hidden_value": Asked(spoilt("keys"), own["hidden_nan"].id, "the keys as they are without NaN"),
        "hidden_key": Asked(spoilt("values"), own["hidden_nan"].id, "the values as they are without NaN"),
        "large": (wide := large(operator, plain)),
        "huge": Asked(huge(wide.case), wide.source, "; ".join(filter(None, (wide.change, LARGER[operator])))),
        "half": Asked(replace(plain, tiers=HALF), plain.id, "in half precision"),
        "gradients": Asked(plain, plain.id),
    }
    if masked:
        asked["polarity"] = polarity_case(own["open"])
    else:
        asked["beyond"] = Asked(lengths(BEYOND), own["ragged_rows"].id, "lengths of 8, 9 and 12 for 7 keys")
        asked["below"] = Asked(lengths(BELOW), own["ragged_rows"].id, "lengths of -1 and -2")
    return {
        name: replace(own, case=replace(own.case, name=name, tiers=own.case.tiers if name == "half" else FULL))
        for name, own in asked.items()
    }


def large(operator: str, plain: Case) -> Asked:
    """Scores to ±2e6 whose gaps are 0 or at least 1000."""
    source = "DotProductAttention-large" if operator == "MultiHeadAttention" else f"{operator}-large"
    given = cases_by_id()[source]
    if operator != "MultiHeadAttention":
        inputs = {**plain.inputs, **{name: given.inputs[name] for name in ("queries", "keys", "values")}}
        if "mask" not in plain.inputs:
            return Asked(replace(given, inputs=inputs), source, f"the lengths of {plain.name} instead of its mask")
        return Asked(given, source)
    hidden = plain.parameters["W_q"].shape[0]
    shapes = {name: plain.inputs[name].shape for name in ("queries", "keys")}
    inputs = {
        **plain.inputs,
        "queries": 4.0 * (draws.integers("large.queries", shapes["queries"], 11) - 5),
        "keys": 500.0 * (draws.integers("large.keys", shapes["keys"], 201) - 100),
    }
    parameters = {**plain.parameters, "b_q": np.zeros(hidden), "b_k": np.zeros(hidden)}
    for name, array in (("W_q", inputs["queries"]), ("W_k", inputs["keys"])):
        parameters[name] = np.eye(hidden, array.shape[-1])
    return Asked(
        replace(plain, inputs=inputs, parameters=parameters), source, "in every head: W_q and W_k are identities"
    )


LARGER = {
    "DotProductAttention": "keys 8,192 times as large",
    "MultiHeadAttention": "keys 8,192 times as large",
    "AdditiveAttention": "w_v 8,192 times as large",
}


def huge(case: Case) -> Case:
    """Scores as much larger as leaves their digits as they are."""
    name = "w_v" if "w_v" in case.parameters else "keys"
    inputs = {own: array * 8192.0 if own == name else array for own, array in case.inputs.items()}
    parameters = {own: array * 8192.0 if own == name else array for own, array in case.parameters.items()}
    return replace(case, inputs=inputs, parameters=parameters)


def polarity_case(plain: Case) -> Asked:
    """The question of `parity_tests.polarity`, in the sizes of a case."""
    sizes = {f"{name}_size": plain.inputs[tensor].shape[-1] for name, tensor in NAMED.items()}
    inputs = question(**sizes, dtype="float64")
    return Asked(replace(plain, inputs=inputs, gradients=False), "", "parity_tests/polarity.py")


NAMED = {"query": "queries", "key": "keys", "value": "values"}

# ------------------------------------------------------------------------------------------------ answers

LIKE = 1e-3
"""How near two answers of a kind are, beside the largest entry: kinds differ by more, and roundings by less."""


@dataclass(frozen=True)
class Answer:
    """What a call answered to a question in one tier: what became of it, what it gave, and what was expected."""

    cell: Cell
    said: Mapping[str, Any]
    found: Arrays
    wanted: Arrays

    @classmethod
    def of(cls, recording: Recording, cell: Cell) -> Answer:
        """The answer in a recording."""
        said = answered(recording, cell)
        wanted = expected(*cell, withheld(said)) if said["status"] == "ok" and cell[0].gradients else {}
        return cls(cell, said, recording.cells.get(key(cell), {}), wanted)

    @property
    def refused(self) -> str:
        """Why there is no answer, in a word; empty if there is one."""
        words = {"ok": "", "not-implemented": "not taken", "not-applicable": "none", "timeout": "hangs"}
        status = str(self.said["status"])
        return words.get(status, status)

    @property
    def gradients(self) -> list[str]:
        """The gradients that are there."""
        return [name for name in self.wanted if is_gradient(name) and name in self.found]

    def like(self, name: str) -> bool:
        """Whether a quantity is what is expected, but for rounding."""
        case, tier = self.cell
        beside = self.wanted.get(budget_of(case.operator, case.id, tier, name).beside)
        return alike(self.found[name], self.wanted[name], beside)

    def spoilt(self, names: Iterable[str]) -> bool:
        """Whether NaN or inf stands where a finite number is expected."""
        return any(not np.isfinite(double(self.found[name])[np.isfinite(self.wanted[name])]).all() for name in names)


def double(array: np.ndarray) -> np.ndarray:
    """The numbers as float64."""
    return np.asarray(array, np.float64)


def alike(found: np.ndarray, wanted: np.ndarray, beside: np.ndarray | None = None) -> bool:
    """Whether two arrays differ by rounding at most, be it that of float32, beside the largest entry."""
    found, wanted = double(found), double(wanted)
    if found.shape != wanted.shape:
        return False
    measures = (wanted, double(wanted if beside is None else beside))
    scale = max(np.abs(own[np.isfinite(own)]).max(initial=0.0) for own in measures)
    with np.errstate(invalid="ignore"):
        near = np.abs(found - wanted) <= LIKE * scale
    return bool((near | (found == wanted) | (np.isnan(found) & np.isnan(wanted))).all())


def closed_rows(given: Answer) -> str:
    """What a query gets that may attend to nothing, and what its gradients are."""
    case, tier = given.cell
    inputs, _ = case.at(tier)
    mask = reference.attention_mask(inputs["keys"].shape[1], inputs.get("valid_lens"), inputs.get("mask"))
    assert mask is not None
    rows = ~np.broadcast_to(mask, (*inputs["queries"].shape[:2], inputs["keys"].shape[1])).any(axis=-1)
    found = double(given.found["context"])[rows]
    kinds = {
        "0": given.wanted["context"],
        "uniform": without_scores(case, tier),
        "as without a mask": opened(case, tier),
        "NaN": np.full(given.wanted["context"].shape, np.nan),
    }
    kind = next((name for name, wanted in kinds.items() if alike(found, wanted[rows])), "something else")
    if not given.gradients:
        return kind
    if given.spoilt(given.gradients):
        return f"{kind}; ∇ NaN"
    return f"{kind}; ∇ 0" if all(map(given.like, given.gradients)) else f"{kind}; ∇ flows"


def opened(case: Case, tier: str) -> np.ndarray:
    """The context if nothing were hidden."""
    inputs, parameters = case.at(tier)
    rest = {name: array for name, array in inputs.items() if name not in ("mask", "valid_lens")}
    return computed_outputs(case, rest, parameters)["context"]


def without_scores(case: Case, tier: str) -> np.ndarray:
    """The context if nothing were hidden, and every key had the same score."""
    inputs, parameters = case.at(tier)
    zero = {"MultiHeadAttention": ("W_q", "b_q"), "AdditiveAttention": ("w_v",)}.get(case.operator, ())
    inputs = {name: array for name, array in inputs.items() if name not in ("mask", "valid_lens")}
    if not zero:
        inputs["queries"] = np.zeros_like(inputs["queries"])
    parameters = {name: np.zeros_like(array) if name in zero else array for name, array in parameters.items()}
    return computed_outputs(case, inputs, parameters)["context"]


def hidden(given: Answer) -> str:
    """What NaN does that no query may attend to."""
    kind = "NaN" if given.spoilt(["context"]) else "ignored" if given.like("context") else "wrong"
    return f"{kind}; ∇ NaN" if given.spoilt(given.gradients) else kind


def right_rows(given: Answer) -> str:
    """How many rows of the context are right."""
    found, wanted = double(given.found["context"]), double(given.wanted["context"])
    width = wanted.shape[-1]
    pairs = zip(found.reshape(-1, width), wanted.reshape(-1, width), strict=True)
    rows = [alike(one, other) for one, other in pairs]
    spoilt = "; ∇ NaN" if given.gradients and given.spoilt(given.gradients) else ""
    if all(rows):
        return f"right{spoilt}"
    kind = "wrong" if np.isfinite(found).all() else "NaN"
    return f"{kind} in {len(rows) - sum(rows)} of {len(rows)} rows{spoilt}"


MOST_SINGLE = 100.0
"""So many eps of float32 are an error of float32's arithmetic."""


def precision(given: Answer, names: Sequence[str]) -> str:
    """How far off the worst number is: within its budget, or by how much."""
    case, tier = given.cell
    blank = Verdict(case.operator, case.id, "", "reference", "", tier, "", "")
    worst, failed = 0.0, False
    for name in names:
        budget = budget_of(case.operator, case.id, tier, name)
        arrays = given.found[name], given.wanted[name], given.wanted[name]
        verdict = compare(replace(blank, quantity=name), *arrays, budget, given.wanted.get(budget.beside))
        failed |= verdict.status == "fail"
        if verdict.check == "nan":
            return "NaN"
        if verdict.check in ("dtype", "shape"):
            return f"another {verdict.check}"
        worst = max(worst, verdict.error or 0.0)
    if not failed:
        return f"≤ {rounded(worst)}" if tier in HALF else "right"
    single = tier == "float64" and worst * epsilon(tier) <= MOST_SINGLE * epsilon("float32")
    return "as float32" if single else f"off by {rounded(worst)} eps"


def rounded(eps: float) -> str:
    """The next larger of 1, 3, 10, 30 and so on: figures that another processor does not change."""
    power = 10.0 ** math.floor(math.log10(max(eps, 1.0)))
    return f"{next(step * power for step in (1, 3, 10) if step * power >= eps * (1 - 1e-9)):g}"


def gradients(given: Answer) -> str:
    """Whether gradients are right where no row is closed."""
    outputs = [name for name in given.wanted if name in given.found and name not in given.gradients]
    if not given.gradients:
        told = precision(given, outputs)
        return "none" if told == "right" else f"none; outputs {told}"
    return precision(given, given.gradients)


def lengths_beyond(given: Answer) -> str:
    """Whether a length beyond the keys means all of them. If not, what comes out is whatever lies behind the array."""
    return "clipped" if right_rows(given) == "right" else UNDEFINED


def lengths_below(given: Answer) -> str:
    """Whether a length below 0 means no key."""
    told = right_rows(given)
    return "clipped" if told == "right" else told


UNDEFINED = "undefined"
"""What is wrong rows at one time and a crash at another."""


CLASSIFIERS: dict[str, Callable[[Answer], str]] = {
    "closed": closed_rows,
    "hidden_value": hidden,
    "hidden_key": hidden,
    "large": right_rows,
    "huge": right_rows,
    "half": lambda given: precision(given, [name for name in given.wanted if name in given.found]),
    "beyond": lengths_beyond,
    "below": lengths_below,
    "polarity": lambda given: answer(given.found["context"]),
    "gradients": gradients,
}
"""What each question's answer is called."""


def classified(name: str, given: Answer) -> str:
    """The finding of an answer, in a word or two."""
    if (name, given.refused) == ("beyond", "crash"):
        return UNDEFINED
    return given.refused or CLASSIFIERS[name](given)


# ------------------------------------------------------------------------------------------------ asking

APART = ("beyond", "below")
"""Questions that get a process of their own: what reads beyond an array may spoil what comes later."""


def installed(peer: Peer) -> bool:
    """Whether the packages of a call are here."""
    return all(find_spec(name) is not None for name in peer.packages)


def ask(peer: Peer, python: str = sys.executable, device: str = "cpu") -> tuple[str, Findings]:
    """Versions of the packages, and what is found of a call on a device.

    Raises: RuntimeError if its framework cannot be started.
    """
    cases = {name: own.case for name, own in asked(peer.operator, peer.takes).items()}
    apart = [name for name in cases if name in APART or (name == "polarity" and peer.raw)]
    together = [name for name in cases if name not in apart]
    found: Findings = {}
    for names in (together, *([name] for name in apart)):
        place = peer.raw_place if names == ["polarity"] else peer.place
        recording = recorded(place, peer, [cases[name] for name in names], python, device)
        for name in names:
            found |= told(name, cases[name], recording)
    return versions_of(peer, recording), {name: found[name] for name in COLUMNS if name in found}


def recorded(place: str, peer: Peer, cases: Sequence[Case], python: str, device: str) -> Recording:
    """What the target at a place answers."""
    cells = cells_of(cases, (*FULL, *HALF))
    recording = record_cells(Job(peer.name, place, python, device), cells, pack_cases(cells))
    if not recording.about:
        raise RuntimeError(f"{peer.id} cannot be asked: {recording.status[key(cells[0])]['message']}")
    return recording


def told(name: str, case: Case, recording: Recording) -> Findings:
    """The finding in float32, and what is different in float64; for half precision, one of each."""
    found = {tier: classified(name, Answer.of(recording, (case, tier))) for tier in case.tiers}
    if name == "half":
        return found
    first, second = found["float32"], found["float64"]
    return {name: first if first == second else f"{first} (float64: {second})"}


def versions_of(peer: Peer, recording: Recording) -> str:
    """The packages of a call with their versions, without what tells one build from another."""
    own = recording.about["versions"]
    return ", ".join(f"{name} {own[name].partition('+')[0]}" for name in peer.packages)


def ask_all(
    peers: Sequence[Peer],
    pythons: Mapping[str, str] | None = None,
    workers: int = 2,
    device: str = "cpu",
    progress: Progress = untold,
) -> dict[str, tuple[str, Findings]]:
    """Versions and findings of every call, by id. Interpreters are given by module of peers."""
    pythons = pythons or {}
    of = Counter(peer.module for peer in peers)
    done: Counter[str] = Counter()

    def one(peer: Peer) -> tuple[str, Findings]:
        progress(peer.module, done[peer.module], of[peer.module], peer.id)
        own = ask(peer, pythons.get(peer.module, sys.executable), device)
        done[peer.module] += 1
        if done[peer.module] == of[peer.module]:
            progress(peer.module, done[peer.module], of[peer.module])
        return own

    with ThreadPoolExecutor(max_workers=workers) as pool:
        return {peer.id: own for peer, own in zip(peers, pool.map(one, peers), strict=True)}


# ------------------------------------------------------------------------------------------------ what is kept

Kept = dict[str, list[dict[str, Any]]]
"""By id, what was found of each version, oldest first: {"versions": ..., "found": ...}."""


def load(path: Path = DATA) -> Kept:
    """What is kept."""
    kept: Kept = json.loads(path.read_text(encoding="utf-8")) if path.exists() else {}
    return kept


def save(kept: Kept, path: Path) -> None:
    """Keep it, in the order of the peers."""
    ordered = {peer.id: kept[peer.id] for peer in PEERS if peer.id in kept}
    path.write_text(json.dumps(ordered, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")


def merged(kept: Kept, answers: Mapping[str, tuple[str, Findings]]) -> Kept:
    """What is kept, with what was found now in the place of what was found of the same versions."""
    result = {name: list(own) for name, own in kept.items()}
    for name, (versions, found) in answers.items():
        rest = [entry for entry in result.get(name, []) if entry["versions"] != versions]
        result[name] = sorted([*rest, {"versions": versions, "found": found}], key=lambda own: release(own["versions"]))
    return result


def release(versions: str) -> list[tuple[int, ...]]:
    """Versions as numbers, so that they can be put in order."""
    return [tuple(map(int, re.findall(r"\d+", entry.rpartition(" ")[2]))) for entry in versions.split(", ")]


def changes(kept: Kept, answers: Mapping[str, tuple[str, Findings]]) -> Iterator[str]:
    """Every finding that is another than the one kept, of the same versions if there is one, or of the newest."""
    for name, (versions, found) in answers.items():
        before = kept.get(name, [])
        same = [entry for entry in before if entry["versions"] == versions]
        if not before:
            yield f"{name} ({versions}) was never asked before"
            continue
        known = (same or before)[-1]
        for column in dict.fromkeys([*known["found"], *found]):
            was, now = known["found"].get(column, "not asked"), found.get(column, "not asked")
            if was != now and not near(was, now):
                before_and_now = f"was {was!r} ({known['versions']}), is {now!r} ({versions})"
                yield f"{name}: {COLUMNS.get(column, column)}: {before_and_now}"


def near(was: str, now: str) -> bool:
    """Whether both are figures, and at most a step apart: another processor rounds otherwise."""
    if not (was.startswith("≤ ") and now.startswith("≤ ")):
        return False
    smaller, larger = sorted(float(words.removeprefix("≤ ")) for words in (was, now))
    return larger <= 3.5 * smaller


COLUMNS = {
    "closed": "closed rows",
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
}
"""What is found of a call, and how it is called."""
