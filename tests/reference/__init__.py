"""Every method a second time: plain NumPy, written from the papers and never from the package's source."""

from .fedavg import fedavg
from .fedper import fedper
from .fedprox import fedprox
from .local import local
from .pfedmb import pfedmb

METHODS = {"local": local, "fedavg": fedavg, "fedprox": fedprox, "fedper": fedper, "pfedmb": pfedmb}
