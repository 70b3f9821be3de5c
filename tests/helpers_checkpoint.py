"""Tiny random checkpoints, saved by transformers with a tokenizer trained here."""

from __future__ import annotations

import functools
import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from helpers import (
    TinyLlama,
    model_folder,
    open_engine,
    random_ids,
    tiny_llama_path,
    transformers_decoder,
)
from helpers_tokenizer import ALPHABETS, mixed_strings

CHAT_TEMPLATE = (
    "{% for m in messages %}<|im_start|>{{ m['role'] }}\n{{ m['content'] }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
VOCAB_SIZE = 640


@dataclass(frozen=True)
class TinyCheckpoint:
    """A random model: its class in transformers, and how it is saved."""

    family: str = "Llama"  # "Llama", "Mistral", "Qwen2", "Qwen3", "Gemma3"
    dtype: str = "float32"
    sharded: bool = False
    tied: bool = False
    options: str = "{}"  # JSON, so that it can be a key
    seed: int = 0


def tiny(family: str = "Llama", *, dtype: str = "float32", sharded: bool = False,
         tied: bool = False, **options: Any) -> TinyCheckpoint:
    """A model with options of its configuration class."""
    return TinyCheckpoint(family, dtype, sharded, tied, json.dumps(options))


SIZES: dict[str, Any] = {
    "vocab_size": VOCAB_SIZE, "hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 3,
    "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 32,
    "max_position_embeddings": 256, "bos_token_id": None, "eos_token_id": None,
    "pad_token_id": None,
}  # fmt: skip


def build(spec: TinyCheckpoint) -> Any:
    """The model, in evaluation mode. Weights are rounded to the dtype it is saved in."""
    import torch
    import transformers

    torch.manual_seed(spec.seed)
    options = {**SIZES, "tie_word_embeddings": spec.tied, **json.loads(spec.options)}
    if spec.family == "Gemma3":
        config = transformers.Gemma3TextConfig(**options)
    else:
        config = getattr(transformers, f"{spec.family}Config")(**options)
    config._attn_implementation = "eager"
    model = getattr(transformers, f"{spec.family}ForCausalLM")(config).eval()
    dtype = getattr(torch, spec.dtype)
    gemma = spec.family == "Gemma3"
    with torch.no_grad():
        for name, value in model.named_parameters():
            if name.endswith(".bias"):  # made 0 at first; as large as what it is added to
                value.copy_(torch.randn_like(value) * 1.5)
            elif value.ndim == 1:  # norms: Gemma's are stored minus 1
                value.copy_(torch.rand_like(value) * 0.6 + (-0.3 if gemma else 0.7))
                if name == "model.norm.weight" and gemma:
                    value += 3
            else:
                # Layers outweigh the embedding: a tied head would name the last token for ever.
                scale = 3.0 if "o_proj" in name or "down_proj" in name else 1.5
                if gemma and spec.tied and "embed" in name:
                    scale = 0.3
                value.copy_(torch.randn_like(value) * scale / value.shape[1] ** 0.5)
            value.copy_(value.to(dtype).to(torch.float32))
    return model


@functools.cache
def checkpoint(spec: TinyCheckpoint = TinyCheckpoint()) -> tuple[Path, Any]:
    """Its directory, written once in a test run, and the model it was saved from (float32)."""
    import torch

    model = build(spec)
    path = model_folder() / f"checkpoint-{checkpoint.cache_info().misses}"
    saved = build(spec).to(getattr(torch, spec.dtype))
    saved.save_pretrained(path, max_shard_size="100KB" if spec.sharded else "1GB")
    bpe_tokenizer().save_pretrained(path)
    return path, model


@functools.cache
def bpe_tokenizer() -> Any:
    """A byte-level BPE with three special tokens and one that is only added."""
    import tokenizers
    import transformers

    raw = tokenizers.Tokenizer(tokenizers.models.BPE())
    raw.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False)
    raw.decoder = tokenizers.decoders.ByteLevel()
    raw.train_from_iterator(corpus(), tokenizers.trainers.BpeTrainer(
        vocab_size=VOCAB_SIZE - 20, special_tokens=["<|endoftext|>", "<|im_start|>", "<|im_end|>"],
        initial_alphabet=tokenizers.pre_tokenizers.ByteLevel.alphabet(), show_progress=False))
    raw.add_tokens([tokenizers.AddedToken("<tool é>", special=False, normalized=False)])
    return transformers.PreTrainedTokenizerFast(
        tokenizer_object=raw, bos_token="<|im_start|>", eos_token="<|im_end|>",
        unk_token="<|endoftext|>", pad_token="<|im_end|>", chat_template=CHAT_TEMPLATE)


