"""What every part of a checkpoint has in common: frozen, tolerant of names, strict about types."""

from __future__ import annotations

import operator
from collections.abc import Callable, Mapping
from enum import StrEnum
from typing import Annotated, Any, Self

from pydantic import (
    AfterValidator,
    AliasChoices,
    AliasGenerator,
    BaseModel,
    ConfigDict,
    Field,
    ValidationError,
)
from pydantic.alias_generators import to_camel
from pydantic.fields import FieldInfo

from syncd.canonical import MAX_DEPTH
from syncd.errors import InvalidInputError
from syncd.vocabulary import known, zoned


def choice(names: type[StrEnum], aliases: Mapping[str, str]) -> Callable[[Any], Any]:
    def convert(value: Any) -> Any:
        return (known(value, names, aliases) or value) if isinstance(value, str) else value

    return convert


def shortest(number: float) -> int | float:
    """A whole number as an integer: the form in which it is written."""
    return int(number) if number.is_integer() and number < 2**53 else number


Timestamp = Annotated[str, AfterValidator(zoned)]
Count = Annotated[int, Field(ge=0, lt=2**53)]
Amount = Annotated[float, Field(ge=0, allow_inf_nan=False), AfterValidator(shortest)]
Percent = Annotated[float, Field(ge=0, le=100, allow_inf_nan=False), AfterValidator(shortest)]
Texts = list[str]


def extra(default: Any = "", *names: str, **options: Any) -> Any:
    """An addition to schema 1.0: written only when set. `names` are accepted beside its own."""
    if names:
        options["validation_alias"] = either(*names)
    return Field(default, exclude_if=operator.not_, **options)


def stored(member: StrEnum) -> Any:
    """A default that is kept like any other value: as plain text."""
    return Field(member.value)


def also(*names: str) -> Any:
    """A list of schema 1.0 that other tools call by other names."""
    return Field(default_factory=list, validation_alias=either(*names))


def either(*names: str) -> AliasChoices:
    """Any of these names, in camelCase too."""
    return AliasChoices(*dict.fromkeys((*names, *map(to_camel, names))))


def optional() -> Any:
    """An addition that may well be zero or false: written unless it is None."""
    return Field(None, exclude_if=lambda value: value is None)


def extra_list() -> Any:
    return Field(default_factory=list, exclude_if=operator.not_)


def extra_dict(description: str | None = None) -> Any:
    return Field(default_factory=dict, exclude_if=operator.not_, description=description)


class Part(BaseModel):
    """A frozen value with S1's conversions; unknown fields are kept."""

    model_config = ConfigDict(
        frozen=True,
        extra="allow",
        allow_inf_nan=False,
        use_enum_values=True,
        validate_by_name=True,
        alias_generator=AliasGenerator(validation_alias=lambda n: AliasChoices(n, to_camel(n))),
    )

    def to_dict(self) -> dict[str, Any]:
        return self.dumped(mode="json")

    def dumped(self, **options: Any) -> dict[str, Any]:
        """Pydantic's dump, which gives up on endless nesting with a word of its own."""
        try:
            return self.model_dump(**options)
        except (ValueError, RecursionError):
            raise InvalidInputError(f"nested deeper than {MAX_DEPTH} levels") from None

    def amended(self, **changes: Any) -> Self:
        """A copy with trusted changes, at half the price of `model_copy`."""
        copy = object.__new__(type(self))
        object.__setattr__(copy, "__dict__", {**self.__dict__, **changes})
        object.__setattr__(copy, "__pydantic_fields_set__", self.__pydantic_fields_set__)
        object.__setattr__(copy, "__pydantic_extra__", self.__pydantic_extra__)
        object.__setattr__(copy, "__pydantic_private__", None)
        return copy

    @classmethod
    def named(cls, data: Mapping[str, Any]) -> dict[str, Any]:
        """The same document under the fields' own names, not checked."""
        names = {alias: name for name, f in cls.model_fields.items() for alias in _accepted(f)}
        result: dict[str, Any] = {}
        for key, value in data.items():
            name = key if key in cls.model_fields else names.get(key, key)
            kind = cls.model_fields[name].annotation if name in cls.model_fields else None
            if isinstance(value, Mapping) and isinstance(kind, type) and issubclass(kind, Part):
                value = kind.named(value)
            result[name] = value
        return result

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> Self:
        """Build from a document; what is wrong with it is said with its path."""
        try:
            return cls.model_validate(data)
        except ValidationError as error:
            raise InvalidInputError(explained(error)) from None
        except RecursionError:
            raise InvalidInputError(f"nested deeper than {MAX_DEPTH} levels") from None


def _accepted(field: FieldInfo) -> list[str]:
    """The names under which a field may come."""
    alias = field.validation_alias
    choices = alias.choices if isinstance(alias, AliasChoices) else []
    return [name for name in choices if isinstance(name, str)]


def explained(error: ValidationError) -> str:
    """Pydantic's findings in one line: where, what. A union's branches count as one finding."""
    findings: dict[str, str] = {}
    for item in error.errors(include_url=False):
        steps = [str(step) for step in item["loc"]]
        path = ".".join(step for step in steps if not _is_branch(step)) or "document"
        either = "should be a text or an object" if any(map(_is_branch, steps)) else item["msg"]
        findings.setdefault(path, either)
    lines = [f"{path}: {text}" for path, text in findings.items()]
    more = len(lines) - _SHOWN_FINDINGS
    return "; ".join(lines[:_SHOWN_FINDINGS]) + (f"; and {more} more" if more > 0 else "")


_SHOWN_FINDINGS = 5


def _is_branch(step: str) -> bool:
    """The name of a union's branch stands in an error's path, but in no document."""
    return step == "str" or step in {kind.__name__ for kind in Part.__subclasses__()}
