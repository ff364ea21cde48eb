"""Every method a second time: plain NumPy, written from the papers and never from the package's source."""

from .apfl import apfl
from .cfl import cfl
from .ditto import ditto
from .fedamp import fedamp
from .fedavg import fedavg
from .fedem import fedem
from .fedfomo import fedfomo
from .fedmn import fedmn
from .fedper import fedper
from .fedprox import fedprox
from .fedrep import fedrep
from .ifca import ifca
from .lg_fedavg import lg_fedavg
from .local import local
from .moon import moon
from .perfedavg import perfedavg
from .pfedhn import pfedhn
from .pfedmb import pfedmb
from .pfedme import pfedme
from .pfl_fb import pfl_fb
from .pfl_ft import pfl_ft
from .pfl_moe import pfl_mf, pfl_mfe, pfl_moe
from .scaffold import scaffold

METHODS = {
    "local": local, "fedavg": fedavg, "fedprox": fedprox, "pfl_ft": pfl_ft, "pfl_fb": pfl_fb,
    "fedper": fedper, "pfedme": pfedme, "ifca": ifca, "cfl": cfl, "fedfomo": fedfomo, "fedamp": fedamp,
    "fedem": fedem, "pfedmb": pfedmb, "ditto": ditto, "apfl": apfl, "perfedavg": perfedavg,
    "scaffold": scaffold, "moon": moon, "fedrep": fedrep, "lg_fedavg": lg_fedavg, "pfedhn": pfedhn,
    "fedmn": fedmn, "pfl_moe": pfl_moe, "pfl_mf": pfl_mf, "pfl_mfe": pfl_mfe,
}  # fmt: skip
