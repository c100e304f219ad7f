"""The engine's images as nodes take them in quickly: an OCI layout whose layers are packed.

A node's containerd writes each layer to its disk and syncs it, and the three workers of a cluster share one
disk: packed there is half as much to write. Formats: OCI image-spec, `image-layout.md` and `manifest.md`.
"""

from __future__ import annotations

import hashlib
import io
import json
import os
import subprocess
import tarfile
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any, Final, cast

import cramjam
from tests.e2e.machine.commands import MachineError
from tests.e2e.machine.engine import Engine

_BLOCK_BYTES: Final = 1 << 20
_ZSTD_LEVEL: Final = 1
_OCI_SINCE: Final = 25
_INDEX_TYPE: Final = "application/vnd.oci.image.index.v1+json"
_MANIFEST_TYPE: Final = "application/vnd.oci.image.manifest.v1+json"
_CONFIG_TYPE: Final = "application/vnd.oci.image.config.v1+json"
_LAYER_TYPE: Final = "application/vnd.oci.image.layer.v1.tar+zstd"
_NAME: Final = "io.containerd.image.name"


@dataclass(frozen=True, slots=True)
class Blob:
    """A packed layer in a file."""

    path: Path
    digest: str
    size_bytes: int


@dataclass(frozen=True, slots=True)
class Image:
    """An image by its name, with the engine's own description of it."""

    name: str
    config: bytes
    layers: Sequence[Blob]


def can_pack(engine: Engine) -> bool:
    """Whether the engine saves images as `pack` reads them: those since 25 write OCI layouts themselves."""
    return int(engine.docker("version", "--format", "{{.Server.Version}}").split(".")[0]) < _OCI_SINCE


def pack(engine: Engine, images: Sequence[str], folder: Path) -> list[Image]:
    """Take images from an engine for which `can_pack` holds, and keep their packed layers in `folder`.

    Only what is not there from before is packed: layers are files by their digest, and a file by an image's
    id names its layers. What none of `images` needs goes.

    Raises:
        MachineError: the engine's own reason.
    """
    folder.mkdir(exist_ok=True)
    records = {name: folder / f"{image_id(engine, name).removeprefix('sha256:')}.json" for name in images}
    missing = [name for name, record in records.items() if not record.exists()]
    for image in _save(engine, missing, folder) if missing else ():
        layers = [(blob.digest, blob.size_bytes) for blob in image.layers]
        fresh = folder / "fresh"
        fresh.write_text(json.dumps({"config": image.config.decode(), "layers": layers}))
        fresh.rename(records[image.name])
    results = [_recorded(name, record) for name, record in records.items()]
    kept = {*records.values(), *(blob.path for image in results for blob in image.layers)}
    for path in set(folder.iterdir()) - kept:
        path.unlink()
    return results


def image_id(engine: Engine, name: str) -> str:
    """The digest of an image's configuration, `sha256:...`."""
    return engine.docker("image", "inspect", "--format", "{{.Id}}", name).strip()


def _recorded(name: str, record: Path) -> Image:
    current = json.loads(record.read_text())
    layers = [Blob(record.parent / digest, digest, size_bytes) for digest, size_bytes in current["layers"]]
    return Image(name, current["config"].encode(), layers)


def _save(engine: Engine, images: Sequence[str], folder: Path) -> list[Image]:
    environment = os.environ | engine.environment
    saving = subprocess.Popen(["docker", "save", *images], env=environment, stdout=subprocess.PIPE)
    results: list[Image] = []
    with (
        saving,
        suppress(tarfile.TarError),  # of an archive that breaks off docker tells the reason
        tarfile.open(fileobj=saving.stdout, mode="r|") as archive,
    ):
        results = _read(archive, folder)
    if saving.returncode or not results:
        raise MachineError("docker save failed: its reason is above.")
    return results


def _read(archive: tarfile.TarFile, folder: Path) -> list[Image]:
    texts: dict[str, bytes] = {}
    layers: dict[str, Blob] = {}
    links: dict[str, str] = {}
    for entry in archive:
        if entry.issym():  # a layer that another image has too
            links[entry.name] = os.path.normpath(Path(entry.name).parent / entry.linkname)
        elif entry.isfile():
            content = cast(IO[bytes], archive.extractfile(entry))
            if entry.name.endswith(".json"):
                texts[entry.name] = content.read()
            else:
                layers[entry.name] = _pack_layer(content, folder)
    return [
        Image(name, texts[image["Config"]], [layers[links.get(layer, layer)] for layer in image["Layers"]])
        for image in json.loads(texts.get("manifest.json", b"[]"))
        for name in image["RepoTags"]
    ]


def _pack_layer(content: IO[bytes], folder: Path) -> Blob:
    digest = hashlib.sha256()
    compressor = cramjam.zstd.Compressor(level=_ZSTD_LEVEL)

    def take(ready: bytes) -> None:
        digest.update(ready)
        out.write(ready)

    fresh = folder / "fresh"
    with fresh.open("wb") as out:
        while block := content.read(_BLOCK_BYTES):
            compressor.compress(block)
            take(bytes(compressor.flush()))
        take(bytes(compressor.finish()))
    path = fresh.rename(folder / digest.hexdigest())
    return Blob(path, path.name, path.stat().st_size)


def write(images: Sequence[Image], out: IO[bytes]) -> None:
    """Write images as an OCI layout in a tar archive, each blob once."""
    with tarfile.open(fileobj=out, mode="w|") as archive:
        written: set[str] = set()

        def add_blob(media_type: str, digest: str, size_bytes: int, content: IO[bytes]) -> dict[str, Any]:
            if digest not in written:
                written.add(digest)
                _add(archive, f"blobs/sha256/{digest}", content, size_bytes)
            return {"mediaType": media_type, "digest": f"sha256:{digest}", "size": size_bytes}

        def add_text(media_type: str, text: bytes) -> dict[str, Any]:
            return add_blob(media_type, hashlib.sha256(text).hexdigest(), len(text), io.BytesIO(text))

        def add_layer(blob: Blob) -> dict[str, Any]:
            with blob.path.open("rb") as content:
                return add_blob(_LAYER_TYPE, blob.digest, blob.size_bytes, content)

        manifests = []
        for image in images:
            manifest = {
                "schemaVersion": 2,
                "mediaType": _MANIFEST_TYPE,
                "config": add_text(_CONFIG_TYPE, image.config),
                "layers": [add_layer(blob) for blob in image.layers],
            }
            described = add_text(_MANIFEST_TYPE, json.dumps(manifest).encode())
            manifests.append(described | {"annotations": {_NAME: f"docker.io/{image.name}"}})
        index = {"schemaVersion": 2, "mediaType": _INDEX_TYPE, "manifests": manifests}
        for name, text in (("oci-layout", {"imageLayoutVersion": "1.0.0"}), ("index.json", index)):
            encoded = json.dumps(text).encode()
            _add(archive, name, io.BytesIO(encoded), len(encoded))


def _add(archive: tarfile.TarFile, name: str, content: IO[bytes], size_bytes: int) -> None:
    entry = tarfile.TarInfo(name)
    entry.size = size_bytes
    archive.addfile(entry, content)
