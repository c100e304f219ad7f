"""ACLs made by stock tools decide on every broker (R36, R38). Clients here do not authenticate, so they are
distinguished by their principal only, User:ANONYMOUS."""

from __future__ import annotations

from collections.abc import Iterator
from uuid import uuid4

import pytest
from confluent_kafka import KafkaError, Producer
from confluent_kafka.admin import (
    AclBinding,
    AclBindingFilter,
    AclOperation,
    AclPermissionType,
    AdminClient,
    NewTopic,
    ResourcePatternType,
    ResourceType,
)
from tests.support.clusters import Cluster, ReachableCluster, RunCluster, SharedCluster
from tests.support.command_line import mainstem_here, mainstem_json_here
from tests.support.kafka_tools import run_tool
from tests.support.waiting import wait_until


@pytest.fixture(scope="module")
def secured(run_cluster: RunCluster) -> Iterator[Cluster]:
    """Three brokers with an authorizer; what no ACL is about is open, as to replicate between brokers."""
    settings = {
        "authorizer.class.name": "kafka.security.authorizer.AclAuthorizer",
        "allow.everyone.if.no.acl.found": "true",
        "super.users": "User:admin",
    }
    with run_cluster(3, settings) as cluster:
        yield cluster


@pytest.fixture
def admin(secured: Cluster) -> AdminClient:
    return AdminClient({"bootstrap.servers": secured.bootstrap_servers})


@pytest.fixture
def topic(admin: AdminClient) -> str:
    """A replicated topic with a leader on each broker."""
    name = f"topic-{uuid4()}"
    admin.create_topics([NewTopic(name, 3, 3)])[name].result(timeout=30)
    return name


def produced(cluster: ReachableCluster, topic: str) -> list[str | None]:
    """The name of the error, or None, of a record to each partition."""
    outcomes: list[str | None] = []
    producer = Producer({"bootstrap.servers": cluster.bootstrap_servers, "acks": "all"})

    def on_delivery(error: KafkaError | None, _message: object) -> None:
        outcomes.append(None if error is None else error.name())

    for partition in range(3):
        producer.produce(topic, b"x", partition=partition, on_delivery=on_delivery)
    producer.flush(30)
    return outcomes


def rule(topic: str, permission: AclPermissionType, operation: AclOperation) -> AclBinding:
    return AclBinding(
        ResourceType.TOPIC, topic, ResourcePatternType.LITERAL, "User:ANONYMOUS", "*", operation, permission
    )


def test_rules_of_confluents_admin_client_decide_on_every_broker(
    secured: Cluster, admin: AdminClient, topic: str
) -> None:
    assert produced(secured, topic) == [None] * 3
    allow = rule(topic, AclPermissionType.ALLOW, AclOperation.ALL)
    deny = rule(topic, AclPermissionType.DENY, AclOperation.WRITE)
    for future in admin.create_acls([allow, deny]).values():
        future.result(timeout=30)
    wait_until(
        lambda: produced(secured, topic) == ["TOPIC_AUTHORIZATION_FAILED"] * 3, "all three brokers deny"
    )

    everything = AclBindingFilter(
        ResourceType.TOPIC,
        topic,
        ResourcePatternType.MATCH,
        None,
        None,
        AclOperation.ANY,
        AclPermissionType.ANY,
    )
    assert set(admin.describe_acls(everything).result(timeout=30)) == {allow, deny}
    denials = AclBindingFilter(
        ResourceType.TOPIC,
        topic,
        ResourcePatternType.LITERAL,
        None,
        None,
        AclOperation.ANY,
        AclPermissionType.DENY,
    )
    assert set(admin.delete_acls([denials])[denials].result(timeout=30)) == {deny}
    wait_until(lambda: produced(secured, topic) == [None] * 3, "all three brokers allow")


def test_kafka_acls_adds_lists_and_removes_rules(secured: Cluster, topic: str) -> None:
    def acls(*arguments: str) -> str:
        return run_tool("AclCommand", "--bootstrap-server", secured.bootstrap_servers, *arguments)

    group = f"group-{uuid4()}"
    consumer = ("--consumer", "--topic", topic, "--group", group)
    added = acls("--add", "--allow-principal", "User:alice", *consumer)
    assert "(principal=User:alice, host=*, operation=READ, permissionType=ALLOW)" in added, added
    prefixed = ("--topic", topic[:9], "--resource-pattern-type", "prefixed")
    denied = ("--deny-principal", "User:bob", "--deny-host", "10.0.0.1", "--operation", "Write")
    acls("--add", *denied, *prefixed)
    listed = acls("--list", "--topic", topic, "--resource-pattern-type", "match")
    assert "operation=DESCRIBE, permissionType=ALLOW" in listed, listed
    assert "(principal=User:bob, host=10.0.0.1, operation=WRITE, permissionType=DENY)" in listed
    acls("--remove", "--force", *denied, *prefixed)
    acls("--remove", "--force", "--allow-principal", "User:alice", *consumer)
    assert "User:" not in acls("--list", "--topic", topic, "--resource-pattern-type", "match")


# --- mainstem acl, mainstem user ---


