"""Deterministic simulation: many programs, a bad network and a server that dies, in one thread and in no time.

The client is written without I/O: a call is a generator that asks for steps (`windlass.transport.wire`). Here a
scheduler answers them. It decides which request is lost, which reply, and which arrives a minute later; which program
dies or stands still; when the server is killed and what its clock says. Only the server is real, and it is called one
step at a time. So the seed decides everything, and the same seed gives the same history, to the last bit.

    run.py      one seed, from the first step to the last check
    world.py    virtual time, machines, programs and their tasks
    network.py  what becomes of each request and reply
    engine.py   the real server, its clock frozen at virtual time
    actors.py   what the programs do: producers, raw lease workers, workers with a name
    faults.py   what goes wrong, and when
    hooks.py    time and chance of the client, taken from the seed
    book.py     what the server should have answered, step by step in its own order:
                jobs.py (values), moves.py, orders.py, turns.py
    truth.py    what was told to the programs, against what the server did
    notes.py    the log of a run as real processes write it, for their checker
"""
