"""Models of transformers as targets: parameters are those of a state_dict, and options are those of our layers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from types import SimpleNamespace
from typing import Any, TypeAlias

import torch
from safetensors.torch import save_file
from torch import nn
from transformers import (
    GPT2Config,
    GPT2Model,
    LlamaConfig,
    LlamaModel,
    MarianConfig,
    MarianMTModel,
    T5Config,
    T5ForConditionalGeneration,
    ViTConfig,
    ViTForImageClassification,
)

from backends.torch import runtime
from parity_tests.workers.target import NotImplementedHere

Tensor: TypeAlias = torch.Tensor
Parameters: TypeAlias = Mapping[str, torch.Tensor]

ACTIVATIONS = {"gelu_tanh": "gelu_new"}
"""What transformers calls an activation otherwise than this project."""


def load(kind: Any, settings: Any, parameters: Parameters) -> Any:
    """The model of a folder with these settings and arrays, in their dtype, as its library opens it.

    Raises: ValueError if it needs other arrays.
    """
    settings.use_cache = False
    with TemporaryDirectory() as folder:
        settings.save_pretrained(folder)
        arrays = {name: array.contiguous() for name, array in parameters.items()}
        save_file(arrays, Path(folder) / "model.safetensors", {"format": "pt"})
        dtype = next(iter(parameters.values())).dtype
        model, found = kind.from_pretrained(
            folder, dtype=dtype, attn_implementation="eager", output_loading_info=True, local_files_only=True
        )
    if found["missing_keys"]:
        raise ValueError(f"{kind.__name__} needs {', '.join(sorted(found['missing_keys']))}")
    return model.eval()


def activation(config: Mapping[str, Any]) -> str:
    """The activation in the words of transformers."""
    return ACTIVATIONS.get(config["activation"], config["activation"])


def refuse_float64(parameters: Parameters) -> None:
    """Refuse what is computed in float32 in a model of float64.

    Raises: NotImplementedHere.
    """
    if next(iter(parameters.values())).dtype == torch.float64:
        raise NotImplementedHere("transformers computes a part of it in float32, also in a model of float64")


def encode(model: Any, blocks: Sequence[nn.Module], tokens: Tensor, valid_lens: Tensor | None) -> tuple[Tensor, Tensor]:
    """The outputs of a causal stack, and the weights of all layers and heads; padded steps are 0 around every block."""
    mask = None
    if valid_lens is not None:
        mask = torch.arange(tokens.shape[1]) < valid_lens[:, None]
        padded = ~mask[..., None]

        def zero(module: nn.Module, inputs: Any, outputs: Any) -> Any:
            if isinstance(outputs, tuple):
                return (outputs[0].masked_fill(padded, 0.0), *outputs[1:])
            return outputs.masked_fill(padded, 0.0)

        for block in blocks:
            block.register_forward_hook(zero)
    found = model(input_ids=tokens, attention_mask=mask, output_attentions=True)
    return found.last_hidden_state, torch.stack(found.attentions)


def gpt2(parameters: Parameters, tokens: Tensor, valid_lens: Tensor | None = None, **config: Any) -> Any:
    """GPT2Model."""
    settings = GPT2Config(
        vocab_size=config["vocab_size"],
        n_positions=config["num_positions"],
        n_embd=config["features"],
        n_layer=config["num_layers"],
        n_head=config["num_heads"],
        n_inner=config["hidden_size"],
        activation_function=activation(config),
        layer_norm_epsilon=config["epsilon"],
    )
    model = load(GPT2Model, settings, parameters)
    return encode(model, [model.drop, *model.h, model.ln_f], tokens, valid_lens)


def llama(parameters: Parameters, tokens: Tensor, valid_lens: Tensor | None = None, **config: Any) -> Any:
    """LlamaModel, which Mistral without a window is, too."""
    refuse_float64(parameters)
    settings = LlamaConfig(
        vocab_size=config["vocab_size"],
        hidden_size=config["features"],
        intermediate_size=config["hidden_size"],
        num_hidden_layers=config["num_layers"],
        num_attention_heads=config["num_heads"],
        num_key_value_heads=config.get("num_key_heads") or config["num_heads"],
        hidden_act=activation(config),
        rms_norm_eps=config["epsilon"],
        rope_parameters={"rope_type": "default", "rope_theta": config.get("rotary_base") or 10000.0},
    )
    model = load(LlamaModel, settings, parameters)
    return encode(model, [model.embed_tokens, *model.layers, model.norm], tokens, valid_lens)


def translate(model: Any, source: Tensor, inputs: Tensor, valid_lens: Tensor | None) -> tuple[Tensor, Tensor]:
    """The logits, and the mean of the last layer's weights over the source."""
    mask = None if valid_lens is None else torch.arange(source.shape[1]) < valid_lens[:, None]
    found = model(input_ids=source, decoder_input_ids=inputs, attention_mask=mask, output_attentions=True)
    return found.logits, found.cross_attentions[-1].mean(1)


