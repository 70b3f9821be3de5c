"""The sentence encoder: against transformers and numpy; batches and threads; errors."""

import json
import os
import shutil
import subprocess
import sys
import threading
import warnings

import numpy as np
import pytest
from helpers_encoder import (
    TINY,
    NumpyBert,
    native_config,
    random_bert,
    stored,
    write_safetensors,
)

from flarecore import _C
from flarecore.errors import ConfigError, ModelFileError, RetrievalWarning, UnsupportedError
from flarecore.model_files import find_model
from flarecore.retrieval.encoder import SentenceEncoder
from flarecore.retrieval.exact import ExactRetriever
from flarecore.retrieval.hnsw import HnswRetriever
from flarecore.retrieval.passage import Passage, TextEncoder

TEXTS = [
    "Ada Lovelace wrote the first program.", "", " ", "a", "word " * 600, "x" * 300,
    "公司差旅政策：超过三千元须经理批准。", "emoji 🎉😀 and e\u0301 ﬁ", "J. R. R. Tolkien, 1937!?",
    "tabs\tand\nnewlines\x00\x07", "[CLS] [MASK] [SEP] are words of the tokenizer",
    *(f"Sentence number {i} " + "is getting longer " * i for i in range(12)),
]


@pytest.fixture(scope="module")
def encoder():
    return SentenceEncoder.load("minilm-l6-v2", threads=2)


@pytest.fixture(scope="module")
def vectors(encoder):
    return encoder.encode(TEXTS)


def test_unknown_words_are_counted_and_told_of(encoder):
    chinese = "公司差旅政策：超过三千元须经理批准。"
    assert encoder.unknown_share(["Ada Lovelace wrote it.", "", "[SEP]"]) == 0
    assert encoder.unknown_share([]) == 0
    tokens = encoder._tokenizer.encode(chinese, add_special_tokens=False).tokens
    assert encoder.unknown_share([chinese]) == tokens.count("[UNK]") / len(tokens) > 0.5
    for build in (ExactRetriever.build, HnswRetriever.build):
        with pytest.warns(RetrievalWarning, match=r"does not know \d\d% of the words"):
            assert len(build([Passage("a", chinese)], encoder)) == 1
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            build([Passage("a", "Ada Lovelace wrote it. " * 9 + chinese)], encoder)


def test_equals_transformers(encoder, vectors):
    torch = pytest.importorskip("torch", reason="compares with transformers, which needs torch")
    transformers = pytest.importorskip("transformers", reason="compares with transformers")
    folder = find_model("minilm-l6-v2")
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
    model = transformers.BertModel.from_pretrained(folder).eval()
    for text, vector in zip(TEXTS, vectors, strict=True):
        batch = tokenizer(text, truncation=True, max_length=256, return_tensors="pt")
        with torch.no_grad():
            hidden = model(**batch).last_hidden_state[0].mean(dim=0).double().numpy()
        expected = hidden / np.linalg.norm(hidden)
        assert expected @ vector >= 0.999999
        assert np.abs(expected - vector).max() < 1e-5
    assert encoder.max_tokens == 256 and encoder.dim == 384


def test_vectors_have_length_one_and_mean_something(encoder, vectors):
    assert vectors.shape == (len(TEXTS), 384) and vectors.dtype == np.float32
    assert np.allclose(np.linalg.norm(vectors, axis=1), 1, atol=1e-6)
    near, far = encoder.encode(["Who wrote the first computer program?", "I like pea soup."])
    assert near @ vectors[0] > 0.5 > far @ vectors[0] + 0.3


def test_same_bits_in_every_batch_order_and_thread_count(encoder, vectors):
    for text, vector in zip(TEXTS, vectors, strict=True):
        assert np.array_equal(encoder.encode([text])[0], vector)
    order = np.random.default_rng(0).permutation(len(TEXTS))
    assert np.array_equal(encoder.encode([TEXTS[i] for i in order]), vectors[order])
    for threads in (1, 3, 5):
        other = SentenceEncoder.load(threads=threads)
        assert other.threads == threads
        assert np.array_equal(other.encode(TEXTS), vectors)


def test_text_beyond_the_limit_is_left_out(encoder):
    start = "word " * 254  # and two special tokens
    assert np.array_equal(*encoder.encode([start + "one end", start + "another"]))
    assert not np.array_equal(*encoder.encode([start, "word " * 253]))


def test_half_surrogates_are_replaced(encoder):
    assert np.array_equal(*encoder.encode(["a \ud800 b", "a \ufffd b"]))


