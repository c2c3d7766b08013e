"""Decoders in PyTorch: with attention by the previous state, by the current one, and without."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Any, Generic, NamedTuple, TypeAlias, TypeVar

import torch
from torch import nn
from torch.utils._pytree import _register_namedtuple

from attention_core.operators.decoders import BAHDANAU_DECODER, FIXED_CONTEXT_DECODER, LUONG_DECODER
from backends.torch import kernels
from backends.torch.arrays import Lengths
from backends.torch.attention import LAYERS, attention_layer
from backends.torch.graphs import as_module, has_hooks, leaves_graph, outside_graph, scan, takes_scan
from backends.torch.local import LocalAttention
from backends.torch.memory import Memory, at_step, hidden_by, is_shared, last_open, zero_masked
from backends.torch.module import Specified, check_ids, draw_mask, draw_parameter
from backends.torch.pooling import average
from backends.torch.recurrent import Laid, recurrent_layer
from backends.torch.search import beam_search, greedy_search

__all__ = ["LuongState", "BahdanauDecoder", "LuongDecoder", "FixedContextDecoder"]


ATTENTION = {**LAYERS, "LocalAttention": LocalAttention}
State = TypeVar("State")
"""The state between two steps: an array, or a `LuongState`."""
Decoded = tuple[torch.Tensor, Any, torch.Tensor]
"""Logits of one step or of all, or the features that they are projected from; the state after it; and weights."""
Masks = tuple[torch.Tensor | None, torch.Tensor | None]
"""Dropout masks between the recurrent layers and of the attention's weights."""
Lens: TypeAlias = torch.Tensor | None
"""The steps of each sequence that count, (batch,), where the others may be left out."""


class LuongState(NamedTuple):
    """The state of a LuongDecoder between two steps; made by `start`, read and returned by `step`.

    Shapes: rnn (num_layers, batch, state_size), fed (batch, fed_size), position (batch,), int32.
    """

    rnn: torch.Tensor
    fed: torch.Tensor
    position: torch.Tensor


_register_namedtuple(LuongState, serialized_type_name="backends.torch.LuongState")  # for torch.export.save
torch.serialization.add_safe_globals([Memory, LuongState])  # for torch.export.load, as arguments of a program


