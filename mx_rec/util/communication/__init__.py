"""Names of older scripts; here is one process, or several that each hold whole tables."""
