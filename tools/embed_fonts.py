#!/usr/bin/env python3
"""tools/embed_fonts.py STYLE FONTS: prints the style sheet with its fonts in it, from an archive of them: url(NAME.woff2) becomes a data: URL."""
import base64
import pathlib
import re
import sys
import tarfile

style = pathlib.Path(sys.argv[1]).read_text()
with tarfile.open(sys.argv[2]) as fonts:
    print(re.sub(r"url\(([\w-]+\.woff2)\)",
                 lambda m: f"url(data:font/woff2;base64,{base64.b64encode(fonts.extractfile(m[1]).read()).decode()})", style), end="")
