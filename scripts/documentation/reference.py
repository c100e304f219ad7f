"""All generated pages, by their path in the site. Metrics are read from an example that has every label."""

from __future__ import annotations

from mainstem.cli.main import app
from scripts.documentation import commands, custom_resources, metrics, operator_messages, settings
from scripts.documentation.pages import REPOSITORY


def reference_pages() -> dict[str, str]:
    """Markdown of every reference page, from the code as it is now."""
    messages = operator_messages.read(REPOSITORY / "operator")
    return {
        "reference/commands.md": commands.page(app),
        "reference/broker-settings.md": settings.broker_page(),
        "reference/topic-settings.md": settings.topic_page(),
        "reference/group-settings.md": settings.group_page(),
        "reference/metrics.md": metrics.page(),
        "reference/custom-resources.md": custom_resources.page(REPOSITORY / "crds"),
        "reference/conditions.md": operator_messages.conditions_page(messages),
        "reference/events.md": operator_messages.events_page(messages),
    }
