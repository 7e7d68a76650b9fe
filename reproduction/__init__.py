"""The paper that rhobust grew out of: its settings and printed numbers, and the way to each of its tables and figures.

Yang et al., Certified Distributional Robustness on Smoothed Classifiers, arXiv 2010.10987.
"""
