"""Starts a node agent: ``python -m hadare_node_agent``."""

from hadare.runtime.service import run
from hadare_node_agent.config import NodeAgentConfig
from hadare_node_agent.main import main

if __name__ == "__main__":
    run("node-agent", NodeAgentConfig, main)
