"""Shared by the tests: tolerances, statistics, cached models and tiny random Llama files."""

from __future__ import annotations

import contextlib
import functools
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import gguf
import numpy as np

from flarecore.sampling import SamplingParams

# |difference| of a probability between two float32 implementations of one model (guarantee 2).
PROB_TOLERANCE = 1e-4

# Options of a decode that only max_tokens or the context ends.
DECODE: dict[str, Any] = {
    "sampling": SamplingParams(temperature=1.0, seed=1),
    "until": "eos",
    "ignore_eos": True,
}


def chi_square_z(counts: np.ndarray, probs: np.ndarray) -> float:
    """Standard score of Pearson's statistic (Wilson and Hilferty 1931); above 4 is a rejection.

    counts (n,) observed, probs (n,) exact and summing to 1. Cells with fewer than five expected
    counts are joined, and a count where the probability is 0 is an error.
    """
    counts, probs = np.asarray(counts, float), np.asarray(probs, float)
    assert counts[probs == 0].sum() == 0, "drawn although its probability is 0"
    expected = probs * counts.sum()
    rare = expected < 5
    if rare.any():
        counts = np.append(counts[~rare], counts[rare].sum())
        expected = np.append(expected[~rare], expected[rare].sum())
        counts, expected = counts[expected > 0], expected[expected > 0]
    freedom = len(counts) - 1
    assert freedom >= 1, "one cell tests nothing"
    statistic = float(((counts - expected) ** 2 / expected).sum())
    spread = 2.0 / (9.0 * freedom)
    return ((statistic / freedom) ** (1 / 3) - (1 - spread)) / spread**0.5


@dataclass(frozen=True)
class TinyLlama:
    """A random Llama model, or one of its kin: sizes, and how its file stores it."""

    architecture: str = "llama"  # or "qwen2", which has three biases; "qwen3", with head norms
    attention_bias: bool = False  # queries, keys, values and output have one
    num_layers: int = 2
    num_heads: int = 4
    num_kv_heads: int = 2
    head_dim: int = 32
    hidden_size: int = 64
    ffn_size: int = 96
    vocab_size: int = 271
    context_length: int = 512
    tied: bool = False
    rope_theta: float = 10000.0
    linear_factor: float | None = None
    rope_factors: tuple[float, ...] | None = None  # (head_dim / 2,) as in Llama 3.1 files
    tensor_type: str = "F32"
    seed: int = 1


def _byte_alphabet() -> list[str]:
    """Printable stand-ins of the 256 bytes in GPT-2's byte-level vocabulary."""
    printable = {*range(33, 127), *range(161, 173), *range(174, 256)}
    others = iter(range(256, 512))
    return [chr(byte) if byte in printable else chr(next(others)) for byte in range(256)]


def _vocabulary(size: int) -> tuple[list[str], list[int], list[str]]:
    """Tokens, their GGUF types and merges: bytes, pairs of characters, three special tokens."""
    alphabet = _byte_alphabet()
    letters = "etaoinshrdlucmfwypvbgkjqxz"
    space, newline = alphabet[ord(" ")], alphabet[ord("\n")]
    pairs = [(space, "A"), (".", space), (newline, newline), (".", '"')]
    pairs += [(first, second) for first in letters for second in letters]
    pairs = pairs[: size - len(alphabet) - 3]
    tokens = [*alphabet, *(a + b for a, b in pairs), "<|endoftext|>", "<|im_start|>", "<|im_end|>"]
    assert len(tokens) == size, f"a tiny vocabulary has 259 to 935 tokens, got {size}"
    types = [1] * (size - 3) + [3] * 3
    return tokens, types, [f"{a} {b}" for a, b in pairs]


