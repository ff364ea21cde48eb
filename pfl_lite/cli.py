"""The command line: `pfl-lite`. Every command is a thin cover over a documented function."""

from __future__ import annotations

import ast
import importlib.util
import inspect
import os
import re
import shlex
import signal
import sys
import tempfile
import traceback
import warnings
from collections.abc import Callable
from dataclasses import fields
from itertools import pairwise
from pathlib import Path
from typing import Annotated, Any

import typer
from typer.core import TyperCommand, TyperGroup

from pfl_lite import __version__
from pfl_lite.__main__ import how_ended
from pfl_lite.__main__ import main as main
from pfl_lite.errors import ELSEWHERE, InputError, one_of, refused
from pfl_lite.schema import check_bounds, check_workers

LONGEST = 500  # characters of a sentence
NO_ROOM = re.compile("(allocate|enough|out of) memory")  # as torch says it; an illegal access is no lack
MORE = re.compile(r"Got unexpected extra argument\S* \((.*)\)")  # in any version of the parser
LISTS_HELP = (
    'lists of your own, `{"clients": [{"train": [0, 5], "val": [2], "test": [1]}, ...]}`, positions among the training '
    "(train, val) and test images; val and test may be left out"
)
LONGEST_BUDGET = 10_000 * 3600  # seconds
PICTURES = (".png", ".svg", ".pdf")


class PoliteGroup(TyperGroup):
    """What goes wrong is one sentence and an exit code, without a traceback; a warning is its sentence alone."""

    def make_context(self, *args: Any, **how: Any) -> Any:
        """Read the words before the command's own."""
        try:
            return super().make_context(*args, **how)
        except Exception as error:
            # bad usage; a call without any word is it too, without a message, for the help shows itself
            if hasattr(error, "format_message") and (said := error.format_message()):
                raise ended(2, said) from error
            raise

    def invoke(self, ctx: Any) -> Any:
        """Run a command.

        The exit code is 2 where the input or the system refuses, 128 and its number after a signal, 1 where the package is wrong.
        """
        words = ctx.args  # what follows the command, which is gone from here when it is refused
        try:
            with warnings.catch_warnings():
                warnings.showwarning = tell
                return super().invoke(ctx)
        except InputError as error:
            raise ended(2, str(error)) from error
        except BrokenPipeError as error:
            # who read along has seen enough, as `head` has: nothing to say of it
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
            raise typer.Exit(128 + signal.SIGPIPE) from error
        except OSError as error:  # what the system says, after the file that it says it of
            said = (str(part) for part in (error.filename, error.strerror or error) if part)
            raise ended(2, ": ".join(said)) from error
        except KeyboardInterrupt as error:
            number = error.args[0] if error.args else signal.SIGINT
            raise ended(128 + number, how_ended(number) + (f"; {ctx.obj}" if ctx.obj else "")) from error
        except typer.Exit:
            raise
        except Exception as error:
            if hasattr(error, "format_message"):  # what click, or typer's copy of it, says of bad usage
                sentence = str(setting_hint(error, words) or error.format_message() or "a command is missing")
                sentence, extra = MORE.subn(r"'\1' is more than the command takes", sentence)
                missing = extra or type(error).__name__ == "MissingParameter"
                if missing and (where := getattr(error, "ctx", None)):
                    sentence = f"{sentence.removesuffix('.')}: see `{where.command_path} --help`"
                raise ended(2, sentence) from error
            if isinstance(error, MemoryError) or (
                isinstance(error, RuntimeError) and NO_ROOM.search(str(error))
            ):
                raise ended(2, f"there is not enough memory for this ({error})") from error
            with tempfile.NamedTemporaryFile("w", prefix="pfl-lite-", suffix=".txt", delete=False) as report:
                report.write(f"{' '.join(sys.argv)}\n\n{traceback.format_exc()}")
            what = f"{type(error).__name__}, which should not happen: the full report is {report.name}"
            raise ended(1, what) from error


def ended(code: int, sentence: str) -> typer.Exit:
    """Say a sentence, however long its words or odd their signs, and what ends the command."""
    line = " ".join(sentence.split())
    line = line if len(line) <= LONGEST else f"{line[: LONGEST // 2]} ... {line[-LONGEST // 2 :]}"
    shown = "".join(sign if sign.isprintable() else ascii(sign)[1:-1] for sign in line)
    typer.echo(f"pfl-lite: {shown}", err=True)
    return typer.Exit(code)


class PartitionCommand(TyperCommand):
    """Explains at the end of its help each way to write a partition, in the words of the partitions themselves."""

    def format_help(self, ctx: Any, formatter: Any) -> None:
        from pfl_lite.data.recipes import PARTITIONERS

        ways = [(kind.usage, kind.summary) for kind in PARTITIONERS.values()] + [("clients.json", LISTS_HELP)]
        self.epilog = "\n\n".join(f"- `{usage}`: {summary}" for usage, summary in ways)
        super().format_help(ctx, formatter)


