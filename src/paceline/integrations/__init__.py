"""Other libraries that people train with; each file needs its library, nothing needs them."""