def corpus() -> list[str]:
    return [" ".join(mixed_strings(1, seed)) for seed in range(200)] + ALPHABETS["english"] * 9


def fallback_tokenizer(prepend_scheme: str) -> Any:
    """A BPE over characters with byte fallback, as Llama 2 and Gemma have it."""
    import tokenizers
    import transformers

    raw = tokenizers.Tokenizer(tokenizers.models.BPE(
        byte_fallback=True, unk_token="<unk>", fuse_unk=True))
    raw.pre_tokenizer = tokenizers.pre_tokenizers.Metaspace(
        prepend_scheme=prepend_scheme, split=False)
    bytes_ = [f"<0x{b:02X}>" for b in range(256)]
    raw.train_from_iterator(corpus(), tokenizers.trainers.BpeTrainer(
        vocab_size=VOCAB_SIZE - 20, special_tokens=["<unk>", "<s>", "</s>"], limit_alphabet=90,
        show_progress=False))
    values = json.loads(raw.to_str())
    vocab = values["model"]["vocab"]
    shift = len(vocab)
    values["model"]["vocab"] |= {token: shift + i for i, token in enumerate(bytes_)}
    values["decoder"] = {"type": "Sequence", "decoders": [
        {"type": "Replace", "pattern": {"String": "\u2581"}, "content": " "},
        {"type": "ByteFallback"}, {"type": "Fuse"},
        *([] if prepend_scheme == "never" else
          [{"type": "Strip", "content": " ", "start": 1, "stop": 0}])]}
    values["post_processor"] = {
        "type": "TemplateProcessing",
        "single": [{"SpecialToken": {"id": "<s>", "type_id": 0}},
                   {"Sequence": {"id": "A", "type_id": 0}}],
        "pair": [{"Sequence": {"id": "A", "type_id": 0}}, {"Sequence": {"id": "B", "type_id": 1}}],
        "special_tokens": {"<s>": {"id": "<s>", "ids": [vocab["<s>"]], "tokens": ["<s>"]}},
    }
    return transformers.PreTrainedTokenizerFast(
        tokenizer_object=tokenizers.Tokenizer.from_str(json.dumps(values)), bos_token="<s>",
        eos_token="</s>", unk_token="<unk>")


def assert_same_as_gguf(spec: TinyLlama, path: Path) -> None:
    """A GGUF file and a checkpoint of the same weights, saved at `path`, give the same tokens."""
    from flarecore.reference.gguf_weights import load_llama_gguf

    model = transformers_decoder(load_llama_gguf(tiny_llama_path(spec))).model
    model.config.bos_token_id = model.config.eos_token_id = None
    model.save_pretrained(path)
    bpe_tokenizer().save_pretrained(path)
    ids = random_ids(50, VOCAB_SIZE - 20)
    results = [open_engine(source).sequence(ids).decode(64, until="eos", ignore_eos=True)
               for source in (spec, path)]
    assert results[0].token_ids == results[1].token_ids
    np.testing.assert_allclose(results[0].probs, results[1].probs, atol=1e-5, rtol=0)
