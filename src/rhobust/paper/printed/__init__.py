"""Every number that the paper prints in a table, as it is printed, with where it stands and what is wrong with it.

The numbers lie in one CSV file a table beside this module and nowhere else.
"""

from .tables import TABLES as TABLES
from .tables import Defect as Defect
from .tables import Printed as Printed
from .tables import page as page
