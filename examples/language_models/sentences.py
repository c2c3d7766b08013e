"""What the four language models share, in NumPy: sentences, what is to be predicted in them, and the first parameters.

A sentence becomes (tokens, targets, weights), each (batch, steps): the loss of a step counts where its weight is 1.

- next: tokens are <bos> and the sentence, targets the sentence and <eos>; every step predicts the token behind it.
- masked: of the tokens, 15 of 100 are replaced by <mask>, one at least, and predicted; Devlin et al. 2019, section 3.1,
  arXiv:1810.04805, without tokens that stay or change.
"""

import math
import sys
from dataclasses import dataclass

import numpy as np

from attention_core.draws import uniform
from attention_core.operators import find
from parity_tests.translation import corpus

MASK = "<mask>"
TASKS = ("next", "masked")
EPOCHS, BATCH, LEARNING_RATE = 5, 64, 0.002
MOST_TOKENS = 12


@dataclass(frozen=True)
class Sentences:
    """The sentences of a corpus: of ten, nine to train on, and one to test."""

    task: str
    vocabulary: corpus.Vocabulary
    training: list[list[int]]
    test: list[list[int]]

    @property
    def options(self) -> dict[str, object]:
        """The options of the model: what predicts the next token must not see it."""
        stack = {"features": 64, "num_heads": 4, "hidden_size": 128, "num_layers": 2, "norm": "pre"}
        return {"vocab_size": len(self.vocabulary), **stack, "causal": self.task == "next"}

    def first_parameters(self) -> dict[str, np.ndarray]:
        """The same values in every framework: uniform in ±1/√n, and gains of 1."""
        layer = find("TransformerEncoder")
        sizes = layer.sizes(self.options)
        shapes, constants = layer.shapes(sizes), layer.constants(sizes)
        drawn = {name: uniform(name, shape, shape[-1] ** -0.5) for name, shape in shapes.items()}
        drawn |= {name: np.full(shapes[name], value) for name, value in constants.items()}
        return {name: array.astype(np.float32) for name, array in drawn.items()}

    def epoch(self, number: int) -> list[tuple[np.ndarray, np.ndarray, np.ndarray]]:
        """The batches of an epoch, shuffled; all have one shape, which a compiler is glad of."""
        order = corpus.permutation(f"epoch {number}", len(self.training), seed=0)
        whole = len(order) // BATCH * BATCH
        return [self.batch([self.training[at] for at in rows], number) for rows in order[:whole].reshape(-1, BATCH)]

    def test_batch(self) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """The sentences to test, as one batch."""
        return self.batch(self.test, -1)

    def batch(self, sentences: list[list[int]], seed: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """(tokens, targets, weights) of sentences."""
        bos, eos, pad, mask = (self.vocabulary.index[token] for token in (corpus.BOS, corpus.EOS, corpus.PAD, MASK))
        length = MOST_TOKENS + 1
        if self.task == "next":
            tokens, _ = corpus.pad_sentences([[bos, *sentence] for sentence in sentences], pad, length)
            targets, lens = corpus.pad_sentences([[*sentence, eos] for sentence in sentences], pad, length)
            return tokens, targets, (np.arange(length) < lens[:, None]).astype(np.float32)
        targets, lens = corpus.pad_sentences(sentences, pad, length)
        drawn = np.where(np.arange(length) < lens[:, None], uniform(f"{seed} {lens.sum()}", targets.shape), -2.0)
        chosen = (drawn > 0.7) | (drawn == drawn.max(axis=1, keepdims=True))
        return np.where(chosen, mask, targets).astype(np.int32), targets, chosen.astype(np.float32)

    def lengths(self, tokens: np.ndarray) -> np.ndarray:
        """The number of tokens in each sentence, padding left out."""
        return (tokens != self.vocabulary.index[corpus.PAD]).sum(axis=1).astype(np.int32)

    def question(self) -> tuple[np.ndarray, int]:
        """The beginning of a test sentence, or one with a masked word; and the place whose token is asked for."""
        unknown = self.vocabulary.index[corpus.UNK]
        sentence = max(self.test, key=lambda ids: (-ids.count(unknown), len(ids)))
        place = len(sentence) // 2
        if self.task == "next":
            return np.array([[self.vocabulary.index[corpus.BOS], *sentence[:place]]], np.int32), place
        return np.array([[*sentence[:place], self.vocabulary.index[MASK], *sentence[place + 1 :]]], np.int32), place

    def answer(self, logits: np.ndarray) -> str:
        """The question, and the three tokens that the logits of its place hold for most probable."""
        tokens, place = self.question()
        words = self.vocabulary.words(tokens[0].tolist())
        best = self.vocabulary.words(np.argsort(-logits[0, place])[:3].tolist())
        return f"{' '.join(words)}  →  {', '.join(best)}"


def read() -> Sentences:
    """The sentences of `LOOP [next|masked] [FILE] [COUNT]`: English ones of a file of pairs, or generated dates."""
    task, file, count = (*sys.argv[1:4], *("next", "", "4000")[len(sys.argv) - 1 :])
    if task not in TASKS:
        sys.exit(f"the task is {task!r}, expected 'next' or 'masked'")
    pairs = corpus.read_corpus(file).pairs if file else corpus.dates(int(count))
    texts = list(dict.fromkeys(source for source, _ in pairs))
    lists = [tokens for tokens in map(corpus.words, texts) if 3 <= len(tokens) <= MOST_TOKENS]
    lists = lists[:: max(len(lists) // int(count), 1)][: int(count)]
    vocabulary = corpus.Vocabulary.of([[MASK] * len(lists), *lists], min_frequency=2)
    numbers = [vocabulary.ids(tokens) for tokens in lists]
    test = numbers[::10]
    return Sentences(task, vocabulary, [ids for at, ids in enumerate(numbers) if at % 10], test)


def perplexity(loss: float) -> str:
    """Exp of the mean loss of a token in nats: between how many equally probable tokens the model hesitates."""
    return f"perplexity {math.exp(loss):.3f}"