def setting_hint(error: Exception, words: list[str]) -> str | None:
    """How a setting is given: a method's that was taken for an option of a command that trains, or another library's name."""
    if not (given := getattr(error, "option_name", "")):
        return None  # without an option there is no need to wait for the methods, which load torch
    from pfl_lite.methods import METHODS, owners_of

    name = given.lstrip("-").replace("-", "_")
    command = getattr(getattr(error, "ctx", None), "command", None)
    if name == "set" and getattr(command, "name", "") == "compare":
        return "compare has no --set: a method's settings follow its name, as in ditto:lam=0.1"
    options = {option.name for option in getattr(command, "params", ())}
    owners = owners_of(name)
    if not owners:
        here = ELSEWHERE.get(name, "")
        known = re.match(r"\w*", here)
        return f"No such option: {given}: here it is --{here}" if known and known[0] in options else None
    if getattr(command, "name", "") == "compare":
        named = next((one for word in words if (one := word.partition(":")[0]) in owners), owners[0])
        return f"{name} is a setting of {', '.join(owners)}: write {named}:{name}=..."
    if "set_" in options:
        asked = next((one for word in words if (one := word.partition(":")[0]) in METHODS), owners[0])
        how = f": use --set {name}=..." if asked in owners else f", not of {asked}"
        return f"{name} is a setting of {', '.join(owners)}{how}"
    return None


def number_option(kind: type, help: str, *default: Any) -> Any:
    """An option that takes a number, `int` or `float`."""

    def read(text: Any) -> Any:
        try:
            return kind(text)
        except ValueError:
            raise typer.BadParameter(f"'{text}' is not a {'whole ' * (kind is int)}number") from None

    return typer.Option(*default, parser=read, metavar=f"<{kind.__name__}>", help=help)


def settings_of_a_run() -> dict[str, tuple[str, Any, str]]:
    """Type, default and meaning of every setting of a run: the fields of `RunConfig` with their docstrings.

    They are read from its source, so that `--help` need not wait for torch.
    """
    home = importlib.util.find_spec("pfl_lite.config")
    assert home is not None and home.origin is not None
    module = ast.parse(Path(home.origin).read_text(encoding="utf-8"))
    config = next(one for one in module.body if isinstance(one, ast.ClassDef) and one.name == "RunConfig")
    return {
        ast.unparse(field.target): (
            ast.unparse(field.annotation),
            ast.literal_eval(field.value),
            ast.literal_eval(text.value),
        )
        for field, text in pairwise(config.body)
        if isinstance(field, ast.AnnAssign) and isinstance(field.value, ast.Constant)
        if isinstance(text, ast.Expr)
    }


def with_settings(*names: str) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Give a command an option for each of some settings of a run, or for all; it receives them as `**settings`."""
    kinds = {"int": int, "float": float, "str": str, "bool": bool}

    def extended(command: Callable[..., None]) -> Callable[..., None]:
        known = settings_of_a_run()
        own = list(inspect.signature(command, eval_str=True).parameters.values())[:-1]
        for name in names or known:
            kind, default, meaning = known[name]
            given: Any = kinds[kind.removesuffix(" | None")]
            help = " ".join(meaning.split())
            taken = number_option(given, help) if given in (int, float) else typer.Option(help=help)
            said = Annotated[given | None, taken]
            own.append(
                inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=said)
            )
        command.__signature__ = inspect.Signature(own)  # type: ignore[attr-defined]
        return command

    return extended


def say_version(asked: bool) -> None:
    """Say the package's version and end, if asked."""
    if asked:
        typer.echo(f"pfl-lite {__version__}")
        raise typer.Exit()


app = typer.Typer(
    cls=PoliteGroup,
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode="markdown",
    pretty_exceptions_enable=False,
    help="Personalized federated learning: partition a data set, train a method, reproduce a paper's table.",
)


@app.callback()
def program(
    version: Annotated[
        bool, typer.Option("--version", is_eager=True, callback=say_version, help="say the version")
    ] = False,
) -> None:
    """What is said before a command."""


Experiment = Annotated[
    str, typer.Argument(help="an experiment, or a group of them (see `pfl-lite experiments`)")
]
BUDGETS_HELP = "small (hours on two CPU cores) or paper (what the paper spent)"
BudgetName = Annotated[str, typer.Option(help=BUDGETS_HELP)]
StoredResults = Annotated[
    Path | None,
    typer.Option(
        "--ledger",
        envvar="PFL_LITE_RESULTS",
        exists=True,
        file_okay=False,
        help="folder of the results [data/results]",
    ),
]
Workers = Annotated[
    int, number_option(int, "processes that share out a round's clients, one thread each; same numbers")
]
Force = Annotated[bool, typer.Option("--force", help="replace files that are there already")]


