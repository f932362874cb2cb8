"""Pricing: the dual prices of every (node, device type)."""
