"""The benchmarks, one file for each subject. bench/measure.py names and runs them."""
