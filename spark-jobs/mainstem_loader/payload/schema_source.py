"""Schemas by id, from a schema registry over HTTP. The only module of payloads that uses the network.

The login and the authorities come from client properties, with the names of Confluent's serializers:
`basic.auth.user.info` is USER:PASSWORD, and `schema.registry.ssl.ca.location` a file in PEM.
"""

from __future__ import annotations

import base64
import http.client
import json
import ssl
import time
import urllib.error
import urllib.request
from collections.abc import Mapping
from http import HTTPStatus
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import quote

from mainstem_loader.columns import ColumnError
from mainstem_loader.errors import RegistryUnreachableError, SettingsError
from mainstem_loader.payload.avro_schema import WriterSchema, parse_writer_schema
from mainstem_loader.whole_numbers import is_whole_number

if TYPE_CHECKING:
    from mainstem_loader.payload.protobuf_schema import ProtobufSchema

TRIES: Final = 5
RETRY_S: Final = 1.0
TIMEOUT_S: Final = 20.0
RETRY_AFTER_S_MAX: Final = 30.0
"""How long a registry may have a load wait before it tries again."""
REFERENCES_MAX: Final = 200
USER_INFO: Final = "basic.auth.user.info"
AUTHORITIES: Final = "schema.registry.ssl.ca.location"
_NO_PROPERTIES: Final[Mapping[str, str]] = MappingProxyType({})
_ACCEPT: Final = "application/vnd.schemaregistry.v1+json"
_UNKNOWN_CODES: Final = (40401, 40402, 40403)
"""Confluent's error codes of a subject, version or schema that does not exist."""
_PASSING_STATUSES: Final = (
    HTTPStatus.REQUEST_TIMEOUT,
    HTTPStatus.TOO_EARLY,
    HTTPStatus.TOO_MANY_REQUESTS,
)


def check_registry_url(url: str) -> None:
    """Refuse a login in the URL of a registry: URLs are in command lines, resources and messages.

    Raises:
        SettingsError: there may be one. The message does not show the URL.
    """
    if "@" in url:
        raise SettingsError(
            "The URL of the schema registry contains a login; leave it out, and name it by the client"
            f" property {USER_INFO}."
        )


def check_registry_properties(properties: Mapping[str, str]) -> None:
    """Refuse client properties by which requests to a registry would fail later.

    Raises:
        SettingsError: a property cannot be used. The message does not show what may be a password.
    """
    if ":" not in properties.get(USER_INFO, ":"):
        raise SettingsError(f"The client property {USER_INFO} is not of the form USER:PASSWORD.")
    _context(properties)


def _context(properties: Mapping[str, str]) -> ssl.SSLContext | None:
    """For HTTPS with authorities of one's own; None for the system's."""
    file = properties.get(AUTHORITIES)
    if not file:
        return None
    try:
        return ssl.create_default_context(cafile=file)
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or str(error)
        raise SettingsError(
            f"The client property {AUTHORITIES} cannot be used ({reason}); it names a file in PEM."
        ) from error


