"""The files of a sentence encoder: configuration read and checked before anything is built."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from flarecore.errors import ModelFileError, UnsupportedError
from flarecore.wording import system_reason

__all__ = ["EncoderFiles", "read_encoder_files"]

_MODULES = ("Transformer", "Pooling", "Normalize")


@dataclass(frozen=True)
class EncoderFiles:
    """What a model folder says about its encoder.

    Attributes
    ----------
    weights, tokenizer : Path
        ``model.safetensors`` and ``tokenizer.json``.
    config : dict
        Keyword arguments of the native encoder: sizes, ``layer_norm_eps`` and ``pooling``.
    max_tokens : int
        Longest text, special tokens included.
    """

    weights: Path
    tokenizer: Path
    config: dict[str, Any]
    max_tokens: int


def read_encoder_files(folder: Path) -> EncoderFiles:
    """Reads a folder in the layout of sentence-transformers, or of a plain BERT checkpoint.

    Raises
    ------
    ModelFileError
        A file or field is missing or malformed.
    UnsupportedError
        Another architecture, activation, pooling or module than flarecore runs.
    """
    for name in ("config.json", "model.safetensors", "tokenizer.json"):
        if not (folder / name).is_file():
            raise ModelFileError(
                f"{folder}: a sentence encoder is a folder with config.json, model.safetensors and "
                f"tokenizer.json; {name} is missing")
    path = folder / "config.json"
    data = _read_json(path)
    _require(path, data, "model_type", ("bert",))
    _require(path, data, "hidden_act", ("gelu",))
    _require(path, data, "position_embedding_type", ("absolute", None))
    config: dict[str, Any] = {
        ours: _integer(path, data, theirs)
        for ours, theirs in (
            ("vocab_size", "vocab_size"), ("hidden_size", "hidden_size"),
            ("num_layers", "num_hidden_layers"), ("num_heads", "num_attention_heads"),
            ("intermediate_size", "intermediate_size"),
            ("max_positions", "max_position_embeddings"), ("num_token_types", "type_vocab_size"))}
    eps = data.get("layer_norm_eps", 1e-12)
    if isinstance(eps, bool) or not isinstance(eps, (int, float)):
        raise ModelFileError(f"{path}: 'layer_norm_eps' must be a number, got {eps!r}")
    _check_modules(folder / "modules.json")
    config.update(layer_norm_eps=float(eps), pooling=_pooling(folder / "1_Pooling" / "config.json"))
    return EncoderFiles(folder / "model.safetensors", folder / "tokenizer.json", config,
                        _max_tokens(folder / "sentence_bert_config.json", config["max_positions"]))


def _read_json(path: Path, kind: type = dict) -> Any:
    try:
        data = json.loads(path.read_bytes())
    except (OSError, ValueError, RecursionError) as error:
        raise ModelFileError(f"{path}: cannot be read as JSON: {system_reason(error)}") from error
    if not isinstance(data, kind):
        raise ModelFileError(f"{path}: must hold a {kind.__name__}, got {type(data).__name__}")
    return data


def _integer(path: Path, data: Mapping[str, Any], name: str) -> int:
    value = data.get(name)
    # The native encoder knows the ranges; this only keeps the value within its integer type.
    if isinstance(value, bool) or not isinstance(value, int) or not 0 < value < 1 << 31:
        raise ModelFileError(f"{path}: {name!r} must be a positive integer, got {value!r}")
    return value


def _require(
    path: Path, data: Mapping[str, Any], name: str, supported: tuple[str | None, ...]
) -> None:
    if data.get(name) not in supported:
        raise UnsupportedError(
            f"{path}: {name!r} is {data.get(name)!r}; flarecore runs {supported[0]!r}")


def _check_modules(path: Path) -> None:
    if not path.exists():
        return
    for module in _read_json(path, list):
        kind = module.get("type") if isinstance(module, dict) else None
        if not isinstance(kind, str) or kind.rsplit(".", 1)[-1] not in _MODULES:
            raise UnsupportedError(
                f"{path}: the module {kind!r} is not supported; flarecore runs "
                f"{', '.join(_MODULES)}")


def _pooling(path: Path) -> str:
    if not path.exists():
        return "mean"
    data = _read_json(path)
    modes = [name for name, value in data.items() if name.startswith("pooling_mode_") and value]
    names = {"pooling_mode_mean_tokens": "mean", "pooling_mode_cls_token": "first"}
    if len(modes) != 1 or modes[0] not in names:
        raise UnsupportedError(
            f"{path}: pooling by {modes} is not supported; flarecore pools by one of {list(names)}")
    return names[modes[0]]


def _max_tokens(path: Path, max_positions: int) -> int:
    if not path.exists():
        return max_positions
    data = _read_json(path)
    if data.get("max_seq_length") is None:
        return max_positions
    return min(_integer(path, data, "max_seq_length"), max_positions)
