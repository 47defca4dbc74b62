"""Evaluations of models and folders, from loading to results on disk."""

from ropepatch.measuring.running import needle, perplexity
from ropepatch.measuring.settings import Settings
from ropepatch.measuring.subject import Candidate, Opening, Subject

__all__ = ["Candidate", "Opening", "Settings", "Subject", "needle", "perplexity"]
