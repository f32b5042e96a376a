"""Public weights -> ours: one file a source, each with a parity test."""
