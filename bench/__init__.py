"""Speed, side by side: syncd, bare SQLite and LangGraph's SqliteSaver in one interleaved run.

A figure taken alone says more about the disk and the hour than about the program; only ratios
from the same run, with the same payload and the same durability, can be compared.
"""
