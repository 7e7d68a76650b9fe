"""From counts to what they prove, in numbers and in words: no torch, so that a report can prove what it shows."""
