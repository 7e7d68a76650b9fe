"""Reproduction of the paper: its settings and reported numbers, its tables and figures, and our own experiments.

Yang et al., Certified Distributional Robustness on Smoothed Classifiers, arXiv 2010.10987.
"""