def test_the_command_adds_lists_and_removes_acls(secured: Cluster, topic: str) -> None:
    added = mainstem_here("acl", "add", "alice", "read", "describe", "--topic", topic, cluster=secured)
    assert f"Added: allow User:alice read on topic {topic}." in added.stderr.decode()
    mainstem_here(
        *("acl", "add", "bob", "write", "--topic", topic[:9], "--prefix", "--deny", "--host", "10.0.0.1"),
        cluster=secured,
    )
    listed = mainstem_json_here("acl", "list", "--topic", topic, cluster=secured)
    assert {tuple(row.values()) for row in listed} == {
        ("topic", topic, "literal", "allow", "User:alice", "describe", "*"),
        ("topic", topic, "literal", "allow", "User:alice", "read", "*"),
        ("topic", topic[:9], "prefixed", "deny", "User:bob", "write", "10.0.0.1"),
    }
    mainstem_here(
        *("acl", "remove", "bob", "write", "--topic", topic[:9], "--prefix", "--deny", "--host", "10.0.0.1"),
        cluster=secured,
    )
    mainstem_here("acl", "remove", "alice", "read", "DESCRIBE", "--topic", topic, cluster=secured)
    assert mainstem_json_here("acl", "list", "--topic", topic, cluster=secured) == []
    refused = mainstem_here("acl", "remove", "alice", "read", "--topic", topic, cluster=secured, exit_code=2)
    assert f"There is no such ACL: allow User:alice read on topic {topic}." in refused.stderr.decode()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["add", "alice", "read"], "Name the resource: --topic, --group, --transactional-id or --cluster."),
        (["add", "alice", "fly", "--topic", "t"], "There is no operation 'fly': it can be all, read, write"),
        (["add", "alice", "read", "--cluster", "--prefix"], "--prefix needs the name that others begin with"),
        (["list", "--principal", ""], "A principal needs a name"),
        (["add", "alice", "read", "--topic", "a/b"], "use a rule for the prefix before them"),
        (["list", "--topic", "t", "--cluster"], "Choose one of --topic, --group and --cluster."),
    ],
)
def test_what_the_command_cannot_add_it_says(secured: Cluster, arguments: list[str], message: str) -> None:
    exit_code = 1 if "a/b" in arguments else 2  # which the broker refuses
    ended = mainstem_here("acl", *arguments, cluster=secured, exit_code=exit_code)
    assert message in ended.stderr.decode()


def test_without_an_authorizer_the_command_says_what_to_set(local_stack: SharedCluster) -> None:
    ended = mainstem_here("acl", "add", "alice", "read", "--topic", "t", cluster=local_stack, exit_code=1)
    assert "set authorizer.class.name" in ended.stderr.decode()
    # The client hides why it was refused to describe ACLs, so the command names all reasons.
    ended = mainstem_here("acl", "list", cluster=local_stack)
    assert "or the brokers have no authorizer" in ended.stderr.decode()


def test_the_command_creates_lists_changes_and_deletes_users(secured: Cluster) -> None:
    user = f"user-{uuid4()}"

    def credentials() -> list[tuple[str, int]]:
        rows = mainstem_json_here("user", "list", cluster=secured)
        return [(row["mechanism"], row["iterations"]) for row in rows if row["user"] == user]

    def with_password(*arguments: str, exit_code: int = 0) -> str:
        ended = mainstem_here(
            *("user", *arguments, "--password-file", "-"),
            cluster=secured,
            stdin=b"correct horse\n",
            exit_code=exit_code,
        )
        assert b"correct horse" not in ended.stdout + ended.stderr
        return ended.stderr.decode()

    assert f"Created user {user} for SCRAM-SHA-512." in with_password("create", user)
    with_password("create", user, "--mechanism", "scram-sha-256", "--iterations", "4096")
    assert credentials() == [("SCRAM-SHA-256", 4096), ("SCRAM-SHA-512", 8192)]
    assert "has a password for SCRAM-SHA-512 already" in with_password("create", user, exit_code=2)
    with_password("password", user, "--iterations", "5000")
    assert credentials() == [("SCRAM-SHA-256", 5000), ("SCRAM-SHA-512", 5000)]
    mainstem_here("user", "delete", user, cluster=secured, exit_code=2)
    mainstem_here("user", "delete", user, "--yes", cluster=secured)
    assert credentials() == []
    unknown = mainstem_here("user", "delete", user, "--yes", cluster=secured, exit_code=2)
    assert "There is no such user" in unknown.stderr.decode()
    assert "There is no such user" in with_password("password", user, exit_code=2)


def test_a_password_comes_from_a_prompt_a_file_or_the_environment_only(
    secured: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    user = f"user-{uuid4()}"
    ended = mainstem_here("user", "create", user, cluster=secured, exit_code=2)
    assert "use --password-file, or MAINSTEM_USER_PASSWORD" in ended.stderr.decode()
    ended = mainstem_here("user", "create", user, "--password-file", "/none", cluster=secured, exit_code=2)
    assert "The password file /none could not be read: No such file" in ended.stderr.decode()
    monkeypatch.setenv("MAINSTEM_USER_PASSWORD", "")
    ended = mainstem_here("user", "create", user, cluster=secured, exit_code=2)
    assert "The password is empty." in ended.stderr.decode()
    monkeypatch.setenv("MAINSTEM_USER_PASSWORD", "from the environment")
    mainstem_here("user", "create", user, cluster=secured)
    mainstem_here("user", "delete", user, "--yes", cluster=secured)
