"""The safetensors reader: values, and refusal of cut, damaged and hostile files."""

import json
import struct

import numpy as np
import pytest
from helpers_encoder import stored, write_safetensors
from hypothesis import given, settings
from hypothesis import strategies as st

from flarecore import _C
from flarecore.errors import ModelFileError

VALUES = {
    "a": np.arange(-6, 6, dtype=np.float32).reshape(3, 4) / 7,
    "b.half": np.array([1.5, -0.1, 65504, 6e-8, 0], dtype=np.float32),
    "c/bf é\"\\": np.array([[3.14159, -1e30]], dtype=np.float32),
    "scalar": np.array(2.5, dtype=np.float32),
    "empty": np.zeros((2, 0, 3), dtype=np.float32),
}
DTYPES = {"b.half": "F16", "c/bf é\"\\": "BF16"}


@pytest.fixture
def valid(tmp_path):
    tensors = {name: stored(v, DTYPES.get(name, "F32"))[0] for name, v in VALUES.items()}
    tensors["ids"] = ("I64", (3,), np.arange(3, dtype=np.int64).tobytes())
    return write_safetensors(tmp_path / "m.safetensors", tensors, {"format": "pt", "é": "\n"})


def test_values_dtypes_shapes_and_metadata(valid):
    file = _C.SafetensorsFile(valid)
    tensors = {t.name: t for t in file.tensors}
    assert file.metadata == {"format": "pt", "é": "\n"}
    assert list(tensors) == [*VALUES, "ids"]
    for name, values in VALUES.items():
        assert tensors[name].shape == values.shape
        assert tensors[name].dtype == DTYPES.get(name, "F32")
        expected = stored(values, DTYPES.get(name, "F32"))[1]
        assert np.array_equal(tensors[name].to_float32(), expected)
    assert tensors["ids"].data.view(np.int64).tolist() == [0, 1, 2]
    assert not tensors["ids"].data.flags.writeable
    with pytest.raises(ModelFileError, match=r"ids is stored as I64.*F32, F16 and BF16"):
        tensors["ids"].to_float32()


def test_data_outlives_the_file_object(valid):
    data = next(t for t in _C.SafetensorsFile(valid).tensors if t.name == "a").data
    assert np.array_equal(data.view(np.float32).reshape(3, 4), VALUES["a"])


def test_order_in_header_is_free(tmp_path):
    header = {"late": {"dtype": "U8", "shape": [2], "data_offsets": [3, 5]},
              "early": {"data_offsets": [0, 3], "shape": [3], "dtype": "U8"}}
    file = _C.SafetensorsFile(write_raw(tmp_path, json.dumps(header, indent=1) + "   ", b"abcde"))
    assert {t.name: bytes(t.data) for t in file.tensors} == {"late": b"de", "early": b"abc"}


def write_raw(tmp_path, header, data=b"", size=None):
    encoded = header.encode() if isinstance(header, str) else header
    path = tmp_path / "hostile.safetensors"
    path.write_bytes(struct.pack("<Q", len(encoded) if size is None else size) + encoded + data)
    return path


def entry(**changes):
    return {"dtype": "F32", "shape": [2], "data_offsets": [0, 8], **changes}


@pytest.mark.parametrize(("changes", "message"), [
    ({"data_offsets": [8, 0]}, r"data_offsets \[8, 0\)"),
    ({"data_offsets": [0, 9]}, "holds 8 bytes"),
    ({"data_offsets": [0, 1 << 62]}, "holds 8 bytes"),
    ({"data_offsets": [0, (1 << 63) - 1]}, "holds 8 bytes"),
    ({"data_offsets": [0, 1 << 63]}, "below 2.63"),
    ({"data_offsets": [-8, 0]}, "non-negative"),
    ({"data_offsets": [0]}, "two data_offsets"),
    ({"data_offsets": [0, 8, 8]}, "two data_offsets"),
    ({"data_offsets": [0, 8.0]}, "byte"),
    ({"data_offsets": [4, 8], "shape": [1]}, "begins at byte 4"),
    ({"data_offsets": [0, 4], "shape": [1]}, "end at byte 4 of the data, the file has 8"),
    ({"shape": [3]}, r"shape \(3\) of F32 does not fit the 8 bytes"),
    ({"shape": [-2]}, "non-negative"),
    ({"shape": [1 << 62, 4]}, "does not fit"),
    ({"shape": [1 << 61]}, "does not fit"),
    ({"shape": [1 << 33, 1 << 33]}, "does not fit"),
    ({"shape": [1] * 17}, "16 dimensions"),
    ({"shape": "2"}, "shape"),
    ({"dtype": "F64"}, "does not fit"),
    ({"dtype": "Q4_0"}, "unknown dtype Q4_0"),
    ({"dtype": 1}, "a dtype"),
    ({"extra": 1}, "dtype, shape and data_offsets"),
])
def test_hostile_tensor(changes, message, tmp_path):
    path = write_raw(tmp_path, json.dumps({"t": entry(**changes)}), b"\0" * 8)
    with pytest.raises(ModelFileError, match=message) as caught:
        _C.SafetensorsFile(path)
    assert "hostile.safetensors" in str(caught.value)


