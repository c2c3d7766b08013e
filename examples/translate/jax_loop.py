"""A translator of dates in JAX, in twenty lines: `python examples/translate/jax_loop.py [PAIRS]`."""

import sys

import jax.numpy as jnp
from flax import nnx

from attention_core.operators.training import Batch
from backends import jax as attention
from parity_tests.translation import corpus

COUNT = int(sys.argv[1]) if len(sys.argv) > 1 else 4_000
RNGS = nnx.Rngs(0)

pairs = [(corpus.characters(source), corpus.characters(target)) for source, target in corpus.dates(COUNT)]
source, target = (corpus.Vocabulary.of(side) for side in zip(*pairs, strict=True))
data = corpus.encode(pairs, source, target, max_tokens=26)
model = attention.Translator(
    len(source), len(target), embed_size=32, hidden_size=64, bidirectional=True, rngs=nnx.Rngs(0)
)
trainer = attention.Trainer(model, attention.adam(0.005), max_norm=1.0)

for epoch in range(3):
    for rows in corpus.permutation(f"epoch {epoch}", len(pairs), seed=0).reshape(-1, 50):
        loss, _ = trainer.step(Batch(*(jnp.array(array[rows]) for array in data[:5])))
    print(f"epoch {epoch + 1}  loss {loss:.3f}", flush=True)

batch = corpus.encode([(corpus.characters("16 may 1984"), [])], source, target, max_tokens=26)
ends = {"bos": target.index[corpus.BOS], "eos": target.index[corpus.EOS], "max_steps": 12}
tokens, lengths, _ = model.greedy(jnp.array(batch.source), jnp.array(batch.source_lens), **ends)
print("16 may 1984  →", "".join(target.words(tokens[0, : lengths[0]].tolist())))
