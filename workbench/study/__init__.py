"""Many attacks: the paper's tables and grids of one's own, kept in a store, done here or on a cluster.

>>> import workbench as wb
>>> results = wb.study.table(1, "glyphs", clients=1, preset="demo")  # doctest: +SKIP
"""

from workbench.study.plan.tables import Plan, plan_table
from workbench.study.plan.units import Unit
from workbench.study.run.run import run_plan, sweep, table
from workbench.study.run.store import Store, read_rows, write_rows
from workbench.study.show.results import Results

__all__ = ["Plan", "Results", "Store", "Unit", "plan_table", "read_rows", "run_plan", "sweep", "table", "write_rows"]
