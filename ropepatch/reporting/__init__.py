"""Reports: runs found in folders, as one page with tables and pictures."""
