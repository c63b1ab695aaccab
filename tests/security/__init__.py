"""What somebody can do who means harm: each test is against the real thing. SECURITY.md says which row each proves."""
