"""The local web page. Needs the extra `ui`: nothing of it is imported by anything else."""
