"""A comparison of two models as data: equal requests give equal verdicts."""

from __future__ import annotations

import re
import shlex
import sys
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

from parity_tests.judge.run import Run
from parity_tests.judge.verdict import Verdict
from parity_tests.models.comparison import Comparison, compare_models
from parity_tests.models.inputs import is_declaration, read_inputs
from parity_tests.models.remote import RUN_SECONDS, RemoteSide
from parity_tests.models.result import Weights
from parity_tests.models.sides import DATA, Side, open_side
from parity_tests.workers.recordings import Recording, digest_of


@dataclass(frozen=True)
class ComparisonRequest:
    """The arguments of `compare-models`, but for the files that it writes."""

    actual: str
    expected: str
    inputs: str | None = None
    names: str | None = None
    weights: Weights = "stored"
    gradients: bool = True
    train_steps: int = 0
    seed: int = 0
    limit: float = RUN_SECONDS
    """The seconds that a run of a side may take."""
    pythons: Mapping[str, str] = field(default_factory=dict)
    """The interpreters of sides: by role, or by a word of a target's name."""

    @property
    def sides(self) -> dict[str, str]:
        """The targets by role."""
        return {"actual": self.actual, "expected": self.expected}

    @property
    def listed_files(self) -> dict[str, str]:
        """The files that are read beside the targets, by argument."""
        given = {"inputs": self.inputs, "names": self.names}
        return {name: text for name, text in given.items() if text is not None and not is_declaration(text)}

    @property
    def files(self) -> dict[str, Path]:
        """All files of data, by the names that a certificate lists."""
        read = {f"{role}/{Path(place).name}": Path(place) for role, place in self.sides.items() if place.endswith(DATA)}
        return read | {Path(place).name: Path(place) for place in self.listed_files.values()}

    @property
    def command(self) -> str:
        """The command of this request, without interpreters."""
        given = ["--inputs", self.inputs] if self.inputs is not None else []
        given += ["--names", self.names] if self.names is not None else []
        given += ["--weights", self.weights] if self.weights != "stored" else []
        given += [] if self.gradients else ["--no-gradients"]
        given += ["--train-steps", str(self.train_steps)] if self.train_steps else []
        given += ["--seed", str(self.seed)] if self.seed else []
        return shlex.join(["attention-parity", "compare-models", self.actual, self.expected, *given])

    @property
    def certificate_entries(self) -> dict[str, Any]:
        """The entries of a certificate: of each file its name, and no interpreter, which is local to a machine."""
        names: dict[str, Any] = {argument: Path(path).name for argument, path in self.listed_files.items()}
        portable = replace(self, pythons={}, **names)
        entries = {name: value for name, value in asdict(portable).items() if name != "pythons"}
        kind = {"kind": "compare-models", "other_python": bool(self.pythons)}
        return {**entries, **kind, "command": portable.command}

    def compare(self) -> tuple[Comparison, Run]:
        """The comparison, and the run that reports and certificates know.

        Raises: SideError, WorkerFault.
        """
        with ExitStack() as stack:
            opened: list[Side] = []
            for role, target in self.sides.items():
                opened.append(self._open(role, target))
                stack.callback(opened[-1].close)
            inputs = read_inputs(getattr(opened[1], "inputs", {}) if self.inputs is None else self.inputs, self.seed)
            comparison = compare_models(
                *opened,
                inputs=inputs,
                names=self.names,
                weights=self.weights,
                gradients=self.gradients,
                train_steps=self.train_steps,
                seed=self.seed,
            )
            digest = digest_of({}, inputs)
            recordings = {
                role: _recording(role, side, digest, comparison.verdicts)
                for role, side in zip(self.sides, opened, strict=True)
            }
        return comparison, Run([], comparison.verdicts, recordings, command=self.command, selects_cells=False)

    def _open(self, role: str, target: str) -> Side:
        if target.endswith(DATA):  # read in this process; code has one of its own
            return open_side(target)
        words = [role, *re.split(r"\W|_", Path(target.partition(":")[0]).stem), target.rpartition(":")[2]]
        python = next((self.pythons[word] for word in words if word in self.pythons), sys.executable)
        return RemoteSide(target, python, self.limit)


def _recording(role: str, side: Side, digest: str, verdicts: Sequence[Verdict]) -> Recording:
    return Recording(
        role,
        "cpu",
        about={**side.about, "target": side.label},
        environment=dict(side.environment),
        files={f"{role}/{name}": file for name, file in side.files.items()},
        inputs={f"{verdict.case}/{verdict.dtype}": digest for verdict in verdicts},
    )
