"""One process, one framework: runs the cells of a case file on a backend and streams what it answers.

    python -m parity_tests.worker BACKEND MODULE DEVICE CASEFILE [FIRST]

Needs NumPy, safetensors and the framework, nothing else of the court. Answers go to standard output as frames: eight
bytes of length, then a packed archive whose header says what it is. What the framework prints goes to standard error.
With - as CASEFILE, case files come as such frames from standard input, and each is answered before the next is read.
"""

from __future__ import annotations

import faulthandler
import fcntl
import functools
import importlib
import json
import os
import platform
import select
import signal
import sys
import time
import traceback
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from fnmatch import fnmatchcase
from typing import Any, BinaryIO

import numpy as np

from backends import load_archive, pack_arrays, unpack_arrays
from parity_tests.invocation import bind, layer_of, output_names, train

CASE_FILE = "case file"
"""The kind of archive that holds cells to run."""

LIFELINE = "ATTENTION_PARITY_LIFELINE"
"""The variable that names the descriptor of a pipe whose other end the court holds, and never writes to."""


def main() -> None:
    """Run the cells from FIRST on."""
    name, module, device, path, *first = sys.argv[1:]
    follow_court()
    faulthandler.enable()
    # The framework may print: from here on, file descriptor 1 is standard error, and the frames have their own.
    with os.fdopen(os.dup(1), "wb") as stream:
        os.dup2(2, 1)
        start = time.perf_counter()
        backend = Backend(module, device)
        hello = {**backend.describe(), "backend": name, "import_seconds": time.perf_counter() - start}
        send(stream, {}, {"kind": "hello", **hello})
        files = map(unpack_arrays, frames(sys.stdin.buffer)) if path == "-" else [load_archive(path, CASE_FILE)]
        for arrays, header in files:
            answer_cells(stream, backend, grouped(arrays), header["cells"][int(first[0]) if first else 0 :])
        send(stream, {}, {"kind": "end"})


def answer_cells(
    stream: BinaryIO,
    backend: Backend,
    arrays: Mapping[str, Mapping[str, Mapping[str, np.ndarray]]],
    cells: Sequence[Mapping[str, Any]],
) -> None:
    """Run the cells in order, and send what the backend answers to each, or what it raised."""
    for cell in cells:
        start = time.perf_counter()
        about = {"kind": "cell", "key": cell["key"]}
        try:
            reason = backend.reason_against(cell)
            if reason is not None:
                send(stream, {}, {**about, "status": "not-applicable", "message": reason})
                continue
            parts = arrays[cell["key"]]
            answer, changed = backend.run(cell, parts["input"], parts["parameter"], parts["cotangent"])
            seconds = time.perf_counter() - start
            send(stream, answer, {**about, "status": "ok", "changed": changed, "seconds": seconds})
        except BaseException as error:  # an implementation may raise anything, SystemExit too: it costs its own cell
            said = {"status": "error", "message": f"{type(error).__name__}: {error}", "trace": traceback.format_exc()}
            send(stream, {}, {**about, **said, "seconds": time.perf_counter() - start})


def follow_court() -> None:
    """Have the kernel kill this process and its children once the court is gone, even if it was killed itself.

    The court's end of the pipe closes with it. A signal then reaches the whole process group, also where a framework
    computes without end and no thread of Python comes to its turn.
    """
    lifeline = int(os.environ.pop(LIFELINE, -1))
    if lifeline < 0:  # started by hand
        return
    fcntl.fcntl(lifeline, fcntl.F_SETOWN, -os.getpgrp())
    fcntl.fcntl(lifeline, fcntl.F_SETSIG, signal.SIGKILL)
    fcntl.fcntl(lifeline, fcntl.F_SETFL, os.O_ASYNC)
    if select.select([lifeline], [], [], 0)[0]:
        sys.exit("the court was gone before this worker had started")


