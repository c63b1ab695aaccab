"""The same queue on other servers: the oldest Redis, a cluster, a Sentinel group, behind TLS, under ACLs."""

import pytest

pytest.register_assert_rewrite("tests.topology.life")
