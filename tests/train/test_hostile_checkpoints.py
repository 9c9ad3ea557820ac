"""No checkpoint runs code, reads other files or asks for more memory than it has bytes."""

from __future__ import annotations

import json
import os
import pickle
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.distributed.checkpoint.format_utils import dcp_to_torch_save
from torch.distributed.checkpoint.metadata import BytesStorageMetadata, Metadata, MetadataIndex

import workloads
from paceline.train import CheckpointError, attach
from paceline.train.saves import read_part
from paceline.train.skeleton import put_together


class Evil:
    """Makes a file when it is unpickled."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def __reduce__(self) -> tuple[Callable[..., Any], tuple[str]]:
        return os.system, (f"touch {self._path}",)


def save(folder: Path) -> Path:
    model, optimizer = workloads.build("plain", "adamw")
    pace = attach(model, optimizer, enabled=False)
    torch.autograd.backward(workloads.batch_loss(model, 1, 0))
    optimizer.step()
    pace.save(folder, extra={"epoch": 3})
    return folder / "save-000001" / "worker-0"


def refused(folder: Path) -> str:
    model, optimizer = workloads.build("plain", "adamw", seed=7)
    before = workloads.flat_state(model)
    with pytest.raises(CheckpointError) as problem:
        attach(model, optimizer, enabled=False).load(folder)
    assert torch.equal(workloads.flat_state(model), before)
    return str(problem.value)


def changed(part: Path, change: Callable[[Metadata], object]) -> None:
    path = part / ".metadata"
    metadata = pickle.loads(path.read_bytes())
    change(metadata)
    path.write_bytes(pickle.dumps(metadata))


def a_weight(metadata: Metadata) -> MetadataIndex:
    index: MetadataIndex = next(i for i in metadata.storage_data if i.fqn == "model.0.weight")
    return index


def point_elsewhere(metadata: Metadata) -> None:
    metadata.storage_data[a_weight(metadata)].relative_path = "../../../elsewhere"


def ask_for_much(metadata: Metadata) -> None:
    one: Any = metadata.state_dict_metadata["model.0.weight"]
    one.size = torch.Size([1 << 40])
    one.chunks[0].sizes = one.size


def claim_a_long_file(metadata: Metadata) -> None:
    ask_for_much(metadata)
    metadata.storage_data[a_weight(metadata)].length = 1 << 50


def hide_bytes(metadata: Metadata) -> None:
    # torch would unpickle these without any limits.
    metadata.state_dict_metadata["model.0.weight"] = BytesStorageMetadata()


def transform(metadata: Metadata) -> None:
    index = a_weight(metadata)
    place = metadata.storage_data[index]
    metadata.storage_data[index] = replace(place, transform_descriptors=["stream.zstd"])


def forget_one(metadata: Metadata) -> None:
    del metadata.storage_data[a_weight(metadata)]


@pytest.mark.parametrize(
    "change",
    [point_elsewhere, ask_for_much, claim_a_long_file, hide_bytes, transform, forget_one],
)
def test_metadata_that_no_save_wrote_is_refused(
    tmp_path: Path, change: Callable[[Metadata], None]
) -> None:
    changed(save(tmp_path), change)
    assert refused(tmp_path).endswith("it is damaged, or no file that pace.save wrote")


def test_nothing_in_a_checkpoint_runs_code(tmp_path: Path) -> None:
    traces = [tmp_path / "metadata", tmp_path / "inside", tmp_path / "tensor", tmp_path / "old"]
    folders = [tmp_path / str(number) for number in range(4)]
    parts = [save(folder) for folder in folders]
    (parts[0] / ".metadata").write_bytes(pickle.dumps(Evil(traces[0])))
    changed(parts[1], lambda metadata: vars(metadata).update(planner_data=Evil(traces[1])))

    def swap(metadata: Metadata) -> None:
        """A weight becomes something else that torch.save wrote."""
        place = metadata.storage_data[a_weight(metadata)]
        data = parts[2] / "__0_0.distcp"
        place.offset = data.stat().st_size
        with data.open("ab") as file:
            torch.save([Evil(traces[2])] * 2, file)
        place.length = data.stat().st_size - place.offset

    changed(parts[2], swap)
    shutil.rmtree(parts[3])
    torch.save({"identifier": Evil(traces[3])}, parts[3].with_name("worker-0.pt"))
    marker = parts[3].with_name("complete.json")
    marker.write_text(json.dumps(json.loads(marker.read_text()) | {"format": 1}))
    for folder in folders:
        assert "it is damaged, or no file that pace.save wrote" in refused(folder)
    assert not any(trace.exists() for trace in traces)
    # The test can fail: Python's own unpickler obeys.
    pickle.loads((parts[0] / ".metadata").read_bytes())
    assert traces[0].exists()


@pytest.mark.parametrize(
    "said",
    [
        [],
        {"nodes": 3},
        {"nodes": []},
        {"nodes": [[]]},
        {"nodes": [["0"]]},
        {"nodes": [[0], [0]]},
        {"nodes": [[5]]},
        {"nodes": [[0]], "absent": 3},
        {"nodes": [[0]], "options": 3},
        {"nodes": [[0]], "checksums": "none"},
        {"differing": None},
    ],
    ids=str,
)
def test_a_marker_that_says_something_else_completes_nothing(tmp_path: Path, said: Any) -> None:
    marker = save(tmp_path).with_name("complete.json")
    whole = json.loads(marker.read_text())
    if "nodes" not in said:
        whole = {}
    marker.write_text(json.dumps(whole | said if isinstance(said, dict) else said))
    assert "save-000001 was interrupted" in refused(tmp_path)


@pytest.mark.parametrize("text", ["[" * 200_000, "9" * 5000, "\0"], ids=["deep", "long", "null"])
def test_a_marker_that_is_no_json_completes_nothing(tmp_path: Path, text: str) -> None:
    save(tmp_path).with_name("complete.json").write_text(text)
    assert "save-000001 was interrupted" in refused(tmp_path)


def test_what_a_marker_says_is_shown_and_not_obeyed(tmp_path: Path) -> None:
    marker = save(tmp_path).with_name("complete.json")
    said = json.loads(marker.read_text()) | {"strategy": "Daso\x1b[2J"}
    marker.write_text(json.dumps(said))
    assert r"holds the state of Daso\x1b[2J" in refused(tmp_path)


def test_a_bit_that_changed_on_the_disk_is_noticed(tmp_path: Path) -> None:
    part = save(tmp_path)
    weight = read_part(part)[0]["model.0.weight"].numpy().tobytes()
    file = part / "__0_0.distcp"
    data = bytearray(file.read_bytes())
    data[data.index(weight) + 5] ^= 1
    file.write_bytes(data)
    assert refused(tmp_path).endswith("it is damaged: it holds other values than were saved")


def test_a_checkpoint_without_checksums_is_read(tmp_path: Path) -> None:
    marker = save(tmp_path).with_name("complete.json")
    said = json.loads(marker.read_text())
    del said["checksums"]
    marker.write_text(json.dumps(said))
    model, optimizer = workloads.build("plain", "adamw", seed=7)
    assert attach(model, optimizer, enabled=False).load(tmp_path) == {"epoch": 3}


def test_torchs_tools_read_a_workers_part(tmp_path: Path) -> None:
    part = save(tmp_path)
    dcp_to_torch_save(part, tmp_path / "model.pt")
    found = torch.load(tmp_path / "model.pt", weights_only=True)
    model = workloads.build_model("plain", seed=7)
    model.load_state_dict(found["model"])
    tensors, _ = read_part(part)
    assert torch.equal(model.state_dict()["0.weight"].cpu(), tensors["model.0.weight"])


def test_a_checkpoint_in_the_old_format_is_read(tmp_path: Path) -> None:
    part = save(tmp_path)
    state = put_together(*read_part(part), torch.device("cpu"))
    old = {name: state[name] for name in ("identifier", "model", "optimizers", "strategy")}
    shutil.rmtree(part)
    torch.save(old | {"loaders": []}, part.with_name("worker-0.pt"))
    marker = part.with_name("complete.json")
    marker.write_text(json.dumps(json.loads(marker.read_text()) | {"format": 1}))
    model, optimizer = workloads.build("plain", "adamw", seed=7)
    assert attach(model, optimizer, enabled=False).load(tmp_path) == {}
    for name, value in model.state_dict().items():
        assert torch.equal(value.cpu(), state["model"][name].cpu())
    assert len(optimizer.state) == 4