def file_name(text: str) -> Path:
    """A path that was given, as a file's."""
    if not text or text.endswith("/") or "\0" in text:
        raise typer.BadParameter(f"'{text}' is no name of a file")
    return Path(text)


def folder_name(text: str) -> Path:
    """A path that was given, as a folder's."""
    return file_name(text.rstrip("/"))


def file_option(help: str, *names: str) -> Any:
    """An option that takes the name of a file."""
    return typer.Option(None, *names, parser=file_name, metavar="FILE", help=help)


def asked_for(context: typer.Context, name: str) -> bool:
    """Whether an option was given, and does not have its default."""
    source = context.get_parameter_source(name)
    return source is None or source.name != "DEFAULT"


def check_inputs_and_outputs(
    force: bool, settings: dict[str, Any], **paths: tuple[Path | None, tuple[str, ...]]
) -> None:
    """Find out before any work whether data and partition are known, and files, each with the endings that it may have, writable.

    Raises:
        InputError: one is not, has a wrong ending, is there and is to stay, or is an input or another option's file too.
    """
    from pfl_lite.atomic_files import check_writable, regular
    from pfl_lite.data.images import card_of, data_folder
    from pfl_lite.data.partition import is_file
    from pfl_lite.data.recipes import parse

    card, partition = card_of(settings["data"].partition(":")[0]), settings["partition"]
    names = {os.path.realpath(data_folder() / f"{card.name}.npz"): "data"}
    if is_file(partition):
        names[os.path.realpath(regular(partition.strip().partition("#")[0]))] = "partition"
    else:
        parse(partition)
    for name, (path, endings) in paths.items():
        if path is None:
            continue
        if endings and (
            path.suffix.lower() not in endings or any(f"{one}#" in path.name.lower() for one in endings)
        ):
            raise InputError(f"--{name} {path} must end in {' or '.join(endings)}, which says what is in it")
        if (first := names.setdefault(os.path.realpath(path), name)) != name:
            raise InputError(f"--{first} and --{name} both name {path}: give each a file of its own")
        check_writable(path, force or name == "checkpoint")


def write_figure(path: Path, figure: Any) -> None:
    """Write a figure as its file's ending says, and say so."""
    from pfl_lite.atomic_files import atomic_path

    with atomic_path(path) as temporary:
        figure.savefig(temporary, format=path.suffix[1:].lower())
    typer.echo(f"wrote {path}", err=True)  # a table may stand on the standard output


@app.command()
def methods(name: str | None = typer.Argument(None, help="explain this method's settings")) -> None:
    """List the methods with their hyper-parameters and defaults, or explain one method.

    Examples: `pfl-lite methods`, `pfl-lite methods pfedmb`
    """
    from pfl_lite.methods import METHODS, explain

    if name is not None:
        typer.echo(explain(name))
        return
    for name, method in METHODS.items():
        settings = " ".join(f"{field.name}={field.default}" for field in fields(method))
        typer.echo(f"{name:<9}  {method.about}{f'  [{settings}]' if settings else ''}")


@app.command()
def datasets() -> None:
    """List the data sets: size, classes, where they come from.

    Example: `pfl-lite datasets`
    """
    from pfl_lite.data.images import datasets as cards
    from pfl_lite.show.text import listed

    rows = []
    for name, card in cards().items():
        images = f"{card.train_size}{f'+{card.test_size}' if card.test_size else ''} images"
        shape = f"{card.size}x{card.size}x{card.channels}"
        rows.append([name, images, shape, f"{len(card.classes)} classes", card.origin, card.title])
    typer.echo(listed(rows))
    typer.echo("NAME:0.1 is a random tenth. Files are kept in $PFL_LITE_DATA (~/.cache/pfl_lite).")


@app.command()
def models() -> None:
    """List the networks with their parameter counts.

    Example: `pfl-lite models`
    """
    from pfl_lite.models import NETWORKS, make_network
    from pfl_lite.show.text import listed

    shapes = {
        "gray 8x8, 10 classes": (1, 8, 10),
        "gray 28x28, 10": (1, 28, 10),
        "gray 32x32, 10": (1, 32, 10),
        "color 32x32, 10": (3, 32, 10),
    }
    rows = []
    for name, spec in NETWORKS.items():
        counts = [
            f"{make_network(name, *shape).parameters:,} ({title})"
            for title, shape in shapes.items()
            if spec.size in (None, shape[1]) and shape[1] >= spec.least
        ]
        rows.append([name, spec.about, "; ".join(counts)])
    typer.echo(listed(rows))


