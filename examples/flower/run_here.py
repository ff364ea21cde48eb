"""A whole federation on this machine, by one command: it starts, waits, runs, compares with the simulation, and stops everything.

    python run_here.py ditto                     # a SuperLink and three SuperNodes, each with its own client's file
    python run_here.py ditto --secure            # the same with TLS and node authentication
    python run_here.py ditto --kill              # one SuperNode is killed in the middle of a round, and comes back
    python run_here.py ditto --how simulation    # Flower's own simulation engine
    python run_here.py every --table here.json   # every method in one run, and what came of it as a row each

Everything listens on 127.0.0.1, except for Flower's simulation engine: its Ray listens on every network of the machine.
Nothing needs a network, and no process is left behind.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any

import torch

try:
    from pfl_flower import shared
    from pfl_flower.own_data import write_clients
    from pfl_flower.tiny import ASKED, RUN, run_config, settings
except ModuleNotFoundError as error:
    sys.exit(f"run_here: {error}: make Flower's environment first, as README.md beside this file says")

from pfl_lite.engine.simulation import Simulation
from pfl_lite.errors import InputError
from pfl_lite.methods import METHODS

HERE = Path(__file__).resolve().parent
BIN = Path(sys.executable).parent
PATIENCE = 900.0  # seconds for anything that a loaded machine may take its time for
KILLED = 1
PATIENT = """
import sys
from flwr.supercore.corestate import in_memory_corestate, sql_corestate
from flwr.{0}.cli import flower_{0} as program

for module in (in_memory_corestate, sql_corestate):
    module.HEARTBEAT_DEFAULT_INTERVAL = {1}
