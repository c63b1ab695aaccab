"""The layouts of other systems: their keys byte for byte, and what their documents promise."""
