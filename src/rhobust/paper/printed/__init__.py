"""Every number that the paper prints in a table, as it is printed, with where it stands and what is wrong with it.

The numbers lie in one CSV file a table beside this module and nowhere else.
"""

from rhobust.paper.printed.tables import TABLES as TABLES
from rhobust.paper.printed.tables import Defect as Defect
from rhobust.paper.printed.tables import Printed as Printed
from rhobust.paper.printed.tables import page as page
