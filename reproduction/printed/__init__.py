"""Every number that the paper prints in a table, as it is printed, with where it stands and what is wrong with it.

The numbers lie in one CSV file a table beside this module and nowhere else.
"""

from reproduction.printed.tables import TABLES as TABLES
from reproduction.printed.tables import Defect as Defect
from reproduction.printed.tables import Printed as Printed
from reproduction.printed.tables import page as page
