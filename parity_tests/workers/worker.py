"""The worker process: imports one framework, runs batches of cells on a backend and streams the answers.

    python -m parity_tests.workers.worker BACKEND PLACE DEVICE

PLACE is a backend's module, or the location of a target (see `parity_tests.workers.target`); a batch may name another
target of the same framework. Requires NumPy, safetensors and the framework, and no other package of the parity tests.
Reads batches from standard input and writes answers to standard output, both as frames: eight bytes of length, then a
packed archive whose header has its kind. Each batch is answered before the next is read. Output of the framework goes
to standard error.
"""

from __future__ import annotations

import faulthandler
import functools
import os
import sys
import time
import traceback
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, BinaryIO

import numpy as np

from backends.archives import pack_arrays, unpack_arrays
from parity_tests.workers.answers import Answer
from parity_tests.workers.environment import collect_less
from parity_tests.workers.keeper import keep
from parity_tests.workers.package import Backend
from parity_tests.workers.target import NotImplementedHere, Sources, Target, TargetError, open_target


def main() -> None:
    """Answer batches from standard input until it ends."""
    name, place, device = sys.argv[1:]
    keep()
    faulthandler.enable()
    # The framework may read and print: from here on there is nothing to read, and file descriptor 1 is standard error.
    with os.fdopen(os.dup(0), "rb") as batches, os.fdopen(os.dup(1), "wb") as stream, open(os.devnull, "rb") as nothing:
        os.dup2(nothing.fileno(), 0)
        os.dup2(2, 1)
        sources = Sources(place)
        at = functools.cache(functools.partial(open_target, device=device))
        try:
            backend = at(place)
        except TargetError as error:
            send(stream, {}, {"kind": "refusal", "reason": str(error)})
            return
        collect_less()
        send(stream, {}, {"kind": "hello", **backend.describe(), "backend": name, "files": sources.imported_files()})
        for arrays, header in map(unpack_arrays, frames(batches)):
            answer_cells(stream, at(header["place"] or place), group(arrays), header["cells"], sources.imported_files)
        send(stream, {}, {"kind": "end"})


def answer_cells(
    stream: BinaryIO,
    backend: Backend | Target,
    arrays: Mapping[str, Mapping[str, Mapping[str, np.ndarray]]],
    cells: Sequence[Mapping[str, Any]],
    imported: Callable[[], dict[str, str]] = dict,
) -> None:
    """Run the cells in order, and send the answer or exception of each.

    imported returns the files that were imported since its last call.
    """
    for cell in cells:
        start, compiled = time.perf_counter(), backend.compile_seconds()
        about = {"kind": "cell", "key": cell["key"]}
        try:
            reason = backend.reason_against(cell)
            if reason is not None:
                send(stream, {}, {**about, **Answer("not-applicable", reason).as_json()})
                continue
            parts = arrays[cell["key"]]
            outputs = first = backend.run(cell, parts["input"], parts["parameter"], parts["cotangent"])
            for _ in range(1, cell.get("repeats", 1)):
                if outputs.is_like(first):  # else the answer is one that differs
                    outputs = backend.run(cell, parts["input"], parts["parameter"], parts["cotangent"])
            answer = Answer(
                seconds=time.perf_counter() - start,
                compile_seconds=backend.compile_seconds() - compiled,
                changed=tuple(outputs.changed),
                missing=tuple(outputs.missing),
            )
            send(stream, outputs.arrays, {**about, **answer.as_json(), "files": imported()})
        except NotImplementedHere as error:
            send(stream, {}, {**about, **Answer("not-implemented", str(error)).as_json()})
        except BaseException as error:  # an implementation may raise anything, SystemExit too: it costs its own cell
            seconds = time.perf_counter() - start
            answer = Answer("error", f"{type(error).__name__}: {message_of(error)}", traceback.format_exc(), seconds)
            send(stream, {}, {**about, **answer.as_json()})


def message_of(error: BaseException) -> str:
    """The message of an exception, even if formatting it raises another."""
    try:
        return str(error)
    except Exception as another:
        return f"its message cannot be formatted: {type(another).__name__}"


def group(arrays: Mapping[str, np.ndarray]) -> Mapping[str, Mapping[str, Mapping[str, np.ndarray]]]:
    """The arrays of a batch by cell, by kind (input, parameter, cotangent) and by name."""
    cells: dict[str, Any] = defaultdict(lambda: defaultdict(dict))
    for name, array in arrays.items():
        case, dtype, kind, array_name = name.split("/", 3)
        cells[f"{case}/{dtype}"][kind][array_name] = array
    return cells


def frames(stream: BinaryIO) -> Iterator[bytes]:
    """Yield the content of each frame until the end of the stream."""
    while length := stream.read(8):
        yield stream.read(int.from_bytes(length, "big"))


def send(stream: BinaryIO, arrays: Mapping[str, np.ndarray], header: Mapping[str, Any]) -> None:
    """Write one frame."""
    data = pack_arrays(arrays, header)
    stream.write(len(data).to_bytes(8, "big") + data)
    stream.flush()


if __name__ == "__main__":
    main()
