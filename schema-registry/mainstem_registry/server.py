"""The HTTP API: paths, parameters and answers, as Kafka's clients know them from Confluent's Schema Registry.

Each handler parses its request, asks `operations` through the registry, and shapes the answer.
"""

from __future__ import annotations

import asyncio
import ssl
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any, Final
from urllib.parse import unquote_to_bytes, urlsplit

import aiohttp
import orjson
import structlog
from aiohttp import web

from mainstem_registry import errors, operations
from mainstem_registry.addresses import is_loopback
from mainstem_registry.errors import RegistryError
from mainstem_registry.logins import Logins
from mainstem_registry.metrics import Metrics
from mainstem_registry.records import reference_object
from mainstem_registry.registry import Decision, NotLeader, Registry
from mainstem_registry.requests import ALL_CONTEXTS, parse_object, parse_schema_request, scalar, unqualified
from mainstem_registry.schemas.schema import PARSERS, SchemaText
from mainstem_registry.state import RegistryState, Version
from mainstem_registry.whole_numbers import is_whole_number

logger = structlog.get_logger(__name__)

CONTENT_TYPE: Final = "application/vnd.schemaregistry.v1+json"
PRODUCED: Final = (CONTENT_TYPE, "application/vnd.schemaregistry+json", "application/json")
"""Content types of answers, the preferred one first."""
CONSUMED: Final = frozenset((*PRODUCED, "application/octet-stream"))
"""Content types of requests. Both lists are those of Confluent's registry (its `Versions.java`)."""
BODY_BYTES_MAX: Final = 3 * 1024 * 1024
"""A schema of 1 MiB, escaped in JSON, and what belongs to it."""
BODY_TIMEOUT_S: Final = 60.0
"""Bounds what clients hold that stop in the middle of a request."""
FORWARD_TIMEOUT_S: Final = 40.0
FORWARDED: Final = "X-Forward"
OFFSET: Final = "X-Schemas-Offset"
"""In the leader's answer to a forwarded write: what the other instance has to read before it answers."""

OPEN: Final = ("/livez", "/readyz")
"""Paths for probes, which have no user."""
OWN: Final = (*OPEN, "/metrics")
"""Paths that Confluent's registry does not have. Their content types are not negotiated."""
USER: Final = web.RequestKey("user", str)
"""Of a request that has logged in."""
CHALLENGE: Final = 'Basic realm="schema registry", charset="UTF-8"'

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


class UnreadableBody(RegistryError):
    """The body of a request is not what its headers say."""


