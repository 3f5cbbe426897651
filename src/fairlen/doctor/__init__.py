"""`fairlen doctor`: what this machine and a planned run need, checked in at most five seconds, each finding with its remedy."""
