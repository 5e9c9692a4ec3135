"""Pages from templates: nothing is loaded, the style sheet stands inside."""

import re
from pathlib import Path
from typing import TYPE_CHECKING, Any

from diffattn.lab.report.words import count, rate

if TYPE_CHECKING:
    from markupsafe import Markup


def rendered(name: str, **fields: Any) -> str:
    """Fill one of this folder's templates; strings are escaped, finished SVG is marked as such by the template."""
    from jinja2 import Environment, FileSystemLoader, StrictUndefined
    from markupsafe import Markup

    here = Path(__file__).parent
    jinja = Environment(
        loader=FileSystemLoader(here), autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True
    )
    jinja.globals["svg"] = Markup
    jinja.filters |= {"count": count, "rate": rate, "prose": _prose}
    return jinja.get_template(name).render(style=Markup((here / "style.css").read_text(encoding="utf-8")), **fields)


def _prose(words: str) -> "Markup":
    """A sentence as HTML: commands as code, and the sign that a terminal may lack."""
    from markupsafe import Markup, escape

    return Markup(re.sub("`([^`]+)`", r"<code>\1</code>", str(escape(words.replace("+-", "±")))))