class Backend:
    """A backend and its runtime, with functions and layers made once and used for many cells."""

    def __init__(self, module: str, device: str) -> None:
        self.package = importlib.import_module(module)
        self.runtime = importlib.import_module(f"{module}.runtime")
        self.device = device
        self.switches = self.runtime.configure()
        self.absent: list[Mapping[str, str]] = []
        self.function = functools.cache(self._function)
        self.layer = functools.cache(self._layer)

    def describe(self) -> dict[str, Any]:
        """Versions, device and switches in force."""
        described = self.runtime.describe()
        if self.device not in described["devices"]:
            raise RuntimeError(
                f"{described['framework']} sees no device {self.device!r} here, only {', '.join(described['devices'])}"
            )
        versions = {"python": platform.python_version(), "numpy": np.__version__, **described["versions"]}
        self.absent = [entry for entry in described.get("absent", ()) if fnmatchcase(self.device, entry["device"])]
        return {
            "framework": described["framework"],
            "versions": versions,
            "switches": self.switches,
            "device": described["devices"][self.device],
        }

    def reason_against(self, cell: Mapping[str, Any]) -> str | None:
        """Why the framework cannot have this cell on this device, if so."""
        for entry in self.absent:
            if entry["tier"] == cell["tier"] and fnmatchcase(cell["operator"], entry["operator"]):
                return entry["reason"]
        return None

    def run(
        self,
        cell: Mapping[str, Any],
        inputs: Mapping[str, np.ndarray],
        parameters: Mapping[str, np.ndarray],
        cotangents: Mapping[str, np.ndarray],
    ) -> tuple[dict[str, np.ndarray], list[str]]:
        """Outputs by name, then gradients as gradient_<name>; and the names of the inputs that the call changed."""
        operator, method, tier = cell["operator"], cell["method"], cell["tier"]
        config, options = json.dumps(cell["config"]), json.dumps(cell["options"])
        layer = self.layer(layer_of(operator), config, tier) if method else None
        if layer is not None:
            self._set(layer, parameters)
        if method == "train":
            here = functools.partial(self.runtime.from_numpy, device=self.device)
            return train(self.package, layer, cell["options"], inputs, here, self.runtime.to_numpy), []
        function = self.function(operator, method, options)
        sent = {name: array.copy() for name, array in inputs.items()}  # a runtime may share memory with its argument
        given = {name: self.runtime.from_numpy(array, self.device) for name, array in inputs.items()}
        factors = {int(k): self.runtime.from_numpy(array, self.device) for k, array in cotangents.items()}
        outputs, of_inputs, of_parameters = self.runtime.vjp(function, given, factors, layer)
        names = output_names(operator, method)
        surplus = [f"output_{position}" for position in range(len(names), len(outputs))]
        answer = dict(zip([*names, *surplus], map(self.runtime.to_numpy, outputs), strict=False))
        if cotangents:
            answer |= {f"gradient_{name}": self.runtime.to_numpy(array) for name, array in of_inputs.items()}
            answer |= {f"gradient_{name}": array for name, array in of_parameters.items()}
        for name, array in answer.items():
            if np.asarray(array).dtype.kind not in "biufcV":
                raise TypeError(f"{name} is {np.asarray(array).dtype}, expected an array of numbers")
        return answer, [name for name, array in sent.items() if not same(self.runtime.to_numpy(given[name]), array)]

    def _function(self, operator: str, method: str, options: str) -> Any:
        return bind(self.package, operator, method, json.loads(options))

    def _layer(self, name: str, config: str, tier: str) -> Any:
        return self.runtime.build(getattr(self.package, name), json.loads(config), tier, self.device)

    def _set(self, layer: Any, parameters: Mapping[str, np.ndarray]) -> None:
        self.package.set_parameters(layer, parameters)
        back = self.package.get_parameters(layer)
        for name, array in parameters.items():
            if back[name].dtype != array.dtype or not np.array_equal(back[name], array, equal_nan=True):
                raise RuntimeError(f"{name} did not come back from the layer as it was given")


def same(found: np.ndarray, sent: np.ndarray) -> bool:
    """Whether two arrays are the same to the bit, where one NaN is as good as another."""
    if found.dtype != sent.dtype or found.shape != sent.shape:
        return False
    bits = f"u{sent.dtype.itemsize}"
    return bool(((found.view(bits) == sent.view(bits)) | ((found != found) & (sent != sent))).all())


def grouped(arrays: Mapping[str, np.ndarray]) -> Mapping[str, Mapping[str, Mapping[str, np.ndarray]]]:
    """The arrays of a case file by cell, by kind (input, parameter, cotangent) and by their own names."""
    cells: dict[str, Any] = defaultdict(lambda: defaultdict(dict))
    for name, array in arrays.items():
        case, tier, kind, own = name.split("/", 3)
        cells[f"{case}/{tier}"][kind][own] = array
    return cells


def frames(stream: BinaryIO) -> Iterator[bytes]:
    """The content of each frame up to the end of the stream."""
    while length := stream.read(8):
        yield stream.read(int.from_bytes(length, "big"))


def send(stream: BinaryIO, arrays: Mapping[str, np.ndarray], header: Mapping[str, Any]) -> None:
    """Write one frame."""
    data = pack_arrays(arrays, header)
    stream.write(len(data).to_bytes(8, "big") + data)
    stream.flush()


if __name__ == "__main__":
    main()
