"""A small random BERT on disk, and the same forward pass in numpy, in double."""

from __future__ import annotations

import json
import math
import struct
from pathlib import Path

import numpy as np

TINY = {"vocab_size": 50, "hidden_size": 48, "num_hidden_layers": 2, "num_attention_heads": 3,
        "intermediate_size": 70, "max_position_embeddings": 80, "type_vocab_size": 2}


def write_safetensors(path: Path, tensors: dict[str, tuple[str, tuple[int, ...], bytes]],
                      metadata: dict[str, str] | None = None) -> Path:
    """A file of (dtype, shape, bytes) per name, in the order given."""
    header: dict[str, object] = {"__metadata__": metadata} if metadata is not None else {}
    offset = 0
    for name, (dtype, shape, data) in tensors.items():
        header[name] = {"dtype": dtype, "shape": list(shape),
                        "data_offsets": [offset, offset + len(data)]}
        offset += len(data)
    encoded = json.dumps(header).encode()
    path.write_bytes(struct.pack("<Q", len(encoded)) + encoded
                     + b"".join(data for _, _, data in tensors.values()))
    return path


def stored(values: np.ndarray, dtype: str) -> tuple[tuple[str, tuple[int, ...], bytes], np.ndarray]:
    """A tensor as the file holds it, and the float32 values that are then in it."""
    values = values.astype(np.float32)
    if dtype == "F32":
        return (dtype, values.shape, values.tobytes()), values
    if dtype == "F16":
        half = values.astype(np.float16)
        return (dtype, values.shape, half.tobytes()), half.astype(np.float32)
    upper = (values.view(np.uint32) >> 16).astype(np.uint16)
    kept = (upper.astype(np.uint32) << 16).view(np.float32)
    return ("BF16", values.shape, upper.tobytes()), kept


def random_bert(config: dict[str, int], seed: int) -> dict[str, np.ndarray]:
    """Weights by tensor name, large enough that attention and GELU are far from linear."""
    rng = np.random.default_rng(seed)
    hidden, inner = config["hidden_size"], config["intermediate_size"]
    weights: dict[str, np.ndarray] = {}

    def add(name: str, *shape: int, mean: float = 0.0, scale: float = 1.0) -> None:
        weights[name] = (mean + scale * rng.standard_normal(shape)).astype(np.float32)

    def add_norm(name: str) -> None:
        add(f"{name}.weight", hidden, mean=1.0, scale=0.2)
        add(f"{name}.bias", hidden, scale=0.2)

    def add_linear(name: str, rows: int, cols: int) -> None:
        add(f"{name}.weight", rows, cols, scale=2.0 / math.sqrt(cols))
        add(f"{name}.bias", rows, scale=0.3)

    add("embeddings.word_embeddings.weight", config["vocab_size"], hidden)
    add("embeddings.position_embeddings.weight", config["max_position_embeddings"], hidden)
    add("embeddings.token_type_embeddings.weight", config["type_vocab_size"], hidden)
    add_norm("embeddings.LayerNorm")
    for i in range(config["num_hidden_layers"]):
        layer = f"encoder.layer.{i}."
        for part in ("query", "key", "value"):
            add_linear(f"{layer}attention.self.{part}", hidden, hidden)
        add_linear(f"{layer}attention.output.dense", hidden, hidden)
        add_norm(f"{layer}attention.output.LayerNorm")
        add_linear(f"{layer}intermediate.dense", inner, hidden)
        add_linear(f"{layer}output.dense", hidden, inner)
        add_norm(f"{layer}output.LayerNorm")
    return weights


def native_config(config: dict[str, int], **others: object) -> dict[str, object]:
    """Keyword arguments of the native encoder."""
    return {"vocab_size": config["vocab_size"], "hidden_size": config["hidden_size"],
            "num_layers": config["num_hidden_layers"],
            "num_heads": config["num_attention_heads"],
            "intermediate_size": config["intermediate_size"],
            "max_positions": config["max_position_embeddings"],
            "num_token_types": config["type_vocab_size"], "layer_norm_eps": 1e-12,
            "pooling": "mean", "num_threads": 1, **others}


class NumpyBert:
    """The published forward pass, one text at a time."""

    def __init__(self, weights: dict[str, np.ndarray], num_heads: int):
        self.weights = {name: value.astype(np.float64) for name, value in weights.items()}
        self.num_heads = num_heads
        self.num_layers = 1 + max(int(n.split(".")[2]) for n in weights if ".layer." in n)

    def encode(self, ids: list[int], pooling: str = "mean") -> np.ndarray:
        w = self.weights
        x = (w["embeddings.word_embeddings.weight"][ids]
             + w["embeddings.position_embeddings.weight"][: len(ids)]
             + w["embeddings.token_type_embeddings.weight"][0])
        x = self._norm("embeddings.LayerNorm", x)
        for i in range(self.num_layers):
            layer = f"encoder.layer.{i}."
            update = self._linear(f"{layer}attention.output.dense", self._attend(layer, x))
            x = self._norm(f"{layer}attention.output.LayerNorm", x + update)
            inner = self._linear(f"{layer}intermediate.dense", x)
            inner = inner * 0.5 * (1 + np.vectorize(math.erf)(inner / math.sqrt(2)))
            x = self._norm(f"{layer}output.LayerNorm",
                           x + self._linear(f"{layer}output.dense", inner))
        pooled = x[0] if pooling == "first" else x.mean(axis=0)
        return pooled / np.linalg.norm(pooled)

    def _attend(self, layer: str, x: np.ndarray) -> np.ndarray:
        q, k, v = (self._linear(f"{layer}attention.self.{part}", x)
                   .reshape(len(x), self.num_heads, -1).transpose(1, 0, 2)
                   for part in ("query", "key", "value"))
        scores = q @ k.transpose(0, 2, 1) / math.sqrt(q.shape[2])
        p = np.exp(scores - scores.max(axis=2, keepdims=True))
        return ((p / p.sum(axis=2, keepdims=True)) @ v).transpose(1, 0, 2).reshape(len(x), -1)

    def _linear(self, name: str, x: np.ndarray) -> np.ndarray:
        return x @ self.weights[f"{name}.weight"].T + self.weights[f"{name}.bias"]

    def _norm(self, name: str, x: np.ndarray) -> np.ndarray:
        centred = x - x.mean(axis=1, keepdims=True)
        deviation = np.sqrt((centred**2).mean(axis=1, keepdims=True) + 1e-12)
        return centred / deviation * self.weights[f"{name}.weight"] + self.weights[f"{name}.bias"]
