"""What a program is told about a connection that failed."""

from __future__ import annotations

from windlass.errors import NotApplied, OutcomeUnknown, ServerLoading, ServerUnreachable
from windlass.transport.errors import SERVER_UNAVAILABLE, ConnectFailed, WireLost, public_error

SERVER = "127.0.0.1:6379"


def test_a_connection_that_was_not_made_means_that_nothing_happened() -> None:
    error = public_error(ConnectFailed("connection refused"), SERVER)
    assert type(error) is ServerUnreachable
    assert isinstance(error, NotApplied)
    assert str(error).startswith(f"no connection to {SERVER} (connection refused); nothing was sent.")


def test_the_reason_that_the_server_gave_is_the_error() -> None:
    reason = ServerLoading("LOADING")
    assert public_error(ConnectFailed("LOADING", reason), SERVER) is reason


def test_after_a_lost_connection_the_outcome_is_unknown() -> None:
    error = public_error(WireLost("reset by peer"), SERVER)
    assert type(error) is OutcomeUnknown
    assert f"the connection to {SERVER} was lost (reset by peer)" in str(error)


def test_a_program_that_waits_for_its_server_can_catch_them_all() -> None:
    for error in (ConnectFailed("refused"), ConnectFailed("LOADING", ServerLoading("LOADING")), WireLost("reset")):
        assert isinstance(public_error(error, SERVER), SERVER_UNAVAILABLE)
