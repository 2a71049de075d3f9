"""The command `vn`: one file per verb. Verbs are imported when called, so that `vn --help` is quick."""

import os
import sys
import warnings
from collections.abc import Callable, Sequence
from pathlib import Path

from .._files import first_line

SIGPIPE = 13  # which Windows does not have
NAME_MAX_BYTES = 255  # of a file
VERBS = {
    "align": "move a shape to the pose of another one, of the same kind",
    "check": "measure the equivariance of a network, layer by layer",
    "convert": "convert a checkpoint of the paper's authors to a model of this library",
    "data": "convert published data sets or your own files to packs for training",
    "embed": "make an index of the shapes in a folder, for `vn similar`",
    "evaluate": "test the best model of a run on the test set, under rotations",
    "export": "write a network to a file for onnxruntime or torch, and check it",
    "kernels": "show or build the native (C++) kernels",
    "predict": "name shapes in files, or their parts, in any pose and units",
    "reconstruct": "reconstruct a closed mesh from a scan, in any pose and units",
    "similar": "find the shapes of an index that are most similar to one, in any pose",
    "tables": "reproduce a table of the paper, beside the paper's numbers",
    "train": "train a network, or resume a run",
    "view": "write a page to turn shapes in, beside what networks answer",
}


class UserError(Exception):
    """A mistake of the user: printed as one line, without a traceback."""

    def __init__(self, message: str, code: int = 2) -> None:
        super().__init__(message)
        self.code = code


def main() -> None:
    """Run `vn VERB ...`."""
    arguments = sys.argv[1:]
    if not arguments or arguments[0] in ("-h", "--help"):
        print(_help())
        sys.exit(0 if arguments else 2)
    verb = arguments[0]
    if verb == "--version":
        from importlib.metadata import version

        print(version("vector-neurons"))
        return
    if verb not in VERBS:
        from difflib import get_close_matches

        close = get_close_matches(verb, VERBS, n=1)
        hint = f"did you mean `vn {close[0]}`?" if close else "`vn --help` lists the verbs"
        print(f"vn: unknown verb {verb!r}; {hint}", file=sys.stderr)
        sys.exit(2)
    from importlib import import_module

    import tyro

    module = import_module(f".{verb}", __package__)
    before = warnings.formatwarning, warnings.showwarning
    warnings.formatwarning, warnings.showwarning = lambda message, *_: f"vn {verb}: {message}\n", _show_once()
    try:
        # A verb whose defaults depend on its arguments parses them itself.
        read, flags = getattr(module, "read", None), _spell_groups(arguments[1:])
        sys.exit(read(flags) if read else tyro.cli(module.run, prog=f"vn {verb}", args=flags))
    except UserError as error:
        print(f"vn {verb}: {error}", file=sys.stderr)
        sys.exit(error.code)
    except BrokenPipeError:  # the reader of our output has closed it: `vn train --help | head`
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(128 + SIGPIPE)
    except (OSError, MemoryError) as error:
        print(f"vn {verb}: {first_line(error)}", file=sys.stderr)
        sys.exit(2)
    except KeyboardInterrupt:
        print(f"vn {verb}: interrupted", file=sys.stderr)
        sys.exit(130)
    finally:
        warnings.formatwarning, warnings.showwarning = before


def _show_once() -> Callable[..., None]:
    """A `warnings.showwarning` that prints each text once: splits of one folder warn of the same files."""
    shown: set[str] = set()

    def show(message: Warning | str, category: type[Warning], filename: str, lineno: int, *_: object) -> None:
        if str(message) not in shown:
            shown.add(str(message))
            sys.stderr.write(warnings.formatwarning(message, category, filename, lineno))

    return show


def check_out(out: Path, suffixes: Sequence[str], what: str) -> None:
    """Refuse a file that cannot be written, before any work."""
    if out.suffix.lower() not in suffixes:
        raise UserError(f"cannot write {what} to {out}: only {' '.join(suffixes)}")
    try:
        if len(os.fsencode(out.name)) > NAME_MAX_BYTES:
            raise UserError(f"cannot write {out.name[:40]}…: file names have at most {NAME_MAX_BYTES} bytes")
        if not out.parent.is_dir():
            raise UserError(f"there is no folder {out.parent} to write {out.name} to")
        if out.is_dir():
            raise UserError(f"cannot write {what} to {out}: it is a folder")
    except (OSError, ValueError) as error:  # a folder's name may be too long, too
        raise UserError(f"cannot write {what} to {out}: {first_line(error)}") from error
    if not os.access(out.parent, os.W_OK):
        raise UserError(f"cannot write {out}: no permission to write to {out.parent}")


def _spell_groups(arguments: list[str]) -> list[str]:
    """Spell names of rotation groups as the package does: `so3` is `SO3`.

    >>> _spell_groups(["run", "--rotations", "so3", "Z", "--out", "so3"])
    ['run', '--rotations', 'SO3', 'z', '--out', 'so3']
    """
    known = {name.lower(): name for name in ("I", "z", "SO3", "O3", "SE3")}
    flag, spelled = "", []
    for word in arguments:
        flag = word if word.startswith("--") else flag
        group = flag.endswith("rotations") or flag == "--group"
        spelled.append(known.get(word.lower(), word) if group else word)
    return spelled


def _help() -> str:
    width = max(map(len, VERBS))
    verbs = "\n".join(f"  {verb.ljust(width)}  {text}" for verb, text in VERBS.items())
    return f"""usage: vn VERB [options]

Rotation-equivariant neural networks for point clouds.

{verbs}

`vn VERB --help` explains a verb's options; `vn --version` prints the version."""
