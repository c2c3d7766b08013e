"""Translators of JoeyNMT 2.3: its model, its loss and its search."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import SimpleNamespace

import numpy as np
import torch
from joeynmt.batch import Batch as JoeyBatch
from joeynmt.model import Model, build_model
from joeynmt.search import search as joey_search
from joeynmt.vocabulary import Vocabulary
from torch import Tensor, nn

from attention_core.operators.training import Batch
from benchmarks.problem import BOS, EOS, PAD, RESERVED, UNK, Problem

ATTENTION = {"additive": "bahdanau", "general": "luong"}
"""JoeyNMT's names of scores."""
PATHS = {
    "encoder.embedding.weight": "src_embed.lut.weight",
    "decoder.embedding.weight": "trg_embed.lut.weight",
    "decoder.attention.W_q.weight": "decoder.attention.query_layer.weight",
    "decoder.attention.W_k.weight": "decoder.attention.key_layer.weight",
    "decoder.attention.w_v.weight": "decoder.attention.energy_layer.weight",
    "decoder.attention.W.weight": "decoder.attention.key_layer.weight",
    "decoder.W_c.weight": "decoder.att_vector_layer.weight",
    "decoder.dense.weight": "decoder.output_layer.weight",
    "decoder.dense.bias": "decoder.output_layer.bias",
}
"""Its parameters by the paths of the textbook's."""


def translator(problem: Problem) -> nn.Module:
    """The same function as ours: without a bridge, and with a bias of the logits, which JoeyNMT's has not."""
    hidden, target = problem.sizes["hidden"], problem.sizes["vocabulary"]
    recurrent = {"type": "recurrent", "rnn_type": "gru", "num_layers": 1, "embeddings": {"embedding_dim": hidden}}
    attention = {"attention": ATTENTION[problem.item.options["score"]], "init_hidden": "last", "input_feeding": True}
    model: Model = build_model(
        {
            "encoder": {**recurrent, "hidden_size": hidden // 2, "bidirectional": True},
            "decoder": {**recurrent, "hidden_size": hidden, **attention},
        },
        vocabulary(problem.sizes["source_vocabulary"]),
        vocabulary(target),
    )
    model.loss_function = ("crossentropy", 0.0)
    model.decoder.output_layer = nn.Linear(hidden, target)
    # A bias of the attentional vector, which ours has not, stays 0.
    nn.init.zeros_(model.decoder.att_vector_layer.bias).requires_grad_(False)
    return model


def vocabulary(size: int) -> Vocabulary:
    """Numbers as words."""
    numbers = {"unk": UNK, "pad": PAD, "bos": BOS, "eos": EOS}
    tokens = {f"{name}_token": f"<{name}>" for name in numbers}
    ids = {f"{name}_id": number for name, number in numbers.items()}
    special = SimpleNamespace(**tokens, **ids, sep_token=None, lang_tags=[])
    return Vocabulary([str(number) for number in range(RESERVED, size)], special)


def arrange(parameters: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
    """Our parameters as JoeyNMT has them: the output comes before the context."""
    context, output = np.split(parameters["decoder.W_c"], 2, axis=1)
    return {**parameters, "decoder.W_c": np.concatenate([output, context], axis=1)}


def batch_of(batch: Batch) -> JoeyBatch:
    """Our batch as JoeyNMT's."""
    source, indices = batch.source.long(), torch.arange(len(batch.source))
    target = torch.cat([batch.inputs[:, :1], batch.targets], dim=1).long()
    lens = batch.source_lens.long()
    return JoeyBatch(source, lens, None, target, None, indices, source.device, pad_index=PAD, eos_index=EOS)


def loss(model: nn.Module, batch: Batch) -> Callable[[], Tensor]:
    """What computes the loss, as JoeyNMT's TrainManager does with normalization: tokens."""
    given = batch_of(batch)

    def compute() -> Tensor:
        model.train()
        given.sort_by_src_length()
        summed, *_ = model(return_type="loss", **vars(given))
        return given.normalize(summed, normalization="tokens")

    return compute


def search(model: nn.Module, batch: Batch, steps: int, width: int = 1) -> Callable[[], tuple[Tensor]]:
    """What decodes, as JoeyNMT's prediction does without a length penalty."""
    model.eval()
    given = batch_of(batch)
    options = {"max_output_length": steps, "beam_size": width, "beam_alpha": 0.0}

    def decode() -> tuple[Tensor]:
        sentences, *_ = joey_search(model, given, **options)
        return (torch.from_numpy(sentences),)

    return decode