@app.command()
def experiments() -> None:
    """List the experiments: the papers' tables and figures that can be reproduced, and how many runs they are.

    Example: `pfl-lite experiments`
    """
    from pfl_lite.papers import EXPERIMENTS, GROUPS
    from pfl_lite.results.audit import size_of

    for name, e in EXPERIMENTS.items():
        typer.echo(f"{name}  {e.title}\n    arms   {', '.join(arm.key for arm in e.arms)}")
        for one in (e, e.at("paper")) if e.paper_budget else (e,):
            typer.echo(f"    {one.budget:<5}  {one.rounds} rounds; {size_of(one)}")
    for name, parts in GROUPS.items():
        typer.echo(f"{name}  made of the runs of\n    {', '.join(parts)}")
    typer.echo(
        "An arm is a row: a method with its settings. A result is one run of it with one seed, "
        "and a candidate a combination of settings that its search tries."
    )


@app.command(cls=PartitionCommand)
@with_settings("data", "partition", "clients", "split", "seed")
def partition(
    context: typer.Context,
    out: Path | None = file_option(
        ".json of index lists with their recipe and seed, or .npz of index arrays train/0, val/0, test/0, train/1, ...; "
        "also relabel/0, ... where a client sees other labels, group where there are groups, images, how many there are, and "
        "labels, a digest of theirs"
    ),
    plot: Path | None = file_option("picture of class x client counts (.png, .svg, .pdf)"),
    force: Force = False,
    **settings: Any,
) -> None:
    """Share a data set out over clients and say how unlike they are.

    Example: `pfl-lite partition --data digits --partition dirichlet:0.4 --clients 8 --plot clients.png`

    Labels are counted as each client sees them. In the file, relabel/i is the label under which client i sees
    each class (only where that changes anything), and group the true group of every client. With --split fedem
    all three index the training images followed by the test images. `pfl-lite run --partition FILE` has the
    same clients again.
    """
    from pfl_lite.data.federation import Federation
    from pfl_lite.data.images import load
    from pfl_lite.data.partition import ENDINGS, is_file, load_partition, save_partition
    from pfl_lite.data.partition import partition as share_out
    from pfl_lite.show.text import listed

    check_inputs_and_outputs(force, settings, out=(out, ENDINGS), plot=(plot, PICTURES))
    if is_file(settings["partition"]) and not asked_for(context, "clients"):
        settings["clients"] = len(load_partition(settings["partition"]))
    images = load(settings["data"]).with_split(settings["split"])
    indices = share_out(images, settings["partition"], settings["clients"], settings["seed"])
    federation = Federation.build(images, indices)
    typer.echo(federation.summary())
    rows = [["client", "training images", "classes"]]
    for i, row in enumerate(federation.class_counts("train").tolist()):
        held = " ".join(f"{images.card.classes[c]}:{n}" for c, n in enumerate(row) if n)
        rows.append([str(i), str(sum(row)), held])
    typer.echo(listed(rows))
    if out is not None:
        told = {name: settings[name] for name in ("data", "partition", "seed", "split")}
        save_partition(out, indices, images, **told)
        typer.echo(f"wrote {out}")
    if plot is not None:
        from pfl_lite.show.plots import plot_partition

        write_figure(plot, plot_partition(federation))


@app.command()
def convert(
    folder: Path = typer.Argument(
        ..., exists=True, file_okay=False, help="PFLlib's, with train/ and test/ in it"
    ),
    out: Path = typer.Argument(..., parser=folder_name, metavar="OUT", help="a new folder"),
) -> None:
    """Turn PFLlib's folder, whose arrays are pickled, into plain files client-0.npz, ...

    Example: `pfl-lite convert PFLlib/dataset/MNIST mnist-clients`

    A pickle can carry a program; none is run, and a file that holds more than arrays is refused.
    `read_clients` of `pfl_lite.data.exchange` reads what is written, and so do the nodes of `examples/flower` if the data set
    is one of `pfl-lite datasets`.
    """
    from pfl_lite.data.exchange import read_pfllib, write_clients

    if os.path.lexists(out):
        raise InputError(f"{out} is there already: name a new folder")
    images, clients = read_pfllib(folder, pickled=True)
    tell(f"{folder} holds pickles, which can carry programs: their arrays were read, and no program was run")
    write_clients(out, images, clients)
    typer.echo(f"wrote {len(clients)} clients with {len(images.card.classes)} classes to {out}")


