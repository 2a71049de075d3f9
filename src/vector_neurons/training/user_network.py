"""Networks of the user's own: `--model my_file.py:MyNet` imports the file, and the run keeps a copy of it."""

from pathlib import Path

from torch import nn

from .._files import CHECKSUMS, FileError, first_line, verify_checksums, write_checksums, write_file
from .._user_code import UserCodeError, class_names, import_file, imported_source
from .._user_code import describe as describe_error
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
    """Execute the file that `my_file.py:MyNet` names, and return its class."""
    file, name = split(model)
    try:
        module = import_file(file)
    except UserCodeError as error:
        raise ConfigError(f"--model {model}: {error}") from error
    found = getattr(module, name, None)
    if found is None:
        raise ConfigError(f"--model {model}: the file has no class {name}, only {class_names(module)}")
    if not isinstance(found, type) or not issubclass(found, nn.Module):
        raise ConfigError(f"--model {model}: {name} is not a subclass of torch.nn.Module")
    return found


def describe(error: BaseException) -> str:
    """An error of a constructor in one line, with the arguments that it is given, if these do not fit."""
    hint = "; it is given the number of classes (for segmentation: of parts, of categories) and the flags you set"
    fits = not isinstance(error, TypeError) or "positional argument" not in str(error)
    return describe_error(error) + ("" if fits else hint)


def keep_source(model: str, folder: Path) -> None:
    """Write the source of a user's network, as it was executed, into the folder of its run, with its checksum."""
    if is_user_network(model):
        file, _ = split(model)
        try:
            write_file(folder / file.name, imported_source(file))
            write_checksums(folder, [file.name])
        except OSError as error:
            raise TrainingError(f"{file} cannot be copied to {folder}: {first_line(error)}") from error


def in_run(model: str, folder: Path) -> str:
    """The same model, its file being the copy in the folder of the run; a copy that changed is refused."""
    if not is_user_network(model):
        return model
    file, name = split(model)
    try:
        if (folder / CHECKSUMS).exists():
            verify_checksums(folder, [file.name])
    except FileError as error:
        raise TrainingError(f"{error}; put it back, or delete {folder / CHECKSUMS} to use the run as it is") from error
    return f"{folder / file.name}:{name}"


def relative_to_run(model: str) -> str:
    """The model as `config.json` records it: by the name of the copy beside it."""
    if not is_user_network(model):
        return model
    file, name = split(model)
    return f"{file.name}:{name}"
