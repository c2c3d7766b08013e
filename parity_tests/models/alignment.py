"""The first difference of two recordings: the innermost call whose inputs agree and whose outputs do not."""

from __future__ import annotations

import difflib
import functools
import itertools
import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Literal, NamedTuple

import numpy as np

from parity_tests.models.calls import Call, Seen, distance, moments_of
from parity_tests.models.difference import Difference, Given
from parity_tests.models.names import Names
from parity_tests.models.words import words_of

NEAR = 1e-5
"""By which part of their sums the moments of two arrays may differ that could be the same."""

PARTS = (2, 3, 4)
"""In how many parts of its last axis an array may be several of the other side."""

MOST_GIVEN = 12
"""The number of calls whose arrays are tried as that of which a wrong one is computed."""

MOST_AXES = 5
"""The number of axes up to which every order of them is tried."""

NOTHING = (0.0,) * 7
"""The moments of an array without values."""

Order = Literal["", "rearranged", "reordered"]
"""The same order; another shape, or other axes; the same values in the same shape in another order."""

Allowed = Callable[[Seen], float]
"""The distance that is allowed from an array of the expected side."""


class Match(NamedTuple):
    """An array of the actual side with the values of an expected one, the call that it belongs to, and its order."""

    seen: Seen
    call: Call | None
    order: Order


