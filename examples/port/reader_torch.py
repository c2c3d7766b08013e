"""A small Transformer encoder in PyTorch, as a project has it before a port: `attention-parity compare-models`."""

import torch
from torch import nn
from torch.nn import functional as F


class Layer(nn.Module):
    def __init__(self, width, heads):
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.attention = nn.MultiheadAttention(width, heads, batch_first=True)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x, mask):
        y = self.norm1(x)
        x = x + self.attention(y, y, y, key_padding_mask=~mask, need_weights=False)[0]
        return x + self.down(F.gelu(self.up(self.norm2(x))))


class Reader(nn.Module):
    def __init__(self, vocab=100, width=32, heads=4, layers=3, classes=5):
        super().__init__()
        self.embed = nn.Embedding(vocab, width)
        self.layers = nn.ModuleList(Layer(width, heads) for _ in range(layers))
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, classes)

    def forward(self, tokens, mask):
        x = self.embed(tokens)
        for layer in self.layers:
            x = layer(x, mask)
        return self.head(self.norm(x))


def make_model():
    torch.manual_seed(0)
    return Reader()
