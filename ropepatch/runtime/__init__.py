"""What runs inside a converted model. It needs torch and transformers alone, never ropepatch."""
