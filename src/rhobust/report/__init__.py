"""One self-contained HTML page from run folders."""

from rhobust.report.page import WrittenReport as WrittenReport
from rhobust.report.page import write_report as write_report
