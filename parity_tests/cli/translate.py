"""The commands that train translators, translate with them, and hold the frameworks' trainings against each other."""

from __future__ import annotations

import contextlib
import functools
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, fields, replace
from pathlib import Path
from typing import Any

import click
from rich.markup import escape
from rich.table import Table
from rich.text import Text

import backends as registry
from attention_core.errors import AttentionError
from attention_core.operators.attention import SCORE_NAMES
from attention_core.operators.translation import DECODERS
from backends.archives import ArchiveError
from backends.requirements import XLA_LEVEL
from parity_tests import plots
from parity_tests.cases.call import JUDGED_STEPS
from parity_tests.cases.expected import cache_folder, programs_folder
from parity_tests.cli.options import (
    CommaList,
    Command,
    Refused,
    complete_backend,
    console,
    corpus_option,
    device_option,
    examples,
    interpreters,
    options,
    pairs_in,
    progress,
)
from parity_tests.translation import corpus as corpora
from parity_tests.translation.comparison import CLOSE, compared
from parity_tests.translation.corpus import CorpusError
from parity_tests.translation.model import DATES, Data, Model, Settings, digest_of, new_model, read_data
from parity_tests.translation.trainer import Diverged, Worker, scored
from parity_tests.workers.environment import environment

ON_DATES: dict[str, Any] = {
    "split": "characters",
    "train": 10_000,
    "validation": 500,
    "test": 1_000,
    "max_tokens": 26,
    "embed_size": 32,
    "hidden_size": 64,
    "num_layers": 1,
    "bidirectional": True,
    "epochs": 6,
}
"""What the settings are for the corpus of dates, unless given: they differ from those of sentences."""


@click.group(short_help="Train translators, and translate with them.")
def translate() -> None:
    """Train a translator with attention in any framework, go on in another, and translate."""


# ------------------------------------------------------------------------------------------------ options


def _default(name: str) -> str:
    """How the help tells a default, where that of dates is another."""
    plain = getattr(Settings(), name)
    return f"{plain}, {ON_DATES[name]} on dates" if name in ON_DATES else str(plain)


def setting(flag: str, help: str, **keywords: Any) -> Callable[[Command], Command]:
    """An option that is a field of the settings; its default is theirs."""
    name = keywords.pop("name", flag.lstrip("-").partition("/")[0].replace("-", "_"))
    keywords.setdefault("metavar", None if "type" in keywords and isinstance(keywords["type"], click.Choice) else "N")
    if keywords.get("is_flag"):
        keywords.pop("metavar")
    shown = "" if keywords.get("is_flag") else f"  [default: {_default(name)}]"
    return click.option(flag, name, default=None, help=help + shown, **keywords)


POSITIVE, COUNT, RATE = click.IntRange(min=1), click.IntRange(min=0), click.FloatRange(0.0, 1.0, max_open=True)
ABOVE_ZERO = click.FloatRange(0.0, min_open=True)

