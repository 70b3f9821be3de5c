"""``config.json`` of a checkpoint: the shape of its decoder, or a refusal that names the reason.

Missing keys have the defaults of transformers' configuration class of that ``model_type``, since
files are written without what equals the default. Keys that change what is computed are either
computed here or refused; the rest (training, generation, names) is not looked at.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any

from flarecore.checkpoint.json_file import Section
from flarecore.checkpoint.rope import rope_frequencies
from flarecore.checkpoint.shape import (
    MAX_CONTEXT,
    MAX_SIZE,
    NEUTRAL,
    DecoderShape,
    object_of,
    read_sizes,
    refuse,
    rope_section,
)
from flarecore.errors import ModelFileError, UnsupportedError

__all__ = ["MODEL_TYPES", "read_config"]

# Types whose maths is known to differ, and how.
_REFUSED: Mapping[str, str] = MappingProxyType({
    "smollm3": "layers without rotary embedding (no_rope_layers)",
    "mixtral": "a mixture of experts (num_local_experts)",
    "qwen2_moe": "a mixture of experts (num_experts)",
    "qwen3_moe": "a mixture of experts (num_experts)",
    "gemma": "Gemma 1's blocks", "gemma2": "soft-capped logits (attn_logit_softcapping)",
    "phi3": "fused projections (qkv_proj, gate_up_proj)",
})

_LLAMA_LAYER: Mapping[str, str] = MappingProxyType({
    "attn_norm": "input_layernorm", "attn_q": "self_attn.q_proj", "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj", "attn_output": "self_attn.o_proj",
    "ffn_norm": "post_attention_layernorm", "ffn_gate": "mlp.gate_proj", "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
})
_HEAD_NORMS = {"attn_q_norm": "self_attn.q_norm", "attn_k_norm": "self_attn.k_norm"}
_GEMMA_LAYER: Mapping[str, str] = MappingProxyType({
    **_LLAMA_LAYER, **_HEAD_NORMS, "post_attention_norm": "post_attention_layernorm",
    "ffn_norm": "pre_feedforward_layernorm", "post_ffw_norm": "post_feedforward_layernorm",
})

_QKV = ("attn_q", "attn_k", "attn_v")

_LLAMA_DEFAULTS: Mapping[str, Any] = MappingProxyType({
    "vocab_size": 32000, "hidden_size": 4096, "intermediate_size": 11008, "num_hidden_layers": 32,
    "num_attention_heads": 32, "max_position_embeddings": 2048, "rms_norm_eps": 1e-6,
    "hidden_act": "silu", "tie_word_embeddings": False, "rope_theta": 10000.0,
    "attention_bias": False,
})
_MISTRAL_DEFAULTS: Mapping[str, Any] = MappingProxyType({
    **_LLAMA_DEFAULTS, "intermediate_size": 14336, "num_key_value_heads": 8,
    "max_position_embeddings": 4096 * 32,
})
_QWEN2_DEFAULTS: Mapping[str, Any] = MappingProxyType({
    **_LLAMA_DEFAULTS, "vocab_size": 151936, "intermediate_size": 22016,
    "num_key_value_heads": 32, "max_position_embeddings": 32768, "use_sliding_window": False,
    "sliding_window": 4096, "max_window_layers": 28,
})
_QWEN3_DEFAULTS: Mapping[str, Any] = MappingProxyType({**_QWEN2_DEFAULTS, "head_dim": 128})
_GEMMA_DEFAULTS: Mapping[str, Any] = MappingProxyType({
    "vocab_size": 262208, "hidden_size": 2304, "intermediate_size": 9216, "num_hidden_layers": 26,
    "num_attention_heads": 8, "num_key_value_heads": 4, "head_dim": 256,
    "max_position_embeddings": 131072, "rms_norm_eps": 1e-6,
    "hidden_activation": "gelu_pytorch_tanh", "tie_word_embeddings": True,
    "query_pre_attn_scalar": 256, "sliding_window": 4096, "sliding_window_pattern": 6,
    "rope_theta": 1000000.0, "rope_local_base_freq": 10000.0,
})


def read_config(values: Mapping[str, Any], where: str) -> DecoderShape:
    """The decoder that a ``config.json`` describes.

    Parameters
    ----------
    values : mapping
        The file's object.
    where : str
        The file, for messages.

    Raises
    ------
    UnsupportedError
        The model type, or a feature of it, is not computed here; the message names it.
    ModelFileError
        A value is missing, of the wrong kind or out of range.
    """
    kind = Section(values, where, {}).string("model_type")
    if kind == "bert":
        raise UnsupportedError(
            f"{where}: model_type 'bert' is a sentence encoder, which writes no text; "
            "SentenceEncoder.load opens it, on the command line --encoder")
    if kind not in MODEL_TYPES:
        why = f": it has {_REFUSED[kind]}" if kind in _REFUSED else ""
        raise UnsupportedError(f"{where}: model_type {kind!r:.60} is not supported{why}; "
                               f"supported: {', '.join(MODEL_TYPES)}")
    return MODEL_TYPES[kind](values, where)


def _llama(values: Mapping[str, Any], where: str) -> DecoderShape:
    section = Section(values, where, _LLAMA_DEFAULTS)
    refuse(section, "sliding_window")  # transformers' Llama leaves it out: what is meant?
    biased = (*_QKV, "attn_output") if section.boolean("attention_bias") else ()
    return _llama_like(section, 0, _LLAMA_LAYER, biased=biased)


def _mistral(values: Mapping[str, Any], where: str) -> DecoderShape:
    section = Section(values, where, _MISTRAL_DEFAULTS)
    # Here null is no missing value: it means that there is no window.
    if values.get("sliding_window", 4096) is None:
        return _llama_like(section, 0, _LLAMA_LAYER)
    window = Section(values, where, {"sliding_window": 4096})
    return _llama_like(section, window.integer("sliding_window", 1, MAX_CONTEXT), _LLAMA_LAYER)


def _qwen2(values: Mapping[str, Any], where: str) -> DecoderShape:
    section = Section(values, where, _QWEN2_DEFAULTS)
    window, num_full = _qwen_window(section)
    return _llama_like(section, window, _LLAMA_LAYER, num_full=num_full, biased=_QKV)


def _qwen3(values: Mapping[str, Any], where: str) -> DecoderShape:
    section = Section(values, where, _QWEN3_DEFAULTS)
    window, num_full = _qwen_window(section)
    names = MappingProxyType({**_LLAMA_LAYER, **_HEAD_NORMS})
    shape = _llama_like(section, window, names, num_full=num_full)
    shape.native["norms_heads"] = True
    return shape


def _qwen_window(section: Section) -> tuple[int, int]:
    """The window, and how many of the first layers see everything nevertheless."""
    # As for Mistral, null means that there is no window.
    has_window = section.values.get("sliding_window", 4096) is not None
    if not section.boolean("use_sliding_window") or not has_window:
        return 0, 0
    return (section.integer("sliding_window", 1, MAX_CONTEXT),
            section.integer("max_window_layers", 0, MAX_SIZE))


def _llama_like(section: Section, window: int, layer_names: Mapping[str, str], *,
                num_full: int = 0, biased: tuple[str, ...] = ()) -> DecoderShape:
    """The first `num_full` layers have no window. `biased`: see :class:`DecoderShape`."""
    native = read_sizes(section, "hidden_act", "silu", biased)
    windows = [0 if i < num_full else window for i in range(native["num_layers"])]
    expected = ["sliding_attention" if size else "full_attention" for size in windows]
    types = section.get("layer_types")
    if types is not None and types != expected:
        raise UnsupportedError(f"{section.where}: layer_types {types!r:.80} is not supported")
    # Older files have the type in rope_scaling and the base beside it, newer ones all in one place.
    rope = section.get("rope_scaling") or section.get("rope_parameters") or {}
    native["inverse_frequencies"] = [
        rope_frequencies(rope_section(section, rope, section.positive("rope_theta")),
                         native["head_dim"])
    ]
    native["layers"] = [(size, 0) for size in windows]
    return DecoderShape(native, layer_names, native["tied_head"], biased=biased)


def _gemma3(values: Mapping[str, Any], where: str) -> DecoderShape:
    """The text part of a model that also sees images."""
    for key in NEUTRAL:
        refuse(Section(values, where, {}), key)
    text = dict(Section(values, where, {}).section("text_config").values)
    if text.get("model_type", "gemma3_text") != "gemma3_text":
        raise UnsupportedError(f"{where}: text_config: model_type {text['model_type']!r:.60} is "
                               "not supported; supported: 'gemma3_text'")
    tied = values.get("tie_word_embeddings")
    if tied is not None:
        if text.get("tie_word_embeddings", tied) != tied:
            raise ModelFileError(f"{where}: tie_word_embeddings is {tied!r}, in text_config it is "
                                 f"{text['tie_word_embeddings']!r}; which one is meant?")
        text["tie_word_embeddings"] = tied
    return _gemma3_text(text, f"{where}: text_config")


def _gemma3_text(values: Mapping[str, Any], where: str) -> DecoderShape:
    # Gemma 3 report, arXiv 2503.19786.
    section = Section(values, where, _GEMMA_DEFAULTS)
    native = read_sizes(section, "hidden_activation", "gelu_pytorch_tanh")
    native |= {
        "attention_scale": section.positive("query_pre_attn_scalar") ** -0.5,
        "embedding_scale": math.sqrt(native["hidden_size"]),
        "activation": "gelu_tanh", "norms_heads": True, "norms_outputs": True,
    }
    if values.get("sliding_window", 4096) is None:
        raise UnsupportedError(f"{where}: sliding_window null is not supported: Gemma 3 has one")
    window = section.integer("sliding_window", 1, MAX_CONTEXT)
    slides = _sliding_layers(section, native["num_layers"])
    native["layers"] = [(window, 1) if sliding else (0, 0) for sliding in slides]
    native["inverse_frequencies"] = [
        rope_frequencies(rope, native["head_dim"]) for rope in _gemma3_ropes(section)
    ]
    return DecoderShape(native, _GEMMA_LAYER, native["tied_head"], vector_offset=1.0)


def _sliding_layers(section: Section, num_layers: int) -> list[bool]:
    types = section.get("layer_types")
    if types is None:
        pattern = section.integer("sliding_window_pattern", 1, MAX_SIZE)
        return [(i + 1) % pattern != 0 for i in range(num_layers)]
    known = ("sliding_attention", "full_attention")
    if (not isinstance(types, list) or len(types) != num_layers
            or not all(kind in known for kind in types)):
        raise UnsupportedError(
            f"{section.where}: layer_types must name one of {' and '.join(known)} for each of "
            f"{num_layers} layers, it is {types!r:.80}")
    return [kind == known[0] for kind in types]


def _gemma3_ropes(section: Section) -> tuple[Section, Section]:
    """Of the layers that see everything, and of those with a window. Only the former are scaled."""
    nested = section.get("rope_parameters") or {}
    names = ("full_attention", "sliding_attention")
    if not isinstance(nested, Mapping) or not set(nested) <= set(names):
        raise UnsupportedError(f"{section.where}: rope_parameters must hold {' and '.join(names)}, "
                               f"it is {nested!r:.80}")
    bases = (section.positive("rope_theta"), section.positive("rope_local_base_freq"))
    full, local = (rope_section(section, nested.get(name) or {}, base)
                   for name, base in zip(names, bases, strict=True))
    if scaling := section.get("rope_scaling"):
        scaled = {**full.values, **object_of(section, "rope_scaling", scaling)}
        full = rope_section(section, scaled, bases[0])
    return full, local


# model_type -> reader.
MODEL_TYPES: Mapping[str, Callable[[Mapping[str, Any], str], DecoderShape]] = MappingProxyType({
    "llama": _llama, "mistral": _mistral, "qwen2": _qwen2, "qwen3": _qwen3,
    "gemma3_text": _gemma3_text, "gemma3": _gemma3,
})
