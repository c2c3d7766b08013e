"""Tables of the sources of weights: the names and layouts of each library's arrays.

One file for each source, with a link and a table. New files are discovered automatically.
"""

from __future__ import annotations

import importlib
import pkgutil

from backends.weights.table import Source


def every_source() -> dict[str, Source]:
    """The source of every file here, by its name."""
    modules = (importlib.import_module(f"{__name__}.{entry.name}") for entry in pkgutil.iter_modules(__path__))
    sources = [module.SOURCE for module in modules]
    return {source.name: source for source in sources}
