"""What `recgraph plot` draws: the picture of a graph, its layout, and the SVG shapes."""
