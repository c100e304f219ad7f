"""A transform as a person writes it down, checked before anything is read.

Must not live here: Spark.
"""

from __future__ import annotations

import importlib
import os
import re
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Final

from mainstem_loader.column_types import columns_of
from mainstem_loader.columns import Columns
from mainstem_loader.errors import SettingsError
from mainstem_loader.payload.readers import PayloadFormat

RECORDS_VIEW: Final = "records"
"""The view of the topic's records."""
DEADLINE_SECONDS: Final = 3600
DEADLINE_SECONDS_MAX: Final = 6 * 3600
"""A run has to commit within twelve hours of its first file (`table.sweep`)."""

_VIEW_NAME: Final = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_FUNCTION: Final = re.compile(r"[A-Za-z_]\w*(?:\.[A-Za-z_]\w*)*:[A-Za-z_]\w*", re.ASCII)
_TABLE: Final = "table"
_TOPIC: Final = "topic"


@dataclass(frozen=True, slots=True)
class TopicInput:
    """Another topic, read from its beginning by each load.

    Attributes:
        topic: its name, on the same brokers.
        payload: how values become columns.
        columns: payload fields whose type is given; they are columns of the view even if no record has them.
    """

    topic: str
    payload: PayloadFormat = PayloadFormat.JSON
    columns: Columns = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class TableInput:
    """A table of the same warehouse, as it is when the load reads it."""

    table: str


@dataclass(frozen=True, slots=True)
class Transform:
    """Exactly one of `sql` and `function` is set.

    Attributes:
        sql: a statement of Spark SQL that returns rows.
        function: `module:function`; called with the DataFrame of the records, and with the inputs by name.
        inputs: what else is a view, by name.
        deadline_s: how long one run may take.
    """

    sql: str | None = None
    function: str | None = None
    inputs: Mapping[str, TopicInput | TableInput] = field(default_factory=dict)
    deadline_s: int = DEADLINE_SECONDS

    def check(self) -> None:
        """Refuse what cannot be a transform.

        Raises:
            SettingsError: see there; also when the function does not exist.
        """
        if (self.sql is None) == (self.function is None):
            raise SettingsError("A transform is either a SQL statement or a Python function; name one.")
        if self.sql is not None and not self.sql.strip(" \t\r\n;"):
            raise SettingsError(
                "The transform's SQL is empty; write a statement such as SELECT * FROM records."
            )
        if not 1 <= self.deadline_s <= DEADLINE_SECONDS_MAX:
            raise SettingsError(
                f"The transform's deadline is {self.deadline_s} s; it must be from 1 to"
                f" {DEADLINE_SECONDS_MAX} s."
            )
        for name in self.inputs:
            if not _VIEW_NAME.fullmatch(name) or name.casefold() == RECORDS_VIEW:
                raise SettingsError(
                    f"No input can be called {name!r}; use letters, digits and _, beginning with a letter,"
                    f" and not {RECORDS_VIEW}, which is the topic."
                )
        if len({name.casefold() for name in self.inputs}) < len(self.inputs):
            raise SettingsError("Two inputs have names that differ in case alone; rename one.")
        if self.function is not None:
            function_of(self.function)


def declared_transform(
    source: str | None,
    statement: str | None,
    inputs: Sequence[str],
    input_columns: Sequence[str],
    deadline_s: int = DEADLINE_SECONDS,
) -> Transform | None:
    """The transform that the options of a command line describe; None if they name none.

    Args:
        source: see `transform_of`.
        statement: of SQL.
        inputs: see `input_of`.
        input_columns: `NAME.FIELD=TYPE`, types of fields of inputs that are topics.
        deadline_s: how long one run may take.

    Raises:
        SettingsError: they contradict each other, or one of them cannot be read.
    """
    if source is None and statement is None:
        if inputs or input_columns:
            raise SettingsError("Inputs are views of a transform; name the transform, or leave them out.")
        return None
    if source is not None and statement is not None:
        raise SettingsError("The transform is given twice; name a file or function, or give the statement.")
    transform = Transform(sql=statement) if source is None else transform_of(source)
    views = dict(map(input_of, inputs))
    if len(views) < len(inputs):
        raise SettingsError("Two inputs have the same name; rename one.")
    types_of: dict[str, list[str]] = {}
    for option in input_columns:
        name, _, column = option.partition(".")
        if not isinstance(views.get(name), TopicInput):
            raise SettingsError(
                f"{option!r} gives a type to a field of {name!r}, which is no input that is a topic; write"
                " NAME.FIELD=TYPE."
            )
        types_of.setdefault(name, []).append(column)
    for name, options in types_of.items():
        view = views[name]
        assert isinstance(view, TopicInput)
        views[name] = replace(view, columns=columns_of(options))
    return replace(transform, inputs=views, deadline_s=deadline_s)


def transform_of(text: str) -> Transform:
    """The transform that a command line names.

    Args:
        text: `module:function`, or a file with a statement of SQL.

    Raises:
        SettingsError: there is no such file.
    """
    if _FUNCTION.fullmatch(text):
        return Transform(function=text)
    try:
        return Transform(sql=Path(text).read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError) as error:
        raise SettingsError(
            f"The transform {text} cannot be read; name a file with a SQL statement, or a function as"
            " module:function."
        ) from error


def input_of(text: str) -> tuple[str, TopicInput | TableInput]:
    """The input that a command line names: `NAME=table:TABLE` or `NAME=topic:TOPIC[:FORMAT]`.

    Raises:
        SettingsError: the text is neither.
    """
    name, _, where = text.partition("=")
    kind, _, rest = where.partition(":")
    source, _, payload = rest.partition(":")
    if kind == _TABLE and source and not payload:
        return name, TableInput(source)
    if kind == _TOPIC and source and payload in ("", *PayloadFormat):
        return name, TopicInput(source, PayloadFormat(payload) if payload else PayloadFormat.JSON)
    raise SettingsError(
        f"{text!r} is no input; write NAME=table:TABLE or NAME=topic:TOPIC, the latter with :avro,"
        " :protobuf, :json-schema or :raw behind it where values are not JSON."
    )


def function_of(name: str) -> Callable[..., Any]:
    """The function that `module:function` names.

    The current folder is searched, too, in this process and in those that Spark starts.

    Raises:
        SettingsError: there is no such function.
    """
    if not _FUNCTION.fullmatch(name):
        raise SettingsError(f"{name!r} is no function; write module:function, such as orders:clean.")
    module_name, _, function_name = name.partition(":")
    here = str(Path.cwd())
    if here not in sys.path:
        sys.path.insert(0, here)
        os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, [here, os.environ.get("PYTHONPATH", "")]))
    try:
        function = getattr(importlib.import_module(module_name), function_name, None)
    except (Exception, SystemExit) as error:
        raise SettingsError(
            f"Module {module_name} of the transform cannot be imported ({type(error).__name__}: {error});"
            " correct it, or install what it needs into the image."
        ) from error
    if not callable(function):
        raise SettingsError(
            f"Module {module_name} has no function {function_name}; see the transform's name."
        )
    found: Callable[..., Any] = function
    return found
