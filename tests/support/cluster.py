"""A real cluster for a test: slots can move and primaries can fail while it serves."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import Literal, Self

from redis.crc import key_slot

from tests.support.replication import EAGER_REPLICATION, ROLE_CHANGE_ERRORS, follows, primary_port
from tests.support.server import HOST, Fsync, Server, fields
from tests.support.waiting import wait_until

SLOTS = 16_384


class Cluster:
    """A cluster of local processes: the slots are shared evenly among the primaries.

    `nodes` holds the primaries first, then their replicas: node `primaries + i` follows node `i % primaries`.
    """

    def __init__(
        self,
        *,
        primaries: int = 3,
        replicas: int = 0,
        binary: Path | None = None,
        config: Mapping[str, str] | None = None,
        node_timeout_ms: int = 1000,
        appendonly: bool = False,
        appendfsync: Fsync = "everysec",
    ) -> None:
        self.primaries = primaries
        settings = {
            "cluster-enabled": "yes",
            "cluster-config-file": "nodes.conf",
            "cluster-node-timeout": str(node_timeout_ms),
            "cluster-replica-validity-factor": "0",
            "cluster-allow-replica-migration": "no",
            **EAGER_REPLICATION,
            **(config or {}),
        }
        self.nodes = [
            Server(binary, unix=False, tcp=True, config=settings, appendonly=appendonly, appendfsync=appendfsync)
            for _ in range(primaries * (1 + replicas))
        ]

    def __enter__(self) -> Self:
        try:
            self.start()
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @property
    def url(self) -> str:
        """The URL of the first live node."""
        return self.live[0].tcp_url

    @property
    def live(self) -> list[Server]:
        return [node for node in self.nodes if node.alive]

    def start(self) -> None:
        """Starts every node, joins them and waits until the cluster serves all slots."""
        for node in self.nodes:
            node.start()
        for index, node in enumerate(self.nodes):
            node.command("CLUSTER", "SET-CONFIG-EPOCH", index + 1)  # allowed only before it meets another
        for index, node in enumerate(self.nodes):
            for other in self.nodes[index + 1 :]:
                node.command("CLUSTER", "MEET", HOST, _port(other), other.bus_port or 0)
        for index, node in enumerate(self.nodes[: self.primaries]):
            low, high = (SLOTS * edge // self.primaries for edge in (index, index + 1))
            node.command("CLUSTER", "ADDSLOTSRANGE", low, high - 1)
        wait_until(self._all_met, "the nodes to know each other")
        for index, node in enumerate(self.nodes[self.primaries :]):
            node.command("CLUSTER", "REPLICATE", self.node_id(index % self.primaries))
        self.wait_ok()

    def close(self) -> None:
        with ExitStack() as stack:
            for node in self.nodes:
                stack.callback(node.close)

    def wait_ok(self, timeout: float = 20.0) -> None:
        """Returns when every live node serves, knows the same owner for each slot and follows its primary."""
        wait_until(
            self._settled, "the cluster to be whole", timeout=timeout, interval=0.03, ignoring=ROLE_CHANGE_ERRORS
        )

    def node_id(self, index: int) -> str:
        reply: bytes = self.nodes[index].command("CLUSTER", "MYID")
        return reply.decode()

    def slot_of(self, key: str | bytes) -> int:
        return key_slot(key.encode() if isinstance(key, str) else key)

    def node_of(self, key: str | bytes) -> Server:
        """The primary that holds the key's slot now."""
        return self.nodes[self.owner(self.slot_of(key))]

    def owner(self, slot: int) -> int:
        """The index of the node that owns the slot, according to the first live node."""
        for low, high, port in _slot_map(self.live[0]):
            if low <= slot <= high:
                return self._index_of(port)
        raise LookupError(f"no node holds slot {slot}")

    def owners(self) -> set[int]:
        """The indexes of the nodes that own slots: the current primaries."""
        return {self._index_of(port) for _, _, port in _slot_map(self.live[0])}

    def move_slot(self, slot: int, to_index: int, step: int = 100) -> None:
        """Move the slot with all its keys, `step` keys at a time, while the cluster serves."""
        move = self.begin_move(slot, to_index)
        while move.migrate(step):
            pass
        move.finish()

    def move_slot_at_once(self, slot: int, to_index: int) -> None:
        """Move the slot in one operation, as Valkey 9 can; clients see only MOVED."""
        source = self.nodes[self.owner(slot)]
        source.command("CLUSTER", "MIGRATESLOTS", "SLOTSRANGE", slot, slot, "NODE", self.node_id(to_index))
        wait_until(lambda: self.owner(slot) == to_index, f"node {to_index} to have slot {slot}")
        self.wait_ok()

    def begin_move(self, slot: int, to_index: int) -> SlotMove:
        """Begin to move a slot, and leave it open: the caller migrates keys and finishes the move."""
        return SlotMove(self, slot, self.owner(slot), to_index)

    def failover(self, index: int = 0, how: Literal["", "FORCE", "TAKEOVER"] = "") -> Server:
        """Promote a replica of the primary at `index`; returns the new primary."""
        replica = next(node for node in self.live if primary_port(node) == self.nodes[index].port)
        replica.command("CLUSTER", "FAILOVER", *([how] if how else []))
        wait_until(
            lambda: replica.command("ROLE")[0] == b"master", f"{replica!r} to be primary", ignoring=ROLE_CHANGE_ERRORS
        )
        self.wait_ok()
        return replica

    def _index_of(self, port: int) -> int:
        return next(index for index, node in enumerate(self.nodes) if node.port == port)

    def _all_met(self) -> bool:
        for node in self.nodes:
            known: bytes = node.command("CLUSTER", "NODES")
            if known.count(b"\n") != len(self.nodes) or b"handshake" in known:
                return False
        return True

    def _settled(self) -> bool:
        live = self.live
        maps = [_slot_map(node) for node in live]
        return (
            all(fields(node.command("CLUSTER", "INFO"))["cluster_state"] == "ok" for node in live)
            and all(view == maps[0] for view in maps)
            and sum(high - low + 1 for low, high, _ in maps[0]) == SLOTS
            and all(self.nodes[self._index_of(port)].alive for _, _, port in maps[0])
            and all(follows(node) for node in live)
        )


