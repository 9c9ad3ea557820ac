"""The charts of a study's report, one file each."""
