"""The base of the cluster's values: frozen, validated, and with errors of one sentence."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Annotated, Any, Self, get_args

from pydantic import (
    BaseModel,
    ConfigDict,
    Field,
    ValidationError,
    ValidationInfo,
    ValidatorFunctionWrapHandler,
    field_validator,
    model_validator,
)
from pydantic.fields import FieldInfo

from paceline.suggestion import suggestion


@dataclass(frozen=True)
class Accepts:
    """Goes into a field's annotation: what to write there in a TOML file."""

    what: str


Positive = Annotated[float, Field(gt=0), Accepts("a number above 0 such as 1.5")]
NotNegative = Annotated[float, Field(ge=0), Accepts("a number of at least 0 such as 0.05")]
Share = Annotated[float, Field(ge=0, lt=1), Accepts("a number from 0 to below 1 such as 0.1")]
PartOfOne = Annotated[float, Field(gt=0, le=1), Accepts("a number above 0 and at most 1")]
Factor = Annotated[float, Field(ge=1), Accepts("a number of at least 1 such as 1.5")]
Count = Annotated[int, Field(ge=1), Accepts("a whole number of at least 1")]
CountOrZero = Annotated[int, Field(ge=0), Accepts("a whole number of at least 0")]
Flag = Annotated[bool, Accepts("true or false")]
Name = Annotated[str, Field(min_length=1), Accepts("a text in quotes that is not empty")]
Text = Annotated[str, Accepts("a text in quotes")]

FROM_FILE = {"from_file": True}
"""The context of values that are read from a TOML table or written to one."""


class BadKeyError(ValueError):
    """Something is wrong with a key of a table, rather than with the table."""

    def __init__(self, problem: str, *path: str) -> None:
        super().__init__(problem)
        self.path = path


class Record(BaseModel):
    """A value whose fields are checked when it is made and cannot be changed afterwards.

    A field's name in a TOML table is its alias, if it has one.
    """

    # Strict: 8.0 workers, or "8", are mistakes to report and not numbers to repair.
    model_config = ConfigDict(
        frozen=True, extra="forbid", strict=True, allow_inf_nan=False, validate_by_name=True
    )

    def __init__(self, **values: Any) -> None:
        try:
            super().__init__(**values)
        except ValidationError as problem:
            # pydantic's own text has several lines and an address; ours is one sentence.
            raise ValueError(_sentence(type(self).__name__, problem)) from None

    # Otherwise pydantic would call it for nested records too, and drop the context.
    __init__.__pydantic_base_init__ = True  # type: ignore[attr-defined]

    @classmethod
    def from_table(cls, table: Any, *, origin: str) -> Self:
        """The record that a TOML table describes; errors begin with ``origin``, the file's name."""
        try:
            return cls.model_validate(table, by_alias=True, by_name=False, context=FROM_FILE)
        except ValidationError as problem:
            raise ValueError(f"{origin}: {_sentence('', problem)}") from None

    def to_table(self, *names: str) -> dict[str, Any]:
        """A TOML table of the fields ``names``, without those that have their default."""
        values = self.model_dump(include=set(names), exclude_defaults=True, context=FROM_FILE)
        fields = type(self).model_fields
        return {
            _key(name, fields[name]): value for name, value in values.items() if value is not None
        }

    @classmethod
    def table_keys(cls) -> list[str]:
        """The keys of its TOML table."""
        return [_key(name, field) for name, field in cls.model_fields.items()]

    def replace(self, **changes: Any) -> Self:
        """A copy with some fields changed, validated like a new value."""
        fields = type(self).model_fields
        values = {name: getattr(self, name) for name in fields}
        names = {field.alias or name: name for name, field in fields.items()}
        return type(self)(**values | {names.get(key, key): changes[key] for key in changes})

    @model_validator(mode="before")
    @classmethod
    def _check_keys(cls, values: Any, info: ValidationInfo) -> Any:
        """Before anything is read: the key that seems to be missing is often the misspelt one."""
        if isinstance(values, cls):
            return values
        if not isinstance(values, Mapping):
            kind = _table_of(cls) if info.context else f"a {cls.__name__}"
            raise ValueError(f"has to be {kind}, not {values!r}")
        if info.context:
            check_keys(values, cls.table_keys())
        else:  # Python code may use a field's name or its alias, and should use its name.
            check_keys([key for key in values if key not in cls.table_keys()], cls.model_fields)
        for name, field in cls.model_fields.items():
            if field.is_required() and name not in values and _key(name, field) not in values:
                if info.context:
                    raise BadKeyError(f"is missing: write {_accepted(field)}", _key(name, field))
                raise BadKeyError("is missing", name)
        return values

    @field_validator("*", mode="wrap")
    @classmethod
    def _say_what_is_accepted(
        cls, value: Any, check: ValidatorFunctionWrapHandler, info: ValidationInfo
    ) -> Any:
        try:
            return check(value)
        except ValidationError as problem:
            (first, *_) = problem.errors(include_url=False)
            # What is wrong further inside, and our own parsers' errors, say more.
            if not info.context or first["loc"] or "error" in first.get("ctx", {}):
                raise
            accepted = _accepted(cls.model_fields[info.field_name or ""])
            raise ValueError(f"has to be {accepted}, not {value!r}") from None


def check_keys(table: Iterable[str], known: Iterable[str], *path: str) -> None:
    """Refuse a table, which lies at ``path`` in the one that is read, if it has an unknown key."""
    names = list(known)
    for key in table:
        if key not in names:
            raise BadKeyError(f"is not a known key: {suggestion(key, names)}", *path, key)


def _key(name: str, field: FieldInfo) -> str:
    return str(field.validation_alias or name)


def _accepted(field: FieldInfo) -> str:
    # In ``Share | None`` it is an argument of the union that is annotated.
    inner = (each for part in get_args(field.annotation) for each in get_args(part))
    for each in (*field.metadata, *inner):
        if isinstance(each, Accepts):
            return each.what
    assert isinstance(field.annotation, type)
    assert issubclass(field.annotation, Record)
    return _table_of(field.annotation)


def _table_of(kind: type[Record]) -> str:
    return f"a table with the keys {', '.join(kind.table_keys())}"


def _sentence(place: str, problem: ValidationError) -> str:
    """What is wrong with the first field that is."""
    (first, *_) = problem.errors(include_url=False)
    cause = first.get("ctx", {}).get("error")
    keys = (*first["loc"], *(cause.path if isinstance(cause, BadKeyError) else ()))
    for key in keys:
        if isinstance(key, int):
            place += f"[{key}]"
        else:
            shown = key if key and key.isprintable() else repr(key)
            place += f".{shown}" if place else shown
    if isinstance(cause, ValueError):
        # A validator of a whole record speaks in sentences of its own.
        return f"{place}{' ' if keys else ': ' if place else ''}{cause}"
    message = first["msg"][0].lower() + first["msg"][1:]
    return f"{place}: {message}, not {first['input']!r}"
