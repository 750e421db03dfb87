"""An MCP server over standard input and output: what the command line does, as tools for a model.

`desk` and `work` know nothing of the protocol; `server` is the only importer of the SDK, which is
an extra.
"""