corpus_options = options(
    corpus_option,
    click.option(
        "--download", is_flag=True, help="Fetch the English-French pairs of the textbooks, once, and take them."
    ),
)
training_options = options(
    corpus_options,
    setting("--split", "What a token is.", type=click.Choice(list(corpora.SPLITTERS))),
    setting("--train", "Pairs to train on.", type=POSITIVE),
    setting("--validation", "Pairs to validate on after each epoch.", type=POSITIVE),
    setting("--test", "Pairs held out for `translate test`.", type=COUNT),
    setting("--shuffle/--in-order", "Draw the pairs from the whole corpus, or take the first.", is_flag=True),
    setting("--max-tokens", "Tokens of a sentence at most, the end token included.", type=click.IntRange(min=2)),
    setting("--min-frequency", "How often a token has to stand to be in the vocabulary.", type=POSITIVE),
    setting("--embed", "Features of an embedded token.", type=POSITIVE, name="embed_size"),
    setting("--hidden", "Features of a recurrent layer.", type=POSITIVE, name="hidden_size"),
    setting("--layers", "Recurrent layers of encoder and of decoder.", type=POSITIVE, name="num_layers"),
    setting("--rnn", "The recurrent layer.", type=click.Choice(["gru", "lstm"]), name="cell"),
    setting("--decoder", "Bahdanau's, Luong's, or without attention.", type=click.Choice(list(DECODERS))),
    setting("--score", "How a key is scored; the decoder's own unless given.", type=click.Choice(SCORE_NAMES)),
    setting("--bidirectional/--one-direction", "Whether the encoder reads both ways.", is_flag=True),
    setting("--dropout", "The rate of dropout.", type=RATE),
    setting("--own-dropout/--dropout-as-data", "Let the framework draw what is dropped.", is_flag=True),
    setting("--optimizer", "What moves the parameters.", type=click.Choice(["adam", "sgd"])),
    setting("--learning-rate", "How far.", type=ABOVE_ZERO),
    setting("--max-norm", "Clip gradients to this global norm; 0 clips nothing.", type=click.FloatRange(0.0)),
    setting("--batch-size", "Pairs of a step.", type=POSITIVE),
    setting("--epochs", "Epochs to train.", type=POSITIVE),
    setting("--patience", "Stop after so many epochs without a lower validation loss.", type=POSITIVE),
    setting("--seed", "Draw first parameters, orders and dropout masks of this seed.", type=COUNT),
    setting("--dtype", "The numbers to compute with.", type=click.Choice(list(CLOSE))),
)
beam_option = click.option(
    "--beam", "width", type=POSITIVE, metavar="N", help="Search with N hypotheses, not greedily."
)
last_option = click.option(
    "--last", is_flag=True, help="Take the parameters after the last epoch, not those with the lowest validation loss."
)
backend_option = click.option(
    "--backend",
    metavar="NAME",
    shell_complete=complete_backend,
    help="The backend to translate with; that which trained the model unless given.",
)


@contextlib.contextmanager
def refusals() -> Iterator[None]:
    """Say what is wrong in one line, and exit with 2."""
    try:
        yield
    except (ArchiveError, AttentionError, CorpusError, Diverged, ImportError) as error:
        raise Refused(str(error)) from error


def check_backends(names: Sequence[str]) -> None:
    """Refuse a backend that is not registered."""
    known = registry.available()
    if unknown := [name for name in names if name not in known]:
        raise click.UsageError(f"no backend {unknown[0]!r}; there are {', '.join(known)}")


def pairs_of(corpus: Path | None, download: bool, given: Mapping[str, Any]) -> tuple[str, list[corpora.Pair]]:
    """The name of the corpus, and its pairs."""
    if download:
        if corpus is not None:
            raise click.UsageError("--download and --corpus name two corpora: give one")
        corpus = corpora.download(cache_folder() / "corpora")
    if corpus is None:
        numbers = (given.get(name) or ON_DATES[name] for name in ("train", "validation", "test"))
        return DATES, corpora.dates(2 * sum(numbers), given.get("seed") or 0)
    return str(corpus), pairs_in(corpus)


def settings_of(corpus: Path | None, download: bool, given: Mapping[str, Any]) -> tuple[Settings, list[corpora.Pair]]:
    """The settings that were given, with the defaults of the corpus, and its pairs."""
    name, pairs = pairs_of(corpus, download, given)
    chosen = {own: value for own, value in given.items() if value is not None}
    if chosen.get("max_norm") == 0.0:
        chosen["max_norm"] = None
    base = ON_DATES if name == DATES else {}
    if chosen.get("decoder", "bahdanau") == "fixed" and "score" in chosen:
        raise click.UsageError("--decoder fixed has no attention: leave --score out")
    return Settings(**{**base, **chosen, "corpus": name, "digest": digest_of(pairs)}), pairs


def data_of(settings: Settings, corpus: Path | None, download: bool) -> Data:
    """The data of a model that was trained before: of the corpus it names, which has to be the same."""
    if corpus is None and not download and settings.corpus != DATES:
        corpus = Path(settings.corpus)
    name, pairs = pairs_of(corpus, download, asdict(settings))
    if digest_of(pairs) != settings.digest:
        raise CorpusError(f"{name} holds other pairs than those the model was trained on ({settings.corpus}).")
    return read_data(settings, pairs)


def worker(model: Model, backend: str, device: str) -> Worker:
    """The backend at work on the model, in this process, with the switches that make it repeatable."""
    check_backends([backend])
    os.environ.setdefault(XLA_LEVEL, "3")
    os.environ.update(environment(backend, programs_folder(), device))
    return Worker(model, backend, device)


