"""Why the registry does not start, and what it answers if it refuses, with the codes that clients expect.

Source of the codes: the API reference of Confluent's Schema Registry.
"""

from __future__ import annotations

from collections.abc import Sequence


class StartupError(Exception):
    """The registry cannot start: the message says why and what to do."""


class RegistryError(Exception):
    """A refusal: `status` is HTTP's, `code` has the details (its first three digits are the status)."""

    def __init__(self, code: int, message: str) -> None:
        super().__init__(message)
        self.code = code
        self.status = code if code < 1000 else code // 100
        self.message = message


def subject_not_found(subject: str) -> RegistryError:
    return RegistryError(40401, f"Subject '{subject}' not found.")


def version_not_found(version: int | str) -> RegistryError:
    return RegistryError(40402, f"Version {version} not found.")


def schema_not_found(schema_id: int | None = None) -> RegistryError:
    return RegistryError(40403, "Schema not found" if schema_id is None else f"Schema {schema_id} not found")


def subject_soft_deleted(subject: str) -> RegistryError:
    return RegistryError(
        40404, f"Subject '{subject}' was soft deleted. Set permanent=true to delete permanently."
    )


def subject_not_soft_deleted(subject: str) -> RegistryError:
    return RegistryError(
        40405, f"Subject '{subject}' was not deleted first before being permanently deleted."
    )


def version_soft_deleted(subject: str, version: int) -> RegistryError:
    return RegistryError(
        40406,
        f"Subject '{subject}' Version {version} was soft deleted. Set permanent=true to delete permanently.",
    )


def version_not_soft_deleted(subject: str, version: int) -> RegistryError:
    return RegistryError(
        40407,
        f"Subject '{subject}' Version {version} was not deleted first before being permanently deleted.",
    )


def compatibility_not_configured(subject: str) -> RegistryError:
    return RegistryError(40408, f"Subject '{subject}' does not have subject-level compatibility configured.")


def mode_not_configured(subject: str) -> RegistryError:
    return RegistryError(40409, f"Subject '{subject}' does not have subject-level mode configured.")


def invalid_schema(reason: str) -> RegistryError:
    return RegistryError(42201, f"Invalid schema: {reason}")


def invalid_version(version: str) -> RegistryError:
    return RegistryError(
        42202,
        f"The specified version '{version}' is not a valid version id. Allowed values are between"
        ' [1, 2^31-1] and the string "latest".',
    )


def invalid_compatibility(level: object) -> RegistryError:
    return RegistryError(
        42203,
        f"Invalid compatibility level {level!r}. Valid values are none, backward, forward, full,"
        " backward_transitive, forward_transitive, and full_transitive.",
    )


def invalid_mode(mode: object) -> RegistryError:
    return RegistryError(
        42204, f"Invalid mode {mode!r}. Valid values are READWRITE, READONLY, READONLY_OVERRIDE and IMPORT."
    )


def not_permitted(reason: str) -> RegistryError:
    return RegistryError(42205, reason)


def reference_exists(subject: str, version: int, referrers: Sequence[int]) -> RegistryError:
    ids = ", ".join(str(schema_id) for schema_id in referrers)
    return RegistryError(
        42206, f"Version {version} of subject '{subject}' is referenced by the schemas with ids {ids}."
    )


def invalid_subject(subject: str) -> RegistryError:
    return RegistryError(42208, f"The specified subject '{subject}' is not a valid subject.")


def malformed(reason: str) -> RegistryError:
    return RegistryError(400, reason)


def unprocessable(reason: str) -> RegistryError:
    return RegistryError(422, reason)


def incompatible(subject: str, problems: Sequence[str]) -> RegistryError:
    return RegistryError(
        409,
        f'Schema being registered is incompatible with an earlier schema for subject "{subject}",'
        f" details: {'; '.join(problems)}",
    )


def unauthorized() -> RegistryError:
    return RegistryError(
        401, "Unauthorized: send the name and the password of a user by basic authentication."
    )


def login_unchecked() -> RegistryError:
    return RegistryError(
        50301, "Logins cannot be checked, as no broker answers; the registry's log says why. Try again."
    )


def store_failed(reason: str) -> RegistryError:
    return RegistryError(50001, f"Error in the backend data store: {reason}")


def store_timed_out(reason: str) -> RegistryError:
    return RegistryError(50002, f"Operation timed out: {reason}")


def forwarding_failed(reason: str) -> RegistryError:
    return RegistryError(50003, f"Error while forwarding the request to the leader: {reason}")


def leader_unknown() -> RegistryError:
    return RegistryError(
        50004, "The leader of the registry is not known: an election is under way. Try again."
    )