sys.argv[0] = "flower-{0}"
sys.exit(program())
"""
"""A SuperLink or a SuperNode that waits longer than Flower's 30 seconds for the first word of a process that it has started: on a
busy machine reading torch alone may take them, and the process is then turned away."""


class Failed(Exception):
    """A process that ended, or did not do in time what was waited for."""


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def wait_for(what: str, done: Callable[[], Any], process: subprocess.Popen[bytes] | None = None) -> None:
    """Look every half second; raises Failed when the process is over, or patience is."""
    until = time.monotonic() + PATIENCE
    while not done():
        if process is not None and process.poll() is not None and not done():
            raise Failed(f"{what}: the process ended with exit code {process.returncode}")
        if time.monotonic() > until:
            raise Failed(f"{what}: not within {PATIENCE:g} seconds")
        time.sleep(0.5)


def answers(port: int) -> bool:
    with socket.socket() as probe:
        probe.settimeout(1)
        return probe.connect_ex(("127.0.0.1", port)) == 0


class Here:
    """A SuperLink of this machine, with three SuperNodes or with Flower's simulation engine."""

    def __init__(
        self, folder: Path, stack: ExitStack, *, simulation: bool, secure: bool, clients: int = 3
    ) -> None:
        self.folder, self.stack, self.clients, self.simulation = folder, stack, clients, simulation
        self.port, self.secure = free_port(), secure
        self.env = os.environ | {
            "FLWR_HOME": str(folder / "flwr"),
            "FLWR_TELEMETRY_ENABLED": "0",
            "FLWR_DISABLE_UPDATE_CHECK": "1",
            "OMP_NUM_THREADS": "1",
            "RAY_DISABLE_IMPORT_WARNING": "1",
            "RAY_USAGE_STATS_ENABLED": "0",
            "PATH": f"{BIN}{os.pathsep}{os.environ['PATH']}",
        }
        (folder / "flwr").mkdir()
        link = ["flower-superlink", "--host", "127.0.0.1", "--port", str(self.port)]
        link += ["--disable-runtime-dependency-installation"]
        trust = "insecure = true"
        if simulation:
            link += ["--simulation"]
        if secure:
            self.certificate()
            link += [
                "--ssl-certfile",
                "link.pem",
                "--ssl-keyfile",
                "link.key",
                "--ssl-ca-certfile",
                "link.pem",
            ]
            link += ["--enable-supernode-auth"]
            trust = f'root-certificates = "{folder / "link.pem"}"'
        else:
            link += ["--insecure"]
        (folder / "flwr" / "config.toml").write_text(
            f'[superlink]\ndefault = "here"\n\n[superlink.here]\naddress = "127.0.0.1:{self.port}"\n{trust}\n'
        )
        nodes = "" if simulation else f" and {clients} SuperNodes"
        print(f"starting a SuperLink{nodes}, whose logs are in {folder}", flush=True)
        self.link = self.start("superlink", link)
        wait_for("the SuperLink", lambda: answers(self.port), self.link)
        self.nodes: dict[int, subprocess.Popen[bytes]] = {}
        if not simulation:
            for client in range(clients):
                if secure:
                    self.call(
                        "ssh-keygen", "-q", "-t", "ecdsa", "-b", "384", "-N", "", "-f", f"node-{client}"
                    )
                    self.call("flwr", "supernode", "register", str(folder / f"node-{client}.pub"), "here")
                self.start_node(client)

    def certificate(self) -> None:
        self.call(
            *(
                "openssl",
                "req",
                "-x509",
                "-newkey",
                "ec",
                "-pkeyopt",
                "ec_paramgen_curve:prime256v1",
                "-nodes",
            ),
            *("-keyout", "link.key", "-out", "link.pem", "-days", "2", "-subj", "/CN=127.0.0.1"),
            *("-addext", "subjectAltName=IP:127.0.0.1,DNS:localhost"),
        )

    def call(self, *command: str) -> str:
        found = shutil.which(command[0], path=self.env["PATH"])
        if found is None:
            raise Failed(f"{command[0]} is needed for this, and is not installed")
        done = subprocess.run(
            [found, *command[1:]],
            cwd=self.folder,
            env=self.env,
            capture_output=True,
            text=True,
            timeout=PATIENCE,
        )
        if done.returncode:
            raise Failed(f"{' '.join(command[:3])}: {(done.stderr or done.stdout).strip()[-300:]}")
        return done.stdout

    def start(self, name: str, command: list[str]) -> subprocess.Popen[bytes]:
        """Start a program in a process group of its own, which ends with this one."""
        with (self.folder / f"{name}.log").open("ab") as log:
            program = [str(BIN / command[0])]
            if (kind := command[0].removeprefix("flower-")) in ("superlink", "supernode"):
                program = [sys.executable, "-c", PATIENT.format(kind, int(PATIENCE))]
            process = subprocess.Popen(
                [*program, *command[1:]],
                cwd=self.folder, env=self.env, stdout=log, stderr=log, start_new_session=True,
            )  # fmt: skip
        self.stack.callback(stop, process)
        return process

    def start_node(self, client: int) -> None:
        command = ["flower-supernode", "--superlink", f"127.0.0.1:{self.port}", "--port", str(free_port())]
        command += ["--node-config", f"partition-id={client}"]
        if self.secure:
            command += ["--root-certificates", "link.pem", "--auth-supernode-private-key", f"node-{client}"]
        self.nodes[client] = self.start(f"node-{client}", command + ([] if self.secure else ["--insecure"]))

    def run(self, words: dict[str, Any], meanwhile: Callable[[str], None] | None = None) -> dict[str, Any]:
        """`flwr run` with these words: what the server wrote of it, and how long it took."""
        out, name = self.folder / f"out-{words['method']}", f"run-{words['method']}"
        for old in (out.with_suffix(".json"), out.with_suffix(".pt"), self.folder / f"{name}.log"):
            old.unlink(missing_ok=True)
        app = words | {"out": str(out), "patience-seconds": PATIENCE}
        command = ["flwr", "run", str(HERE), "here", "--stream", "--run-config", run_config(app)]
        if self.simulation:
            resources = "client-resources-num-cpus=1 init-args-num-cpus=2"
            command += ["--federation-config", f"num-supernodes={self.clients} {resources}"]
        print(f"running {words['method']}: a minute on an idle machine, many on a busy one", flush=True)
        process = self.start(name, command)
        log = self.folder / f"{name}.log"
        server = self.folder / "superlink.log"

        def done() -> bool:
            if meanwhile is not None:
                meanwhile(log.read_text(errors="replace") + server.read_text(errors="replace"))
            return out.with_suffix(".json").exists() or (
                process.poll() is not None and process.returncode != 0
            )

        wait_for(f"the run of {words['method']}", done, None)
        if not out.with_suffix(".json").exists():
            raise Failed(f"the run of {words['method']}: {log.read_text(errors='replace')[-600:]}")
        with suppress(subprocess.TimeoutExpired):  # the result is there
            process.wait(60)
        found = json.loads(out.with_suffix(".json").read_text())
        servers = torch.load(out.with_suffix(".pt"), weights_only=True)
        return {name: one | {"server": servers[name]} for name, one in found.items()}


