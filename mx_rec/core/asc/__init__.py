"""FeatureSpec mode: features named by specifications instead of tensors."""
