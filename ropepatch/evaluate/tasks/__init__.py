"""What is hidden and asked: one file and one row of `table` per task."""
