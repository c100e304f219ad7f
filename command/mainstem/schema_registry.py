"""A schema registry as a client sees it, over HTTP. Works with any registry that has Confluent's API.

The login and the authorities are client properties, with the names of Confluent's serializers:
`basic.auth.user.info` is USER:PASSWORD, and `schema.registry.ssl.ca.location` a file in PEM.
"""

from __future__ import annotations

import base64
import http.client
import json
import ssl
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, Final

from mainstem.errors import BadInput, ClusterRefused, ClusterUnreachable

DEFAULT_PORT: Final = 8081
USER_INFO: Final = "basic.auth.user.info"
AUTHORITIES: Final = "schema.registry.ssl.ca.location"
_READ_TIMEOUT_SECONDS: Final = 10.0
_WRITE_TIMEOUT_SECONDS: Final = 30.0  # the registry waits for brokers that elect a leader
_NO_PROPERTIES: Final[Mapping[str, str]] = MappingProxyType({})
_CONTENT_TYPE: Final = "application/vnd.schemaregistry.v1+json"


class RegistryRefused(ClusterRefused):
    """The registry answered with an error. `code` is its error code, such as 40401."""

    def __init__(self, code: int, message: str) -> None:
        super().__init__(message)
        self.code = code


@dataclass(frozen=True, slots=True)
class SchemaDefinition:
    """A schema to be registered or checked. `references`: (name, subject, version)."""

    type: str
    text: str
    references: Sequence[tuple[str, str, int]] = ()

    def body(self) -> dict[str, Any]:
        references = [
            {"name": name, "subject": subject, "version": version}
            for name, subject, version in self.references
        ]
        return {"schema": self.text, "schemaType": self.type, "references": references}


class SchemaRegistry:
    """The registry at `url`. Every method raises ClusterUnreachable or RegistryRefused."""

    def __init__(self, url: str, properties: Mapping[str, str] = _NO_PROPERTIES) -> None:
        """The registry at `url`, by the client properties for its login and its certificate.

        Raises:
            BadInput: the URL is none or contains a login, or a property cannot be used. The message does not
                show what may be a password.
        """
        self.url = url.rstrip("/")
        if "@" in self.url:
            raise BadInput(
                "The URL of the schema registry contains a login; leave it out, and name it by the client"
                f" property {USER_INFO}."
            )
        if not _is_url(self.url):
            raise BadInput(
                f"{url!r} is not the URL of a schema registry: write http://host:port or https://host:port."
            )
        self._user_info = properties.get(USER_INFO)
        if self._user_info is not None and ":" not in self._user_info:
            raise BadInput(f"The client property {USER_INFO} is not of the form USER:PASSWORD.")
        self._context = _tls_context(properties)

    def subjects(self, *, deleted: bool = False) -> list[str]:
        names: list[str] = self._request("GET", "/subjects", {"deleted": deleted})
        return names

    def versions(self, subject: str, *, deleted: bool = False) -> list[int]:
        numbers: list[int] = self._request(
            "GET", f"/subjects/{_path(subject)}/versions", {"deleted": deleted}
        )
        return numbers

    def version(self, subject: str, version: int | str, *, deleted: bool = False) -> dict[str, Any]:
        """{"subject", "version", "id", "schema"}, and "schemaType" and "references" where they are set."""
        answer: dict[str, Any] = self._request(
            "GET", f"/subjects/{_path(subject)}/versions/{_path(str(version))}", {"deleted": deleted}
        )
        return answer

    def schema(self, schema_id: int) -> dict[str, Any]:
        """{"schema"}, and "schemaType" and "references" where they are set."""
        answer: dict[str, Any] = self._request("GET", f"/schemas/ids/{schema_id}")
        return answer

    def register(self, subject: str, schema: SchemaDefinition, *, normalize: bool = False) -> int:
        """The schema's id."""
        path = f"/subjects/{_path(subject)}/versions"
        return int(self._request("POST", path, {"normalize": normalize}, schema.body())["id"])

    def find(self, subject: str, schema: SchemaDefinition, *, normalize: bool = False) -> dict[str, Any]:
        """The version of a subject that has this schema."""
        answer: dict[str, Any] = self._request(
            "POST", f"/subjects/{_path(subject)}", {"normalize": normalize}, schema.body()
        )
        return answer

    def problems(self, subject: str, schema: SchemaDefinition, version: str | None = None) -> list[str]:
        """Why the schema is not compatible with the subject; empty if it is."""
        path = f"/compatibility/subjects/{_path(subject)}/versions"
        path += "" if version is None else f"/{_path(version)}"
        answer = self._request("POST", path, {"verbose": True}, schema.body())
        if answer["is_compatible"]:
            return []
        return [str(message) for message in answer.get("messages", [])] or ["the schema is not compatible"]

    def delete(self, subject: str, version: str | None = None, *, permanent: bool = False) -> list[int]:
        """The versions that were deleted."""
        path = f"/subjects/{_path(subject)}" + ("" if version is None else f"/versions/{_path(version)}")
        answer = self._request("DELETE", path, {"permanent": permanent})
        return [int(number) for number in (answer if isinstance(answer, list) else [answer])]

    def compatibility(self, subject: str | None = None) -> str:
        """The level that holds for a subject, or for all."""
        if subject is None:
            return str(self._request("GET", "/config")["compatibilityLevel"])
        path = f"/config/{_path(subject)}"
        return str(self._request("GET", path, {"defaultToGlobal": True})["compatibilityLevel"])

    def set_compatibility(self, level: str, subject: str | None = None) -> None:
        path = "/config" if subject is None else f"/config/{_path(subject)}"
        self._request("PUT", path, {}, {"compatibility": level})

    def _request(
        self, method: str, path: str, flags: Mapping[str, bool] | None = None, body: Any = None
    ) -> Any:
        query = "&".join(f"{name}=true" for name, is_set in (flags or {}).items() if is_set)
        try:
            request = urllib.request.Request(
                f"{self.url}{path}{'?' + query if query else ''}",
                data=None if body is None else json.dumps(body).encode(),
                headers={"Content-Type": _CONTENT_TYPE, "Accept": _CONTENT_TYPE},
                method=method,
            )
            if self._user_info is not None:
                # Not sent on to where an answer redirects.
                encoded = base64.b64encode(self._user_info.encode()).decode()
                request.add_unredirected_header("Authorization", f"Basic {encoded}")
            timeout_s = _READ_TIMEOUT_SECONDS if method == "GET" else _WRITE_TIMEOUT_SECONDS
            with urllib.request.urlopen(request, timeout=timeout_s, context=self._context) as answer:
                return json.loads(answer.read())
        except urllib.error.HTTPError as error:
            raise _refused(self.url, error.code, error.read()) from error
        except (OSError, ValueError, http.client.HTTPException) as error:
            reason = getattr(error, "reason", error)
            if isinstance(reason, ssl.SSLCertVerificationError):
                raise ClusterUnreachable(
                    f"The schema registry at {self.url} is not trusted ({reason.verify_message}): name the"
                    f" file of its authorities by {AUTHORITIES} in a file of client properties, and use"
                    " -X @FILE."
                ) from error
            raise ClusterUnreachable(
                f"No schema registry answers at {self.url} ({_cause(reason)}): check the address and whether"
                " it is http or https, name another with --registry, or start one with"
                " `mainstem up --schema-registry`."
            ) from error


