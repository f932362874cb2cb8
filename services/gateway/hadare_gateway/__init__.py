"""The gateway: the message API that users and the command line talk to."""
