"""Emulated clusters on one machine.

Kept free of imports: every worker of a lab starts through a module of this folder, and must start
fast.
"""
