"""The job tracker: the ledger, consolidation and progress."""
