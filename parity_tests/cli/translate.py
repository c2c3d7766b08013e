"""The commands that train translators, translate with them and plot their losses."""

from __future__ import annotations

import contextlib
import functools
import json
import os
import sys
import time
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import replace
from itertools import chain
from pathlib import Path
from types import UnionType
from typing import Any, Literal, Union, get_args, get_origin, get_type_hints

import click
from rich.text import Text

import backends as registry
from attention_core.errors import AttentionError
from attention_core.operators.attention import SCORE_NAMES
from backends.archives import ArchiveError
from backends.requirements import XLA_LEVEL
from backends.schema import SchemaError
from parity_tests import plots
from parity_tests.cli import options, paths
from parity_tests.cli.terminal import Refused, console, pairs_in, progress
from parity_tests.format.expected import cache_folder, programs_folder
from parity_tests.reports.trainings import epoch_line, score_line
from parity_tests.translation import bleu
from parity_tests.translation import corpus as corpora
from parity_tests.translation.corpus import CorpusError
from parity_tests.translation.model import SETTINGS_OF, Data, Model, Settings, new_model, read_data
from parity_tests.translation.preparation import (
    DATE_SETTINGS,
    RESUMABLE,
    choose_backend,
    data_of,
    load_model,
    new_settings,
)
from parity_tests.translation.processes import ChildFailed
from parity_tests.translation.trainer import Diverged, Worker
from parity_tests.workers.environment import environment


@click.group(short_help="Train translators and translate with them.")
def translate() -> None:
    """Train a translator with attention in any framework, resume it in another, and translate."""


# ------------------------------------------------------------------------------------------------ options


def setting(
    flag: str, help: str, type: click.ParamType | None = None, name: str = ""
) -> Callable[[options.Command], options.Command]:
    """An option for a field of the settings, with its default and, unless a type is passed, its bounds."""
    name = name or flag.lstrip("-").partition("/")[0].replace("-", "_")
    type = type or type_of(SCHEMA[name])
    if type is None:
        return click.option(flag, name, is_flag=True, default=None, help=help)
    default = getattr(Settings(), name)
    if default is not None:
        help += f"  [default: {default}" + (f", {DATE_SETTINGS[name]} on dates]" if name in DATE_SETTINGS else "]")
    metavar = None if isinstance(type, click.Choice) else "N"
    return click.option(flag, name, type=type, default=None, metavar=metavar, help=help)


def type_of(annotation: Any) -> click.ParamType | None:
    """The parameter type of an annotation; None for a flag."""
    if get_origin(annotation) in (Union, UnionType):
        annotation = get_args(annotation)[0]
    if get_origin(annotation) is Literal:
        return click.Choice(get_args(annotation))
    if annotation is bool:
        return None
    kind, bounds = get_args(annotation)
    return (click.IntRange if kind is int else click.FloatRange)(bounds.low, bounds.high)


SCHEMA = get_type_hints(Settings, include_extras=True)
POSITIVE = click.IntRange(min=1)

