"""The demo: the shop of `examples/shop`, its worker, three kills, and an account of every order.

Nothing is staged: the worker is a real `windlass worker`, with its supervisor, runner and children. The jobs log their
work to an append-only ledger outside the server, and the account is built from that ledger.

    shop_loader     finds the shop's file and imports it
    worker_process  starts the worker, lists its processes, stops it
    ledger          reads the lines that the jobs write
    tally           turns these lines into attempts
    kills           which process to kill, when, and how long recovery took
    account         the outcome of every order
    run             the run: a stream of frames, then the result
    frame           the state of a run at one moment
    result          how a run ended
    screen          shows frames as a live picture in a terminal
    lines           shows frames as plain lines, and the account in words
"""
