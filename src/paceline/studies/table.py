"""A study's results: one row per point."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from paceline.studies.points import Array


@dataclass(frozen=True, kw_only=True)
class StudyTable:
    """Columns of equal length."""

    columns: Mapping[str, Array]

    def __len__(self) -> int:
        return len(next(iter(self.columns.values())))

    def __getitem__(self, name: str) -> Array:
        return self.columns[name]

    def where(self, **values: Any) -> StudyTable:
        """The rows in which the named columns have the given values."""
        kept = np.ones(len(self), dtype=bool)
        for name, value in values.items():
            kept &= self.columns[name] == value
        return StudyTable(columns={name: column[kept] for name, column in self.columns.items()})

    def rows(self) -> Iterator[dict[str, Any]]:
        """One dict of plain values per point."""
        plain = {name: column.tolist() for name, column in self.columns.items()}
        for values in zip(*plain.values(), strict=True):
            yield dict(zip(plain, values, strict=True))

    def to_pandas(self) -> Any:
        """A pandas DataFrame; needs pandas, which paceline does not install."""
        try:
            import pandas
        except ImportError:
            raise ValueError("to_pandas() needs pandas: pip install pandas") from None
        return pandas.DataFrame(dict(self.columns))

    def to_csv(self) -> str:
        """Comma-separated text with a header."""
        text = io.StringIO()
        writer = csv.writer(text, lineterminator="\n")
        writer.writerow(self.columns)
        writer.writerows(zip(*(column.tolist() for column in self.columns.values()), strict=True))
        return text.getvalue()

    def to_list(self) -> list[dict[str, Any]]:
        """One object per point for JSON; what is not known is None."""
        return [{key: _finite(value) for key, value in row.items()} for row in self.rows()]


def _finite(value: Any) -> Any:
    return None if isinstance(value, float) and not np.isfinite(value) else value