def parse_settings(pairs: list[str], method: str, of: str = "--set ") -> dict[str, str]:
    """`["mu=0.1", "ft_epochs=5"]` as a dict; raises InputError for anything without a name and a value."""
    from pfl_lite.methods import METHODS

    settings: dict[str, str] = {}
    for pair in pairs:
        name, equals, value = pair.partition("=")
        if not (name and equals and value):
            its = {"lr": 0.1} | {field.name: field.default for field in fields(METHODS[method])}
            like = name if name in its else [*its][-1]  # what a method shares with others comes first
            raise InputError(f"{of.strip()} takes name=value, e.g. {of}{like}={its[like]}, not '{pair}'")
        if name == "method":
            raise InputError(f"{of}method=... is not a setting: the method is the word before it")
        if name in settings:
            raise InputError(f"{of}{name} is given twice: {settings[name]} and {value}")
        settings[name] = value
    return settings


def named_method(word: str) -> tuple[str, dict[str, str]]:
    """Name and settings of `NAME:x=1,y=2`; raises InputError for settings that are none, and for an unknown name."""
    from pfl_lite.methods import known

    name, colon, own = word.partition(":")
    return known(name), parse_settings(own.split(",") if colon else [], name, f"{name}:")


def whole_numbers(seeds: str) -> list[int]:
    """`0,1,2` as numbers; raises InputError for anything else."""
    with refused(ValueError, f"--seeds takes whole numbers separated by commas, e.g. 0,1,2, not '{seeds}'"):
        return [int(seed) for seed in seeds.removesuffix(",").split(",")]


def prepare(workers: int, device: str) -> None:
    """Make ready for runs of one thread a process, before torch is loaded."""
    check_workers(workers)
    if workers > 1:
        if device != "cuda":  # which is refused; a process that sees a GPU cannot be forked
            os.environ.setdefault("CUDA_VISIBLE_DEVICES", "")
        if workers > (cores := os.cpu_count() or 1):
            tell(f"{workers} workers on {cores} cores take turns: more than {cores} gain nothing")
    import torch

    if "OMP_NUM_THREADS" not in os.environ:  # torch reads it, and it is how one asks for more threads
        torch.set_num_threads(1)  # small networks are faster so


def tell_idle(device: str, options: dict[str, Any]) -> None:
    """Say which of the options given change nothing, as no GPU computes."""
    import torch

    if device == "cpu" or (device == "auto" and not torch.cuda.is_available()):
        for name in options.keys() & {"tf32", "graphs"}:
            tell(f"--{'no-' * (not options[name])}{name} changes nothing here: it is for runs on a GPU")


# One option for each field of `config.RunConfig`, with its docstring as help: `--participation` is its `participation`.
@app.command()
@with_settings()
def run(
    context: typer.Context,
    method: str = typer.Argument(
        ..., help="a method (see `pfl-lite methods`), perhaps with settings: NAME:x=1,y=2"
    ),
    set_: list[str] | None = typer.Option(None, "--set", help="name=value: a hyper-parameter of the method"),
    workers: Workers = 1,
    out: Path | None = file_option(
        ".json with every round and the clients' final numbers, or .csv with a row for each round"
    ),
    plot: Path | None = file_option("picture of accuracy and loss over the rounds (.png, .svg, .pdf)"),
    save: Path | None = file_option(
        ".npz or .safetensors with initial/, global/, personal/ (as scored last) and state/ arrays"
    ),
    checkpoint: Path | None = file_option(
        "continue from this file, and keep it up to date after every round"
    ),
    force: Force = False,
    **settings: Any,
) -> None:
    """Train one method and print how its clients do.

    The defaults are a start, not a recipe: one local epoch in ten rounds ends early, and each network wants a rate of its own.

    Examples:

    `pfl-lite run fedavg --data digits --model linear --partition dirichlet:0.4 --epochs 5 --lr 0.5` (about 95%)

    `pfl-lite run pfedmb --data cifar10 --partition pairs --epochs 5 --set branches=5 --ft-epochs 5 --out run.json`
    """
    files: dict[str, Any] = {"out": (out, (".json", ".csv")), "plot": (plot, PICTURES)}
    files |= {"save": (save, (".npz", ".safetensors")), "checkpoint": (checkpoint, ())}
    check_inputs_and_outputs(force, settings, **files)
    # the others have the defaults of their owner, which may be the method
    options = {name: value for name, value in settings.items() if asked_for(context, name)}
    method, named = named_method(method)
    own = parse_settings(set_ or [], method)
    if twice := sorted((own.keys() & options.keys()) | (named.keys() & (own.keys() | options.keys()))):
        raise InputError(f"{twice[0]} is given twice: give it once")
    own |= named
    check_bounds(options)
    prepare(workers, settings["device"])
    from pfl_lite.config import make_config

    with warnings.catch_warnings(record=True) as advice:
        warnings.simplefilter("always")
        config = make_config(method, **options, **own)  # what it refuses need not wait for the engine
        from pfl_lite.atomic_files import locked, write_bytes, write_json
        from pfl_lite.engine.processes import over_processes
        from pfl_lite.engine.report import safetensors_for
        from pfl_lite.engine.simulation import Simulation, sign_of_life
        from pfl_lite.show.text import render_opening, render_report

        if save is not None:
            safetensors_for(save)
        simulation = Simulation(config, mapping=over_processes(workers, config))
    tell_idle(settings["device"], options)
    for sentence in advice:
        tell(sentence.message)
    kept = "nothing was kept" if checkpoint is None else "the same command goes on from the last round"
    context.find_root().obj = kept  # what is said should a signal come
    context.with_resource(locked(checkpoint))
    if checkpoint is not None and checkpoint.exists():
        simulation.load(checkpoint)  # here too, so that a wrong one is refused before anything is said
    typer.echo(render_opening(simulation), err=True)
    if not simulation.federation.test_sizes.any():
        tell(
            "no client has test images, so that no accuracy is reported: a partition's file lists them under test"
        )
    simulation.run(checkpoint=checkpoint, stop=sign_of_life(simulation))
    report = simulation.report()
    typer.echo(render_report(report, simulation.history.unseen))
    if save is not None:  # first: the models are all that is shown nowhere else, should the disk be full
        simulation.save_models(save)
        typer.echo(f"wrote {save}")
    if out is not None:
        if out.suffix.lower() == ".csv":
            write_bytes(out, simulation.history.means().to_csv(index=False).encode())
        else:
            write_json(out, report)
        typer.echo(f"wrote {out}")
    if plot is not None:
        from pfl_lite.show.plots import plot_history

        write_figure(plot, plot_history(simulation.history, simulation.method.name))


