"""Command lines given by mistake: each is refused with a sentence, and none runs everything or nothing."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from random import Random

import click
import pytest
from click.testing import CliRunner

import backends
from backends import FRAMEWORKS
from parity_tests.cli.main import main
from parity_tests.tests.checkout import invoke
from parity_tests.tests.commands import commands, squeezed


def valued(command: click.Command) -> Iterator[click.Option]:
    """The options of a command that take a value."""
    for option in command.params:
        if isinstance(option, click.Option) and not option.is_flag and not option.count:
            yield option


EMPTY = [(names, option.opts[-1]) for names, command in commands(main) for option in valued(command)]


@pytest.mark.parametrize(
    ("names", "flag"), EMPTY, ids=lambda value: value if isinstance(value, str) else " ".join(value)
)
def test_an_empty_value_is_refused(names: tuple[str, ...], flag: str):
    for words in ([flag, ""], [flag, " "], [f"{flag}="]):
        result = invoke(*names, *words)
        assert result.exit_code == 2 and f"the value of {flag} is empty" in squeezed(result), result.output


@pytest.mark.parametrize("value", [",", "torch,", ",torch", "torch,,tf"])
@pytest.mark.parametrize("line", ["run --backend", "fuzz --examples 1 --operator", "run --dtype", "benchmarks --item"])
def test_a_list_with_an_empty_name_is_refused(line: str, value: str):
    result = invoke(*line.split(), value)
    assert result.exit_code == 2 and "has an empty name" in squeezed(result), result.output


@pytest.mark.parametrize("line", ["fuzz --seconds", "check mine.py --fuzz"])
@pytest.mark.parametrize("seconds", ["0", "-1", "nan", "inf"])
def test_a_time_in_which_nothing_is_judged_or_without_an_end_is_refused(line: str, seconds: str):
    assert invoke(*line.split(), seconds).exit_code == 2


Count = Callable[[str, int, int], None]
WORDS = (
    "torch", "nobody", "0", "-1", "nan", "99999999999999999999", "*", "[", "masked_softmax-*", "mine.py:", ":x", "a=b",
    "=", "cpu", "cuda:0", "float8", "float64", "../..", "/", "~", "x" * 5_000, "\x1b[2J", "\udcff", "--", "-", "%s",
    "--help=1", "{}", "[red]", "plain", "Drawn('masked_softmax')", "Drawn(__import__('os'))",
)  # fmt: skip


def test_no_command_line_ends_in_a_traceback(
    pytestconfig: pytest.Config,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    counted: Callable[[str, int, int], None],
):
    """Options and values at random, of every command; no backend is there, so that nothing runs for long."""
    monkeypatch.chdir(tmp_path)
    gone = {name: backends.Availability(name, f"backends.{name}", {}, f"not installed: {name}.") for name in FRAMEWORKS}
    monkeypatch.setattr(backends, "available", lambda: gone)
    random, refused, tries = Random(18), 0, 4 * pytestconfig.getoption("--attack")
    chosen = [(names, command) for names, command in commands(main) if names[0] not in ("mutate", "behaviour", "list")]
    for _ in range(tries):
        names, command = random.choice(chosen)
        options = [
            option for option in command.params if isinstance(option, click.Option) and "write" not in option.name
        ]
        words = [*names]
        for option in random.sample(options, min(len(options), random.randrange(3))):
            words += [random.choice(option.opts)] + ([] if option.is_flag else [random.choice(WORDS)])
        words += random.choices(WORDS, k=random.randrange(4))
        result = CliRunner().invoke(main, words, color=True)
        assert result.exit_code in (0, 1, 2), (words, result.output)
        assert isinstance(result.exception, (SystemExit, type(None))), (words, result.exception)
        assert "\x1b[2J" not in result.output, words
        refused += result.exit_code != 0
    counted("command lines", tries, refused)
    assert not list(tmp_path.glob("*.partial"))
