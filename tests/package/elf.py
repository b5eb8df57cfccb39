#!/usr/bin/env python3
"""What an ELF program needs of the system: shared libraries and versions of their symbols.

  elf.py PROGRAM      prints both; exit code 1 when it would not run on Debian 12
"""
import platform
import struct
import sys

NEWEST_GLIBC = (2, 36)  # Debian 12
# All of glibc. Older ones have threads and dlopen in libraries of their own.
LIBRARIES = {"libc.so.6", "libm.so.6", "libpthread.so.0", "libdl.so.2", "librt.so.1", "ld-linux-x86-64.so.2",
             "ld-linux-aarch64.so.1"}


def needs(path):
    """Libraries, and {library: {version, ...}}."""
    with open(path, "rb") as f:
        data = f.read()
    if data[:4] != b"\x7fELF" or data[4] != 2 or data[5] != 1:
        raise ValueError(f"{path}: expected a 64-bit little-endian ELF file")
    section_offset, = struct.unpack_from("<Q", data, 0x28)
    entry_size, n_sections = struct.unpack_from("<HH", data, 0x3A)
    sections = [struct.unpack_from("<IIQQQQIIQQ", data, section_offset + i * entry_size) for i in range(n_sections)]

    def text(table, at):
        begin = sections[table][4] + at
        return data[begin:data.index(b"\0", begin)].decode()

    libraries, versions = [], {}
    for _, kind, _, _, offset, size, link, info, _, _ in sections:
        if kind == 6:  # SHT_DYNAMIC
            for at in range(offset, offset + size, 16):
                tag, value = struct.unpack_from("<qQ", data, at)
                if tag == 1:  # DT_NEEDED
                    libraries.append(text(link, value))
        elif kind == 0x6FFFFFFE:  # SHT_GNU_verneed: one entry a library, a list of versions behind each
            at = offset
            for _ in range(info):
                _, n, name, first, following = struct.unpack_from("<HHIII", data, at)
                entry = at + first
                for _ in range(n):
                    _, _, _, version, further = struct.unpack_from("<IHHII", data, entry)
                    versions.setdefault(text(link, name), set()).add(text(link, version))
                    entry += further
                at += following
    return libraries, versions


def newer_than(versions, newest):
    """Versions of glibc's symbols that are newer."""
    found = {v for of_library in versions.values() for v in of_library if v.startswith("GLIBC_") and v[6].isdigit()}
    return sorted((v for v in found if tuple(map(int, v[6:].split("."))) > newest))


def newest_of(versions):
    found = {v for of_library in versions.values() for v in of_library if v.startswith("GLIBC_") and v[6].isdigit()}
    return max(found, key=lambda v: tuple(map(int, v[6:].split("."))), default="none")


def wheel_tag(path):
    """What a wheel with this library is named by: manylinux_2_34_x86_64 where it needs glibc 2.34."""
    major, minor = newest_of(needs(path)[1])[6:].split(".")[:2]
    return f"manylinux_{major}_{minor}_{platform.machine()}"


def main():
    if sys.argv[1] == "--tag":
        print(wheel_tag(sys.argv[2]))
        return 0
    libraries, versions = needs(sys.argv[1])
    print(f"{sys.argv[1]}: {', '.join(libraries)}; newest symbol {newest_of(versions)}")
    bad = [f"library {x}" for x in libraries if x not in LIBRARIES] + [f"symbol version {v}" for v in newer_than(versions, NEWEST_GLIBC)]
    for what in bad:
        print(f"{sys.argv[1]}: {what}; expected glibc {'.'.join(map(str, NEWEST_GLIBC))} alone", file=sys.stderr)
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main())
