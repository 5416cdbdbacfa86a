"""Frozen vision transformers: one ViT that loads everybody's weights, and the sites where an expert may act on it."""
