"""Models of libraries with random weights, and the same models put together of this project's layers."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import torch

FEATURES, HEADS, HIDDEN, LAYERS, WORDS = 16, 4, 24, 2, 40
SOURCES = "input_ids: int (2, 6) < 40; decoder_input_ids: int (2, 5) < 40"
MASKED = "input_ids: int (2, 7) < 40; attention_mask: mask (2, 7)"


class Pair(NamedTuple):
    """Our model, the library's, and what it takes to compare them."""

    actual: Any
    expected: Any
    inputs: str
    names: dict[str, dict[str, Any]]


def redrawn(model: torch.nn.Module) -> torch.nn.Module:
    """A model whose parameters are far from their first values, which are often 0 and 1."""
    generator = torch.Generator().manual_seed(0)
    for parameter in model.parameters():
        if parameter.requires_grad:
            change = torch.randn(parameter.shape, generator=generator) * 0.2
            parameter.data = change + (parameter.data > 0.9)  # norms stay near 1
    return model.eval()


def scaled(name: str, other: str) -> dict[str, Any]:
    """The names of an embedding that the library does not multiply by the root of the features, as our layers do."""
    return {name: {"name": other, "scale": FEATURES**-0.5}}


def gpt2(**changes: Any) -> Pair:
    """GPT-2, in JAX."""
    from flax import nnx
    from transformers import GPT2Config, GPT2LMHeadModel

    from backends import jax as attention

    options = {"activation": "gelu_tanh", "epsilon": 1e-5, **changes}

    class Language(nnx.Module):
        def __init__(self) -> None:
            self.transformer = attention.TransformerEncoder(
                WORDS,
                FEATURES,
                HEADS,
                4 * FEATURES,
                LAYERS,
                positions="learned",
                num_positions=32,
                norm="pre",
                causal=True,
                rngs=nnx.Rngs(0),
                **options,
            )

        def __call__(self, input_ids: Any) -> Any:
            outputs, _ = self.transformer(input_ids)
            return {"logits": outputs @ self.transformer.embedding.embedding.T * FEATURES**0.5}

    config = GPT2Config(
        vocab_size=WORDS, n_positions=32, n_embd=FEATURES, n_layer=LAYERS, n_head=HEADS, bos_token_id=1, eos_token_id=2
    )
    names = {"parameters": scaled("transformer.embedding.embedding", "transformer.wte.weight")}
    return Pair(Language(), redrawn(GPT2LMHeadModel(config)), "input_ids: int (2, 7) < 40", names)


def llama(**changes: Any) -> Pair:
    """Llama, in JAX: it rotates and normalizes in float32, whatever the dtype."""
    from flax import nnx
    from transformers import LlamaConfig, LlamaForCausalLM

    from backends import jax as attention

    options = {"rotary_layout": "concatenated", "epsilon": 1e-6, **changes}

    class Language(nnx.Module):
        def __init__(self) -> None:
            rngs = nnx.Rngs(0)
            self.model = attention.TransformerEncoder(
                WORDS,
                FEATURES,
                HEADS,
                HIDDEN,
                LAYERS,
                positions="rotary",
                num_key_heads=2,
                norm="pre",
                rms=True,
                activation="silu",
                gated=True,
                bias=False,
                causal=True,
                rngs=rngs,
                **options,
            )
            self.lm_head = nnx.Linear(FEATURES, WORDS, use_bias=False, rngs=rngs)

        def __call__(self, input_ids: Any) -> Any:
            outputs, _ = self.model(input_ids)
            return {"logits": self.lm_head(outputs)}

    config = LlamaConfig(
        vocab_size=WORDS,
        hidden_size=FEATURES,
        intermediate_size=HIDDEN,
        num_hidden_layers=LAYERS,
        num_attention_heads=HEADS,
        num_key_value_heads=2,
    )
    names = {"parameters": scaled("model.embedding.embedding", "model.embed_tokens.weight")}
    return Pair(Language(), redrawn(LlamaForCausalLM(config)), "input_ids: int (2, 7) < 40", names)


def translator(name: str, **options: Any) -> Any:
    """A model of Keras that is our translator in TensorFlow, with the inputs and the output of transformers."""
    import keras

    from backends import tf as attention

    class Model(keras.Model):
        def __init__(self) -> None:
            super().__init__(name=name)
            sizes = WORDS, WORDS, FEATURES, HEADS, HIDDEN, LAYERS
            self.translator = attention.TransformerTranslator(*sizes, shared=True, tied=True, name=name, **options)

        def call(self, input_ids: Any, decoder_input_ids: Any) -> Any:
            return {"logits": self.translator(input_ids, decoder_input_ids)[0]}

    return Model()


