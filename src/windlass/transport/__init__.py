"""How calls reach the server: one text for what to do (`session`), two thin runners that do it."""

from windlass.transport.async_driver import AsyncDriver
from windlass.transport.endpoint import Endpoint
from windlass.transport.session import Session, SessionOptions
from windlass.transport.sync_driver import SyncDriver
from windlass.transport.wire import Flow

__all__ = ["AsyncDriver", "Endpoint", "Flow", "Session", "SessionOptions", "SyncDriver"]
