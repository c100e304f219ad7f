"""Certificates of a secured BrokerCluster: what is issued, what is renewed when, and what stays (R38)."""

from __future__ import annotations

import datetime as dt
import itertools
import ssl
from pathlib import Path
from typing import Any

import pytest
from cryptography import x509
from cryptography.hazmat.primitives.serialization import Encoding
from tests.unit.operator.snapshots import NOW, cluster

from mainstem_operator.api.clusters import ClusterSpec
from mainstem_operator.api.fields import InvalidSpec
from mainstem_operator.certificates.issuing import (
    AUTHORITY_DAYS,
    SERVER_DAYS,
    KeyPair,
    expiry_of,
    hosts_in,
    is_issued,
)
from mainstem_operator.certificates.plan import (
    first_expiry,
    hosts_of,
    pair_in,
    plan_certificates,
    plan_renewals,
    replacement_under_way,
)

PEM = Encoding.PEM
AUTHORITY, CLIENTS = "events-cluster-authority", "events-clients-authority"
BROKERS, OPERATOR, TRUSTED = "events-broker-tls", "events-operator-tls", "events-ca"


def secured(**listener: Any) -> ClusterSpec:
    return cluster(listeners={"clients": [{"name": "tls", "port": 9093, **listener}]})


def planned(
    spec: ClusterSpec, present: dict[str, dict[str, str]], *nodes: str, days: float = 0
) -> dict[str, dict[str, str]]:
    return plan_certificates(spec, present, None, nodes, NOW + dt.timedelta(days=days))


def pair(data: dict[str, str]) -> KeyPair:
    result = pair_in(data)
    assert result is not None
    return result


FIRST = planned(secured(), {})


def shake_hands(folder: Path, server: dict[str, str], trust: str, host: str) -> None:
    """A handshake of a client that trusts `trust`, in memory.

    Raises:
        ssl.SSLError: it fails.
    """
    file = folder / "server.pem"
    file.write_text(server["tls.key"] + server["tls.crt"])
    serving = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    serving.load_cert_chain(file)
    calling = ssl.create_default_context(cadata=trust)
    there, back = ssl.MemoryBIO(), ssl.MemoryBIO()
    client = calling.wrap_bio(back, there, server_hostname=host)
    accepting = serving.wrap_bio(there, back, server_side=True)
    for _ in range(4):
        for side in (client, accepting):
            try:
                side.do_handshake()
            except ssl.SSLWantReadError:
                continue


def fresh() -> dict[str, dict[str, str]]:
    """Secrets made now: handshakes check the real time."""
    return plan_certificates(secured(), {}, None, (), dt.datetime.now(dt.UTC))


@pytest.mark.parametrize(
    "host",
    [
        "events-bootstrap.prod.svc",
        "events-bootstrap.prod.svc.cluster.local",
        "events-broker-7.events-broker-headless.prod.svc",
    ],
)
def test_clients_that_trust_the_published_certificate_accept_every_broker(tmp_path: Path, host: str) -> None:
    secrets = fresh()
    shake_hands(tmp_path, secrets[BROKERS], secrets[TRUSTED]["ca.crt"], host)


def test_clients_do_not_accept_a_broker_under_another_name_or_of_another_cluster(tmp_path: Path) -> None:
    secrets = fresh()
    for host, trust in (
        ("events-bootstrap.other.svc", secrets[TRUSTED]["ca.crt"]),
        ("events-bootstrap.prod.svc", fresh()[TRUSTED]["ca.crt"]),
    ):
        with pytest.raises(ssl.SSLCertVerificationError):
            shake_hands(tmp_path, secrets[BROKERS], trust, host)


def test_what_is_good_stays_as_it_is() -> None:
    assert planned(secured(), FIRST, days=1) == FIRST
    assert planned(secured(), FIRST, days=SERVER_DAYS - 31) == FIRST


