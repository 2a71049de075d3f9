"""Import the Python file that defines a user's network, and describe errors in its code in one line."""

import hashlib
import sys
from pathlib import Path
from types import ModuleType

from ._files import first_line

_imported: dict[Path, bytes] = {}  # the source that was last imported from a file


class UserCodeError(ValueError):
    """A file of the user's that cannot be read or imported; the message is one line."""


def import_file(file: Path) -> ModuleType:
    """Execute a Python file as a module with a private name, and return the module.

    The same source gives the same module, however often it is imported. The folder of the file is not put on the import
    path: a training run keeps a copy of this one file, and a file called `random.py` must not replace the standard one.
    """
    if file.suffix != ".py":
        raise UserCodeError(f"{file} is not a Python file")
    try:
        source = file.read_bytes()
    except (OSError, ValueError) as error:
        raise UserCodeError(f"the file cannot be read: {first_line(error)}") from error
    key = hashlib.sha256(str(file.resolve()).encode(errors="surrogateescape") + b"\0" + source).hexdigest()
    name = f"vector_neurons_user_{file.stem}_{key[:16]}"
    if name not in sys.modules:
        _execute(name, file, source)
    _imported[file.resolve()] = source
    return sys.modules[name]


def imported_source(file: Path) -> bytes:
    """The source that the last `import_file` of this file executed, also if the file has changed since."""
    return _imported[file.resolve()]


def class_names(module: ModuleType) -> str:
    """The names of the classes that a module defines, to choose from in a message."""
    names = [name for name, x in vars(module).items() if isinstance(x, type) and x.__module__ == module.__name__]
    return ", ".join(names) or "none"


def describe(error: BaseException) -> str:
    """The kind of an error in the user's code and its first line.

    >>> describe(KeyError("k"))
    "KeyError: 'k'"
    """
    kind, line = type(error).__name__, first_line(error)
    return line if line == kind else f"{kind}: {line}"


def _execute(name: str, file: Path, source: bytes) -> None:
    module = ModuleType(name)
    module.__file__ = str(file)
    sys.modules[name] = module  # before it runs: dataclasses look their module up
    try:
        exec(compile(source, str(file), "exec"), module.__dict__)  # compiled here, to leave no __pycache__ in a run
    except (Exception, SystemExit) as error:
        del sys.modules[name]
        raise UserCodeError(f"{file} cannot be imported: {describe(error)}{_advice(error, file)}") from error


def _advice(error: BaseException, file: Path) -> str:
    """What to do about a module that is missing but stands beside the file or in the current folder."""
    if isinstance(error, ModuleNotFoundError) and error.name:
        top = error.name.partition(".")[0]
        for folder in (file.parent, Path()):
            if (folder / f"{top}.py").is_file() or (folder / top).is_dir():
                return f"; files beside it are found only with PYTHONPATH={folder.resolve()}"
    return ""
