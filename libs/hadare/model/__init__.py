"""The nouns: frozen dataclasses that are both what the core reasons about and what travels on the bus.

Nothing here decides, waits, or touches the outside world.
"""
