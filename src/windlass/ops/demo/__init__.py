"""The demo: the shop of `examples/shop`, its worker, three kills, and an account of every order.

Nothing in it is staged. The worker is the one that `windlass worker` starts, with its supervisor, runner and
children. What
its jobs do they write down outside the server, in an append-only ledger, and the account is drawn up from that.

    shopfront  where the shop's file is, and how it is opened
    worker     what is started: `windlass worker`, which ends with the demo
    worker_process       the worker's processes as the demo sees them: started, found, dismissed
    ledger     the lines that jobs write down, read back as they come
    tally      the attempts that those lines tell of
    kills      whom to kill, when, and how long until the work went on
    account    what became of every order
    run        the run itself: a stream of frames, then the result
    frame      a run at one moment
    result     how a run ended
    screen     frames as a live picture in a terminal
    lines      frames as plain lines, and the account in words
"""
