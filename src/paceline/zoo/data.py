"""Data sets that every machine already has, so that nothing is downloaded."""

from __future__ import annotations

import math
import sysconfig
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

import torch
from torch.utils.data import TensorDataset

from paceline.suggestion import suggestion
from paceline.zoo.registry import Kind, model_names, zoo_entry

# Long, well-documented modules, in alphabetical order; the text is read in this order.
_STDLIB_FILES = (
    "argparse.py",
    "ast.py",
    "calendar.py",
    "collections/__init__.py",
    "configparser.py",
    "contextlib.py",
    "csv.py",
    "dataclasses.py",
    "difflib.py",
    "doctest.py",
    "enum.py",
    "fractions.py",
    "functools.py",
    "heapq.py",
    "inspect.py",
    "json/decoder.py",
    "logging/__init__.py",
    "optparse.py",
    "pickle.py",
    "random.py",
    "shutil.py",
    "statistics.py",
    "subprocess.py",
    "tarfile.py",
    "textwrap.py",
    "threading.py",
    "tokenize.py",
    "typing.py",
    "zipfile.py",
)


@dataclass(frozen=True, kw_only=True)
class Data:
    """A data set, split and ready to train on."""

    name: str
    train: TensorDataset
    """Pairs of an input and its target."""
    test: TensorDataset
    input_shape: tuple[int, ...]
    """The shape of one input, without the batch."""
    num_classes: int
    """The number of classes, or for text the vocabulary."""
    kind: Kind


def load_digits(seed: int = 0) -> Data:
    """The 1,797 handwritten digits that come with scikit-learn, as (1, 8, 8) images.

    A fifth of each digit's images is the test set; ``seed`` chooses which.
    """
    try:
        from sklearn import datasets, model_selection
    except ImportError as missing:
        raise ImportError(
            "The digits come with scikit-learn, which is not installed; "
            "run: pip install 'paceline[lab]'"
        ) from missing
    pixels, labels = datasets.load_digits(return_X_y=True)
    split = model_selection.train_test_split(
        pixels, labels, test_size=0.2, stratify=labels, random_state=seed
    )
    train_images, test_images = (
        torch.tensor(part, dtype=torch.float32).view(-1, 1, 8, 8) / 16 for part in split[:2]
    )
    train_labels, test_labels = (torch.tensor(part, dtype=torch.long) for part in split[2:])
    # One mean for all pixels: some are never inked and have no variance of their own.
    mean, std = train_images.mean(), train_images.std()
    return Data(
        name="digits",
        train=TensorDataset((train_images - mean) / std, train_labels),
        test=TensorDataset((test_images - mean) / std, test_labels),
        input_shape=(1, 8, 8),
        num_classes=10,
        kind="image",
    )


def load_stdlib_text(*, context: int = 64, max_train_windows: int = 2000) -> Data:
    """The source of Python's standard library, as windows of ASCII characters.

    The target of each character is the one that follows it. The windows do not overlap, and the
    last tenth of them is the test set. The text differs a little between Python versions.
    """
    max_windows = max_train_windows * 10 // 9
    characters = _stdlib_characters(max_windows * (context + 1))
    num_windows = len(characters) // (context + 1)
    num_test = num_windows // 10
    if num_test == 0:
        raise ValueError(
            f"The text has only {num_windows} windows of {context + 1} characters, too few to "
            "split; ask for a shorter context or more windows, or use a Python that comes with "
            "its library's source."
        )
    codes = torch.tensor(list(characters[: num_windows * (context + 1)]), dtype=torch.long)
    windows = codes.view(num_windows, context + 1)
    inputs, targets = windows[:, :-1].contiguous(), windows[:, 1:].contiguous()
    num_train = num_windows - num_test
    return Data(
        name="stdlib-text",
        train=TensorDataset(inputs[:num_train], targets[:num_train]),
        test=TensorDataset(inputs[num_train:], targets[num_train:]),
        input_shape=(context,),
        num_classes=128,
        kind="text",
    )


def _stdlib_characters(max_characters: int) -> bytes:
    """The first ASCII characters of the files, one after the other; others become "?"."""
    folder = Path(sysconfig.get_path("stdlib"))
    text = b""
    for file in (folder / name for name in _STDLIB_FILES):
        if len(text) >= max_characters:
            break
        if file.is_file():
            text += file.read_text(encoding="utf-8", errors="replace").encode("ascii", "replace")
    return text[:max_characters]


_LOADERS: dict[str, Callable[[int], Data]] = {
    "digits": load_digits,
    # the text is split by position, so that no test window lies within training text
    "stdlib-text": lambda seed: load_stdlib_text(),
}


def data_names() -> list[str]:
    """The names that :func:`load_data` knows."""
    return list(_LOADERS)


def load_data(name: str, seed: int = 0) -> Data:
    """Load an embedded data set.

    Args:
        name: One of :func:`data_names`.
        seed: Chooses the split into training and test set, where there is a choice.
    """
    loader = _LOADERS.get(name.strip().lower().replace("_", "-"))
    if loader is None:
        raise ValueError(f"There is no data set {name!r}: {suggestion(name, data_names())}")
    return loader(seed)


def load_data_for(model_name: str, data_name: str, seed: int = 0) -> Data:
    """Load a data set in the shape that a model of the zoo reads.

    Args:
        model_name: A model's name.
        data_name: One of :func:`data_names`; ValueError if its samples do not fit the model.
        seed: Chooses the split, where there is a choice.
    """
    entry, data = zoo_entry(model_name), load_data(data_name, seed)
    if (entry.kind, entry.input_shape) == (data.kind, data.input_shape):
        return data
    # The pixels of an image are features.
    is_flat = (entry.kind, data.kind) == ("features", "image")
    if not is_flat or math.prod(entry.input_shape) != math.prod(data.input_shape):
        raise ValueError(
            f"the model {entry.name} reads inputs of shape {entry.input_shape} ({entry.kind}), and "
            f"the data set {data.name} has {data.input_shape} ({data.kind}); leave --data out to "
            "get data that fits"
        )
    flat = [
        TensorDataset(inputs.view(-1, *entry.input_shape), targets)
        for inputs, targets in (data.train.tensors, data.test.tensors)
    ]
    return replace(
        data, train=flat[0], test=flat[1], input_shape=entry.input_shape, kind="features"
    )


def default_data_for(model_name: str) -> str:
    """The data set that a model of the zoo is trained on here."""
    entry = zoo_entry(model_name)
    if entry.data is None:
        fitted = ", ".join(name for name in model_names() if zoo_entry(name).data is not None)
        raise ValueError(
            f"No embedded data set fits the model {entry.name!r}; "
            f"bring your own data, or choose one of: {fitted}."
        )
    return entry.data
