"""What the tests of conversions share: layers to convert, their workers, and the command."""

from __future__ import annotations

import sys
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner, Result

from attention_core.draws import uniform
from attention_core.operators import find
from backends.weights.configs import layer_named
from parity_tests.cli.main import main
from parity_tests.conversion.conversion import is_numbered
from parity_tests.conversion.validation import Side, validate
from parity_tests.format.expected import programs_folder
from parity_tests.judge.run import Run
from parity_tests.third_party import layers
from parity_tests.workers.environment import environment
from parity_tests.workers.process import Job, Server

HEADS = {"query_size": 12, "num_heads": 3, "hidden_size": 12}
SQUARE = {"input_size": 5, "hidden_size": 5}


def drawn(layer: str, config: dict[str, Any], absent: str = "-") -> dict[str, np.ndarray]:
    specification = find(layer)
    shapes = specification.shapes(specification.sizes(config))
    return {name: uniform(name, shape, 0.0 if name.endswith(absent) else 0.3) for name, shape in shapes.items()}


def swapped(arrays: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    return {name: array[[1, 0, 2]] if name.endswith((".W", ".U", ".b")) else array for name, array in arrays.items()}


def takes_lengths(layer: str) -> bool:
    """Whether the layer may be called with the lengths of its sequences."""
    return any(tensor.name == "valid_lens" for tensor in layer_named(layer).method("call").inputs)


def job(name: str) -> Job:
    variables = environment(layers.framework_of(name), programs_folder(), "cpu")
    return Job(name, layers.place_of(name), sys.executable, variables=variables)


def validated(
    source: str,
    raw: dict[str, np.ndarray],
    layer: str,
    config: dict[str, Any],
    canonical: dict[str, np.ndarray],
    server: Server,
) -> Run:
    """The verdicts on the source's layer, in a worker that answers several validations."""
    if is_numbered(source):
        raw = {f"0/{name}": array for name, array in raw.items()}
    server.hello()
    side = Side(server.job, raw, layers.framework_of(source))
    return validate(find(layer), config, canonical, [side], recorder=lambda job, batches, _: server.answers(*batches))


def failures(run: Run) -> str:
    return "\n".join(f"{one.name} {one.case} {one.dtype} {one.quantity}: {one.reason}" for one in run.red)


def of(name: str, *arguments: Any) -> Any:
    """A parameter for where the framework of the source is tested."""
    return pytest.param(name, *arguments, marks=pytest.mark.frameworks(layers.framework_of(name)), id=name)


def invoke(*arguments: object) -> Result:
    return CliRunner().invoke(main, ["convert", *map(str, arguments)])
