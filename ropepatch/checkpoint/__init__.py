"""Checkpoints as files on disk; weights are carried, never read."""