def test_certificates_are_renewed_a_month_before_they_end_and_authorities_stay() -> None:
    later = planned(secured(), FIRST, days=SERVER_DAYS - 29)
    assert later[AUTHORITY] == FIRST[AUTHORITY]
    assert later[TRUSTED] == FIRST[TRUSTED]
    for name in (BROKERS, OPERATOR):
        assert later[name]["tls.key"] != FIRST[name]["tls.key"]
        assert expiry_of(pair(later[name])) > expiry_of(pair(FIRST[name]))


def test_without_a_manifest_certificates_are_renewed_with_the_hosts_that_they_have() -> None:
    days = dt.timedelta(days=SERVER_DAYS - 29)
    renewals = plan_renewals("events", FIRST, NOW + days)
    assert renewals.keys() == {BROKERS, OPERATOR}
    for name, data in renewals.items():
        assert hosts_in(pair(data)) == hosts_in(pair(FIRST[name]))
        assert expiry_of(pair(data)) == NOW + days + dt.timedelta(days=SERVER_DAYS)
        assert {**data, "tls.key": "", "tls.crt": ""} == {**FIRST[name], "tls.key": "", "tls.crt": ""}
    assert plan_renewals("events", FIRST, NOW + days - dt.timedelta(days=2)) == {}
    for other in (planned(secured(), {})[AUTHORITY], dict[str, str]()):
        assert plan_renewals("events", {**FIRST, AUTHORITY: other}, NOW + days) == {}, "not what it issued"


def test_the_first_certificate_that_ends_is_the_one_that_counts() -> None:
    later = planned(secured(), FIRST, days=1)
    later[BROKERS] = planned(secured(type="nodeport"), later, "10.0.0.1", days=1)[BROKERS]
    assert first_expiry("events", later) == expiry_of(pair(FIRST[OPERATOR]))
    spoilt = {**later, OPERATOR: {"tls.key": "?", "tls.crt": "?"}}
    assert first_expiry("events", spoilt) == expiry_of(pair(later[BROKERS]))
    assert first_expiry("events", {}) is None


def test_an_authority_is_renewed_with_its_key_so_that_nobody_notices() -> None:
    """What the old certificate vouched for, the new one does, and the other way round."""
    days = AUTHORITY_DAYS - 100
    later = planned(secured(), FIRST, days=days)
    old, new = pair(FIRST[AUTHORITY]), pair(later[AUTHORITY])
    assert new.key == old.key
    assert expiry_of(new) > expiry_of(old)
    assert is_issued(pair(FIRST[BROKERS]), new, "mainstem-broker", ())
    assert is_issued(pair(later[BROKERS]), old, "mainstem-broker", ())
    assert later[TRUSTED]["ca.crt"] == new.certificate


def test_addresses_of_nodes_are_in_the_certificate_where_clients_are_sent_to_them() -> None:
    outside = secured(type="nodeport")
    assert {"10.0.0.1", "10.0.0.2"} <= hosts_of(outside, ["10.0.0.1", "10.0.0.2"])
    assert "10.0.0.1" not in hosts_of(secured(), ["10.0.0.1"])
    named = secured(type="nodeport", host="kafka.example.org")
    assert "kafka.example.org" in hosts_of(named, ["10.0.0.1"])
    assert "10.0.0.1" not in hosts_of(named, ["10.0.0.1"])


def test_names_of_services_are_in_the_domain_of_kubernetes_dns() -> None:
    """R38: kubelets may have another one than cluster.local, and clients write whole names."""
    hosts = hosts_of(secured(), (), "k8s.example.org")
    assert hosts >= {
        "events-bootstrap.prod.svc.k8s.example.org",
        "*.events-broker-headless.prod.svc.k8s.example.org",
        "events-bootstrap.prod.svc",
    }
    assert not any(host.endswith("cluster.local") for host in hosts)