class Server:
    """The application around one registry."""

    def __init__(
        self,
        registry: Registry,
        metrics: Metrics,
        logins: Logins | None = None,
        peers: ssl.SSLContext | None = None,
    ) -> None:
        """`logins`: who may use it; None admits everybody. `peers`: for connections to the other instances,
        if all have TLS.
        """
        self._registry = registry
        self._metrics = metrics
        self._logins = logins
        self._peers = peers
        self._session: aiohttp.ClientSession | None = None

    def application(self) -> web.Application:
        middlewares = [self._answer_errors, self._authenticate, self._check_content_types]
        application = web.Application(client_max_size=BODY_BYTES_MAX, middlewares=middlewares)
        application.cleanup_ctx.append(self._client_session)
        version = "/subjects/{subject}/versions/{version}"
        routes = [
            web.get("/", self._root),
            web.get("/livez", self._livez),
            web.get("/readyz", self._readyz),
            web.get("/metrics", self._metrics_text),
            web.get("/v1/metadata/version", self._registry_version),
            web.get("/contexts", self._contexts),
            web.get("/schemas", self._schemas),
            web.get("/schemas/types", self._types),
            web.get("/schemas/ids/{id}", self._schema_by_id),
            web.get("/schemas/ids/{id}/schema", self._schema_text_by_id),
            web.get("/schemas/ids/{id}/subjects", self._subjects_of_id),
            web.get("/schemas/ids/{id}/versions", self._versions_of_id),
            web.get("/subjects", self._subjects),
            web.post("/subjects/{subject}", self._look_up),
            web.delete("/subjects/{subject}", self._delete_subject),
            web.get("/subjects/{subject}/versions", self._versions),
            web.post("/subjects/{subject}/versions", self._register),
            web.get(version, self._version),
            web.get(version + "/schema", self._schema_text),
            web.get(version + "/referencedby", self._referenced_by),
            web.delete(version, self._delete_version),
            web.post("/compatibility/subjects/{subject}/versions", self._check),
            web.post("/compatibility/subjects/{subject}/versions/{version}", self._check),
            web.get("/config", self._config),
            web.put("/config", self._set_config),
            web.delete("/config", self._delete_config),
            web.get("/config/{subject}", self._config),
            web.put("/config/{subject}", self._set_config),
            web.delete("/config/{subject}", self._delete_config),
            web.get("/mode", self._mode),
            web.put("/mode", self._set_mode),
            web.delete("/mode", self._delete_mode),
            web.get("/mode/{subject}", self._mode),
            web.put("/mode/{subject}", self._set_mode),
            web.delete("/mode/{subject}", self._delete_mode),
        ]
        application.add_routes(routes)
        # Jersey, on which Confluent's registry is built, ignores one slash at the end of a path.
        application.add_routes(
            [
                web.RouteDef(route.method, route.path + "/", route.handler, route.kwargs)
                for route in routes
                if route.path not in ("/", *OWN)
            ]
        )
        return application

    async def _client_session(self, _: web.Application) -> Any:
        async with aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=FORWARD_TIMEOUT_S)) as session:
            self._session = session
            yield

    # What is common to all requests.

    @web.middleware
    async def _answer_errors(self, request: web.Request, handler: Handler) -> web.StreamResponse:
        started = time.monotonic()
        try:
            if not _is_utf8(request.raw_path):
                raise RegistryError(400, "The path of the request is not UTF-8 text.")
            response = await handler(request)
        except RegistryError as error:
            response = _error(error.status, error.code, error.message)
            if isinstance(error, UnreadableBody):
                response.force_close()  # where the next request begins is unknown
            if error.status == 401:
                response.headers["WWW-Authenticate"] = CHALLENGE
        except web.HTTPMethodNotAllowed as error:
            is_options = request.method == "OPTIONS"
            response = web.Response() if is_options else _error(405, 405, "HTTP 405 Method Not Allowed")
            response.headers["Allow"] = ", ".join(sorted({*error.allowed_methods, "OPTIONS"}))
        except web.HTTPException as error:
            message = "HTTP 404 Not Found" if error.status == 404 else error.text
            response = _error(error.status, error.status, message or error.reason)
        except RecursionError:
            response = _error(422, 42201, "Invalid schema: it is nested too deeply.")
        except Exception:
            logger.exception("request failed", method=request.method, path=request.path)
            response = _error(500, 50001, "Internal error; the registry's log has the details.")
        if response.content_type == CONTENT_TYPE:
            response.content_type = _negotiated(request) or CONTENT_TYPE
        resource = request.match_info.route.resource
        route = resource.canonical.rstrip("/") or "/" if resource is not None else "none"
        self._metrics.count_request(request.method, route, response.status, time.monotonic() - started)
        return response

    @web.middleware
    async def _authenticate(self, request: web.Request, handler: Handler) -> web.StreamResponse:
        resource = request.match_info.route.resource
        if self._logins is not None and (resource is None or resource.canonical not in OPEN):
            header = request.headers.get("Authorization")
            request[USER] = await self._logins.user_of(header, request.remote or "")
        return await handler(request)

    @web.middleware
    async def _check_content_types(self, request: web.Request, handler: Handler) -> web.StreamResponse:
        resource = request.match_info.route.resource
        if resource is None or resource.canonical in OWN:
            return await handler(request)
        if request.method in ("POST", "PUT") and request.content_type not in CONSUMED:
            raise RegistryError(415, f"The Content-Type of the request must be {' or '.join(PRODUCED)}.")
        if _negotiated(request) is None:
            raise RegistryError(406, f"Answers have the content type {' or '.join(PRODUCED)}.")
        return await handler(request)

    async def _read(self, query: Callable[[RegistryState], Any], *, newest: bool = False) -> Any:
        return await self._registry.read(query, newest=newest)

    async def _write(
        self, request: web.Request, decide: Decision[Any], shape: Callable[[Any], Any]
    ) -> web.StreamResponse:
        # A client that goes away does not stop a write half way: the next would have to read first.
        writing = asyncio.ensure_future(self._registry.write(decide))
        try:
            answer = await asyncio.shield(writing)
        except NotLeader as error:
            if FORWARDED in request.headers:
                raise errors.leader_unknown() from None
            return await self._forward(request, error.leader_url)
        logger.info("written", method=request.method, path=request.path, user=request.get(USER))
        response = _json(shape(answer))
        response.headers[OFFSET] = str(self._registry.store.next_offset - 1)
        return response

    async def _forward(self, request: web.Request, leader_url: str) -> web.StreamResponse:
        assert self._session is not None
        if self._peers is not None and not leader_url.startswith("https://"):
            raise errors.forwarding_failed(f"{leader_url} has no TLS, as this instance has")
        if self._logins is not None and not _keeps_passwords(leader_url):
            raise errors.forwarding_failed(f"{leader_url} has no TLS, and the request has a password")
        headers = {FORWARDED: "true", "Content-Type": CONTENT_TYPE}
        if self._logins is not None:
            # The leader sees to it itself who it is.
            headers["Authorization"] = request.headers["Authorization"]
        try:
            async with self._session.request(
                request.method,
                leader_url + request.raw_path,
                data=await _body(request),
                headers=headers,
                allow_redirects=False,
                ssl=self._peers if self._peers is not None else True,
            ) as answer:
                body = await answer.read()
        except (aiohttp.ClientError, TimeoutError) as error:
            raise errors.forwarding_failed(f"{leader_url}: {error or type(error).__name__}") from error
        offset = answer.headers.get(OFFSET, "")
        if answer.status < 300 and is_whole_number(offset):
            # Whoever wrote through this instance reads its own write from it.
            await self._registry.store.wait_for(int(offset))
        return web.Response(
            body=body,
            status=answer.status,
            headers={"Content-Type": answer.headers.get("Content-Type", CONTENT_TYPE)},
        )

    # The program itself.

    async def _root(self, _: web.Request) -> web.StreamResponse:
        return _json({})

    async def _livez(self, _: web.Request) -> web.StreamResponse:
        return _json({"alive": True})

    async def _readyz(self, _: web.Request) -> web.StreamResponse:
        reasons = []
        if not self._registry.store.loaded.is_set():
            reasons.append("the topic is being read")
        if self._registry.election.leader_url is None:
            reasons.append("no leader is known")
        body = {"ready": not reasons, "reasons": reasons, "leader": self._registry.election.leader_url}
        return _json(body, 503 if reasons else 200)

    async def _metrics_text(self, _: web.Request) -> web.StreamResponse:
        content_type, text = self._metrics.text(self._registry)
        return web.Response(body=text, headers={"Content-Type": content_type})

    async def _registry_version(self, _: web.Request) -> web.StreamResponse:
        return _json({"version": "mainstem", "commitId": ""})

    async def _contexts(self, _: web.Request) -> web.StreamResponse:
        return _json(["."])  # the one that every registry has

    # Schemas.

    async def _types(self, _: web.Request) -> web.StreamResponse:
        return _json(sorted(PARSERS))

    async def _schemas(self, request: web.Request) -> web.StreamResponse:
        prefix = _subject_prefix(request)
        deleted, latest_only = _flag(request, "deleted"), _flag(request, "latestOnly")

        def query(state: RegistryState) -> list[Version]:
            chosen = []
            for subject in state.subjects():
                if subject.startswith(prefix):
                    versions = state.versions(subject, deleted=deleted)
                    chosen += versions[-1:] if latest_only else versions
            return chosen

        return _json([_version_object(version) for version in _page(request, await self._read(query))])

    async def _schema_by_id(self, request: web.Request) -> web.StreamResponse:
        schema_id, shape = _id(request), _shape(request)
        schema, highest_id = await self._read(
            lambda state: (shape(state, _schema(state, schema_id)), state.highest_id)
        )
        answer = _schema_object(schema)
        return _json(answer | {"maxId": highest_id} if _flag(request, "fetchMaxId") else answer)

    async def _schema_text_by_id(self, request: web.Request) -> web.StreamResponse:
        schema_id, shape = _id(request), _shape(request)
        schema = await self._read(lambda state: shape(state, _schema(state, schema_id)))
        return web.Response(text=schema.text, content_type="application/json")

    async def _subjects_of_id(self, request: web.Request) -> web.StreamResponse:
        versions = await self._holders(request)
        return _json(_page(request, sorted({version.subject for version in versions})))

    async def _versions_of_id(self, request: web.Request) -> web.StreamResponse:
        versions = await self._holders(request)
        return _json(
            [{"subject": version.subject, "version": version.number} for version in _page(request, versions)]
        )

    async def _holders(self, request: web.Request) -> list[Version]:
        schema_id, deleted = _id(request), _flag(request, "deleted")
        subject = unqualified(request.query.get("subject", ""))

        def query(state: RegistryState) -> list[Version]:
            if state.schema(schema_id) is None:
                raise errors.schema_not_found(schema_id)
            return [
                version
                for version in state.holders(schema_id)
                if (deleted or not version.is_deleted) and subject in ("", version.subject)
            ]

        versions: list[Version] = await self._read(query)
        return versions

    # Subjects and versions.

    async def _subjects(self, request: web.Request) -> web.StreamResponse:
        prefix = _subject_prefix(request)
        deleted, deleted_only = _flag(request, "deleted"), _deleted_only(request)

        def query(state: RegistryState) -> list[str]:
            return [
                subject
                for subject in state.subjects()
                if subject.startswith(prefix) and _chosen(state.versions(subject), deleted, deleted_only)
            ]

        return _json(_page(request, await self._read(query)))

    async def _versions(self, request: web.Request) -> web.StreamResponse:
        subject = _subject(request)
        deleted, deleted_only = _flag(request, "deleted"), _deleted_only(request)

        def query(state: RegistryState) -> list[int]:
            versions = _chosen(state.versions(subject), deleted, deleted_only)
            if not versions:
                raise errors.subject_not_found(subject)
            return [version.number for version in versions]

        return _json(_page(request, await self._read(query)))

    async def _version(self, request: web.Request) -> web.StreamResponse:
        version = await self._find_version(request)
        return _json(_version_object(version))

    async def _schema_text(self, request: web.Request) -> web.StreamResponse:
        version = await self._find_version(request)
        return web.Response(text=version.schema.text, content_type="application/json")

    async def _referenced_by(self, request: web.Request) -> web.StreamResponse:
        version = await self._find_version(request, deleted=True)
        referrers = self._registry.store.state.referrers(version.subject, version.number)
        return _json(_page(request, sorted({referrer.id for referrer in referrers})))

    async def _find_version(self, request: web.Request, *, deleted: bool = False) -> Version:
        subject = _subject(request)
        number = operations.parse_version(request.match_info["version"])
        deleted = deleted or _flag(request, "deleted")
        shape = _shape(request)

        def query(state: RegistryState) -> Version:
            version = operations.find_version(state, subject, number, deleted=deleted)
            return replace(version, schema=shape(state, version.schema))

        version: Version = await self._read(query)
        return version

    async def _look_up(self, request: web.Request) -> web.StreamResponse:
        subject = _subject(request)
        candidate = parse_schema_request(await _body(request))
        normalize, deleted = _flag(request, "normalize"), _flag(request, "deleted")
        shape = _shape(request)

        def query(state: RegistryState) -> Version:
            version = operations.look_up(state, subject, candidate, normalize=normalize, deleted=deleted)
            return replace(version, schema=shape(state, version.schema))

        return _json(_version_object(await self._read(query)))

    async def _register(self, request: web.Request) -> web.StreamResponse:
        subject = _subject(request)
        candidate = parse_schema_request(await _body(request))
        normalize = _flag(request, "normalize")

        def decide(state: RegistryState) -> tuple[Version, Sequence[Any]]:
            registration = operations.register(state, subject, candidate, normalize=normalize)
            return registration.version, registration.records

        # A schema that is registered already needs no leader: every producer asks for its own at its start.
        registered = self._registered_already(subject, candidate, normalize)
        if registered is not None:
            return _json(_registration_object(registered))
        return await self._write(request, decide, _registration_object)

    def _registered_already(self, subject: str, candidate: Any, normalize: bool) -> Version | None:
        if candidate.id is not None or candidate.version is not None:
            return None
        try:
            return operations.look_up(
                self._registry.store.state, subject, candidate, normalize=normalize, deleted=False
            )
        except RegistryError:
            return None  # the leader knows more, and says what is wrong

    async def _delete_subject(self, request: web.Request) -> web.StreamResponse:
        subject, permanent = _subject(request), _flag(request, "permanent")
        return await self._write(
            request, lambda state: operations.delete_subject(state, subject, permanent=permanent), _same
        )

    async def _delete_version(self, request: web.Request) -> web.StreamResponse:
        subject, permanent = _subject(request), _flag(request, "permanent")
        number = operations.parse_version(request.match_info["version"])
        return await self._write(
            request,
            lambda state: operations.delete_version(state, subject, number, permanent=permanent),
            _same,
        )

    async def _check(self, request: web.Request) -> web.StreamResponse:
        subject = _subject(request)
        candidate = parse_schema_request(await _body(request))
        name = request.match_info.get("version")
        number = None if name is None else operations.parse_version(name)
        normalize = _flag(request, "normalize")

        def query(state: RegistryState) -> list[str]:
            schema = operations.canonical(state, candidate.schema, normalize=normalize)
            versions = state.versions(subject, deleted=False)
            if number == -1:
                versions = versions[-1:]  # none of a new subject, which takes any schema
            elif number is not None:
                versions = [operations.find_version(state, subject, number, deleted=False)]
            return operations.check_compatibility(state, subject, schema, versions)

        # A version that another instance has just registered would be missing in the comparison.
        problems = await self._read(query, newest=True)
        answer: dict[str, Any] = {"is_compatible": not problems}
        return _json(answer | {"messages": problems} if _flag(request, "verbose") else answer)

    # Settings.

    async def _config(self, request: web.Request) -> web.StreamResponse:
        subject = _subject_or_all(request)
        fall_back = subject is None or _flag(request, "defaultToGlobal")

        def query(state: RegistryState) -> dict[str, Any]:
            config = state.config(subject)
            if config is None and not fall_back:
                raise errors.compatibility_not_configured(subject or "")
            answer: dict[str, Any] = {"compatibilityLevel": state.compatibility(subject).value}
            if state.normalizes(subject):
                answer["normalize"] = True
            return answer

        return _json(await self._read(query))

    async def _set_config(self, request: web.Request) -> web.StreamResponse:
        subject = _subject_or_all(request)
        content = parse_object(await _body(request))
        unsupported = sorted(
            key
            for key, value in content.items()
            if key not in ("compatibility", "normalize") and value is not None
        )
        if unsupported:
            raise errors.unprocessable(
                f"This registry does not have the setting {unsupported[0][:100]!r}:"
                " compatibility and normalize exist."
            )
        level, normalize = scalar(content, "compatibility"), content.get("normalize")
        if level is None and normalize is None:
            raise errors.invalid_compatibility(level)
        shown = {key: value for key, value in content.items() if value is not None}
        return await self._write(
            request,
            lambda state: (shown, operations.set_config(state, subject, level, normalize)),
            lambda shown: shown | ({"compatibility": str(level).upper()} if level is not None else {}),
        )

    async def _delete_config(self, request: web.Request) -> web.StreamResponse:
        subject = _subject_or_all(request)
        return await self._write(
            request,
            lambda state: operations.delete_config(state, subject),
            lambda config: {"compatibilityLevel": config.compatibility},
        )

    async def _mode(self, request: web.Request) -> web.StreamResponse:
        subject = _subject_or_all(request)
        fall_back = subject is None or _flag(request, "defaultToGlobal")

        def query(state: RegistryState) -> str:
            if state.mode(subject) is None and not fall_back:
                raise errors.mode_not_configured(subject or "")
            return state.effective_mode(subject).value

        return _json({"mode": await self._read(query)})

    async def _set_mode(self, request: web.Request) -> web.StreamResponse:
        subject, force = _subject_or_all(request), _flag(request, "force")
        name = scalar(parse_object(await _body(request)), "mode")
        return await self._write(
            request,
            lambda state: (None, operations.set_mode(state, subject, name, force=force)),
            lambda _: {"mode": str(name).upper()},
        )

    async def _delete_mode(self, request: web.Request) -> web.StreamResponse:
        subject = _subject_or_all(request)
        return await self._write(
            request,
            lambda state: operations.delete_mode(state, subject),
            lambda mode: {"mode": mode.value},
        )


