"""Recurrent layers and encoders in MXNet."""

from __future__ import annotations

from types import ModuleType

import mxnet as mx
from mxnet import np
from mxnet.gluon import Block, HybridBlock, nn

from attention_core.errors import check, check_options, check_tokens
from attention_core.operators import GRU as GRU_SPECIFICATION
from attention_core.operators import GRU_ENCODER
from backends.mxnet.layers import Uniform, drawn_mask, initialise

__all__ = ["GRU", "GRUEncoder"]


class GRU(HybridBlock):
    """Stacked gated recurrent units over padded sequences.

    r = σ(W0 x + b0 + U0 h);  z = σ(W1 x + b1 + U1 h);  n = tanh(W2 x + b2 + r * (U2 h + b_hn));
    h' = (1 - z) * n + z * h

    Shapes: inputs (batch, steps, input_size), valid_lens (batch,), state (num_layers, batch, hidden_size), dropout_mask
    (num_layers - 1, batch, steps, hidden_size); returns (outputs, state).
    """

    specification = GRU_SPECIFICATION

    def __init__(
        self,
        input_size: int,
        hidden_size: int,
        num_layers: int = 1,
        *,
        dropout: float = 0.0,
        dtype: str = "float32",
        prefix: str | None = None,
        params: mx.gluon.ParameterDict | None = None,
    ) -> None:
        super().__init__(prefix=prefix, params=params)
        self.sizes = check_options(
            self.specification, input_size=input_size, hidden_size=hidden_size, num_layers=num_layers, dropout=dropout
        )
        self.dropout = dropout
        with self.name_scope():
            self.layers = nn.HybridSequential()
            with self.layers.name_scope():
                for layer in range(num_layers):
                    self.layers.add(GRULayer(hidden_size if layer else input_size, hidden_size, dtype=dtype))
        initialise(self)

    def step(
        self, inputs: np.ndarray, state: np.ndarray, *, dropout_mask: np.ndarray | None = None
    ) -> tuple[np.ndarray, np.ndarray]:
        """Run one step.

        Shapes: inputs (batch, input_size), state (num_layers, batch, hidden_size), dropout_mask
        (num_layers - 1, batch, hidden_size); returns (output, state).
        """
        check(
            self.specification.method("step"),
            self.sizes,
            self.layers[0].W.dtype,
            inputs=inputs,
            state=state,
            dropout_mask=dropout_mask,
        )
        if inputs.shape[0] == 0:  # over an empty axis, MXNet reads foreign memory or crashes
            return state[0], state
        if dropout_mask is None:
            dropout_mask = drawn_mask(self.dropout, (len(self.layers) - 1, *state.shape[1:]), state)
        output, states = inputs, []
        for index, layer in enumerate(self.layers):
            if index > 0 and dropout_mask is not None:
                output = output * dropout_mask[index - 1]
            output = layer.step(output, state[index])
            states.append(output)
        return output, np.stack(states)

    def hybrid_forward(
        self,
        F: ModuleType,
        inputs: np.ndarray,
        state: np.ndarray,
        real: np.ndarray,
        last: np.ndarray,
        dropout_mask: np.ndarray | None,
    ) -> tuple[np.ndarray, np.ndarray]:
        """The formula of a call.

        Shapes: real and last (steps, batch, 1), True at the valid steps, and at the last one of each sequence.
        """
        inputs = F.np.swapaxes(inputs, 0, 1)  # the kernel wants time first
        outputs = F.np.where(real, inputs, F.np.zeros_like(inputs))
        states = []
        for index, layer in enumerate(self.layers):
            if index > 0 and dropout_mask is not None:
                outputs = outputs * F.np.swapaxes(dropout_mask[index - 1], 0, 1)
            outputs = layer(outputs, state[index : index + 1])
            states.append(last_valid(F, outputs, state[index], last))
        # Padding stands at the end, so no real step has seen it: clearing it here, once, is enough.
        outputs = F.np.where(real, outputs, F.np.zeros_like(outputs))
        return F.np.swapaxes(outputs, 0, 1), F.np.stack(states)

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
        """
        check(
            self.specification.method("call"),
            self.sizes,
            self.layers[0].W.dtype,
            inputs=inputs,
            valid_lens=valid_lens,
            state=state,
            dropout_mask=dropout_mask,
        )
        batch, steps, _ = inputs.shape
        like = {"dtype": inputs.dtype, "ctx": inputs.ctx}
        if state is None:
            state = np.zeros((len(self.layers), batch, self.sizes["hidden_size"]), **like)
        if batch == 0 or steps == 0:  # over an empty axis, MXNet reads foreign memory or crashes
            return np.zeros((batch, steps, self.sizes["hidden_size"]), **like), state
        between = len(self.layers) - 1
        if dropout_mask is None:
            dropout_mask = drawn_mask(self.dropout, (between, batch, steps, self.sizes["hidden_size"]), inputs)
        if between == 0:
            dropout_mask = None
        elif dropout_mask is None:  # a graph has all its arguments in every call: these ones change nothing
            dropout_mask = np.ones((between, 1, 1, 1), **like)
        outputs, state = super().__call__(inputs, state, *valid_steps(steps, valid_lens, inputs), dropout_mask)
        return outputs, state


class GRULayer(HybridBlock):
    """The canonical parameters of one recurrent layer."""

    def __init__(self, input_size: int, hidden_size: int, *, dtype: str) -> None:
        super().__init__()
        self.hidden_size = hidden_size
        with self.name_scope():
            for name, shape in (
                ("W", (3, hidden_size, input_size)),
                ("U", (3, hidden_size, hidden_size)),
                ("b", (3, hidden_size)),
                ("b_hn", (hidden_size,)),
            ):
                setattr(self, name, self.params.get(name, shape=shape, dtype=dtype, init=Uniform(hidden_size**-0.5)))
            self.cell = GRUCell(hidden_size)

    def step(self, inputs: np.ndarray, state: np.ndarray) -> np.ndarray:
        """The state after one step: inputs (batch, features), state (batch, hidden_size)."""
        return self.cell(inputs, state, *(p.data(inputs.ctx) for p in (self.W, self.U, self.b, self.b_hn)))

    def hybrid_forward(
        self,
        F: ModuleType,
        inputs: np.ndarray,
        state: np.ndarray,
        W: np.ndarray,
        U: np.ndarray,
        b: np.ndarray,
        b_hn: np.ndarray,
    ) -> np.ndarray:
        """The outputs of all steps: inputs (steps, batch, features), state (1, batch, hidden_size)."""
        # The kernel's hidden biases of r and z are redundant, and held at 0.
        fused = (W, U, b, F.np.zeros_like(b[:2]), b_hn)
        parameters = F.np.concatenate([F.np.reshape(array, (-1,)) for array in fused])
        return F.npx.rnn(inputs, parameters, state, mode="gru", state_size=self.hidden_size, num_layers=1)


class GRUCell(HybridBlock):
    """One step of a recurrent layer, as one graph; the parameters are the layer's."""

    def __init__(self, hidden_size: int) -> None:
        super().__init__()
        self.hidden_size = hidden_size

    def hybrid_forward(
        self,
        F: ModuleType,
        inputs: np.ndarray,
        state: np.ndarray,
        W: np.ndarray,
        U: np.ndarray,
        b: np.ndarray,
        b_hn: np.ndarray,
    ) -> np.ndarray:
        """The formula."""
        rows = 3 * self.hidden_size
        W, U, b = F.np.reshape(W, (rows, -1)), F.np.reshape(U, (rows, -1)), F.np.reshape(b, (-1,))
        from_inputs = F.npx.fully_connected(inputs, W, b, num_hidden=rows)
        from_state = F.npx.fully_connected(state, U, no_bias=True, num_hidden=rows)
        x_r, x_z, x_n = F.np.split(from_inputs, 3, axis=-1)
        h_r, h_z, h_n = F.np.split(from_state, 3, axis=-1)
        r = F.npx.sigmoid(x_r + h_r)
        z = F.npx.sigmoid(x_z + h_z)
        n = F.npx.activation(x_n + r * (h_n + b_hn), act_type="tanh")
        return (1.0 - z) * n + z * state