def t5(**changes: Any) -> Pair:
    """T5, in TensorFlow."""
    from transformers import T5Config, T5ForConditionalGeneration

    positions = {"positions": "relative", "num_buckets": 8, "max_distance": 20}
    options = {"norm": "pre", "rms": True, "bias": False, "score": "dot", "epsilon": 1e-6, **changes}
    config = T5Config(
        vocab_size=WORDS,
        d_model=FEATURES,
        d_kv=FEATURES // HEADS,
        d_ff=HIDDEN,
        num_layers=LAYERS,
        num_heads=HEADS,
        relative_attention_num_buckets=8,
        relative_attention_max_distance=20,
        decoder_start_token_id=0,
    )
    names = {"parameters": scaled("t5/decoder/embedding/embeddings", "shared.weight")}
    model = translator("t5", **positions, **options)
    return Pair(model, redrawn(T5ForConditionalGeneration(config)), SOURCES, names)


def marian(**changes: Any) -> Pair:
    """Marian, in TensorFlow; its sinusoids are a table, which is copied."""
    from transformers import MarianConfig, MarianMTModel

    positions = {"positions": "learned", "num_positions": 12}
    options = {"activation": "silu", "epsilon": 1e-5, **changes}
    config = MarianConfig(
        vocab_size=WORDS,
        d_model=FEATURES,
        encoder_layers=LAYERS,
        decoder_layers=LAYERS,
        encoder_attention_heads=HEADS,
        decoder_attention_heads=HEADS,
        encoder_ffn_dim=HIDDEN,
        decoder_ffn_dim=HIDDEN,
        max_position_embeddings=12,
        activation_function="swish",
        scale_embedding=True,
        pad_token_id=0,
        eos_token_id=1,
        decoder_start_token_id=0,
        forced_eos_token_id=1,
    )
    model = translator("marian", **positions, **options)
    return Pair(model, redrawn(MarianMTModel(config)), SOURCES, {})


def vit(**changes: Any) -> Pair:
    """ViT, in TensorFlow, with channels last."""
    from transformers import ViTConfig, ViTForImageClassification

    from backends import tf as attention

    options = {"activation": "gelu", "epsilon": 1e-12, **changes}
    config = ViTConfig(
        hidden_size=FEATURES,
        num_hidden_layers=LAYERS,
        num_attention_heads=HEADS,
        intermediate_size=HIDDEN,
        image_size=8,
        patch_size=4,
        num_labels=5,
    )
    names = {
        "inputs": {"images": {"name": "pixel_values", "axes": [0, 2, 3, 1]}},
        "outputs": {"0": "logits"},
        "parameters": {
            "vit/W_p/kernel": {
                "name": "vit.embeddings.patch_embeddings.projection.weight",
                "axes": "f c p q -> (p q c) f",
            }
        },
    }
    model = attention.VisionTransformer(8, 8, 3, 4, 5, FEATURES, HEADS, HIDDEN, LAYERS, name="vit", **options)
    return Pair(model, redrawn(ViTForImageClassification(config)), "pixel_values: float (2, 3, 8, 8)", names)


def keras_hub(**changes: Any) -> Pair:
    """A decoder's layer of KerasHub, in PyTorch."""
    return _keras_hub("relu", "relu", **changes)


def keras_hub_gelu() -> Pair:
    """The same with the tanh form of GELU, one of whose constants TensorFlow rounds to float32."""
    import keras

    return _keras_hub(lambda inputs: keras.activations.gelu(inputs, approximate=True), "gelu_tanh")


