"""Networks of the user's own: `--model my_file.py:MyNet` imports the file, and the run keeps a copy of it."""

import hashlib
import sys
from pathlib import Path
from types import ModuleType

from torch import nn

from .._files import first_line, write_file
from .errors import ConfigError, TrainingError


def is_user_network(model: str) -> bool:
    """Whether `model` names a file and a class instead of a network of this package."""
    return model.endswith(".py") or ".py:" in model


def split(model: str) -> tuple[Path, str]:
    """The file and the class of `my_file.py:MyNet`."""
    file, _, name = model.rpartition(":")
    if not file.endswith(".py") or not name.isidentifier():
        raise ConfigError(f"--model {model} does not name a class: write it as my_file.py:MyNet")
    return Path(file), name


def import_class(model: str) -> type[nn.Module]:
    """Import the class that `my_file.py:MyNet` names.

    The same source gives the same class, however often it is imported. The folder of the file is not on the import
    path: the run keeps a copy of this one file, which must not depend on others beside it.
    """
    file, name = split(model)
    try:
        source = file.read_bytes()
    except (OSError, ValueError) as error:
        raise ConfigError(f"--model {model}: the file cannot be read: {first_line(error)}") from error
    module = _import(file, source)
    found = getattr(module, name, None)
    if found is None:
        classes = [key for key, x in vars(module).items() if isinstance(x, type) and x.__module__ == module.__name__]
        raise ConfigError(f"--model {model}: the file has no class {name}, only {', '.join(classes) or 'none'}")
    if not isinstance(found, type) or not issubclass(found, nn.Module):
        raise ConfigError(f"--model {model}: {name} is not a subclass of torch.nn.Module")
    return found


def _import(file: Path, source: bytes) -> ModuleType:
    key = hashlib.sha256(str(file.resolve()).encode(errors="surrogateescape") + b"\0" + source).hexdigest()
    name = f"vector_neurons_user_{file.stem}_{key[:16]}"
    if name in sys.modules:
        return sys.modules[name]
    module = ModuleType(name)
    module.__file__ = str(file)
    sys.modules[name] = module  # before it runs: dataclasses look their module up
    try:
        exec(compile(source, str(file), "exec"), module.__dict__)  # compiled here, to leave no __pycache__ in a run
    except (Exception, SystemExit) as error:
        del sys.modules[name]
        raise ConfigError(f"{file} cannot be imported: {describe(error)}") from error
    return module


def describe(error: BaseException) -> str:
    """The kind of an error in the user's code and its first line.

    >>> describe(KeyError("k"))
    "KeyError: 'k'"
    """
    kind, line = type(error).__name__, first_line(error)
    return line if line == kind else f"{kind}: {line}"


def keep_source(model: str, folder: Path) -> None:
    """Copy the file of a user's network into the folder of its run, so that the run does not depend on the original."""
    if is_user_network(model):
        file, _ = split(model)
        try:
            write_file(folder / file.name, file.read_bytes())
        except OSError as error:
            raise TrainingError(f"{file} cannot be copied to {folder}: {first_line(error)}") from error


def in_run(model: str, folder: Path) -> str:
    """The same model, its file being the copy in the folder of the run."""
    if not is_user_network(model):
        return model
    file, name = split(model)
    return f"{folder / file.name}:{name}"


def relative_to_run(model: str) -> str:
    """The model as `config.json` records it: by the name of the copy beside it."""
    if not is_user_network(model):
        return model
    file, name = split(model)
    return f"{file.name}:{name}"
