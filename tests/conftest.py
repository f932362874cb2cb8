"""Fixtures that tests of several kinds share."""

import os

from hypothesis import settings

from nats_fixtures import backplane, connect, nats_url, prefix

__all__ = ["backplane", "connect", "nats_url", "prefix"]

settings.register_profile("local", max_examples=50, deadline=None)
settings.register_profile("ci", max_examples=300, deadline=None, print_blob=True)
settings.register_profile("nightly", max_examples=5000, deadline=None, print_blob=True)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "local"))
