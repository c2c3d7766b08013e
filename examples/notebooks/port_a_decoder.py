# ---
# jupyter:
#   jupytext:
#     text_representation:
#       extension: .py
#       format_name: percent
#   kernelspec:
#     display_name: Python 3
#     language: python
#     name: python3
# ---

# %% [markdown]
# # Port a translator from MXNet to JAX
#
# MXNet is retired. Here, the translator of a widely copied textbook (Dive into Deep Learning) is trained in Gluon, its
# weights are converted, and the layers of this library translate the same sentences in JAX. Needs both frameworks:
# `pip install '.[mxnet,jax,notebooks]' -c constraints/parity.txt`.

# %%
import os
import subprocess
import sys
import tempfile
from pathlib import Path

import jax.numpy as jnp
import numpy as np
from flax import nnx

import backends.mxnet  # before mxnet, which today's NumPy does not suit without it
from backends import jax as attention
from backends import weights
from parity_tests.plots import heatmap

# isort: split
import mxnet as mx
from mxnet import autograd, gluon, npx
from mxnet.gluon import nn, rnn

npx.set_np()
mx.random.seed(0)
folder = Path(tempfile.mkdtemp())

# %% [markdown]
# ## The source: the textbook's model in Gluon
#
# An encoder, and a decoder whose query is the last output of its own recurrent layer. Hidden scores are -1e6, as in the
# book.


# %%
class Encoder(nn.Block):
    def __init__(self, vocabulary: int, embed: int, hidden: int) -> None:
        super().__init__()
        self.embedding = nn.Embedding(vocabulary, embed)
        self.rnn = rnn.GRU(hidden, layout="NTC", input_size=embed)

    def forward(self, tokens):
        inputs = self.embedding(tokens)
        outputs, (state,) = self.rnn(inputs, self.rnn.begin_state(len(tokens)))
        return outputs, state


class AdditiveAttention(nn.Block):
    def __init__(self, hidden: int) -> None:
        super().__init__()
        self.W_k = nn.Dense(hidden, use_bias=False, flatten=False, in_units=hidden)
        self.W_q = nn.Dense(hidden, use_bias=False, flatten=False, in_units=hidden)
        self.w_v = nn.Dense(1, use_bias=False, flatten=False, in_units=hidden)

    def forward(self, query, keys, valid_lens):
        scores = self.w_v(mx.np.tanh(self.W_q(query) + self.W_k(keys))).swapaxes(1, 2)
        opened = mx.np.arange(keys.shape[1], dtype="int32") < valid_lens[:, None]
        weights = npx.softmax(mx.np.where(opened[:, None], scores, mx.np.full_like(scores, -1e6)))
        return npx.batch_dot(weights, keys), weights


class Decoder(nn.Block):
    def __init__(self, vocabulary: int, embed: int, hidden: int) -> None:
        super().__init__()
        self.attention = AdditiveAttention(hidden)
        self.embedding = nn.Embedding(vocabulary, embed)
        self.rnn = rnn.GRU(hidden, layout="NTC", input_size=embed + hidden)
        self.dense = nn.Dense(vocabulary, flatten=False, in_units=hidden)

    def step(self, token, state, keys, valid_lens):
        context, weights = self.attention(state[-1][:, None], keys, valid_lens)
        inputs = mx.np.concatenate([context, self.embedding(token)[:, None]], axis=-1)
        output, (state,) = self.rnn(inputs, [state])
        return self.dense(output)[:, 0], state, weights[:, 0]

    def forward(self, tokens, state, keys, valid_lens):
        logits = []
        for step in range(tokens.shape[1]):
            one, state, _ = self.step(tokens[:, step], state, keys, valid_lens)
            logits.append(one)
        return mx.np.stack(logits, axis=1)


# %% [markdown]
# ## Train it
#
# Eight sentences are enough to see whether a port works.

# %%
PAIRS = [
    ("go .", "va !"),
    ("i lost .", "j' ai perdu ."),
    ("i won !", "j' ai gagné !"),
    ("he's calm .", "il est calme ."),
    ("i'm home .", "je suis chez moi ."),
    ("she's home .", "elle est chez elle ."),
    ("they won .", "ils ont gagné ."),
    ("you lost !", "vous avez perdu !"),
]
PAD, BOS, EOS = range(3)


def vocabulary(sentences):
    return ["<pad>", "<bos>", "<eos>", *sorted({word for sentence in sentences for word in sentence.split()})]


def encode(sentences, words):
    rows = [[words.index(word) for word in sentence.split()] + [EOS] for sentence in sentences]
    longest = max(map(len, rows))
    return np.array([row + [PAD] * (longest - len(row)) for row in rows], np.int32), np.array(
        [*map(len, rows)], np.int32
    )


english, french = (vocabulary(side) for side in zip(*PAIRS, strict=True))
source, source_lens = encode([pair[0] for pair in PAIRS], english)
target, target_lens = encode([pair[1] for pair in PAIRS], french)

