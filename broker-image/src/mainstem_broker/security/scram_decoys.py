"""What the login of a user that does not exist is answered: a credential that looks like a stored one. Pure.

A client sees iterations and salt before it proves anything, so that they must not show whether the user
exists: a decoy has the iterations and the salt's length that most stored credentials of its mechanism have.
Its salt is always the same for the same name, on every broker and after restarts, because it is derived from
a secret of the cluster (`/mainstem/scram_secret`). Nobody knows a password for it: its keys are derived, too.
"""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Mapping
from typing import Final, NamedTuple

from mainstem_broker.security.scram_credentials import ScramCredential, ScramMechanism, credential_of

SECRET_BYTES: Final = 32


class _Shape(NamedTuple):
    """What a client sees of a credential."""

    iterations: int
    salt_bytes: int


_DEFAULT: Final = _Shape(8192, 64)
"""Of a cluster without credentials: the iterations of `mainstem user create` and of the operator, and the
length of librdkafka's salt, which both use."""


class ScramDecoys:
    """Decoys like the credentials that are stored. `replace` has to be called with each change of a user's
    settings; `secret` is the cluster's, and is set before the first login.
    """

    def __init__(self) -> None:
        self.secret = b""
        self._counts: dict[ScramMechanism, Counter[_Shape]] = {
            mechanism: Counter() for mechanism in ScramMechanism
        }
        self._usual = dict.fromkeys(ScramMechanism, _DEFAULT)

    def replace(self, before: Mapping[str, str], after: Mapping[str, str]) -> None:
        """Take new settings of a user in the place of old ones."""
        for mechanism, counts in self._counts.items():
            if before.get(mechanism.value) == after.get(mechanism.value):
                continue
            if (shape := _shape(before, mechanism)) is not None:
                counts[shape] -= 1
                if not counts[shape]:
                    del counts[shape]
            if (shape := _shape(after, mechanism)) is not None:
                counts[shape] += 1
            # Of several that are equally common, all brokers choose the same one.
            self._usual[mechanism] = max(counts, key=lambda shape: (counts[shape], shape), default=_DEFAULT)

    def credential(self, mechanism: ScramMechanism, user: str) -> ScramCredential:
        iterations, salt_bytes = self._usual[mechanism]
        key_bytes = mechanism.key_bytes
        # SHA-3 is safe with a secret in front of a message (no length extension), and as long as needed.
        seed = self.secret + f"{mechanism.value}\0{user}".encode()
        derived = hashlib.shake_256(seed).digest(2 * key_bytes + salt_bytes)
        return ScramCredential(
            iterations, derived[2 * key_bytes :], derived[:key_bytes], derived[key_bytes : 2 * key_bytes]
        )


def _shape(settings: Mapping[str, str], mechanism: ScramMechanism) -> _Shape | None:
    credential = credential_of(settings, mechanism)
    return None if credential is None else _Shape(credential.iterations, len(credential.salt))
