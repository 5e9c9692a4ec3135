"""Variants from outside this package, and which were loaded, for processes that must load them too."""

import hashlib
import importlib
import importlib.util
import os
import re
import sys
import traceback
from pathlib import Path

from diffattn.variants.base import names

_LOADED: list[str] = []


def load_plugin(plugin: str) -> None:
    """Import `package.module`, or a file by its path (my_attention.py), whose variants register themselves.

    Loading it again does nothing. ValueError: there is no such file or module, it fails, it registers no variant.
    """
    file = Path(plugin).resolve() if plugin.endswith(".py") else None
    source = str(file or plugin)
    if source in _LOADED:
        return
    if file and not file.is_file():
        raise ValueError(f"the plugin {plugin} is not there; give the path of a .py file, or package.module")
    # Before the plugin, so that a name which is taken is the plugin's mistake.
    known, imported = names(), plugin in sys.modules
    try:
        importlib.import_module(plugin) if file is None else _import_file(file)
    except (Exception, SystemExit) as error:
        raise ValueError(f"the plugin {plugin!r} cannot be imported: {_why(error, plugin)}") from error
    if names() == known and not imported:
        raise ValueError(f'the plugin {plugin!r} brings no variant: its config class needs @register("its_name")')
    _LOADED.append(source)


def loaded_plugins() -> list[str]:
    """List what `load_plugin` loaded: modules by name, files by their whole path."""
    return list(_LOADED)


def _import_file(file: Path) -> None:
    # my-plugin/p.py and my_plugin/p.py are two modules: the path's letters to be read, its hash to be told apart.
    letters, code = re.sub(r"\W", "_", str(file)), hashlib.sha256(os.fsencode(file)).hexdigest()[:8]
    name = f"diffattn_plugin_{letters}_{code}"
    spec = importlib.util.spec_from_file_location(name, file)
    assert spec and spec.loader, "a .py file has a loader"
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module  # where dataclasses look for it
    try:
        spec.loader.exec_module(module)
    except BaseException:
        del sys.modules[name]
        raise


def _why(error: Exception | SystemExit, plugin: str) -> str:
    if isinstance(error, ModuleNotFoundError) and error.name and f"{plugin}.".startswith(f"{error.name}."):
        return f"{error}; is its folder on PYTHONPATH?"
    ours = Path(__file__).parent
    frames = [at for at in traceback.extract_tb(error.__traceback__) if "<frozen" not in at.filename]
    theirs = [at for at in frames if ours not in Path(at.filename).parents]
    place = f" ({theirs[-1].filename}, line {theirs[-1].lineno})" if theirs else ""
    return f"{type(error).__name__}: {error}{place}"
