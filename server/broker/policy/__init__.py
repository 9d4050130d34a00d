"""Policies and operator policies: their definitions, ranking, and who they apply to.

Start with `engine.py`.
"""
