"""Sentence encoders with quantised weights: against numpy and float32; batches, files, errors."""

import json
import shutil

import numpy as np
import pytest
from helpers import TinyLlama, tiny_llama_path
from helpers_encoder import TINY, NumpyBert, native_config, random_bert, stored, write_safetensors
from helpers_retrieval import WordEncoder

from flarecore import _C, load_index
from flarecore.cli.main import main
from flarecore.errors import ConfigError, IndexFileError, ModelFileError
from flarecore.model_files import find_model
from flarecore.retrieval.encoder import SentenceEncoder
from flarecore.retrieval.exact import ExactRetriever
from flarecore.retrieval.hnsw import HnswRetriever
from flarecore.retrieval.index_io import read_index_file
from flarecore.retrieval.index_sections import check_encoder, encoder_header
from flarecore.retrieval.passage import Passage

SHAPE = {**TINY, "hidden_size": 64, "num_attention_heads": 4, "intermediate_size": 96}
TEXTS = ["", "a", "Ada Lovelace wrote the first program.", "word " * 300, "公司差旅政策。",
         *(f"Sentence number {i} " + "is getting longer " * i for i in range(16))]


@pytest.fixture(scope="module")
def encoder():
    return SentenceEncoder.load("minilm-l6-v2", threads=2)


@pytest.fixture(scope="module")
def quantized():
    return SentenceEncoder.load("minilm-l6-v2", threads=2, quantize="q8")


@pytest.fixture(scope="module")
def vectors(quantized):
    return quantized.encode(TEXTS)


def in_groups(x: np.ndarray) -> np.ndarray:
    return x.reshape(*x.shape[:-1], -1, 32)


def quantized_weights(weight: np.ndarray) -> np.ndarray:
    """Q8_0: float16 scale of each group, codes to nearest even."""
    groups = in_groups(weight.astype(np.float32))
    scale = (np.abs(groups).max(-1, keepdims=True) / np.float32(127)).astype(np.float16)
    scale = scale.astype(np.float32)
    codes = np.clip(np.rint(groups / np.where(scale == 0, 1, scale)), -127, 127)
    return (codes * scale).reshape(weight.shape)


class QuantizedBert(NumpyBert):
    """Products of weights and activations in 8 bits per group of 32."""

    def _linear(self, name, x):
        groups = in_groups(x)
        low = np.minimum(groups.min(-1, keepdims=True), 0)
        scale = (np.maximum(groups.max(-1, keepdims=True), 0) - low) / 253
        x = (np.rint(groups / np.where(scale == 0, 1, scale)) * scale).reshape(x.shape)
        return super()._linear(name, x)


def tiny(tmp_path, seed=3, change=None):
    """Path, weights."""
    weights = random_bert(SHAPE, seed=seed)
    if change is not None:
        change(weights)
    tensors = {name: stored(values, "F32")[0] for name, values in weights.items()}
    return write_safetensors(tmp_path / f"m{seed}", tensors), weights


def test_native_equals_numpy(tmp_path):
    path, weights = tiny(tmp_path)
    native = _C.Encoder(path, **native_config(SHAPE, quantize="q8", num_threads=2))
    is_matrix = {n: n.endswith(".weight") and ".layer." in n and v.ndim == 2
                 for n, v in weights.items()}
    assert sum(is_matrix.values()) == 12
    twin = QuantizedBert({n: quantized_weights(v) if is_matrix[n] else v
                          for n, v in weights.items()}, SHAPE["num_attention_heads"])
    exact = NumpyBert(weights, SHAPE["num_attention_heads"])
    rng = np.random.default_rng(1)
    texts = [rng.integers(50, size=n).tolist() for n in (1, 2, 8, 9, 31, 32, 33, 64, 80, 3)]
    got = native.encode(np.concatenate(texts).astype(np.int32), [len(t) for t in texts])
    near = [np.abs(v - twin.encode(ids)).max() for v, ids in zip(got, texts, strict=True)]
    far = [np.abs(v - exact.encode(ids)).max() for v, ids in zip(got, texts, strict=True)]
    # A code that falls to the other side of a half moves a vector by some 1e-3.
    assert max(near) < 4e-3 and np.median(near) < 0.2 * np.median(far)


