"""The replica: the one place that speaks to PostgreSQL. What it carries it cannot open: nothing
here knows of keys."""

from syncd.replica.administration import Administration
from syncd.replica.device import Batch, Pulled, Replica, Seen, Standing, Verdict, encoded

__all__ = ["Administration", "Batch", "Pulled", "Replica", "Seen", "Standing", "Verdict", "encoded"]