class Decoder(Specified, Generic[State]):
    """Base class of the decoders, which differ in `_advance`: one step up to the features of the logits."""

    attention: Any

    def __init__(self, arguments: Mapping[str, Any]) -> None:
        super().__init__(arguments)
        dtype, device = arguments["dtype"], arguments["device"]
        vocab_size, parts = self.sizes["vocab_size"], self.specification.inside(self.sizes)
        self.embedding = nn.Embedding(vocab_size, self.sizes["embed_size"], dtype=dtype, device=device)
        first = (self.sizes["num_layers"], self.sizes["state_size"])
        learned = self.sizes["initial"] == "learned"
        self.register_parameter(
            "initial", draw_parameter(first, self.sizes["hidden_size"], dtype, device) if learned else None
        )
        attended = parts.get("attention")
        self.attention = None if attended is None else attention_layer(attended, ATTENTION, dtype=dtype, device=device)
        self.rnn = recurrent_layer(parts["rnn"], dtype=dtype, device=device)
        self.dense = nn.Linear(self.sizes["dense_size"], vocab_size, dtype=dtype, device=device)
        self.dropout = nn.Dropout(self.sizes["dropout"])

    def prepare(
        self, encoder_outputs: torch.Tensor, valid_lens: Lengths | None = None, mask: torch.Tensor | None = None
    ) -> Memory:
        """Project the encoder's outputs and zero the hidden ones, once for all steps.

        memory = attention.prepare(encoder_outputs, encoder_outputs)

        Args:
            encoder_outputs: (batch, keys, memory_size); keys and values of the attention
            valid_lens (default None): integers (batch, [steps]), or a list; key j is open where j < valid_len
            mask (default None): booleans (batch, steps, keys), broadcast; True where a query may attend
        Returns:
            memory: a `Memory`, which `attend` and `step` take
        Raises:
            ShapeError: more keys than a location score has positions
        """
        self._check("prepare", encoder_outputs=encoder_outputs, valid_lens=valid_lens, mask=mask)
        return self._prepare(encoder_outputs, valid_lens, mask)

    def start(self, memory: Memory, state: torch.Tensor | None = None) -> State:
        """Return the decoder's state before its first step.

        state = the encoder's state, 0, or the parameter initial, depending on the option initial

        Args:
            memory: as `prepare` returns it
            state (default None): (num_layers, batch, state_size); the encoder's last state if initial='encoder', else
                None
        Returns:
            state: what the next `step` takes
        Raises:
            OptionError: a state that would be ignored, or a missing one that is required
        """
        self._check("start", memory=memory, state=state)
        return self._start(memory, state)

    def step(
        self,
        tokens: torch.Tensor,
        state: State,
        memory: Memory,
        *,
        dropout_mask: torch.Tensor | None = None,
        attention_dropout_mask: torch.Tensor | None = None,
    ) -> tuple[torch.Tensor, State, torch.Tensor]:
        """Decode one token.

        The mask of the memory has one row, that of this step.

        Args:
            tokens: integers (batch,); token ids
            state: as `start` returns it
            memory: as `prepare` returns it
            dropout_mask (default None): (num_layers - 1, batch, output_size); factor of the outputs of every layer but
                the top one
            attention_dropout_mask (default None): (batch, keys); factor of each weight
        Returns:
            logits: (batch, vocab_size); scores of the next token (natural logarithm)
            state: what the next `step` takes
            weights: (batch, keys); probabilities over the keys
        """
        masks = {"dropout_mask": dropout_mask, "attention_dropout_mask": attention_dropout_mask}
        self._check("step", tokens=tokens, state=state, memory=memory, **masks)
        check_ids(self.specification.name, "tokens", tokens, self.sizes["vocab_size"])
        factor = None if attention_dropout_mask is None else attention_dropout_mask[:, None]
        return self._step(tokens, state, memory, (dropout_mask, factor))

    def forward(
        self,
        tokens: torch.Tensor,
        encoder_outputs: torch.Tensor,
        state: torch.Tensor | None = None,
        valid_lens: Lengths | None = None,
        mask: torch.Tensor | None = None,
        *,
        dropout_mask: torch.Tensor | None = None,
        attention_dropout_mask: torch.Tensor | None = None,
    ) -> tuple[torch.Tensor, State, torch.Tensor]:
        """Decode given tokens: each step reads the given token, not the predicted one (teacher forcing).

        logits[t], state[t], weights[t] = step(tokens[t], state[t - 1], memory)

        Args:
            tokens: integers (batch, steps); token ids
            encoder_outputs: (batch, keys, memory_size); keys and values of the attention
            state (default None): (num_layers, batch, state_size); the encoder's last state if initial='encoder', else
                None
            valid_lens (default None): integers (batch, [steps]), or a list; key j is open where j < valid_len
            mask (default None): booleans (batch, steps, keys), broadcast; True where a query may attend
            dropout_mask (default None): (num_layers - 1, batch, steps, output_size); factor of the outputs of every
                layer but the top one
            attention_dropout_mask (default None): (batch, steps, keys); factor of each weight
        Returns:
            logits: (batch, steps, vocab_size); scores of each next token (natural logarithm)
            state: what the next `step` takes
            weights: (batch, steps, keys); probabilities over the keys
        Raises:
            ShapeError: more keys than a location score has positions
            OptionError: a state that would be ignored, or a missing one that is required
        """
        encoded: dict[str, Any] = {"encoder_outputs": encoder_outputs, "valid_lens": valid_lens, "mask": mask}
        masks = {"dropout_mask": dropout_mask, "attention_dropout_mask": attention_dropout_mask}
        self._check("call", tokens=tokens, state=state, **encoded, **masks)
        check_ids(self.specification.name, "tokens", tokens, self.sizes["vocab_size"])
        features, state, weights = self._features(tokens, state, **encoded, **masks)
        return self._logits(features), state, weights

    @torch.no_grad()
    def greedy(
        self,
        encoder_outputs: torch.Tensor,
        state: torch.Tensor | None = None,
        valid_lens: Lengths | None = None,
        mask: torch.Tensor | None = None,
        *,
        bos: int,
        eos: int,
        max_steps: int,
    ) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """Decode by feeding back the most probable token until the end token.

        token[t] = argmax of logits[t], logits[t] = step(token[t - 1]), token[-1] = bos; stop at eos

        Args:
            encoder_outputs: (batch, keys, memory_size); keys and values of the attention
            state (default None): (num_layers, batch, state_size); the encoder's last state if initial='encoder', else
                None
            valid_lens (default None): integers (batch,), or a list; key j is open where j < valid_len
            mask (default None): booleans (batch, one, keys), broadcast; True where a query may attend
            bos: token that starts a sequence
            eos: token that ends a sequence
            max_steps: maximum number of tokens to decode
        Returns:
            tokens: integers (batch, max_steps); decoded ids, padded with eos
            lengths: integers (batch,); number of tokens before eos
            weights: (batch, max_steps, keys); probabilities over the keys; 0 after the step that gave eos
        Raises:
            ShapeError: more keys than a location score has positions
            OptionError: a state that would be ignored, or a missing one that is required
            TokenError: a first or last token outside the vocabulary
        """
        options = {"bos": bos, "eos": eos, "max_steps": max_steps}
        self._check("greedy", encoder_outputs=encoder_outputs, state=state, valid_lens=valid_lens, mask=mask, **options)
        memory, step = (
            self._prepare(encoder_outputs, valid_lens, mask),
            partial(self._step, layers=self._of_steps()),
        )
        return greedy_search(step, self._start(memory, state), memory, **options)

    @torch.no_grad()
    def beam(
        self,
        encoder_outputs: torch.Tensor,
        state: torch.Tensor | None = None,
        valid_lens: Lengths | None = None,
        mask: torch.Tensor | None = None,
        *,
        bos: int,
        eos: int,
        max_steps: int,
        width: int,
        num_best: int = 1,
        length_penalty: float = 0.0,
    ) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:
        """Decode by keeping the best hypotheses at every step (beam search).

        score = sum of ln p(token[t]) / ((5 + n)/6)^length_penalty, n counting the tokens up to eos
        keep the width best continuations; a finished hypothesis continues unchanged

        Every step ranks all continuations of the running hypotheses together with the finished ones. Of equal scores,
        the first by hypothesis, then by token, wins. A larger length_penalty favours longer hypotheses. With
        max_steps=0, one hypothesis has no tokens and score 0; the others have score -inf.

        Args:
            encoder_outputs: (batch, keys, memory_size); keys and values of the attention
            state (default None): (num_layers, batch, state_size); the encoder's last state if initial='encoder', else
                None
            valid_lens (default None): integers (batch,), or a list; key j is open where j < valid_len
            mask (default None): booleans (batch, one, keys), broadcast; True where a query may attend
            bos: token that starts a sequence
            eos: token that ends a sequence
            max_steps: maximum number of tokens to decode
            width: hypotheses kept at each step
            num_best (default 1): hypotheses returned, best first
            length_penalty (default 0.0): exponent α; 0 ranks by log probability
        Returns:
            tokens: integers (batch, num_best, max_steps); decoded ids, padded with eos
            lengths: integers (batch, num_best); number of tokens before eos
            scores: (batch, num_best); best first; natural logarithms, divided by the length penalty
            weights: (batch, num_best, max_steps, keys); probabilities over the keys; 0 after the step that gave eos
        Raises:
            ShapeError: more keys than a location score has positions
            OptionError: a state that would be ignored, or a missing one that is required
            TokenError: a first or last token outside the vocabulary
            OptionError: num_best above width, or width above vocab_size
        """
        options: dict[str, Any] = {
            "bos": bos,
            "eos": eos,
            "max_steps": max_steps,
            "width": width,
            "num_best": num_best,
            "length_penalty": length_penalty,
        }
        self._check("beam", encoder_outputs=encoder_outputs, state=state, valid_lens=valid_lens, mask=mask, **options)
        memory, step = (
            self._prepare(encoder_outputs, valid_lens, mask),
            partial(self._step, layers=self._of_steps()),
        )
        return beam_search(
            step,
            self._reorder,
            self._start(memory, state),
            memory,
            vocab_size=self.sizes["vocab_size"],
            **options,
        )

    def _prepare(self, encoder_outputs: torch.Tensor, valid_lens: Lengths | None, mask: torch.Tensor | None) -> Memory:
        if self.attention is None:
            return zero_masked(encoder_outputs, encoder_outputs, valid_lens, mask)
        return as_module(self.attention._prepare, encoder_outputs, encoder_outputs, valid_lens, mask)

    def _features(
        self,
        tokens: torch.Tensor,
        state: torch.Tensor | None,
        *,
        encoder_outputs: torch.Tensor,
        valid_lens: Lengths | None,
        mask: torch.Tensor | None,
        dropout_mask: torch.Tensor | None,
        attention_dropout_mask: torch.Tensor | None,
        lens: Lens = None,
    ) -> Decoded:
        """Return the features that the logits are projected from: (features, state, weights)."""
        memory = self._prepare(encoder_outputs, valid_lens, mask)
        given = tokens, self._start(memory, state), memory, (dropout_mask, attention_dropout_mask)
        if leaves_graph(tokens):
            return outside_graph(self._run_forced, *given, lens)
        return self._run_scanned(*given) if takes_scan(self, tokens) else self._run_forced(*given, lens)

    def _start(self, memory: Memory, state: torch.Tensor | None) -> Any:
        if state is not None:
            return state
        batch = memory.values.shape[0]
        if self.initial is None:
            return memory.values.new_zeros(self.sizes["num_layers"], batch, self.sizes["state_size"])
        return self.initial[:, None].expand(-1, batch, -1)

    def _step(
        self, tokens: torch.Tensor, state: Any, memory: Memory, masks: Masks = (None, None), layers: Laid = None
    ) -> Decoded:
        embedded = self.embedding(tokens.long())
        features, state, weights = self._advance(embedded, state, memory, masks, layers)
        return self._logits(features), state, weights

    def _advance(self, embedded: torch.Tensor, state: Any, memory: Memory, masks: Masks, layers: Laid) -> Decoded:
        """Run one step up to the features of the logits: (features, state, weights)."""
        raise NotImplementedError

    def _run_forced(self, tokens: torch.Tensor, state: Any, memory: Memory, masks: Masks, lens: Lens = None) -> Decoded:
        """Run all steps up to the features of the logits: (features, state, weights)."""
        embedded, (batch, keys, _) = self.embedding(tokens.long()), memory.values.shape
        if tokens.shape[1] == 0:  # PyTorch stacks no empty lists
            width = self.sizes["readout_size" if self.sizes.get("readout") == "maxout" else "hidden_size"]
            return embedded.new_zeros(batch, 0, width), state, embedded.new_zeros(batch, 0, keys)
        features, weights, layers = [], [], self._of_steps()
        # unbind, as the gradient of each embedded[:, t] would be an array of the size of embedded.
        for t, token in enumerate(embedded.unbind(dim=1)):
            read, state, attended = self._advance(token, state, at_step(memory, t), masks_at(masks, t), layers)
            features.append(read)
            weights.append(attended)
        return torch.stack(features, dim=1), state, torch.stack(weights, dim=1)

    def _logits(self, features: torch.Tensor) -> torch.Tensor:
        """Project the features of one step, or of many at once."""
        return self.dense(features)

    def _reorder(self, state: Any, rows: torch.Tensor) -> Any:
        """Take the state of these rows of the batch, in this order."""
        return state[:, rows]

    # particular to PyTorch

    def _of_steps(self) -> Laid:
        """Lay out the weights of the recurrent layers, once for all steps."""
        return None if has_hooks(self.rnn) else self.rnn._of_steps()

    def _run_scanned(self, tokens: torch.Tensor, state: Any, memory: Memory, masks: Masks) -> Decoded:
        """Run all steps as `_run_forced`, for a number of steps that a graph leaves open."""
        between, attention = masks
        steps = {"embedded": self.embedding(tokens.long()).transpose(0, 1)}
        if between is not None:
            steps["between"] = between.movedim(2, 0)
        if attention is not None:
            steps["attention"] = attention.transpose(0, 1)[:, :, None]
        if memory.mask is not None and memory.mask.shape[1] > 1:
            steps["mask"] = memory.mask.transpose(0, 1)[:, :, None]

        def advance(state: Any, step: dict[str, torch.Tensor]) -> tuple[Any, tuple[torch.Tensor, torch.Tensor]]:
            seen = hidden_by(memory, step["mask"]) if "mask" in step else memory
            features, state, weights = self._advance(
                step["embedded"], state, seen, (step.get("between"), step.get("attention")), None
            )
            return state, (features, weights)

        last, (features, weights) = scan(advance, state, steps)
        return features.transpose(0, 1), last, weights.transpose(0, 1)


