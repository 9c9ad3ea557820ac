"""Strategies side by side, for real, on an emulated cluster or in a job that already runs.

Kept free of imports: every worker of a race starts through a module of this folder, and must start
fast.
"""
