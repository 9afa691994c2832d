"""How a study is shown: tables, progress, plots and pictures."""
