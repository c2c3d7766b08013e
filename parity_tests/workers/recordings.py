"""Batches sent to workers and recordings of their answers, both safetensors with a digest."""

from __future__ import annotations

import functools
import hashlib
import json
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any, NamedTuple

from attention_core.operators import SPECIFICATION_VERSION
from backends import FRAMEWORKS
from backends.archives import ArchiveError, load_archive, pack_arrays, save_arrays, unpack_arrays
from backends.schema import SchemaError, build, clean
from parity_tests.format.case import DTYPES, MIXED, SEED, Arrays, Case
from parity_tests.format.expected import cotangents
from parity_tests.format.families import OPERATORS, Suite
from parity_tests.format.selection import Cell, Selection
from parity_tests.workers.answers import MISSING, RECORDED, UNANSWERED, Answer

RECORDING = "recording"
MOST_NAMED = 5


def label(backend: str, device: str, version: str = "") -> str:
    """The name of a backend in tables and pairs: with its version if there are several, and its device if not the CPU.

    Such as "jax", "jax:cuda", "jax 0.7.2" and "jax 0.11.0 cuda".
    """
    named = f"{backend} {version}" if version else backend
    return named if device in ("", "cpu") else f"{named}{' ' if version else ':'}{device}"


def backend_of(name: str) -> str:
    """The backend of a name made by `labelled`."""
    return re.split("[ :]", name, maxsplit=1)[0]


class Mismatch(ValueError):
    """Recordings cannot be compared with each other or with the current cases."""


class Batch(NamedTuple):
    """Cells sent to a worker together: packed with inputs, parameters and cotangents, and a digest of each."""

    cells: Sequence[Cell]
    packed: bytes
    digests: dict[str, str]

    @classmethod
    def unpack(cls, packed: bytes) -> Batch:
        """The batch of these bytes; its cells have no arrays, and its digests are those of what arrived.

        Raises: ArchiveError if the bytes are damaged.
        """
        arrays, header = unpack_arrays(packed)
        parts: dict[str, Arrays] = {}
        for name, array in arrays.items():
            case, dtype, rest = name.split("/", 2)
            parts.setdefault(f"{case}/{dtype}", {})[rest] = array
        cells, hashes = [], {}
        for question in header["cells"]:
            name = question["key"].rpartition("/")[0].removeprefix(f"{question['operator']}-")
            cells.append(Cell(Case(question["operator"], name, "", {}, method=question["method"]), question["dtype"]))
            hashes[question["key"]] = digest_of(question, parts.get(question["key"], {}))
        return cls(cells, packed, hashes)

    def only(self, cells: Sequence[Cell]) -> Batch:
        """The batch restricted to these cells."""
        arrays, header = unpack_arrays(self.packed)
        keys = {cell.key for cell in cells}
        described = [cell for cell in header["cells"] if cell["key"] in keys]
        arrays = {name: array for name, array in arrays.items() if "/".join(name.split("/", 2)[:2]) in keys}
        hashes = {key: digest for key, digest in self.digests.items() if key in keys}
        return Batch(cells, pack_arrays(arrays, {**header, "cells": described}), hashes)


def batch_of(cells: Iterable[Cell], place: str = "") -> Batch:
    """Pack the cells into a batch, for the worker's own place or for another target of the same framework."""
    cells = list(cells)
    questions = [_question(cell) for cell in cells]
    arrays = {
        f"{question['key']}/{name}": array for question, contents in questions for name, array in contents.items()
    }
    header = {
        "cells": [question for question, _ in questions],
        "place": place,
        "seed": SEED,
        "specification": SPECIFICATION_VERSION,
    }
    hashes = {question["key"]: digest_of(question, contents) for question, contents in questions}
    return Batch(cells, pack_arrays(arrays, header), hashes)


REPEATS = 3
"""How often the repetition of a case is computed, so that its question is asked four times in all."""


def digests(cells: Iterable[Cell]) -> dict[str, str]:
    """A digest of each cell's definition: operator, method, config, options, inputs, parameters and cotangents."""
    return {cell.key: digest_of(*_question(cell)) for cell in cells}


