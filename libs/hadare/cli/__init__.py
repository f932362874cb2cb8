"""The ``hadare`` command. Others script against it: JSON on stdout, all else on stderr, exit codes documented."""
