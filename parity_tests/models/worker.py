"""The worker process of a side: imports a target, and runs its model on the inputs that it is sent.

    python -m parity_tests.models.worker NAME TARGET DEVICE

TARGET is module:object or file.py:object: a model, a function to compare, or a class or function that makes a model
without arguments (MAKERS). Frames are those of `parity_tests.workers.worker`; recorded arrays are written to a folder
that the request names.
"""

from __future__ import annotations

import faulthandler
import inspect
import os
import platform
import sys
import traceback
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np

from backends.archives import unpack_arrays
from parity_tests.models.calls import Call, Recorder, Seen
from parity_tests.models.sides import DATA, FRAMEWORKS, Side, open_side
from parity_tests.workers.keeper import keep
from parity_tests.workers.target import Sources, load, split_location
from parity_tests.workers.worker import frames, message_of, send

MAKERS = ("make", "build", "create", "get", "load")
"""The beginnings of the names of functions that make a model, and are not compared themselves."""


def main() -> None:
    """Answer requests from standard input until it ends."""
    _, place, _ = sys.argv[1:]
    keep()
    faulthandler.enable()
    with (
        os.fdopen(os.dup(0), "rb") as requests,
        os.fdopen(os.dup(1), "wb") as stream,
        open(os.devnull, "rb") as nothing,
    ):
        os.dup2(nothing.fileno(), 0)
        os.dup2(2, 1)
        sources = Sources(place)
        try:
            side = open_target(place)
        except Exception as error:  # whatever the target raises
            words = f"{type(error).__name__}: {message_of(error)}"
            send(stream, {}, {"kind": "refusal", "reason": words, "trace": traceback.format_exc()})
            return
        inputs = {f"kept/{name}": array for name, array in getattr(side, "inputs", {}).items()}
        header = {"kind": "side", **description(side), "files": sources.imported_files()}
        send(stream, {**_with_kind("array", side.arrays), **inputs}, header)
        for arrays, header in map(unpack_arrays, frames(requests)):
            try:
                arrays, header = answer(side, arrays, header)
                send(stream, arrays, {**header, "files": sources.imported_files()})
            except Exception as error:  # whatever a model raises
                reason = f"{type(error).__name__}: {message_of(error)}"
                send(stream, {}, {"kind": "error", "reason": reason, "trace": traceback.format_exc()})


def open_target(place: str) -> Side:
    """The side of the target at a location.

    A class, and a function whose name begins with a word of MAKERS, makes the model.
    Raises: TargetError, SideError; any exception of the target.
    """
    path = split_location(place)[0]
    if path.endswith(DATA):
        return open_side(path)
    found = load(place)[0]
    is_maker = inspect.isclass(found) or (inspect.isfunction(found) and found.__name__.startswith(MAKERS))
    side = open_side(found() if is_maker else found)
    side.label = place.rpartition("/")[2]
    return side


def description(side: Side) -> dict[str, Any]:
    """What a side is, apart from its arrays."""
    names = ("framework", "label", "dtype")
    lists = {name: list(getattr(side, name)) for name in ("parameters", "state", "dtypes")}
    loaded = {name: str(sys.modules[name].__version__) for name in FRAMEWORKS if name in sys.modules}
    versions = {"python": platform.python_version(), "numpy": np.__version__, **loaded}
    about = {"framework": side.framework, "versions": versions, "device": platform.machine()}
    return {**{name: getattr(side, name) for name in names}, **lists, "tied": dict(side.tied), "about": about}


def answer(side: Side, arrays: Mapping[str, np.ndarray], header: Mapping[str, Any]) -> tuple[Any, dict[str, Any]]:
    """The frame that answers a request."""
    given = _group(arrays)
    side.arrays = {**side.arrays, **given.get("array", {})}
    before = tuple(map(call_of, header["before"]))
    recorder = Recorder(Path(header["folder"]), before) if header["folder"] else None
    found = side.run(
        given.get("input", {}),
        header["dtype"],
        cotangents=given.get("cotangent") or None,
        training=header["training"],
        recorder=recorder,
    )
    groups = {"output": found.outputs, "gradient": found.gradients, "state": found.state}
    packed = {name: array for kind, group in groups.items() for name, array in _with_kind(kind, group).items()}
    lists = {name: list(getattr(found, name)) for name in ("unread", "changed", "unseen")}
    return packed, {"kind": "answer", **lists, "calls": [asdict(call) for call in found.calls]}


def call_of(entries: Mapping[str, Any]) -> Call:
    """A call, of its entries in a header."""
    return Call(
        **{
            **entries,
            "inputs": tuple(map(seen_of, entries["inputs"])),
            "outputs": tuple(map(seen_of, entries["outputs"])),
            "gradients": {name: seen_of(one) for name, one in entries["gradients"].items()},
            "parameters": tuple(entries["parameters"]),
        }
    )


def seen_of(entries: Mapping[str, Any]) -> Seen:
    """A recorded array, of its entries in a header."""
    return Seen(**{**entries, "shape": tuple(entries["shape"]), "moments": tuple(entries["moments"])})


def _with_kind(kind: str, arrays: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
    return {f"{kind}/{name}": array for name, array in arrays.items()}


def _group(arrays: Mapping[str, np.ndarray]) -> dict[str, dict[str, np.ndarray]]:
    groups: dict[str, dict[str, np.ndarray]] = {}
    for name, array in arrays.items():
        kind, _, rest = name.partition("/")
        groups.setdefault(kind, {})[rest] = array
    return groups


if __name__ == "__main__":
    main()
