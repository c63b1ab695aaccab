"""The leases that a runner has on one queue, and their comparison with the server's after it restarted or lost data."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from windlass.storage.port import Layout, Turn
from windlass.transport import Flow, Session
from windlass.values.outcome import Outcome, Released
from windlass.worker.reclaim import all_held, lease_of


class Reconciliation(NamedTuple):
    """What a comparison found: jobs released, fences that we lost, and whether the server has lost writes."""

    released: int
    lost: set[int]
    rewound: bool


class HeldLeases:
    """The fences of the leases of one holder on one queue that are not settled yet."""

    def __init__(self, layout: Layout, holder: str) -> None:
        self.holder = holder
        self.reconciling = False
        self._layout = layout
        self._fences: set[int] = set()
        # (data losses, server process): as of the last turn, and as of the last reconciliation.
        self._reconciled = self._server_state = (0, "")

    def learn(self, sent: Sequence[Outcome], turn: Turn, server: str) -> None:
        """Record what a turn settled and leased, and which server process answered."""
        self._fences.difference_update([outcome.lease.fence for outcome in sent])
        self._fences.update([lease.fence for lease in turn.leases])
        self._fences.update([outcome.lease.fence for outcome in turn.undecodable])
        self._server_state = (self._layout.data_losses, server)
        if self._reconciled == (0, ""):
            self._reconciled = self._server_state

    def restart_as(self, holder: str) -> None:
        """Lease under another holder name. The leases of the old name are lost."""
        self.holder = holder
        self._fences.clear()

    @property
    def need_reconcile(self) -> bool:
        """Whether the server restarted or lost data since the last reconciliation."""
        return self._server_state != self._reconciled and not self.reconciling

    def reconcile(self, session: Session) -> Flow[Reconciliation]:
        """Compare our leases with the server's, and release those that only the server has.

        The server may list jobs under our name that we do not have, because an old copy of its data brought back a
        finished job. They would stay leased as long as this worker lives. No turn may run meanwhile: its leases are on
        the server before they are here.
        """
        data_losses = self._reconciled[0]
        self._reconciled = self._server_state
        try:
            held = yield from all_held(session, self._layout, self.holder)
            orphans = [Released(lease_of(record)) for record in held if record.fence not in self._fences]
            most = self._layout.largest_turn
            for start in range(0, len(orphans), most):
                yield from session.perform(self._layout.turn(orphans[start : start + most]))
        except BaseException:
            self._reconciled = (-1, "")  # try again with the next turn
            raise
        lost = self._fences - {record.fence for record in held}
        return Reconciliation(len(orphans), lost, self._layout.data_losses != data_losses)
