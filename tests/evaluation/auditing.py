"""An audit on the CPU, and a forger who knows how digests are made."""

import json

import torch

from rhobust.evaluation import audit_record
from rhobust.progress import no_progress
from rhobust.records import end_line

CPU = torch.device("cpu")


def forge(path, lines):
    """Write a record's lines as a forger does who knows how digests are made; without a summary it is unfinished."""
    ended = "summary" in lines[-1]
    before = "".join(json.dumps(line) + "\n" for line in (lines[:-1] if ended else lines))
    path.write_text(before + (end_line(before.encode(), lines[-1]["summary"]) if ended else ""))


def audit(path, share=1.0, **settings):
    return audit_record(path, device=CPU, share=share, progress=no_progress, **settings)
