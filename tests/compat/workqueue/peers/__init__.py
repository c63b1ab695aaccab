"""Programs that add, work and clean on one queue, each with another client, until they are told to stop or are killed.

All take the same words: role ("add", "work" or "clean"), address of the server, prefix, file of the journal, and for
"add" how many items. The data of an item is "data of " and its id. A journal has a line for each step, a mark and an
id: `r` ready, `a` added, `+` complete was true, `-` it was false, `0` the item had no data, `!` it had other data, `c`
one pass of a cleaner.
"""
