"""Starts a gateway: ``python -m hadare_gateway``."""

from hadare.runtime.service import run
from hadare_gateway.config import GatewayConfig
from hadare_gateway.service import main

if __name__ == "__main__":
    run("gateway", GatewayConfig, main)
