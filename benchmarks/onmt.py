"""Translators of OpenNMT-py 3.5: its model, its loss and its search."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import numpy as np
import pyonmttok
import torch
from onmt.constants import DefaultTokens
from onmt.decoders import InputFeedRNNDecoder
from onmt.encoders import RNNEncoder
from onmt.models import NMTModel
from onmt.modules import Embeddings
from onmt.translate import GNMTGlobalScorer, Translator
from onmt.utils.loss import LossCompute
from torch import Tensor, nn

from attention_core.operators.training import Batch
from benchmarks.problem import PAD, RESERVED, Problem

PATHS = {
    "encoder.embedding.weight": "encoder.embeddings.make_embedding.emb_luts.0.weight",
    "decoder.embedding.weight": "decoder.embeddings.make_embedding.emb_luts.0.weight",
    "decoder.rnn.weight_ih_l0": "decoder.rnn.layers.0.weight_ih",
    "decoder.rnn.weight_hh_l0": "decoder.rnn.layers.0.weight_hh",
    "decoder.rnn.bias_ih_l0": "decoder.rnn.layers.0.bias_ih",
    "decoder.rnn.bias_hh_l0": "decoder.rnn.layers.0.bias_hh",
    "decoder.attention.W.weight": "decoder.attn.linear_in.weight",
    "decoder.W_c.weight": "decoder.attn.linear_out.weight",
    "decoder.dense.weight": "generator.weight",
    "decoder.dense.bias": "generator.bias",
}
"""Its parameters by the paths of the textbook's."""


def translator(problem: Problem) -> nn.Module:
    """The same function as ours: the general score, and no bridge."""
    hidden, target = problem.sizes["hidden"], problem.sizes["vocabulary"]
    read, written = (Embeddings(hidden, size, PAD) for size in (problem.sizes["source_vocabulary"], target))
    recurrent = {"rnn_type": "GRU", "num_layers": 1, "hidden_size": hidden}
    encoder = RNNEncoder(bidirectional=True, embeddings=read, **recurrent)
    attention = {"attn_type": problem.item.options["score"], "bidirectional_encoder": True}
    model = NMTModel(encoder, InputFeedRNNDecoder(embeddings=written, **attention, **recurrent))
    model.generator = nn.Linear(hidden, target)
    return model


def arrange(parameters: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
    """Our parameters as OpenNMT-py has them: W projects the query, and not the keys."""
    return {**parameters, "decoder.attention.W": parameters["decoder.attention.W"].T}


def loss(model: nn.Module, batch: Batch) -> Callable[[], Tensor]:
    """What computes the loss, as OpenNMT-py's Trainer does with normalization: tokens."""
    target = torch.cat([batch.inputs[:, :1], batch.targets], dim=1).long()[..., None]
    source, lens = batch.source.long()[..., None], batch.source_lens.long()
    given, tokens = {"src": source, "srclen": lens, "tgt": target}, int(batch.target_lens.sum())
    summed = LossCompute(nn.CrossEntropyLoss(ignore_index=PAD, reduction="sum"), model.generator)
    model.train()

    def compute() -> Tensor:
        outputs, attention = model(source, target, lens)
        total, _ = summed(given, outputs, attention)
        return total / tokens

    return compute


def search(model: nn.Module, batch: Batch, steps: int, width: int = 1) -> Callable[[], tuple[Tensor]]:
    """What decodes, as OpenNMT-py's translate does without a length penalty; by its GreedySearch if width is 1."""
    model.eval()
    given = {"src": batch.source.long()[..., None], "srclen": batch.source_lens.long()}
    words = [str(number) for number in range(RESERVED, model.generator.out_features)]
    special = [DefaultTokens.UNK, DefaultTokens.PAD, DefaultTokens.BOS, DefaultTokens.EOS]
    vocabulary = pyonmttok.build_vocab_from_tokens(words, special_tokens=special)
    vocabulary.default_id = vocabulary[DefaultTokens.UNK]
    decoding = Translator(
        model,
        {"src": vocabulary, "tgt": vocabulary, "decoder_start_token": DefaultTokens.BOS},
        max_length=steps,
        max_length_ratio=0,
        beam_size=width,
        random_sampling_topk=1 if width == 1 else 0,
        global_scorer=GNMTGlobalScorer(0.0, 0.0, None, None),
    )

    def decode() -> tuple[Tensor]:
        sentences = decoding.translate_batch(given, attn_debug=False)["predictions"]
        return (torch.stack([best for best, *_ in sentences]),)

    return decode
