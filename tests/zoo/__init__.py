"""A model zoo: ill-behaved networks that go through every command, and certificates against analytic truths.

Every network says what is to be expected of it: it works, or it is refused in one line. `python -m tests.zoo` runs all
of it and prints the counts; the tests run a part.
"""
