"""What INFO says about a server, and whether it is fit for a queue."""

from __future__ import annotations

from dataclasses import dataclass

from windlass.errors import ServerMayEvict, ServerTooOld
from windlass.values.durability import MEMORY, Durability

MIN_VERSIONS = {"redis": (7, 0), "valkey": (7, 2)}


@dataclass(frozen=True, slots=True)
class ServerFacts:
    """The fields of INFO that matter to a queue."""

    kind: str
    version: tuple[int, ...]
    eviction: str
    cluster: bool
    primary: bool
    run_id: str = ""  # changes with each restart of the server
    known_level: Durability = MEMORY  # the durability of every acknowledged write, as far as it is known

    @classmethod
    def read(cls, info: bytes) -> ServerFacts:
        """Parse an INFO reply."""
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
        """Whether WAITAOF exists and really waits for the disk.

        In Redis 7.4.0 to 7.4.2, and in Valkey from 8.0 on, WAITAOF replies too early with `appendfsync everysec`
        (redis#13793; measured on Valkey 9.1.2).
        """
        if self.kind == "valkey":
            return (7, 2) <= self.version < (8, 0)
        return (7, 2) <= self.version < (7, 4) or self.version >= (7, 4, 3)

    def check(self, where: str, *, allow_eviction: bool) -> None:
        """Raise `ServerTooOld` or `ServerMayEvict` if this server is not fit for a queue."""
        if self.version < MIN_VERSIONS[self.kind]:
            raise ServerTooOld(
                f"the server at {where} is {self.kind} {_dotted(self.version)}: Windlass needs Redis 7.0 or Valkey 7.2 "
                "or newer. Upgrade it, or omit the URL to use the embedded server"
            )
        if self.eviction != "noeviction" and not allow_eviction:
            raise ServerMayEvict(
                f"the server at {where} has maxmemory-policy {self.eviction}: it may silently evict jobs when memory "
                "runs short. Set `maxmemory-policy noeviction`, or pass allow_eviction=True to take the risk"
            )


def version_of(text: str) -> tuple[int, ...]:
    return tuple(int(part) for part in text.split(".") if part.isdigit())


def _dotted(version: tuple[int, ...]) -> str:
    return ".".join(map(str, version)) or "of unknown version"
