"""The page: a whole job in a browser, live, or as one file that holds its own data."""