@app.command()
@with_settings(*(name for name in settings_of_a_run() if name != "seed"))
def compare(
    context: typer.Context,
    methods: list[str] = typer.Argument(
        ..., help="methods, each with settings of its own if it needs some: NAME:x=1,y=2"
    ),
    seeds: str = typer.Option(
        "3", help="how many (3: seeds 0, 1 and 2), or which, separated by commas (3,: seed 3 alone)"
    ),
    workers: Workers = 1,
    format: str = typer.Option("text", help="text, markdown or csv"),
    on: str = typer.Option("test", help="test, or val (validation images) to choose settings by"),
    keep: Path | None = typer.Option(
        None,
        parser=folder_name,
        metavar="FOLDER",
        help="for each run's report and checkpoint; what is there goes on",
    ),
    plot: Path | None = file_option(
        "picture of the accuracy over the rounds, before any fine-tuning (.png, .svg, .pdf)"
    ),
    force: Force = False,
    **settings: Any,
) -> None:
    """Run several methods with several seeds, and say by how many points each is ahead of the first one.

    Example: `pfl-lite compare local fedavg ditto:lam=0.1 --data digits --model linear --epochs 5 --lr 0.5`

    `difference` is paired by seed and client, and `low` and `high` are its 95% interval: if it contains zero, the runs cannot say
    which of the two methods is better. `deviation` is the standard deviation of the seeds' means.
    """
    check_inputs_and_outputs(force, settings, plot=(plot, PICTURES))
    options = {name: value for name, value in settings.items() if asked_for(context, name)}
    rows: dict[str, dict[str, str]] = {}
    for word in methods:
        if word in rows:
            raise InputError(
                f"{word} is there twice: give each method once, or other settings, as in ditto:lam=0.1"
            )
        name, own = named_method(word)
        rows[word] = {"method": name} | own
    check_bounds(options)
    prepare(workers, settings["device"])
    from pfl_lite.comparing import compare as table
    from pfl_lite.show.text import FORMATS, render

    one_of("format", format, FORMATS)
    numbers = whole_numbers(seeds)
    kept = "nothing was kept: see --keep" if keep is None else "the same command goes on from here"
    context.find_root().obj = kept  # what is said should a signal come
    which = numbers[0] if "," not in seeds else numbers
    tell_idle(settings["device"], options)
    frame = table(rows, which, workers=workers, on=on, keep=keep, **options)
    what = "In percent of validation images" if on == "val" else "In percent"
    curves = frame.attrs.pop("curves")
    if format != "csv":
        frame = frame.map("{:.2f}".format).replace("nan", "-")
    frame.attrs["title"] = (
        f"{what}, and in points from {methods[0]} with a 95% interval over seeds and clients"
    )
    typer.echo(render(frame.reset_index(), format), nl=False)
    if plot is not None:
        import pandas as pd

        from pfl_lite.show.plots import plot_curves, shades

        colors = shades({word: own["method"] for word, own in rows.items()})
        told = f"mean {'validation' if on == 'val' else 'test'} accuracy of the clients (%)"
        write_figure(plot, plot_curves(pd.DataFrame(curves), ylabel=told, colors=colors))


