"""The functions and structures of include/facet.h."""
from __future__ import annotations

import ctypes as c
import os
import pathlib

ABI_VERSION = 1
OK, BAD_ARGUMENT, FAILED, TOO_SMALL, BUSY = range(5)
RUNNING = 0
IGNORE_EOS, NO_DRAFT, NO_CACHE, LOGPROBS = 1, 2, 4, 8
FIND_DRAFTERS, OFFLINE = 1, 2
IMAGE, AUDIO = 1, 2


class Sized(c.Structure):
    """A structure that begins with its size."""

    def __init__(self, **members):
        super().__init__(c.sizeof(type(self)), **members)


class CError(Sized):
    _fields_ = [("struct_size", c.c_size_t), ("status", c.c_int32), ("where", c.c_char * 256), ("what", c.c_char * 1024),
                ("hint", c.c_char * 256)]


LogFn = c.CFUNCTYPE(None, c.c_void_p, c.c_int32, c.c_char_p)
LogitsFn = c.CFUNCTYPE(None, c.c_void_p, c.c_size_t, c.c_size_t, c.c_size_t, c.POINTER(c.c_float))


class ModelParams(Sized):
    _fields_ = [("struct_size", c.c_size_t), ("path", c.c_char_p), ("backend", c.c_char_p), ("kv_type", c.c_char_p),
                ("drafters", c.POINTER(c.c_char_p)), ("n_drafters", c.c_size_t), ("context", c.c_int32),
                ("sequences", c.c_int32), ("threads", c.c_int32), ("gpu", c.c_int32), ("memory", c.c_int64),
                ("log", LogFn), ("log_user", c.c_void_p), ("mmproj", c.c_char_p), ("image_tokens", c.c_int32),
                ("flags", c.c_uint32)]


class ModelInfo(Sized):
    _fields_ = [("struct_size", c.c_size_t), ("n_vocab", c.c_int32), ("n_layer", c.c_int32), ("context", c.c_int32),
                ("sequences", c.c_int32), ("threads", c.c_int32), ("bos", c.c_int32), ("backend", c.c_char * 16),
                ("inputs", c.c_uint32)]


class RequestParams(Sized):
    _fields_ = [("struct_size", c.c_size_t), ("max_tokens", c.c_int32), ("top_k", c.c_int32), ("temperature", c.c_float),
                ("top_p", c.c_float), ("min_p", c.c_float), ("repeat_penalty", c.c_float), ("presence_penalty", c.c_float),
                ("frequency_penalty", c.c_float), ("seed", c.c_uint64), ("flags", c.c_uint32),
                ("max_loops", c.c_int32), ("json_schema", c.c_char_p), ("stop", c.POINTER(c.c_char_p)),
                ("n_stop", c.c_size_t), ("grammar", c.c_char_p), ("top_logprobs", c.c_int32)]


class CLogprob(c.Structure):
    _fields_ = [("token", c.c_int32), ("logprob", c.c_float)]


class Output(Sized):
    _fields_ = [("struct_size", c.c_size_t), ("tokens", c.POINTER(c.c_int32)), ("n_tokens", c.c_size_t),
                ("text", c.c_void_p), ("text_bytes", c.c_size_t), ("thought", c.c_void_p), ("thought_bytes", c.c_size_t),
                ("stop", c.c_int32), ("logprobs", c.POINTER(CLogprob)), ("n_logprobs", c.c_size_t),
                ("tool_calls", c.c_void_p), ("tool_calls_bytes", c.c_size_t)]


class CStats(Sized):
    _fields_ = [("struct_size", c.c_size_t), ("prompt", c.c_int32), ("cached", c.c_int32), ("generated", c.c_int32),
                ("steps", c.c_int32), ("drafted", c.c_int32), ("accepted", c.c_int32), ("queue_s", c.c_double),
                ("prefill_s", c.c_double), ("decode_s", c.c_double), ("media", c.c_int32)]


_H, _HP, _EP = c.c_void_p, c.POINTER(c.c_void_p), c.POINTER(CError)
_IDS, _SIZES = c.POINTER(c.c_int32), c.POINTER(c.c_size_t)
FUNCTIONS = {
    "facet_abi_version": (c.c_uint32, []),
    "facet_version": (c.c_char_p, []),
    "facet_model_open": (c.c_int32, [c.POINTER(ModelParams), _HP, _EP]),
    "facet_model_free": (None, [_H]),
    "facet_model_get_info": (c.c_int32, [_H, c.POINTER(ModelInfo)]),
    "facet_tokenize": (c.c_int32, [_H, c.c_char_p, c.c_size_t, c.c_uint32, _IDS, c.c_size_t, _SIZES, _EP]),
    "facet_detokenize": (c.c_int32, [_H, _IDS, c.c_size_t, c.c_char_p, c.c_size_t, _SIZES, _EP]),
    "facet_score": (c.c_int32, [_H, _IDS, c.c_size_t, c.c_size_t, LogitsFn, c.c_void_p, _EP]),
    "facet_submit": (c.c_int32, [_H, _IDS, c.c_size_t, c.POINTER(RequestParams), _HP, _EP]),
    "facet_session_create": (c.c_int32, [_H, c.c_char_p, c.c_int32, _HP, _EP]),
    "facet_session_add": (c.c_int32, [_H, c.c_char_p, c.c_char_p, _EP]),
    "facet_session_attach": (c.c_int32, [_H, c.c_int32, c.c_char_p, c.c_size_t, c.POINTER(c.c_int32), _EP]),
    "facet_session_add_json": (c.c_int32, [_H, c.c_char_p, _EP]),
    "facet_session_set_tools": (c.c_int32, [_H, c.c_char_p, _EP]),
    "facet_session_submit": (c.c_int32, [_H, c.POINTER(RequestParams), _HP, _EP]),
    "facet_session_free": (None, [_H]),
    "facet_poll": (c.c_int32, [_H, c.c_int32, c.POINTER(Output), _EP]),
    "facet_cancel": (None, [_H]),
    "facet_request_get_stats": (c.c_int32, [_H, c.POINTER(CStats)]),
    "facet_request_free": (None, [_H]),
}


def load() -> c.CDLL:
    """The library beside this file, or the one that FACET_LIBRARY names."""
    path = os.environ.get("FACET_LIBRARY") or str(pathlib.Path(__file__).with_name("libfacet.so"))
    lib = c.CDLL(path)
    for name, (result, arguments) in FUNCTIONS.items():
        function = getattr(lib, name)
        function.restype, function.argtypes = result, arguments
    found = lib.facet_abi_version()
    if found != ABI_VERSION:
        raise ImportError(f"{path}: expected version {ABI_VERSION} of the interface, found {found}")
    return lib
