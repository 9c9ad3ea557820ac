"""No file that is loaded runs code: pickles are handed in wherever a file is read."""

from __future__ import annotations

import ast
import gzip
import io
import json
import os
import pickle
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import paceline
from paceline.cli import frame
from paceline.cli.main import app
from paceline.cluster import load_cluster
from paceline.kernels.fitted import load_model
from paceline.kernels.library import load_kernel_model
from paceline.kernels.profile import load_profile
from paceline.kernels.table import load_table
from paceline.studies.trace_comparison import compare_traces
from paceline.traces.trace import read_trace

SOURCES = sorted(Path(paceline.__file__).parent.rglob("*.py"))


class Payload:
    """Makes a folder when it is unpickled."""

    def __init__(self, canary: Path) -> None:
        self._canary = str(canary)

    def __reduce__(self) -> tuple[Any, ...]:
        return os.mkdir, (self._canary,)


def pickled(canary: Path) -> bytes:
    return pickle.dumps(Payload(canary))


def torch_file(canary: Path) -> bytes:
    file = io.BytesIO()
    torch.save({"weights": Payload(canary)}, file)
    return file.getvalue()


def numpy_file(canary: Path) -> bytes:
    file = io.BytesIO()
    np.savez(file, weights=np.array([Payload(canary)], dtype=object))
    return file.getvalue()


def zip_file(canary: Path) -> bytes:
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w") as packed:
        packed.writestr("archive/data.pkl", pickled(canary))
    return file.getvalue()


def safetensors_file(canary: Path) -> bytes:
    """A header that is fine, with a pickle as a tensor and another one in its metadata."""
    data = pickled(canary)
    metadata = {"format": "paceline-kernel-model", "version": "3"}
    metadata |= {key: data.hex() for key in ("device", "families", "host", "gap_s", "facts")}
    header = json.dumps(
        {
            "__metadata__": metadata,
            "w": {"dtype": "U8", "shape": [len(data)], "data_offsets": [0, len(data)]},
        }
    ).encode()
    return len(header).to_bytes(8, "little") + header + data


FORMS: list[Callable[[Path], bytes]] = [
    *(pickled, torch_file, numpy_file, zip_file, safetensors_file),
    lambda canary: gzip.compress(pickled(canary)),
    lambda canary: gzip.compress(torch_file(canary)),
]
READERS: dict[str, Callable[[Path], object]] = {
    "cluster.toml": load_cluster,
    "own.kernels.gz": load_profile,
    "table.kernels.gz": load_table,
    "own.model.safetensors": load_model,
    "kernels.model.safetensors": lambda path: load_kernel_model("", model=path),
    "trace.json": read_trace,
    "trace.json.gz": read_trace,
    "compared.json.gz": lambda path: compare_traces(path, path),
}


def test_the_payload_would_run(tmp_path: Path) -> None:
    pickle.loads(pickled(tmp_path / "one"))
    torch.load(io.BytesIO(torch_file(tmp_path / "two")), weights_only=False)
    assert (tmp_path / "one").is_dir()
    assert (tmp_path / "two").is_dir()


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("name", READERS)
def test_a_pickle_is_refused(name: str, form: Callable[[Path], bytes], tmp_path: Path) -> None:
    canary, file = tmp_path / "canary", tmp_path / name
    file.write_bytes(form(canary))
    with pytest.raises(ValueError, match=r"\w+"):
        READERS[name](file)
    assert not canary.exists()


@pytest.mark.parametrize(
    "line",
    [
        "cluster show FILE.toml",
        "cluster check FILE.toml",
        "predict mlp --cluster FILE.toml",
        "predict mlp --model-file FILE.model.safetensors",
        "fit FILE.kernels.gz",
        "trace compare FILE.json FILE.json.gz",
        "lab run --cluster FILE.toml -- true",
        "race --cluster FILE.toml",
    ],
)
def test_commands_refuse_it_too(
    line: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    canary = tmp_path / "canary"
    for suffix in (".toml", ".model.safetensors", ".kernels.gz", ".json", ".json.gz"):
        (tmp_path / f"evil{suffix}").write_bytes(torch_file(canary))
    words = [word.replace("FILE", str(tmp_path / "evil")) for word in line.split()]
    assert frame.run(app, words) == frame.BAD_INPUT
    assert capsys.readouterr().err.startswith("Error: ")
    assert not canary.exists()


@pytest.mark.parametrize("value", ["__import__('os').mkdir('canary')", "!!python/object:x", "{}"])
def test_an_option_is_not_evaluated(
    value: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    words = ["predict", "mlp", "--cluster", "lab-2x2", "--strategy", "daso"]
    assert frame.run(app, [*words, "--option", f"period={value}"]) == frame.BAD_INPUT
    assert not list(tmp_path.iterdir())


BANNED_MODULES = ("pickle", "cPickle", "dill", "cloudpickle", "marshal", "shelve", "joblib")
BANNED_CALLS = ("eval", "exec", "compile", "execfile")


# Its unpickler knows the few classes of torch.distributed.checkpoint's metadata, and no others;
# tests/train/test_hostile_checkpoints.py and test_hostile_checkpoint.py try to get past it.
RESTRICTED = "train/storage.py"


@pytest.mark.parametrize("path", SOURCES, ids=lambda path: str(path.relative_to(SOURCES[0].parent)))
def test_the_source_has_no_way_to(path: Path) -> None:
    if path.as_posix().endswith(RESTRICTED):
        text = path.read_text("utf-8")
        assert "def find_class" in text and "pickle.load" not in text
        return
    for node in ast.walk(ast.parse(path.read_text("utf-8"))):
        if isinstance(node, ast.Import):
            assert not {name.name.split(".")[0] for name in node.names} & set(BANNED_MODULES)
        elif isinstance(node, ast.ImportFrom):
            assert (node.module or "").split(".")[0] not in BANNED_MODULES
        elif isinstance(node, ast.Call):
            _check_call(node)


def _check_call(call: ast.Call) -> None:
    name = ast.unparse(call.func)
    assert name not in BANNED_CALLS
    given = {each.arg: ast.unparse(each.value) for each in call.keywords}
    if name == "torch.load":
        assert given.get("weights_only") == "True"
    if name in ("np.load", "numpy.load"):
        assert given.get("allow_pickle") == "False"
    if name.endswith("yaml.load"):
        raise AssertionError("yaml.load makes objects; take safe_load")