def chosen_backend(given: str | None, trained: str) -> str:
    """The backend to take: the one given, or the one that trained the model, or any that is here."""
    if given is not None:
        return given
    known = registry.available()
    return next((name for name in (trained, *known) if name in known and known[name].reason is None), trained)


# ------------------------------------------------------------------------------------------------ train


@translate.command(
    epilog=examples(
        "translate train --backend torch -o model.safetensors",
        "translate train --resume model.safetensors --epochs 20",
    )
)
@click.option(
    "--backend",
    metavar="NAME",
    shell_complete=complete_backend,
    help="The backend to train in; that of the model with --resume.",
)
@device_option
@training_options
@click.option(
    "-o",
    "--output",
    type=click.Path(dir_okay=False, path_type=Path),
    metavar="MODEL",
    help="Where to write the model after each epoch; translator-BACKEND.safetensors unless given.",
)
@click.option(
    "--resume",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    metavar="MODEL",
    help="Go on with this model, in any backend; of the settings, --epochs and --patience alone may be given anew.",
)
@click.option("--overwrite", is_flag=True, help="Write over a model that is there.")
def train(
    backend: str | None,
    device: str,
    corpus: Path | None,
    download: bool,
    output: Path | None,
    resume: Path | None,
    overwrite: bool,
    **given: Any,
) -> None:
    """Train a translator epoch by epoch, and write it to a file after each.

    Ctrl-C, or the death of the process, loses the epoch that was not done, no more: --resume goes on from the file, and
    on a CPU to the same numbers, bit for bit, as if there had been no break.
    """
    with refusals():
        if resume is not None:
            model, data = _resumed(resume, corpus, download, given)
            backend = backend or model.backend
            output = output or resume
        else:
            if backend is None:
                raise click.UsageError("--backend is missing: name one of " + ", ".join(registry.available()))
            settings, pairs = settings_of(corpus, download, given)
            data = read_data(settings, pairs)
            model = new_model(settings, data, backend)
            output = output or Path(f"translator-{backend}.safetensors")
        if output.exists() and not overwrite and output != resume:
            raise click.UsageError(f"{output} exists: go on with it by --resume {output}, or give --overwrite")
        if not output.absolute().parent.is_dir():
            raise click.UsageError(f"there is no folder {output.absolute().parent}")
        model.backend = backend
        if model.finished:
            console.print(f"{output} is done: {model.epoch} epochs. More are trained by --epochs.", soft_wrap=True)
            return
        sizes = f"{len(model.source):,} source and {len(model.target):,} target tokens"
        console.print(f"training in {backend}: {model.settings.train:,} pairs, {sizes}", soft_wrap=True)
        at_work = worker(model, backend, device)
        try:
            while not model.finished:
                train_epoch(at_work, data)
                model.save(output)
                console.print(Text(epoch_line(model)), soft_wrap=True)
        except KeyboardInterrupt:
            held = (
                f"{output} holds epoch {model.epoch}: go on with --resume {output}" if model.epoch else "nothing kept"
            )
            console.print(f"[yellow]stopped[/] in epoch {model.epoch + 1}; {held}", soft_wrap=True)
            sys.exit(130)
    if model.epoch < model.settings.epochs:
        console.print(f"stopped early: epoch {model.best_epoch} has the lowest validation loss, and is the one kept")
    console.print(f"{output}: epoch {model.best_epoch} of {model.epoch}", soft_wrap=True)


def _resumed(resume: Path, corpus: Path | None, download: bool, given: Mapping[str, Any]) -> tuple[Model, Data]:
    model = Model.load(resume)
    new = {name: value for name, value in given.items() if value is not None}
    if set(new) - {"epochs", "patience"}:
        flags = {own.name: own.opts[0] for own in train.params}
        wrong = ", ".join(flags[name] for name in new if name not in ("epochs", "patience"))
        raise click.UsageError(f"--resume goes on with the settings of {resume}: leave {wrong} out")
    model.settings = replace(model.settings, **new)
    return model, data_of(model.settings, corpus, download)


