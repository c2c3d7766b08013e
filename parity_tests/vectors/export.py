"""Test vectors as files: safetensors and JSON for each cell, ONNX where it is the same function, and an index."""

from __future__ import annotations

import hashlib
import json
import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any, Literal

from attention_core.operators import SPECIFICATION_VERSION
from backends.archives import pack_arrays
from backends.files import write_file
from parity_tests.format.call import PIECES, TRAINING, output_names
from parity_tests.format.case import SEED, Arrays, Case
from parity_tests.format.expected import cotangents
from parity_tests.format.selection import Cell, Selection
from parity_tests.judge.question import Question
from parity_tests.vectors.description import answer_name, description, to_stored
from parity_tests.vectors.onnx import node_test
from parity_tests.workers.answers import is_gradient
from parity_tests.workers.process import Progress, report_cells, untold
from parity_tests.workers.recordings import digests, own_version

INDEX = "index.json"
VECTOR = "vector"
"""The kind of the files of arrays."""
ANSWERS = ("outputs/", "gradients/")
"""The prefixes of the arrays that are answers."""

ANSWERING = (
    "<id>.json describes a vector, <id>.safetensors has its arrays. The answer to the array outputs/context of the "
    "vector <id> is the array <id>/outputs/context of a safetensors file with the answers to all vectors, in the dtype "
    "that the description names; `answers` lists what each vector needs."
)


@dataclass(frozen=True)
class Entry:
    """A vector in the index: the digest of its cell, and the names of its answers."""

    cell: str
    answers: list[str]


@dataclass(frozen=True)
class Index:
    """The schema of the index."""

    kind: Literal["vectors"]
    attention_parity: str
    specification: str
    seed: int
    selection: dict[str, Any]
    gradients: bool
    answering: str
    vectors: dict[str, Entry]
    files: dict[str, str]
    """The SHA-256 of every other file, by its path."""
    digest: str = ""

    def compute_digest(self) -> str:
        """The SHA-256 of the index without its digest, as JSON with sorted names: that of all files."""
        content = {name: value for name, value in asdict(self).items() if name != "digest"}
        return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()


@dataclass
class Exported:
    """What was written: the index, and the number of vectors with an ONNX model, or without one for each reason."""

    index: Index
    models: int = 0
    without: Counter[str] = field(default_factory=Counter)


def is_exportable(case: Case) -> bool:
    """Whether arrays in a file can state a case.

    Trainings, arguments that are functions, pruned layers, and several calls, or whose order matters, are not.
    """
    return (
        case.operator != TRAINING
        and case.method != "pruned"
        and PIECES not in case.options
        and not (case.again or case.twice or any(name.startswith("losses.") for name in case.inputs))
    )


def export(
    cells: Sequence[Cell], selection: Selection, folder: Path, gradients: bool = True, progress: Progress = untold
) -> Exported:
    """Write the vectors of these cells, which are those of the selection, into a folder; the index comes last.

    Without gradients, there are no cotangents, and no gradient is needed as an answer. Raises: OSError.
    """
    known = digests(cells)
    index = Index(
        kind="vectors",
        attention_parity=own_version(),
        specification=SPECIFICATION_VERSION,
        seed=SEED,
        selection=asdict(selection),
        gradients=gradients,
        answering=ANSWERING,
        vectors={},
        files={},
    )
    exported = Exported(index)
    for cell in report_cells("export", cells, progress):
        question = Question(cell)
        arrays = arrays_of(question, gradients)
        model, reason = node_test(question)
        exported.models += bool(model)
        exported.without.update([reason] if reason else [])
        files = {
            f"{cell.key}.safetensors": pack_arrays(arrays, {"kind": VECTOR, "id": cell.key}),
            f"{cell.key}.json": as_json(description(question, arrays, cell.key if model else "")),
            **{f"{cell.key}/{name}": content for name, content in model.items()},
        }
        for name, content in files.items():
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            write_file(folder / name, content)
            index.files[name] = hashlib.sha256(content).hexdigest()
        index.vectors[cell.key] = Entry(known[cell.key], [name for name in arrays if name.startswith(ANSWERS)])
    exported.index = replace(index, digest=index.compute_digest())
    write_file(folder / INDEX, as_json(asdict(exported.index)))
    return exported


def arrays_of(question: Question, gradients: bool = True) -> Arrays:
    """Every array of a cell by its name in the file."""
    case, dtype = question.cell
    inputs, parameters = case.at(dtype)
    outputs = output_names(case.operator, case.method, case.options)
    factors = cotangents(case, dtype) if gradients else {}
    arrays = {f"inputs/{name}": array for name, array in inputs.items()}
    arrays |= {f"parameters/{name}": array for name, array in parameters.items()}
    arrays |= {f"cotangents/{outputs[position]}": array for position, array in factors.items()}
    arrays |= {
        answer_name(name): quantity.reference
        for name, quantity in question.quantities.items()
        if gradients or not is_gradient(name)
    }
    return {name: to_stored(array) for name, array in arrays.items()}


def as_json(content: Any) -> bytes:
    """The bytes of a JSON file, with shapes and axes in one line each."""
    text = json.dumps(content, indent=1, ensure_ascii=False, allow_nan=False)
    text = re.sub(r"\[\n *([^\[\]{}.]+?)\n *\]", _one_line, text)
    return f"{text}\n".encode()


def _one_line(found: re.Match[str]) -> str:
    return f"[{' '.join(found[1].split())}]"