class GRUEncoder(Block):
    """Embed tokens and run stacked gated recurrent units over them.

    outputs, state = GRU(embedding[tokens])

    Shapes: tokens (batch, steps), valid_lens (batch,), state (num_layers, batch, hidden_size), dropout_mask
    (num_layers - 1, batch, steps, hidden_size); returns (outputs, state).
    """

    specification = GRU_ENCODER

    def __init__(
        self,
        vocab_size: int,
        embed_size: int,
        hidden_size: int,
        num_layers: int = 1,
        *,
        dropout: float = 0.0,
        dtype: str = "float32",
        prefix: str | None = None,
        params: mx.gluon.ParameterDict | None = None,
    ) -> None:
        super().__init__(prefix=prefix, params=params)
        self.sizes = check_options(
            self.specification,
            vocab_size=vocab_size,
            embed_size=embed_size,
            hidden_size=hidden_size,
            num_layers=num_layers,
            dropout=dropout,
        )
        with self.name_scope():
            self.embedding = nn.Embedding(
                vocab_size, embed_size, dtype=dtype, weight_initializer=Uniform(embed_size**-0.5)
            )
            self.rnn = GRU(embed_size, hidden_size, num_layers, dropout=dropout, dtype=dtype)
        initialise(self)

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
        """
        check(
            self.specification.method("call"),
            self.sizes,
            self.embedding.weight.dtype,
            tokens=tokens,
            valid_lens=valid_lens,
            state=state,
            dropout_mask=dropout_mask,
        )
        return super().__call__(tokens, valid_lens, state, dropout_mask)

    def forward(
        self,
        tokens: np.ndarray,
        valid_lens: np.ndarray | None,
        state: np.ndarray | None,
        dropout_mask: np.ndarray | None,
    ) -> tuple[np.ndarray, np.ndarray]:
        """The formula; it is no graph, since token ids are looked at before."""
        embedded = embed(self.specification.name, self.embedding, tokens)
        return self.rnn(embedded, valid_lens, state, dropout_mask=dropout_mask)


def embed(title: str, embedding: nn.Embedding, tokens: np.ndarray) -> np.ndarray:
    """The embedded tokens, which have to be ids of the vocabulary."""
    vocab_size, embed_size = embedding.weight.shape
    if tokens.size == 0:
        return np.zeros((*tokens.shape, embed_size), dtype=embedding.weight.dtype, ctx=tokens.ctx)
    ids = tokens.asnumpy()
    check_tokens(title, "tokens", int(ids.min()), int(ids.max()), vocab_size)
    return embedding(tokens)


def valid_steps(steps: int, valid_lens: np.ndarray | None, like: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Which steps are valid, and which is the last valid one of each sequence: (steps, batch or 1, 1)."""
    step = np.arange(steps, dtype="int64", ctx=like.ctx)[:, None, None]
    if valid_lens is None:
        return step >= 0, step == steps - 1
    lens = valid_lens.astype("int64")[:, None]
    return step < lens, step == np.minimum(lens, steps) - 1


def last_valid(F: ModuleType, outputs: np.ndarray, state: np.ndarray, last: np.ndarray) -> np.ndarray:
    """The output of each sequence's last valid step, or the state before it where there is none."""
    found = F.np.sum(F.np.where(last, outputs, F.np.zeros_like(outputs)), axis=0)
    return F.np.where(F.np.any(last, axis=0), found, state)
