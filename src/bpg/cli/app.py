"""The command's frame: options that every verb shares, errors as sentences, exit codes.

Exit codes: 0 done, 1 failed, 2 wrong use, 130 interrupted. No verb shows a traceback without `--debug`.
"""

from __future__ import annotations

import inspect
import io
import json
import os
import re
import sys
import traceback
import warnings
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, fields
from functools import wraps
from typing import Annotated, Any, cast

import typer

from bpg import __version__
from bpg.errors import BPGError
from bpg.progress import Progress, progress_bar

# Typer brings a click of its own; the classes of its errors are reached through the two that it exports.
UsageError, ClickError = cast(tuple[type[Exception], type[Exception]], typer.BadParameter.__mro__[1:3])

INTERRUPTED = 130

app = typer.Typer(
    name="bpg",
    help="Teach a frozen vision transformer one visual domain after another, without forgetting any.",
    epilog="Each verb has its own help: bpg VERB --help. Exit codes: 0 done, 1 failed, 2 wrong use, 130 interrupted.",
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
    context_settings={"help_option_names": ["-h", "--help"]},
)


def _device(name: str) -> str:
    """Refuse what cannot be a device, without asking torch which ones there are."""
    if not re.fullmatch(r"auto|cpu|mps|cuda(:\d+)?", name):
        raise typer.BadParameter(f"{name!r} is no device: wanted auto, cpu, cuda, cuda:N or mps")
    return name


@dataclass(frozen=True, slots=True)
class Common:
    """The options that mean the same in every verb."""

    device: Annotated[
        str,
        typer.Option(callback=_device, help="auto, cpu, cuda, cuda:N or mps; auto takes a GPU if there is one."),
    ] = "auto"
    threads: Annotated[
        int | None, typer.Option(min=1, max=512, help="CPU threads; $OMP_NUM_THREADS or all cores if not given.")
    ] = None
    seed: Annotated[
        int | None, typer.Option(min=0, help="The only source of randomness: same seed, same result. 0 if not given.")
    ] = None
    json: Annotated[bool, typer.Option("--json", help="Print one JSON document instead of text.")] = False
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="Print results and errors only.")] = False
    debug: Annotated[bool, typer.Option("--debug", help="Show the traceback of an error.")] = False

    def say(self, text: str) -> None:
        """A remark beside the result: on stderr, so that stdout pipes well, and not with --quiet."""
        if not self.quiet:
            print(text, file=sys.stderr)

    def bar(self, title: str) -> AbstractContextManager[Callable[[Progress], None]]:
        """A bar for what takes long, where somebody looks."""
        return progress_bar(title, quiet=self.quiet)

    def use_machine(self) -> Any:
        """The device asked for, with the thread count set."""
        from bpg.compute import choose_device, set_threads
        from bpg.ranks import rank_and_ranks

        rank_and_ranks()  # before a device is chosen: each rank has its own
        set_threads(self.threads)
        return choose_device(self.device)


data = typer.Typer(name="data", help="The benchmarks: which there are, to get them, to check them, to pack them.")
app.add_typer(data)


def verb(function: Callable[..., None]) -> Callable[..., None]:
    """Register `function(common, ...)` as the verb of its name."""
    return register(app, function.__name__)(function)


