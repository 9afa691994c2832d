"""Many attacks: the paper's tables and custom grids, stored as they finish, measured here or on a cluster.

`plan` says what to measure, `run` measures and stores it, `show` presents it; each imports only those before it.

>>> import workbench as wb
>>> results = wb.study.table(1, "glyphs", clients=1, preset="demo")  # doctest: +SKIP
"""

from workbench.study.plan.plan import Plan, Unit
from workbench.study.plan.tables import plan_table
from workbench.study.run.store import Store, read_rows, write_rows
from workbench.study.show.results import Results
from workbench.study.study import results, run_plan, sweep, table

__all__ = [
    "Plan",
    "Results",
    "Store",
    "Unit",
    "plan_table",
    "read_rows",
    "results",
    "run_plan",
    "sweep",
    "table",
    "write_rows",
]
