"""Fixtures that tests of several kinds share."""

from nats_fixtures import backplane, connect, nats_url, prefix

__all__ = ["backplane", "connect", "nats_url", "prefix"]
