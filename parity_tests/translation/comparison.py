"""Distances between the trainings of several frameworks."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import asdict
from typing import Any

import numpy as np

from parity_tests.translation.model import MIXED, Model

CLOSE = {"float64": 1e-11, "float32": 5e-3, MIXED: 5e-2}
"""The largest relative distance between the losses of two frameworks in the steps compared: 5e4 eps of the dtype.

A training with large steps is chaotic, and doubles rounding differences every few steps: 2e3 eps were measured after 50
steps of the textbooks' set-up with Adam, and 2e7 after 120. A misplaced epsilon gives 1e7 eps after two. In bfloat16,
whose losses have three digits, 8e-3 were measured in the first 50 steps.
"""


def distances(models: Mapping[str, Model]) -> list[float]:
    """For each step, the largest relative distance between any two trainings' losses."""
    steps = min(len(model.losses) for model in models.values())
    losses = np.array([model.losses[:steps] for model in models.values()])
    return ((losses.max(axis=0) - losses.min(axis=0)) / np.abs(losses).min(axis=0)).tolist()


def compare(models: Mapping[str, Model], translations: Mapping[str, Mapping[str, Any]], steps: int) -> dict[str, Any]:
    """Compare the first `steps` losses of the trainings, and their translations."""
    settings = next(iter(models.values())).settings
    apart, bound = distances(models), CLOSE[settings.dtype]
    first = next(iter(translations.values()))
    sources = next(iter(first.values()))["sources"]

    def differing(reports: Iterable[Mapping[str, Any]]) -> list[str]:
        """The sources that the reports translate differently."""
        lists = [report["translations"] for report in reports]
        return [source for source, *each in zip(sources, *lists, strict=True) if len(set(map(tuple, each))) > 1]

    moved = {name: differing(by_model[name] for by_model in translations.values()) for name in models}
    between = differing(first.values())
    return {
        "settings": asdict(settings),
        "steps": len(apart),
        "judged_steps": min(steps, len(apart)),
        "bound": bound,
        "distance_judged": max(apart[:steps]),
        "distance_all": max(apart),
        "near": max(apart[:steps]) <= bound,
        "sentences": len(sources),
        "moved": moved,
        "between_models": between,
        # Trainings of less than float64 part in the end: what they become are other models, none of them better.
        # In bfloat16, two tokens often have equal logits but for rounding.
        "same": (settings.dtype == MIXED or not any(moved.values())) and (settings.dtype != "float64" or not between),
        "trainings": {
            name: {
                "epochs": model.epoch,
                "loss": model.losses[-1],
                **{key: model.history[-1][key] for key in ("validation_loss", "bleu", "third_party", "exact")},
                "tokens_per_second": median_rate(model),
            }
            for name, model in models.items()
        },
    }


def median_rate(model: Model) -> float:
    """Target tokens trained on in a second: the median over the epochs."""
    return float(np.median([epoch["tokens_per_second"] for epoch in model.history]))
