"""The only library code that waits: the bus, the stores, clocks, telemetry, configuration. All of NATS is in here."""
