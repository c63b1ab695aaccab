"""Bad input: each gets an error of the tree that says what is wrong and what to do, and nothing is half-written."""
