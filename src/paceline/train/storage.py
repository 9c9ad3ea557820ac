"""One worker's part of a checkpoint, written and read by torch.distributed.checkpoint.

Its planners and its storage are used, but not its collectives. These take values of the same name
for copies of each other and keep one, and nodes differ between exchanges; they write what the
checkpoint holds (``.metadata``) on one node alone, and nodes need not share a disk. So every worker
has a checkpoint of its own, and :class:`~paceline.train.crew.Crew` brings the workers together.

``.metadata`` is a pickle. It is read by an unpickler that knows the few classes it consists of, and
everything in it is checked before it is used: nothing that is loaded can run code.
"""

from __future__ import annotations

import contextlib
import errno
import io
import math
import os
import pickle
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import IO, Any, cast

import torch
from torch.distributed.checkpoint import metadata as described
from torch.distributed.checkpoint.default_planner import DefaultLoadPlanner, DefaultSavePlanner
from torch.distributed.checkpoint.filesystem import (
    FileSystem,
    FileSystemReader,
    FileSystemWriter,
    _StorageInfo,
)

METADATA = ".metadata"
DATA = "__0_0.distcp"
_SKELETON = "skeleton"
_MODEL = "model."
_MOST_METADATA_BYTES = 1 << 28
_KNOWN_CLASSES = {
    (one.__module__, one.__qualname__): one
    for one in (
        described.BytesStorageMetadata,
        described.ChunkStorageMetadata,
        described.Metadata,
        described.MetadataIndex,
        described.StorageMeta,
        described.TensorProperties,
        described.TensorStorageMetadata,
        described._MEM_FORMAT_ENCODING,
        _StorageInfo,
        torch.Size,
    )
}


def write_tensors(
    folder: Path, tensors: Mapping[str, torch.Tensor], skeleton: bytes, *, identifier: str
) -> None:
    """Write a worker's part: then all of it is on the disk, or an OSError says why not."""
    writer = _Writer(folder, identifier)
    planner = DefaultSavePlanner()
    planner.set_up_planner(_as_state_dict(tensors, skeleton), writer.storage_meta(), True)
    writer.set_up_storage_writer(True)
    local = writer.prepare_local_plan(planner.create_local_plan())
    plans, metadata = planner.create_global_plan([local])
    (plan,) = writer.prepare_global_plan(plans)
    writing = writer.write_data(planner.finish_plan(plan), planner)
    writing.wait()
    writer.finish(metadata, [writing.value()])


def read_tensors(folder: Path) -> tuple[dict[str, torch.Tensor], bytes]:
    """Read a worker's part, on the CPU: what :func:`write_tensors` was given."""
    with readable():
        reader = _Reader(folder)
        metadata = reader.read_metadata()
        target: dict[str, Any] = {
            name: torch.empty(one.size, dtype=one.properties.dtype)
            for name, one in metadata.state_dict_metadata.items()
            if isinstance(one, described.TensorStorageMetadata)
        }
        planner = DefaultLoadPlanner(flatten_state_dict=False, flatten_sharded_tensors=False)
        planner.set_up_planner(target, metadata, True)
        reader.set_up_storage_reader(metadata, True)
        plan = reader.prepare_local_plan(planner.create_local_plan())
        (plan,) = reader.prepare_global_plan(planner.create_global_plan([plan]))
        reader.read_data(planner.finish_plan(plan), planner).wait()
        skeleton = target.pop(_SKELETON)
        return target, skeleton.numpy().tobytes()


def read_identifier(folder: Path) -> str:
    """The save that a worker's part belongs to. Its tensors are not read."""
    with readable():
        meta = _Reader(folder).read_metadata().storage_meta
        return str(None if meta is None else meta.save_id)


def _as_state_dict(tensors: Mapping[str, torch.Tensor], skeleton: bytes) -> dict[str, Any]:
    """With the model's as a dict of its own, for those who read it with torch's tools."""
    data = torch.frombuffer(bytearray(skeleton), dtype=torch.uint8)
    state: dict[str, Any] = {"model": {}, _SKELETON: data}
    for name, tensor in tensors.items():
        if name.startswith(_MODEL):
            state["model"][name.removeprefix(_MODEL)] = tensor
        else:
            state[name] = tensor
    return state


class _Writer(FileSystemWriter):
    """Writes one file, and says which save it belongs to rather than where it was written."""

    def __init__(self, folder: Path, identifier: str) -> None:
        super().__init__(folder, sync_files=True, thread_count=1)
        self.fs = _Disk()
        self.save_id = identifier

    def storage_meta(self) -> described.StorageMeta:
        """Which save this is."""
        return described.StorageMeta(save_id=self.save_id)