def test_vectors_are_near_those_of_float32(encoder, quantized, vectors):
    cosines = (vectors * encoder.encode(TEXTS)).sum(axis=1)
    assert cosines.min() > 0.999 and not np.array_equal(vectors, encoder.encode(TEXTS))
    assert np.allclose(np.linalg.norm(vectors, axis=1), 1, atol=1e-6)
    coarse = SentenceEncoder.load(threads=2, quantize="q4").encode(TEXTS)
    assert 0.9 < (coarse * encoder.encode(TEXTS)).sum(axis=1).min() < cosines.min()


def test_same_bits_in_every_batch_order_and_thread_count(quantized, vectors):
    for text, vector in zip(TEXTS, vectors, strict=True):
        assert np.array_equal(quantized.encode([text])[0], vector)
    order = np.random.default_rng(0).permutation(len(TEXTS))
    assert np.array_equal(quantized.encode([TEXTS[i] for i in order]), vectors[order])
    for threads in (1, 3):
        other = SentenceEncoder.load(threads=threads, quantize="q8")
        assert np.array_equal(other.encode(TEXTS), vectors)


def test_what_quantising_changed(encoder, quantized):
    assert encoder.quantization is None and encoder.quantize is None
    assert "quantize='q8'" in repr(quantized) and "quantize" not in repr(encoder)
    errors = quantized.quantization
    assert errors.quantize == "q8" and 0.001 < errors.relative_rms_error < 0.01
    assert [(kind.kind, kind.source, kind.format) for kind in errors.kinds] == [
        (name, "F32", "q8") for name in ("attn_qkv", "attn_output", "ffn_up", "ffn_down")]
    assert sum(kind.num_values for kind in errors.kinds) == 6 * 384 * (4 * 384 + 2 * 1536)


def test_matrices_with_other_rows_stay_float32(tmp_path):
    changed = {**SHAPE, "intermediate_size": 70}
    tensors = {n: stored(v, "F32")[0] for n, v in random_bert(changed, seed=4).items()}
    native = _C.Encoder(write_safetensors(tmp_path / "m", tensors),
                        **native_config(changed, quantize="q8"))
    formats = {t[0].split(".")[2]: t[2] for t in native.quantization()}
    assert formats == {"attn_qkv": "q8", "attn_output": "q8", "ffn_up": "q8", "ffn_down": "none"}
    assert np.isfinite(native.encode([1, 2, 3], [3])).all()


def test_an_index_finds_its_encoder_and_refuses_another(encoder, quantized, tmp_path):
    assert quantized.fingerprint != encoder.fingerprint
    passages = [Passage("ada", "She wrote an algorithm for the Analytical Engine."),
                Passage("soup", "Peas, carrots and an onion, cooked for an hour.")]
    ExactRetriever.build(passages, quantized).save(tmp_path / "i")
    loaded = ExactRetriever.load(tmp_path / "i")
    assert loaded.encoder.quantize == "q8"
    assert loaded.search(["the first programmer"], 1)[0][0].id == "ada"
    with pytest.raises(IndexFileError, match=r"quantised as q8, .*opened with .*not quantised, .*"
                       "leave it out"):
        ExactRetriever.load(tmp_path / "i", encoder)
    for given in ("minilm-l6-v2", find_model("minilm-l6-v2")):  # loaded as the index says
        assert ExactRetriever.load(tmp_path / "i", given).encoder.quantize == "q8"
    assert "quantize" not in encoder_header(encoder)  # files of before and after are the same


def test_what_another_class_calls_quantize_is_its_own(tmp_path):
    encoder = WordEncoder()
    encoder.quantize = "int4"
    ExactRetriever.build([Passage("a", "one two")], encoder).save(tmp_path / "i")
    assert ExactRetriever.load(tmp_path / "i", encoder).search(["one"], 1)[0][0].id == "a"


def test_the_command_makes_such_an_index(tmp_path, capsys):
    (tmp_path / "d.md").write_text("Peas, carrots and an onion, cooked for an hour.")
    file = tmp_path / "x.index"
    make = ["index", str(tmp_path / "d.md"), "-o", str(file), "--quantize", "q8"]
    assert main(make) == 0
    assert "384 dimensions (q8 weights, relative RMS error 0.5" in capsys.readouterr().out
    assert load_index(file).encoder.quantize == "q8"
    assert main([*make, "--retriever", "bm25"]) == 2
    assert "--quantize has no meaning with --retriever bm25" in capsys.readouterr().err


