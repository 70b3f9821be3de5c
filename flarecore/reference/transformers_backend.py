"""The same GGUF file as a ``transformers`` model: the outside opinion of guarantee 2.

Needs torch and transformers, imported when a function is called.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from flarecore.reference.gemma_weights import GemmaWeights
from flarecore.reference.gguf_weights import LlamaShape, LlamaWeights, load_llama_gguf
from flarecore.reference.sampler import confidences
from flarecore.reference.transformers_gemma import build_transformers_gemma
from flarecore.reference.transformers_import import import_transformers

__all__ = ["TransformersDecoder", "build_transformers_llama"]

_LAYER_NAMES = {
    "attn_norm": "input_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "ffn_norm": "post_attention_layernorm",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}
_HEAD_NORMS = {"attn_q_norm": "self_attn.q_norm", "attn_k_norm": "self_attn.k_norm"}
# general.architecture -> what the names of its classes begin with.
_FAMILIES = {"llama": "Llama", "qwen2": "Qwen2", "qwen3": "Qwen3"}


def _halves_from_pairs(values: npt.NDArray[np.float32], num_heads: int) -> npt.NDArray[np.float32]:
    """Reorder rows from rotation of (2i, 2i + 1) to rotation of (i, i + d / 2).

    (heads * d, K) of a matrix, (heads * d,) of a bias.
    """
    pairs = values.reshape(num_heads, len(values) // num_heads // 2, 2, -1)
    return np.ascontiguousarray(pairs.swapaxes(1, 2)).reshape(values.shape)


def _state_dict(weights: LlamaWeights, torch: Any) -> dict[str, Any]:
    shape = weights.shape
    arrays = {
        "model.embed_tokens.weight": weights.tensors["token_embd.weight"],
        "model.norm.weight": weights.tensors["output_norm.weight"],
        "lm_head.weight": weights.head,
    }
    names = _LAYER_NAMES | (_HEAD_NORMS if shape.norms_heads else {})
    for layer in range(shape.num_layers):
        for ours, theirs in names.items():
            for kind, tensor in (("weight", weights.layer(layer, ours)),
                                 ("bias", weights.bias(layer, ours))):
                if tensor is None:
                    continue
                if shape.rotates_neighbours and ours in ("attn_q", "attn_k"):
                    heads = shape.num_heads if ours == "attn_q" else shape.num_kv_heads
                    tensor = _halves_from_pairs(tensor, heads)
                arrays[f"model.layers.{layer}.{theirs}.{kind}"] = tensor
    return {name: torch.from_numpy(array) for name, array in arrays.items()}


def _class(shape: LlamaShape, kind: str, transformers: Any) -> Any:
    return getattr(transformers, f"{_FAMILIES[shape.architecture]}{kind}")


def _config(weights: LlamaWeights, tied: bool, transformers: Any) -> Any:
    shape = weights.shape
    # A Llama has either all four biases of attention or none; Qwen 2 always has three, Qwen 3 none.
    options = ({"attention_bias": weights.bias(0, "attn_q") is not None}
               if shape.architecture == "llama" else {})
    return _class(shape, "Config", transformers)(
        vocab_size=shape.vocab_size,
        hidden_size=shape.hidden_size,
        intermediate_size=shape.ffn_size,
        num_hidden_layers=shape.num_layers,
        num_attention_heads=shape.num_heads,
        num_key_value_heads=shape.num_kv_heads,
        head_dim=shape.head_dim,
        max_position_embeddings=shape.context_length,
        rms_norm_eps=shape.rms_eps,
        tie_word_embeddings=tied,
        bos_token_id=None,
        eos_token_id=None,
        attn_implementation="eager",
        **options,
    )


def build_transformers_llama(weights: LlamaWeights) -> Any:
    """Build a float32 model with exactly the weights of a Llama, Qwen 2 or Qwen 3 GGUF file.

    Parameters
    ----------
    weights
        Dequantised weights.

    Returns
    -------
    transformers.LlamaForCausalLM, Qwen2ForCausalLM or Qwen3ForCausalLM
        In evaluation mode, on the CPU.

    Raises
    ------
    UnsupportedError
        If torch or transformers is not installed.
    """
    torch, transformers = import_transformers()
    tied = "output.weight" not in weights.tensors
    # On the meta device nothing is initialised at random only to be overwritten.
    with torch.device("meta"):
        kind = _class(weights.shape, "ForCausalLM", transformers)
        model = kind(_config(weights, tied, transformers))
    model.load_state_dict(_state_dict(weights, torch), strict=True, assign=True)
    if tied:
        model.tie_weights()
    # Every kind of rope scaling is a change of these frequencies; the file's own are used, so that
    # nothing depends on how a version of transformers spells the option.
    rotary = model.model.rotary_emb
    rotary.inv_freq = torch.from_numpy(weights.shape.inverse_frequencies.astype(np.float32))
    rotary.original_inv_freq = rotary.inv_freq
    return model.eval()


class TransformersDecoder:
    """Logits of a GGUF file through ``transformers``, with its own cache inside one call only.

    Parameters
    ----------
    model
        A Llama, Qwen 2 or Qwen 3 GGUF file, the weights of such a file or of a Gemma file, or a
        model that `build_transformers_llama` or `build_transformers_gemma` made.
    """

    def __init__(self, model: str | Path | LlamaWeights | GemmaWeights | Any) -> None:
        if isinstance(model, (str, Path)):
            model = load_llama_gguf(model)
        if isinstance(model, LlamaWeights):
            model = build_transformers_llama(model)
        elif isinstance(model, GemmaWeights):
            model = build_transformers_gemma(model)
        self.model = model
        self._torch = import_transformers()[0]
        # transformers 5 renames the argument that older versions know.
        known = inspect.signature(self.model.forward).parameters
        self._cache_argument = "cache" if "cache" in known else "past_key_values"

    def logits(
        self, token_ids: Sequence[int], *, last: int | None = None,
        positions: Sequence[int] | None = None, visible: npt.NDArray[np.bool_] | None = None,
    ) -> npt.NDArray[np.float32]:
        """(T, V) float32 logits of every token of one sequence, or (last, V) of the last ones.

        `positions` (T,) and `visible` (T, T) as for
        :meth:`flarecore.reference.decoder.ReferenceDecoder.logits`, given together; layers with a
        window hide what is too far away by position as well.
        """
        ids = self._torch.tensor([list(token_ids)])
        options: dict[str, Any] = {}
        if positions is not None and visible is not None:
            options = {
                "position_ids": self._torch.tensor([list(positions)]),
                "attention_mask": self._masks(np.asarray(positions), visible)}
        with self._torch.no_grad():
            out = self.model(ids, use_cache=False, logits_to_keep=last or 0, **options)
        return np.asarray(out.logits[0].numpy())

    def _masks(self, positions: npt.NDArray[Any], visible: npt.NDArray[np.bool_]) -> Any:
        """(1, 1, T, T) what is added to scores; for Gemma one for each kind of layer."""
        def mask(seen: npt.NDArray[np.bool_]) -> Any:
            added = np.where(seen, np.float32(0), np.finfo(np.float32).min)
            return self._torch.from_numpy(added.astype(np.float32)[None, None])

        window = getattr(self.model.config, "sliding_window", None)
        if window is None:
            return mask(visible)
        is_near = positions[:, None] - positions[None, :] < window
        return {"full_attention": mask(visible), "sliding_attention": mask(visible & is_near)}

    def open(self, token_ids: Sequence[int]) -> Callable[[int | None], npt.NDArray[np.float32]]:
        """Step through a sequence: see `flarecore.reference.token_source`."""
        torch = self._torch
        pending = list(token_ids)
        cache: Any = None

        def step(token_id: int | None) -> npt.NDArray[np.float32]:
            nonlocal pending, cache
            pending += [] if token_id is None else [token_id]
            with torch.no_grad():
                ids = torch.tensor([pending])
                options = {"use_cache": True, "logits_to_keep": 1, self._cache_argument: cache}
                out = self.model(ids, **options)
            pending, cache = [], out[self._cache_argument]
            return np.asarray(out.logits[0, -1].numpy())

        return step

    def greedy(
        self, token_ids: Sequence[int], num_tokens: int
    ) -> tuple[list[int], npt.NDArray[np.float32]]:
        """Decode greedily after a prompt, past any end-of-text token.

        Returns
        -------
        token_ids : list of int
            ``num_tokens`` new tokens.
        probs : ndarray
            (num_tokens,) float32 softmax of the logits at temperature 1 of each.
        """
        step = self.open(token_ids)
        chosen: list[int] = []
        probs: list[float] = []
        for _ in range(num_tokens):
            logits = step(chosen[-1] if chosen else None)
            chosen.append(int(logits.argmax()))
            probs.append(float(confidences(logits)[chosen[-1]]))
        return chosen, np.array(probs, dtype=np.float32)
