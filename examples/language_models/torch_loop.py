"""A language model in PyTorch: `python examples/language_models/torch_loop.py [next|masked] [FILE] [COUNT]`."""

import sentences
import torch
from torch.nn import functional

from backends import torch as attention

DATA = sentences.read()
model = attention.TransformerEncoder(**DATA.options)
attention.set_parameters(model, DATA.first_parameters())
optimizer = torch.optim.Adam(model.parameters(), sentences.LEARNING_RATE)


def logits_of(tokens):
    """Scores of each token of the vocabulary at each step, by the embeddings that the model reads, too."""
    outputs, _ = model(torch.as_tensor(tokens), torch.as_tensor(DATA.lengths(tokens)))
    return outputs @ model.embedding.weight.T


def loss_of(tokens, targets, weights):
    """The mean cross-entropy of the steps that count."""
    logits, targets, weights = logits_of(tokens), torch.as_tensor(targets).long(), torch.as_tensor(weights)
    losses = functional.cross_entropy(logits.flatten(0, 1), targets.flatten(), reduction="none")
    return (losses * weights.flatten()).sum() / weights.sum()


for epoch in range(sentences.EPOCHS):
    for batch in DATA.epoch(epoch):
        optimizer.zero_grad()
        loss_of(*batch).backward()
        optimizer.step()
    with torch.no_grad():
        print(f"epoch {epoch + 1}  {sentences.perplexity(loss_of(*DATA.test_batch()).item())}", flush=True)

print(DATA.answer(logits_of(DATA.question()[0]).detach().numpy()))
