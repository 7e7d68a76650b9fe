"""rhobust: certified distributional robustness of smoothed classifiers."""

__version__ = "0.1.0"