def _keras_hub(activation: Any, ours: str, epsilon: float = 1e-4) -> Pair:
    from keras_hub.layers import TransformerDecoder

    from backends import torch as attention

    class Layer(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            sizes = FEATURES, HEADS, HIDDEN
            self.layer = attention.TransformerDecoderLayer(*sizes, activation=ours, epsilon=epsilon)

        def forward(self, decoder_sequence: torch.Tensor, encoder_sequence: torch.Tensor) -> torch.Tensor:
            return self.layer(decoder_sequence, encoder_sequence)[0]

    expected = TransformerDecoder(HIDDEN, HEADS, activation=activation, layer_norm_epsilon=1e-4, name="decoder")
    return Pair(Layer(), expected, "decoder_sequence: float (2, 5, 16); encoder_sequence: float (2, 7, 16)", {})


def keras_hub_gpt2(**changes: Any) -> Pair:
    """GPT-2 of KerasHub and of transformers: both are somebody else's."""
    from keras_hub.models import GPT2Backbone
    from transformers import GPT2Config, GPT2Model

    config = GPT2Config(
        vocab_size=WORDS, n_positions=32, n_embd=FEATURES, n_layer=LAYERS, n_head=HEADS, n_inner=HIDDEN, **changes
    )
    actual = GPT2Backbone(WORDS, LAYERS, HEADS, FEATURES, HIDDEN, max_sequence_length=32)
    names = {"inputs": {"token_ids": "input_ids", "padding_mask": "attention_mask"}}
    return Pair(actual, redrawn(GPT2Model(config)), MASKED, names)


def keras_hub_bert(activation: str = "gelu_new") -> Pair:
    """BERT of KerasHub, which has the tanh form of GELU, and of transformers, which has it if it is asked for."""
    from keras_hub.models import BertBackbone
    from transformers import BertConfig, BertModel

    config = BertConfig(
        vocab_size=WORDS,
        hidden_size=FEATURES,
        num_hidden_layers=LAYERS,
        num_attention_heads=HEADS,
        intermediate_size=HIDDEN,
        max_position_embeddings=32,
        hidden_act=activation,
    )
    actual = BertBackbone(WORDS, LAYERS, HEADS, FEATURES, HIDDEN, max_sequence_length=32)
    names = {
        "inputs": {"token_ids": "input_ids", "padding_mask": "attention_mask", "segment_ids": "token_type_ids"},
        "outputs": {"sequence_output": "last_hidden_state", "pooled_output": "pooler_output"},
    }
    return Pair(actual, redrawn(BertModel(config)), f"{MASKED}; token_type_ids: int (2, 7) < 2", names)


def torch_transformer(**changes: Any) -> Pair:
    """torch.nn.Transformer, in Flax's own layers."""
    import jax.numpy as jnp
    from flax import nnx

    options = {"epsilon": 1e-5, **changes}

    class Layer(nnx.Module):
        def __init__(self, rngs: nnx.Rngs, crosses: bool) -> None:
            made = {"in_features": FEATURES, "decode": False, "rngs": rngs}
            self.self_attn = nnx.MultiHeadAttention(HEADS, **made)
            self.norm1 = nnx.LayerNorm(FEATURES, rngs=rngs, **options)
            if crosses:
                self.multihead_attn = nnx.MultiHeadAttention(HEADS, **made)
                self.norm3 = nnx.LayerNorm(FEATURES, rngs=rngs, **options)
            self.linear1 = nnx.Linear(FEATURES, HIDDEN, rngs=rngs)
            self.linear2 = nnx.Linear(HIDDEN, FEATURES, rngs=rngs)
            self.norm2 = nnx.LayerNorm(FEATURES, rngs=rngs, **options)
            self.crosses = crosses

        def __call__(self, x: Any, memory: Any = None) -> Any:
            mask = jnp.tril(jnp.ones((x.shape[1], x.shape[1]), bool))[None, None] if self.crosses else None
            x = self.norm1(x + self.self_attn(x, mask=mask))
            if self.crosses:
                x = self.norm2(x + self.multihead_attn(x, memory, memory))
            fed = self.linear2(nnx.relu(self.linear1(x)))
            return self.norm3(x + fed) if self.crosses else self.norm2(x + fed)

    class Stack(nnx.Module):
        def __init__(self, rngs: nnx.Rngs, crosses: bool) -> None:
            self.layers = nnx.List([Layer(rngs, crosses) for _ in range(LAYERS)])
            self.norm = nnx.LayerNorm(FEATURES, rngs=rngs, **options)

        def __call__(self, x: Any, memory: Any = None) -> Any:
            for layer in self.layers:
                x = layer(x, memory)
            return self.norm(x)

    class Model(nnx.Module):
        def __init__(self) -> None:
            rngs = nnx.Rngs(0)
            self.encoder, self.decoder = Stack(rngs, False), Stack(rngs, True)

        def __call__(self, src: Any, tgt: Any) -> Any:
            return self.decoder(tgt, self.encoder(src))

    class Causal(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.transformer = torch.nn.Transformer(FEATURES, HEADS, LAYERS, LAYERS, HIDDEN, batch_first=True)

        def forward(self, src: torch.Tensor, tgt: torch.Tensor) -> torch.Tensor:
            hidden = torch.ones(tgt.shape[1], tgt.shape[1], dtype=torch.bool).triu(1)
            return self.transformer(src, tgt, tgt_mask=hidden)

    return Pair(Model(), redrawn(Causal()), "src: float (2, 6, 16); tgt: float (2, 5, 16)", {})


MODELS: dict[str, Callable[..., Pair]] = {
    one.__name__: one
    for one in (
        keras_hub_gpt2,
        keras_hub_bert,
        gpt2,
        llama,
        t5,
        marian,
        vit,
        keras_hub,
        keras_hub_gelu,
        torch_transformer,
    )
}