class BahdanauDecoder(Decoder[torch.Tensor]):
    """Decode with attention whose query is the previous output of the top recurrent layer.

    context, weights = attention(top output, encoder_outputs)
    state' = rnn([context; embedding[token]], state), without the embedding if reads='context'
    logits = dense.W top output' + dense.b
    maxout: logits = dense.W m + dense.b, m[j] = max(t[2j], t[2j + 1]), t = readout.W [top output; embedding[token];
    context] + readout.b

    The paper's form is readout='maxout', whose readout reads the previous state, with a bidirectional GRUEncoder and
    Bridge(method='backward'). Two differences are left: the GRU applies its reset gate after U2 h, the paper's before,
    and has biases. With readout='maxout', dense.W reads maxout_size features. With reads='context' and readout='dense',
    no token has an effect: each word is chosen without those before it. The scores dot, scaled_dot, cosine and gaussian
    compare features one by one, and need as many in a query as in a key.

    Args:
        vocab_size: number of token ids
        embed_size: features of an embedded token
        hidden_size: features of the output of each recurrent layer and direction
        num_layers (default 1): number of stacked recurrent layers
        memory_size (default None): features of the encoder's outputs; hidden_size if None
        attention_size (default None): hidden features of an additive or concat score; hidden_size if None
        score (default 'additive'): name of the score: 'dot', 'scaled_dot', 'general', 'additive', 'concat',
            'concat_bias', 'cosine', 'location', 'gaussian'
        num_positions (default None): number of positions to score, for score='location' only
        cell (default 'gru'): the recurrent layer, by name: 'gru', 'lstm'
        initial (default 'encoder'): first state: the encoder's last state, zeros, or a parameter: 'encoder', 'zero',
            'learned'
        reads (default 'both'): what the recurrent layer reads: the context and the embedded token, or the context
            alone: 'both', 'context'
        readout (default 'dense'): logits from the new top output, or as in the paper from the previous one, the token
            and the context: 'dense', 'maxout'
        maxout_size (default None): pairs in the maxout readout; hidden_size if None
        dropout (default 0.0): dropout rate of the attention weights, and between recurrent layers, in training
        dtype: floating type of the parameters
        device: where to allocate
    Parameters:
        embedding: (vocab_size, embed_size), one row for each token id
        initial: (num_layers, state_size), the first state, if initial='learned'
        readout.W: (2 maxout_size, hidden_size + embed_size + memory_size), weights of the maxout readout, if
            readout='maxout'
        readout.b: (2 maxout_size,), biases of the maxout readout
        dense.W: (vocab_size, hidden_size), weights of the logits
        dense.b: (vocab_size,), biases of the logits
        attention.*: the attention layer of score
        rnn.*: the GRU or LSTM, which reads the context first, then the embedded token, if reads='both'
    Source: Bahdanau et al. 2015, section 3.1 and appendix A.1.2, arXiv:1409.0473; maxout readout: appendix A.2.2
    Example:
        layer = attention.BahdanauDecoder(vocab_size, embed_size, hidden_size)
        logits, state, weights = layer(tokens, encoder_outputs, state)
    """

    specification = BAHDANAU_DECODER

    def __init__(
        self,
        vocab_size: int,
        embed_size: int,
        hidden_size: int,
        num_layers: int = 1,
        *,
        memory_size: int | None = None,
        attention_size: int | None = None,
        score: str = "additive",
        num_positions: int | None = None,
        cell: str = "gru",
        initial: str = "encoder",
        reads: str = "both",
        readout: str = "dense",
        maxout_size: int | None = None,
        dropout: float = 0.0,
        dtype: torch.dtype | None = None,
        device: torch.device | str | None = None,
    ) -> None:
        super().__init__(locals())
        if readout == "maxout":
            read, pairs = self.sizes["readout_size"], self.sizes["maxout_size"]
            self.readout = nn.Linear(read, 2 * pairs, dtype=dtype, device=device)

    def _advance(
        self, embedded: torch.Tensor, state: torch.Tensor, memory: Memory, masks: Masks, layers: Laid
    ) -> Decoded:
        dropout_mask, attention_dropout_mask = masks
        previous = state[-1, :, : self.sizes["hidden_size"]]
        attended = {"dropout_mask": attention_dropout_mask}
        context, weights = as_module(self.attention._attend, previous[:, None], memory, **attended)
        read = [context[:, 0]] if self.sizes["reads"] == "context" else [context[:, 0], embedded]
        output, state = as_module(self.rnn._advance, torch.cat(read, dim=-1), state, dropout_mask, layers)
        if self.sizes["readout"] == "maxout":
            output = torch.cat([previous, embedded, context[:, 0]], dim=-1)
        return output, state, weights[:, 0]

    def _run_forced(
        self, tokens: torch.Tensor, state: torch.Tensor, memory: Memory, masks: Masks, lens: Lens = None
    ) -> Decoded:
        """Run all steps, as one function where a kernel serves them: (features, state, weights)."""
        kernel = kernels.of("decoder_steps", self, tokens, state, memory, masks)
        if kernel is None:
            return super()._run_forced(tokens, state, memory, masks, lens)
        outputs, last, weights, contexts, embedded, places = kernel(self, tokens, state, memory, masks, lens)
        if self.sizes["readout"] == "maxout":
            previous = torch.cat([state[-1:, :, : self.sizes["hidden_size"]], outputs[:-1]])
            outputs = torch.cat([previous, embedded[places], contexts], dim=-1)
        # The steps come first in what the kernel returns.
        return outputs.transpose(0, 1).contiguous(), last, weights.transpose(0, 1).contiguous()

    def _logits(self, features: torch.Tensor) -> torch.Tensor:
        if self.sizes["readout"] == "maxout":
            pairs = self.readout(features)
            first, second = pairs[..., 0::2], pairs[..., 1::2]
            features = torch.where(first >= second, first, second)
        return super()._logits(features)


