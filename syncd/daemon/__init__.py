"""The daemon: the exchange with the replica and what a home needs besides, without being asked."""