def _question(cell: Cell) -> tuple[dict[str, Any], Arrays]:
    case, dtype = cell
    inputs, parameters = case.at(dtype)
    arrays = {f"input/{name}": array for name, array in inputs.items()}
    arrays |= {f"parameter/{name}": array for name, array in parameters.items()}
    arrays |= {f"cotangent/{index}": array for index, array in cotangents(case, dtype).items()}
    question = {
        "key": cell.key,
        "dtype": dtype,
        "operator": case.operator,
        "method": case.method,
        "config": dict(case.config),
        "options": dict(case.options),
        "layouts": dict(case.layouts),
        "shared": dict(case.shared),
        "twice": case.twice,
        "inputs": sorted({array.dtype.name for array in inputs.values()}) or [dtype],
        **({"repeats": REPEATS} if case.again else {}),
    }
    return question, arrays


def digest_of(question: Mapping[str, Any], arrays: Arrays) -> str:
    """The SHA-256 of plain data and of arrays by name, with their dtypes and shapes."""
    digest = hashlib.sha256(json.dumps(question, sort_keys=True).encode())
    for name, array in sorted(arrays.items()):
        digest.update(f"\n{name} {array.dtype.name} {array.shape} ".encode() + array.tobytes())
    return digest.hexdigest()


@functools.cache
def own_version() -> str:
    """The installed version of this package."""
    try:
        return version("attention-parity")
    except PackageNotFoundError:
        return "not installed"


Plain = bool | int | float | str | None

VERSION = (r"[\w.+ -]{1,64}", "a version")
PATTERNS = {
    "attention_parity": VERSION,
    "specification": VERSION,
    "backend": (r"\w[\w.-]{0,63}", "a name of letters, digits, '.', '-' and '_'"),
    "device": (r"[a-z]{1,16}(:[0-9]{1,3})?", "a name such as cpu, cuda or cuda:1"),
    "inputs": (r"\w[\w.-]{0,63}/\w{1,64} [0-9a-f]{64}", "cells with the SHA-256 of the inputs of each"),
    "answers": (
        rf"\w[\w.-]{{0,63}}/\w{{1,64}} ({'|'.join(RECORDED)})( \w[\w.-]{{0,127}})*",
        f"cells with the status of each, one of {', '.join(RECORDED)}, and names of quantities",
    ),
}
"""What the texts of a header have to match, and its description."""


@dataclass(frozen=True)
class Selected:
    """The schema of a selection of cells."""

    dtypes: list[str]
    pattern: str | None
    operators: list[str]
    training: bool
    core: bool
    once: bool


@dataclass(frozen=True)
class Header:
    """The schema of a recording's header. The file is untrusted."""

    attention_parity: str
    specification: str
    seed: int
    backend: str
    device: str
    about: dict[str, Plain | dict[str, Plain]]
    environment: dict[str, str]
    selection: Selected
    inputs: dict[str, str]
    answers: dict[str, Answer]

    def __post_init__(self) -> None:
        texts = {name: [getattr(self, name)] for name in ("attention_parity", "specification", "backend", "device")}
        texts["inputs"] = [f"{cell} {digest}" for cell, digest in self.inputs.items()]
        texts["answers"] = [
            " ".join((cell, answer.status, *answer.changed, *answer.missing)) for cell, answer in self.answers.items()
        ]
        for name, given in texts.items():
            pattern, what = PATTERNS[name]
            for text in given:
                if re.fullmatch(pattern, text, re.ASCII) is None:
                    raise SchemaError(name, f"{clean(text)}, expected {what}")
        for name, known in (("dtypes", (*DTYPES, *MIXED)), ("operators", OPERATORS)):
            for text in getattr(self.selection, name):
                if text not in known:
                    raise SchemaError(f"selection.{name}", f"{clean(text)}, expected some of {', '.join(known)}")


FIELDS = tuple(field.name for field in fields(Header))


