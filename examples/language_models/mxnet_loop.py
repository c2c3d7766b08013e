"""A language model in MXNet: `python examples/language_models/mxnet_loop.py [next|masked] [FILE] [COUNT]`."""

import sentences

from backends import mxnet as attention

# isort: split
# MXNet cannot be imported before the backend has given NumPy its old alias back.
from mxnet import autograd, gluon, np

DATA = sentences.read()
model = attention.TransformerEncoder(**DATA.options)
attention.set_parameters(model, DATA.first_parameters())
trainer = gluon.Trainer(model.collect_params(), "adam", {"learning_rate": sentences.LEARNING_RATE})
cross_entropy = gluon.loss.SoftmaxCrossEntropyLoss()


def logits_of(tokens):
    """Scores of each token of the vocabulary at each step, by the embeddings that the model reads, too."""
    outputs, _ = model(np.array(tokens, dtype="int32"), np.array(DATA.lengths(tokens), dtype="int32"))
    return np.matmul(outputs, model.embedding.weight.data().T)


def loss_of(tokens, targets, weights):
    """The mean cross-entropy of the steps that count."""
    logits, weights = logits_of(tokens), np.array(weights).reshape(-1, 1)
    losses = cross_entropy(logits.reshape(-1, logits.shape[-1]), np.array(targets).reshape(-1), weights)
    return losses.sum() / weights.sum()


for epoch in range(sentences.EPOCHS):
    for batch in DATA.epoch(epoch):
        with autograd.record():
            loss = loss_of(*batch)
        loss.backward()
        trainer.step(1)
    print(f"epoch {epoch + 1}  {sentences.perplexity(loss_of(*DATA.test_batch()).item())}", flush=True)

print(DATA.answer(logits_of(DATA.question()[0]).asnumpy()))
