#!/usr/bin/env python3
"""The wheel of scripts/package.sh --wheel, in an environment that has nothing else: wheel_test.py WHEEL"""
import os
import pathlib
import subprocess
import sys
import tempfile
import unittest
import zipfile

sys.path.insert(0, str(pathlib.Path(__file__).parent))
import elf  # noqa: E402

ROOT = pathlib.Path(__file__).resolve().parents[2]
WHEEL = pathlib.Path(sys.argv.pop(1)).resolve()
TALK = """
import facet, sys
with facet.Model(sys.argv[1], context=512) as model:
    answer = model.chat("What is 17 + 25?", temperature=0)
    print(facet.version(), answer.read(), answer.stats.drafted > 0)
"""


class Wheel(unittest.TestCase):
    def test_answers_in_an_empty_environment(self):
        with tempfile.TemporaryDirectory() as folder:
            env = {"PATH": "/usr/bin:/bin", "HOME": folder}
            python = pathlib.Path(folder, "env/bin/python")
            subprocess.run([sys.executable, "-m", "venv", pathlib.Path(folder, "env")], check=True, env=env)
            subprocess.run([python, "-m", "pip", "install", "-q", "--no-index", "--no-cache-dir", WHEEL], check=True, env=env)
            model = ROOT / "models/facet-nano-Q8_0.gguf"
            done = subprocess.run([python, "-I", "-c", TALK, model], capture_output=True, text=True, cwd=folder, env=env)
            self.assertEqual((done.returncode, done.stdout), (0, "0.1.0 17 + 25 = 42 True\n"), done.stderr)
            listed = subprocess.run([python, "-m", "pip", "list", "--format=freeze"], capture_output=True, text=True, env=env)
            names = {line.split("==")[0].split(" @")[0] for line in listed.stdout.splitlines()}
            self.assertEqual(names - {"pip", "setuptools", "wheel"}, {"facet"})

    def test_the_tag_is_what_the_library_needs(self):
        with tempfile.TemporaryDirectory() as folder:
            with zipfile.ZipFile(WHEEL) as z:
                library = pathlib.Path(z.extract("facet/libfacet.so", folder))
                names = z.namelist()
            self.assertTrue(WHEEL.name.endswith(f"-py3-none-{elf.wheel_tag(library)}.whl"), WHEEL.name)
            self.assertEqual([x for x in elf.needs(library)[0] if x not in elf.LIBRARIES], [])
            self.assertTrue(any(n.startswith("facet/licenses/") for n in names) and "facet/py.typed" in names, names)
            self.assertFalse([n for n in names if "__pycache__" in n or "/tests/" in n])


if __name__ == "__main__":
    unittest.main(verbosity=1)
