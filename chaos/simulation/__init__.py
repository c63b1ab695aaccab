"""Deterministic simulation: many programs, a bad network and a dying server, in one thread and virtual time.

The client is written without I/O: a call is a generator that yields steps (`windlass.transport.io_steps`). Here a
scheduler answers them. It decides which request or reply is lost or arrives a minute later; which program dies or
freezes; when the server is killed and what its clock shows. Only the server is real, and it is called one step at a
time. So the seed decides everything: the same seed gives exactly the same history.

    run.py      one seed, from the first step to the last check
    world.py    virtual time, machines, programs and their tasks
    network.py  the fate of each request and reply
    engine.py   the real server, its clock frozen at virtual time
    actors.py   the programs: producers, raw lease workers, workers with a name
    faults.py   the faults and their schedule
    hooks.py    the client's time and randomness, taken from the seed
    book.py     a model of each queue that predicts every answer, in the server's order:
                jobs.py (values), moves.py, orders.py, turns.py
    truth.py    the programs' answers, compared with the server's steps
    notes.py    an event log as real processes write it, for their checker
"""
