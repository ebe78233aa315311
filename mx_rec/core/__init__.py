"""Tables and lookups: what a training script builds its model with."""
