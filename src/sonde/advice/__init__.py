"""Judgement: what is wrong with a job, the evidence, and what to do."""
