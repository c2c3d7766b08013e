"""A language model in TensorFlow: `python examples/language_models/tf_loop.py [next|masked] [FILE] [COUNT]`."""

import keras
import sentences
import tensorflow as tf

from backends import tf as attention

DATA = sentences.read()
model = attention.TransformerEncoder(**DATA.options)
attention.set_parameters(model, DATA.first_parameters())
optimizer = keras.optimizers.Adam(sentences.LEARNING_RATE)


def logits_of(tokens, lengths):
    """Scores of each token of the vocabulary at each step, by the embeddings that the model reads, too."""
    outputs, _ = model(tokens, lengths)
    return tf.matmul(outputs, model.embedding.embeddings, transpose_b=True)


def loss_of(tokens, lengths, targets, weights):
    """The mean cross-entropy of the steps that count."""
    losses = tf.nn.sparse_softmax_cross_entropy_with_logits(targets, logits_of(tokens, lengths))
    return tf.reduce_sum(losses * weights) / tf.reduce_sum(weights)


@tf.function
def train(*batch):
    """Take a step."""
    with tf.GradientTape() as tape:
        loss = loss_of(*batch)
    gradients = tape.gradient(loss, model.trainable_variables)
    optimizer.apply_gradients(zip(gradients, model.trainable_variables, strict=True))


def on_device(tokens, targets, weights):
    """A batch as tensors, with the lengths of its sentences."""
    return tuple(map(tf.constant, (tokens, DATA.lengths(tokens), targets, weights)))


for epoch in range(sentences.EPOCHS):
    for batch in DATA.epoch(epoch):
        train(*on_device(*batch))
    print(f"epoch {epoch + 1}  {sentences.perplexity(loss_of(*on_device(*DATA.test_batch())))}", flush=True)

tokens, _ = DATA.question()
print(DATA.answer(logits_of(tf.constant(tokens), tf.constant(DATA.lengths(tokens))).numpy()))
