"""Reading manifests: typed values out of the dicts that YAML and the API server give. Pure.

The API server checks most of this by the schemas in `crds/`. Here it is checked for manifests that never
saw one (the local stack), and for objects that are older than a rule.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

Object = Mapping[str, Any]
"""A Kubernetes object, or a part of one."""


class InvalidSpec(Exception):
    """A manifest that makes no sense; `str()` of it is the sentence to show."""


class Fields:
    """The fields of one object, which lies at `path` (`spec.brokers`), read by type."""

    def __init__(self, values: Object | None, path: str) -> None:
        if values is not None and not isinstance(values, Mapping):
            raise InvalidSpec(f"{path} must be an object with fields, not {_shown(values)}.")
        self._values: Object = values or {}
        self._path = path

    def inner(self, name: str) -> Fields:
        """The object in the field `name`; one without fields if there is none."""
        return Fields(self._values.get(name), self._of(name))

    def has(self, name: str) -> bool:
        return self._values.get(name) is not None

    def text(self, name: str) -> str:
        """The text in `name`, which must be there."""
        value = self.text_or_none(name)
        if value is None:
            raise InvalidSpec(f"{self._of(name)} is missing.")
        return value

    def text_or_none(self, name: str) -> str | None:
        value = self._values.get(name)
        if value is None:
            return None
        if not isinstance(value, str) or not value:
            raise InvalidSpec(f"{self._of(name)} must be a string, not {_shown(value)}.")
        return value

    def choice(self, name: str, choices: Sequence[str], default: str | None = None) -> str:
        value = self.text_or_none(name) or default
        if value is None:
            raise InvalidSpec(f"{self._of(name)} is missing: it is one of {', '.join(choices)}.")
        if value not in choices:
            raise InvalidSpec(f"{self._of(name)} must be one of {', '.join(choices)}, not {value!r}.")
        return value

    def integer(self, name: str, minimum: int, maximum: int, default: int | None = None) -> int:
        value = self.integer_or_none(name, minimum, maximum)
        if value is None:
            value = default
        if value is None:
            raise InvalidSpec(f"{self._of(name)} is missing: it is a number from {minimum} to {maximum}.")
        return value

    def integer_or_none(self, name: str, minimum: int, maximum: int) -> int | None:
        value = self._values.get(name)
        if value is None:
            return None
        if not isinstance(value, int) or isinstance(value, bool):
            raise InvalidSpec(f"{self._of(name)} must be an integer, not {_shown(value)}.")
        if not minimum <= value <= maximum:
            raise InvalidSpec(f"{self._of(name)} must be from {minimum} to {maximum}, not {value}.")
        return value

    def boolean(self, name: str, default: bool) -> bool:
        value = self._values.get(name, default)
        if value is None:
            return default
        if not isinstance(value, bool):
            raise InvalidSpec(f"{self._of(name)} must be true or false, not {_shown(value)}.")
        return value

    def texts(self, name: str) -> tuple[str, ...]:
        """The list of texts in `name`; empty if there is none."""
        values = self._values.get(name)
        if values is None:
            return ()
        if not isinstance(values, list | tuple) or not all(isinstance(item, str) for item in values):
            raise InvalidSpec(f"{self._of(name)} must be a list of strings.")
        return tuple(values)

    def objects(self, name: str) -> tuple[Object, ...]:
        """The list of objects in `name`, as they are."""
        values = self._values.get(name)
        if values is None:
            return ()
        if not isinstance(values, list | tuple) or not all(isinstance(item, Mapping) for item in values):
            raise InvalidSpec(f"{self._of(name)} must be a list of objects.")
        return tuple(values)

    def raw(self, name: str) -> Object | None:
        """The object in `name` as it is: one whose meaning is Kubernetes' own."""
        value = self._values.get(name)
        if value is not None and not isinstance(value, Mapping):
            raise InvalidSpec(f"{self._of(name)} must be an object, not {_shown(value)}.")
        return value

    def settings(self, name: str) -> dict[str, str | None]:
        """The settings in `name` as the text that brokers take; null stays None."""
        inner = self.inner(name)
        return {key: inner.setting(key) for key in sorted(self.raw(name) or {})}

    def setting(self, name: str) -> str | None:
        """The number, text or truth in `name` as a broker would read it from a file."""
        match self._values.get(name):
            case None:
                return None
            case bool() as truth:
                return str(truth).lower()
            case (int() | float() | str()) as value if "\n" not in str(value):
                return str(value)
            case _:
                raise InvalidSpec(f"{self._of(name)} must be a number, or a string of one line.")

    def _of(self, name: str) -> str:
        return f"{self._path}.{name}"


def _shown(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 40 else text[:37] + "..."