@pytest.mark.parametrize("missing", ["dtype", "shape", "data_offsets"])
def test_missing_field(missing, tmp_path):
    description = entry()
    del description[missing]
    with pytest.raises(ModelFileError, match="wanted dtype, shape"):
        _C.SafetensorsFile(write_raw(tmp_path, json.dumps({"t": description}), b"\0" * 8))


@pytest.mark.parametrize("second", [[4, 12], [0, 8], [8, 16], [12, 20]])
def test_overlap_and_gap(second, tmp_path):
    header = {"a": entry(), "b": entry(data_offsets=second)}
    path = write_raw(tmp_path, json.dumps(header), b"\0" * max(16, second[1]))
    if second == [8, 16]:
        assert len(_C.SafetensorsFile(path).tensors) == 2
    else:
        with pytest.raises(ModelFileError, match="side by side"):
            _C.SafetensorsFile(path)


@pytest.mark.parametrize(("header", "message"), [
    (b"", "JSON"), (b"[]", "object"), (b"{", "key"), (b"{}x", "the end"), (b'{"a"}', "colon"),
    (b'{"a":{}}', "dtype"), (b'{"a":1}', "description"), (b'{"a":' + b"[" * 100000, "description"),
    (b'{"a', "end of a string"), (b'{"a\n":1}', "control"), (b'{"\\x":1}', "escape"),
    (b'{"\\ud800":1}', "surrogate"), (b'{"\\udc00":1}', "surrogate"), (b'{"\\u12g4":1}', "hexa"),
    (b'{"\\', "string"), (b'{"__metadata__":{"a":1}}', "metadata string"),
    (b'{"__metadata__":[]}', "metadata"), (b"{,}", "key"), (b'{"__metadata__":{},}', "key"),
    (b'{"a":{"dtype":"U8","shape":[01],"data_offsets":[0,1]}}', "non-negative integer"),
    (b'{"a":{"dtype":"U8","dtype":"U8","shape":[0],"data_offsets":[0,0]}}', "each once"),
    (b'{"a":{"dtype":"U8","shape":[0],"data_offsets":[0,0]},'
     b'"a":{"dtype":"U8","shape":[0],"data_offsets":[0,0]}}', "described twice"),
])
def test_hostile_header(header, message, tmp_path):
    with pytest.raises(ModelFileError, match=message):
        _C.SafetensorsFile(write_raw(tmp_path, header))


def test_escapes(tmp_path):
    header = b'{"__metadata__":{"\\u00e9\\ud83d\\ude00\\n\\/":"\\"\\\\\\b\\f\\r\\t"}}'
    assert _C.SafetensorsFile(write_raw(tmp_path, header)).metadata == {"é😀\n/": '"\\\b\f\r\t'}


@pytest.mark.parametrize("size", [(1 << 64) - 1, 1 << 63, 100_000_001, 3])
def test_hostile_header_size(size, tmp_path):
    with pytest.raises(ModelFileError, match=r"over the limit|cut off"):
        _C.SafetensorsFile(write_raw(tmp_path, b"{}", size=size))


def test_not_utf8_names_do_not_break_messages(tmp_path):
    with pytest.raises(ModelFileError, match=r"\\xff"):
        _C.SafetensorsFile(write_raw(
            tmp_path, b'{"\xff\xfe":{"dtype":"Q","shape":[],"data_offsets":[0,0]}}'))
    path = write_raw(tmp_path, b'{"\xff":{"dtype":"U8","shape":[0],"data_offsets":[0,0]}}')
    assert _C.SafetensorsFile(path).tensors[0].name == "\udcff"


def test_missing_file_and_folder(tmp_path):
    for path in (tmp_path / "nothing", tmp_path):
        with pytest.raises(ModelFileError, match=str(path.name)):
            _C.SafetensorsFile(path)


def test_every_cut_is_refused(valid, tmp_path):
    data = valid.read_bytes()
    cut = tmp_path / "cut"
    for size in range(0, len(data), 7):
        cut.write_bytes(data[:size])
        with pytest.raises(ModelFileError, match="cut"):
            _C.SafetensorsFile(cut)


@settings(max_examples=400, deadline=None, derandomize=True)
@given(st.data())
def test_mutated_headers_never_crash(tmp_path_factory, data):
    header = json.dumps({"__metadata__": {"k": "v"}, "a": entry(), "b": entry(
        data_offsets=[8, 12], dtype="F16")})
    raw = bytearray(struct.pack("<Q", len(header)) + header.encode() + bytes(range(12)))
    for _ in range(data.draw(st.integers(1, 3))):
        position = data.draw(st.integers(0, len(raw) - 1))
        raw[position] = data.draw(st.sampled_from([*b'"{}[]:,\\u0129-. e', 0, 255]))
    path = tmp_path_factory.getbasetemp() / "mutated"
    path.write_bytes(raw)
    try:
        file = _C.SafetensorsFile(path)
    except ModelFileError:
        return
    for tensor in file.tensors:  # what is accepted can be read to its end
        assert tensor.data.sum(dtype=np.int64) >= 0
        assert tensor.size_bytes <= 12