@pytest.mark.parametrize("num_texts", [2, 256, 257, 515])
def test_text_without_tokens_is_a_zero_row(num_texts, encoder, monkeypatch):
    # As of a tokenizer that adds no [CLS].
    token_ids = encoder._token_ids
    monkeypatch.setattr(encoder, "_token_ids", lambda text: token_ids(text) if text else [])
    texts = ["" if i % 4 == 1 else f"w{i % 3}" for i in range(num_texts)]
    known = {text: encoder.encode([text])[0] for text in set(texts)}
    assert not known[""].any() and known["w0"].any()
    assert np.array_equal(encoder.encode(texts), [known[text] for text in texts])


def test_calls_from_several_threads(encoder, vectors):
    results = {}

    def work(number):
        results[number] = encoder.encode(TEXTS[number::3])

    threads = [threading.Thread(target=work, args=(n,)) for n in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for number in range(3):
        assert np.array_equal(results[number], vectors[number::3])


def test_arguments(encoder):
    assert encoder.encode([]).shape == (0, 384)
    assert isinstance(encoder, TextEncoder)
    for texts, message in (("one", "list of strings"), ([b"x"], "text 0.*bytes"),
                           (["a", None], "text 1.*NoneType")):
        with pytest.raises(ConfigError, match=message):
            encoder.encode(texts)
    for threads in (0, True, 1.5, 1025):
        with pytest.raises(ConfigError, match="threads"):
            SentenceEncoder.load(threads=threads)
    with pytest.raises(ModelFileError, match="minilm-l6-v2"):
        SentenceEncoder.load("no-such-encoder")


def test_index_over_the_real_encoder(encoder, tmp_path):
    passages = [
        Passage("ada", "She wrote an algorithm for the Analytical Engine.", "Ada Lovelace"),
        Passage("soup", "Peas, carrots and an onion, cooked for an hour."),
        Passage("visa", "Travel abroad must be approved a week before departure."),
    ]
    HnswRetriever.build(passages, encoder).save(tmp_path / "i")
    loaded = HnswRetriever.load(tmp_path / "i")  # finds the encoder by its stored name
    found = loaded.search(["the first programmer", "who signs off on my trip?"], 1)
    assert [p[0].id for p in found] == ["ada", "visa"]


def test_fingerprint_tells_models_apart(encoder, tmp_path):
    assert SentenceEncoder.load(threads=1).fingerprint == encoder.fingerprint
    folder = tmp_path / "copy"
    shutil.copytree(find_model("minilm-l6-v2"), folder)
    copy = SentenceEncoder.load(folder, threads=1)
    assert (copy.name, copy.fingerprint) == ("copy", encoder.fingerprint)
    with open(folder / "model.safetensors", "r+b") as file:
        file.seek(-4, 2)
        file.write(b"\0\0\0\0")
    assert SentenceEncoder.load(folder, threads=1).fingerprint != encoder.fingerprint


@pytest.mark.parametrize(("dtype", "prefix", "pooling", "changes"), [
    ("F32", "", "mean", {}),
    ("F32", "bert.", "first", {"num_attention_heads": 1, "hidden_size": 40}),
    ("F16", "", "mean", {"num_attention_heads": 2, "hidden_size": 16, "intermediate_size": 1}),
    ("BF16", "", "mean", {"num_attention_heads": 6, "num_hidden_layers": 1}),
])
def test_native_equals_numpy(dtype, prefix, pooling, changes, tmp_path):
    config = {**TINY, **changes}
    weights = random_bert(config, seed=7)
    tensors = {prefix + name: stored(values, dtype)[0] for name, values in weights.items()}
    twin = NumpyBert({name: stored(values, dtype)[1] for name, values in weights.items()},
                     config["num_attention_heads"])
    path = write_safetensors(tmp_path / "m", tensors)
    native = _C.Encoder(path, **native_config(config, pooling=pooling, num_threads=2))
    rng = np.random.default_rng(1)
    texts = [rng.integers(50, size=n).tolist() for n in (1, 2, 8, 9, 31, 32, 33, 64, 80, 3)]
    got = native.encode(np.concatenate(texts).astype(np.int32), [len(t) for t in texts])
    for vector, ids in zip(got, texts, strict=True):
        assert np.abs(vector - twin.encode(ids, pooling)).max() < 2e-5
    assert np.abs(got[1:] - got[:-1]).max() > 0.1  # vectors differ, so the check above can fail


def test_native_refuses_bad_input(tmp_path):
    weights = random_bert(TINY, seed=7)
    path = write_safetensors(tmp_path / "m", {n: stored(v, "F32")[0] for n, v in weights.items()})
    native = _C.Encoder(path, **native_config(TINY))
    for ids, lengths, message in (
            ([1, 2], [0, 2], "text 0 must have between 1 and 80"),
            ([1] * 81, [81], "got 81"), ([1, 2], [1], "add up to 1"), ([1], [1, 1], "add up to 2"),
            ([50], [1], "token id 50 is outside the vocabulary of 50"), ([-1], [1], "token id -1"),
            ([[1]], [1], "one dimension")):
        with pytest.raises(ConfigError, match=message):
            native.encode(ids, lengths)
    for change, message in (({"num_heads": 5}, "head size"), ({"hidden_size": 0}, "hidden_size"),
                            ({"num_layers": 257}, "num_layers"), ({"num_layers": 3}, "missing"),
                            ({"vocab_size": 51}, r"\(50, 48\).*\(51, 48\)"),
                            ({"layer_norm_eps": 0.0}, "layer_norm_eps"),
                            ({"intermediate_size": 71}, "shape"),
                            ({"max_positions": 1 << 40}, "max_positions")):
        with pytest.raises(ModelFileError, match=message):
            _C.Encoder(path, **native_config(TINY, **change))
    with pytest.raises(ConfigError, match="pooling"):
        _C.Encoder(path, **native_config(TINY, pooling="max"))
    with pytest.raises(ConfigError, match="threads"):
        _C.Encoder(path, **native_config(TINY, num_threads=0))


def test_weights_of_another_type_are_refused(tmp_path):
    tensors = {n: stored(v, "F32")[0] for n, v in random_bert(TINY, seed=7).items()}
    shape = tensors["embeddings.word_embeddings.weight"][1]
    tensors["embeddings.word_embeddings.weight"] = ("I8", shape, bytes(shape[0] * shape[1]))
    with pytest.raises(ModelFileError, match=r"word_embeddings.*stored as I8"):
        _C.Encoder(write_safetensors(tmp_path / "m", tensors), **native_config(TINY))


@pytest.mark.parametrize(("name", "contents", "error", "message"), [
    ("config.json", "{", ModelFileError, "config.json.*JSON"),
    ("config.json", "[]", ModelFileError, "must hold a dict"),
    ("config.json", {"model_type": "roberta"}, UnsupportedError, "'model_type' is 'roberta'"),
    ("config.json", {"hidden_act": "relu"}, UnsupportedError, "'hidden_act'"),
    ("config.json", {"position_embedding_type": "relative_key"}, UnsupportedError, "relative_key"),
    ("config.json", {"hidden_size": "384"}, ModelFileError, "'hidden_size'.*'384'"),
    ("config.json", {"hidden_size": 1 << 40}, ModelFileError, "'hidden_size'"),
    ("config.json", {"num_hidden_layers": 7}, ModelFileError, "layer.6.*missing"),
    ("config.json", {"layer_norm_eps": None}, ModelFileError, "'layer_norm_eps'"),
    ("config.json", {"vocab_size": 30000}, ModelFileError, "has 30522 tokens"),
    ("1_Pooling/config.json", {"pooling_mode_max_tokens": True}, UnsupportedError, "pooling"),
    ("modules.json", [{"type": "sentence_transformers.models.Dense"}], UnsupportedError, "Dense"),
    ("sentence_bert_config.json", {"max_seq_length": 0}, ModelFileError, "max_seq_length"),
    ("tokenizer.json", "{}", ModelFileError, "tokenizer.json: cannot be read"),
    ("model.safetensors", "nothing", ModelFileError, "model.safetensors"),
    ("model.safetensors", None, ModelFileError, "model.safetensors is missing"),
])
def test_bad_folder_is_refused(name, contents, error, message, tmp_path):
    source, folder = find_model("minilm-l6-v2"), tmp_path / "broken"
    (folder / "1_Pooling").mkdir(parents=True)
    for path in source.rglob("*.json"):
        shutil.copy(path, folder / path.relative_to(source))
    (folder / "model.safetensors").symlink_to(source / "model.safetensors")
    target = folder / name
    if contents is None or name == "model.safetensors":
        target.unlink()
    if isinstance(contents, dict):
        contents = {**json.loads(target.read_text()), **contents}
    if contents is not None:
        target.write_text(contents if isinstance(contents, str) else json.dumps(contents))
    with pytest.raises(error, match=message):
        SentenceEncoder.load(folder, threads=1)


def test_importing_loads_nothing_heavy():
    code = ("import sys, flarecore.retrieval; print({'torch', 'transformers', 'hnswlib', "
            "'tokenizers', 'flarecore._C'} & set(sys.modules))")
    run = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True,
                         env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)})
    assert run.stdout.strip() == "set()"
