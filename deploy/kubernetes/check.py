#!/usr/bin/env python3
"""Checks facet.yaml with kubernetes-validate (PyPI). Exit code 77: it is not installed in the Python that runs this."""
import pathlib
import sys

HERE = pathlib.Path(__file__).resolve().parent


def main():
    try:
        import kubernetes_validate
        import yaml
    except ImportError as e:
        print(f"skipped: {e} (pip install kubernetes-validate)")
        return 77
    version = kubernetes_validate.latest_version()
    for document in yaml.safe_load_all((HERE / "facet.yaml").read_text()):
        kubernetes_validate.validate(document, version, strict=True)
        print(f"{document['kind']}: valid for Kubernetes {version}")
    for document in yaml.safe_load_all((HERE / "monitor.yaml").read_text()):
        print(f"{document['kind']}: not checked, a custom resource")
    return 0


if __name__ == "__main__":
    sys.exit(main())
