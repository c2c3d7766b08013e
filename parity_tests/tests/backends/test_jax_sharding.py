"""JAX on several devices: what is sharded stays so, under jit and under shard_map with its default check."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import backends

LAYERS = ("encoder", "decoder", "greedy", "translator", "dot", "additive", "weights", "heads")


@pytest.fixture(scope="module")
def answers() -> dict[str, Any]:
    """What a process with four devices answers."""
    flags = "--xla_force_host_platform_device_count=4 --xla_backend_optimization_level=0"
    root = Path(backends.__file__).parents[1]
    variables = {**os.environ, "XLA_FLAGS": flags, "PYTHONPATH": str(root)}
    command = [sys.executable, "-m", "parity_tests.tests.backends.jax_meshes"]
    done = subprocess.run(command, env=variables, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


@pytest.mark.parametrize("axes", ["jit", "explicit"])
@pytest.mark.parametrize("kernel", ["dot", "additive"])
def test_blocks_of_a_sharded_batch_and_of_sharded_heads_stay_where_they_are(
    kernel: str, axes: str, answers: dict[str, Any]
):
    """Devices exchange the gradient of what they share, and the numbers that say which formula all of them take."""
    answer = answers[axes][kernel]
    assert answer["error"] < 1e-5 and all(answer["sharded"])
    assert {*answer["collectives"]} <= {f"all-reduce {of}" for of in ("pred[]", "f32[]", "f32[8]", "f32[2,8]")}


@pytest.mark.parametrize("layer", LAYERS)
def test_a_layer_under_shard_map_has_the_loss_and_gradients_of_the_whole_batch(layer: str, answers: dict[str, Any]):
    assert answers["shard_map"][layer] < 1e-5


@pytest.mark.parametrize("layer", ["encoder", "translator", "weights", "heads"])
def test_a_layer_takes_a_batch_that_is_sharded_over_explicit_axes(layer: str, answers: dict[str, Any]):
    error, sharded = answers["typed"][layer]
    assert error < 1e-5 and sharded