def _tiny_tensors(spec: TinyLlama) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(spec.seed)

    def matrix(rows: int, columns: int, scale: float = 1.0) -> np.ndarray:
        return (rng.standard_normal((rows, columns)) * scale / columns**0.5).astype(np.float32)

    def norm() -> np.ndarray:
        return rng.uniform(0.7, 1.3, spec.hidden_size).astype(np.float32)

    hidden, kv_size = spec.hidden_size, spec.num_kv_heads * spec.head_dim
    tensors = {"token_embd.weight": matrix(spec.vocab_size, hidden, 3.0)}
    for layer in range(spec.num_layers):
        tensors |= {
            f"blk.{layer}.{name}.weight": value
            for name, value in (
                ("attn_norm", norm()),
                # Twice the usual size: attention that looks at something, not at everything.
                ("attn_q", matrix(spec.num_heads * spec.head_dim, hidden, 2.0)),
                ("attn_k", matrix(kv_size, hidden)),
                ("attn_v", matrix(kv_size, hidden)),
                # Layers outweigh the embedding: a tied head would name the last token for ever.
                ("attn_output", matrix(hidden, spec.num_heads * spec.head_dim, 3.0)),
                ("ffn_norm", norm()),
                ("ffn_gate", matrix(spec.ffn_size, hidden)),
                ("ffn_up", matrix(spec.ffn_size, hidden)),
                ("ffn_down", matrix(hidden, spec.ffn_size, 3.0)),
            )
        }
    tensors["output_norm.weight"] = norm()
    if not spec.tied:
        tensors["output.weight"] = matrix(spec.vocab_size, hidden, 3.0)
    # Drawn last, so that a model without them has the same weights.
    biased = {"attn_q": spec.num_heads * spec.head_dim, "attn_k": kv_size, "attn_v": kv_size}
    if spec.attention_bias:
        biased["attn_output"] = hidden
    elif spec.architecture != "qwen2":
        biased = {}
    for layer in range(spec.num_layers):
        for name, size in biased.items():
            values = rng.standard_normal(size) * 0.5
            tensors[f"blk.{layer}.{name}.bias"] = values.astype(np.float32)
    if spec.architecture == "qwen3":
        for layer in range(spec.num_layers):
            for name, scale in (("attn_q_norm", 2.0), ("attn_k_norm", 1.0)):
                values = rng.uniform(0.7, 1.3, spec.head_dim) * scale
                tensors[f"blk.{layer}.{name}.weight"] = values.astype(np.float32)
    if spec.rope_factors is not None:
        tensors["rope_freqs.weight"] = np.array(spec.rope_factors, dtype=np.float32)
    return tensors


# For the types that gguf reads but does not write: bytes of a block, where its float16 scales lie,
# and their ratio to the first, which puts the mean of random codes near 0.
K_QUANTS = {
    "Q4_K": (144, {0: 1.0, 2: 7.5}),
    "Q5_K": (176, {0: 1.0, 2: 15.5}),
    "Q6_K": (210, {208: 1.0}),
}


