"""From tables to values: profiles, trees, timelines and sums."""
