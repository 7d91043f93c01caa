"""The live terminal view: what is measured (samples, tree, shares, process) and how it is drawn."""