def _random_blocks(value: np.ndarray, name: str, seed: int) -> np.ndarray:
    """Rows of random valid blocks, scaled to the spread of `value` (rows, a multiple of 256)."""
    rows, columns = value.shape
    size, scales = K_QUANTS[name]
    rng = np.random.default_rng([seed, rows, columns])
    blocks = rng.integers(0, 256, (rows, columns // 256, size), np.uint8)

    def with_scale(scale: float) -> np.ndarray:
        for begin, ratio in scales.items():
            blocks[..., begin : begin + 2] = np.array([scale * ratio], np.float16).view(np.uint8)
        return blocks.reshape(rows, -1)

    unit = gguf.quants.dequantize(with_scale(1.0), gguf.GGMLQuantizationType[name])
    return with_scale(float(value.std() / unit.std()))


def add_shape(writer: gguf.GGUFWriter, spec: Any) -> None:
    """Sizes that every architecture has."""
    writer.add_block_count(spec.num_layers)
    writer.add_context_length(spec.context_length)
    writer.add_embedding_length(spec.hidden_size)
    writer.add_feed_forward_length(spec.ffn_size)
    writer.add_head_count(spec.num_heads)
    writer.add_head_count_kv(spec.num_kv_heads)
    writer.add_key_length(spec.head_dim)
    writer.add_value_length(spec.head_dim)


def write_tiny_llama(path: Path, spec: TinyLlama) -> None:
    """Write the model as a GGUF file; matrices in the type asked for, vectors in float32."""
    writer = gguf.GGUFWriter(str(path), spec.architecture)
    add_shape(writer, spec)
    writer.add_rope_dimension_count(spec.head_dim)
    writer.add_rope_freq_base(spec.rope_theta)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_vocab_size(spec.vocab_size)
    if spec.linear_factor is not None:
        writer.add_rope_scaling_type(gguf.RopeScalingType.LINEAR)
        writer.add_rope_scaling_factor(spec.linear_factor)
    tokens, types, merges = _vocabulary(spec.vocab_size)
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("smollm")
    writer.add_token_list(tokens)
    writer.add_token_types(types)
    writer.add_token_merges(merges)
    writer.add_bos_token_id(spec.vocab_size - 2)
    writer.add_eos_token_id(spec.vocab_size - 1)
    writer.add_add_bos_token(False)
    kind = gguf.GGMLQuantizationType[spec.tensor_type]
    for name, value in _tiny_tensors(spec).items():
        if value.ndim == 1:
            writer.add_tensor(name, value)
        elif spec.tensor_type in K_QUANTS:
            blocks = _random_blocks(value, spec.tensor_type, len(name) + spec.seed)
            writer.add_tensor(name, blocks, raw_dtype=kind)
        else:
            writer.add_tensor(name, gguf.quants.quantize(value, kind), raw_dtype=kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


@functools.cache
def _temporary_folder() -> tempfile.TemporaryDirectory[str]:
    return tempfile.TemporaryDirectory(prefix="flarecore-tests-")


def model_folder() -> Path:
    """Where the models of a test run are written; it goes with the process."""
    return Path(_temporary_folder().name)


@functools.cache
def tiny_llama_path(spec: TinyLlama = TinyLlama()) -> Path:
    """A file of this model, written once in a test run."""
    path = model_folder() / f"tiny-{tiny_llama_path.cache_info().misses}.gguf"
    write_tiny_llama(path, spec)
    return path


@functools.cache
def smollm2_path() -> Path:
    """The real model of the tests, from its installed package."""
    from flarecore.model_files import find_model

    return Path(find_model("smollm2-135m"))


@functools.cache
def smollm2_weights() -> Any:
    """SmolLM2 dequantised by the reference reader."""
    from flarecore.reference.gguf_weights import load_llama_gguf

    return load_llama_gguf(smollm2_path())


def transformers_decoder(weights: Any) -> Any:
    """A model in transformers with exactly these weights."""
    import torch

    from flarecore.reference.transformers_backend import TransformersDecoder

    # More threads wait for each other when the machine is busy, and gain little at these sizes.
    torch.set_num_threads(1)
    return TransformersDecoder(weights)


@functools.cache
def smollm2_transformers() -> Any:
    """SmolLM2 in transformers, built once in a test run."""
    return transformers_decoder(smollm2_weights())


def open_engine(
    source: TinyLlama | Path, *, compute: str = "float32", threads: int = 1, **options: Any
) -> Any:
    """An engine of its own over a tiny model or a file."""
    from flarecore.engine import Engine
    from flarecore.model import Model

    path = tiny_llama_path(source) if isinstance(source, TinyLlama) else source
    return Engine(Model.load(str(path), threads=threads), compute=compute, **options)


@functools.cache
def smollm2_engine(compute: str = "float32", threads: int = 2) -> Any:
    """SmolLM2 loaded once in a test run."""
    return open_engine(smollm2_path(), compute=compute, threads=threads)


def random_ids(num_tokens: int, vocab_size: int = 271, seed: int = 0) -> list[int]:
    """Token ids without the special tokens at the end of a tiny vocabulary."""
    return np.random.default_rng(seed).integers(0, vocab_size - 3, num_tokens).tolist()


def result_bits(decoded: Any) -> tuple[tuple[int, ...], bytes]:
    """What must be equal: ids and the bits of their confidences."""
    return decoded.token_ids, decoded.probs.tobytes()


def state(sequence: Any) -> tuple[list[int], Any]:
    """Everything a later operation can see of a sequence."""
    with contextlib.closing(sequence.fork()) as fork:
        return sequence.token_ids, result_bits(fork.decode(6, **DECODE))
