"""The stores that syncd is shown beside, and what each does with a write."""

from __future__ import annotations

from typing import NamedTuple

from bench.figures import Figures

RAW, SYNCD, SYNCD_READ = "raw commit", "syncd create", "syncd latest document"
LANGGRAPH, LANGGRAPH_READ = "LangGraph SqliteSaver put", "LangGraph SqliteSaver get_tuple"
POSTGRES, POSTGRES_READ = "LangGraph PostgresSaver put", "LangGraph PostgresSaver get_tuple"
AGENTS, AGENTS_READ = "OpenAI Agents add_items", "OpenAI Agents get_items"
DBOS_STEP, SYNC_CORE = "DBOS step", "sqlite-sync-core insert"

# What is done with each write beside keeping it.
BESIDE = {
    RAW: "nothing",
    SYNCD: "validated, redacted, hashed, chained, indexed by task, to be replicated",
    LANGGRAPH: "serialised",
    POSTGRES: "serialised; over a socket, so not there when offline",
    AGENTS: "serialised; in a thread of its own",
    DBOS_STEP: "serialised; the outcome of a step of a running workflow",
    SYNC_CORE: "a trigger logs the change, to be replicated between peers",
}
READS = (SYNCD_READ, LANGGRAPH_READ, POSTGRES_READ, AGENTS_READ)


class Others(NamedTuple):
    """`writes` and `reads` in the order of the report."""

    label: str
    writes: dict[str, Figures]
    reads: dict[str, Figures]
