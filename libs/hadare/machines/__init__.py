"""What each service decides, as plain functions and state machines: events in, commands out; no clock, no I/O."""
