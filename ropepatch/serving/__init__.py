"""An extended checkpoint in the words of each engine that serves models, or a refusal by name."""