def _json(content: Any, status: int = 200) -> web.Response:
    return web.Response(body=orjson.dumps(content), status=status, headers={"Content-Type": CONTENT_TYPE})


def _error(status: int, code: int, message: str) -> web.Response:
    return _json({"error_code": code, "message": message}, status)


async def _body(request: web.Request) -> bytes:
    """The body, decompressed.

    Raises:
        UnreadableBody: it is not in its Content-Encoding, or the client went away before its end, or stopped
            sending.
    """
    try:
        async with asyncio.timeout(BODY_TIMEOUT_S):
            return await request.read()
    except TimeoutError:
        raise UnreadableBody(
            408, f"The body of the request did not arrive in {BODY_TIMEOUT_S:g} s."
        ) from None
    except (web.RequestPayloadError, ConnectionError) as error:
        reason = getattr(error, "message", "") or str(error)
        raise UnreadableBody(400, f"The body of the request cannot be read: {reason.strip()}.") from None


def _negotiated(request: web.Request) -> str | None:
    """The content type of `PRODUCED` that the client prefers (RFC 9110, section 12.5.1); None if it wants
    none of them.
    """
    qualities: dict[str, float] = {}
    for media_range in ",".join(request.headers.getall("Accept", ())).split(","):
        media, *parameters = (part.strip().lower() for part in media_range.split(";"))
        if media:
            qualities["*/*" if media == "*" else media] = _quality(parameters)  # Java's client sends "*"
    if not qualities:
        return CONTENT_TYPE

    def quality_of(produced: str) -> float:
        return next((qualities[key] for key in (produced, "application/*", "*/*") if key in qualities), 0.0)

    preferred = max(PRODUCED, key=quality_of)
    return preferred if quality_of(preferred) > 0 else None


