"""Every mutant, family by family: to import a family registers its mutants."""

from __future__ import annotations

import importlib

from parity_tests.mutants.mutant import all_mutants

FAMILIES = (
    *("ignored", "scores", "masks", "weights", "pooling", "linear", "attention", "context_alone", "multi_head"),
    *(
        "compressed",
        "segments",
        "positions",
        "transformer",
        "recurrent",
        "decoders",
        "images",
        "ranges",
        "answers",
        "training",
    ),
)

for _family in FAMILIES:
    importlib.import_module(f"parity_tests.mutants.{_family}")

MUTANTS = all_mutants()
