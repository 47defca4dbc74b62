"""Evaluations of models and folders, from loading to results on disk."""
