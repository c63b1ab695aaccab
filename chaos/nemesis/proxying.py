"""A lossy line between clients and the server: random requests and replies are delayed, lost or cut.

The proxy reads whole requests and replies (`tests/support/proxy.py`), so each loss is on a known side of the server's
work: a dropped request was never executed, a dropped reply was.
"""

from __future__ import annotations

import random
from collections.abc import Mapping
from dataclasses import dataclass, fields

from tests.support import proxy as line
from tests.support.proxy import Address, FaultFunction, FaultProxy

from chaos.nemesis.fault import Detail, Fault


@dataclass(frozen=True, slots=True)
class Rates:
    """The probability of each fault per request; other requests pass. `seconds` is the longest delay."""

    delay: float = 0.0
    delay_reply: float = 0.0
    drop_request: float = 0.0
    drop_reply: float = 0.0
    cut_request: float = 0.0
    cut_reply: float = 0.0
    half_close: float = 0.0
    hang: float = 0.0
    hang_reply: float = 0.0
    seconds: float = 0.1

    def as_dict(self) -> dict[str, float]:
        """The nonzero rates by name, for the log and for plans."""
        return {field.name: value for field in fields(self) if (value := getattr(self, field.name))}


LIGHT = Rates(delay=0.01, delay_reply=0.01, drop_request=0.002, drop_reply=0.005, cut_request=0.002, half_close=0.002)
HEAVY = Rates(
    delay=0.05, delay_reply=0.05, drop_request=0.01, drop_reply=0.02, cut_request=0.01, cut_reply=0.01, half_close=0.01
)

_KINDS: Mapping[str, line.Fault] = {
    "drop_request": line.DROP_REQUEST,
    "drop_reply": line.DROP_REPLY,
    "cut_request": line.CUT_REQUEST,
    "cut_reply": line.CUT_REPLY,
    "half_close": line.HALF_CLOSE,
    "hang": line.HANG,
    "hang_reply": line.HANG_REPLY,
}


def by_chance(rates: Rates, seed: int) -> FaultFunction:
    """Chooses a fault for each request. The same seed gives the same choices for the same order of requests."""
    chance = random.Random(seed)
    names = [name for name in rates.as_dict() if name != "seconds"]
    weights = [getattr(rates, name) for name in names]
    names.append("forward")
    weights.append(max(0.0, 1.0 - sum(weights)))

    def choose(request: list[bytes]) -> line.Fault:
        name = chance.choices(names, weights)[0]
        if name == "delay":
            return line.delay(chance.uniform(0.0, rates.seconds))
        if name == "delay_reply":
            return line.delay_reply(chance.uniform(0.0, rates.seconds))
        return _KINDS.get(name, line.FORWARD)

    return choose


class LossyProxy(FaultProxy):
    """A proxy that is lossy for its whole lifetime."""

    def __init__(self, upstream: Address, rates: Rates, seed: int, *, unix: bool = False) -> None:
        super().__init__(upstream, faults=by_chance(rates, seed), unix=unix)


class Lossy(Fault):
    """Makes a proxy lossy for a while."""

    name = "lossy line"
    summary = "Requests and replies are delayed, dropped, cut in the middle or half-closed, at random."

    def __init__(self, proxy: FaultProxy, rates: Rates, seed: int) -> None:
        self.proxy = proxy
        self.rates = rates
        self.seed = seed
        self._before = dict(proxy.counts)

    def begin(self) -> Detail:
        self._before = dict(self.proxy.counts)
        self.proxy.faults = by_chance(self.rates, self.seed)
        return {"rates": self.rates.as_dict(), "seed": self.seed}

    def end(self) -> Detail:
        self.proxy.faults = None
        met = {kind: count - self._before.get(kind, 0) for kind, count in dict(self.proxy.counts).items()}
        return {"met": {kind: count for kind, count in met.items() if count}}


class Disconnect(Fault):
    """One cut."""

    name = "disconnect"
    summary = "All connections through a proxy are closed at once; new ones are accepted."

    def __init__(self, proxy: FaultProxy) -> None:
        self.proxy = proxy

    def begin(self) -> Detail:
        self.proxy.disconnect()
        return {"connections_so_far": self.proxy.connections}


class LineDown(Fault):
    """No connection to the server until the end."""

    name = "line down"
    summary = "All connections through a proxy are closed, and new ones are refused until it is up again."

    def __init__(self, proxy: FaultProxy) -> None:
        self.proxy = proxy
        self._down = False

    def begin(self) -> Detail:
        self._down = True
        self.proxy.down()
        return {}

    def end(self) -> Detail:
        down, self._down = self._down, False
        if down:
            self.proxy.up()
        return {}
