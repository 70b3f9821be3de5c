"""What the decoders of all model types have in common, out of a ``config.json``."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

from flarecore.checkpoint.json_file import Section
from flarecore.errors import ModelFileError, UnsupportedError

__all__ = ["MAX_CONTEXT", "MAX_SIZE", "NEUTRAL", "DecoderShape", "object_of", "read_sizes",
           "refuse", "rope_section"]

MAX_SIZE = 1 << 20
MAX_CONTEXT = 1 << 24
_ORIGINAL_LENGTH = "original_max_position_embeddings"

# key -> values that mean what is computed anyway, besides null.
NEUTRAL: Mapping[str, tuple[Any, ...]] = MappingProxyType({
    "attention_bias": (False,),
    "mlp_bias": (False,),
    "qkv_bias": (False,),
    "attn_logit_softcapping": (),
    "final_logit_softcapping": (),
    "logit_scale": (1,),
    "logits_scaling": (1,),
    "embedding_multiplier": (1,),
    "residual_multiplier": (1,),
    "attention_multiplier": (),
    "clip_qkv": (),
    "use_qk_norm": (False,),
    "use_mrope": (False,),
    "parallel_attn": (False,),
    "alibi": (False,),
    "rope_interleaved": (False,),
    "no_rope_layers": ([],),
    "num_experts": (0,),
    "num_local_experts": (0, 1),
    "n_routed_experts": (0,),
    "use_bidirectional_attention": (False,),
    "add_cross_attention": (False,),
    "is_encoder_decoder": (False,),
    "quantization_config": (),
    "auto_map": ({},),  # code of its own
})


@dataclass(frozen=True)
class DecoderShape:
    """What the native decoder is told.

    Attributes
    ----------
    native : dict
        Argument ``config`` of ``_C.Model.from_checkpoint``, but for its name.
    layer_names : mapping of str to str
        Tensor of a layer in a GGUF file -> in the checkpoint, both without ``.weight``.
    tied : bool
        The output head is the token embedding.
    vector_offset : float
        What is added to every norm's weights.
    biased : tuple of str
        Keys of `layer_names` that have a ``.bias`` beside their ``.weight``.
    """

    native: dict[str, Any]
    layer_names: Mapping[str, str]
    tied: bool
    vector_offset: float = 0.0
    biased: tuple[str, ...] = ()


def read_sizes(section: Section, activation_key: str, activation: str,
               biased: tuple[str, ...] = ()) -> dict[str, Any]:
    """`DecoderShape.native` as Llama has it, but for its layers and their rotation.

    Raises UnsupportedError for another activation, or a key that means what is not computed.
    """
    for key in NEUTRAL:
        if not (biased and key == "attention_bias"):
            refuse(section, key)
    if section.get(activation_key) != activation:
        raise UnsupportedError(f"{section.where}: {activation_key} {section.get(activation_key)!r} "
                               f"is not supported; supported: {activation!r}")
    hidden = section.integer("hidden_size", 1, MAX_SIZE)
    heads = section.integer("num_attention_heads", 1, MAX_SIZE)
    if section.get("head_dim") is not None:
        head_dim = section.integer("head_dim", 1, MAX_SIZE)
    elif hidden % heads:
        raise ModelFileError(f"{section.where}: hidden_size {hidden} is no multiple of "
                             f"num_attention_heads {heads}, and head_dim is missing")
    else:
        head_dim = hidden // heads
    # null is no missing value here: it means as many as query heads.
    kv_heads = heads
    if section.values.get("num_key_value_heads", section.defaults.get("num_key_value_heads")):
        kv_heads = section.integer("num_key_value_heads", 1, MAX_SIZE)
    eps = section.positive("rms_norm_eps")
    return {
        "architecture": section.get("model_type") or "gemma3_text",
        "num_layers": section.integer("num_hidden_layers", 1, 1024),
        "hidden_size": hidden,
        "intermediate_size": section.integer("intermediate_size", 1, MAX_SIZE),
        "num_heads": heads, "num_kv_heads": kv_heads, "head_dim": head_dim,
        "context_length": section.integer("max_position_embeddings", 1, MAX_CONTEXT),
        "vocab_size": section.integer("vocab_size", 1, (1 << 31) - 1),
        "norm_eps": eps, "attention_scale": head_dim**-0.5, "embedding_scale": 1.0,
        "activation": "silu", "tied_head": section.boolean("tie_word_embeddings"),
        "has_qkv_bias": "attn_q" in biased, "has_output_bias": "attn_output" in biased,
        "norms_heads": False, "norms_outputs": False,
    }


def refuse(section: Section, key: str) -> None:
    """Raises UnsupportedError unless the key's value means what is computed anyway."""
    value = section.values.get(key)
    if value is not None and value not in NEUTRAL.get(key, ()):
        raise UnsupportedError(
            f"{section.where}: {key} is {value!r:.80}, which is not supported; running the model "
            f"without it would give wrong results")


def rope_section(section: Section, rope: Any, base: float) -> Section:
    """What `rope_frequencies` takes, out of the object `rope`; `base` if it names none."""
    length = section.get(_ORIGINAL_LENGTH)
    values = dict(object_of(section, "rope_parameters", rope))
    if length is not None:
        values[_ORIGINAL_LENGTH] = length
    defaults = {"rope_theta": base, "partial_rotary_factor": section.get("partial_rotary_factor"),
                _ORIGINAL_LENGTH: section.get("max_position_embeddings")}
    return Section(values, f"{section.where}: rope_parameters", defaults)


def object_of(section: Section, key: str, value: Any) -> Mapping[str, Any]:
    """The value, which must be an object. Raises ModelFileError."""
    if not isinstance(value, Mapping):
        raise ModelFileError(f"{section.where}: {key} is {value!r:.80}, expected an object")
    return value