# %%
EMBED, HIDDEN = 16, 32
model = nn.Block()
model.encoder = Encoder(len(english), EMBED, HIDDEN)
model.decoder = Decoder(len(french), EMBED, HIDDEN)
model.initialize(mx.init.Xavier())
trainer = gluon.Trainer(model.collect_params(), "adam", {"learning_rate": 0.01})
entropy = gluon.loss.SoftmaxCELoss()

begin = np.full((len(PAIRS), 1), BOS, np.int32)
opened = np.arange(target.shape[1]) < target_lens[:, None]
inputs, lens, labels, given, opened = (
    mx.np.array(array, dtype=array.dtype)
    for array in (source, source_lens, target, np.concatenate([begin, target[:, :-1]], axis=1), opened[..., None])
)

for epoch in range(1, 101):
    with autograd.record():
        keys, state = model.encoder(inputs)
        loss = entropy(model.decoder(given, state, keys, lens), labels, opened).sum()
    loss.backward()
    trainer.step(len(PAIRS))
    if epoch % 25 == 0:
        print(f"epoch {epoch:3}  loss {loss.item() / len(PAIRS):.4f}")

# %% [markdown]
# Greedy decoding, a token at a time:

# %%
MAX_STEPS = target.shape[1] + 1


def words(tokens):
    tokens = [int(token) for token in tokens]
    return [french[token] for token in tokens[: tokens.index(EOS) if EOS in tokens else None]]


keys, state = model.encoder(inputs)
token, steps = given[:, 0], []
for _step in range(MAX_STEPS):
    logits, state, step_weights = model.decoder.step(token, state, keys, lens)
    token = logits.argmax(axis=-1)
    steps.append((token.asnumpy(), step_weights.asnumpy()))
before, before_weights = (np.stack(parts, axis=1) for parts in zip(*steps, strict=True))
for (sentence, _), tokens in zip(PAIRS, before, strict=True):
    print(f"{sentence:14} → {' '.join(words(tokens))}")

# %% [markdown]
# ## Save and convert
#
# `attention-parity convert` recognises the textbook's decoder by the names and shapes of its arrays, and compares the
# new decoder with the old one, and both with a float64 reference, before it writes a file. The warnings are differences
# that no weights can express.

# %%
model.save_parameters(str(folder / "translator.params"))


def attention_parity(*arguments: object) -> None:
    """Run a command, as in a terminal, and print its output."""
    command = [sys.executable, "-m", "parity_tests", *map(str, arguments)]
    done = subprocess.run(command, capture_output=True, text=True, check=False, env={**os.environ, "COLUMNS": "110"})
    print(done.stdout or done.stderr)


attention_parity(
    *("convert", folder / "translator.params", "--prefix", "decoder.", "--to", "jax"),
    *("-o", folder / "decoder.safetensors"),
)

# %% [markdown]
# The encoder by the same tables, from Python and without the comparison:

# %%
arrays = weights.read_arrays(folder / "translator.params")
converted = weights.to_canonical(arrays, prefix="encoder.")
print(converted.source, "→", converted.layer, converted.config)

# %% [markdown]
# ## The target: layers of this library in JAX

# %%
encoder = attention.GRUEncoder(len(english), EMBED, HIDDEN, rngs=nnx.Rngs(0))
attention.set_parameters(encoder, converted.arrays)
decoder = attention.BahdanauDecoder(
    len(french), EMBED, HIDDEN, memory_size=HIDDEN, attention_size=HIDDEN, rngs=nnx.Rngs(0)
)
attention.set_parameters(decoder, backends.load_arrays(folder / "decoder.safetensors"))

# The book's encoder reads padding, too: without lengths, this one is the same function.
keys, state = encoder(jnp.asarray(source))
after, lengths, after_weights = decoder.greedy(
    keys, state, jnp.asarray(source_lens), bos=BOS, eos=EOS, max_steps=MAX_STEPS
)

# %% [markdown]
# ## The same translation

# %%
for (sentence, _), old, new in zip(PAIRS, before, after, strict=True):
    print(f"{sentence:14} → {' '.join(words(new)):22} {'as in MXNet' if words(old) == words(new) else 'DIFFERENT'}")
    assert words(old) == words(new)

# %% [markdown]
# And the same weights: what each word of the translation attends to, in both frameworks.

# %%
row = 4
columns, count = [*PAIRS[row][0].split(), "<eos>"], int(lengths[row]) + 1
rows = [*words(after[row]), "<eos>"]
both = [np.asarray(one[row, :count, : len(columns)]) for one in (before_weights, after_weights)]
print(f"largest difference {np.abs(both[0] - both[1]).max():.1e}")
assert np.abs(both[0] - both[1]).max() < 1e-5
heatmap(both, rows, columns, titles=["Gluon, as in the book", "JAX, converted"])