corpus_options = options.combine(
    options.corpus,
    click.option(
        "--download", is_flag=True, help="Use the English-French pairs of the textbooks; they are downloaded once."
    ),
)
training_options = options.combine(
    corpus_options,
    setting("--split", "Tokenisation."),
    setting("--train", "Pairs to train on."),
    setting("--validation", "Pairs to validate on after each epoch."),
    setting("--test", "Pairs held out for `translate test`."),
    setting("--shuffle/--in-order", "Draw the pairs at random from the corpus, or use the first ones."),
    setting("--max-tokens", "Maximum length of a sentence in tokens, including the end token."),
    setting("--min-frequency", "Minimum number of occurrences of a token in the vocabulary."),
    setting("--model", "Recurrent layers with attention, or a Transformer."),
    setting("--embed", "Embedding size; in a Transformer, the features of every layer.", name="embed_size"),
    setting("--hidden", "Hidden size of the recurrent layers, or of feed-forward networks.", name="hidden_size"),
    setting("--layers", "Number of layers in encoder and decoder.", name="num_layers"),
    setting("--rnn", "The recurrent layer.", name="cell"),
    setting("--encoder-rnn", "The recurrent layer of the encoder (default: that of --rnn).", name="encoder_cell"),
    setting("--decoder", "Bahdanau's decoder, Luong's, or one without attention."),
    setting("--reads", "What the recurrent layer of Bahdanau's decoder reads (default: both context and token)."),
    setting("--input-feeding", "What a step of Luong's decoder feeds to the next (default: its attentional vector)."),
    setting("--score", "Score function (default: that of the decoder).", click.Choice(SCORE_NAMES)),
    setting("--bidirectional/--one-direction", "Whether the encoder is bidirectional."),
    setting("--heads", "Number of heads of a Transformer.", name="num_heads"),
    setting("--norm", "Whether a Transformer normalizes behind its sublayers, or before them."),
    setting("--positions", "How a Transformer knows positions."),
    setting("--tied/--untied", "Whether the embedding of a Transformer's decoder gives its logits, too."),
    setting("--initialization", "Draw matrices within 1/√inputs, or by Xavier, with biases of 0."),
    setting("--dropout", "Dropout rate."),
    setting("--framework-dropout/--dropout-as-data", "Draw the dropout masks by the framework, or from the seed."),
    setting("--optimizer", "The optimiser."),
    setting("--learning-rate", "The learning rate; with --warmup, the largest one."),
    setting("--warmup", "Let the learning rate rise for N steps, and fall with the root of the steps from then on."),
    setting("--max-norm", "Clip gradients to this global norm; 0 disables clipping.", click.FloatRange(0.0)),
    setting("--batch-size", "Batch size."),
    setting("--by-length/--by-chance", "Batch sentences of similar length."),
    setting("--epochs", "Number of epochs."),
    setting("--patience", "Stop after N epochs without a lower validation loss."),
    setting("--seed", "Seed of initial parameters, batch order and dropout masks."),
    setting("--dtype", "The dtype of parameters and computation; mixed_bfloat16: parameters in float32."),
)
beam_option = click.option(
    "--beam",
    type=POSITIVE,
    metavar="N",
    callback=lambda context, option, width: {} if width is None else {"width": width},
    help="Beam search with N hypotheses (default: greedy decoding).",
)
models_argument = click.argument("files", metavar="MODEL...", nargs=-1, required=True, type=paths.InputFile())
last_option = click.option(
    "--last", is_flag=True, help="Use the parameters of the last epoch, not those with the lowest validation loss."
)
backend_option = click.option(
    "--backend",
    metavar="NAME",
    shell_complete=options.complete_backend,
    help="Backend to translate with (default: the one that trained the model).",
)


@contextlib.contextmanager
def refusals() -> Iterator[None]:
    """Report a user error in one line and exit with 2, or with 1 if a package is missing."""
    try:
        yield
    except (ArchiveError, AttentionError, SchemaError, ChildFailed, CorpusError, Diverged) as error:
        raise Refused(str(error)) from error
    except ImportError as error:
        raise click.ClickException(str(error)) from error


def start_worker(model: Model, backend: str, device: str = "cpu") -> Worker:
    """Make a trainer of the model in this process, with the determinism settings of the backend."""
    check_backends(backend)
    os.environ.setdefault(XLA_LEVEL, "3")
    os.environ.update(environment(backend, programs_folder(), device))
    return Worker(model, backend, device)


def check_backends(*names: str, elsewhere: Collection[str] = ()) -> None:
    """Refuse a backend that is not registered, or that cannot run here and has no other interpreter."""
    known = registry.available()
    if unknown := [name for name in names if name not in known]:
        raise click.UsageError(f"no backend {unknown[0]!r}; there are {', '.join(known)}")
    reasons = [known[name].reason for name in names if name not in elsewhere]
    if missing := "; ".join(filter(None, reasons)):
        raise click.ClickException(missing)


def corpus_file(corpus: Path | None, download: bool) -> Path | None:
    """The file of pairs, downloaded on request; None for generated dates."""
    if download and corpus is not None:
        raise click.UsageError("--download and --corpus cannot be combined")
    return corpora.download(cache_folder() / "corpora") if download else corpus


def chosen_settings(given: Mapping[str, Any]) -> dict[str, Any]:
    """The settings that were passed as options."""
    chosen = {name: value for name, value in given.items() if value is not None}
    if chosen.get("max_norm") == 0.0:
        chosen["max_norm"] = None
    if chosen.get("decoder") == "fixed" and "score" in chosen:
        raise click.UsageError("--decoder fixed has no attention: omit --score")
    model = chosen.get("model", Settings.model)
    for name in chain.from_iterable(names for other, names in SETTINGS_OF.items() if other != model):
        if name in chosen:
            raise click.UsageError(f"--model {model} has no {flags_of({name})}: omit it")
    return chosen


def flags_of(names: Collection[str]) -> str:
    """The flags of settings, as they are passed."""
    return ", ".join(option.opts[0] for option in train.params if option.name in names)


# ------------------------------------------------------------------------------------------------ train


