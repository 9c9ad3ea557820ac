"""The base of the cluster's values: frozen, validated, and with errors of one sentence."""

from __future__ import annotations

import difflib
from typing import Annotated, Any, Self

from pydantic import BaseModel, ConfigDict, Field, ValidationError

Positive = Annotated[float, Field(gt=0)]
NotNegative = Annotated[float, Field(ge=0)]
Share = Annotated[float, Field(ge=0, lt=1)]
Count = Annotated[int, Field(ge=1)]
CountOrZero = Annotated[int, Field(ge=0)]
Name = Annotated[str, Field(min_length=1)]


class Record(BaseModel):
    """A value whose fields are checked when it is made and cannot be changed afterwards."""

    # Strict: 8.0 workers, or "8", are mistakes to report and not numbers to repair.
    model_config = ConfigDict(
        frozen=True, extra="forbid", strict=True, allow_inf_nan=False, populate_by_name=True
    )

    def __init__(self, **values: Any) -> None:
        try:
            super().__init__(**values)
        except ValidationError as problem:
            # pydantic's own text has several lines and an address; ours is one sentence.
            raise ValueError(_sentence(type(self), problem)) from None

    def replace(self, **changes: Any) -> Self:
        """A copy with some fields changed, validated like a new value."""
        fields = type(self).model_fields
        values = {name: getattr(self, name) for name in fields}
        names = {field.alias or name: name for name, field in fields.items()}
        return type(self)(**values | {names.get(key, key): changes[key] for key in changes})


def _sentence(kind: type[Record], problem: ValidationError) -> str:
    noun = kind.__name__
    # A misspelt field is reported twice, as missing and as unknown; unknown says more.
    first = min(problem.errors(include_url=False), key=lambda error: error["type"] == "missing")
    cause = first.get("ctx", {}).get("error")
    if isinstance(cause, ValueError):  # raised by one of our own validators
        return f"{noun}: {cause}"
    field = ".".join(str(part) for part in first["loc"])
    if first["type"] == "extra_forbidden" and field not in kind.model_fields:
        close = difflib.get_close_matches(field, kind.model_fields, n=1)
        hint = f"did you mean {close[0]!r}?" if close else f"known: {', '.join(kind.model_fields)}"
        return f"{noun}.{field}: there is no such field; {hint}"
    message = first["msg"][0].lower() + first["msg"][1:]
    given = "" if first["type"] in ("missing", "too_short") else f", not {first['input']!r}"
    return f"{noun}.{field}: {message}{given}"
