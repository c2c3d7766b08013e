"""Train the layers of parity_tests/cases/trained_layers in PyTorch, in 2 minutes: `python -m tools.trained_layers`.

A recurrent translator and a Transformer translate dates, and an additive attention finds the key that is largest in the
feature that a query names. A file has the parameters of a layer, and the inputs of a few rows.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

import backends
from attention_core import draws
from backends import torch as attention
from parity_tests.cases.trained_layers import FOLDER
from parity_tests.format.case import Arrays
from parity_tests.translation import corpus
from parity_tests.translation.model import Settings, new_model, read_data
from parity_tests.translation.trainer import Worker

COMMON: dict[str, Any] = {"split": "characters", "max_tokens": 24, "train": 4096, "batch_size": 64}
COMMON |= {"embed_size": 32, "hidden_size": 32, "num_layers": 2, "learning_rate": 0.01}
TRANSLATORS = {
    "translator": Settings(**COMMON, epochs=20),
    "transformer": Settings(**COMMON, epochs=30, model="transformer", norm="pre", warmup=100),
}
FEATURES, QUERIES, KEYS = 8, 3, 10
ADDITIVE: dict[str, Any] = {"query_size": FEATURES, "key_size": FEATURES, "hidden_size": 32}
NAMING, BOUND = 12.0, 0.5
"""The only number of a query that is not 0, and the bound of keys; hidden features of other features saturate."""
STEPS, BATCH, RATES = 8000, 64, (0.05, 0.0017)
"""The steps, the rows of each, and the learning rates of the projections and of the scores."""
ROWS = 4
"""The rows whose inputs are in a file."""


def train_translator(settings: Settings) -> tuple[dict[str, Any], Arrays, Arrays]:
    """The constructor's arguments, the trained parameters, and inputs."""
    data = read_data(settings, corpus.dates(2 * settings.train))
    worker = Worker(new_model(settings, data, "torch"), "torch")
    for _ in range(settings.epochs):
        for _ in worker.train(data):
            pass
    batch = corpus.trim(corpus.rows_of(data.training.pairs, np.arange(ROWS), ROWS), settings.max_tokens)
    return settings.arguments(data.source, data.target), worker.model.parameters, batch.arguments


def train_additive() -> tuple[dict[str, Any], Arrays, Arrays]:
    """The same of an additive attention."""
    layer = attention.AdditiveAttention(**ADDITIVE)
    shapes = {name: array.shape for name, array in attention.get_parameters(layer).items()}
    initial = {name: draws.uniform(f"trained/{name}", shape, shape[-1] ** -0.5) for name, shape in shapes.items()}
    attention.set_parameters(layer, {name: array.astype(np.float32) for name, array in initial.items()})
    groups = ([*layer.W_q.parameters(), *layer.W_k.parameters()], [layer.w_v])
    optimizer = torch.optim.Adam([{"params": group, "lr": rate} for group, rate in zip(groups, RATES, strict=True)])
    for step in range(STEPS):
        queries, keys, _ = map(torch.from_numpy, draw_inputs(step, BATCH).values())
        largest = (queries @ keys.mT).argmax(-1, keepdim=True)
        weights = layer(queries, keys, keys)[1]
        optimizer.zero_grad()
        weights.gather(-1, largest).clamp_min(1e-30).log().mean().neg().backward()
        optimizer.step()
    return ADDITIVE, attention.get_parameters(layer), draw_inputs(STEPS, ROWS)


def draw_inputs(step: int, rows: int) -> Arrays:
    """Queries, and keys that are the values, too."""
    features = draws.integers(f"trained/{step}/features", (rows, QUERIES), FEATURES)
    keys = draws.uniform(f"trained/{step}/keys", (rows, KEYS, FEATURES), BOUND).astype(np.float32)
    return {"queries": NAMING * np.eye(FEATURES, dtype=np.float32)[features], "keys": keys, "values": keys}


def write(name: str, config: dict[str, Any], parameters: Arrays, inputs: Arrays) -> None:
    """Write a file."""
    groups = {"parameter": parameters, "input": inputs}
    arrays = {f"{group}/{key}": array for group, members in groups.items() for key, array in members.items()}
    config = {option: value for option, value in config.items() if value is not None}
    backends.save_arrays(FOLDER / f"{name}.safetensors", arrays, {"config": config})


if __name__ == "__main__":
    torch.set_num_threads(1)
    write("additive", *train_additive())
    for name, settings in TRANSLATORS.items():
        write(name, *train_translator(settings))