def t5(parameters: Parameters, source: Tensor, inputs: Tensor, valid_lens: Tensor | None = None, **config: Any) -> Any:
    """T5ForConditionalGeneration."""
    refuse_float64(parameters)
    gated, name = config.get("gated", False), activation(config)
    settings = T5Config(
        vocab_size=config["source_vocab_size"],
        d_model=config["features"],
        d_kv=config["features"] // config["num_heads"],
        d_ff=config["hidden_size"],
        num_layers=config["num_layers"],
        num_heads=config["num_heads"],
        relative_attention_num_buckets=config["num_buckets"],
        relative_attention_max_distance=config.get("max_distance") or 128,
        layer_norm_epsilon=config["epsilon"],
        feed_forward_proj=f"gated-{name}" if gated else name,
        tie_word_embeddings=config.get("tied", False),
        decoder_start_token_id=0,
    )
    return translate(load(T5ForConditionalGeneration, settings, parameters), source, inputs, valid_lens)


def marian(
    parameters: Parameters, source: Tensor, inputs: Tensor, valid_lens: Tensor | None = None, **config: Any
) -> Any:
    """MarianMTModel."""
    sizes = {
        f"{part}_{name}": config[option]
        for part in ("encoder", "decoder")
        for name, option in (("layers", "num_layers"), ("attention_heads", "num_heads"), ("ffn_dim", "hidden_size"))
    }
    settings = MarianConfig(
        vocab_size=config["source_vocab_size"],
        d_model=config["features"],
        max_position_embeddings=config["num_positions"],
        activation_function=activation(config),
        scale_embedding=True,
        pad_token_id=0,
        **sizes,
    )
    return translate(load(MarianMTModel, settings, parameters), source, inputs, valid_lens)


def vit(parameters: Parameters, images: Tensor, **config: Any) -> Any:
    """ViTForImageClassification, whose channels come first."""
    refuse_float64(parameters)
    settings = ViTConfig(
        hidden_size=config["features"],
        num_hidden_layers=config["num_layers"],
        num_attention_heads=config["num_heads"],
        intermediate_size=config["hidden_size"],
        hidden_act=activation(config),
        layer_norm_eps=config["epsilon"],
        image_size=config["height"],
        patch_size=config["patch_size"],
        num_channels=config["channels"],
        num_labels=config["num_classes"],
    )
    model = load(ViTForImageClassification, settings, parameters)
    found = model(pixel_values=images.permute(0, 3, 1, 2), output_attentions=True)
    return found.logits, torch.stack(found.attentions)


GPT2 = SimpleNamespace(TransformerEncoder=gpt2)
LLAMA = SimpleNamespace(TransformerEncoder=llama)
T5 = SimpleNamespace(TransformerTranslator=t5)
MARIAN = SimpleNamespace(TransformerTranslator=marian)
VIT = SimpleNamespace(VisionTransformer=vit)

__all__ = ["GPT2", "LLAMA", "MARIAN", "T5", "VIT", "runtime"]
