"""A login does not show whether a user exists (R38)."""

from __future__ import annotations

import base64
import hashlib
import statistics
import time
from pathlib import Path

import pytest
from tests.unit.broker.api.brokers import LocalBroker

from mainstem_broker.cluster.config_entities import user_path
from mainstem_broker.cluster.view import ClusterView
from mainstem_broker.security.exchanges import LoginFailed
from mainstem_broker.security.scram import ScramClient, ScramServer
from mainstem_broker.security.scram_credentials import ScramCredential, ScramMechanism
from mainstem_broker.security.scram_decoys import ScramDecoys

SHA_256, SHA_512 = ScramMechanism.SHA_256, ScramMechanism.SHA_512
SECRET = b"of the cluster".ljust(32, b".")


def stored(mechanism: ScramMechanism, iterations: int, salt_bytes: int) -> dict[str, str]:
    key = b"k" * mechanism.key_bytes
    return {mechanism.value: ScramCredential(iterations, b"s" * salt_bytes, key, key).encode()}


def view_with(*users: dict[str, str]) -> ClusterView:
    view = ClusterView()
    view.scram_decoys.secret = SECRET
    for number, settings in enumerate(users):
        view.set_config(user_path(f"user-{number}"), settings)
    return view


def shape(view: ClusterView, mechanism: ScramMechanism = SHA_512) -> tuple[int, int]:
    decoy = view.scram_decoys.credential(mechanism, "nobody")
    return decoy.iterations, len(decoy.salt)


def test_a_decoy_looks_like_most_credentials_of_its_mechanism() -> None:
    usual = stored(SHA_512, 8192, 64)
    view = view_with(usual, usual, stored(SHA_512, 4096, 26), stored(SHA_256, 4096, 16))
    assert shape(view) == (8192, 64)
    assert shape(view, SHA_256) == (4096, 16)


def test_without_credentials_a_decoy_looks_like_those_that_the_command_makes() -> None:
    assert shape(view_with()) == (8192, 64)
    assert shape(view_with(stored(SHA_256, 4096, 16))) == (8192, 64)


def test_a_decoy_follows_changes_of_users() -> None:
    view = view_with(stored(SHA_512, 4096, 26))
    assert shape(view) == (4096, 26)
    view.set_config("users/user-0", stored(SHA_512, 16_384, 20) | {"producer_byte_rate": "1"})
    assert shape(view) == (16_384, 20)
    view.set_config("users/user-0", {SHA_512.value: "no credential"})
    assert shape(view) == (8192, 64)
    view.set_config("users/user-0", stored(SHA_512, 4096, 26))
    view.set_config("users/user-0", {})
    assert shape(view) == (8192, 64)


def test_settings_of_clients_of_a_user_are_no_credentials() -> None:
    view = view_with()
    view.set_config("users/alice/clients/c", stored(SHA_512, 4096, 26))
    assert shape(view) == (8192, 64)


@pytest.mark.parametrize("mechanism", list(ScramMechanism))
def test_the_salt_of_a_name_is_the_same_on_every_broker_with_the_clusters_secret(
    mechanism: ScramMechanism,
) -> None:
    one, two = view_with().scram_decoys, view_with().scram_decoys
    assert one.credential(mechanism, "nobody") == two.credential(mechanism, "nobody")
    assert one.credential(mechanism, "nobody").salt != one.credential(mechanism, "somebody").salt
    assert len({one.credential(each, "nobody").salt for each in ScramMechanism}) == 2
    elsewhere = ScramDecoys()
    elsewhere.secret = SECRET[::-1]
    assert elsewhere.credential(mechanism, "nobody").salt != one.credential(mechanism, "nobody").salt


def login_s(broker: LocalBroker, user: str) -> tuple[float, str]:
    """How long the broker takes for a login with a wrong password; what it announces, without the nonce."""
    server = ScramServer(SHA_512, lambda name: broker.context.scram_login(name, SHA_512))
    client = ScramClient(SHA_512, user, "wrong")
    first = client.first()
    begun_s = time.perf_counter()
    challenge = server.respond(first)
    duration_s = time.perf_counter() - begun_s
    final = b"c=biws," + challenge.split(b",")[0] + b",p=" + base64.b64encode(bytes(64))
    begun_s = time.perf_counter()
    with pytest.raises(LoginFailed, match="The user is unknown or the password is wrong"):
        server.respond(final)
    return duration_s + time.perf_counter() - begun_s, challenge.decode().partition(",")[2]


@pytest.mark.trial
def test_logins_of_known_and_unknown_users_look_alike_and_take_the_same_time(tmp_path: Path) -> None:
    """The medians of logins that take turns; whatever else the machine does slows both alike."""
    broker = LocalBroker(tmp_path)
    salt = b"s" * 64
    salted = hashlib.pbkdf2_hmac("sha512", b"secret", salt, 8192)
    credential = ScramCredential.of_salted_password(SHA_512, salted, salt, 8192)
    broker.view.set_config(user_path("alice"), {SHA_512.value: credential.encode()})
    times: dict[str, list[float]] = {"alice": [], "nobody": []}
    for _ in range(2_000):
        for user, durations in times.items():
            durations.append(login_s(broker, user)[0])
    known_s, unknown_s = map(statistics.median, times.values())
    assert 1 / 2 < known_s / unknown_s < 2
    announced = [login_s(broker, user)[1] for user in times]
    assert len({len(text) for text in announced}) == 1
    assert all(text.endswith(",i=8192") for text in announced)
    assert announced[1] == login_s(broker, "nobody")[1]