def tell(message: object, *_: object, **__: object) -> None:
    """Say a warning's sentence, without the line of code that it came from, above the bar if there is one."""
    from tqdm import tqdm

    tqdm.write(f"pfl-lite: {message}", file=sys.stderr)


def parse_budget(text: str) -> float:
    """`90s`, `30m` or `2h` in seconds; raises InputError for anything else."""
    units = {"s": 1, "m": 60, "h": 3600}
    wanted = f"a budget is a number with s, m or h, e.g. 30m, not '{text}'"
    with refused((KeyError, ValueError), wanted):
        seconds = float(text[:-1]) * units[text[-1:]]
    if not 0 < seconds <= LONGEST_BUDGET:
        raise InputError(f"a budget must be positive and at most {LONGEST_BUDGET // 3600} h, not '{text}'")
    return seconds


@app.command()
def reproduce(
    experiment: Experiment,
    budget_name: BudgetName = "small",
    methods: str | None = typer.Option(
        None, "--methods", "--arms", help="rows to train, e.g. fedavg,pfedmb-plain (`ledger missing`) [all]"
    ),
    seeds: str | None = typer.Option(
        None, help="which seeds, not how many, separated by commas: 3 is seed 3 alone [the protocol's]"
    ),
    rounds: int | None = number_option(
        int, "fewer rounds than the protocol's, which the table then says; a search keeps its own", None
    ),
    workers: int | None = number_option(
        int, "processes, each with one thread [1]; with --scheduler, runs at once [one a worker]", None
    ),
    scheduler: str | None = typer.Option(
        None, help="train on the workers of this Dask scheduler, e.g. tcp://10.0.0.1:8786"
    ),
    budget: str | None = typer.Option(None, help="start no new round after this time, e.g. 30m"),
    device: str = typer.Option("auto", help="cpu, cuda or auto"),
    tf32: bool = typer.Option(False, help="products on a GPU in TF32, or exact ones"),
    ledger: Path | None = typer.Option(
        None, envvar="PFL_LITE_RESULTS", file_okay=False, help="folder of the results [data/results]"
    ),
) -> None:
    """Train what the ledger lacks of an experiment; may be interrupted and called again at any time.

    Example: `pfl-lite reproduce pfedmb-table1 --seeds 0 --workers 2 --budget 30m`

    A group is trained one experiment after another.
    With --scheduler the runs are trained on the workers of a Dask cluster, on as many machines as it has. On one GPU,
    --workers 3 lets three processes share it: it works on one run while the others prepare their rounds.
    """
    from pfl_lite.results.audit import count_missing
    from pfl_lite.results.ledger import Ledger
    from pfl_lite.results.runner import reproduce as train

    tell_idle(device, {"tf32": True} if tf32 else {})
    done = train(
        experiment,
        budget=budget_name,
        methods=None if methods is None else methods.split(","),
        seeds=None if seeds is None else whole_numbers(seeds),
        rounds=rounds,
        workers=workers,
        scheduler=scheduler,
        seconds=None if budget is None else parse_budget(budget),
        device=device,
        tf32=tf32,
        ledger=Ledger(ledger),
    )
    if done.left:
        why = how_ended(done.interrupted) if done.interrupted else "out of time"
        typer.echo(
            f"{why}; results written: {done.results}, runs left: {done.left}; the same command goes on from here"
        )
        raise typer.Exit(128 + done.interrupted if done.interrupted else 0)
    ended = f"results written: {done.results}" if done.results else "nothing was left to do"
    lacking = count_missing(experiment, Ledger(ledger), budget_name)
    if not lacking:
        typer.echo(f"{ended}; the ledger has all of {experiment}")
        return
    name = f" --budget-name {budget_name}" if budget_name != "small" else ""
    command = f"pfl-lite ledger missing {experiment}{name}{at_ledger(ledger)}"
    typer.echo(
        f"{ended}, all that was asked for; the ledger lacks {lacking} more of {experiment}: `{command}`"
    )


def at_ledger(ledger: Path | None) -> str:
    """The option of a printed command that names the same ledger."""
    return "" if ledger is None else f" --ledger {shlex.quote(str(ledger))}"


