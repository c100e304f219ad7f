"""The catalog of Iceberg tables: which one, how it is opened, and what is done to its answers.

A catalog is named by a URL: `http://...` of a REST catalog, or `sqlite:///...` of a file. Whatever else
pyiceberg knows of a catalog, such as credentials, it takes from the environment
(`PYICEBERG_CATALOG__MAINSTEM__CREDENTIAL=...`) or from `.pyiceberg.yaml`, where the catalog is called
`mainstem`.

Must not live here: what a commit means.
"""

from __future__ import annotations

import os
import secrets
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from mainstem_loader.errors import DiskFullError, SettingsError, WarehouseError
from mainstem_loader.table.folder import Folder, explaining_file_errors, shortened
from mainstem_loader.table.formats import CommitConflictError

if TYPE_CHECKING:
    from pyiceberg.catalog import Catalog
    from pyiceberg.table import CommitTableResponse, Table
    from pyiceberg.table.update import TableRequirement, TableUpdate

CATALOG_NAME: Final = "mainstem"
DEFAULT_NAMESPACE: Final = "mainstem"
# No Delta table can be called so, nor be in this folder.
ICEBERG_FOLDER: Final = "_iceberg"
_SQLITE: Final = "sqlite:///"
_CATALOG_TABLES: Final = 2
"""Of tables and of namespaces."""
_REST: Final = ("http://", "https://")


@dataclass(frozen=True, slots=True)
class IcebergCatalog:
    """Which catalog, and which namespace in it. `uri` None: a file in the warehouse, which has to be a folder
    on a disk.
    """

    uri: str | None = None
    namespace: str = DEFAULT_NAMESPACE

    def check(self, warehouse: Folder) -> None:
        """Refuse a catalog that cannot be.

        Raises:
            SettingsError: see there.
        """
        if not self.namespace or any(not part or part.startswith("_") for part in self.namespace.split(".")):
            raise SettingsError(
                f"No namespace can be called {self.namespace!r}; name one that begins with a letter."
            )
        if self.uri is None:
            if not warehouse.is_local:
                raise SettingsError(
                    f"Iceberg tables in {warehouse} need a catalog: name one, such as http://catalog:8181."
                )
        elif not self.uri.startswith((_SQLITE, *_REST)):
            raise SettingsError(
                "A catalog of Iceberg tables is named by its URL, such as http://catalog:8181 or"
                " sqlite:////folder/catalog.sqlite."
            )

    def open(self, warehouse: Folder) -> Catalog:
        """The catalog; the same object for the same settings.

        Raises:
            SettingsError: see `check`.
        """
        self.check(warehouse)
        return _opened(self._uri_in(warehouse), warehouse)

    def new_location(self, warehouse: Folder, table: str) -> str | None:
        """Where a new table is to be, at a place that no other table has had: catalogs of files may know
        different tables of one name, and files that one of them does not know are orphans to it. None where
        the catalog decides.
        """
        uri = self._uri_in(warehouse)
        if not uri.startswith(_SQLITE):
            return None
        return f"{_place(warehouse)}/{self.namespace}/{shortened(table)}-{secrets.token_hex(4)}"

    def is_there(self, warehouse: Folder) -> bool:
        """Whether the catalog has been used: one in the warehouse is made by the first load."""
        uri = self._uri_in(warehouse)
        return not uri.startswith(_SQLITE) or Path(uri.removeprefix(_SQLITE)).exists()

    def _uri_in(self, warehouse: Folder) -> str:
        return self.uri or f"{_SQLITE}{Path(warehouse.url).absolute()}/{ICEBERG_FOLDER}/catalog.sqlite"


def _place(warehouse: Folder) -> str:
    absolute = str(Path(warehouse.url).absolute()) if warehouse.is_local else warehouse.url
    return f"{absolute}/{ICEBERG_FOLDER}"


