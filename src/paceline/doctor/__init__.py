"""What is wrong with an environment in which people want to train, and what to do about it."""
