"""Methods: (geometry, length) to frequencies, one file and one row in `table` each."""