def train_epoch(at_work: Worker, data: Data) -> None:
    """Train one epoch behind a bar."""
    epoch = f"epoch {at_work.model.epoch + 1}/{at_work.model.settings.epochs}"
    with progress(lines=False) as told:
        told(epoch, 0, 1, "starting")
        start = time.perf_counter()
        for step in at_work.train(data):
            rate = step.tokens / max(time.perf_counter() - start, 1e-9)
            told(epoch, step.number, step.steps, f"loss {step.loss:.3f}  {rate:,.0f} tokens/s")


def epoch_line(model: Model) -> str:
    """What an epoch came to, in one line."""
    own = model.history[-1]
    return (
        f"epoch {model.epoch:>3}/{model.settings.epochs}  loss {own['loss']:.4f}  "
        f"validation {own['validation_loss']:.4f}  {score_text(own)}  {own['tokens_per_second']:,.0f} tokens/s"
        f"{'  *' if model.best_epoch == model.epoch else ''}"
    )


def score_text(own: Mapping[str, float]) -> str:
    """The scores in words."""
    return f"BLEU {own['bleu']:.1f}  k=2 {own['textbook']:.3f}  exact {100 * own['exact']:.1f}%"


# ------------------------------------------------------------------------------------------------ run


@translate.command(
    "run",
    epilog=examples(
        "translate run model.safetensors 'go .' 'i am home .'",
        "translate run model.safetensors --beam 4 --heatmap heat.png 'i am home .'",
    ),
)
@click.argument("file", metavar="MODEL", type=click.Path(exists=True, dir_okay=False, path_type=Path))
@click.argument("sentences", metavar="[SENTENCE]...", nargs=-1)
@backend_option
@device_option
@beam_option
@last_option
@click.option(
    "--heatmap",
    type=click.Path(dir_okay=False, path_type=Path),
    metavar="PICTURE",
    help="Draw what each word attended to.",
)
def run(
    file: Path,
    sentences: tuple[str, ...],
    backend: str | None,
    device: str,
    width: int | None,
    last: bool,
    heatmap: Path | None,
) -> None:
    """Translate sentences: those given, or the lines of standard input."""
    with refusals():
        model = loaded(file, last)
        written = list(sentences) or [line.rstrip("\n") for line in sys.stdin if line.strip()]
        tokenised = [corpora.SPLITTERS[model.settings.split](sentence) for sentence in written]
        if not written or not all(map(corpora.normalise, written)):
            raise click.UsageError("there is nothing to translate: give sentences, or lines on standard input")
        for sentence, tokens in zip(written, tokenised, strict=True):
            _tell_losses(model, sentence, tokens)
        sources = corpora.encoded(
            [(own, []) for own in tokenised], model.source, model.target, model.settings.max_tokens
        )
        at_work = worker(model, chosen_backend(backend, model.backend), device)
        found = list(at_work.decoded(sources, **_beam(width)))
        glue = "" if model.settings.split == "characters" else " "
        for sentence, (ids, _) in zip(written, found, strict=True):
            console.print(Text.assemble((sentence, "dim"), "  →  ", glue.join(at_work.words(ids))), soft_wrap=True)
        if heatmap is not None:
            shown = [[*own[: model.settings.max_tokens - 1], corpora.EOS] for own in tokenised]
            weights = [own for _, own in found]
            rows = [[*at_work.words(ids), corpora.EOS][: len(own)] for ids, own in found]
            plots.heatmap(weights, rows, shown, titles=written).savefig(heatmap)


def loaded(file: str | Path, last: bool) -> Model:
    """A model to translate with: as it was after the best epoch, or after the last."""
    model = Model.load(file)
    return replace(model, parameters=model.last) if last else model


def _beam(width: int | None) -> dict[str, int]:
    return {} if width is None else {"width": width}


def _tell_losses(model: Model, sentence: str, tokens: Sequence[str]) -> None:
    unknown = [token for token in tokens if token not in model.source.index]
    if unknown:
        click.echo(f"{sentence}: not in the vocabulary: {' '.join(dict.fromkeys(unknown))}", err=True)
    if len(tokens) >= model.settings.max_tokens:
        kept = model.settings.max_tokens - 1
        click.echo(f"{sentence}: the model reads {kept} tokens, and this has {len(tokens)}: the rest is cut", err=True)


