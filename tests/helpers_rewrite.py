"""Copies of model files in which something was changed."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import gguf
import numpy as np
from helpers import TinyLlama, tiny_llama_path
from safetensors.numpy import load_file, save_file

Change = Callable[[dict[str, np.ndarray]], dict[str, np.ndarray]]


def rewritten_checkpoint(source: Path, target: Path, change: Change, **config: Any) -> Path:
    """A copy of a checkpoint with its tensors through `change` and other configuration values."""
    shutil.copytree(source, target, dirs_exist_ok=True)
    save_file(change(load_file(source / "model.safetensors")), target / "model.safetensors")
    values = json.loads((source / "config.json").read_text()) | config
    (target / "config.json").write_text(json.dumps(values))
    return target


def rewritten_gguf(target: Path, spec: TinyLlama, change: Change) -> Path:
    """A file of this model with its tensors, name -> float32 values, through `change`."""
    source = gguf.GGUFReader(str(tiny_llama_path(spec)))
    writer = gguf.GGUFWriter(str(target), spec.architecture)
    for field in source.fields.values():
        if not field.name.startswith(("GGUF.", "general.architecture")):
            kinds = field.types
            writer.add_key_value(field.name, field.contents(), kinds[0],
                                 kinds[-1] if len(kinds) > 1 else None)  # fmt: skip
    tensors = {t.name: np.array(t.data).reshape(t.shape[::-1]) for t in source.tensors}
    for name, value in change(tensors).items():
        writer.add_tensor(name, value)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return target
