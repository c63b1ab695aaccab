"""Apps for real workers. Their jobs write into the journal what they do."""
