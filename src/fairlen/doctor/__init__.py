"""`fairlen doctor`: what this machine and a planned run need, each finding with its remedy."""