class SlotMove:
    """The move of one slot, step by step: open from the start, then `migrate` until empty, then `finish`."""

    def __init__(self, cluster: Cluster, slot: int, from_index: int, to_index: int) -> None:
        self.cluster = cluster
        self.slot = slot
        self.source = cluster.nodes[from_index]
        self.target = cluster.nodes[to_index]
        self._target_id = cluster.node_id(to_index)
        self.target.command("CLUSTER", "SETSLOT", slot, "IMPORTING", cluster.node_id(from_index))
        self.source.command("CLUSTER", "SETSLOT", slot, "MIGRATING", self._target_id)

    def migrate(self, count: int = 100) -> int:
        """Move up to `count` keys and return how many; from now on the source answers ASK for them."""
        keys: list[bytes] = self.source.command("CLUSTER", "GETKEYSINSLOT", self.slot, count)
        if keys:
            self.source.command("MIGRATE", HOST, _port(self.target), "", 0, 5000, "KEYS", *keys)
        return len(keys)

    def finish(self) -> None:
        """Assign the slot to the target on every primary; refused while the source still has keys of the slot."""
        left: int = self.source.command("CLUSTER", "COUNTKEYSINSLOT", self.slot)
        if left:  # the target would own the slot at once, and the source then drop these keys
            raise RuntimeError(
                f"slot {self.slot} still has {left} keys on the source: call migrate() until it returns 0"
            )
        others = [
            node
            for node in self.cluster.live
            if node not in (self.source, self.target) and node.command("ROLE")[0] == b"master"
        ]
        for node in (self.target, self.source, *others):
            node.command("CLUSTER", "SETSLOT", self.slot, "NODE", self._target_id)
        self.cluster.wait_ok()

    def abandon(self) -> None:
        """Cancel the move on both sides; keys already migrated stay on the target, unreachable."""
        for node in (self.source, self.target):
            node.command("CLUSTER", "SETSLOT", self.slot, "STABLE")


def _port(server: Server) -> int:
    return server.known_port()


def _slot_map(node: Server) -> list[tuple[int, int, int]]:
    """First slot, last slot and the port of the primary, for each range."""
    return sorted((low, high, primary[1]) for low, high, primary, *_ in node.command("CLUSTER", "SLOTS"))