def registry_is_ready(url: str, timeout_seconds: float = 2.0) -> bool:
    """Whether one of our registries at `url` has read its topic and knows a leader."""
    try:
        with urllib.request.urlopen(f"{url}/readyz", timeout=timeout_seconds) as answer:
            return bool(answer.status == 200)
    except (OSError, ValueError):
        return False


def _tls_context(properties: Mapping[str, str]) -> ssl.SSLContext | None:
    """For HTTPS with authorities of one's own; None for the system's."""
    file = properties.get(AUTHORITIES)
    if not file:
        return None
    try:
        return ssl.create_default_context(cafile=file)
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or str(error)
        raise BadInput(
            f"The client property {AUTHORITIES} cannot be used ({reason}): name a file in PEM."
        ) from error


def _refused(url: str, status: int, body: bytes) -> RegistryRefused:
    if status == 401:
        return RegistryRefused(
            status,
            f"The schema registry at {url} refuses the login: write {USER_INFO}=USER:PASSWORD into a file"
            " that only you may read, and use -X @FILE.",
        )
    try:
        answer = json.loads(body)
        return RegistryRefused(int(answer["error_code"]), str(answer["message"]))
    except (ValueError, KeyError, TypeError):
        return RegistryRefused(status, f"{url} answered with status {status}: is it a schema registry?")


def _cause(reason: object) -> str:
    if isinstance(reason, TimeoutError):
        return "no answer in time"
    if isinstance(reason, ssl.SSLEOFError) or getattr(reason, "reason", None) == "WRONG_VERSION_NUMBER":
        return "it does not speak TLS"
    return (reason.strerror if isinstance(reason, OSError) else None) or str(reason)


def _path(subject: str) -> str:
    return urllib.parse.quote(subject, safe="")


def _is_url(text: str) -> bool:
    try:
        parts = urllib.parse.urlsplit(text)
        named = bool(parts.hostname) and parts.port != 0  # a port that is no number raises, too
    except ValueError:
        return False
    return named and parts.scheme in ("http", "https") and text.isprintable() and " " not in text