class SchemaSource:
    """The schemas of one registry. Each call is a request, or several; `SchemasById` keeps the answers."""

    def __init__(self, url: str, properties: Mapping[str, str] = _NO_PROPERTIES) -> None:
        self._url = url.rstrip("/")
        self._context = _context(properties)
        self._user_info = properties.get(USER_INFO)

    def writer_schema(self, schema_id: int) -> WriterSchema:
        """The Avro schema of an id.

        Raises:
            ColumnError: the registry does not know the id, or it is none of an Avro schema that can be read.
            RegistryUnreachableError: the registry does not answer.
        """
        answer = self._get(f"/schemas/ids/{schema_id}", f"the id {schema_id} of a schema")
        if answer.get("schemaType", "AVRO") != "AVRO":
            raise ColumnError(f"schema {schema_id} is {answer['schemaType']}, not Avro")
        texts: dict[tuple[str, int], str] = {}
        self._add_references(answer, texts, {}, "")
        try:
            return parse_writer_schema(str(answer["schema"]), list(texts.values()))
        except ColumnError as error:
            raise ColumnError(f"schema {schema_id}: {error}") from error

    def check_json(self, schema_id: int) -> None:
        """See that an id is of a JSON Schema.

        Raises:
            ColumnError, RegistryUnreachableError: as of `writer_schema`.
        """
        answer = self._get(f"/schemas/ids/{schema_id}", f"the id {schema_id} of a schema")
        schema_type = answer.get("schemaType", "AVRO")
        if schema_type != "JSON":
            raise ColumnError(f"schema {schema_id} is {schema_type}, not JSON")

    def protobuf_schema(self, schema_id: int) -> ProtobufSchema:
        """The Protobuf schema of an id.

        Raises:
            ColumnError, RegistryUnreachableError: as of `writer_schema`.
        """
        # Loads of other formats do not wait for its libraries.
        from mainstem_loader.payload.protobuf_schema import NoDescriptorError, parse_schema

        what = f"the id {schema_id} of a schema"
        answer = self._get(f"/schemas/ids/{schema_id}?format=serialized", what)
        schema_type = answer.get("schemaType", "AVRO")
        if schema_type != "PROTOBUF":
            raise ColumnError(f"schema {schema_id} is {schema_type}, not Protobuf")
        texts: dict[tuple[str, int], str] = {}
        names: dict[str, str] = {}
        self._add_references(answer, texts, names, "&format=serialized")
        try:
            return parse_schema(str(answer["schema"]), list(names.items()))
        except NoDescriptorError as error:
            raise RegistryUnreachableError(
                f"The schema registry at {self._url} does not give the descriptor of Protobuf schema"
                f" {schema_id} (format=serialized): use a registry or a version of it that does, then load"
                " again. Nothing of this run was loaded."
            ) from error
        except ColumnError as error:
            raise ColumnError(f"schema {schema_id}: {error}") from error

    def _add_references(
        self, answer: Any, texts: dict[tuple[str, int], str], names: dict[str, str], query: str
    ) -> None:
        """Add the texts of what a schema references, what is referenced before what refers; by version, and
        by the names that schemas have for it.
        """
        for reference in answer.get("references") or ():
            place = str(reference["subject"]), int(reference["version"])
            if place not in texts:
                if len(texts) > REFERENCES_MAX:
                    raise ColumnError(f"the schema references more than {REFERENCES_MAX} others")
                subject, version = place
                # Versions that are softly deleted still give meaning to records.
                path = f"/subjects/{quote(subject, safe='')}/versions/{version}?deleted=true{query}"
                schema = self._get(path, f"version {version} of subject {subject!r}")
                self._add_references(schema, texts, names, query)
                texts[place] = str(schema["schema"])
            names.setdefault(str(reference["name"]), texts[place])

    def _get(self, path: str, what: str) -> Any:
        reason, wait_s = "", RETRY_S
        for attempt in range(TRIES):
            if attempt:
                time.sleep(wait_s)
            wait_s = RETRY_S
            try:
                status, retry_after, body = self._request(path)
            except (OSError, http.client.HTTPException, ValueError) as error:
                cause = getattr(error, "reason", error)
                reason = str(cause) or type(cause).__name__
                if isinstance(cause, ssl.SSLCertVerificationError):
                    reason += f"; {AUTHORITIES} in the file of client properties names whom to trust"
                    break
                continue
            content = _object_of(body)
            if status == HTTPStatus.OK:
                if "schema" in content:
                    return content
                reason = "it did not answer with a schema"
                continue
            # The 404 of any web server says nothing.
            if status == HTTPStatus.NOT_FOUND and content.get("error_code") in _UNKNOWN_CODES:
                raise ColumnError(f"the schema registry does not know {what}")
            reason = f"status {status}"
            if status == HTTPStatus.UNAUTHORIZED:
                reason = f"it refuses the login; correct {USER_INFO} in the file of client properties"
            if status < HTTPStatus.INTERNAL_SERVER_ERROR and status not in _PASSING_STATUSES:
                break
            if is_whole_number(retry_after):
                wait_s = min(float(retry_after), RETRY_AFTER_S_MAX)
        raise RegistryUnreachableError(
            f"The schema registry at {self._url} cannot be asked for {what} ({reason}): check its address and"
            " that it runs, then load again. Nothing of this run was loaded."
        )

    def _request(self, path: str) -> tuple[int, str, bytes]:
        """The status, the header `Retry-After` of a refusal (RFC 9110) and the body of an answer."""
        request = urllib.request.Request(self._url + path, headers={"Accept": _ACCEPT})
        if self._user_info is not None:
            # Not sent on to where an answer redirects.
            encoded = base64.b64encode(self._user_info.encode()).decode()
            request.add_unredirected_header("Authorization", f"Basic {encoded}")
        try:
            with urllib.request.urlopen(request, timeout=TIMEOUT_S, context=self._context) as answer:
                return HTTPStatus.OK, "", answer.read()
        except urllib.error.HTTPError as error:
            with error:
                return error.code, error.headers.get("Retry-After", ""), error.read()


def _object_of(body: bytes) -> dict[str, Any]:
    """A JSON object; an empty one for anything else."""
    try:
        content = json.loads(body)
    except (ValueError, RecursionError):
        return {}
    return content if isinstance(content, dict) else {}
