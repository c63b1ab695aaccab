"""The embedded server: a durable Valkey that every program of one user finds in one folder.

`EmbeddedServer().ensure()` returns the path of a unix socket on which a server answers. It uses the
running server, or starts one. The server belongs to its folder, the *home*, and not to the program
that started it: it keeps running when that program ends.

    home/                     0700, this user only
      windlass.lock           flocked by the server process for as long as it lives
      windlass.sock           the only way in; there is no TCP port
      windlass.conf           0600, rewritten at each start
      windlass.pid            written by the server
      windlass.log, .log.1    its log, rotated above 10 MB
      appendonlydir/          the data: an append-only file, fsynced before each answer

The lock makes this safe. Two servers on one folder would destroy each other's data without an
error, so a server runs only under an exclusive flock. The program that starts a server takes the
lock on a file descriptor, passes that descriptor to the server, and closes its own copy. From then
on the kernel keeps the lock exactly as long as the server lives, even if that program dies:

    lock free                      no server: the program that takes the lock may start one
    lock held, socket answers      a server: use it
    lock held, socket is silent    a server that is starting, loading, stopping or stuck: wait

`binary` finds the server to run, `home` checks the folder, `lock` holds the flock, `launch` writes
the configuration and starts the process, `probe` talks to it, `logfile` limits its log's size, and
`server` puts them together.
"""

from windlass.embedded.binary import find_server_binary
from windlass.embedded.server import EmbeddedServer, ServerStatus

__all__ = ["EmbeddedServer", "ServerStatus", "find_server_binary"]