def started_by(pid: int) -> set[int]:
    """The process groups of a process and of all that it has started: Flower gives its own, and Ray's, groups of their own."""
    listed = subprocess.run(
        ["ps", "-A", "-o", "pid=,ppid=,pgid="], capture_output=True, text=True, check=True
    )
    rows = [tuple(map(int, line.split())) for line in listed.stdout.splitlines()]
    family = {pid}
    while more := {one for one, parent, _ in rows if parent in family} - family:
        family |= more
    return {group for one, _, group in rows if one in family} | {pid}


def stop(process: subprocess.Popen[bytes], with_signal: int = signal.SIGTERM) -> None:
    """End a program and all that it has started; kill what does not listen."""
    groups = started_by(process.pid) if process.poll() is None else {process.pid}
    with suppress(ProcessLookupError, subprocess.TimeoutExpired):
        os.killpg(process.pid, with_signal)
        process.wait(15)
    for group in groups:
        with suppress(ProcessLookupError):
            os.killpg(group, signal.SIGKILL)
    process.wait()


@contextmanager
def here(**how: Any) -> Iterator[Here]:
    with (
        tempfile.TemporaryDirectory(prefix="pfl-flower-", ignore_cleanup_errors=True) as folder,
        ExitStack() as stack,
    ):
        yield Here(Path(folder), stack, **how)


# ---- the comparison ---------------------------------------------------------------------------------------------------


def simulated(words: dict[str, Any]) -> Simulation:
    simulation = Simulation(shared.part(words).config)
    simulation.run(progress=False)
    return simulation


def compared(words: dict[str, Any], found: dict[str, Any]) -> dict[str, Any]:
    """One row of the table: is the federation bit-equal to the simulation, what crossed the wire, how long a round took."""
    alone = simulated(words)
    rounds = alone.history.rounds
    scored = {entry["round"]: entry["test_accuracy"] for entry in found["rounds"] if "test_accuracy" in entry}
    everyone = range(words["clients"])
    equal = found["server"].keys() == alone.server.keys()
    return {
        "server": equal and all(torch.equal(found["server"][name], t) for name, t in alone.server.items()),
        "accuracy": all(
            [each.get(str(i)) for i in everyone] == rounds[number]["per_client"]["personal_accuracy"]
            for number, each in scored.items()
        )
        and bool(scored),
        "accuracies": [list(scored.values())[-1].get(str(i)) for i in everyone] if scored else [],
        "bytes": sum(entry["bytes_down"] + entry["bytes_up"] for entry in found["rounds"]),
        "messages": sum(2 * len(entry["clients"]) for entry in found["rounds"]),
        "floats": int(sum(entry["floats_down"] + entry["floats_up"] for entry in rounds)),
        "floats_sent": sum(entry["floats_down"] + entry["floats_up"] for entry in found["rounds"]),
        "seconds_a_round": round(
            sum(entry["seconds"] for entry in found["rounds"]) / len(found["rounds"]), 3
        ),
        "simulated_seconds_a_round": round(alone.training_seconds / len(found["rounds"]), 4),
    }


def own_files(federation: Here, words: dict[str, Any]) -> dict[str, Any]:
    """The words of a run in which a node has its own client's file and a folder for its state."""
    files = federation.folder / "files"
    config = shared.part(settings(ASKED) if words["method"] == "every" else words).config
    write_clients(config, files)
    return words | {"files": str(files), "state-folder": str(federation.folder / "state")}