@dataclass
class Recording:
    """The answers of one backend on one device by cell, with the arrays of successful ones by quantity.

    about is the worker's header: versions, device name and determinism settings in force. environment has the variables
    at its start, and inputs the digest of each cell's inputs.
    """

    backend: str
    device: str
    about: dict[str, Any] = field(default_factory=dict)
    cells: dict[str, Arrays] = field(default_factory=dict)
    answers: dict[str, Answer] = field(default_factory=dict)
    environment: dict[str, str] = field(default_factory=dict)
    inputs: dict[str, str] = field(default_factory=dict)
    selection: Selection = field(default_factory=Selection)
    seed: int = SEED
    specification: str = SPECIFICATION_VERSION
    attention_parity: str = field(default_factory=own_version)
    start_seconds: float = 0.0
    """The seconds of cold starts, from process creation to the framework's import; not written to files."""
    busy_seconds: float = 0.0
    """The seconds of all workers of a cluster together; 0 on one machine, and not written to files."""
    files: dict[str, str] = field(default_factory=dict)
    """The source files of a target, by their paths relative to the target's folder; not written to files."""
    version: str = ""
    """The version in the name, if a run has several of this backend; not written to files."""

    @property
    def name(self) -> str:
        """The name of the backend in tables and pairs."""
        return label(self.backend, self.device, self.version)

    def save(self, path: str | Path) -> None:
        """Write the recording to a file."""
        save_arrays(path, *self._content())

    def pack(self) -> bytes:
        """The bytes of the file."""
        return pack_arrays(*self._content())

    def _content(self) -> tuple[Arrays, dict[str, Any]]:
        arrays = {
            f"{cell}/{name}": array for cell, quantities in self.cells.items() for name, array in quantities.items()
        }
        header = {name: getattr(self, name) for name in FIELDS if name not in ("selection", "answers")}
        answers = {cell: answer.as_json() for cell, answer in self.answers.items()}
        given = {"kind": RECORDING, "selection": asdict(self.selection), "answers": answers}
        return arrays, {**given, **header}

    @classmethod
    def load(cls, path: str | Path) -> Recording:
        """Read a recording from a file.

        Raises: ArchiveError if the file is damaged, is not a recording, or has an invalid header.
        """
        return cls._read(path, *load_archive(path, RECORDING))

    @classmethod
    def unpack(cls, data: bytes, sender: str) -> Recording:
        """Read a recording from the bytes of a file; errors name the sender.

        Raises: ArchiveError, as load does.
        """
        return cls._read(sender, *unpack_arrays(data))

    @classmethod
    def _read(cls, path: str | Path, arrays: Arrays, header: Mapping[str, Any]) -> Recording:
        try:
            read: Header = build(Header, {name: header[name] for name in FIELDS if name in header})
        except SchemaError as error:
            raise ArchiveError(f"{path}: the recording's header is invalid: {error}") from error
        for cell in read.answers:
            if cell not in read.inputs:
                raise ArchiveError(f"{path}: {cell} has a status but no inputs")
        return cls(
            **{name: getattr(read, name) for name in FIELDS if name != "selection"},
            selection=Selection(**vars(read.selection)),
            cells=_arrays_by_cell(path, arrays, read.answers),
        )

    @property
    def unanswered_cells(self) -> dict[str, Answer]:
        """The answer of cells whose arrays are missing."""
        every = {cell: self.answers.get(cell, MISSING) for cell in self.inputs}
        return {cell: answer for cell, answer in every.items() if answer.status in UNANSWERED}

    def answer(self, cell: Cell) -> Answer:
        """The answer of a cell; its status is "missing" if there is none."""
        return self.answers.get(cell.key, MISSING)


def _arrays_by_cell(path: str | Path, arrays: Arrays, answers: Mapping[str, Answer]) -> dict[str, Arrays]:
    cells: dict[str, Arrays] = {cell: {} for cell, answer in answers.items() if answer.ok}
    for name, array in arrays.items():
        case, _, rest = name.partition("/")
        dtype, _, quantity = rest.partition("/")
        if f"{case}/{dtype}" not in cells or not quantity:
            raise ArchiveError(f"{path}: {name} belongs to no cell that was answered")
        cells[f"{case}/{dtype}"][quantity] = array
    return cells


