"""Rewrites the metadata of a GGUF file, so that a test can say what a random model knows to write.

Tensors and their data stay as they are: their offsets count from the end of the header.
"""

import pathlib
import struct

# Value types of the format that have one size, as struct names them.
_SCALARS = {
    0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", 7: "?", 10: "Q", 11: "q", 12: "d",
}  # fmt: skip
_STRING, _ARRAY = 8, 9

USER_DEFINED = 4  # a token whose text stands for itself
UNUSED = 5  # a row without a token


class _Reader:
    def __init__(self, data):
        self.data = data
        self.offset = 0

    def scalar(self, form):
        (value,) = struct.unpack_from("<" + form, self.data, self.offset)
        self.offset += struct.calcsize("<" + form)
        return value

    def string(self):
        size = self.scalar("Q")
        self.offset += size
        return self.data[self.offset - size : self.offset]

    def value(self, kind):
        if kind == _STRING:
            return self.string()
        if kind == _ARRAY:
            element = self.scalar("I")
            return element, [self.value(element) for _ in range(self.scalar("Q"))]
        return self.scalar(_SCALARS[kind])


def _packed_string(text):
    return struct.pack("<Q", len(text)) + text


def _packed(kind, value):
    if kind == _STRING:
        return _packed_string(value)
    if kind == _ARRAY:
        element, items = value
        head = struct.pack("<IQ", element, len(items))
        return head + b"".join(_packed(element, item) for item in items)
    return struct.pack("<" + _SCALARS[kind], value)


class GgufFile:
    """A file of GGUF version 3; metadata can be changed, strings are bytes."""

    def __init__(self, path):
        reader = _Reader(pathlib.Path(path).read_bytes())
        magic, version, self._num_tensors, num_keys = struct.unpack_from("<4sIQQ", reader.data)
        assert (magic, version) == (b"GGUF", 3)
        reader.offset = 24
        self._metadata = {}
        for _ in range(num_keys):
            key = reader.string().decode()
            kind = reader.scalar("I")
            self._metadata[key] = (kind, reader.value(kind))
        begin = reader.offset
        for _ in range(self._num_tensors):
            reader.string()
            for _ in range(reader.scalar("I")):
                reader.scalar("Q")
            reader.scalar("I")
            reader.scalar("Q")
        self._tensor_infos = reader.data[begin : reader.offset]
        self._data = reader.data[self._aligned(reader.offset) :]

    def _aligned(self, offset):
        _, alignment = self._metadata.get("general.alignment", (4, 32))
        return -(-offset // alignment) * alignment

    def set_string(self, key, text):
        self._metadata[key] = (_STRING, text.encode())

    def ids_of_type(self, token_type):
        _, (_, types) = self._metadata["tokenizer.ggml.token_type"]
        return [token_id for token_id, own in enumerate(types) if own == token_type]

    def id_of(self, text):
        _, (_, tokens) = self._metadata["tokenizer.ggml.tokens"]
        return tokens.index(text.encode())

    def set_token(self, token_id, text, token_type):
        self._metadata["tokenizer.ggml.tokens"][1][1][token_id] = text.encode()
        self._metadata["tokenizer.ggml.token_type"][1][1][token_id] = token_type

    def write(self, path):
        header = struct.pack("<4sIQQ", b"GGUF", 3, self._num_tensors, len(self._metadata))
        for key, (kind, value) in self._metadata.items():
            header += _packed_string(key.encode()) + struct.pack("<I", kind) + _packed(kind, value)
        header += self._tensor_infos
        header += bytes(self._aligned(len(header)) - len(header))
        pathlib.Path(path).write_bytes(header + self._data)
