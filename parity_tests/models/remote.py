"""A side in a process of its own, with an interpreter of its own."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np

from backends.archives import pack_arrays
from backends.schema import build
from parity_tests.format.expected import programs_folder
from parity_tests.judge.check import job_of
from parity_tests.models.calls import Answer, Arrays, RunOptions
from parity_tests.models.sides import RemoteError, Side, SideError
from parity_tests.models.worker import call_of
from parity_tests.workers.environment import environment
from parity_tests.workers.process import START_SECONDS, Worker

PROGRAM = "parity_tests.models.worker"
RUN_SECONDS = 600.0
"""The seconds that one run of a side may take."""


class RemoteSide(Side):
    """A target that a worker runs: a file or module, and the object in it.

    Raises: SideError if it cannot be imported, or is no model; WorkerFault if its process dies or hangs.
    """

    def __init__(self, target: str, python: str = sys.executable, seconds: float = RUN_SECONDS) -> None:
        super().__init__()
        self.seconds = seconds
        job = job_of(target, python, "cpu", Path.cwd())
        self.worker = Worker(job, program=PROGRAM)
        try:
            arrays, header = self.worker.frame(START_SECONDS)
            if header.get("kind") != "side":
                raise SideError(f"{target}: {header.get('reason', 'its process sent no description')}")
        except BaseException:
            self.worker.__exit__()
            raise
        self.framework, self.label, self.dtype = (str(header[name]) for name in ("framework", "label", "dtype"))
        self.parameters, self.state, self.dtypes = (tuple(header[name]) for name in ("parameters", "state", "dtypes"))
        self.tied = header["tied"]
        self.about, self.files = header["about"], build(dict[str, str], header["files"], "files")
        self.environment = environment(job.backend, programs_folder(), job.device)
        self.inputs = {name[5:]: array for name, array in arrays.items() if name.startswith("kept/")}
        self.arrays = {name[6:]: array for name, array in arrays.items() if name.startswith("array/")}
        self._sent: Arrays = dict(self.arrays)

    def answer(self, inputs: Mapping[str, np.ndarray], options: RunOptions) -> Answer:
        """The answer to these inputs, as `Side.run` describes it."""
        dtype, cotangents, training, recorder = options
        changed = {name: array for name, array in self.arrays.items() if array is not self._sent.get(name)}
        groups = {"array": changed, "input": inputs, "cotangent": cotangents or {}}
        packed = {f"{kind}/{name}": np.asarray(one) for kind, group in groups.items() for name, one in group.items()}
        header: dict[str, Any] = {"dtype": dtype, "training": training, "folder": "", "before": []}
        if recorder is not None:
            header["folder"] = str(recorder.folder)
            header["before"] = [asdict(call) for call in recorder.before.values()]
        self.worker.send(pack_arrays(packed, header))
        arrays, answer = self.worker.frame(self.seconds)
        self._sent = dict(self.arrays)
        if answer.get("kind") != "answer":
            reason = str(answer.get("reason", "its process sent no answer"))
            of_side = reason.startswith("SideError: ")
            raise SideError(reason.removeprefix("SideError: ")) if of_side else RemoteError(reason)
        self.files = {**self.files, **build(dict[str, str], answer["files"], "files")}
        found: dict[str, Arrays] = {"output": {}, "gradient": {}, "state": {}}
        for name, array in arrays.items():
            kind, _, rest = name.partition("/")
            found[kind][rest] = array
        lists = {name: tuple(answer[name]) for name in ("unread", "changed", "unseen")}
        return Answer(
            found["output"], found["gradient"], found["state"], calls=tuple(map(call_of, answer["calls"])), **lists
        )

    def close(self) -> None:
        """End the process."""
        self.worker.__exit__()