@app.command()
def table(
    experiment: Experiment,
    budget_name: BudgetName = "small",
    format: str = typer.Option("text", help="text, markdown or csv (one for all of a group)"),
    ledger: StoredResults = None,
) -> None:
    """Print a paper's table beside ours, or the numbers that a figure draws, from the ledger.

    Examples: `pfl-lite table pfedmb-table1 --format markdown`, `pfl-lite table pflmoe-fig1`
    """
    import pandas as pd

    from pfl_lite.papers import members, stand_ins
    from pfl_lite.results import tables
    from pfl_lite.results.ledger import Ledger
    from pfl_lite.show import figures
    from pfl_lite.show.text import render, render_table

    there, apart = Ledger(ledger), format != "csv"  # an empty line after each, which a program would read
    if experiment in figures.FIGURES:
        typer.echo(render(figures.figure(experiment, there, budget_name), format, digits=4), nl=apart)
        return
    found = {name: tables.table(name, there, budget_name) for name in members(experiment)}
    whole = pd.concat(found, names=["experiment"]).reset_index("experiment")
    for frame in [whole] if format == "csv" else found.values():
        typer.echo(render_table(frame, format), nl=apart)
    if format == "text" and (others := stand_ins(experiment)):
        typer.echo(f"\nWhat stands in for data or networks has tables of its own: {', '.join(others)}")


@app.command()
def claims(
    experiment: str | None = typer.Argument(
        None, help="an experiment, a group of them, or a claim, e.g. B1 [all]"
    ),
    budget_name: Annotated[str | None, typer.Option(help=BUDGETS_HELP)] = None,
    ledger: StoredResults = None,
) -> None:
    """Check the papers' claims against the ledger: held, failed or undecided, each with its statistic.

    Examples: `pfl-lite claims pfedmb-table1`, `pfl-lite claims B1`

    Two numbers in brackets are a 95% interval over clients and seeds. Without --budget-name each claim is told from the runs of
    the paper's budget where its table has them all (pFedMB's Table II), else from those of the small one.
    """
    from pfl_lite.results import verdicts
    from pfl_lite.results.ledger import Ledger
    from pfl_lite.show.text import render_verdicts

    runs = Ledger(ledger)
    results = (
        verdicts.claims(experiment, runs, budget_name) if budget_name else verdicts.longest(experiment, runs)
    )
    if not results:
        typer.echo(f"no claim of {experiment} is written down as a test: see `pfl-lite table {experiment}`")
        return
    typer.echo(render_verdicts(results))


ledger_app = typer.Typer(
    no_args_is_help=True, help="Look after the results: are they sound, and which are missing?"
)
app.add_typer(ledger_app, name="ledger")


@ledger_app.command("check")
def ledger_check(ledger: StoredResults = None) -> None:
    """Look through every file of the ledger: exit code 1 if one is damaged, or breaks its schema or protocol,
    if its numbers contradict each other, if a run is kept twice,
    or if all together are too large to be kept in a repository.

    Example: `pfl-lite ledger check`

    Results that are missing are listed for information.
    """
    from pfl_lite.results.audit import check
    from pfl_lite.results.ledger import Ledger

    found = check(Ledger(ledger))
    for note in found.notes:
        typer.echo(f"note   {note}")
    for fault in found.faults:
        typer.echo(f"fault  {fault}")
    many = "1 fault" if len(found.faults) == 1 else f"{len(found.faults) or 'no'} faults"
    typer.echo(f"{found.files} files, {found.bytes / 1e6:.1f} MB: {many}")
    if found.faults:
        raise typer.Exit(1)


@ledger_app.command("missing")
def ledger_missing(
    experiment: Experiment, budget_name: BudgetName = "small", ledger: StoredResults = None
) -> None:
    """Print the commands that would fill an experiment's gaps, the longest first; then those that wait for another.

    Example: `pfl-lite ledger missing pfedmb-table1`

    A time is the median of the same rows' results in the ledger, on processors
    if some were trained there.
    """
    from pfl_lite.results.audit import missing
    from pfl_lite.results.ledger import Ledger
    from pfl_lite.show.text import render_missing

    found = missing(experiment, Ledger(ledger), budget_name)
    typer.echo(render_missing(found, at_ledger(ledger)) if found else f"nothing is missing of {experiment}")


@app.command()
def notebooks(
    folder: Path = typer.Argument(
        ...,
        parser=folder_name,
        metavar="FOLDER",
        help="folder to copy the chapters to; made if it is not there",
    ),
    force: bool = typer.Option(False, "--force", help="replace chapters that are there already"),
) -> None:
    """Copy the chapters of the book, to be run and changed: they come with the package.

    Example: `pfl-lite notebooks my-chapters`
    """
    from pfl_lite.notebooks import copy_chapters

    written = copy_chapters(folder, force)
    typer.echo(
        f"{len(written)} chapters are in {folder}: start with {folder}/federated-learning-in-twenty-lines.ipynb"
    )
