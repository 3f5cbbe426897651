"""The model that is trained or evaluated: forward passes, packing, trees of shared prefixes, adapters."""
