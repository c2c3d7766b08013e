"""What running a model gives: arrays by name, and a recording of the calls of its sublayers."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields, is_dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

Arrays = dict[str, np.ndarray]

SMALL = 2**20
"""The bytes up to which a recorded array is read as a whole."""


@dataclass(frozen=True)
class Seen:
    """An array that entered or left a call: its name there, its moments, and the file that it is kept in.

    The moments are the number of values and of finite ones, sums of finite values, of their magnitudes, squares and
    cubes, and a weighted sum, which depends on their order. change is the distance to the same array of another run.
    """

    name: str
    shape: tuple[int, ...]
    dtype: str
    moments: tuple[float, ...]
    file: str = ""
    change: float = 0.0

    @property
    def array(self) -> np.ndarray:
        """The array, read from its file; floating ones in float64."""
        return _load(self.file)

    @property
    def is_floating(self) -> bool:
        """Whether it holds floating numbers."""
        return "float" in self.dtype

    @property
    def size(self) -> int:
        """The number of values."""
        return int(self.moments[0])


@functools.lru_cache(maxsize=256)
def _load(file: str) -> np.ndarray:
    """The array of a file, whose name is no other array's while the process runs; a large one is read in parts."""
    large = Path(file).stat().st_size > SMALL
    return np.load(file, mmap_mode="r" if large else None, allow_pickle=False)


@dataclass(frozen=True)
class Call:
    """One call of a sublayer: its path, the number of the call, its class, and what it read and returned.

    begin and end are places in the order of events: a call between those of another one is made by it. gradients are
    those of the outputs, by name, as far as they are known. parameters are the names of its own, not of those inside.
    """

    path: str
    number: int
    kind: str
    begin: int
    end: int
    inputs: tuple[Seen, ...]
    outputs: tuple[Seen, ...] = ()
    gradients: Mapping[str, Seen] = field(default_factory=dict)
    parameters: tuple[str, ...] = ()
    settings: Mapping[str, Any] = field(default_factory=dict)
    """Its attributes that are numbers, texts or truth values: what was set when it was made."""

    @property
    def name(self) -> str:
        """Its path, and the number of the call after the first."""
        path = self.path or "the model"
        return f"{path} (call {self.number + 1})" if self.number else path

    def encloses(self, other: Call) -> bool:
        """Whether the other call was made by this one."""
        return self.begin < other.begin and other.end < self.end


@dataclass
class Answer:
    """What a side gives for inputs: outputs, gradients and changed state by name, and calls if these were recorded.

    unread are outputs that hold no arrays, changed the inputs that the side changed in place, and unseen the sublayers
    whose calls cannot be recorded, with the reason.
    """

    outputs: Arrays
    gradients: Arrays = field(default_factory=dict)
    state: Arrays = field(default_factory=dict)
    unread: tuple[str, ...] = ()
    changed: tuple[str, ...] = ()
    calls: tuple[Call, ...] = ()
    unseen: tuple[str, ...] = ()


class RunOptions(NamedTuple):
    """How a side is run, in the words of `Side.run`."""

    dtype: str
    cotangents: Mapping[str, np.ndarray] | None
    training: bool
    recorder: Recorder | None