def register(group: typer.Typer, name: str) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Register a `function(common, ...)` as `name` in `group`, with the common options after its own."""

    def registered(function: Callable[..., None]) -> Callable[..., None]:
        group.command(name=name)(_with_common(function))
        return function

    return registered


def _with_common(function: Callable[..., None]) -> Callable[..., None]:
    own = list(inspect.signature(function, eval_str=True).parameters.values())[1:]
    hints = inspect.get_annotations(Common, eval_str=True)
    shared = [
        inspect.Parameter(f.name, inspect.Parameter.KEYWORD_ONLY, default=f.default, annotation=hints[f.name])
        for f in fields(Common)
    ]

    @wraps(function)
    def run(**values: Any) -> None:
        common = Common(**{f.name: values.pop(f.name) for f in fields(Common)})
        function(common, **values)

    keyword = [parameter.replace(kind=inspect.Parameter.KEYWORD_ONLY) for parameter in own]
    run.__signature__ = inspect.Signature(keyword + shared)  # type: ignore[attr-defined]
    run.__annotations__ = {parameter.name: parameter.annotation for parameter in keyword + shared}
    return run


def _version(asked: bool) -> None:
    if asked:
        typer.echo(f"bpg {__version__}")
        raise typer.Exit


@app.callback()
def _root(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version.")
    ] = False,
) -> None:
    del version


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command and return its exit code."""
    if sys.stdout is None:  # closed by the caller
        sys.stdout = open(os.devnull, "w", encoding="utf-8")  # noqa: SIM115
    given = list(sys.argv[1:] if arguments is None else arguments) or ["--help"]
    debug, as_json = "--debug" in given, "--json" in given
    quiet = not {"--quiet", "-q"}.isdisjoint(given)
    shown = warnings.showwarning
    for stream in (sys.stdout, sys.stderr):  # a file's name may hold what the terminal cannot show
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")
    warnings.filterwarnings("ignore", module=r"PIL\.")  # of single images, without their name; ours are told
    if not debug:  # with --debug, warnings say where they come from
        warnings.showwarning = _silence if quiet else _remark
    try:
        from bpg.cli import verbs  # noqa: F401  (registers the verbs)

        result = typer.main.get_command(app).main(given, prog_name="bpg", standalone_mode=False)
        sys.stdout.flush()
        if result == INTERRUPTED:  # newer Typers turn an interrupt into an exit by themselves
            raise KeyboardInterrupt
        return result if isinstance(result, int) else 0
    except (KeyboardInterrupt, typer.Abort):
        print("interrupted", file=sys.stderr)
        return INTERRUPTED
    except BPGError as error:
        return _failed(error, error.exit_code, error.as_dict(), debug, as_json)
    except ClickError as error:
        parts = {"problem": error.format_message(), "remedy": "bpg --help tells what there is."}  # type: ignore[attr-defined]
        if isinstance(error, UsageError) and getattr(error, "ctx", None) is not None:
            parts["remedy"] = f"{error.ctx.command_path} --help tells what there is."  # type: ignore[attr-defined]
        return _failed(error, 2, parts, debug, as_json)
    except BrokenPipeError:  # the reader of our output has gone, as `| head` does
        _discard_output()
        return 1
    except OSError as error:
        try:
            sys.stdout.flush()
        except OSError:  # it is the output itself that cannot be written
            _discard_output()
        parts = {"problem": f"the system refused: {error}", "remedy": "Check the disk, the permissions and the path."}
        return _failed(error, 1, parts, debug, as_json)
    except Exception as error:
        parts = {
            "problem": f"unexpected {type(error).__name__}: {error}",
            "remedy": "This is a fault of bpg's: run again with --debug and report the traceback.",
        }
        return _failed(error, 1, parts, debug, as_json)
    finally:
        warnings.showwarning = shown


def _discard_output() -> None:
    """What could not be written the interpreter would try again at exit, with a complaint and a code of its own."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _remark(message: Warning | str, *_: Any, **__: Any) -> None:
    print(f"note: {message}", file=sys.stderr)


def _silence(*_: Any, **__: Any) -> None:
    pass


def _failed(error: Exception, code: int, parts: dict[str, str], debug: bool, as_json: bool) -> int:
    if debug:
        traceback.print_exception(error)
    if as_json:
        print(json.dumps({"error": parts}), file=sys.stderr)
        return code
    print(f"error: {parts['problem']}", file=sys.stderr)
    for label, part in (("wanted", "wanted"), ("came", "came"), ("try", "remedy")):
        if part in parts:
            print(f"  {label + ':':<8}{parts[part]}", file=sys.stderr)
    return code
