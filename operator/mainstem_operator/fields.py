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
            raise InvalidSpec(f"{path} is to be an object with fields, not {_shown(values)}.")
        self._values: Object = values or {}
        self._path = path

    def inner(self, name: str) -> Fields:
        """The object in the field `name`; one without fields if there is none."""
        return Fields(self._values.get(name), self._of(name))

    def has(self, name: str) -> bool:
        return self._values.get(name) is not None

    def text(self, name: str) -> str:
        """The text in `name`, which must be there."""
        found = self.text_or_none(name)
        if found is None:
            raise InvalidSpec(f"{self._of(name)} is missing.")
        return found

    def text_or_none(self, name: str) -> str | None:
        found = self._values.get(name)
        if found is None:
            return None
        if not isinstance(found, str) or not found:
            raise InvalidSpec(f"{self._of(name)} is to be a text, not {_shown(found)}.")
        return found

    def choice(self, name: str, choices: Sequence[str], default: str | None = None) -> str:
        found = self.text_or_none(name) or default
        if found is None:
            raise InvalidSpec(f"{self._of(name)} is missing: it is one of {', '.join(choices)}.")
        if found not in choices:
            raise InvalidSpec(f"{self._of(name)} is to be one of {', '.join(choices)}, not {found!r}.")
        return found

    def integer(self, name: str, minimum: int, maximum: int, default: int | None = None) -> int:
        found = self.integer_or_none(name, minimum, maximum)
        if found is None:
            found = default
        if found is None:
            raise InvalidSpec(f"{self._of(name)} is missing: it is a number from {minimum} to {maximum}.")
        return found

    def integer_or_none(self, name: str, minimum: int, maximum: int) -> int | None:
        found = self._values.get(name)
        if found is None:
            return None
        if not isinstance(found, int) or isinstance(found, bool):
            raise InvalidSpec(f"{self._of(name)} is to be a whole number, not {_shown(found)}.")
        if not minimum <= found <= maximum:
            raise InvalidSpec(f"{self._of(name)} is to be from {minimum} to {maximum}, not {found}.")
        return found

    def boolean(self, name: str, default: bool) -> bool:
        found = self._values.get(name, default)
        if found is None:
            return default
        if not isinstance(found, bool):
            raise InvalidSpec(f"{self._of(name)} is to be true or false, not {_shown(found)}.")
        return found

    def texts(self, name: str) -> tuple[str, ...]:
        """The list of texts in `name`; empty if there is none."""
        found = self._values.get(name) or ()
        if isinstance(found, str) or not all(isinstance(item, str) for item in found):
            raise InvalidSpec(f"{self._of(name)} is to be a list of texts.")
        return tuple(found)

    def objects(self, name: str) -> tuple[Object, ...]:
        """The list of objects in `name`, as they are."""
        found = self._values.get(name) or ()
        if isinstance(found, str) or not all(isinstance(item, Mapping) for item in found):
            raise InvalidSpec(f"{self._of(name)} is to be a list of objects.")
        return tuple(found)

    def raw(self, name: str) -> Object | None:
        """The object in `name` as it is: one whose meaning is Kubernetes' own."""
        found = self._values.get(name)
        if found is not None and not isinstance(found, Mapping):
            raise InvalidSpec(f"{self._of(name)} is to be an object, not {_shown(found)}.")
        return found

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
                raise InvalidSpec(f"{self._of(name)} is to be a number, or a text of one line.")

    def _of(self, name: str) -> str:
        return f"{self._path}.{name}"


def _shown(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 40 else text[:37] + "..."
