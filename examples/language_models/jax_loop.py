"""A language model in JAX: `python examples/language_models/jax_loop.py [next|masked] [FILE] [COUNT]`."""

import jax
import jax.numpy as jnp
import optax
import sentences
from flax import nnx

from backends import jax as attention

DATA = sentences.read()
model = attention.TransformerEncoder(**DATA.options, rngs=nnx.Rngs(0))
attention.set_parameters(model, DATA.first_parameters())
optimizer = nnx.Optimizer(model, optax.adam(sentences.LEARNING_RATE), wrt=nnx.Param)


def logits_of(model, tokens, lengths):
    """Scores of each token of the vocabulary at each step, by the embeddings that the model reads, too."""
    outputs, _ = model(tokens, lengths)
    return model.embedding.attend(outputs)


def loss_of(model, tokens, lengths, targets, weights):
    """The mean cross-entropy of the steps that count."""
    logits = logits_of(model, tokens, lengths)
    losses = optax.softmax_cross_entropy_with_integer_labels(logits, targets)
    return (losses * weights).sum() / weights.sum()


@nnx.jit
def train(model, optimizer, *batch):
    """Take a step."""
    optimizer.update(model, nnx.grad(loss_of)(model, *batch))


def on_device(tokens, targets, weights):
    """A batch as arrays of JAX, with the lengths of its sentences."""
    return tuple(map(jnp.asarray, (tokens, DATA.lengths(tokens), targets, weights)))


for epoch in range(sentences.EPOCHS):
    for batch in DATA.epoch(epoch):
        train(model, optimizer, *on_device(*batch))
    print(f"epoch {epoch + 1}  {sentences.perplexity(loss_of(model, *on_device(*DATA.test_batch())))}", flush=True)

tokens, _ = DATA.question()
print(DATA.answer(jax.device_get(logits_of(model, jnp.asarray(tokens), jnp.asarray(DATA.lengths(tokens))))))
