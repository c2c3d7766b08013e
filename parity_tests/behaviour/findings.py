"""What the frameworks' own attention does: asked of each call, classified from what it answered, and written as a page.

A question is a case of the specification, or one with a single thing changed. A finding is a word or two for each
question; what a framework is believed to do is nowhere. Findings are kept with the versions they are of, so that a new
version that does otherwise is noticed.
"""

from __future__ import annotations

import json
import re
import sys
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from parity_tests.behaviour.classify import Answer, classified
from parity_tests.behaviour.questions import HALF, asked
from parity_tests.cases.case import FULL, Case
from parity_tests.cases.selection import Cell, cells_of
from parity_tests.third_party.attention import PEERS, Peer
from parity_tests.workers.process import Job, Progress, record_cells, untold
from parity_tests.workers.recordings import Recording, pack_cases

DATA = Path(__file__).with_name("behaviour.json")
PAGE = Path(__file__).parents[2] / "docs" / "behaviour.md"

Findings = dict[str, str]
"""What was found of a call, by question."""

# ------------------------------------------------------------------------------------------------ questions


# ------------------------------------------------------------------------------------------------ answers


# ------------------------------------------------------------------------------------------------ asking

APART = ("beyond", "below")
"""Questions that get a process of their own: what reads beyond an array may spoil what comes later."""


def installed(peer: Peer) -> bool:
    """Whether the packages of a call are here."""
    return all(find_spec(name) is not None for name in peer.packages)


def ask(peer: Peer, python: str = sys.executable, device: str = "cpu") -> tuple[str, Findings]:
    """Versions of the packages, and what is found of a call on a device.

    Raises: RuntimeError if its framework cannot be started.
    """
    cases = {name: own.case for name, own in asked(peer.operator, peer.takes).items()}
    apart = [name for name in cases if name in APART or (name == "polarity" and peer.raw)]
    together = [name for name in cases if name not in apart]
    found: Findings = {}
    for names in (together, *([name] for name in apart)):
        place = peer.raw_place if names == ["polarity"] else peer.place
        recording = recorded(place, peer, [cases[name] for name in names], python, device)
        for name in names:
            found |= told(name, cases[name], recording)
    return versions_of(peer, recording), {name: found[name] for name in COLUMNS if name in found}


def recorded(place: str, peer: Peer, cases: Sequence[Case], python: str, device: str) -> Recording:
    """What the target at a place answers."""
    cells = cells_of(cases, (*FULL, *HALF))
    recording = record_cells(Job(peer.name, place, python, device), cells, pack_cases(cells))
    if not recording.about:
        raise RuntimeError(f"{peer.id} cannot be asked: {recording.status[cells[0].key]['message']}")
    return recording


def told(name: str, case: Case, recording: Recording) -> Findings:
    """The finding in float32, and what is different in float64; for half precision, one of each."""
    found = {dtype: classified(name, Answer.of(recording, Cell(case, dtype))) for dtype in case.dtypes}
    if name == "half":
        return found
    first, second = found["float32"], found["float64"]
    return {name: first if first == second else f"{first} (float64: {second})"}


def versions_of(peer: Peer, recording: Recording) -> str:
    """The packages of a call with their versions, without what tells one build from another."""
    own = recording.about["versions"]
    return ", ".join(f"{name} {own[name].partition('+')[0]}" for name in peer.packages)


def ask_all(
    peers: Sequence[Peer],
    pythons: Mapping[str, str] | None = None,
    workers: int = 2,
    device: str = "cpu",
    progress: Progress = untold,
) -> dict[str, tuple[str, Findings]]:
    """Versions and findings of every call, by id. Interpreters are given by module of peers."""
    pythons = pythons or {}
    of = Counter(peer.module for peer in peers)
    done: Counter[str] = Counter()

    def one(peer: Peer) -> tuple[str, Findings]:
        progress(peer.module, done[peer.module], of[peer.module], peer.id)
        own = ask(peer, pythons.get(peer.module, sys.executable), device)
        done[peer.module] += 1
        if done[peer.module] == of[peer.module]:
            progress(peer.module, done[peer.module], of[peer.module])
        return own

    with ThreadPoolExecutor(max_workers=workers) as pool:
        return {peer.id: own for peer, own in zip(peers, pool.map(one, peers), strict=True)}


# ------------------------------------------------------------------------------------------------ what is kept

Kept = dict[str, list[dict[str, Any]]]
"""By id, what was found of each version, oldest first: {"versions": ..., "found": ...}."""


def load(path: Path = DATA) -> Kept:
    """What is kept."""
    kept: Kept = json.loads(path.read_text(encoding="utf-8")) if path.exists() else {}
    return kept


def save(kept: Kept, path: Path) -> None:
    """Keep it, in the order of the peers."""
    ordered = {peer.id: kept[peer.id] for peer in PEERS if peer.id in kept}
    path.write_text(json.dumps(ordered, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")


def merged(kept: Kept, answers: Mapping[str, tuple[str, Findings]]) -> Kept:
    """What is kept, with what was found now in the place of what was found of the same versions."""
    result = {name: list(own) for name, own in kept.items()}
    for name, (versions, found) in answers.items():
        rest = [entry for entry in result.get(name, []) if entry["versions"] != versions]
        result[name] = sorted([*rest, {"versions": versions, "found": found}], key=lambda own: release(own["versions"]))
    return result


def release(versions: str) -> list[tuple[int, ...]]:
    """Versions as numbers, so that they can be put in order."""
    return [tuple(map(int, re.findall(r"\d+", entry.rpartition(" ")[2]))) for entry in versions.split(", ")]


def changes(kept: Kept, answers: Mapping[str, tuple[str, Findings]]) -> Iterator[str]:
    """Every finding that is another than the one kept, of the same versions if there is one, or of the newest."""
    for name, (versions, found) in answers.items():
        before = kept.get(name, [])
        same = [entry for entry in before if entry["versions"] == versions]
        if not before:
            yield f"{name} ({versions}) was never asked before"
            continue
        known = (same or before)[-1]
        for column in dict.fromkeys([*known["found"], *found]):
            was, now = known["found"].get(column, "not asked"), found.get(column, "not asked")
            if was != now and not near(was, now):
                before_and_now = f"was {was!r} ({known['versions']}), is {now!r} ({versions})"
                yield f"{name}: {COLUMNS.get(column, column)}: {before_and_now}"


def near(was: str, now: str) -> bool:
    """Whether both are figures, and at most a step apart: another processor rounds otherwise."""
    if not (was.startswith("≤ ") and now.startswith("≤ ")):
        return False
    smaller, larger = sorted(float(words.removeprefix("≤ ")) for words in (was, now))
    return larger <= 3.5 * smaller


COLUMNS = {
    "closed": "fully masked rows",
    "hidden_value": "NaN in a hidden value",
    "hidden_key": "NaN in a hidden key",
    "large": "scores to ±2e6",
    "huge": "scores to ±2e10",
    "float16": "float16",
    "bfloat16": "bfloat16",
    "beyond": "lengths beyond the keys",
    "below": "lengths below 0",
    "polarity": "True in a mask",
    "gradients": "gradients",
}
"""What is found of a call, and how it is called."""
