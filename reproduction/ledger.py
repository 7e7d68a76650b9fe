"""What our own tables cost."""

from reproduction.certified import table_certified
from reproduction.main_row import table_autoattack, table_main
from reproduction.scales import Scale
from reproduction.seeds import table_mnist
from reproduction.short import table_tiny, table_variations
from reproduction.specs import Ledger


def ledger(scale: Scale) -> Ledger:
    """Seconds of every training and evaluation behind our tables, and their sum for each table."""
    notes = (
        "A run or an evaluation that several tables need is counted in each of them, and once in the last row.",
        "Seconds are summed over the work; what ran side by side on one device took less time together.",
    )
    makers = (table_main, table_autoattack, table_certified, table_mnist, table_variations, table_tiny)
    tables = tuple(make(scale) for make in makers)
    return Ledger("ledger", "what the tables cost", tables, notes)