def test_another_domain_has_only_the_brokers_certificate_issued_again() -> None:
    later = plan_certificates(secured(), FIRST, None, (), NOW, "k8s.example.org")
    assert {name for name in FIRST if later[name] != FIRST[name]} == {BROKERS}
    assert is_issued(
        pair(later[BROKERS]),
        pair(FIRST[AUTHORITY]),
        "mainstem-broker",
        {"events-bootstrap.prod.svc.k8s.example.org"},
    )


def test_a_new_node_has_a_new_certificate_issued_and_one_that_goes_does_not() -> None:
    outside = secured(type="nodeport")
    first = planned(outside, {}, "10.0.0.1")
    both = planned(outside, first, "10.0.0.1", "10.0.0.2")
    assert both[BROKERS]["tls.crt"] != first[BROKERS]["tls.crt"]
    assert planned(outside, both, "10.0.0.2") == both


@pytest.mark.parametrize("host", ["2001:db8::1", "2001:DB8::1", "2001:0db8:0:0::0001", "Kafka.example.org"])
def test_a_host_counts_in_whatever_spelling_the_manifest_has_it(host: str) -> None:
    outside = secured(type="nodeport", host=host)
    first = planned(outside, {})
    assert planned(outside, first, days=1) == first


def test_keys_that_cannot_be_read_or_are_of_another_authority_are_replaced() -> None:
    for damaged in (
        {"tls.crt": "nonsense"},
        {"tls.key": "nonsense"},
        {"tls.key": FIRST[OPERATOR]["tls.key"]},
    ):
        result = planned(secured(), {**FIRST, BROKERS: {**FIRST[BROKERS], **damaged}})
        assert is_issued(pair(result[BROKERS]), pair(FIRST[AUTHORITY]), "mainstem-broker", ())
    other = planned(secured(), {**FIRST, AUTHORITY: planned(secured(), {})[AUTHORITY]})
    assert not is_issued(pair(other[BROKERS]), pair(FIRST[AUTHORITY]), "mainstem-broker", ())


def test_users_and_brokers_have_different_authorities() -> None:
    """A certificate of the brokers' one may do everything, so no User gets one."""
    assert FIRST[BROKERS]["ca.crt"] == FIRST[AUTHORITY]["tls.crt"]
    assert FIRST[BROKERS]["clients-ca.crt"] == FIRST[CLIENTS]["tls.crt"]
    assert FIRST[AUTHORITY]["tls.key"] != FIRST[CLIENTS]["tls.key"]
    assert set(FIRST[TRUSTED]) == {"ca.crt"}
    assert "tls.key" not in FIRST[TRUSTED]


def test_a_certificate_of_the_users_own_is_the_one_that_clients_trust() -> None:
    for trust in ("their authority", ""):
        result = plan_certificates(secured(), FIRST, trust, (), NOW)
        assert result[TRUSTED] == {"ca.crt": trust}
        assert result[BROKERS] == FIRST[BROKERS]  # brokers talk to each other with ours


def test_no_text_form_shows_a_key() -> None:
    assert "PRIVATE" not in repr(pair(FIRST[BROKERS]))


# --- Another key for the authorities ---

OVERLAP = 7.0  # days


def replacing(request: str = "leaked", overlap: str | None = None) -> ClusterSpec:
    annotations = {"mainstem.dev/replace-authority": request}
    if overlap is not None:
        annotations["mainstem.dev/authority-overlap"] = overlap
    return cluster(annotations=annotations, listeners={"clients": [{"name": "tls", "port": 9093}]})


def steps_of_a_replacement() -> list[dict[str, dict[str, str]]]:
    """The Secrets before, while both are trusted, when all is issued anew, and afterwards."""
    steps = [FIRST]
    for days in (1.0, 1.0 + OVERLAP, 1.0 + 2 * OVERLAP):
        steps.append(planned(replacing(), steps[-1], days=days))
    return steps


