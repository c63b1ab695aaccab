"""The embedded server: a durable Valkey that every program of one user finds in one folder.

`EmbeddedServer().ensure()` gives the path of a unix socket behind which a server answers. It uses
the one that lives already, or starts one. Nobody owns that server: it belongs to its folder, the
*home*, and outlives the program that happened to start it.

    home/                     0700, ours alone
      windlass.lock           flocked by the server process for as long as it lives
      windlass.sock           the only way in; there is no TCP port
      windlass.conf           0600, written anew at each start
      windlass.pid            written by the server
      windlass.log, .log.1    its log, rotated above 10 MB
      appendonlydir/          the data: an append-only file, fsynced before each answer

The lock is what everything rests on. Two servers on one folder destroy each other's data without
an error, so the right to run is an exclusive flock. The program that starts a server takes the
lock on a file descriptor, hands that descriptor to the server, and closes its own copy. From then
on the kernel keeps the lock exactly as long as the server lives, whatever becomes of anyone else:

    lock free                      no server: whoever takes the lock may start one
    lock held, socket answers      a server: use it
    lock held, socket is silent    a server that is starting, loading, leaving or stuck: wait

`binary` finds the server to run, `home` guards the folder, `lock` holds the flock, `launch` writes
the configuration and starts the process, `probe` talks to it, `logfile` keeps its log bounded, and
`server` puts them together.
"""

from windlass.embedded.binary import find_server_binary
from windlass.embedded.server import EmbeddedServer, ServerStatus

__all__ = ["EmbeddedServer", "ServerStatus", "find_server_binary"]
