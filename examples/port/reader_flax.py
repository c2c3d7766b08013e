"""The same encoder in Flax, with the defaults of Flax: its norms have another epsilon, its GELU is approximated."""

from flax import nnx


class Layer(nnx.Module):
    def __init__(self, width, heads, rngs):
        self.norm1, self.norm2 = nnx.LayerNorm(width, rngs=rngs), nnx.LayerNorm(width, rngs=rngs)
        self.attention = nnx.MultiHeadAttention(num_heads=heads, in_features=width, decode=False, rngs=rngs)
        self.up, self.down = nnx.Linear(width, 4 * width, rngs=rngs), nnx.Linear(4 * width, width, rngs=rngs)

    def __call__(self, x, mask):
        x = x + self.attention(self.norm1(x), mask=mask[:, None, None, :])
        return x + self.down(nnx.gelu(self.up(self.norm2(x))))


class Reader(nnx.Module):
    def __init__(self, vocab=100, width=32, heads=4, layers=3, classes=5, *, rngs):
        self.embed = nnx.Embed(vocab, width, rngs=rngs)
        self.layers = nnx.List([Layer(width, heads, rngs) for _ in range(layers)])
        self.norm, self.head = nnx.LayerNorm(width, rngs=rngs), nnx.Linear(width, classes, rngs=rngs)

    def __call__(self, tokens, mask):
        x = self.embed(tokens)
        for layer in self.layers:
            x = layer(x, mask)
        return self.head(self.norm(x))


def make_model():
    return Reader(rngs=nnx.Rngs(1))
