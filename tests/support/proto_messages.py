"""Protobuf messages as applications have them: compiled by protoc.

The libraries are imported where they are used: tests of everything else do not wait for them.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tests.support.folders import temporary_folder


def compiled_files(texts: Mapping[str, str], *folders: Path) -> list[Any]:
    """The FileDescriptorProtos of files by name, with all that they import, as protoc makes them."""
    import grpc_tools
    from google.protobuf import descriptor_pb2
    from google.type import money_pb2
    from grpc_tools import protoc

    known = Path(money_pb2.__file__).parents[2]
    with temporary_folder() as folder:
        for name, text in texts.items():
            path = folder / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text)
        places = [folder, *folders, Path(grpc_tools.__file__).parent / "_proto", known]
        output = folder / "descriptors"
        options = [f"-I{place}" for place in places]
        assert protoc.main(["protoc", *options, "--include_imports", f"-o{output}", *texts]) == 0
        return list(descriptor_pb2.FileDescriptorSet.FromString(output.read_bytes()).file)


def message_classes(texts: Mapping[str, str]) -> dict[str, Any]:
    """The classes of all messages in files, by their full names."""
    from google.protobuf.descriptor_pool import DescriptorPool
    from google.protobuf.message_factory import GetMessageClass

    pool = DescriptorPool()
    for file in compiled_files(texts):
        pool.Add(file)
    classes: dict[str, Any] = {}
    pending = [
        message for name in texts for message in pool.FindFileByName(name).message_types_by_name.values()
    ]
    while pending:
        message = pending.pop()
        classes[message.full_name] = GetMessageClass(message)
        pending += message.nested_types
    return classes