# ------------------------------------------------------------------------------------------------ test


@translate.command(
    "test",
    epilog=examples("translate test model.safetensors", "translate test *.safetensors --beam 4 --json scores.json"),
)
@click.argument("files", metavar="MODEL...", nargs=-1, required=True, type=click.Path(exists=True, dir_okay=False))
@corpus_options
@backend_option
@device_option
@beam_option
@last_option
@click.option(
    "--on",
    "part",
    type=click.Choice(["training", "validation", "test"]),
    default="test",
    show_default=True,
    help="The pairs to translate: those trained on, those that chose the epoch, or those never seen.",
)
@click.option(
    "--json",
    "json_file",
    type=click.Path(dir_okay=False, path_type=Path),
    metavar="FILE",
    help="Write sources, translations and scores to a file.",
)
def test(
    files: tuple[str, ...],
    corpus: Path | None,
    download: bool,
    backend: str | None,
    device: str,
    width: int | None,
    last: bool,
    part: str,
    json_file: Path | None,
) -> None:
    """Translate pairs, and score the translations against all references of each source."""
    report = []
    data = functools.cache(lambda settings: data_of(settings, corpus, download))  # models compared have the same
    with refusals():
        for file in files:
            model = loaded(file, last)
            held = getattr(data(model.settings), part)
            if not held.written:
                raise Refused(f"{file} was trained with --{part} 0: there is nothing to translate")
            at_work = worker(model, chosen_backend(backend, model.backend), device)
            found = [at_work.words(ids) for ids in at_work.translated(held.sources, **_beam(width))]
            own = scored(found, held.references)
            console.print(Text(f"{file}  {len(found):,} sentences  {score_text(own)}"), soft_wrap=True)
            told = {"model": file, "scores": own, "history": model.history}
            report.append({**told, "sources": held.written, "translations": found})
    if json_file is not None:
        json_file.write_text(json.dumps(report, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")


@translate.command(
    "curves",
    epilog=examples(
        "translate curves torch.safetensors jax.safetensors -o curves.png",
        "translate curves model.safetensors --validation -o curves.png",
    ),
)
@click.argument("files", metavar="MODEL...", nargs=-1, required=True, type=click.Path(exists=True, dir_okay=False))
@click.option(
    "-o",
    "--output",
    type=click.Path(dir_okay=False, path_type=Path),
    metavar="PICTURE",
    required=True,
    help="Where to draw them.",
)
@click.option("--validation", is_flag=True, help="Draw the validation losses, too.")
def draw_curves(files: tuple[str, ...], output: Path, validation: bool) -> None:
    """Draw the losses of trainings in one picture, with their distances below."""
    with refusals():
        models = {Path(file).stem: Model.load(file) for file in files}
        _draw_curves(models, output, validation)


def _draw_curves(models: Mapping[str, Model], output: Path, validation: bool = False) -> None:
    losses = {name: own.losses for name, own in models.items()}
    ends = {name: [epoch["validation_loss"] for epoch in own.history] for name, own in models.items()}
    plots.curves(losses, validation=ends if validation else None).savefig(output)


# ------------------------------------------------------------------------------------------------ compare


@translate.command(
    "compare",
    epilog=examples(
        "translate compare --output compared", "translate compare --backend torch,jax --epochs 4 --output compared"
    ),
)
@click.option(
    "--backend",
    "names",
    type=CommaList(known=registry.available),
    metavar="NAMES",
    help="Backends to train in, with commas; all installed ones unless given.",
)
@click.option(
    "--python",
    "pythons",
    metavar="NAME=PATH",
    multiple=True,
    help="Train a backend with another interpreter, whose environment has this package and the framework.",
)
@device_option
@training_options
@click.option(
    "--output",
    "folder",
    type=click.Path(file_okay=False, path_type=Path),
    metavar="DIR",
    default=Path("translators"),
    show_default=True,
    help="Where to write the models, curves.png and report.json; what is there is gone on with.",
)
@beam_option
@click.option(
    "--in-turn",
    is_flag=True,
    help="Train one epoch in each backend after the other, with nothing beside: for the figures of speed.",
)
@click.option(
    "--sentence",
    "sentences",
    metavar="SENTENCE",
    multiple=True,
    help="Show its translations, if it was validated on.",
)
def compare(
    names: list[str] | None,
    pythons: tuple[str, ...],
    device: str,
    corpus: Path | None,
    download: bool,
    folder: Path,
    width: int | None,
    in_turn: bool,
    sentences: tuple[str, ...],
    **given: Any,
) -> None:
    """Train in every backend from the same parameters on the same batches, and compare.

    Prints how near the losses lie, whether each model translates the validation sentences to the same tokens in every
    backend, and whether all models do. Exits with 0 only if the losses are as near as their dtype allows, each model
    translates the same, and in float64 all do: trainings in float32 part in the end.
    """
    if given["own_dropout"]:
        raise click.UsageError("--own-dropout is another training in each framework: there is nothing to compare")
    chosen = interpreters(pythons)
    known = registry.available()
    names = names or [name for name, own in known.items() if own.reason is None or name in chosen]
    check_backends(names)
    if not names:
        raise click.ClickException("no backend can run here; `attention-parity backends` says why")
    folder.mkdir(parents=True, exist_ok=True)
    files = {name: folder / f"{name}.safetensors" for name in names}
    with refusals():
        settings, pairs = settings_of(corpus, download, given)
        read_data(settings, pairs)  # refused here, once, and not in every child
        arguments = _arguments(corpus, download, given)
        for done in range(1, settings.epochs + 1) if in_turn else (settings.epochs,):
            until = replace(settings, epochs=done)
            commands = {name: _training(files[name], until, arguments) for name in names}
            _in_children(commands, chosen, until.epochs, device, 1 if in_turn else os.cpu_count() or 1)
        models = {name: Model.load(file) for name, file in files.items()}
        found = _translations(files, chosen, device, width)
        _draw_curves(models, folder / "curves.png")
    report = compared(models, found, JUDGED_STEPS)
    (folder / "report.json").write_text(json.dumps(report, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
    _print_compared(models, report, found, sentences)
    sys.exit(0 if report["near"] and report["same"] else 1)


def _arguments(corpus: Path | None, download: bool, given: Mapping[str, Any]) -> list[str]:
    """The options of this command as those of another process."""
    parameters = {own.name: own for own in train.params if isinstance(own, click.Option)}
    arguments = [*(["--corpus", str(corpus)] if corpus else []), *(["--download"] if download else [])]
    for name, value in given.items():
        if isinstance(value, bool):
            arguments.append((parameters[name].opts if value else parameters[name].secondary_opts)[0])
        elif value is not None:
            arguments += [parameters[name].opts[0], str(value)]
    return arguments


def _training(file: Path, settings: Settings, arguments: list[str]) -> list[str]:
    """The command that trains to a file, or goes on with the one that is there."""
    if not file.exists():
        return ["train", "-o", str(file), *arguments, "--epochs", str(settings.epochs)]
    there = Model.load(file).settings
    anew = {name: getattr(settings, name) for name in ("epochs", "patience")}
    if replace(there, **anew) != settings:
        differing = [own.name for own in fields(Settings) if getattr(there, own.name) != getattr(settings, own.name)]
        raise ArchiveError(f"{file} was trained with other settings ({', '.join(differing)}): give another --output")
    patience = [] if settings.patience is None else ["--patience", str(settings.patience)]
    return ["train", "--resume", str(file), "--epochs", str(settings.epochs), *patience]


def _in_children(
    commands: Mapping[str, list[str]], chosen: Mapping[str, str], epochs: int, device: str, at_a_time: int
) -> None:
    """Run a command of this group in a process for each backend, so many at a time.

    Raises: Refused with the end of what a child said, if it failed.
    """
    running: list[subprocess.Popen[str]] = []
    with progress() as told:

        def one(name: str) -> str | None:
            told(name, 0, epochs, "starting")
            command = [chosen.get(name, sys.executable), "-m", "parity_tests", "translate", *commands[name]]
            child = subprocess.Popen(
                [*command, "--backend", name, "--device", device],
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                text=True,
            )
            running.append(child)
            said = []
            assert child.stdout is not None
            for line in child.stdout:
                said.append(line.rstrip())
                if line.startswith("epoch"):
                    told(name, int(line[5:].partition("/")[0]), epochs, line.partition("  ")[2].strip())
            if child.wait() != 0:
                return f"{name} failed:\n" + "\n".join(said[-8:])
            told(name, epochs, epochs)
            return None

        try:
            with ThreadPoolExecutor(max_workers=min(len(commands), at_a_time)) as pool:
                failures = [failure for failure in pool.map(one, commands) if failure]
        except KeyboardInterrupt:
            for child in running:
                child.terminate()
            raise
    if failures:
        raise Refused("\n".join(failures))


def _translations(
    files: Mapping[str, Path], chosen: Mapping[str, str], device: str, width: int | None
) -> dict[str, dict[str, Any]]:
    """What each backend makes of the validation sentences with the model of each: by backend, then by model."""
    with tempfile.TemporaryDirectory(prefix="attention-parity-") as folder:
        beam = [] if width is None else ["--beam", str(width)]
        asked = ["test", *map(str, files.values()), "--on", "validation", "--last", *beam, "--json"]
        answers = {name: Path(folder) / f"{name}.json" for name in files}
        _in_children({name: [*asked, str(answers[name])] for name in files}, chosen, 1, device, os.cpu_count() or 1)
        found = {name: json.loads(answer.read_text(encoding="utf-8")) for name, answer in answers.items()}
    return {name: dict(zip(files, own, strict=True)) for name, own in found.items()}


def _print_compared(
    models: Mapping[str, Model],
    report: Mapping[str, Any],
    found: Mapping[str, Mapping[str, Any]],
    sentences: Sequence[str],
) -> None:
    table = Table(header_style="bold")
    for column in ("backend", "epochs", "last loss", "validation", "BLEU", "k=2", "exact", "tokens/s"):
        table.add_column(column, justify="left" if column == "backend" else "right")
    for name, own in report["trainings"].items():
        scores = (f"{own['bleu']:.1f}", f"{own['textbook']:.3f}", f"{100 * own['exact']:.1f}%")
        losses = (f"{own['loss']:.6f}", f"{own['validation_loss']:.6f}")
        table.add_row(name, str(own["epochs"]), *losses, *scores, f"{own['tokens_per_second']:,.0f}")
    console.print(table)
    shown = next(iter(found.values()))
    first = next(iter(shown.values()))
    sources = [corpora.normalise(own) for own in first["sources"]]
    rows = [sources.index(own) for own in map(corpora.normalise, sentences) if own in sources] or range(len(sources))
    glue = "" if next(iter(models.values())).settings.split == "characters" else " "
    side = Table(header_style="bold", title="each model in its own framework", title_justify="left")
    for column in ("source", *models):
        side.add_column(column)
    for number in list(rows)[:6]:
        own = [glue.join(found[name][name]["translations"][number]) for name in models]
        side.add_row(escape(first["sources"][number]), *map(escape, own))
    console.print(side)
    steps, bound = report["judged_steps"], report["bound"]
    verdict = "[green]near[/]" if report["near"] else "[bold red]apart[/]"
    console.print(
        f"losses        {verdict}: {report['distance_judged']:.1e} at most in the first {steps} steps (allowed "
        f"{bound:g}), {report['distance_all']:.1e} in all {report['steps']}",
        highlight=False,
        soft_wrap=True,
    )
    moved = {name: own for name, own in report["moved"].items() if own}
    count, judged = len(report["between_models"]), next(iter(models.values())).settings.dtype == "float64"
    same = "[green]the same[/]"
    differ = ", ".join(f"{len(own)} of {name} differ" for name, own in moved.items())
    said = f"[bold red]{differ}[/]" if moved else same
    told = same if not count else f"[bold red]{count} differ[/]" if judged else f"{count} differ, shown and not judged"
    for line in (
        f"each model    {said} in {len(found)} backends: {report['sentences']} sentences",
        f"all models    {told}: {report['sentences']} sentences by {len(models)} models",
    ):
        console.print(line, highlight=False, soft_wrap=True)
    for name, own in moved.items():
        for source in own[:6]:
            each = {at: glue.join(by[name]["translations"][first["sources"].index(source)]) for at, by in found.items()}
            console.print(Text(f"    {name}  {source}  {each}"), soft_wrap=True)