class _Disk(FileSystem):
    """Files that tell why they could not be written."""

    @contextlib.contextmanager
    def create_stream(self, path: str | os.PathLike[str], mode: str) -> Iterator[io.IOBase]:
        with Path(path).open(mode) as file:
            if mode == "rb":
                yield cast(io.IOBase, file)
                return
            sink = _Sink(cast(IO[bytes], file))
            yield cast(io.IOBase, sink)
            sink.close()


class _Sink:
    """A file that torch writes to, and that remembers why it could not be written.

    torch turns an error into "unexpected pos 1536 vs 1430". So it learns of one at the end.
    """

    def __init__(self, file: IO[bytes]) -> None:
        self._file = file
        self._place = 0
        self._error: OSError | None = None

    def _try(self, act: Any, *arguments: Any) -> None:
        if self._error is None:
            try:
                act(*arguments)
            except OSError as error:
                self._error = error

    def write(self, data: bytes | memoryview) -> int:
        num_bytes = memoryview(data).nbytes
        self._try(self._file.write, data)
        self._place += num_bytes
        return num_bytes

    def tell(self) -> int:
        return self._place

    def flush(self) -> None:
        self._try(self._file.flush)

    def fileno(self) -> int:
        self.flush()
        return self._file.fileno()

    def close(self) -> None:
        self.flush()
        if self._error is not None:
            raise self._error


class _Reader(FileSystemReader):
    """Reads what :class:`_Writer` wrote, and nothing else."""

    def read_metadata(self, *arguments: Any, **options: Any) -> described.Metadata:
        """What the checkpoint holds, checked."""
        path = Path(self.path, METADATA)
        if path.stat().st_size > _MOST_METADATA_BYTES:
            raise ValueError("more is described there than a checkpoint holds")
        found = _Unpickler(io.BytesIO(path.read_bytes())).load()
        _check(found, Path(self.path, DATA).stat().st_size)
        return cast(described.Metadata, found)


class _Unpickler(pickle.Unpickler):
    """Knows the classes that a checkpoint's metadata consists of. None of them does anything."""

    def find_class(self, module: str, name: str) -> Any:
        if (module, name) in _KNOWN_CLASSES:
            return _KNOWN_CLASSES[module, name]
        if module == "torch" and isinstance(getattr(torch, name, None), torch.dtype):
            return getattr(torch, name)
        if (module, name) == ("torch.serialization", "_get_layout"):
            return _get_layout
        raise pickle.UnpicklingError(f"{module}.{name} is not known")


def _get_layout(name: str) -> torch.layout:
    if name != "torch.strided":
        raise pickle.UnpicklingError(f"{name} is not known")
    return torch.strided


def _check(metadata: Any, num_bytes: int) -> None:
    """Refuse what no save has written: files elsewhere, or sizes that the data does not have."""
    tensors, places = metadata.state_dict_metadata, metadata.storage_data
    by_name = {index.fqn: place for index, place in places.items()}
    if not by_name.keys() == tensors.keys() or len(by_name) != len(places):
        raise ValueError("data and descriptions do not belong together")
    for name, one in tensors.items():
        place = by_name[name]
        chunk = described.ChunkStorageMetadata(torch.Size([0] * len(one.size)), one.size)
        is_whole = type(one.size) is torch.Size and one.chunks == [chunk]
        is_here = place.relative_path == DATA and not getattr(place, "transform_descriptors", None)
        if not (type(name) is str and is_whole and is_here):
            raise ValueError(f"{name} is described as no save does")
        dtype = one.properties.dtype
        if not isinstance(dtype, torch.dtype) or one.properties.layout is not torch.strided:
            raise ValueError(f"{name} is of no known type")
        # Before anything of that size is allocated.
        is_inside = place.offset >= 0 and place.offset + place.length <= num_bytes
        if not is_inside or math.prod(one.size) * dtype.itemsize > place.length:
            raise ValueError(f"{name} is larger than its file")


@contextlib.contextmanager
def readable() -> Iterator[None]:
    """Say in one sentence why a file cannot be read."""
    try:
        yield
    except Exception as error:
        # torch seeks before the beginning of a file that has lost its end.
        if isinstance(error, OSError) and error.errno != errno.EINVAL:
            raise
        raise ValueError("it is damaged, or no file that pace.save wrote") from error
