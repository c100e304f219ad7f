from __future__ import annotations

import pytest

from mainstem_broker.errors import InvalidSetting
from mainstem_broker.security.principal_rules import name_by_rules, parse_rules

SUBJECT = "CN=Alice Smith,OU=Data,O=Example"


@pytest.mark.parametrize(
    ("rules", "subject", "name"),
    [
        # KIP-371's own examples
        ("RULE:^CN=(.*?),OU=ServiceUsers.*$/$1/", "CN=serviceuser,OU=ServiceUsers,O=Unknown", "serviceuser"),
        (
            "RULE:^CN=(.*?),OU=(.*?),O=(.*?),L=(.*?),ST=(.*?),C=(.*?)$/$1@$2/L",
            "CN=AdminUser,OU=Admin,O=Unknown,L=Unknown,ST=Unknown,C=Unknown",
            "adminuser@admin",
        ),
        ("RULE:^cn=(.*?),ou=(.*?),dc=(.*?),dc=(.*?)$/$1@$2/U", "cn=a,ou=b,dc=c,dc=d", "A@B"),
        ("DEFAULT", SUBJECT, SUBJECT),
        ("", SUBJECT, SUBJECT),
        ("RULE:^CN=bob$/bob/, DEFAULT", SUBJECT, SUBJECT),
        ("RULE:^CN=bob$/bob/", SUBJECT, None),
        ("RULE:^CN=(\\w+)\\s.*$/$1/L", SUBJECT, "alice"),
        ("RULE:^CN=(?<first>\\w+) .*$/${first}/", SUBJECT, "Alice"),
        ("RULE:^CN=([^,]*),.*$/$1 \\$ \\//", SUBJECT, "Alice Smith $ /"),
        ("RULE:^CN=a{1,2}.*$/x/,RULE:.*/y/", SUBJECT, "y"),
        ("RULE:.*//", SUBJECT, None),
        ("RULE:^CN=Alice/alice/", SUBJECT, None),  # the whole subject has to match
    ],
)
def test_the_first_rule_that_fits_makes_the_name(rules: str, subject: str, name: str | None) -> None:
    assert name_by_rules(parse_rules(rules), subject) == name


@pytest.mark.parametrize(
    "text",
    [
        "RULE:",
        "RULE:a/b",
        "RULE:(/x/",
        "RULE:a/$1/",
        "RULE:a/${n}/",
        "RULE:a/b/X",
        "CN=alice",
        "DEFAULT DEFAULT",
    ],
)
def test_rules_that_cannot_be_read_are_refused(text: str) -> None:
    with pytest.raises(InvalidSetting, match=r"ssl\.principal\.mapping\.rules: write rules as"):
        parse_rules(text)