class Alignment:
    """Two recordings, aligned by the values that flow through them, and by names and order where these differ."""

    def __init__(
        self, actual: Sequence[Call], expected: Sequence[Call], allowed: Allowed, names: Names | None = None
    ) -> None:
        self.actual, self.expected, self.allowed, self.names = actual, expected, allowed, names or Names()
        self.pool: list[tuple[Seen, Call | None]] = []
        for call in actual:
            self.pool += [(seen, call) for seen in (*call.outputs, *call.inputs)]
        self.moments = _moments(self.pool)
        self.matches: dict[int, Match | None] = {}
        self._asked: list[Seen] = []  # kept, so that no other array gets the identity of one
        self.unpaired: list[str] = []
        """Expected sublayers whose output the actual side has nowhere, and that have no partner."""

    # ------------------------------------------------------------------------------------ by content

    def match(self, seen: Seen) -> Match | None:
        """The array of the actual side with the values of an expected one; in the same order, if there is one."""
        if not seen.file:
            return None
        if id(seen) not in self.matches:
            self._asked.append(seen)
            found = list(self._matches(seen))
            orders = ("", "rearranged", "reordered")
            self.matches[id(seen)] = min(found, key=lambda match: orders.index(match.order), default=None)
            if found or not seen.size or isinstance(seen, _Part):
                return self.matches[id(seen)]
            parts = [self.match(part) for part in parts_of(seen)]
            for count in PARTS:
                some = [part for part in parts[_start(count) : _start(count) + count] if part is not None]
                if len(some) == count:
                    self.matches[id(seen)] = some[0]._replace(order="rearranged")
        return self.matches[id(seen)]

    @functools.cached_property
    def parts(self) -> tuple[list[tuple[Seen, Call | None]], np.ndarray]:
        """The parts of the arrays of the actual side, which may be arrays on the other one, and their moments."""
        parts: list[tuple[Seen, Call | None]] = [(part, call) for seen, call in self.pool for part in parts_of(seen)]
        return parts, _moments(parts)

    def _matches(self, seen: Seen) -> Iterator[Match]:
        """Yield the arrays, and where there are none the parts of arrays, that have these values."""
        found = list(self._among(seen, self.pool, self.moments))
        yield from found or self._among(seen, *self.parts)

    def _among(self, seen: Seen, pool: Sequence[tuple[Seen, Call | None]], moments: np.ndarray) -> Iterator[Match]:
        if not pool:
            return
        allowed = self.allowed(seen)
        size = max(abs(seen.moments[3]), 1e-300), max(abs(seen.moments[4]), 1e-300)
        near = moments[:, 0] == seen.moments[0]
        near &= np.abs(moments[:, 2] - seen.moments[2]) <= NEAR * size[0] + seen.size * allowed
        near &= np.abs(moments[:, 3] - seen.moments[3]) <= NEAR * size[0] + seen.size * allowed
        near &= np.abs(moments[:, 4] - seen.moments[4]) <= NEAR * size[1] + 2 * size[0] * allowed
        for index in np.flatnonzero(near)[:64]:
            other, call = pool[index]
            order = order_of(other, seen, allowed)
            if order is not None:
                yield Match(other, call, order)
                if order == "":
                    return

    def agrees(self, call: Call) -> bool:
        """Whether the outputs of a call are somewhere on the actual side."""
        return all(self.match(seen) is not None for seen in call.outputs if seen.is_floating)

    def reads_the_same(self, call: Call) -> bool:
        """Whether its floating inputs are there, too, and in the same order where they have the same shape."""
        found = [self.match(seen) for seen in call.inputs if seen.is_floating]
        return all(match is not None and match.order != "reordered" for match in found)

    # ------------------------------------------------------------------------------------ the first difference

    def first_difference(self) -> Difference | None:
        """The first difference in the order in which the expected side computes."""
        taken = {
            id(match.call)
            for match in self._all_matches()
            if match.call is not None and match.seen in match.call.outputs
        }
        for call in self.expected:
            if self.agrees(call):
                continue
            partner = self.partner(call, taken)
            if partner is None:
                self.unpaired.append(call.name)
                continue
            if self._is_absorbed(call, partner):
                continue
            wrong = next(seen for seen in call.outputs if seen.is_floating and self.match(seen) is None)
            if self.reads_the_same(call):
                inner = self._own_code(call)
                return inner or Difference(
                    "output", call, partner, wrong, _alike(wrong, partner.outputs), self._known_arrays(call)
                )
            return self._before(call, partner)
        return self._last_difference()

    def _last_difference(self) -> Difference | None:
        """A difference of what the models return, whose values the actual side has elsewhere."""
        ends = [next((call for call in calls if not call.path), None) for calls in (self.expected, self.actual)]
        if ends[0] is None or ends[1] is None:
            return None
        for seen in ends[0].outputs:
            other = _alike(seen, ends[1].outputs)
            if seen.is_floating and order_of(other, seen, self.allowed(seen)) in (None, "reordered"):
                inside = [one for one in self.expected if ends[0].encloses(one)]
                given = tuple(pair for one in inside[-MOST_GIVEN:] for pair in self._pairs(one))
                return Difference("output", ends[0], ends[1], seen, other, given)
        return None

    def twin(self, call: Call, match: Match) -> Call | None:
        """The call of the actual side of that path, if its output is the same, else that of the match."""
        for one in self.actual:
            if (one.path, one.number) == (call.path, call.number) and any(
                _is_same(seen, match.seen) for seen in one.outputs
            ):
                return one
        return match.call

    def _all_matches(self) -> Iterable[Match]:
        return filter(None, (self.match(seen) for call in self.expected for seen in call.outputs if seen.is_floating))

    def _is_absorbed(self, call: Call, partner: Call) -> bool:
        """Whether the code behind a call makes of it what the actual side has, too, as an activation within a layer.

        That is so if the next array of that code that a call reads is the output of a layer of the actual side, the
        partner or a later one; or, if no call reads one, if the enclosing call agrees.
        """
        around = [one for one in self.expected if one.encloses(call)]
        parent = min(around, key=lambda one: one.end - one.begin, default=None)
        known = [seen for one in self.expected if one.end <= call.end for seen in (*one.inputs, *one.outputs)]
        known += [] if parent is None else parent.inputs
        later = [one for one in self.expected if one.begin > call.end and (parent is None or parent.encloses(one))]
        for one in sorted(later, key=lambda one: one.begin):
            new = [seen for seen in one.inputs if seen.is_floating and not any(_is_same(seen, it) for it in known)]
            if new:
                seen, made_by, _ = self.match(new[0]) or (None, None, "")
                return made_by is not None and seen in made_by.outputs and made_by.end >= partner.end
            known += one.outputs
        return parent is not None and not any(map(_is_same, call.outputs, parent.outputs)) and self.agrees(parent)

    def _own_code(self, call: Call) -> Difference | None:
        """The difference before an inner call that reads other numbers, though all finished ones agree."""
        inside = [one for one in self.expected if call.encloses(one)]
        late = [one for one in inside if not self.reads_the_same(one)]
        if late:
            partner = self.partner(late[0], set())
            return None if partner is None else self._before(late[0], partner)
        return None

    def _before(self, call: Call, partner: Call) -> Difference:
        """The difference in the code before a call, whose input it is."""
        wrong = next(
            seen
            for seen in call.inputs
            if seen.is_floating and ((match := self.match(seen)) is None or match.order == "reordered")
        )
        finished = [one for one in self.expected if one.end < call.begin and self.agrees(one) and one.outputs]
        around = [one for one in self.expected if one.encloses(call)]
        beside = [one for one in finished if not around or around[0].encloses(one)]
        given = [pair for one in reversed(beside[-MOST_GIVEN:]) for pair in self._pairs(one)]
        given += [pair for one in around[:1] for pair in self._pairs(one, outputs=False)]
        before = finished[-1] if finished else None
        actual = _alike(wrong, partner.inputs)
        return Difference("input", call, partner, wrong, actual, tuple(given), before, around[0] if around else None)

    def _known_arrays(self, call: Call) -> tuple[Given, ...]:
        inside = [one for one in self.expected if call.encloses(one) and self.agrees(one)]
        return tuple(
            pair for one in (call, *inside[-MOST_GIVEN:]) for pair in self._pairs(one, outputs=one is not call)
        )

    def _pairs(self, call: Call, outputs: bool = True) -> list[Given]:
        """The arrays of a call that agree, floating or not."""
        pairs = []
        for kind, seen in (*(("input", one) for one in call.inputs), *(("output", one) for one in call.outputs)):
            match = self.match(seen) if kind == "input" or outputs else None
            if match is not None and match.seen.file:
                pairs.append(Given(f"the {kind} of {call.name}", seen))
        return pairs

    # ------------------------------------------------------------------------------------ partners

    def partner(self, call: Call, taken: set[int]) -> Call | None:
        """The call of the actual side that does what an expected one does, though its numbers differ.

        It is the one that the names file names; else the one, among those with outputs of the same size, that reads the
        same numbers, has the more similar name, the same shape, as many parameters, and a similar place in the order.
        """
        named = [one for one in self.actual if self.names.sublayer(one.path) == call.path and one.number == call.number]
        if named:
            return named[0]
        sizes = sorted(seen.size for seen in call.outputs if seen.is_floating)
        best: tuple[float, Call] | None = None
        place = self.expected.index(call) / max(1, len(self.expected))
        for index, one in enumerate(self.actual):
            if id(one) in taken or sorted(seen.size for seen in one.outputs if seen.is_floating) != sizes:
                continue
            same = self._reads(one, call)
            name = difflib.SequenceMatcher(None, words_of(one.path), words_of(call.path), autojunk=False).ratio()
            distant = abs(index / max(1, len(self.actual)) - place)
            alike = len(one.parameters) == len(call.parameters)
            shape = [seen.shape for seen in one.outputs] == [seen.shape for seen in call.outputs]
            score = 2.0 * same + name + 0.5 * shape + 0.1 * alike + 0.2 * (one.number == call.number) - 0.5 * distant
            if best is None or score > best[0]:
                best = score, one
        return None if best is None or best[0] < 0.0 else best[1]

    def _reads(self, one: Call, call: Call) -> bool:
        """Whether a call reads what the expected one reads."""
        floating = [seen for seen in call.inputs if seen.is_floating]
        return bool(floating) and all(
            any(order_of(other, seen, self.allowed(seen)) is not None for other in one.inputs) for seen in floating
        )

    # ------------------------------------------------------------------------------------ backward

    def first_gradient(self) -> Difference | None:
        """The first difference on the way back, if all outputs agree and gradients were recorded on both sides."""
        for call in reversed(self.expected):
            for seen in call.outputs:
                match = self.match(seen)
                gradient = call.gradients.get(seen.name)
                if gradient is None or match is None or match.call is None:
                    continue
                twin = self.twin(call, match) or match.call
                other = twin.gradients.get(match.seen.name)
                if other is None or order_of(other, gradient, self.allowed(gradient)) is not None:
                    continue
                readers = [one for one in self.expected if any(_is_same(seen, given) for given in one.inputs)]
                reader = next((one for one in readers if self._gradient_agrees(one)), None)
                partner = None if reader is None else self.partner(reader, set())
                around = None if reader else next((one for one in self.expected if one.encloses(call)), None)
                return Difference(
                    "gradient",
                    reader or call,
                    partner or twin,
                    gradient,
                    other,
                    tuple(self._pairs(call)),
                    parent=around,
                )
        return None

    def _gradient_agrees(self, call: Call) -> bool:
        for seen in call.outputs:
            match = self.match(seen)
            other = None if match is None or match.call is None else match.call.gradients.get(match.seen.name)
            gradient = call.gradients.get(seen.name)
            if gradient is None or other is None or order_of(other, gradient, self.allowed(gradient)) is None:
                return False
        return bool(call.outputs)


