"""The service on standard input and output: its protocol, on both layouts, as a real process."""
