"""One profile for all properties: reproducible, and indifferent to a slow machine."""

from hypothesis import settings

settings.register_profile("ropepatch", deadline=None, derandomize=True, max_examples=25)
settings.load_profile("ropepatch")
