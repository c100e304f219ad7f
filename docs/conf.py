"""Sphinx's settings for the site, which is served whole: no fonts or scripts of other hosts."""

project = "Mainstem"
html_title = "Mainstem"
extensions = ["myst_parser"]
myst_heading_anchors = 3
html_theme = "furo"
html_show_copyright = False
html_show_sphinx = False
html_copy_source = False
html_show_sourcelink = False
# Text diagrams and shell sessions are shown as they are; only code that says its language is coloured.
highlight_language = "text"
html_static_path = ["style.css"]
html_css_files = ["style.css"]
