"""Recovery training: short, resumable, and of what the checkpoint that comes out will be."""