class LuongDecoder(Decoder[LuongState]):
    """Decode with attention whose query is the current output of the top recurrent layer.

    state' = rnn([embedding[token]; fed], state), fed = h̃, context or nothing of the step before, depending on the
    option input_feeding
    context', weights = attention(top output', encoder_outputs)
    h̃' = tanh(W_c [context'; top output'])
    logits = dense.W h̃' + dense.b

    Unless alignment='global', window is required. The scores dot, scaled_dot, cosine and gaussian compare features one
    by one, and need as many in a query as in a key.

    Args:
        vocab_size: number of token ids
        embed_size: features of an embedded token
        hidden_size: features of the output of each recurrent layer and direction
        num_layers (default 1): number of stacked recurrent layers
        memory_size (default None): features of the encoder's outputs; hidden_size if None
        attention_size (default None): hidden features of an additive or concat score; hidden_size if None
        score (default 'general'): name of the score: 'dot', 'scaled_dot', 'general', 'additive', 'concat',
            'concat_bias', 'cosine', 'location', 'gaussian'
        num_positions (default None): number of positions to score, for score='location' only
        alignment (default 'global'): attention to all keys, or to a window around the step or around a predicted
            position: 'global', 'monotonic', 'predictive'
        window (default None): keys on either side of the centre; None if 'global'
        input_feeding (default 'attentional'): what of a step is an input of the next: its attentional vector, as in the
            paper, its context, or nothing: 'attentional', 'context', 'none'
        cell (default 'gru'): the recurrent layer, by name: 'gru', 'lstm'
        initial (default 'encoder'): first state: the encoder's last state, zeros, or a parameter: 'encoder', 'zero',
            'learned'
        dropout (default 0.0): dropout rate of the attention weights, and between recurrent layers, in training
        dtype: floating type of the parameters
        device: where to allocate
    Parameters:
        embedding: (vocab_size, embed_size), one row for each token id
        initial: (num_layers, state_size), the first state, if initial='learned'
        W_c: (hidden_size, memory_size + hidden_size), projects [context; top output]; no bias
        dense.W: (vocab_size, hidden_size), weights of the logits
        dense.b: (vocab_size,), biases of the logits
        attention.*: the attention layer of score, inside a LocalAttention unless global
        rnn.*: the GRU or LSTM, which reads the embedded token, then what is fed
    Source: Luong et al. 2015, section 3.1, arXiv:1508.04025; input feeding: section 3.3
    Example:
        layer = attention.LuongDecoder(vocab_size, embed_size, hidden_size)
        logits, state, weights = layer(tokens, encoder_outputs, state)
    """

    specification = LUONG_DECODER

    def __init__(
        self,
        vocab_size: int,
        embed_size: int,
        hidden_size: int,
        num_layers: int = 1,
        *,
        memory_size: int | None = None,
        attention_size: int | None = None,
        score: str = "general",
        num_positions: int | None = None,
        alignment: str = "global",
        window: int | None = None,
        input_feeding: str = "attentional",
        cell: str = "gru",
        initial: str = "encoder",
        dropout: float = 0.0,
        dtype: torch.dtype | None = None,
        device: torch.device | str | None = None,
    ) -> None:
        super().__init__(locals())
        read = self.sizes["memory_size + hidden_size"]
        self.W_c = nn.Linear(read, hidden_size, bias=False, dtype=dtype, device=device)

    def _start(self, memory: Memory, state: torch.Tensor | None) -> LuongState:
        rnn = super()._start(memory, state)
        fed = rnn.new_zeros(rnn.shape[1], self.sizes["fed_size"])
        return LuongState(rnn, fed, torch.zeros_like(fed[:, 0], dtype=torch.int32))

    def _advance(
        self, embedded: torch.Tensor, state: LuongState, memory: Memory, masks: Masks, layers: Laid
    ) -> Decoded:
        dropout_mask, attention_dropout_mask = masks
        feeding = self.sizes["input_feeding"]
        inputs = embedded if feeding == "none" else torch.cat([embedded, state.fed], dim=-1)
        output, rnn = as_module(self.rnn._advance, inputs, state.rnn, dropout_mask, layers)
        attended = {"offset": state.position} if self.sizes["alignment"] == "monotonic" else {}
        attended["dropout_mask"] = attention_dropout_mask
        context, weights = as_module(self.attention._attend, output[:, None], memory, **attended)
        attentional = torch.tanh(self.W_c(torch.cat([context[:, 0], output], dim=-1)))
        fed = context[:, 0] if feeding == "context" else attentional
        return attentional, LuongState(rnn, fed, state.position + 1), weights[:, 0]

    def _reorder(self, state: LuongState, rows: torch.Tensor) -> LuongState:
        return LuongState(state.rnn[:, rows], state.fed[rows], state.position[rows])

    def _run_forced(
        self, tokens: torch.Tensor, state: LuongState, memory: Memory, masks: Masks, lens: Lens = None
    ) -> Decoded:
        """Run all steps, as one function where a kernel serves them; without input feeding, at once."""
        feeding = self.sizes["input_feeding"]
        if feeding == "none" and is_shared(tokens, memory):
            return self._run_at_once(tokens, state, memory, masks)
        kernel = None
        if feeding == "attentional":
            kernel = kernels.of("decoder_steps", self, tokens, state.rnn, memory, masks)
        if kernel is None:
            return super()._run_forced(tokens, state, memory, masks, lens)
        attentional, last, weights, *_ = kernel(self, tokens, state.rnn, memory, masks, lens, state.fed)
        after = LuongState(last, attentional[-1], state.position + tokens.shape[1])
        return attentional.transpose(0, 1).contiguous(), after, weights.transpose(0, 1).contiguous()

    # particular to PyTorch

    def _run_at_once(self, tokens: torch.Tensor, state: LuongState, memory: Memory, masks: Masks) -> Decoded:
        """Run the layers over all steps, then attend with all their outputs."""
        dropout_mask, attention_dropout_mask = masks
        outputs, rnn = self.rnn(self.embedding(tokens.long()), None, state.rnn, dropout_mask=dropout_mask)
        attended = {"offset": state.position} if self.sizes["alignment"] == "monotonic" else {}
        attended["dropout_mask"] = attention_dropout_mask
        context, weights = as_module(self.attention._attend, outputs, memory, **attended)
        attentional = torch.tanh(self.W_c(torch.cat([context, outputs], dim=-1)))
        return attentional, LuongState(rnn, attentional[:, -1], state.position + tokens.shape[1]), weights


