"""Recurrent layers and encoders."""

from __future__ import annotations

import numpy as np

from attention_core.errors import check_options, check_tokens
from attention_core.operators import GRU as GRU_SPECIFICATION
from attention_core.operators import GRU_ENCODER
from attention_core.reference.arrays import align, check, linear, optional, promote
from attention_core.specification import Layer


class GRU:
    """Stacked gated recurrent units over padded sequences.

    r = σ(W0 x + b0 + U0 h);  z = σ(W1 x + b1 + U1 h);  n = tanh(W2 x + b2 + r * (U2 h + b_hn));
    h' = (1 - z) * n + z * h

    Arguments: input_size and hidden_size are the features of an input and of each layer's state, num_layers the number
    of layers, each but the first reading the outputs of the one below; dropout is the rate at which features are
    dropped between layers in training, which the reference leaves to dropout_mask.
    Parameters, for each layer l from 0: l.W (3, hidden_size, input_size, then hidden_size),
    l.U (3, hidden_size, hidden_size), l.b (3, hidden_size), l.b_hn (hidden_size,), gates in the order r, z, n.
    Raises: OptionError if a size is not positive or dropout is not in [0, 1).
    Source: Cho et al. 2014, section 2.3, arXiv:1406.1078; hidden bias inside the reset gate as in cuDNN.
    """

    specification: Layer = GRU_SPECIFICATION

    def __init__(self, input_size: int, hidden_size: int, num_layers: int = 1, *, dropout: float = 0.0) -> None:
        self.sizes = check_options(
            self.specification, input_size=input_size, hidden_size=hidden_size, num_layers=num_layers, dropout=dropout
        )
        self.parameters = {name: np.zeros(shape) for name, shape in self.specification.shapes(self.sizes).items()}

    def step(
        self, inputs: np.ndarray, state: np.ndarray, *, dropout_mask: np.ndarray | None = None
    ) -> tuple[np.ndarray, np.ndarray]:
        """Run one step.

        h'[l] = (1 - z) * n + z * h[l], with x = inputs for layer 0 and dropout_mask[l - 1] h'[l - 1] above

        Shapes: inputs (batch, input_size), state (num_layers, batch, hidden_size), dropout_mask
        (num_layers - 1, batch, hidden_size). Returns (output, state): (batch, hidden_size), the top layer's state, and
        the shape of state.
        Raises: ShapeError, DtypeError.
        """
        check(self.specification.method("step"), self.sizes, inputs=inputs, state=state, dropout_mask=dropout_mask)
        output, states, dropout_mask = promote(inputs), [], optional(dropout_mask)
        for layer in range(self.sizes["num_layers"]):
            if layer > 0 and dropout_mask is not None:
                output = output * dropout_mask[..., layer - 1, :, :]
            output = self._cell(layer, output, promote(state)[..., layer, :, :])
            states.append(output)
        return output, np.stack(states, axis=-3)

    def __call__(
        self,
        inputs: np.ndarray,
        valid_lens: np.ndarray | None = None,
        state: np.ndarray | None = None,
        *,
        dropout_mask: np.ndarray | None = None,
    ) -> tuple[np.ndarray, np.ndarray]:
        """Run over a batch of sequences.

        outputs[t], state[t] = step(inputs[t], state[t - 1]) where t < valid_len; else 0 and state[t - 1]

        Shapes: inputs (batch, steps, input_size), valid_lens (batch,), state (num_layers, batch, hidden_size), zeros
        unless given, dropout_mask (num_layers - 1, batch, steps, hidden_size). Returns (outputs, state):
        (batch, steps, hidden_size) and the shape of state.
        Edge cases: what stands in a padded step, NaN and inf included, changes nothing and gets gradient 0.
        Raises: ShapeError, DtypeError.
        """
        check(
            self.specification.method("call"),
            self.sizes,
            inputs=inputs,
            valid_lens=valid_lens,
            state=state,
            dropout_mask=dropout_mask,
        )
        inputs, dropout_mask = promote(inputs), optional(dropout_mask)
        *lead, batch, steps, _ = inputs.shape
        layers, hidden = self.sizes["num_layers"], self.sizes["hidden_size"]
        state = np.zeros((*lead, layers, batch, hidden)) if state is None else promote(state)
        outputs = np.zeros((*lead, batch, steps, hidden), np.result_type(inputs, state, *self.parameters.values()))
        for t in range(steps):
            real = (np.full(batch, True) if valid_lens is None else t < valid_lens)[:, None]
            factor = None if dropout_mask is None else dropout_mask[..., t, :]
            output, new = self.step(np.where(real, inputs[..., t, :], 0.0), state, dropout_mask=factor)
            outputs[..., t, :] = np.where(real, output, 0.0)
            state = np.where(real, new, state)
        return outputs, state

    def _cell(self, layer: int, inputs: np.ndarray, state: np.ndarray) -> np.ndarray:
        weights, recurrent, bias, hidden_bias = (self.parameters[f"{layer}.{name}"] for name in ("W", "U", "b", "b_hn"))
        from_inputs = [linear(inputs, weights[..., gate, :, :], bias[..., gate, :]) for gate in range(3)]
        from_state = [linear(state, recurrent[..., gate, :, :]) for gate in range(3)]
        reset = sigmoid(from_inputs[0] + from_state[0])
        update = sigmoid(from_inputs[1] + from_state[1])
        new = np.tanh(from_inputs[2] + reset * (from_state[2] + align(hidden_bias, 1, state.ndim)))
        return (1.0 - update) * new + update * state