def test_doctor_says_what_it_changes(capsys, tmp_path):
    assert main(["doctor", "--model", "minilm-l6-v2", "--quantize", "q8"]) == 0
    out = capsys.readouterr().out
    assert "384 dimensions, texts of up to 256 tokens" in out
    assert "attn_qkv" in out and "ffn_down" in out and "relative RMS error" in out
    (tmp_path / "config.json").write_text('{"model_type": "bert"}')
    assert main(["doctor", "--model", str(tmp_path)]) == 1
    assert "model.safetensors is missing" in " ".join(capsys.readouterr().out.split())


def test_an_index_of_a_folder_of_ones_own(tmp_path, capsys):
    (tmp_path / "d.md").write_text("Peas, carrots and an onion, cooked for an hour.")
    copy, file = tmp_path / "copy", str(tmp_path / "x.index")
    shutil.copytree(find_model("minilm-l6-v2"), copy)
    assert main(["index", str(tmp_path / "d.md"), "-o", file, "--quantize", "q8",
                 "--encoder", str(copy)]) == 0
    model = str(tiny_llama_path(TinyLlama(context_length=4096)))
    ask = ["generate", "--model", model, "--max-sentences", "1", "soup?"]
    assert main([*ask, "--index", file]) == 1
    assert "'copy', which is no known model; pass encoder=" in capsys.readouterr().err
    assert main([*ask, "--index", file, "--encoder", str(copy)]) == 0
    assert main([*ask, "--no-retrieval", "--encoder", str(copy)]) == 2
    assert "--encoder goes with --index" in capsys.readouterr().err


def test_what_is_no_encoder_is_refused(quantized, tmp_path):
    ExactRetriever.build([Passage("a", "b")], quantized).save(tmp_path / "i")
    for make in (lambda e: HnswRetriever.build([], e), lambda e: ExactRetriever(e),
                 lambda e: load_index(tmp_path / "i", e)):
        with pytest.raises(ConfigError, match=r"must have name, dim, fingerprint and encode.*int"):
            make(5)
    with pytest.raises(ConfigError, match=r"encoder must have .*str"):
        HnswRetriever.build([], "minilm-l6-v2")


@pytest.mark.parametrize("value", ["q5", "", 8, ["q8"], {"q8": 1}])
def test_an_index_that_names_another_format_is_refused(quantized, value, tmp_path):
    ExactRetriever.build([Passage("a", "b")], quantized).save(tmp_path / "i")
    file = read_index_file(tmp_path / "i")
    file.header["encoder"]["quantize"] = value
    with pytest.raises(IndexFileError, match=r"quantised as .*known are q4, q8"):
        check_encoder(file, None)


def test_unusable_options_and_weights(tmp_path):
    for quantize in ("q5", "none", True, 8):
        with pytest.raises(ConfigError, match="quantize must be None or one of q4, q8"):
            SentenceEncoder.load(quantize=quantize)
    folder = tmp_path / "odd"
    folder.mkdir()
    for file in find_model("minilm-l6-v2").glob("*.json"):
        shutil.copy(file, folder)
    shape = {**SHAPE, "hidden_size": 40, "num_attention_heads": 5, "intermediate_size": 70,
             "vocab_size": 30522, "max_position_embeddings": 512}
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**config, **shape}))
    write_safetensors(folder / "model.safetensors",
                      {n: stored(v, "F32")[0] for n, v in random_bert(shape, seed=5).items()})
    assert SentenceEncoder.load(folder, threads=1).dim == 40
    with pytest.raises(ConfigError, match="no matrix of odd has rows of a multiple of 32"):
        SentenceEncoder.load(folder, threads=1, quantize="q8")

    def spoil(weights):
        weights["encoder.layer.1.output.dense.weight"][5, 7] = np.inf

    path, _ = tiny(tmp_path, change=spoil)
    with pytest.raises(ModelFileError, match=r"layer\.1\.output\.dense: row 5 .*not finite"):
        _C.Encoder(path, **native_config(SHAPE, quantize="q8"))

    def spoil_value(weights):
        weights["encoder.layer.0.attention.self.value.weight"][1, 0] = np.nan

    path, _ = tiny(tmp_path, seed=6, change=spoil_value)
    # Three tensors, one below the other: rows are counted through them.
    with pytest.raises(ModelFileError, match=r"self\.query and .*key and .*value: row 129 holds"):
        _C.Encoder(path, **native_config(SHAPE, quantize="q8"))
    with pytest.raises(ConfigError, match='"none", "q4" or "q8"'):
        _C.Encoder(path, **native_config(SHAPE, quantize="q9"))