class FixedContextDecoder(Decoder[torch.Tensor]):
    """Decode without attention: the context of every step is the encoder's last output.

    context = the last open encoder output, weights = 1 there
    state' = rnn([context; embedding[token]], state)
    logits = dense.W top output' + dense.b

    With a GRUEncoder of one direction, that output is the encoder's last state. A sequence without an open key gets
    context 0 and weights 0. Dropout acts on the weight, as on those of attention.

    Args:
        vocab_size: number of token ids
        embed_size: features of an embedded token
        hidden_size: features of the output of each recurrent layer and direction
        num_layers (default 1): number of stacked recurrent layers
        memory_size (default None): features of the encoder's outputs; hidden_size if None
        cell (default 'gru'): the recurrent layer, by name: 'gru', 'lstm'
        initial (default 'encoder'): first state: the encoder's last state, zeros, or a parameter: 'encoder', 'zero',
            'learned'
        dropout (default 0.0): dropout rate of the attention weights, and between recurrent layers, in training
        dtype: floating type of the parameters
        device: where to allocate
    Parameters:
        embedding: (vocab_size, embed_size), one row for each token id
        initial: (num_layers, state_size), the first state, if initial='learned'
        dense.W: (vocab_size, hidden_size), weights of the logits
        dense.b: (vocab_size,), biases of the logits
        rnn.*: the GRU or LSTM, which reads the context first, then the embedded token
    Source: Cho et al. 2014, section 2.2, arXiv:1406.1078; the last output in place of its projection
    Example:
        layer = attention.FixedContextDecoder(vocab_size, embed_size, hidden_size)
        logits, state, weights = layer(tokens, encoder_outputs, state)
    """

    specification = FIXED_CONTEXT_DECODER

    def __init__(
        self,
        vocab_size: int,
        embed_size: int,
        hidden_size: int,
        num_layers: int = 1,
        *,
        memory_size: int | None = None,
        cell: str = "gru",
        initial: str = "encoder",
        dropout: float = 0.0,
        dtype: torch.dtype | None = None,
        device: torch.device | str | None = None,
    ) -> None:
        super().__init__(locals())

    def _advance(
        self, embedded: torch.Tensor, state: torch.Tensor, memory: Memory, masks: Masks, layers: Laid
    ) -> Decoded:
        dropout_mask, attention_dropout_mask = masks
        last = last_open(memory)
        weights = last.to(memory.values.dtype)
        if attention_dropout_mask is None:
            attention_dropout_mask = draw_mask(self.dropout, weights)
        context = average(weights, memory.values, last, attention_dropout_mask)
        inputs = torch.cat([context[:, 0], embedded], dim=-1)
        output, state = as_module(self.rnn._advance, inputs, state, dropout_mask, layers)
        return output, state, weights[:, 0]

    # particular to PyTorch

    def _run_forced(
        self, tokens: torch.Tensor, state: torch.Tensor, memory: Memory, masks: Masks, lens: Lens = None
    ) -> Decoded:
        """Run all steps at once where they share a mask, since no step's context waits for the one before."""
        if not is_shared(tokens, memory):
            return super()._run_forced(tokens, state, memory, masks, lens)
        dropout_mask, attention_dropout_mask = masks
        last = last_open(memory)
        weights = last.to(memory.values.dtype).expand(-1, tokens.shape[1], -1)
        if attention_dropout_mask is None:
            attention_dropout_mask = draw_mask(self.dropout, weights)
        context = average(weights, memory.values, last, attention_dropout_mask)
        inputs = torch.cat([context, self.embedding(tokens.long())], dim=-1)
        outputs, state = self.rnn(inputs, None, state, dropout_mask=dropout_mask)
        return outputs, state, weights.contiguous()


def masks_at(masks: Masks, step: int) -> Masks:
    """Take the dropout masks of that step."""
    between, attention = masks
    return None if between is None else between[:, :, step], None if attention is None else attention[
        :, step : step + 1
    ]
