"""The other end of the port: the Keras reader's weights in PyTorch's own layers, and how far apart the two are.

python examples/port/torch_reader.py FOLDER
"""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import torch

folder = Path(sys.argv[1] if len(sys.argv) > 1 else ".")
gru = torch.nn.GRU(16, 24, batch_first=True)
heads = torch.nn.MultiheadAttention(24, 4, batch_first=True).eval()
gru.load_state_dict(torch.load(folder / "gru.pt", weights_only=True))
heads.load_state_dict(torch.load(folder / "heads.pt", weights_only=True))

expected = np.load(folder / "outputs.npz")
with torch.no_grad():
    states, _ = gru(torch.from_numpy(expected["sentences"]))
    hidden = ~torch.from_numpy(expected["open"])  # True means hidden in key_padding_mask, and open in Keras
    outputs, _ = heads(states, states, states, key_padding_mask=hidden)
print(f"{outputs.numel()} outputs, largest {outputs.abs().max():.3f}", end=", ")
print(f"largest difference to Keras' {np.abs(outputs.numpy() - expected['outputs']).max():.1e}")
