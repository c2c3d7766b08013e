"""The Transformer: encoders and decoders of several layers, in MXNet."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

import mxnet as mx
from mxnet import np, npx
from mxnet.gluon import Block, nn

from attention_core.operators.transformer import (
    TRANSFORMER_DECODER,
    TRANSFORMER_ENCODER,
)
from attention_core.specification import Part
from backends.mxnet.arrays import Lengths, Offset
from backends.mxnet.masking import _attention_mask, distances, expand_to_rank
from backends.mxnet.memory import Memory
from backends.mxnet.module import (
    Specified,
    Uniform,
    check_ids,
    draw_mask,
    embed,
    embedding,
    initialise,
    linear,
    project,
)
from backends.mxnet.multi_head import mean_of_heads
from backends.mxnet.normalization import norm_layer
from backends.mxnet.positions import LearnedPositions, SinusoidalPositions, _alibi_bias, _relative_bias
from backends.mxnet.search import beam_search, greedy_search
from backends.mxnet.transformer_layers import TransformerDecoderLayer, TransformerEncoderLayer, without_padding

__all__ = ["TransformerState", "TransformerEncoder", "TransformerDecoder"]


class TransformerState(NamedTuple):
    """The state of a TransformerDecoder between two steps; `start` makes it, `step` takes and returns it.

    Shapes: keys (batch, num_layers, key_heads, max_steps, memory_features), values (batch, num_layers, key_heads,
    max_steps, head_size), position (batch,), int32.
    """

    keys: np.ndarray
    values: np.ndarray
    position: np.ndarray


class TransformerEncoder(Specified):
    """Embed tokens and run layers of self-attention over them.

    outputs = x
    x = √features embedding[tokens] + positions, then each of the layers, then the last norm

    Args:
        vocab_size: number of token ids
        features: features of a step
        num_heads: number of heads
        hidden_size: hidden features of the feed-forward network
        num_layers (default 1): number of layers
        positions (default 'sinusoidal'): where positions enter: added to embedded tokens, by rotated queries and keys
            of self-attention, by a bias of its scores, learned for each distance or falling with it, or not at all:
            'sinusoidal', 'learned', 'rotary', 'relative', 'alibi', 'none'
        num_positions (default None): positions that have a vector, for positions='learned' only
        num_buckets (default None): buckets of distances, for positions='relative' only
        max_distance (default None): distance from which on all share the last bucket; 128 if None; for
            positions='relative' only
        num_key_heads (default None): number of heads of keys and values; num_heads if None
        score (default 'scaled_dot'): name of the score: 'dot', 'scaled_dot', 'general', 'additive', 'concat',
            'concat_bias', 'cosine', 'gaussian'
        rotary_layout (default None): which features rotate together by position: neighbours, or one of each half; none
            if None; scores 'dot' and 'scaled_dot' only: 'interleaved', 'concatenated'
        rotary_base (default None): highest rate over the limit of the lowest; 10000.0 if None; needs rotary_layout
        norm (default 'post'): whether sums are normalized, as in the paper, or what a sublayer reads: 'post', 'pre'
        rms (default False): whether RMSNorm takes the place of LayerNorm
        activation (default 'relu'): max(0, x), x Φ(x), its tanh form, or x σ(x): 'relu', 'gelu', 'gelu_tanh', 'silu'
        gated (default False): whether a second projection multiplies the hidden features
        bias (default True): whether projections, networks and LayerNorm have biases
        epsilon (default 1e-05): number added to the mean square under the root
        dropout (default 0.0): dropout rate of the weights, of hidden features and of what a sublayer adds, in training
        causal (default False): whether a step attends only to itself and earlier ones
        last_norm (default None): whether the outputs of the last layer are normalized; with norm='pre' only if None
        dtype: floating type of the parameters
        prefix: prefix of the parameters' names in Gluon
        params: a ParameterDict whose parameters are shared
    Parameters:
        embedding: (vocab_size, features), one row for each token id
        bias_table: (num_buckets, num_heads), the table of relative_bias for the self-attention of all layers, if
            positions='relative'
        positions.*: the LearnedPositions, if positions='learned'
        layers.{layer}.*: the layers
        norm.*: the last LayerNorm or RMSNorm, with last_norm
    Source: Vaswani et al. 2017, section 3.1, arXiv:1706.03762
    Example:
        layer = attention.TransformerEncoder(vocab_size, features, num_heads, hidden_size)
        outputs, weights = layer(tokens)
    """

    specification = TRANSFORMER_ENCODER

    def __init__(
        self,
        vocab_size: int,
        features: int,
        num_heads: int,
        hidden_size: int,
        num_layers: int = 1,
        *,
        positions: str = "sinusoidal",
        num_positions: int | None = None,
        num_buckets: int | None = None,
        max_distance: int | None = None,
        num_key_heads: int | None = None,
        score: str = "scaled_dot",
        rotary_layout: str | None = None,
        rotary_base: float | None = None,
        norm: str = "post",
        rms: bool = False,
        activation: str = "relu",
        gated: bool = False,
        bias: bool = True,
        epsilon: float = 1e-5,
        dropout: float = 0.0,
        causal: bool = False,
        last_norm: bool | None = None,
        dtype: str = "float32",
        prefix: str | None = None,
        params: mx.gluon.ParameterDict | None = None,
    ) -> None:
        super().__init__(locals())
        parts = self.specification.inside(self.sizes)
        with self.name_scope():
            self.embedding = embedding(vocab_size, features, dtype=dtype)
            self.positions = positions_layer(parts.get("positions"), dtype=dtype)
            relative = {"shape": (num_buckets, num_heads), "dtype": dtype, "init": Uniform(features**-0.5)}
            self.bias_table = self.params.get("bias_table", **relative) if num_buckets else None
            self.layers = nn.Sequential()
            for number in range(num_layers):
                self.layers.add(TransformerEncoderLayer(**parts[f"layers.{number}"].config, dtype=dtype))
            self.norm = norm_layer(parts["norm"], dtype=dtype) if "norm" in parts else None
        initialise(self)

    def __call__(
        self,
        tokens: np.ndarray,
        valid_lens: Lengths | None = None,
        mask: np.ndarray | None = None,
        *,
        need_weights: bool = True,
        bias: np.ndarray | None = None,
        embedding_dropout_mask: np.ndarray | None = None,
        self_dropout_mask: np.ndarray | None = None,
        hidden_dropout_mask: np.ndarray | None = None,
        dropout_mask: np.ndarray | None = None,
    ) -> tuple[np.ndarray, np.ndarray | Any]:
        """Encode a batch of token sequences.

        outputs = x
        x = √features embedding[tokens] + positions, then each of the layers, then the last norm

        Tokens of padded steps must be in the vocabulary, and have no effect.

        Args:
            tokens: integers (batch, steps); token ids
            valid_lens (default None): integers (batch,), or a list; steps of each sequence; later ones have no effect,
                and output 0
            mask (default None): booleans (batch, [heads], steps, steps), broadcast; True where a step may attend to
                another
            need_weights (default True): whether to return the weights; if False, they are None and need not be stored
            bias (default None): ([batch], [heads], steps, steps), broadcast; numbers added to the scores of self-
                attention; -inf hides a step from another
            embedding_dropout_mask (default None): (batch, steps, features); factor of the embedded tokens with their
                positions
            self_dropout_mask (default None): (num_layers, batch, heads, steps, steps); factor of each weight of self-
                attention
            hidden_dropout_mask (default None): (num_layers, batch, steps, hidden_size); factor of each hidden feature
            dropout_mask (default None): (num_layers, sublayers, batch, steps, features); factor of what each sublayer
                adds, in order
        Returns:
            outputs: (batch, steps, features); one vector for each step
            weights: (num_layers, batch, heads, steps, steps); probabilities over the steps, of every head; None without
                need_weights
        Raises:
            ShapeError: a step beyond the last position
        """
        masks = {
            "self_dropout_mask": self_dropout_mask,
            "hidden_dropout_mask": hidden_dropout_mask,
            "dropout_mask": dropout_mask,
        }
        options = {"need_weights": need_weights, "bias": bias, "embedding_dropout_mask": embedding_dropout_mask}
        self._check("call", tokens=tokens, valid_lens=valid_lens, mask=mask, **options, **masks)
        check_ids("TransformerEncoder", "tokens", tokens, self.sizes["vocab_size"])
        return super().__call__(tokens, valid_lens, mask, options, masks)

    def forward(
        self,
        tokens: np.ndarray,
        valid_lens: Lengths | None,
        mask: np.ndarray | None,
        options: Mapping[str, Any],
        masks: Mapping[str, np.ndarray | None],
    ) -> tuple[np.ndarray, np.ndarray | Any]:
        """Gluon enters here, with positional arguments alone."""
        embedding_dropout_mask = options["embedding_dropout_mask"]
        x = self.sizes["features"] ** 0.5 * embed(self.embedding, tokens)
        x = x if self.positions is None else self.positions(x)
        bias = position_bias(self, options["bias"], x, x.shape[1], None)
        if embedding_dropout_mask is None:
            embedding_dropout_mask = draw_mask(self.sizes["dropout"], x)
        x = x if embedding_dropout_mask is None else x * embedding_dropout_mask
        weights = []
        for number, layer in enumerate(self.layers):
            factors = {name: None if array is None else array[number] for name, array in masks.items()}
            x, of_heads = layer(x, valid_lens, mask, need_weights=options["need_weights"], bias=bias, **factors)
            weights.append(of_heads)
        if self.norm is not None:
            x = without_padding(self.norm(x), valid_lens)
        return x, np.stack(weights) if options["need_weights"] else None


class TransformerDecoder(Specified):
    """Embed tokens and run layers of causal self-attention and attention to an encoder's outputs over them.

    logits = dense.W x + dense.b, or embedding x if tied
    x = √features embedding[tokens] + positions, then each of the layers, then the last norm
    step t attends to the steps up to t, and to the encoder's outputs

    Args:
        vocab_size: number of token ids
        features: features of a step
        num_heads: number of heads
        hidden_size: hidden features of the feed-forward network
        num_layers (default 1): number of layers
        memory_size (default None): features of the encoder's outputs; features if None
        positions (default 'sinusoidal'): where positions enter: added to embedded tokens, by rotated queries and keys
            of self-attention, by a bias of its scores, learned for each distance or falling with it, or not at all:
            'sinusoidal', 'learned', 'rotary', 'relative', 'alibi', 'none'
        num_positions (default None): positions that have a vector, for positions='learned' only
        num_buckets (default None): buckets of distances, for positions='relative' only
        max_distance (default None): distance from which on all share the last bucket; 128 if None; for
            positions='relative' only
        num_key_heads (default None): number of heads of keys and values; num_heads if None
        score (default 'scaled_dot'): name of the score: 'dot', 'scaled_dot', 'general', 'additive', 'concat',
            'concat_bias', 'cosine', 'gaussian'
        rotary_layout (default None): which features rotate together by position: neighbours, or one of each half; none
            if None; scores 'dot' and 'scaled_dot' only: 'interleaved', 'concatenated'
        rotary_base (default None): highest rate over the limit of the lowest; 10000.0 if None; needs rotary_layout
        norm (default 'post'): whether sums are normalized, as in the paper, or what a sublayer reads: 'post', 'pre'
        rms (default False): whether RMSNorm takes the place of LayerNorm
        activation (default 'relu'): max(0, x), x Φ(x), its tanh form, or x σ(x): 'relu', 'gelu', 'gelu_tanh', 'silu'
        gated (default False): whether a second projection multiplies the hidden features
        bias (default True): whether projections, networks and LayerNorm have biases
        epsilon (default 1e-05): number added to the mean square under the root
        dropout (default 0.0): dropout rate of the weights, of hidden features and of what a sublayer adds, in training
        last_norm (default None): whether the outputs of the last layer are normalized; with norm='pre' only if None
        tied (default False): whether logits are inner products with the embedding, in place of dense.W x + dense.b:
            Press and Wolf 2017, section 2, arXiv:1608.05859
        dtype: floating type of the parameters
        prefix: prefix of the parameters' names in Gluon
        params: a ParameterDict whose parameters are shared
    Parameters:
        embedding: (vocab_size, features), one row for each token id
        bias_table: (num_buckets, num_heads), the table of relative_bias for the self-attention of all layers, if
            positions='relative'
        dense.W: (vocab_size, features), weights of the logits, unless tied
        dense.b: (vocab_size,), biases of the logits, unless tied
        positions.*: the LearnedPositions, if positions='learned'
        layers.{layer}.*: the layers
        norm.*: the last LayerNorm or RMSNorm, with last_norm
    Source: Vaswani et al. 2017, section 3.1, arXiv:1706.03762
    Example:
        layer = attention.TransformerDecoder(vocab_size, features, num_heads, hidden_size)
        logits, weights = layer(tokens, encoder_outputs)
    """

    specification = TRANSFORMER_DECODER

    def __init__(
        self,
        vocab_size: int,
        features: int,
        num_heads: int,
        hidden_size: int,
        num_layers: int = 1,
        *,
        memory_size: int | None = None,
        positions: str = "sinusoidal",
        num_positions: int | None = None,
        num_buckets: int | None = None,
        max_distance: int | None = None,
        num_key_heads: int | None = None,
        score: str = "scaled_dot",
        rotary_layout: str | None = None,
        rotary_base: float | None = None,
        norm: str = "post",
        rms: bool = False,
        activation: str = "relu",
        gated: bool = False,
        bias: bool = True,
        epsilon: float = 1e-5,
        dropout: float = 0.0,
        last_norm: bool | None = None,
        tied: bool = False,
        dtype: str = "float32",
        prefix: str | None = None,
        params: mx.gluon.ParameterDict | None = None,
    ) -> None:
        super().__init__(locals())
        parts = self.specification.inside(self.sizes)
        with self.name_scope():
            self.embedding = embedding(vocab_size, features, dtype=dtype)
            self.positions = positions_layer(parts.get("positions"), dtype=dtype)
            relative = {"shape": (num_buckets, num_heads), "dtype": dtype, "init": Uniform(features**-0.5)}
            self.bias_table = self.params.get("bias_table", **relative) if num_buckets else None
            self.layers = nn.Sequential()
            for number in range(num_layers):
                self.layers.add(TransformerDecoderLayer(**parts[f"layers.{number}"].config, dtype=dtype))
            self.norm = norm_layer(parts["norm"], dtype=dtype) if "norm" in parts else None
            self.dense = None if tied else linear(features, vocab_size, use_bias=True, dtype=dtype)
        initialise(self)

    def prepare(
        self, encoder_outputs: np.ndarray, valid_lens: Lengths | None = None, mask: np.ndarray | None = None
    ) -> Memory:
        """Project the encoder's outputs for every layer and zero the hidden ones, once for all steps.

        memory = cross_attention.prepare(encoder_outputs, encoder_outputs) of each layer

        Args:
            encoder_outputs: (batch, keys, memory_size); keys and values of cross-attention
            valid_lens (default None): integers (batch, [steps]), or a list; key j is open where j < valid_len
            mask (default None): booleans (batch, steps, keys), broadcast; True where a query may attend
        Returns:
            memory: a `Memory`, which `attend` and `step` take
        """
        self._check("prepare", encoder_outputs=encoder_outputs, valid_lens=valid_lens, mask=mask)
        return self._prepare(encoder_outputs, valid_lens, mask)

    def start(self, memory: Memory, *, max_steps: int) -> TransformerState:
        """Return the decoder's state before its first step, with room for max_steps.

        state = (0, 0, 0)

        Args:
            memory: as `prepare` returns it
            max_steps: maximum number of tokens to decode
        Returns:
            state: what the next `step` takes
        Raises:
            ShapeError: a step beyond the last position
        """
        self._check("start", memory=memory, max_steps=max_steps)
        return self._start(memory, max_steps)

    def step(
        self, tokens: np.ndarray, state: TransformerState, memory: Memory
    ) -> tuple[np.ndarray, TransformerState, np.ndarray]:
        """Decode one token.

        logits = dense.W x + dense.b, or embedding x if tied
        x = √features embedding[tokens] + positions, then each of the layers, then the last norm
        step t attends to the steps up to t, and to the encoder's outputs

        The keys and values of earlier steps are those of the state: nothing is computed twice. The mask of the memory
        has one row, that of this step. Sequences may be at different positions; a step behind the last place of the
        state is not kept.

        Args:
            tokens: integers (batch,); token ids
            state: as `start` returns it
            memory: as `prepare` returns it
        Returns:
            logits: (batch, vocab_size); scores of the next token (natural logarithm)
            state: what the next `step` takes
            weights: (batch, keys); probabilities over the keys, mean over the last layer's heads
        """
        self._check("step", tokens=tokens, state=state, memory=memory)
        check_ids("TransformerDecoder", "tokens", tokens, self.sizes["vocab_size"])
        return self._step(tokens, state, memory)

    def __call__(
        self,
        tokens: np.ndarray,
        encoder_outputs: np.ndarray,
        valid_lens: Lengths | None = None,
        mask: np.ndarray | None = None,
        *,
        per_head: bool = False,
        need_weights: bool = True,
        bias: np.ndarray | None = None,
        embedding_dropout_mask: np.ndarray | None = None,
        self_dropout_mask: np.ndarray | None = None,
        attention_dropout_mask: np.ndarray | None = None,
        hidden_dropout_mask: np.ndarray | None = None,
        dropout_mask: np.ndarray | None = None,
    ) -> tuple[np.ndarray, np.ndarray | Any]:
        """Decode given tokens: each step reads the given token, not the predicted one (teacher forcing).

        logits = dense.W x + dense.b, or embedding x if tied
        x = √features embedding[tokens] + positions, then each of the layers, then the last norm
        step t attends to the steps up to t, and to the encoder's outputs

        Args:
            tokens: integers (batch, steps); token ids
            encoder_outputs: (batch, keys, memory_size); keys and values of cross-attention
            valid_lens (default None): integers (batch, [steps]), or a list; key j is open where j < valid_len
            mask (default None): booleans (batch, steps, keys), broadcast; True where a query may attend
            per_head (default False): whether to return the weights of every head, or their mean
            need_weights (default True): whether to return the weights; if False, they are None and need not be stored
            bias (default None): ([batch], [heads], steps, steps), broadcast; numbers added to the scores of self-
                attention; -inf hides a step from another
            embedding_dropout_mask (default None): (batch, steps, features); factor of the embedded tokens with their
                positions
            self_dropout_mask (default None): (num_layers, batch, heads, steps, steps); factor of each weight of self-
                attention
            attention_dropout_mask (default None): (num_layers, batch, heads, steps, keys); factor of each weight of
                cross-attention
            hidden_dropout_mask (default None): (num_layers, batch, steps, hidden_size); factor of each hidden feature
            dropout_mask (default None): (num_layers, sublayers, batch, steps, features); factor of what each sublayer
                adds, in order
        Returns:
            logits: (batch, steps, vocab_size); scores of each next token (natural logarithm)
            weights: ([num_layers], batch, [heads], steps, keys); probabilities over the keys: the mean over the last
                layer's heads, or all with per_head; None without need_weights
        Raises:
            ShapeError: a step beyond the last position
            OptionError: per_head where no weights are returned
        """
        masks = {
            "embedding_dropout_mask": embedding_dropout_mask,
            "self_dropout_mask": self_dropout_mask,
            "attention_dropout_mask": attention_dropout_mask,
            "hidden_dropout_mask": hidden_dropout_mask,
            "dropout_mask": dropout_mask,
        }
        options = {"per_head": per_head, "need_weights": need_weights, "bias": bias}
        given = {"tokens": tokens, "encoder_outputs": encoder_outputs, "valid_lens": valid_lens, "mask": mask}
        self._check("call", **given, **options, **masks)
        check_ids("TransformerDecoder", "tokens", tokens, self.sizes["vocab_size"])
        return super().__call__(*given.values(), *options.values(), masks)

    def forward(
        self,
        tokens: np.ndarray,
        encoder_outputs: np.ndarray,
        valid_lens: Lengths | None,
        mask: np.ndarray | None,
        per_head: bool,
        need_weights: bool,
        bias: np.ndarray | None,
        masks: Mapping[str, np.ndarray | None],
    ) -> tuple[np.ndarray, np.ndarray | Any]:
        """Gluon enters here, with positional arguments alone."""
        encoded: dict[str, Any] = {"encoder_outputs": encoder_outputs, "valid_lens": valid_lens, "mask": mask}
        features, weights = self._features(tokens, **encoded, need_weights=need_weights, bias=bias, **masks)
        if not need_weights:
            return self._logits(features), None
        return self._logits(features), np.stack(weights) if per_head else mean_of_heads(weights[-1])

    def greedy(
        self,
        encoder_outputs: np.ndarray,
        valid_lens: Lengths | None = None,
        mask: np.ndarray | None = None,
        *,
        bos: int,
        eos: int,
        max_steps: int,
    ) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Decode by feeding back the most probable token until the end token.

        token[t] = argmax of logits[t], logits[t] = step(token[t - 1]), token[-1] = bos; stop at eos

        Args:
            encoder_outputs: (batch, keys, memory_size); keys and values of cross-attention
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
            ShapeError: a step beyond the last position
            TokenError: a first or last token outside the vocabulary
        """
        options = {"bos": bos, "eos": eos, "max_steps": max_steps}
        self._check("greedy", encoder_outputs=encoder_outputs, valid_lens=valid_lens, mask=mask, **options)
        memory = self._prepare(encoder_outputs, valid_lens, mask)
        return greedy_search(self._step, self._start(memory, max_steps), memory, **options)

    def beam(
        self,
        encoder_outputs: np.ndarray,
        valid_lens: Lengths | None = None,
        mask: np.ndarray | None = None,
        *,
        bos: int,
        eos: int,
        max_steps: int,
        width: int,
        num_best: int = 1,
        length_penalty: float = 0.0,
    ) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
        """Decode by keeping the best hypotheses at every step (beam search).

        score = sum of ln p(token[t]) / ((5 + n)/6)^length_penalty, n counting the tokens up to eos
        keep the width best continuations; a finished hypothesis continues unchanged

        Args:
            encoder_outputs: (batch, keys, memory_size); keys and values of cross-attention
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
            ShapeError: a step beyond the last position
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
        self._check("beam", encoder_outputs=encoder_outputs, valid_lens=valid_lens, mask=mask, **options)
        memory = self._prepare(encoder_outputs, valid_lens, mask)
        state = self._start(memory, max_steps)
        return beam_search(self._step, rows_of, state, memory, vocab_size=self.sizes["vocab_size"], **options)

    def _prepare(self, encoder_outputs: np.ndarray, valid_lens: Lengths | None, mask: np.ndarray | None) -> Memory:
        layers = [
            layer.cross_attention._prepare(encoder_outputs, encoder_outputs, valid_lens, mask) for layer in self.layers
        ]
        keys, values = (np.stack(arrays, axis=1) for arrays in list(zip(*layers, strict=True))[:2])
        return Memory(keys, values, _attention_mask(keys.shape[-2], valid_lens, mask, keys.ctx))

    def _features(
        self,
        tokens: np.ndarray,
        *,
        encoder_outputs: np.ndarray,
        valid_lens: Lengths | None,
        mask: np.ndarray | None,
        need_weights: bool,
        bias: np.ndarray | None = None,
        embedding_dropout_mask: np.ndarray | None = None,
        **masks: np.ndarray | None,
    ) -> tuple[np.ndarray, list[np.ndarray]]:
        """Return the features that the logits are projected from, and the weights of every layer."""
        x = self.sizes["features"] ** 0.5 * embed(self.embedding, tokens)
        x = x if self.positions is None else self.positions(x)
        bias = position_bias(self, bias, x, x.shape[1], None)
        if embedding_dropout_mask is None:
            embedding_dropout_mask = draw_mask(self.sizes["dropout"], x)
        x = x if embedding_dropout_mask is None else x * embedding_dropout_mask
        weights = []
        for number, layer in enumerate(self.layers):
            factors = {name: None if array is None else array[number] for name, array in masks.items()}
            factors |= {"need_weights": need_weights, "bias": bias}
            x, of_heads, _ = layer(x, encoder_outputs, valid_lens, mask, **factors)
            weights.append(of_heads)
        return self._normalize(x), weights

    def _start(self, memory: Memory, max_steps: int) -> TransformerState:
        """Zeros, with room for the steps."""
        keys, values = (
            np.zeros((*array.shape[:3], max_steps, array.shape[-1]), dtype=array.dtype, ctx=array.ctx)
            for array in (memory.keys, memory.values)
        )
        return TransformerState(keys, values, np.zeros((keys.shape[0],), dtype="int32", ctx=keys.ctx))

    def _step(
        self, tokens: np.ndarray, state: TransformerState, memory: Memory
    ) -> tuple[np.ndarray, TransformerState, np.ndarray]:
        room, features = state.keys.shape[-2], self.sizes["features"]
        x = features**0.5 * embed(self.embedding, tokens)
        if self.positions is not None:
            x = self.positions._add(x, np.minimum(state.position, max(room - 1, 0))) if x.size else x
        x, mask, kept = x[:, None], None if memory.mask is None else memory.mask[:, None], []
        bias = position_bias(self, None, x, room, state.position)
        for number, layer in enumerate(self.layers):
            past = Memory(state.keys[:, number], state.values[:, number], None)
            prepared = Memory(memory.keys[:, number], memory.values[:, number], mask)
            x, after, weights = layer._step(x, past, state.position, prepared, bias)
            kept.append(after)
        keys, values = (np.stack(arrays, axis=1) for arrays in list(zip(*kept, strict=True))[:2])
        logits = self._logits(self._normalize(x))
        return logits[:, 0], TransformerState(keys, values, state.position + 1), weights[:, 0]

    def _normalize(self, x: np.ndarray) -> np.ndarray:
        """The output of the last layer, by the norm of norm='pre'."""
        return x if self.norm is None else self.norm(x)

    def _logits(self, features: np.ndarray) -> np.ndarray:
        if self.dense is not None or features.size == 0:
            return project(self.dense or self.embedding, features)
        weight = self.embedding.weight.data(features.ctx)
        return npx.fully_connected(features, weight, num_hidden=weight.shape[0], no_bias=True, flatten=False)


LAYERS = {"SinusoidalPositions": SinusoidalPositions, "LearnedPositions": LearnedPositions}


def positions_layer(part: Part | None, *, dtype: str) -> Block | None:
    """Make the layer that adds positions, if there is one."""
    if part is None:
        return None
    return LAYERS[part.layer.name](**part.config, **({"dtype": dtype} if part.layer.trainable else {}))


def position_bias(
    stack: TransformerEncoder | TransformerDecoder,
    bias: np.ndarray | None,
    like: np.ndarray,
    num_keys: int,
    offset: Offset | None,
) -> np.ndarray | None:
    """The bias of the scores of self-attention, with that of positions='relative' and 'alibi'; like has the steps."""
    sizes = stack.sizes
    if sizes["positions"] not in ("relative", "alibi"):
        return bias
    distance = distances(like.shape[1], num_keys, offset, like.ctx)
    if stack.bias_table is not None:
        added = _relative_bias(distance, stack.bias_table.data(like.ctx), sizes["bidirectional"], sizes["max_distance"])
    else:
        added = _alibi_bias(sizes["num_heads"], distance, like.dtype)
    added = added.astype(like.dtype, copy=False)
    return added if bias is None else added + expand_to_rank(bias, 4)


def rows_of(state: TransformerState, rows: np.ndarray) -> TransformerState:
    """The state of these rows of the batch, in this order."""
    return TransformerState(*(array[rows] for array in state))
