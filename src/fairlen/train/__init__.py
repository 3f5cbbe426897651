"""Training on one device: collect, score, weigh, update, log."""
