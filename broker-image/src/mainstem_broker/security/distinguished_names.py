"""The subject of a certificate as Java prints it (`X500Principal.getName()`, RFC 2253), which is what the
mapping rules of principals are written for. Reads just as much DER (X.690) as that takes."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

_SEQUENCE: Final = 0x30
_SET: Final = 0x31
_VERSION: Final = 0xA0
_OBJECT_IDENTIFIER: Final = 0x06
_ENCODINGS: Final = {
    0x0C: "utf-8",  # UTF8String
    0x13: "ascii",  # PrintableString
    0x14: "latin-1",  # T61String, as it is used
    0x16: "ascii",  # IA5String
    0x1C: "utf-32-be",  # UniversalString
    0x1E: "utf-16-be",  # BMPString
}
_KEYWORDS: Final = {  # RFC 2253, section 2.3
    "2.5.4.3": "CN",
    "2.5.4.7": "L",
    "2.5.4.8": "ST",
    "2.5.4.10": "O",
    "2.5.4.11": "OU",
    "2.5.4.6": "C",
    "2.5.4.9": "STREET",
    "0.9.2342.19200300.100.1.25": "DC",
    "0.9.2342.19200300.100.1.1": "UID",
}
_SPECIAL: Final = frozenset(',+"\\<>;=')


def subject_of(certificate: bytes) -> str:
    """The subject of an X.509 certificate in DER, as `CN=alice,O=Example`: the most specific name first.

    Raises:
        ValueError: it is no certificate.
    """
    try:
        (_, outer), *_ = _elements(certificate)
        (_, body), *_ = _elements(outer)
        fields = list(_elements(body))
        # serial number, signature algorithm, issuer, validity, subject (RFC 5280, section 4.1)
        tag, subject = fields[5 if fields[0][0] == _VERSION else 4]
        if tag != _SEQUENCE:
            raise ValueError("The certificate has no subject.")
        names = [_relative_name(content) for tag, content in _elements(subject) if tag == _SET]
    except (IndexError, UnicodeDecodeError) as error:
        raise ValueError("The certificate cannot be read.") from error
    return ",".join(reversed(names))


def _relative_name(content: bytes) -> str:
    return "+".join(_attribute(attribute) for _, attribute in _elements(content))


def _attribute(content: bytes) -> str:
    (tag, identifier), (value_tag, value) = _elements(content)
    if tag != _OBJECT_IDENTIFIER:
        raise ValueError("The certificate's subject cannot be read.")
    dotted = _dotted(identifier)
    keyword = _KEYWORDS.get(dotted)
    encoding = _ENCODINGS.get(value_tag)
    if keyword is None or encoding is None:
        return f"{keyword or dotted}=#{_encoded(value_tag, value).hex()}"
    return f"{keyword}={_escaped(value.decode(encoding))}"


def _escaped(text: str) -> str:
    """RFC 2253, section 2.4."""
    escaped = "".join(f"\\{character}" if character in _SPECIAL else character for character in text)
    if escaped[:1] in (" ", "#"):
        escaped = "\\" + escaped
    if len(text) > 1 and text.endswith(" "):
        escaped = escaped[:-1] + "\\ "
    return escaped


def _elements(data: bytes) -> Iterator[tuple[int, bytes]]:
    """(tag, content) of the elements that lie one behind the other."""
    position = 0
    while position < len(data):
        tag, length = data[position], data[position + 1]
        position += 2
        if length >= 0x80:
            count = length & 0x7F
            length = int.from_bytes(data[position : position + count], "big")
            position += count
        if position + length > len(data):
            raise ValueError("The certificate is cut off.")
        yield tag, data[position : position + length]
        position += length


def _encoded(tag: int, content: bytes) -> bytes:
    if len(content) < 0x80:
        return bytes((tag, len(content))) + content
    length = len(content).to_bytes((len(content).bit_length() + 7) // 8, "big")
    return bytes((tag, 0x80 | len(length))) + length + content


def _dotted(identifier: bytes) -> str:
    numbers: list[int] = []
    number = 0
    for byte in identifier:
        number = number << 7 | byte & 0x7F
        if not byte & 0x80:
            numbers.append(number)
            number = 0
    first = min(numbers[0] // 40, 2)
    return ".".join(map(str, (first, numbers[0] - 40 * first, *numbers[1:])))
