"""The source of a port: an encoder in Gluon, its .params file, and its outputs for a batch of sentences.

python examples/port/gluon_encoder.py FOLDER
"""

from __future__ import annotations

import sys
from pathlib import Path

import backends.mxnet  # noqa: F401  # first: beside today's NumPy, MXNet cannot be imported without it

# isort: split
import mxnet as mx
import numpy
from mxnet import npx
from mxnet.gluon import nn, rnn

npx.set_np()
npx.random.seed(0)
folder = Path(sys.argv[1] if len(sys.argv) > 1 else ".")

encoder = nn.HybridSequential()
biases = {"i2h_bias_initializer": "uniform", "h2h_bias_initializer": "uniform"}  # not 0, as after a training
gru = rnn.GRU(32, num_layers=2, layout="NTC", bidirectional=True, input_size=16, **biases)
encoder.add(nn.Embedding(50, 16), gru)
encoder.initialize(mx.init.Normal(0.2))
encoder.save_parameters(str(folder / "encoder.params"))

tokens = mx.np.random.randint(0, 50, (4, 9))
numpy.savez(folder / "outputs.npz", tokens=tokens.asnumpy(), outputs=encoder(tokens).asnumpy())
print(f"{folder / 'encoder.params'} is written")
