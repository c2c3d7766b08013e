"""Train translators and translate in one process per backend."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from parity_tests.folders import Folder
from parity_tests.translation.model import Data, Settings, new_model
from parity_tests.translation.preparation import check_settings

Progress = Callable[[str, int, int, str], None]
"""A callback with a backend, its finished epochs, their total, and the current activity."""
KEPT_LINES = 8
"""The number of reported lines of a failed process."""


class ChildFailed(Exception):
    """A training or translating process failed; the message has the end of its output."""


def train(
    files: Mapping[str, Path],
    settings: Settings,
    data: Data,
    pythons: Mapping[str, str],
    device: str,
    in_turn: bool,
    progress: Progress,
) -> None:
    """Train a model in each backend from the same parameters, or resume existing models.

    in_turn trains one backend at a time. Raises: ArchiveError if a model was trained with other settings; ChildFailed.
    """
    for name, file in files.items():
        if file.exists():
            check_settings(file, settings)
        else:
            new_model(settings, data, name).save(file)
    patience = [] if settings.patience is None else ["--patience", str(settings.patience)]
    for epochs in range(1, settings.epochs + 1) if in_turn else (settings.epochs,):
        commands = {
            name: ["train", "--resume", str(file), "--epochs", str(epochs), *patience] for name, file in files.items()
        }
        run(commands, pythons, device, epochs, 1 if in_turn else os.cpu_count() or 1, progress)


def translate(
    files: Mapping[str, Path], pythons: Mapping[str, str], device: str, width: int | None, progress: Progress
) -> dict[str, dict[str, Any]]:
    """Translate the validation sentences in each backend with each model; results by backend, then by model."""
    beam = [] if width is None else ["--beam", str(width)]
    command = ["test", *map(str, files.values()), "--on", "validation", "--last", *beam, "--json"]
    with Folder() as folder:
        answers = {name: Path(folder) / f"{name}.json" for name in files}
        commands = {name: [*command, str(answer)] for name, answer in answers.items()}
        run(commands, pythons, device, 1, os.cpu_count() or 1, progress)
        reports = {name: json.loads(answer.read_text(encoding="utf-8")) for name, answer in answers.items()}
    return {name: dict(zip(files, report, strict=True)) for name, report in reports.items()}


def run(
    commands: Mapping[str, list[str]],
    pythons: Mapping[str, str],
    device: str,
    epochs: int,
    at_a_time: int,
    progress: Progress,
) -> None:
    """Run a translate command in a process for each backend, at_a_time of them together.

    Raises: ChildFailed.
    """
    running: list[subprocess.Popen[str]] = []

    def one(name: str) -> str | None:
        progress(name, 0, epochs, "starting")
        command = [pythons.get(name, sys.executable), "-m", "parity_tests", "translate", *commands[name]]
        child = subprocess.Popen(
            [*command, "--backend", name, "--device", device],
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        running.append(child)
        lines = []
        assert child.stdout is not None
        for line in child.stdout:
            lines.append(line.rstrip())
            if line.startswith("epoch"):
                progress(name, int(line[5:].partition("/")[0]), epochs, line.partition("  ")[2].strip())
        if child.wait() != 0:
            return f"{name} failed:\n" + "\n".join(lines[-KEPT_LINES:])
        progress(name, epochs, epochs, "")
        return None

    try:
        with ThreadPoolExecutor(max_workers=min(len(commands), at_a_time)) as pool:
            failures = [failure for failure in pool.map(one, commands) if failure]
    except KeyboardInterrupt:
        for child in running:
            child.terminate()
        raise
    if failures:
        raise ChildFailed("\n".join(failures))
