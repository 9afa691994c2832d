"""The picture grid: one script that draws an attack in a panel, in a report and in a page of its own."""