@translate.command(
    epilog=options.examples(
        "translate train --backend torch -o model.safetensors", "translate train --resume model.safetensors --epochs 20"
    )
)
@click.option(
    "--backend",
    metavar="NAME",
    shell_complete=options.complete_backend,
    help="Backend to train in (with --resume, default: that of the model).",
)
@options.device
@training_options
@options.output_file(
    "-o",
    "--output",
    metavar="MODEL",
    help="File of the model, written after each epoch (default: translator-BACKEND.safetensors).",
)
@click.option(
    "--resume",
    type=paths.InputFile(rewritten=True),
    metavar="MODEL",
    help="Resume the training of this model, in any backend; only --epochs and --patience may change.",
)
@click.option("--overwrite", is_flag=True, help="Overwrite an existing model.")
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
    """Train a translator and write it to a file after each epoch.

    If the process is interrupted or killed, only the unfinished epoch is lost: --resume continues from the file. On a
    CPU, the result is bitwise equal to that of an uninterrupted training.
    """
    with refusals():
        file = corpus_file(corpus, download)
        if resume is not None:
            model = load_resumed(resume, given)
            data = data_of(model.settings, file, pairs_in)
            backend, output = backend or model.backend, output or resume
        else:
            if backend is None:
                raise click.UsageError("--backend is missing: name one of " + ", ".join(registry.available()))
            settings, pairs = new_settings(file, chosen_settings(given), pairs_in)
            data = read_data(settings, pairs)
            model = new_model(settings, data, backend)
            output = output or Path(f"translator-{backend}.safetensors")
        if output.exists() and not overwrite and output != resume:
            raise click.UsageError(f"{output} exists: pass --resume {output} to resume it, or --overwrite")
        paths.check_output(output)
        model.backend = backend
        if model.is_finished:
            console.print(
                f"{output} is finished: {model.epoch} epochs. Pass a larger --epochs to train further.", soft_wrap=True
            )
            return
        check_backends(backend)
        sizes = f"{len(model.source):,} source and {len(model.target):,} target tokens"
        console.print(f"training in {backend}: {model.settings.train:,} pairs, {sizes}", soft_wrap=True)
        worker = start_worker(model, backend, device)
        try:
            while not model.is_finished:
                train_epoch(worker, data)
                with paths.writing(output):
                    model.save(output)
                console.print(Text(epoch_line(model)), soft_wrap=True)
        except KeyboardInterrupt:
            kept = f"{output} holds epoch {model.epoch}: resume it by --resume {output}"
            console.print(
                f"[yellow]stopped[/] in epoch {model.epoch + 1}; {kept if model.epoch else 'nothing kept'}",
                soft_wrap=True,
            )
            sys.exit(130)
    if model.epoch < model.settings.epochs:
        console.print(f"stopped early: epoch {model.best_epoch} has the lowest validation loss, and is the one kept")
    console.print(f"{output}: epoch {model.best_epoch} of {model.epoch}", soft_wrap=True)


def load_resumed(file: Path, given: Mapping[str, Any]) -> Model:
    """Read the model, with those settings that may change."""
    model = Model.load(file)
    changes = {name: value for name, value in given.items() if value is not None}
    if fixed := set(changes) - set(RESUMABLE):
        raise click.UsageError(f"--resume continues with the settings of {file}: omit {flags_of(fixed)}")
    model.settings = replace(model.settings, **changes)
    return model


def train_epoch(worker: Worker, data: Data) -> None:
    """Train one epoch behind a bar."""
    epoch = f"epoch {worker.model.epoch + 1}/{worker.model.settings.epochs}"
    with progress(lines=False) as report:
        report(epoch, 0, 1, "starting")
        start = time.perf_counter()
        for step in worker.train(data):
            rate = step.tokens / max(time.perf_counter() - start, 1e-9)
            report(epoch, step.number, step.steps, f"loss {step.loss:.3f}  {rate:,.0f} tokens/s")


# ------------------------------------------------------------------------------------------------ what was trained


