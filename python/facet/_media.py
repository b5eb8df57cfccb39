"""Pictures and sounds as Python has them, as the bytes of a file and as parts of messages."""
from __future__ import annotations

import base64
import io
import os
import pathlib
from typing import Any, Mapping


def file_bytes(file: Any) -> bytes:
    """Of a path, bytes, an open file or a PIL image."""
    if isinstance(file, (bytes, bytearray, memoryview)):
        return bytes(file)
    if isinstance(file, (str, os.PathLike)):
        return pathlib.Path(file).read_bytes()
    if hasattr(file, "save") and hasattr(file, "mode"):  # PIL.Image.Image, without asking for PIL
        to = io.BytesIO()
        file.save(to, "PNG")
        return to.getvalue()
    if hasattr(file, "read"):
        return file.read()
    raise TypeError(f"expected a path, bytes, an open file or a PIL image, found {type(file).__name__}")


def _part(part: Any) -> Any:
    if not isinstance(part, Mapping):
        return part
    if part.get("type") == "image" and "image" in part:
        data = base64.b64encode(file_bytes(part["image"])).decode()
        return {"type": "image_url", "image_url": {"url": "data:image/png;base64," + data}}
    if part.get("type") == "audio" and "audio" in part:
        data = base64.b64encode(file_bytes(part["audio"])).decode()
        return {"type": "input_audio", "input_audio": {"data": data, "format": "wav"}}
    return part


def with_data(message: Mapping[str, Any]) -> "dict[str, Any]":
    """A message whose parts with files have their bytes in them."""
    content = message.get("content")
    if not isinstance(content, (list, tuple)):
        return dict(message)
    return {**message, "content": [_part(p) for p in content]}
