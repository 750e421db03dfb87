"""A story of two machines, played with real databases and real commands, of which nothing stays."""