@translate.command(
    "run",
    epilog=options.examples(
        "translate run model.safetensors 'go .' 'i am home .'",
        "translate run model.safetensors --beam 4 --heatmap heat.png 'i am home .'",
    ),
)
@click.argument("file", metavar="MODEL", type=paths.InputFile())
@click.argument("sentences", metavar="[SENTENCE]...", nargs=-1)
@backend_option
@options.device
@beam_option
@last_option
@options.output_file("--heatmap", type=paths.Picture(), metavar="PICTURE", help="Plot the attention weights to a file.")
@click.option(
    "--scale",
    type=click.Choice(get_args(plots.Scale)),
    help="Colours of --heatmap: from 0 to 1 (full, the default), or to the largest weight of all (shared) or of each.",
)
def run(
    file: Path,
    sentences: tuple[str, ...],
    backend: str | None,
    device: str,
    beam: dict[str, int],
    last: bool,
    heatmap: Path | None,
    scale: plots.Scale | None,
) -> None:
    """Translate sentences from the arguments, or the lines of standard input."""
    if scale is not None and heatmap is None:
        raise click.UsageError("--scale is for a picture: name its file by --heatmap")
    with refusals():
        model = load_model(file, last)
        settings = model.settings
        written = list(sentences) or [line.rstrip("\n") for line in sys.stdin if line.strip()]
        tokenised = [settings.tokens(sentence) for sentence in written]
        if not written or not all(map(corpora.normalise, written)):
            raise click.UsageError("nothing to translate: pass sentences as arguments, or as lines on standard input")
        for sentence, tokens in zip(written, tokenised, strict=True):
            warn_of_losses(model, sentence, tokens)
        pairs: list[tuple[list[str], list[str]]] = [(tokens, []) for tokens in tokenised]
        sources = corpora.encode(pairs, model.source, model.target, settings.max_tokens)
        worker = start_worker(model, choose_backend(backend, model.backend), device)
        decoded = list(worker.decode(sources, **beam))
        for sentence, (ids, _) in zip(written, decoded, strict=True):
            translation = settings.glue.join(worker.words(ids))
            console.print(Text.assemble((sentence, "dim"), "  →  ", translation), soft_wrap=True)
        if heatmap is not None:
            columns = [[*tokens[: settings.max_tokens - 1], corpora.EOS] for tokens in tokenised]
            rows = [[*worker.words(ids), corpora.EOS][: len(weights)] for ids, weights in decoded]
            weights = [array for _, array in decoded]
            figure = plots.heatmap(weights, rows, columns, titles=written, scale=scale or "full")
            paths.draw(figure, heatmap)


def warn_of_losses(model: Model, sentence: str, tokens: list[str]) -> None:
    """Report unknown and truncated tokens of a sentence."""
    unknown = [token for token in tokens if token not in model.source.index]
    if unknown:
        click.echo(f"{sentence}: not in the vocabulary: {' '.join(dict.fromkeys(unknown))}", err=True)
    if len(tokens) >= model.settings.max_tokens:
        kept = model.settings.max_tokens - 1
        click.echo(f"{sentence}: truncated from {len(tokens)} tokens to the {kept} that the model reads", err=True)


@translate.command(
    "test",
    epilog=options.examples(
        "translate test model.safetensors", "translate test *.safetensors --beam 4 --json scores.json"
    ),
)
@models_argument
@corpus_options
@backend_option
@options.device
@beam_option
@last_option
@click.option(
    "--on",
    "part",
    type=click.Choice(["training", "validation", "test"]),
    default="test",
    show_default=True,
    help="Split to translate: the training pairs, the pairs used to select the epoch, or the held-out test pairs.",
)
@options.output_file("--json", "json_file", help="Write sources, translations and scores to a JSON file.")
def test(
    files: tuple[Path, ...],
    corpus: Path | None,
    download: bool,
    backend: str | None,
    device: str,
    beam: dict[str, int],
    last: bool,
    part: str,
    json_file: Path | None,
) -> None:
    """Translate pairs and score the translations against all references of each source."""
    report = []
    with refusals():
        source = corpus_file(corpus, download)
        data = functools.cache(lambda settings: data_of(settings, source, pairs_in))  # models compared have the same
        worker = None
        for file in files:
            model = load_model(file, last)
            pairs = getattr(data(model.settings), part)
            if not pairs.written:
                raise Refused(f"{file} was trained with --{part} 0: nothing to translate")
            name = choose_backend(backend, model.backend)
            if worker is None or not worker.replace_model(model, name):
                worker = start_worker(model, name, device)
            translations = [worker.words(ids) for ids in worker.translate(pairs.sources, **beam)]
            scores = bleu.scores(translations, pairs.references)
            console.print(Text(f"{file}  {len(translations):,} sentences  {score_line(scores)}"), soft_wrap=True)
            about = {"model": str(file), "scores": scores, "history": model.history}
            report.append({**about, "sources": pairs.written, "translations": translations})
    if json_file is not None:
        paths.write(json_file, json.dumps(report, indent=1, ensure_ascii=False) + "\n")


@translate.command(
    epilog=options.examples(
        "translate curves torch.safetensors jax.safetensors -o curves.png",
        "translate curves model.safetensors --validation -o curves.png",
    )
)
@models_argument
@options.output_file(
    "-o", "--output", type=paths.Picture(), metavar="PICTURE", required=True, help="File of the picture."
)
@click.option("--validation", is_flag=True, help="Also plot the validation losses.")
def curves(files: tuple[Path, ...], output: Path, validation: bool) -> None:
    """Plot the losses of several trainings, with their distances below."""
    with refusals():
        draw_curves({file.stem: Model.load(file) for file in files}, output, validation)


def draw_curves(models: Mapping[str, Model], output: Path, validation: bool = False) -> None:
    """Plot the losses of models."""
    losses = {name: model.losses for name, model in models.items()}
    ends = {name: [epoch["validation_loss"] for epoch in model.history] for name, model in models.items()}
    paths.draw(plots.curves(losses, validation=ends if validation else None), output)
