"""Emulated clusters on one machine, and races of strategies on them.

Kept free of imports: every worker of a lab starts through a module of this folder, and must start
fast.
"""
