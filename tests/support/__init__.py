"""What the tests stand on: real servers started for a test, and proxies that break connections on purpose."""
