"""Files that are read and written: limits on what is read, one way in which files appear."""