def _moments(pool: Sequence[tuple[Seen, Call | None]]) -> np.ndarray:
    return np.array([seen.moments for seen, _ in pool]).reshape(len(pool), len(NOTHING))


def order_of(actual: Seen, expected: Seen, allowed: float) -> Order | None:
    """How the values of one array lie in another one; None if it has other values."""
    if actual.size != expected.size or not actual.file:
        return None
    one, other = actual.array, expected.array
    if one.shape == other.shape and distance(one, other) <= allowed:
        return ""
    if one.shape != other.shape and distance(one.reshape(-1), other.reshape(-1)) <= allowed:
        return "rearranged"
    if not np.isfinite(one).all() or not np.isfinite(other).all():
        return None
    if distance(np.sort(one, axis=None), np.sort(other, axis=None)) > allowed:
        return None
    if one.shape != other.shape or _is_transposed(one, other, allowed):
        return "rearranged"
    return "reordered" if one.size > 1 else None


def _is_transposed(one: np.ndarray, other: np.ndarray, allowed: float) -> bool:
    """Whether an array is another one with its axes in another order."""
    if one.ndim > MOST_AXES:
        return False
    orders = itertools.permutations(range(one.ndim))
    return any(
        tuple(one.shape[axis] for axis in axes) == other.shape and distance(one.transpose(axes), other) <= allowed
        for axes in orders
        if axes != tuple(range(one.ndim))
    )


