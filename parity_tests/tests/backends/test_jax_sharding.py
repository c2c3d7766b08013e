"""JAX on several devices: what is sharded stays so, under jit and under shard_map with its default check."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import backends

SHARDED = ("additive", "multi-head", "bahdanau")
"""The layers whose program for a sharded batch is read."""

LAYERS = ("encoder", "decoder", "greedy", "translator", "dot", "additive", "weights", "multi-head")
LOOPS = ("encoder", "decoder", "translator", "bahdanau")
"""The layers that go through the steps of a sequence."""

COLLECTIVE = re.compile(
    r"= (.+?) (all-gather|all-reduce|(?:ragged-)?all-to-all|collective-\w+|reduce-scatter)(?:-start)?\("
)


def collectives(program: str) -> set[str]:
    """What devices exchange in a compiled program: each collective, with the dtype and shape of each of its results."""
    found = COLLECTIVE.findall(program)
    return {f"{name} {array}" for arrays, name in found for array in re.findall(r"\w+\[.*?\]", arrays)}


@pytest.fixture(scope="module")
def answers(request: pytest.FixtureRequest) -> dict[str, Any]:
    """What a process with four devices answers to the places of the selected tests."""
    import jax

    from backends.jax.runtime import OLDER_EMITTERS

    flags = ["--xla_force_host_platform_device_count=4", "--xla_backend_optimization_level=0"]
    flags += [OLDER_EMITTERS] if jax.__version_info__ < (0, 11) else []
    root = Path(backends.__file__).parents[1]
    variables = {**os.environ, "XLA_FLAGS": " ".join(flags), "PYTHONPATH": str(root)}
    here = [item for item in request.session.items if item.path == request.path]
    places = sorted({item.callspec.params["place"] for item in here if hasattr(item, "callspec")})
    command = [sys.executable, "-m", "parity_tests.tests.backends.jax_meshes", *places]
    done = subprocess.run(command, env=variables, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


@pytest.mark.parametrize("place", ["jit/dot", "jit/additive", "explicit/dot", "explicit/additive"])
def test_blocks_of_a_sharded_batch_and_of_sharded_heads_stay_where_they_are(place: str, answers: dict[str, Any]):
    """Devices exchange the gradient of what they share, and the numbers that say which formula all of them take."""
    answer = answers[place]
    assert answer["error"] < 1e-5 and all(answer["sharded"])
    assert collectives(answer["program"]) <= {f"all-reduce {of}" for of in ("pred[]", "f32[]", "f32[8]", "f32[2,8]")}


@pytest.mark.parametrize("place", [f"batch/{layer}" for layer in SHARDED])
def test_a_sharded_batch_of_a_layer_stays_where_it_is(place: str, answers: dict[str, Any]):
    answer = answers[place]
    assert answer["error"] < 1e-5 and all(answer["sharded"])
    assert {one.partition(" ")[0] for one in collectives(answer["program"])} == {"all-reduce"}  # of gradients


def test_every_collective_of_a_program_is_found():
    assert collectives(
        "  %a.1 = f32[4,2]{1,0} all-reduce(f32[4,2]{1,0} %b), channel_id=1\n"
        "  %c = (f32[4]{0}, f32[], /*index=2*/s32[8]{0:T(8)}) all-gather(f32[2]{0} %d, f32[] %e, s32[4]{0} %f)\n"
        "  ROOT %g = (pred[3]{0}, pred[6]{0}) all-gather-start(pred[3]{0} %h)\n"
        "  %i = (f32[5]{0}, f32[5]{0}) fusion(f32[5]{0} %all-to-all.1), kind=kLoop, calls=%all-reduce\n"
    ) == {
        "all-reduce f32[4,2]",
        "all-gather f32[4]",
        "all-gather f32[]",
        "all-gather s32[8]",
        "all-gather pred[3]",
        "all-gather pred[6]",
    }


@pytest.mark.parametrize("place", [f"shard_map/{layer}" for layer in LAYERS])
def test_a_layer_under_shard_map_has_the_loss_and_gradients_of_the_whole_batch(place: str, answers: dict[str, Any]):
    assert answers[place]["error"] < 1e-5


@pytest.mark.parametrize("place", [f"shard_map/{layer}" for layer in LOOPS])
def test_devices_add_up_gradients_after_a_loop_and_not_in_every_step(place: str, answers: dict[str, Any]):
    exchanged = [line for line in answers[place]["program"].splitlines() if COLLECTIVE.search(line)]
    assert exchanged and all("op_name=" in line and "/while/" not in line for line in exchanged)


@pytest.mark.parametrize("place", [f"typed/{layer}" for layer in ("encoder", "translator", "weights", "multi-head")])
def test_a_layer_takes_a_batch_that_is_sharded_over_explicit_axes(place: str, answers: dict[str, Any]):
    error, sharded = answers[place]
    assert error < 1e-5 and sharded


@pytest.mark.parametrize("place", ["bench/additive-context", "bench/decoder"])
def test_a_batch_that_the_bench_divides_has_the_results_of_one_device(place: str, answers: dict[str, Any]):
    assert answers[place] < 32
