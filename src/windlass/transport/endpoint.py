"""Parses the server URL into addresses. Never prints its password."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, NamedTuple
from urllib.parse import parse_qsl, unquote, urlsplit

from windlass.errors import InvalidOption

_SCHEMES = {
    "redis": ("direct", False),
    "rediss": ("direct", True),
    "valkey": ("direct", False),
    "valkeys": ("direct", True),
    "redis+sentinel": ("sentinel", False),
    "rediss+sentinel": ("sentinel", True),
    "unix": ("unix", False),
    "embedded": ("embedded", False),
}
_TLS_OPTIONS = ("ssl_ca_certs", "ssl_certfile", "ssl_keyfile", "ssl_cert_reqs", "ssl_check_hostname")
_EXAMPLE = "redis://host:6379/0, rediss://…, unix:///path/to.sock, redis+sentinel://host:26379,host:26379/name/0"


class _Unusable(ValueError):
    """Why a URL cannot be used. The message repeats nothing of the URL, which may hold a password."""


class Address(NamedTuple):
    """One server process: a host and port, or a socket path."""

    host: str = ""
    port: int = 0
    path: str = ""

    def __str__(self) -> str:
        return self.path or f"{self.host}:{self.port}"


@dataclass(frozen=True)
class Endpoint:
    """A parsed URL: where to connect, and as which user."""

    kind: str
    addresses: tuple[Address, ...]
    tls: bool = False
    username: str | None = None
    password: str | None = field(default=None, repr=False)
    db: int = 0
    service: str = ""
    sentinel_password: str | None = field(default=None, repr=False)
    tls_options: tuple[tuple[str, str], ...] = ()

    @classmethod
    def parse(cls, url: str) -> Endpoint:
        """Parse a URL. Raises `InvalidOption`, with an example of a valid one."""
        if not isinstance(url, str) or "://" not in url:
            raise InvalidOption(f"the server must be given as a URL, like {_EXAMPLE}")
        scheme, _, rest = url.partition("://")
        if scheme not in _SCHEMES:
            raise InvalidOption(f"{scheme[:20]!r} is not a URL scheme that Windlass supports: use {_EXAMPLE}")
        kind, tls = _SCHEMES[scheme]
        try:
            return cls._read(kind, tls, urlsplit("//" + rest))
        except _Unusable as error:
            raise InvalidOption(f"the server's URL cannot be used: {error}; write it like {_EXAMPLE}") from None
        except ValueError:  # its text may contain part of the password
            raise InvalidOption(
                "the server's URL cannot be parsed: percent-encode special characters in the user name and password. "
                f"Write it like {_EXAMPLE}"
            ) from None

    @classmethod
    def _read(cls, kind: str, tls: bool, parts: Any) -> Endpoint:
        options = dict(parse_qsl(parts.query, keep_blank_values=True))
        credentials, _, hosts = parts.netloc.rpartition("@")
        user, _, password = credentials.partition(":")
        path = unquote(parts.path)
        service = ""
        db = options.pop("db", None)
        if kind == "unix":
            if not path:
                raise _Unusable("it has no socket path")
            addresses: tuple[Address, ...] = (Address(path=path),)
        elif kind == "embedded":
            addresses = (Address(path=path),)
        else:
            addresses = tuple(_address(host, 26379 if kind == "sentinel" else 6379) for host in hosts.split(","))
            tail = path.strip("/")
            if kind == "sentinel":
                service, _, tail = tail.partition("/")
                if not service:
                    raise _Unusable("it has no Sentinel service name")
            db = db if db is not None else tail or None
        sentinel_password = options.pop("sentinel_password", None)
        tls_options = tuple((name, options.pop(name)) for name in _TLS_OPTIONS if name in options)
        if tls_options and not tls:
            raise _Unusable(f"{tls_options[0][0]} needs a rediss:// URL")
        if options:
            known = ", ".join(("db", "sentinel_password", *_TLS_OPTIONS))
            raise _Unusable(f"it has an unknown option (the options are {known})")
        return cls(
            kind=kind,
            addresses=addresses,
            tls=tls,
            username=unquote(user) or None,
            password=unquote(password) or None,
            db=_database(db),
            service=service,
            sentinel_password=sentinel_password,
            tls_options=tls_options,
        )

    def __str__(self) -> str:
        return ",".join(map(str, self.addresses)) + (f" ({self.service})" if self.service else "")


def _address(host: str, default_port: int) -> Address:
    parts = urlsplit("//" + host)
    if not parts.hostname:
        raise _Unusable("it has no host")
    return Address(parts.hostname, parts.port or default_port)


def _database(text: str | None) -> int:
    if text is None:
        return 0
    if not text.isascii() or not text.isdigit():
        raise _Unusable("its database is not a number")
    return int(text)
