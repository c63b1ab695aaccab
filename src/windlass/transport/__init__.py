"""Sends calls to the server: `session` decides what to send, and two thin drivers do the I/O."""

from windlass.transport.async_driver import AsyncDriver
from windlass.transport.endpoint import Endpoint
from windlass.transport.io_steps import Flow
from windlass.transport.session import Session, SessionOptions
from windlass.transport.sync_driver import SyncDriver

__all__ = ["AsyncDriver", "Endpoint", "Flow", "Session", "SessionOptions", "SyncDriver"]
