"""pprof's messages, for Google's own decoder."""

from __future__ import annotations

import gzip

import pytest

_KINDS = {"i": 3, "u": 4, "b": 8, "s": 9}
_MESSAGES = {  # field: (number, kind, repeated); a word is a message of its own
    "ValueType": {"type": (1, "i", 0), "unit": (2, "i", 0)},
    "Label": {"key": (1, "i", 0), "str": (2, "i", 0), "num": (3, "i", 0), "num_unit": (4, "i", 0)},
    "Sample": {"location_id": (1, "u", 1), "value": (2, "i", 1), "label": (3, "Label", 1)},
    "Mapping": {"id": (1, "u", 0), "filename": (5, "i", 0), "has_functions": (7, "b", 0),
                "has_filenames": (8, "b", 0), "has_line_numbers": (9, "b", 0)},
    "Line": {"function_id": (1, "u", 0), "line": (2, "i", 0)},
    "Location": {"id": (1, "u", 0), "mapping_id": (2, "u", 0), "address": (3, "u", 0),
                 "line": (4, "Line", 1)},
    "Function": {"id": (1, "u", 0), "name": (2, "i", 0), "system_name": (3, "i", 0),
                 "filename": (4, "i", 0), "start_line": (5, "i", 0)},
    "Profile": {"sample_type": (1, "ValueType", 1), "sample": (2, "Sample", 1),
                "mapping": (3, "Mapping", 1), "location": (4, "Location", 1),
                "function": (5, "Function", 1), "string_table": (6, "s", 1),
                "time_nanos": (9, "i", 0), "duration_nanos": (10, "i", 0),
                "period_type": (11, "ValueType", 0), "period": (12, "i", 0),
                "default_sample_type": (14, "i", 0)},
}  # fmt: skip


def decode_pprof(packed: bytes):
    """The message as Google's own decoder reads it."""
    pytest.importorskip("google.protobuf")
    from google.protobuf import descriptor_pb2, descriptor_pool, message_factory

    file = descriptor_pb2.FileDescriptorProto(name="p.proto", package="p", syntax="proto3")
    for name, fields in _MESSAGES.items():
        message = file.message_type.add(name=name)
        for field, (number, kind, repeated) in fields.items():
            added = message.field.add(name=field, number=number, label=3 if repeated else 1)
            added.type = _KINDS.get(kind, 11)
            if kind not in _KINDS:
                added.type_name = f".p.{kind}"
    pool = descriptor_pool.DescriptorPool()
    pool.Add(file)
    decoded = message_factory.GetMessageClass(pool.FindMessageTypeByName("p.Profile"))()
    decoded.ParseFromString(gzip.decompress(packed))
    return decoded