def parts_of(seen: Seen) -> list[Seen]:
    """The equal parts of an array along its last axis, as arrays of their own, for each of PARTS."""
    if isinstance(seen, _Part) or not (seen.file and seen.is_floating and seen.shape and seen.shape[-1] > 1):
        return []
    parts: list[Seen] = []
    for count in PARTS:
        if seen.shape[-1] % count:
            parts += [_Part(seen.name, seen.shape, seen.dtype, NOTHING)] * count
            continue
        width = seen.shape[-1] // count
        for index in range(count):
            part = _Part(seen.name, (*seen.shape[:-1], width), seen.dtype, (), seen.file, 0.0, index * width)
            parts.append(replace(part, moments=moments_of(part.array)))
    return parts


def _start(count: int) -> int:
    return sum(other for other in PARTS if other < count)


@dataclass(frozen=True)
class _Part(Seen):
    """A part of a recorded array along its last axis."""

    start: int = 0

    @property
    def array(self) -> np.ndarray:
        """The part."""
        return super().array[..., self.start : self.start + self.shape[-1]]


def _alike(seen: Seen, others: Sequence[Seen]) -> Seen:
    """The array among others that stands for this one: of the same name, else of the same size, else the first."""
    floating = [other for other in others if other.is_floating] or list(others)
    same = [other for other in floating if other.size == seen.size]
    named = [other for other in same if other.name == seen.name and other.shape == seen.shape]
    return next(iter([*named, *same, *floating]), seen)


def _is_same(one: Seen, other: Seen) -> bool:
    return one.shape == other.shape and one.moments == other.moments


def error_between(actual: Seen, expected: Seen) -> float:
    """The largest distance of two arrays beside the largest expected entry; infinite if they cannot be compared."""
    largest = float(np.abs(expected.array).max(initial=0.0)) or 1.0
    if math.prod(actual.shape) != math.prod(expected.shape):
        return math.inf
    return distance(actual.array.reshape(expected.shape), expected.array) / largest


def errors_of(alignment: Alignment) -> Mapping[str, tuple[str, float]]:
    """For each expected call, the partner's name and the error of its first output, where there is a partner."""
    table: dict[str, tuple[str, float]] = {}
    for call in alignment.expected:
        seen = next((one for one in call.outputs if one.is_floating), None)
        if seen is None:
            continue
        match = alignment.match(seen)
        if match is not None and match.call is not None:
            twin = alignment.twin(call, match) or match.call
            table[call.name] = twin.name, error_between(match.seen, seen) if match.order == "" else 0.0
        elif (partner := alignment.partner(call, set())) is not None:
            table[call.name] = partner.name, error_between(_alike(seen, partner.outputs), seen)
    return table
