"""Many attacks: the paper's tables and grids of one's own, kept in a store, done here or on a cluster.

>>> import workbench as wb
>>> results = wb.study.table(1, "glyphs", clients=1, preset="demo")  # doctest: +SKIP
"""

from workbench.study.present import Results
from workbench.study.run import run_plan, sweep, table
from workbench.study.store import Store, read_rows, write_rows
from workbench.study.tables import Plan, plan_table
from workbench.study.units import Unit

__all__ = ["Plan", "Results", "Store", "Unit", "plan_table", "read_rows", "run_plan", "sweep", "table", "write_rows"]