def killed(federation: Here, method: str) -> dict[str, Any]:
    """Kill a SuperNode in the middle of round 2 of 3, bring it back, and compare with a simulation that lacks the same work."""
    words = settings(method, rounds=3, eval_every=3)
    when: dict[str, float] = {}
    state = federation.folder / "state"

    def kept() -> bytes:
        return next(state.rglob(f"client-{KILLED}.pt")).read_bytes()

    def meanwhile(log: str) -> None:
        if "killed" not in when and "[ROUND 2/3]" in log:
            time.sleep(2)  # its process for this round is reading torch by now
            stop(federation.nodes[KILLED], signal.SIGKILL)
            when["killed"], saved["before"] = time.monotonic(), kept()
            print(f"round 2: SuperNode {KILLED} is killed", flush=True)
        elif "killed" in when and "back" not in when and "goes on without clients" in log:
            saved["after"] = kept()
            federation.start_node(KILLED)
            when["back"] = time.monotonic()
            print(f"SuperNode {KILLED} is started again", flush=True)

    saved: dict[str, bytes] = {}
    found = federation.run(own_files(federation, words), meanwhile)[method]
    missing = {entry["round"]: entry["missing"] for entry in found["rounds"]}
    server, accuracy = replayed(words, missing)
    last = found["rounds"][-1]["test_accuracy"]
    return {
        "method": method,
        "missing": {str(number): ids for number, ids in missing.items() if ids},
        "kept": saved.get("before") == saved.get("after") and bool(saved),
        "server": all(torch.equal(found["server"][name], t) for name, t in server.items()),
        "accuracy": [last.get(str(i)) for i in range(words["clients"])] == accuracy,
        "accuracies": accuracy,
        "seconds_away": round(when["back"] - when["killed"], 1),
    }


def replayed(
    words: dict[str, Any], missing: dict[int, list[int]]
) -> tuple[dict[str, torch.Tensor], list[float]]:
    """The simulation in which the same clients do not take part in the same rounds: server's state, and final accuracies."""
    simulation = Simulation(shared.part(words).config)
    sample = simulation.sample

    def present(number: int) -> torch.Tensor:
        return torch.tensor([i for i in sample(number).tolist() if i not in missing.get(number, [])])

    simulation.sample = present  # type: ignore[method-assign]
    simulation.run(progress=False)
    return simulation.server, simulation.history.rounds[-1]["per_client"]["personal_accuracy"]


def told(row: dict[str, Any]) -> str:
    return ", ".join(f"{name} {value}" for name, value in row.items())


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("method", help="a method of pfl_lite, or `every`, which runs all as one")
    parser.add_argument("--how", choices=("nodes", "simulation"), default="nodes")
    parser.add_argument("--secure", action="store_true", help="TLS, and only nodes whose keys are registered")
    parser.add_argument(
        "--kill", action="store_true", help="kill a SuperNode in the middle of a round, and bring it back"
    )
    parser.add_argument("--table", type=Path, help="a .json to which the rows are added")
    given = parser.parse_args()
    table: dict[str, Any] = (
        json.loads(given.table.read_text()) if given.table and given.table.exists() else {}
    )

    def keep(key: str, name: str, row: dict[str, Any]) -> None:
        print(f"{name}, {key}: {told(row)}", flush=True)
        if given.table:
            table["versions"], table["runs"] = shared.VERSIONS, {each: settings(each) for each in METHODS}
            table.setdefault(key, {})[name] = row
            given.table.write_text(json.dumps(table, indent=1) + "\n", encoding="utf-8")

    try:
        if given.kill:
            with here(simulation=False, secure=given.secure) as federation:
                keep("killed", given.method, killed(federation, given.method))
            return
        key = f"{given.how}{'_secure' * given.secure}{'_together' * (given.method == 'every')}"
        with here(simulation=given.how == "simulation", secure=given.secure) as federation:
            words = RUN | {"method": "every"} if given.method == "every" else settings(given.method)
            asked = own_files(federation, words) if given.how == "nodes" else words
            try:
                found = federation.run(asked)
            except Failed as error:
                print(f"{given.method}, {key}: {error}\n  once more", flush=True)
                found = federation.run(asked)
            for name, result in found.items():
                keep(key, name, compared(settings(name), result))
    except (Failed, InputError) as error:
        sys.exit(f"run_here: {error}")


if __name__ == "__main__":
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))  # so that what has been started is stopped
    main()
