"""The demo: thousands of jobs, several worker processes, one of them killed half-way, and an account of every job.

Nothing in it is staged but the work itself, which is sleep. The workers are processes of their own that use the
raw face of a queue as any program would. What they did is written down outside the server, in one
append-only file for each worker, and the account is drawn up from those files.

    plan      the jobs, from a seed
    worker    one worker process: lease, run, settle, and write it down
    ledger    the lines that a worker writes down, and how they are read back
    crew      starting, killing and dismissing the worker processes
    tally     what the ledgers say so far, for whoever watches
    account   what became of every job, from the ledgers
    run       the run itself: a stream of frames, then the result
    frame     a run at one moment
    result    how a run ended
    screen    frames as a live picture in a terminal
    lines     frames as plain lines, and the account in words
"""
