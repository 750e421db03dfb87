"""The replica: the one place that speaks to PostgreSQL. What it carries it cannot open: nothing
here knows of keys."""

from syncd.replica.administration import Administration
from syncd.replica.device import Pulled, Replica, Standing, Verdict

__all__ = ["Administration", "Pulled", "Replica", "Standing", "Verdict"]