def test_an_authority_gets_another_key_and_in_the_end_the_old_one_is_worth_nothing() -> None:
    before, both, issued, after = steps_of_a_replacement()
    assert both[BROKERS]["tls.crt"] == before[BROKERS]["tls.crt"], "nothing is issued yet"
    old, new = pair(before[AUTHORITY]), pair(after[AUTHORITY])
    assert new.key != old.key
    assert pair(issued[AUTHORITY]) == new
    assert is_issued(pair(issued[BROKERS]), new, "mainstem-broker", ())
    assert (
        both[TRUSTED]["ca.crt"] == issued[TRUSTED]["ca.crt"].replace(new.certificate, "", 1) + new.certificate
    )
    assert after[TRUSTED]["ca.crt"] == new.certificate
    assert after[BROKERS]["ca.crt"] == after[OPERATOR]["ca.crt"] == new.certificate
    assert after[CLIENTS]["tls.key"] != before[CLIENTS]["tls.key"]
    assert after[BROKERS]["clients-ca.crt"] == after[CLIENTS]["tls.crt"]
    assert old.key not in str(after)
    assert planned(replacing(), after, days=40) == after, "and it rests"


def test_while_an_authority_is_replaced_whoever_is_one_step_behind_is_still_trusted(tmp_path: Path) -> None:
    now = dt.datetime.now(dt.UTC)
    steps = [plan_certificates(secured(), {}, None, (), now)]
    for days in (0.0, OVERLAP, 2 * OVERLAP):
        # The time of handshakes is the real one, so the steps are taken back in time.
        steps.append(plan_certificates(replacing(), steps[-1], None, (), now + dt.timedelta(days=days)))
    for step, following in itertools.pairwise(steps):
        for shown in (step, following):
            for trusted in (step, following):
                certificate = pair(shown[BROKERS])
                roots = x509.load_pem_x509_certificates(trusted[OPERATOR]["ca.crt"].encode())
                assert any(
                    is_issued(
                        certificate, KeyPair("", root.public_bytes(PEM).decode()), "mainstem-broker", ()
                    )
                    for root in roots
                )


def test_a_step_takes_its_time_and_an_overlap_that_is_asked_for_counts() -> None:
    both = planned(replacing(), FIRST, days=1)
    assert planned(replacing(), both, days=1 + OVERLAP - 0.1) == both
    quick = planned(replacing(overlap="15m"), both, days=1.02)
    assert quick[AUTHORITY]["tls.key"] != both[AUTHORITY]["tls.key"]
    assert "leaked" in both[AUTHORITY]["replacement-request"]
    assert planned(replacing("again"), both, days=2) == both, "one after the other"


def test_a_request_from_before_an_authority_was_made_asks_for_nothing() -> None:
    made = planned(replacing(), {})
    assert planned(replacing(), made, days=30) == made
    assert replacement_under_way(made[AUTHORITY], dt.timedelta(days=7)) == ""


def test_a_replacement_says_how_far_it_is() -> None:
    _, both, issued, after = (step[AUTHORITY] for step in steps_of_a_replacement())
    overlap = dt.timedelta(days=7)
    assert "Both authorities are trusted" in replacement_under_way(both, overlap)
    assert "issued by the new authority" in replacement_under_way(issued, overlap)
    assert replacement_under_way(after, overlap) == ""


def test_a_replacement_that_somebody_has_spoilt_begins_again() -> None:
    both = planned(replacing(), FIRST, days=1)
    for broken in ({"next.key": "?"}, {"next.crt": "?"}, {"since": "?"}):
        spoilt = {**both, AUTHORITY: {**both[AUTHORITY], **broken}}
        mended = planned(replacing(), planned(replacing(), spoilt, days=2), days=2)
        assert "Both authorities are trusted" in replacement_under_way(
            mended[AUTHORITY], dt.timedelta(days=7)
        )
        assert pair(mended[AUTHORITY]) == pair(FIRST[AUTHORITY])


@pytest.mark.parametrize("text", ["", "7", "14m", "0d", "-1d", "7 days", "99999d"])
def test_an_overlap_that_makes_no_sense_is_refused(text: str) -> None:
    with pytest.raises(InvalidSpec, match="authority-overlap"):
        replacing(overlap=text)
