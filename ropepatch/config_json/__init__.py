"""The rotary part of a `config.json`: dict in, dict out; transformers is not imported."""
