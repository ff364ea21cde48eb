"""What a run leaves behind: its report for a JSON file, its models in one file, and what they were made with."""

from __future__ import annotations

import json
import platform
import subprocess
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn

from pfl_lite import __version__
from pfl_lite.atomic_files import plain, read_npz, regular, write_bytes, write_npz
from pfl_lite.config import METHOD
from pfl_lite.engine.history import History
from pfl_lite.errors import InputError, expect, refused
from pfl_lite.methods import METHODS, make_method
from pfl_lite.methods.base import unpack
from pfl_lite.models import Network, Params, make_network

_LARGEST = 2e8  # weights of a first layer that a file may ask for


def final_scores(history: History, model: str) -> dict[str, Any] | None:
    """The last round's scores of one kind of model, client by client; None where that round was not scored."""
    entry = history.rounds[-1]
    each = entry.get("per_client", {})
    metric = history.metric
    if f"{model}_{metric}" not in each:  # the run is not over
        return None
    return {
        f"test_{metric}": each[f"{model}_{metric}"],
        "test_loss": each[f"{model}_loss"],
        f"val_{metric}": each[f"val_{model}_{metric}"],
        "train_size": history.train_sizes,
        "test_size": history.test_sizes,
    } | entry.get("whole_test", {}).get(model, {})


def safetensors_for(path: Path) -> Any:
    """The library that a path ending in .safetensors needs, else None; raises InputError where it is not installed."""
    if path.suffix.lower() != ".safetensors":
        return None
    wanted = f"{path} needs the library safetensors, which is not installed: pip install safetensors"
    with refused(ImportError, wanted):
        import safetensors.numpy
    return safetensors


def write_models(path: Path, said: dict[str, dict[str, Any]], groups: dict[str, Params]) -> None:
    """Write models without pickle: groups of arrays in one .npz or .safetensors, and what is `said` of them (method, network)."""
    told = {name: json.dumps(plain(values)) for name, values in said.items()}
    arrays: dict[str, Any] = {
        f"{group}/{name}": t.cpu().numpy() for group, params in groups.items() for name, t in params.items()
    }
    if library := safetensors_for(path):
        write_bytes(path, library.numpy.save(arrays, told))
    else:
        write_npz(path, {name: np.array(text) for name, text in told.items()} | arrays)


def read_models(path: Path) -> dict[str, np.ndarray]:
    """The arrays of such a file, what is said of them as texts among them; raises OSError or ValueError for another file."""
    library = safetensors_for(path)
    if library is None:
        return read_npz(path)
    try:
        with library.safe_open(str(regular(path)), framework="numpy") as file:
            arrays = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 - it is no dict
            return arrays | {name: np.array(text) for name, text in file.metadata().items()}
    except OSError:
        raise
    except Exception as error:  # no metadata, or a header or kind of number that cannot be
        raise ValueError("it is damaged, or no file of tensors") from error


def network_of(path: Path | str, stored: dict[str, np.ndarray]) -> Network:
    """The network that a file of models names; raises InputError where it names none, or one that is not known here."""
    wanted = f"{path} does not say of which network it is: add make_network(name, channels, size, classes)"
    with refused((KeyError, TypeError, ValueError, OverflowError, RecursionError), wanted):
        said = json.loads(str(stored["network"]))
        name, *shape = str(said["name"]), *(int(said[key]) for key in ("channels", "size", "classes"))
        if min(shape) < 1 or shape[0] * shape[1] ** 2 * max(shape[2], 256) > _LARGEST:
            raise ValueError("no network is of that shape")
    return make_network(name, *shape)


def load_model(path: Path | str, network: Network | None = None, client: int | None = None) -> nn.Module:
    """A plain torch module from a file written by `--save`: client `client`'s personal model, or the global one if None.

    The file names its network, with the `mean` and `std` that its images are normalized by. A file of an earlier version, or of
    a network that is not registered here, needs `make_network(...)`, or the `Network` of the run.

    Raises:
        InputError: there is no such file, it holds no such model, or one of another network or of a method not known here.
    """
    expect(
        network, Network | None, "load_model needs a network of make_network(name, channels, size, classes)"
    )
    wanted = f"{path} holds no trained models: name a file that `pfl-lite run --save` wrote"
    with (
        refused((OSError, ValueError, TypeError, KeyError, RecursionError), wanted),
        refused(FileNotFoundError, f"there is no file {path}: name one that `pfl-lite run --save` wrote"),
    ):
        stored = read_models(Path(path))
        own = json.loads(str(stored["method"]))
        name = own["name"]
        if fault := METHOD(own):
            raise ValueError(f"method{fault}")
    if name not in METHODS:
        raise InputError(
            f"{path} holds models of the method '{name}', which is not known here: enter its class first, "
            f"METHODS['{name}'] = ... (from pfl_lite.methods)"
        )
    network = network_of(path, stored) if network is None else network
    method = make_method(**own)
    group = "global" if client is None else "personal"
    found = unpack(group, stored)
    if not found:
        raise InputError(f"{path} holds no {group} model: add client=0, or another, for a client's own")
    kinds = {array.dtype.name for array in found.values()}
    if kinds not in ({"float32"}, {"float64"}):
        raise InputError(
            f"{path} holds a {group} model of {', '.join(sorted(kinds))}, not of float32 or float64"
        )
    if client is not None:
        counts = {len(rows) if rows.ndim else 0 for rows in found.values()}
        if len(counts) > 1:
            raise InputError(f"{path} holds parts of personal models for unlike numbers of clients")
        if client not in range(count := counts.pop()):
            raise InputError(f"{path} holds the personal models of clients 0 to {count - 1}, not {client}")
        found = {name: rows[int(client)] for name, rows in found.items()}
    params = {name: torch.from_numpy(np.ascontiguousarray(array)) for name, array in found.items()}
    try:
        module = method.to_module(network, params)
    except InputError as error:
        if client is not None:
            raise
        load_model(path, network, client=0)  # raises in its turn where it is the network that is another
        raise InputError(
            f"{path} holds no model that serves all clients as it is: add client=0, or another, for a client's own"
        ) from error
    if network.shape:
        wanted = f"{path} holds parameters that do not fit the network {network.name}"
        # a mixture or an assembly is put together where it is used
        with refused((Exception, InputError), wanted), torch.no_grad():
            module(torch.zeros(1, *network.shape, dtype=getattr(torch, kinds.pop())))
    return module


def versions() -> dict[str, str]:
    """Versions that numbers may depend on."""
    return {"pfl_lite": __version__, "torch": torch.__version__, "python": platform.python_version()}


@cache
def code_version() -> str:
    """The commit of the package's repository (`-dirty` where files are changed); outside of one, the package's version."""
    folder = Path(__file__).resolve().parents[2]
    asked = ["git", "-C", str(folder), "describe", "--always", "--dirty"]
    try:
        if not (folder / ".git").exists():
            return __version__
        return subprocess.run(asked, capture_output=True, text=True, check=True, timeout=60).stdout.strip()
    except (OSError, subprocess.SubprocessError):
        return __version__


def device_name(device: str) -> str:
    """A device as a reader knows it: the GPU's name, or the kind of processor."""
    return torch.cuda.get_device_name() if device == "cuda" else f"cpu ({platform.machine()})"
