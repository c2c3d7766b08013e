"""The attention decoder of a widely copied textbook (Dive into Deep Learning), in PyTorch and in Gluon.

Its recurrent layer reads [context; embedded token] and starts with the encoder's state, as BahdanauDecoder does.
The first spelling is PyTorch's, the second Gluon's.
https://d2l.ai/chapter_attention-mechanisms-and-transformers/bahdanau-attention.html
"""

from __future__ import annotations

from backends.weights.table import LOSES, UNIFORM, Row, Source, inside
from backends.weights.tables import gluon_gru, gluon_lstm, torch_gru, torch_lstm


def table(cell: str, torch: Source, gluon: Source, *also: Source) -> Source:
    """The table with that recurrent layer."""
    return Source(
        name="textbook.BahdanauDecoder",
        layer="BahdanauDecoder",
        warnings=(
            UNIFORM,
            LOSES,
        ),
        directions=(torch.words(0)[:1], gluon.words(0)[:1]),
        config={"score": "additive", "cell": cell, "readout": "dense", "initial": "encoder"},
        rows=(
            Row("attention.W_q.weight", "a h -> a h", ("attention.W_q",)),
            Row("attention.W_k.weight", "a m -> a m", ("attention.W_k",)),
            Row("attention.w_v.weight", "1 a -> (1 a)", ("attention.w_v",)),
            Row("embedding.weight", "t e -> t e", ("embedding",)),
            *inside("rnn", torch.rows, gluon.rows),
            Row("dense.weight", "t h -> t h", ("dense.W",)),
            Row("dense.bias", "t -> t", ("dense.b",)),
        ),
        also=also,
    )


SOURCE = table("gru", torch_gru.SOURCE, gluon_gru.SOURCE, table("lstm", torch_lstm.SOURCE, gluon_lstm.SOURCE))
