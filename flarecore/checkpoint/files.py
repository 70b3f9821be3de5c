"""The safetensors files of a checkpoint, and which of their tensors the decoder gets."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from flarecore import _C
from flarecore.checkpoint.json_file import read_json
from flarecore.checkpoint.shape import DecoderShape
from flarecore.errors import ModelFileError, UnsupportedError

__all__ = ["CheckpointFiles"]

SINGLE = "model.safetensors"
INDEX = "model.safetensors.index.json"
_MAX_SHARDS = 4096

# Names before "embed_tokens.weight": of a causal model, of a bare one, of Gemma 3 with images as
# transformers 5 and 4 write it.
_PREFIXES = ("model.", "", "model.language_model.", "language_model.model.")
_HEADS = ("lm_head.weight", "language_model.lm_head.weight")
# Parts that a text never reaches, and buffers that old files kept.
_OTHER_PARTS = ("vision_tower.", "model.vision_tower.", "multi_modal_projector.",
                "model.multi_modal_projector.")
_BUFFER = "rotary_emb.inv_freq"


@dataclass(frozen=True)
class CheckpointFiles:
    """Opened files and their tensors.

    Attributes
    ----------
    files : list of _C.SafetensorsFile
    paths : list of Path
        Of the files.
    place_of : mapping of str to int
        Tensor -> index of its file.
    """

    files: list[Any]
    paths: list[Path]
    place_of: Mapping[str, int]

    @classmethod
    def open(cls, directory: Path) -> CheckpointFiles:
        """Opens ``model.safetensors``, or the shards that ``model.safetensors.index.json`` names.

        Raises
        ------
        ModelFileError
            No such file, a damaged or hostile one, a tensor in two files, or one that the index
            names and its file has not.
        """
        weight_map: Mapping[str, str] = {}
        if (directory / SINGLE).exists():
            paths = [directory / SINGLE]
        elif (directory / INDEX).exists():
            weight_map = _weight_map(directory / INDEX)
            paths = [directory / name for name in sorted(set(weight_map.values()))]
        else:
            found = sorted(p.name for p in directory.glob("*.bin"))[:3]
            hint = f"; {', '.join(found)} cannot be read safely, convert it" if found else ""
            raise ModelFileError(f"{directory}: neither {SINGLE} nor {INDEX} is there{hint}")
        files: list[Any] = []
        place_of: dict[str, int] = {}
        for path in paths:
            files.append(_C.SafetensorsFile(path))
            for tensor in files[-1].tensors:
                if tensor.name in place_of:
                    raise ModelFileError(f"{path}: tensor {tensor.name!r:.120} is also in "
                                         f"{paths[place_of[tensor.name]]}")
                place_of[tensor.name] = len(files) - 1
        for name, file_name in weight_map.items():
            if name not in place_of or paths[place_of[name]].name != file_name:
                raise ModelFileError(
                    f"{directory / file_name}: tensor {name!r:.120}, which {INDEX} places there, "
                    "is missing; download the file again")
        return cls(files, paths, place_of)

    def places(self, shape: DecoderShape) -> dict[str, tuple[int, str]]:
        """Name in a GGUF file -> (index of the file, name there) for every tensor of the decoder.

        Raises
        ------
        ModelFileError
            A tensor is missing, or there is a head of its own although the model says it has none.
        UnsupportedError
            There is a tensor that the decoder has no use for.
        """
        prefix = next((p for p in _PREFIXES if f"{p}embed_tokens.weight" in self.place_of), None)
        if prefix is None:
            raise ModelFileError(f"{self.paths[0]}: tensor model.embed_tokens.weight is missing; "
                                 "this is no decoder, or the checkpoint is incomplete")
        names = {"token_embd.weight": f"{prefix}embed_tokens.weight",
                 "output_norm.weight": f"{prefix}norm.weight"}
        head = next((name for name in _HEADS if name in self.place_of), _HEADS[0])
        if not shape.tied:
            names["output.weight"] = head
        elif head in self.place_of:
            self._check_tied(head, names["token_embd.weight"])
        for layer in range(shape.native["num_layers"]):
            for ours, theirs in shape.layer_names.items():
                names[f"blk.{layer}.{ours}.weight"] = f"{prefix}layers.{layer}.{theirs}.weight"
            for ours in shape.biased:
                theirs = shape.layer_names[ours]
                names[f"blk.{layer}.{ours}.bias"] = f"{prefix}layers.{layer}.{theirs}.bias"
        for name in names.values():
            if name not in self.place_of:
                why = (", which attention_bias or model_type in config.json announces,"
                       if name.endswith(".bias") else "")
                raise ModelFileError(f"{self._file_list()}: tensor {name}{why} is missing; the "
                                     "checkpoint is incomplete or for another architecture")
        self._check_nothing_left({*names.values(), head})
        return {ours: (self.place_of[theirs], theirs) for ours, theirs in names.items()}

    def _file_list(self) -> str:
        more = f" and {len(self.paths) - 1} more" if len(self.paths) > 1 else ""
        return f"{self.paths[0]}{more}"

    def _check_tied(self, head: str, embedding: str) -> None:
        """Some files keep the tied head; then it is the embedding, byte for byte."""
        one, other = self._tensor(head), self._tensor(embedding)
        if one.dtype != other.dtype or one.shape != other.shape or bytes_differ(one, other):
            raise ModelFileError(
                f"{self.paths[self.place_of[head]]}: tensor {head} differs from {embedding}, but "
                "tie_word_embeddings is true in config.json; set it to false if both are meant")

    def _tensor(self, name: str) -> Any:
        tensors: Sequence[Any] = self.files[self.place_of[name]].tensors
        return next(tensor for tensor in tensors if tensor.name == name)

    def _check_nothing_left(self, used: set[str]) -> None:
        for name, place in self.place_of.items():
            if name in used or name.startswith(_OTHER_PARTS) or name.endswith(_BUFFER):
                continue
            why = (" (config.json does not announce this bias)" if name.endswith(".bias") else "")
            raise UnsupportedError(
                f"{self.paths[place]}: tensor {name!r:.120} is not part of the forward pass of "
                f"this architecture{why}; running without it would give wrong results")


def bytes_differ(one: Any, other: Any) -> bool:
    """Whether two tensors hold other bytes; read in parts, since an embedding may be large."""
    step = 1 << 24
    return one.size_bytes != other.size_bytes or any(
        one.data[at : at + step].tobytes() != other.data[at : at + step].tobytes()
        for at in range(0, one.size_bytes, step)
    )


def _weight_map(index: Path) -> dict[str, str]:
    """Tensor -> file of the same directory. Raises ModelFileError."""
    weight_map = read_json(index).get("weight_map")
    if not isinstance(weight_map, dict) or not weight_map:
        raise ModelFileError(f"{index}: weight_map must be an object that names files")
    for name, file_name in weight_map.items():
        if (not isinstance(file_name, str) or not file_name.endswith(".safetensors")
                or any(c in file_name for c in "/\\\0") or file_name.startswith(".")):
            raise ModelFileError(
                f"{index}: weight_map[{name!r:.80}] is {file_name!r:.80}; it must be the name of a "
                ".safetensors file in the same directory, without a path")
    count = len(set(weight_map.values()))
    if count > _MAX_SHARDS:
        raise ModelFileError(f"{index}: names {count} files; the limit is {_MAX_SHARDS}")
    return weight_map
