"""How near the trainings of several frameworks lie."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any

import numpy as np

from parity_tests.translation.model import Model

CLOSE = {"float64": 1e-11, "float32": 5e-3}
"""How near the losses of two frameworks have to lie for so many steps, in relative distance: 5e4 eps of the dtype.

A training with large steps is chaotic, and doubles what rounding does every few of them: 2e3 eps were seen after 50
steps of the textbooks' set-up with Adam, and 2e7 after 120. An epsilon at the wrong place is 1e7 eps off after two.
"""


def distances(models: Mapping[str, Model]) -> list[float]:
    """For each step, the largest relative distance between any two trainings' losses."""
    steps = min(len(own.losses) for own in models.values())
    losses = np.array([own.losses[:steps] for own in models.values()])
    return ((losses.max(axis=0) - losses.min(axis=0)) / np.abs(losses).min(axis=0)).tolist()


def compared(models: Mapping[str, Model], found: Mapping[str, Mapping[str, Any]], steps: int) -> dict[str, Any]:
    """How near the first `steps` losses of the trainings lie, and which sentences they translate differently."""
    settings = next(iter(models.values())).settings
    apart, bound = distances(models), CLOSE[settings.dtype]
    first = next(iter(found.values()))
    sources = next(iter(first.values()))["sources"]

    def differing(lists: Sequence[Sequence[Sequence[str]]]) -> list[str]:
        """The sources that the lists translate differently."""
        return [source for source, *told in zip(sources, *lists, strict=True) if len(set(map(tuple, told))) > 1]

    moved = {name: differing([own[name]["translations"] for own in found.values()]) for name in models}
    between = differing([own["translations"] for own in first.values()])
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
        # Trainings in float32 part in the end: what they become are other models, none of them better.
        "same": not any(moved.values()) and (settings.dtype == "float32" or not between),
        "trainings": {
            name: {
                "epochs": own.epoch,
                "loss": own.losses[-1],
                **{key: own.history[-1][key] for key in ("validation_loss", "bleu", "textbook", "exact")},
                "tokens_per_second": median_rate(own),
            }
            for name, own in models.items()
        },
    }


def median_rate(model: Model) -> float:
    """Target tokens trained on in a second: the median over the epochs."""
    return float(np.median([own["tokens_per_second"] for own in model.history]))
