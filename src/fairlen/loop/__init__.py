"""What every trainer does around a method: loss, tally, end of an update, learning signal, run folder."""