class GRUEncoder:
    """Embed tokens and run stacked gated recurrent units over them.

    outputs, state = GRU(embedding[tokens])

    Arguments: vocab_size is the number of token ids, embed_size the features of an embedded token; hidden_size,
    num_layers and dropout as in GRU.
    Parameters: embedding (vocab_size, embed_size), and those of GRU as rnn.l.W, rnn.l.U, rnn.l.b, rnn.l.b_hn.
    Raises: OptionError if a size is not positive or dropout is not in [0, 1).
    Source: Cho et al. 2014, section 2.3, arXiv:1406.1078; hidden bias inside the reset gate as in cuDNN.
    """

    specification: Layer = GRU_ENCODER

    def __init__(
        self, vocab_size: int, embed_size: int, hidden_size: int, num_layers: int = 1, *, dropout: float = 0.0
    ) -> None:
        self.sizes = check_options(
            self.specification,
            vocab_size=vocab_size,
            embed_size=embed_size,
            hidden_size=hidden_size,
            num_layers=num_layers,
            dropout=dropout,
        )
        self.parameters = {name: np.zeros(shape) for name, shape in self.specification.shapes(self.sizes).items()}
        self.rnn = GRU(embed_size, hidden_size, num_layers, dropout=dropout)

    def __call__(
        self,
        tokens: np.ndarray,
        valid_lens: np.ndarray | None = None,
        state: np.ndarray | None = None,
        *,
        dropout_mask: np.ndarray | None = None,
    ) -> tuple[np.ndarray, np.ndarray]:
        """Encode a batch of token sequences.

        outputs, state = GRU(embedding[tokens])

        Shapes: tokens (batch, steps); valid_lens, state, dropout_mask, outputs and state as in GRU.
        Edge cases: tokens of padded steps have to be in the vocabulary, and change nothing.
        Raises: ShapeError, DtypeError; TokenError if an id is outside the vocabulary.
        """
        check(
            self.specification.method("call"),
            self.sizes,
            tokens=tokens,
            valid_lens=valid_lens,
            state=state,
            dropout_mask=dropout_mask,
        )
        self.rnn.parameters = inner(self.parameters, "rnn.")
        embedded = embed(self.specification.name, tokens, self.parameters["embedding"])
        return self.rnn(embedded, valid_lens, optional(state), dropout_mask=optional(dropout_mask))


def sigmoid(x: np.ndarray) -> np.ndarray:
    """1 / (1 + exp(-x)), by tanh: exact in both tails for complex arguments, too."""
    return 0.5 * (1.0 + np.tanh(0.5 * x))


def embed(title: str, tokens: np.ndarray, table: np.ndarray) -> np.ndarray:
    """The rows of the table at the tokens, which have to be ids of it."""
    known_tokens(title, tokens, table.shape[-2])
    return table[..., tokens, :]


def known_tokens(title: str, tokens: np.ndarray, vocab_size: int) -> None:
    """Refuse tokens outside the vocabulary."""
    if tokens.size:
        check_tokens(title, "tokens", int(tokens.min()), int(tokens.max()), vocab_size)


def inner(parameters: dict[str, np.ndarray], prefix: str) -> dict[str, np.ndarray]:
    """The parameters whose names begin with the prefix, named without it."""
    return {name.removeprefix(prefix): array for name, array in parameters.items() if name.startswith(prefix)}
