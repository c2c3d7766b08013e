"""Other names and porting pitfalls of each function and layer, for its page; no implementation reads them."""

from __future__ import annotations

import tomllib
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class Porting:
    """Other names of a function or layer, and differences elsewhere, a sentence or two each."""

    also: tuple[str, ...]
    pitfalls: tuple[str, ...] = ()


TEXTS = tomllib.loads(Path(__file__).with_name("porting.toml").read_text(encoding="utf-8"))
RULE: str = TEXTS.pop("rule")
"""What is true of every rule."""
DECODING = tuple(TEXTS.pop("decoders")["pitfalls"])
"""The porting pitfalls of every decoder."""
PORTING = {
    name: Porting(tuple(entry["also"]), tuple(text.replace("{rule}", RULE) for text in entry.get("pitfalls", ())))
    for name, entry in TEXTS.items()
}
"""Each function and layer, in the order of the specification."""
