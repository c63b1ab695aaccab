"""Shared test support: real servers started for a test, and proxies that break connections deliberately."""
