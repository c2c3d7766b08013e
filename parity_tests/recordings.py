"""What goes to a worker and what comes back: case files and recordings, both safetensors with digests."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from attention_core.operators import SPECIFICATION_VERSION
from backends import pack_arrays, save_arrays, unpack_arrays
from parity_tests.cases import SEED, Arrays, Case
from parity_tests.expected import cotangents

Cell = tuple[Case, str]


def labelled(backend: str, device: str) -> str:
    """The name of a backend in tables and pairs: with its device, unless that is the CPU."""
    return backend if device in ("", "cpu") else f"{backend}:{device}"


def key(cell: Cell) -> str:
    """The name of a cell in files: case and tier."""
    return f"{cell[0].id}/{cell[1]}"


def cells_of(cases: Iterable[Case], tiers: Iterable[str]) -> list[Cell]:
    """Every case in every tier that it has among those given, tier by tier."""
    cases = list(cases)
    return [(case, tier) for tier in tiers for case in cases if tier in case.tiers]


def pack_cases(cells: Iterable[Cell]) -> bytes:
    """The cells with their inputs, parameters and cotangents as a case file."""
    arrays: Arrays = {}
    described = []
    for case, tier in cells:
        inputs, parameters = case.at(tier)
        prefix = key((case, tier))
        arrays |= {f"{prefix}/input/{name}": array for name, array in inputs.items()}
        arrays |= {f"{prefix}/parameter/{name}": array for name, array in parameters.items()}
        arrays |= {f"{prefix}/cotangent/{index}": array for index, array in cotangents(case, tier).items()}
        described.append(
            {
                "key": prefix,
                "tier": tier,
                "operator": case.operator,
                "method": case.method,
                "config": dict(case.config),
                "options": dict(case.options),
            }
        )
    return pack_arrays(arrays, {"cells": described, "seed": SEED, "specification": SPECIFICATION_VERSION})


@dataclass
class Recording:
    """What one backend on one device answered: arrays by cell and quantity, and what became of each cell.

    status holds, for each cell that was run, "ok" or what went wrong ("error", "crash", "timeout"), with a message.
    """

    backend: str
    device: str
    about: dict[str, Any] = field(default_factory=dict)
    cells: dict[str, Arrays] = field(default_factory=dict)
    status: dict[str, dict[str, Any]] = field(default_factory=dict)

    @property
    def name(self) -> str:
        """The backend, with its device unless that is the CPU."""
        return labelled(self.backend, self.device)

    def save(self, path: str | Path) -> None:
        """Write the recording to a file."""
        arrays = {f"{cell}/{name}": array for cell, own in self.cells.items() for name, array in own.items()}
        header = {
            "backend": self.backend,
            "device": self.device,
            "about": self.about,
            "status": self.status,
            "seed": SEED,
            "specification": SPECIFICATION_VERSION,
        }
        save_arrays(path, arrays, header)

    @classmethod
    def load(cls, path: str | Path) -> Recording:
        """Read a recording from a file, after checking every digest."""
        arrays, header = unpack_arrays(Path(path).read_bytes())
        cells: dict[str, Arrays] = {cell: {} for cell, said in header["status"].items() if said["status"] == "ok"}
        for name, array in arrays.items():
            case, tier, quantity = name.split("/", 2)
            cells[f"{case}/{tier}"][quantity] = array
        return cls(header["backend"], header["device"], header["about"], cells, header["status"])


def answered(recording: Recording, cell: Cell) -> Mapping[str, Any]:
    """What became of the cell, "missing" if nothing did."""
    return recording.status.get(key(cell), {"status": "missing", "message": "the worker gave no answer"})
