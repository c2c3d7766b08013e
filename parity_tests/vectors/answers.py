"""Answers to test vectors, as recordings that are compared like any other."""

from __future__ import annotations

import hashlib
import json
import re
from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

from backends.archives import ArchiveError, foreign_arrays, regular_file
from backends.schema import build, clean
from parity_tests.format.case import Arrays, is_floating
from parity_tests.format.families import Suite
from parity_tests.format.selection import Cell, Selection
from parity_tests.vectors.description import GRADIENT, quantity_name
from parity_tests.vectors.export import INDEX, Index, is_exportable
from parity_tests.workers.answers import Answer
from parity_tests.workers.recordings import Recording, common_cells


@dataclass(frozen=True)
class Vectors:
    """A folder written by `export`, every file of which has its digest; `load` checks that."""

    folder: Path
    index: Index

    @classmethod
    def load(cls, folder: Path) -> Vectors:
        """Read the index, and check the digest of every file.

        Raises: ArchiveError if there is no index, or a file is damaged or missing.
        """
        path = folder / INDEX
        try:
            index: Index = build(Index, json.loads(regular_file(path).read_text(encoding="utf-8")))
            build(Selection, index.selection, "selection")
        except (OSError, ValueError, RecursionError) as error:
            what = "expected a folder written by `attention-parity export`"
            raise ArchiveError(f"{path} is not an index of vectors: {error}; {what}") from error
        if index.digest != index.compute_digest():
            raise ArchiveError(f"{path} does not match its digest: it was changed; export the vectors again")
        for name, digest in index.files.items():
            if name != str(PurePosixPath(name)) or name.startswith("/") or ".." in PurePosixPath(name).parts:
                raise ArchiveError(f"{path}: {clean(name)} is not the path of a file in its folder")
            if hashlib.sha256(regular_file(folder / name).read_bytes()).hexdigest() != digest:
                raise ArchiveError(f"{folder / name} does not match its digest in {INDEX}: export the vectors again")
        return cls(folder, index)

    def cells(self, suite: Suite) -> list[Cell]:
        """The cells of the vectors, which must be the same here.

        Raises: Mismatch if the specification, the cases or their inputs are others here.
        """
        return common_cells({str(self.folder): self._recording("vectors")}, suite.where(is_exportable))

    def answers(self, file: Path, cells: Iterable[Cell]) -> Recording:
        """The answers in a safetensors file, as a recording of that name, for the cells of the vectors.

        An array that no vector needs is refused. Gradients that the vectors do not have are not implemented.
        Raises: ArchiveError if the file cannot be read, or has such an array.
        """
        try:
            arrays = foreign_arrays(regular_file(file).read_bytes())
        except ArchiveError as error:
            raise ArchiveError(error if str(file) in str(error) else f"{file} is not safetensors: {error}") from error
        found: dict[str, Arrays] = defaultdict(dict)
        for name, array in arrays.items():
            case, _, rest = name.partition("/")
            dtype, _, answer = rest.partition("/")
            entry = self.index.vectors.get(f"{case}/{dtype}")
            if entry is None:
                expected = f"an id and an answer of {self.folder / INDEX}"
                raise ArchiveError(f"{file}: {clean(name)} answers no vector: expected {expected}")
            if answer not in entry.answers:
                expected = ", ".join(entry.answers)
                raise ArchiveError(f"{file}: {clean(name)} is no answer to this vector: expected {expected}")
            found[f"{case}/{dtype}"][quantity_name(answer)] = array
        recording = self._recording(re.sub(r"[^\w.-]", "_", file.stem)[-40:].lstrip(".-") or "answers")
        for cell in cells:
            if cell.key in found:
                recording.cells[cell.key] = found[cell.key]
                recording.answers[cell.key] = Answer(missing=self._missing(cell))
            else:
                recording.answers[cell.key] = Answer("missing", f"{file} has no answer to this vector")
        return recording

    def _missing(self, cell: Cell) -> tuple[str, ...]:
        """The gradients of a cell, if the vectors have none."""
        arrays = {} if self.index.gradients else {**cell.case.inputs, **cell.case.parameters}
        return tuple(f"{GRADIENT}{name}" for name, array in arrays.items() if is_floating(array))

    def _recording(self, name: str) -> Recording:
        index = self.index
        return Recording(
            name,
            "cpu",
            inputs={key: entry.cell for key, entry in index.vectors.items()},
            selection=build(Selection, index.selection),
            seed=index.seed,
            specification=index.specification,
            attention_parity=index.attention_parity,
        )
