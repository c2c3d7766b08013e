"""Folders that transformers wrote: converted whole to the same function by their settings, or refused by name."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from attention_core import reference
from attention_core.draws import integers, uniform
from backends import weights
from backends.weights.formats import main_file
from parity_tests.conversion.inventory import parts_of

pytestmark = pytest.mark.frameworks("tf", "torch")  # in the environment of both, which has transformers

TOKENS, SHORT = integers("tokens", (2, 6), 40), integers("inputs", (2, 5), 40)
LENS = np.array([6, 4], np.int32)
STACK = {"vocab_size": 40, "num_hidden_layers": 2, "num_attention_heads": 4, "hidden_size": 16}
PAIR = {"vocab_size": 40, "d_model": 16, "num_layers": 2, "num_heads": 4, "d_ff": 24, "decoder_start_token_id": 0}
SEQUENCES = {
    **{f"{part}_layers": 2 for part in ("encoder", "decoder")},
    **{f"{part}_attention_heads": 4 for part in ("encoder", "decoder")},
    "vocab_size": 40,
    "d_model": 16,
    "encoder_ffn_dim": 24,
    "decoder_ffn_dim": 24,
    "max_position_embeddings": 12,
    "pad_token_id": 0,
    "eos_token_id": 1,
    "decoder_start_token_id": 0,
    "forced_eos_token_id": 1,
}
GPT2 = {"n_embd": 16, "n_layer": 2, "n_head": 4, "vocab_size": 40, "n_positions": 12}
LLAMA = {**STACK, "intermediate_size": 24, "num_key_value_heads": 2}
SAME: dict[str, tuple[str, dict[str, Any]]] = {
    "gpt2": ("GPT2LMHead", GPT2),
    "gpt2, wide": ("GPT2", {**GPT2, "n_head": 2, "n_inner": 24}),
    "gpt2, other settings": ("GPT2LMHead", {**GPT2, "activation_function": "gelu", "layer_norm_epsilon": 0.1}),
    "llama": ("LlamaForCausalLM", LLAMA),
    "llama, tied, another base": (
        "LlamaForCausalLM",
        {
            **LLAMA,
            "tie_word_embeddings": True,
            "rms_norm_eps": 0.01,
            "rope_parameters": {"rope_type": "default", "rope_theta": 500.0},
        },
    ),
    "mistral": ("MistralForCausalLM", {**LLAMA, "sliding_window": None}),
    "t5": ("T5ForConditionalGeneration", {**PAIR, "d_kv": 4, "relative_attention_max_distance": 20}),
    "t5 1.1": (
        "T5ForConditionalGeneration",
        {**PAIR, "d_kv": 4, "feed_forward_proj": "gated-gelu", "tie_word_embeddings": False},
    ),
    "marian": ("MarianMTModel", {**SEQUENCES, "scale_embedding": True, "activation_function": "swish"}),
    "vit": (
        "ViTForImageClassification",
        {
            "hidden_size": 16,
            "num_hidden_layers": 2,
            "num_attention_heads": 4,
            "intermediate_size": 24,
            "image_size": 8,
            "patch_size": 4,
            "num_labels": 5,
            "layer_norm_eps": 0.01,
        },
    ),
}
OTHERS = {
    "bart": (
        "BartForConditionalGeneration",
        SEQUENCES,
        "a 'transformers>bart' model, which has a norm behind the embeddings",
    ),
    "bert": (
        "BertModel",
        {**STACK, "intermediate_size": 24},
        "a 'transformers>bert' model, which has a norm behind the embeddings",
    ),
    "unscaled marian": ("MarianMTModel", {**SEQUENCES, "scale_embedding": False}, "scale_embedding=False"),
    "a window": ("MistralForCausalLM", {**LLAMA, "sliding_window": 4}, "sliding_window=4"),
    "biases": ("LlamaForCausalLM", {**LLAMA, "attention_bias": True}, "attention_bias=True"),
    "scaled rates": (
        "LlamaForCausalLM",
        {**LLAMA, "rope_parameters": {"rope_type": "linear", "factor": 2.0, "rope_theta": 10000.0}},
        "rope_parameters.factor=2.0",
    ),
    "no scale": ("GPT2LMHead", {**GPT2, "scale_attn_weights": False}, "scale_attn_weights=False"),
    "another activation": ("GPT2LMHead", {**GPT2, "activation_function": "tanh"}, "activation_function='tanh'"),
}


def saved(folder: Path, name: str, options: dict[str, Any], **how: Any) -> Any:
    """A model of transformers with drawn parameters, written to a folder by itself."""
    import torch
    import transformers

    kind = getattr(transformers, {"GPT2LMHead": "GPT2LMHeadModel", "GPT2": "GPT2Model"}.get(name, name))
    model = kind(kind.config_class(**options))
    for key, parameter in model.named_parameters():
        if parameter.requires_grad:
            drawn = 0.2 * uniform(key, tuple(parameter.shape)) + (parameter.data.numpy() > 0.9)
            parameter.data = torch.tensor(drawn, dtype=torch.float32)
    if options.get("tie_word_embeddings") is False and hasattr(
        model, "lm_head"
    ):  # transformers 5 ties T5's in any case
        drawn = uniform("lm_head", tuple(model.lm_head.weight.shape))
        model.lm_head.weight = torch.nn.Parameter(torch.tensor(drawn, dtype=torch.float32))
    model.eval().save_pretrained(folder, **how)
    return model


def converted_from(folder: Path) -> weights.Converted:
    arrays = {name: array.astype(np.float64) for name, array in weights.read_arrays(folder).items()}
    return weights.to_canonical(arrays, settings=weights.read_settings(folder))


def answers(model: Any, converted: weights.Converted) -> tuple[np.ndarray, np.ndarray]:
    """What the converted layer, and the model, answer to the same inputs."""
    import torch

    layer = getattr(reference, converted.layer)(**converted.config)
    reference.set_parameters(layer, converted.arrays)
    with torch.no_grad():
        if converted.layer == "VisionTransformer":
            images = uniform("images", (2, 8, 8, 3))
            found = model(torch.tensor(images.transpose(0, 3, 1, 2), dtype=torch.float32)).logits
            return layer(images)[0], found.numpy()
        tokens, mask = torch.tensor(TOKENS), torch.arange(6) < torch.tensor(LENS)[:, None]
        if converted.layer == "TransformerTranslator":
            found = model(input_ids=tokens, attention_mask=mask, decoder_input_ids=torch.tensor(SHORT)).logits
            return layer(TOKENS, SHORT, LENS)[0], found.numpy()
        outputs, found = layer(TOKENS)[0], model(input_ids=tokens)
        if not hasattr(found, "logits"):
            return outputs, found.last_hidden_state.numpy()
        head = converted.beside.get("head", converted.arrays["embedding"] * converted.config["features"] ** 0.5)
        return outputs @ head.T, found.logits.numpy()


@pytest.mark.parametrize("title", SAME)
def test_a_folder_is_converted_to_the_same_function(title: str, tmp_path: Path):
    name, options = SAME[title]
    model = saved(tmp_path, name, options)
    converted = converted_from(tmp_path)
    assert not converted.assumed
    actual, expected = answers(model, converted)
    np.testing.assert_allclose(actual, expected, rtol=0, atol=5e-6 * np.abs(expected).max())


@pytest.mark.parametrize("title", OTHERS)
def test_what_the_specification_lacks_is_refused_by_its_name(title: str, tmp_path: Path):
    name, options, words = OTHERS[title]
    saved(tmp_path, name, options)
    with pytest.raises(weights.WeightError) as refusal:
        converted_from(tmp_path)
    assert words in str(refusal.value)


def test_a_part_of_a_model_that_the_specification_lacks_is_converted_by_its_source(tmp_path: Path):
    saved(tmp_path, "BertModel", {**STACK, "intermediate_size": 24})
    arrays, settings = weights.read_arrays(tmp_path), weights.read_settings(tmp_path)
    prefix = "encoder.layer.0.output.LayerNorm."
    converted = weights.to_canonical(arrays, "torch.nn.LayerNorm", prefix=prefix, settings=settings, epsilon=1e-12)
    np.testing.assert_array_equal(converted.arrays["g"], arrays[f"{prefix}weight"])
    parts = {part.prefix: part for part in parts_of(arrays, settings)}
    assert parts[prefix].can_be_converted and not parts["pooler.dense."].source


def test_shards_are_one_model(tmp_path: Path):
    name, options = SAME["gpt2"]
    model = saved(tmp_path, name, options, max_shard_size="8KB")
    assert main_file(tmp_path).name == "model.safetensors.index.json"
    actual, expected = answers(model, converted_from(tmp_path))
    np.testing.assert_allclose(actual, expected, rtol=0, atol=1e-5)
    index = json.loads(main_file(tmp_path).read_text())
    first = next(iter(index["weight_map"]))
    changes: dict[str, Callable[[dict[str, Any]], None]] = {
        "names of files beside it": lambda listed: listed.update({first: "../secret.safetensors"}),
        "is in none of its files": lambda listed: listed.update({"more": listed[first]}),
        "no such file": lambda listed: listed.update({first: "absent.safetensors"}),
    }
    for words, change in changes.items():
        listed = dict(index["weight_map"])
        change(listed)
        main_file(tmp_path).write_text(json.dumps({"weight_map": listed}))
        with pytest.raises(weights.WeightError, match=words):
            weights.read_arrays(tmp_path)


def test_arrays_that_are_tied_are_one_and_another_one_is_refused(tmp_path: Path):
    from safetensors.numpy import load_file, save_file

    name, options = SAME["t5"]
    model = saved(tmp_path, name, options)
    file = tmp_path / "model.safetensors"
    arrays = load_file(file)
    save_file({**arrays, "encoder.embed_tokens.weight": arrays["shared.weight"].copy()}, file)
    actual, expected = answers(model, converted_from(tmp_path))
    np.testing.assert_allclose(actual, expected, rtol=0, atol=1e-5)
    save_file({**arrays, "encoder.embed_tokens.weight": arrays["shared.weight"] + 1}, file)
    with pytest.raises(weights.WeightError, match=r"another array than shared\.weight, which it is tied to"):
        converted_from(tmp_path)


def test_quantised_arrays_are_refused_by_that_word(tmp_path: Path):
    saved(tmp_path, *SAME["gpt2"])
    config = json.loads((tmp_path / "config.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps({**config, "quantization_config": {"quant_method": "gptq"}}))
    with pytest.raises(weights.WeightError, match="its arrays are quantised"):
        converted_from(tmp_path)


def test_a_folder_without_arrays_is_refused(tmp_path: Path):
    with pytest.raises(weights.WeightError, match=r"the folder has none of model\.safetensors, "):
        weights.read_arrays(tmp_path)


@pytest.mark.parametrize("title", ["t5", "marian"])
def test_a_converted_translator_writes_the_tokens_of_generate(title: str, tmp_path: Path):
    import torch

    name, options = SAME[title]
    model = saved(tmp_path, name, options)
    converted = converted_from(tmp_path)
    layer = reference.TransformerTranslator(**converted.config)
    reference.set_parameters(layer, converted.arrays)
    mask = torch.arange(6) < torch.tensor(LENS)[:, None]
    model.generation_config.forced_eos_token_id = None  # Marian's last step is no choice of the model
    chosen = model.generate(input_ids=torch.tensor(TOKENS), attention_mask=mask, max_new_tokens=6, do_sample=False)
    tokens = layer.greedy(TOKENS, LENS, bos=0, eos=1, max_steps=6)[0]
    for actual, expected in zip(tokens.tolist(), chosen[:, 1:].tolist(), strict=True):
        length = expected.index(1) + 1 if 1 in expected else len(expected)
        assert actual[:length] == expected[:length]
