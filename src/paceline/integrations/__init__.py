"""Other libraries' training loops with paceline's strategies; each module needs its library."""