def join(*recordings: Recording) -> Recording:
    """Merge the recordings of several workers of one backend, which have disjoint cells."""
    first = recordings[0]
    whole = Recording(first.backend, first.device, environment=first.environment, version=first.version)
    for part in recordings:
        whole.about = whole.about or part.about
        whole.cells |= part.cells
        whole.answers |= part.answers
        whole.inputs |= part.inputs
        whole.files |= part.files
        whole.start_seconds += part.start_seconds
        whole.busy_seconds += part.busy_seconds
    return whole


# ------------------------------------------------------------------------------------------------ judged elsewhere


def by_name(recordings: Mapping[str, Recording]) -> dict[str, Recording]:
    """The recordings of these files, keyed by the names used in verdicts, in the order of the frameworks.

    Raises: Mismatch if two are of one backend on one device.
    """
    files: dict[str, str] = {}
    for file, recording in recordings.items():
        if recording.name in files:
            raise Mismatch(
                f"{files[recording.name]} and {file} are both of {recording.backend} on {recording.device}: pass one "
                "of them"
            )
        files[recording.name] = file
    order = {name: position for position, name in enumerate(FRAMEWORKS)}
    ranked = sorted(files, key=lambda name: (order.get(backend_of(name), len(order)), name))
    return {name: recordings[files[name]] for name in ranked}


def common_cells(recordings: Mapping[str, Recording], suite: Suite) -> list[Cell]:
    """The cells of these recordings, which must be the same in all files and match the current cases.

    Raises: Mismatch, naming the difference, if their specification, seed or cells differ.
    """
    for file, recording in recordings.items():
        release = f"attention-parity {recording.attention_parity}"
        for what, there, here in (
            ("version of the specification", recording.specification, SPECIFICATION_VERSION),
            ("seed", recording.seed, SEED),
        ):
            if there != here:
                raise Mismatch(f"{file}: the {what} is {there} there and {here} here: judge it with {release}")
    first, *others = recordings
    for other in others:
        missing = {
            file: _without(recordings[file], recordings[second]) for file, second in ((first, other), (other, first))
        }
        if any(missing.values()):
            differences = "; ".join(
                f"only {file} has {_few(cells_of_one)}" for file, cells_of_one in missing.items() if cells_of_one
            )
            raise Mismatch(f"{differences}: record both with the same --dtype, --case and --operator")
    cells = recordings[first].selection.cells(suite)
    if not cells:
        raise Mismatch(f"{first} has no case that exists here: nothing to compare")
    current = digests(cells)
    for file, recording in recordings.items():
        _check_inputs(file, recording, current)
    return cells


def _without(recording: Recording, other: Recording) -> list[str]:
    return [cell for cell in recording.inputs if cell not in other.inputs]


def _check_inputs(file: str, recording: Recording, current: Mapping[str, str]) -> None:
    there = recording.inputs
    differences = {
        "absent there": [cell for cell in current if cell not in there],
        "absent here": [cell for cell in there if cell not in current],
        "other inputs": [cell for cell, digest in current.items() if there.get(cell, digest) != digest],
    }
    summary = "; ".join(f"{what}: {_few(cells)}" for what, cells in differences.items() if cells)
    if not summary:
        return
    # These three follow from the corpus, and are called after it.
    if all("-sentences" in cell for cells in differences.values() for cell in cells):
        raise Mismatch(
            f"{file} was recorded with a different corpus; pass the same --corpus and --sentences ({summary})"
        )
    raise Mismatch(
        f"{file} has other cases: {summary}. It was written by attention-parity {recording.attention_parity}, and "
        f"this is {own_version()}: compare it with the same version, or write it again"
    )


def _few(cells: Sequence[str]) -> str:
    more = f" and {len(cells) - MOST_NAMED} more" if len(cells) > MOST_NAMED else ""
    return ", ".join(cells[:MOST_NAMED]) + more
