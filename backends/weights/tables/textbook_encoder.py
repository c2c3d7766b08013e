"""The recurrent encoder of a widely copied textbook (Dive into Deep Learning), in PyTorch and in Gluon.

The first spelling is PyTorch's, the second Gluon's, and the third that of the book's own class around PyTorch's layer.
https://d2l.ai/chapter_recurrent-modern/seq2seq.html
"""

from __future__ import annotations

from backends.weights.table import READS_PADDING, Row, Source, inside
from backends.weights.tables import gluon_gru, gluon_lstm, torch_gru, torch_lstm


def table(layer: str, torch: Source, gluon: Source, *also: Source) -> Source:
    """The table with that recurrent layer."""
    return Source(
        name="textbook.Encoder",
        layer=layer,
        warnings=(READS_PADDING,),
        directions=(torch.words(0), gluon.words(0), torch.words(0)),
        rows=(
            Row("embedding.weight", "t e -> t e", ("embedding",)),
            *inside("rnn | rnn | rnn.rnn", torch.rows, gluon.rows, torch.rows, canonical="rnn"),
        ),
        also=also,
    )


SOURCE = table(
    "GRUEncoder",
    torch_gru.SOURCE,
    gluon_gru.SOURCE,
    table("LSTMEncoder", torch_lstm.SOURCE, gluon_lstm.SOURCE),
)
