"""Every method a second time: plain NumPy, written from the papers and never from the package's source."""

from .cfl import cfl
from .fedamp import fedamp
from .fedavg import fedavg
from .fedem import fedem
from .fedfomo import fedfomo
from .fedper import fedper
from .fedprox import fedprox
from .ifca import ifca
from .local import local
from .pfedmb import pfedmb
from .pfedme import pfedme
from .pfl_fb import pfl_fb
from .pfl_ft import pfl_ft

METHODS = {
    "local": local,
    "fedavg": fedavg,
    "fedprox": fedprox,
    "fedper": fedper,
    "pfedmb": pfedmb,
    "pfl_ft": pfl_ft,
    "pfl_fb": pfl_fb,
    "pfedme": pfedme,
    "ifca": ifca,
    "cfl": cfl,
    "fedfomo": fedfomo,
    "fedamp": fedamp,
    "fedem": fedem,
}
