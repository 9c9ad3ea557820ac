"""Batches for unequal workers: how a global batch is shared, by whom, and how shares change."""
