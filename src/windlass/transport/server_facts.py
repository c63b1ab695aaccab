"""What a server says of itself (INFO), and whether a queue may be trusted to it."""

from __future__ import annotations

from dataclasses import dataclass

from windlass.errors import ServerMayEvict, ServerTooOld
from windlass.values.durability import MEMORY, Durability

OLDEST = {"redis": (7, 0), "valkey": (7, 2)}


@dataclass(frozen=True, slots=True)
class ServerFacts:
    """The few facts of INFO that decide."""

    kind: str
    version: tuple[int, ...]
    eviction: str
    cluster: bool
    primary: bool
    run_id: str = ""  # of this process: another after each restart
    known_level: Durability = MEMORY  # how safe everything is there that it has acknowledged, as far as that is known

    @classmethod
    def read(cls, info: bytes) -> ServerFacts:
        """Read an INFO reply."""
        lines = (line.partition(":") for line in info.decode(errors="replace").splitlines())
        fields = {name: value.strip() for name, separator, value in lines if separator}
        kind = "valkey" if "valkey_version" in fields else "redis"
        return cls(
            kind=kind,
            version=version_of(fields.get(f"{kind}_version", "")),
            eviction=fields.get("maxmemory_policy", "noeviction"),
            cluster=fields.get("cluster_enabled") == "1",
            primary=fields.get("role", "master") == "master",
            run_id=fields.get("run_id", ""),
        )

    @property
    def waits_for_disk(self) -> bool:
        """Whether it can be asked to wait until a write is on its disk, and then does.

        From Redis 7.4.0 to 7.4.2, and in Valkey from 8.0 on, WAITAOF answers too early with `appendfsync everysec`
        (redis#13793; measured on Valkey 9.1.2).
        """
        if self.kind == "valkey":
            return (7, 2) <= self.version < (8, 0)
        return (7, 2) <= self.version < (7, 4) or self.version >= (7, 4, 3)

    def check(self, where: str, *, allow_eviction: bool) -> None:
        """Raise if a queue must not be kept here."""
        oldest = OLDEST[self.kind]
        if self.version < oldest:
            raise ServerTooOld(
                f"the server at {where} is {self.kind} {_dotted(self.version)}: Windlass needs Redis 7.0 or Valkey 7.2 "
                "or newer; upgrade it, or leave the URL away to use the embedded server"
            )
        if self.eviction != "noeviction" and not allow_eviction:
            raise ServerMayEvict(
                f"the server at {where} has maxmemory-policy {self.eviction}: it may throw jobs away in silence when "
                "memory runs short; set `maxmemory-policy noeviction`, or pass allow_eviction=True to take the risk"
            )


def version_of(text: str) -> tuple[int, ...]:
    return tuple(int(part) for part in text.split(".") if part.isdigit())


def _dotted(version: tuple[int, ...]) -> str:
    return ".".join(map(str, version)) or "of unknown version"