@cache
def _opened(uri: str, warehouse: Folder) -> Catalog:
    from pyiceberg.catalog import load_catalog

    properties = {"uri": uri}
    if warehouse.is_local:
        properties["py-io-impl"] = "mainstem_loader.table.synced_files.SyncedFileIO"
    else:
        properties["s3.region"] = os.environ.get("AWS_REGION", "us-east-1")
        if endpoint := os.environ.get("AWS_ENDPOINT_URL"):
            properties["s3.endpoint"] = endpoint
    if uri.startswith(_SQLITE):
        Path(uri.removeprefix(_SQLITE)).parent.mkdir(parents=True, exist_ok=True)
        return _opened_file(properties | {"warehouse": _place(warehouse)})
    # All snapshots, or ancestors that are not sent would be taken for expired.
    properties |= {"type": "rest", "snapshot-loading-mode": "all"}
    return load_catalog(CATALOG_NAME, **properties)


def _opened_file(properties: Mapping[str, str]) -> Catalog:
    from pyiceberg.catalog.sql import SqlCatalog
    from sqlalchemy import NullPool, create_engine
    from sqlalchemy.exc import SQLAlchemyError

    class FileCatalog(SqlCatalog):  # type: ignore[misc]  # PyIceberg has no types for it
        """Its connections end with their transactions: a file that could not be written when it was opened
        would go on being read only, and a catalog that cannot be opened would leave one.
        """

        def _init_catalog(self) -> None:
            self.engine = create_engine(self.properties["uri"], poolclass=NullPool)
            super()._init_catalog()

    # Loaders that begin at once may each fail of each of the catalog's own tables, which one of them makes.
    for _ in range(_CATALOG_TABLES):
        with suppress(SQLAlchemyError):
            return FileCatalog(CATALOG_NAME, **properties)
    return FileCatalog(CATALOG_NAME, **properties)


class CommitOnceCatalog:
    """A catalog that answers a commit once, for one snapshot of a table.

    pyiceberg repeats a refused append on top of the commit that was faster, as often as a property of the
    table says, which anybody may set. A load that was overtaken would so be added a second time. It also
    deletes the manifests of a commit that it takes for refused, although a catalog may refuse the repetition
    of a request whose first answer was lost. Both depend on `CommitFailedException`; here it becomes an error
    of ours. All else goes to the catalog itself.

    Args:
        catalog: the real one.
        requirements: hold at the commit, or it is refused.
    """

    def __init__(self, catalog: Catalog, requirements: tuple[TableRequirement, ...]) -> None:
        self._catalog = catalog
        self._requirements = requirements

    def __getattr__(self, name: str) -> Any:
        return getattr(self._catalog, name)

    def commit_table(
        self,
        table: Table,
        requirements: tuple[TableRequirement, ...],
        updates: tuple[TableUpdate, ...],
    ) -> CommitTableResponse:
        from pyiceberg.exceptions import CommitFailedException

        try:
            return self._catalog.commit_table(table, (*requirements, *self._requirements), updates)
        except CommitFailedException as error:
            raise CommitConflictError(str(error)) from error


@contextmanager
def explaining_catalog_errors(table: str, folder: Folder) -> Iterator[None]:
    """Turns the errors of pyiceberg and of what is below it into the loader's.

    Args:
        table: its name, for people.
        folder: of the warehouse.
    """
    from requests import RequestException

    errors = library_errors()
    with explaining_file_errors(folder):
        try:
            yield
        except errors as error:
            # An error of HTTP is an OSError, too, but has nothing to do with files.
            if isinstance(error, OSError) and not isinstance(error, FileNotFoundError | RequestException):
                raise
            reason = (str(error).splitlines() or [type(error).__name__])[0]
            if "database or disk is full" in reason:
                raise DiskFullError(
                    f"The disk of {folder} is full; nothing of this run was loaded. Free some room, then"
                    " load again."
                ) from error
            raise WarehouseError(
                f"The Iceberg table {table} cannot be read or written ({reason}); check that its catalog"
                " answers and that the table is whole."
            ) from error


@cache
def library_errors() -> tuple[type[Exception], ...]:
    """Errors of pyiceberg, of SQL, of HTTP and of files. After one of them a commit may have been made."""
    from pyiceberg import exceptions
    from requests import RequestException
    from sqlalchemy.exc import SQLAlchemyError

    of_pyiceberg = [
        kind
        for kind in vars(exceptions).values()
        if isinstance(kind, type) and issubclass(kind, Exception) and kind.__module__ == exceptions.__name__
    ]
    return (*of_pyiceberg, SQLAlchemyError, RequestException, ValueError, OSError)
