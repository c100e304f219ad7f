"""Names of principals from the subjects of client certificates: `ssl.principal.mapping.rules` (KIP-371)."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Final

from mainstem_broker.errors import InvalidSetting
from mainstem_broker.whole_numbers import is_whole_number

_RULE: Final = re.compile(r"RULE:((?:\\.|[^\\/])*)/((?:\\.|[^\\/])*)/([LU]?)", re.DOTALL)
_SEPARATOR: Final = re.compile(r"\s*(?:[,\n]\s*|$)")


@dataclass(frozen=True, slots=True)
class PrincipalRule:
    """A pattern for the whole subject, what takes its place, and L or U for its case.

    Without a pattern it is DEFAULT: the subject as it is.
    """

    pattern: re.Pattern[str] | None = None
    replacement: str = ""
    case: str = ""

    def name_of(self, subject: str) -> str | None:
        """The principal's name, or None if the rule does not fit."""
        if self.pattern is None:
            return subject
        match = self.pattern.fullmatch(subject)
        if match is None:
            return None
        name = match.expand(self.replacement)
        return name.lower() if self.case == "L" else name.upper() if self.case == "U" else name


def parse_rules(text: str) -> list[PrincipalRule]:
    """The rules of a setting, in order.

    Raises:
        InvalidSetting: one of them cannot be read.
    """
    rules = []
    rest = text.strip()
    while rest:
        if rest.startswith("DEFAULT"):
            rules.append(PrincipalRule())
            end = len("DEFAULT")
        else:
            match = _RULE.match(rest)
            if match is None:
                raise _invalid(rest)
            rules.append(_rule(match))
            end = match.end()
        separator = _SEPARATOR.match(rest, end)
        if separator is None:
            raise _invalid(rest)
        rest = rest[separator.end() :]
    return rules or [PrincipalRule()]


def name_by_rules(rules: list[PrincipalRule], subject: str) -> str | None:
    """The name that the first fitting rule makes, or None if none fits or it makes nothing."""
    for rule in rules:
        name = rule.name_of(subject)
        if name is not None:
            return name or None
    return None


def _rule(match: re.Match[str]) -> PrincipalRule:
    pattern, replacement, case = match.groups()
    try:
        # Java writes groups as (?<name>...).
        compiled = re.compile(re.sub(r"\(\?<(?=[A-Za-z])", "(?P<", pattern))
        template = _python_template(replacement)
        for group in re.findall(r"\\g<(\w+)>", template):
            if not (
                int(group) <= compiled.groups if is_whole_number(group) else group in compiled.groupindex
            ):
                raise _invalid(match.group())
    except re.error as error:
        raise _invalid(match.group()) from error
    return PrincipalRule(compiled, template, case)


def _python_template(replacement: str) -> str:
    r"""Java's `$1`, `${name}` and `\c` as Python's `\g<1>`, `\g<name>` and `c`."""

    def translated(match: re.Match[str]) -> str:
        number, name, literal = match.groups()
        if literal is not None:
            return "\\\\" if literal == "\\" else str(literal)
        return f"\\g<{number or name}>"

    return re.sub(r"\$([0-9])|\$\{(\w+)\}|\\(.)", translated, replacement)


def _invalid(rule: str) -> InvalidSetting:
    return InvalidSetting(
        f"Invalid value {rule!r} for ssl.principal.mapping.rules: write rules as RULE:pattern/replacement/,"
        " with L or U behind it for lower or upper case, or as DEFAULT, with commas between them."
    )
