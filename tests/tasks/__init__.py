"""Tasks and handlers up to the point where a worker takes over.

Read in order: declaring, arguments, decoding, sending, endings, queue_handlers.
"""
