"""Evaluation of long contexts: plain prose to hide a needle in, and what is found again."""
