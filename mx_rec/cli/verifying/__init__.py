"""How `recgraph verify` finds, feeds, runs and compares two graphs."""
