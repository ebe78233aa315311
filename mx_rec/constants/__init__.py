"""Names shared by scripts, the front and the passes."""
