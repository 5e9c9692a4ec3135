"""Pages from templates: nothing is loaded, the style sheet stands inside."""

from pathlib import Path
from typing import Any


def rendered(name: str, **fields: Any) -> str:
    """Fill one of this folder's templates; strings are escaped, finished SVG is marked as such by the caller."""
    from jinja2 import Environment, FileSystemLoader, StrictUndefined
    from markupsafe import Markup

    here = Path(__file__).parent
    jinja = Environment(
        loader=FileSystemLoader(here), autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True
    )
    jinja.globals["svg"] = Markup
    return jinja.get_template(name).render(style=Markup((here / "style.css").read_text(encoding="utf-8")), **fields)