class Recorder:
    """Records calls as they happen: arrays go to files of a folder, moments stay in memory.

    before is the recording of another run of the same side: the distance to its arrays is kept, and no file.
    """

    def __init__(self, folder: Path, before: Sequence[Call] = ()) -> None:
        self.folder = folder
        self.before = {(call.path, call.number): call for call in before}
        self.calls: list[Call] = []
        self.unseen: dict[str, None] = {}
        self._events = 0
        self.files = len(list(folder.iterdir())) if folder.is_dir() else 0
        self._numbers: dict[str, int] = {}

    def enter(
        self,
        path: str,
        kind: str,
        inputs: Mapping[str, np.ndarray],
        parameters: Sequence[str] = (),
        settings: Mapping[str, Any] | None = None,
    ) -> int:
        """Begin a call; the number returned names it to `leave` and `gradient`."""
        number = self._numbers.get(path, 0)
        self._numbers[path] = number + 1
        before = self.before.get((path, number))
        seen = self._all(inputs, () if before is None else before.inputs)
        begin = self._next_event()
        self.calls.append(Call(path, number, kind, begin, begin, seen, (), {}, tuple(parameters), settings or {}))
        return len(self.calls) - 1

    def leave(self, index: int, outputs: Mapping[str, np.ndarray]) -> None:
        """End a call."""
        call = self.calls[index]
        before = self.before.get((call.path, call.number))
        seen = self._all(outputs, () if before is None else before.outputs)
        self.calls[index] = replace(call, outputs=seen, end=self._next_event())

    def gradient(self, index: int, name: str, array: np.ndarray) -> None:
        """Add the gradient of an output of a call."""
        call = self.calls[index]
        before = self.before.get((call.path, call.number))
        known = () if before is None else tuple(before.gradients.values())
        (seen,) = self._all({name: array}, known)
        self.calls[index] = replace(call, gradients={**call.gradients, name: seen})

    @property
    def completed_calls(self) -> tuple[Call, ...]:
        """The calls that returned, in the order in which they did."""
        return tuple(sorted((call for call in self.calls if call.end > call.begin), key=lambda call: call.end))

    def _next_event(self) -> int:
        self._events += 1
        return self._events

    def _all(self, arrays: Mapping[str, np.ndarray], before: Sequence[Seen]) -> tuple[Seen, ...]:
        known = {seen.name: seen for seen in before}
        return tuple(self._keep(name, array, known.get(name)) for name, array in arrays.items())

    def _keep(self, name: str, array: np.ndarray, before: Seen | None) -> Seen:
        dtype = array.dtype.name
        wide = np.asarray(array, np.float64) if "float" in dtype else np.asarray(array)
        seen = Seen(name, array.shape, dtype, moments_of(wide))
        if before is not None:
            return replace(seen, change=distance(wide, before.array))
        if self.before:
            return seen
        self.files += 1
        file = self.folder / f"{self.files}.npy"
        np.save(file, wide, allow_pickle=False)
        return replace(seen, file=str(file))


def moments_of(array: np.ndarray) -> tuple[float, ...]:
    """The moments of an array, as `Seen` describes them."""
    values = np.ravel(array).astype(np.float64)
    finite = values[np.isfinite(values)]
    weights = np.cos(np.arange(finite.size))
    sums = (finite, np.abs(finite), finite**2, finite**3, finite * weights)
    with np.errstate(all="ignore"):
        return (float(values.size), float(finite.size), *(float(each.sum()) for each in sums))


def distance(actual: np.ndarray, expected: np.ndarray) -> float:
    """The largest distance between finite values; infinite for other shapes, or where one alone is finite."""
    if actual.shape != expected.shape:
        return float("inf")
    one, other = actual.astype(np.float64), expected.astype(np.float64)
    finite = np.isfinite(one)
    if not np.array_equal(finite, np.isfinite(other)):
        return float("inf")
    return float(np.abs(np.where(finite, one, 0.0) - np.where(finite, other, 0.0)).max(initial=0.0))


def flatten(
    tree: Any, is_array: Callable[[Any], bool], to_numpy: Callable[[Any], np.ndarray], name: str = ""
) -> tuple[Arrays, list[str]]:
    """The arrays of a tree of mappings, sequences and dataclasses by their paths, and the paths of what is none."""
    arrays: Arrays = {}
    unread: list[str] = []
    for path, leaf in leaves(tree, is_array, name):
        if is_array(leaf):
            arrays[path] = to_numpy(leaf)
        elif not isinstance(leaf, (bool, int, float, str, bytes)):
            unread.append(f"{path} ({type(leaf).__name__})")
    return arrays, unread


def leaves(tree: Any, is_array: Callable[[Any], bool], name: str = "") -> Iterator[tuple[str, Any]]:
    """Yield what a tree of mappings, sequences and dataclasses holds, with its path; None is nothing."""
    if tree is None:
        return
    inside: Mapping[Any, Any] | None = None
    if is_array(tree):
        pass
    elif isinstance(tree, Mapping):
        inside = tree
    elif isinstance(tree, tuple) and hasattr(tree, "_fields"):
        inside = dict(zip(tree._fields, tree, strict=True))
    elif isinstance(tree, (tuple, list)):
        inside = dict(enumerate(tree))
    elif is_dataclass(tree) and not isinstance(tree, type):
        inside = {entry.name: getattr(tree, entry.name) for entry in fields(tree)}
    if inside is None:
        yield name or "output", tree
        return
    for key, value in inside.items():
        yield from leaves(value, is_array, f"{name}.{key}" if name else str(key))