def _quality(parameters: Sequence[str]) -> float:
    for parameter in parameters:
        if parameter.startswith("q="):
            try:
                quality = float(parameter[2:])
            except ValueError:
                break
            return quality if 0 <= quality <= 1 else 1.0  # which it is not if it is NaN
    return 1.0


def _is_utf8(path: str) -> bool:
    """Whether the bytes of an encoded path are UTF-8. aiohttp leaves others encoded, and two names would be
    one."""
    try:
        unquote_to_bytes(path).decode()
    except UnicodeDecodeError:
        return False
    return True


def _same(answer: Any) -> Any:
    return answer


def _subject(request: web.Request) -> str:
    return unqualified(request.match_info["subject"])


def _subject_or_all(request: web.Request) -> str | None:
    return _subject(request) if "subject" in request.match_info else None


def _subject_prefix(request: web.Request) -> str:
    return unqualified(request.query.get("subjectPrefix", "").removeprefix(ALL_CONTEXTS))


def _flag(request: web.Request, name: str) -> bool:
    return request.query.get(name, "").lower() == "true"


def _shape(request: web.Request) -> Callable[[RegistryState, SchemaText], SchemaText]:
    """How the answer shows a schema: `format=serialized` asks for a descriptor, where there is one."""
    is_serialized = request.query.get("format", "").lower() == "serialized"
    return operations.serialized if is_serialized else lambda _, schema: schema


