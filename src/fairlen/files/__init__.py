"""Files that are read, within limits, and the one way in which files are written."""
