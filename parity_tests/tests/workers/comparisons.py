"""`attention-parity compare` on recordings that a test has made."""

from __future__ import annotations

from pathlib import Path

from click.testing import Result

from parity_tests.tests.commands import invoke, squeezed
from parity_tests.workers.recordings import Recording

CELL = "dot_score-plain/float64"


def compared(folder: Path, *recordings: Recording, options: tuple[str, ...] = ()) -> Result:
    """What `compare` says of recordings that are written to the files 0.safetensors, 1.safetensors, ..."""
    files = [folder / f"{number}.safetensors" for number in range(len(recordings))]
    for file, recording in zip(files, recordings, strict=True):
        recording.save(file)
    return invoke("compare", *files, *options)


def refused(result: Result) -> str:
    """The reason, of a comparison in which nothing was judged."""
    assert result.exit_code == 2 and "comparisons" not in result.output and "worst error" not in result.output
    assert isinstance(result.exception, SystemExit)
    return squeezed(result)
