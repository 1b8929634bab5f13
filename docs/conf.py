"""The site: `make docs` builds it from these pages and from docstrings, without importing the product."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))

project = "feedline"
extensions = ["myst_parser", "docstrings"]
exclude_patterns = ["_build"]
myst_heading_anchors = 3
nitpick_ignore_regex = [("py:.*", ".*")]  # types in signatures: most are not on the page
maximum_signature_line_length = 90

html_theme = "furo"
html_title = "feedline"
html_copy_source = False
html_show_sourcelink = False
html_show_copyright = False
html_last_updated_fmt = None
html_static_path = ["_static"]
html_css_files = ["site.css"]
pygments_style = "friendly"
pygments_dark_style = "monokai"
