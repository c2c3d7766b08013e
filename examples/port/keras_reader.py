"""The source of a port: a recurrent layer and attention over it in Keras, its .weights.h5 file, and its outputs.

python examples/port/keras_reader.py FOLDER
"""

from __future__ import annotations

import sys
from pathlib import Path

import keras
import numpy as np

keras.utils.set_random_seed(0)
folder = Path(sys.argv[1] if len(sys.argv) > 1 else ".")

inputs = keras.Input((None, 16), name="sentences")
mask = keras.Input((None,), name="open", dtype="bool")
uniform = keras.initializers.RandomUniform(-0.3, 0.3)  # biases that are not 0, as after a training
gru = keras.layers.GRU(24, return_sequences=True, bias_initializer=uniform, name="gru")
heads = keras.layers.MultiHeadAttention(4, 6, bias_initializer=uniform, name="heads")
states = gru(inputs)
reader = keras.Model([inputs, mask], heads(states, states, attention_mask=mask[:, None, :]))
reader.save_weights(folder / "reader.weights.h5")

sentences = np.random.default_rng(0).uniform(-1, 1, (3, 7, 16)).astype("float32")
opened = np.arange(7) < np.array([7, 4, 2])[:, None]
np.savez(
    folder / "outputs.npz", sentences=sentences, open=opened, outputs=reader.predict([sentences, opened], verbose=0)
)
print(f"{folder / 'reader.weights.h5'} is written")
