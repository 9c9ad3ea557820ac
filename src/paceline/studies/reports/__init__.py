"""Reports as pages: one file for each kind of result, "figures of X in, a page out"."""
