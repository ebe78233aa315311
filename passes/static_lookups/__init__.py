"""What plain TensorFlow does with the variables that hold embeddings: lookups, updates, saving. Analysis only."""
