"""A Gemma 3 GGUF file as a ``transformers`` model with exactly the file's weights."""

from __future__ import annotations

from typing import Any

import numpy as np

from flarecore.reference.gemma_weights import GemmaShape, GemmaWeights
from flarecore.reference.transformers_import import import_transformers

__all__ = ["build_transformers_gemma"]

_LAYER_NAMES = {
    "attn_norm": "input_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_q_norm": "self_attn.q_norm",
    "attn_k_norm": "self_attn.k_norm",
    "attn_output": "self_attn.o_proj",
    "post_attention_norm": "post_attention_layernorm",
    "ffn_norm": "pre_feedforward_layernorm",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
    "post_ffw_norm": "post_feedforward_layernorm",
}


def _state_dict(weights: GemmaWeights, torch: Any) -> dict[str, Any]:
    arrays = {
        "model.embed_tokens.weight": weights.tensors["token_embd.weight"],
        "model.norm.weight": weights.tensors["output_norm.weight"],
        "lm_head.weight": weights.head,
    }
    for layer in range(weights.shape.num_layers):
        for ours, theirs in _LAYER_NAMES.items():
            arrays[f"model.layers.{layer}.{theirs}.weight"] = weights.layer(layer, ours)
    # transformers multiplies by 1 + weight, the file's weights have the 1 added.
    return {
        name: torch.from_numpy(array - np.float32(1) if array.ndim == 1 else array)
        for name, array in arrays.items()
    }


def _config(shape: GemmaShape, tied: bool, transformers: Any) -> Any:
    kinds = ("full_attention", "sliding_attention")
    return transformers.Gemma3TextConfig(
        vocab_size=shape.vocab_size,
        hidden_size=shape.hidden_size,
        intermediate_size=shape.ffn_size,
        num_hidden_layers=shape.num_layers,
        num_attention_heads=shape.num_heads,
        num_key_value_heads=shape.num_kv_heads,
        head_dim=shape.head_dim,
        query_pre_attn_scalar=shape.head_dim,
        max_position_embeddings=shape.context_length,
        rms_norm_eps=shape.rms_eps,
        sliding_window=shape.window,
        layer_types=[kinds[shape.has_window(i)] for i in range(shape.num_layers)],
        tie_word_embeddings=tied,
        bos_token_id=None,
        eos_token_id=None,
        pad_token_id=None,
        attn_implementation="eager",
    )


def build_transformers_gemma(weights: GemmaWeights) -> Any:
    """Build a float32 ``Gemma3ForCausalLM`` with exactly the weights of a GGUF file.

    Parameters
    ----------
    weights
        Dequantised weights.

    Returns
    -------
    transformers.Gemma3ForCausalLM
        In evaluation mode, on the CPU.

    Raises
    ------
    UnsupportedError
        If torch or transformers is not installed.
    """
    torch, transformers = import_transformers()
    shape = weights.shape
    tied = "output.weight" not in weights.tensors
    with torch.device("meta"):
        model = transformers.Gemma3ForCausalLM(_config(shape, tied, transformers))
    model.load_state_dict(_state_dict(weights, torch), strict=True, assign=True)
    if tied:
        model.tie_weights()
    # Buffers are no part of the state: those made on the meta device are put in by hand.
    inner = model.model
    inner.embed_tokens.embed_scale = torch.tensor(shape.hidden_size**0.5)
    full = torch.from_numpy(shape.inverse_frequencies.astype(np.float32))
    local = torch.from_numpy(shape.local_inverse_frequencies.astype(np.float32))
    if hasattr(inner, "rotary_emb_local"):  # transformers 4
        inner.rotary_emb.inv_freq = inner.rotary_emb.original_inv_freq = full
        inner.rotary_emb_local.inv_freq = inner.rotary_emb_local.original_inv_freq = local
    else:
        for kind, frequencies in (("full_attention", full), ("sliding_attention", local)):
            setattr(inner.rotary_emb, f"{kind}_inv_freq", frequencies)
            setattr(inner.rotary_emb, f"{kind}_original_inv_freq", frequencies)
    return model.eval()