def _deleted_only(request: web.Request) -> bool:
    # The API names it deletedOnly; confluent-kafka for Python sends deleted_only.
    return _flag(request, "deletedOnly") or _flag(request, "deleted_only")


def _chosen(versions: Sequence[Version], deleted: bool, deleted_only: bool) -> list[Version]:
    if deleted_only:
        return [version for version in versions if version.is_deleted]
    return [version for version in versions if deleted or not version.is_deleted]


def _page(request: web.Request, items: Sequence[Any]) -> list[Any]:
    offset, limit = _count(request, "offset", 0), _count(request, "limit", -1)
    return list(items[offset:] if limit < 0 else items[offset : offset + limit])


def _count(request: web.Request, name: str, default: int) -> int:
    text = request.query.get(name, "")
    if not text:
        return default
    if not _is_int32(text):
        # Jersey's status.
        raise RegistryError(404, f"The parameter {name!r} must be a whole number of 32 bits.")
    number = int(text)
    return number if number >= 0 else default


def _id(request: web.Request) -> int:
    text = request.match_info["id"]
    if not _is_int32(text):  # a negative one is of no schema
        raise RegistryError(404, "HTTP 404 Not Found")
    return int(text)


def _is_int32(text: str) -> bool:
    return is_whole_number(text.removeprefix("-")) and -(1 << 31) <= int(text) < 1 << 31


def _schema(state: RegistryState, schema_id: int) -> SchemaText:
    schema = state.schema(schema_id)
    if schema is None:
        raise errors.schema_not_found(schema_id)
    return schema


def _schema_object(schema: SchemaText) -> dict[str, Any]:
    answer: dict[str, Any] = {"schema": schema.text}
    if schema.type != "AVRO":
        answer["schemaType"] = schema.type
    if schema.references:
        answer["references"] = [reference_object(reference) for reference in schema.references]
    return answer


def _version_object(version: Version) -> dict[str, Any]:
    place = {"subject": version.subject, "version": version.number, "id": version.id}
    return place | _schema_object(version.schema)


def _registration_object(version: Version) -> Mapping[str, Any]:
    return {"id": version.id, "version": version.number} | _schema_object(version.schema)


def _keeps_passwords(url: str) -> bool:
    """Whether nobody can read what is sent there."""
    parts = urlsplit(url)
    return parts.scheme == "https" or is_loopback(parts.hostname or "")
