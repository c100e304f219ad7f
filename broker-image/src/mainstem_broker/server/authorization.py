"""The authorizer that a broker's settings ask for."""

from __future__ import annotations

import structlog

from mainstem_broker.config.broker_config import BrokerConfig
from mainstem_broker.security.authorizer import Authorizer, parse_super_users
from mainstem_broker.security.principals import ANONYMOUS

logger = structlog.get_logger(__name__)


def authorizer_of(config: BrokerConfig) -> Authorizer | None:
    """None without `authorizer.class.name`. What holds where there are no ACLs is logged."""
    if config.optional_string("authorizer.class.name") is None:
        return None
    super_users = parse_super_users(config.string("super.users"))
    allows_everyone = config.flag("allow.everyone.if.no.acl.found")
    logger.info(
        "authorization is on",
        super_users=sorted(super_users),
        without_acl="everyone may do everything" if allows_everyone else "only super users may do anything",
    )
    is_dry_run = config.flag("authorizer.dry.run")
    if is_dry_run:
        logger.warning("ACLs deny nothing: what they would deny is only recorded (authorizer.dry.run)")
    if str(ANONYMOUS) in super_users:
        logger.warning("clients that do not authenticate are super users, so no ACL applies to them")
    return Authorizer(super_users, allow_everyone_if_no_acl=allows_everyone, is_dry_run=is_dry_run)
