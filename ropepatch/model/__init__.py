"""Live transformers models: reading back what a checkpoint does, with torch."""
