"""What is true of the native layout alone: its keys, its wake-ups, what it leaves behind and what it can mend."""
