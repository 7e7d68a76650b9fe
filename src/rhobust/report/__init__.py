"""One self-contained HTML page from run folders."""

from rhobust.report.page import Written as Written
from rhobust.report.page import write_report as write_report
