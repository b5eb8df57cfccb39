"""Gemma 4 models from GGUF files, in this process.

    import facet
    model = facet.Model("gemma-4-E4B-it-Q4_K_M.gguf")
    for piece in model.chat("Name three rivers"):
        print(piece, end="", flush=True)
"""
from __future__ import annotations

import array
import ctypes as c
import os
import threading
from dataclasses import dataclass
from typing import Callable, Iterable, Iterator, Mapping, Optional, Sequence, Union

from . import _native as n

__all__ = ["Answer", "FacetError", "Model", "Session", "Stats", "version"]
_lib = n.load()
_STOPS = ["running", "end", "length", "context", "cancelled", "failed", "loop"]
Messages = Union[str, Sequence[Mapping[str, str]]]


class FacetError(Exception):
    """What failed: `where` (a file, an option), `what` (expected X, found Y), `hint` (what to do about it)."""

    def __init__(self, where: str, what: str, hint: str = ""):
        super().__init__(f"{where}: {what}" + (f" ({hint})" if hint else ""))
        self.where, self.what, self.hint = where, what, hint


def version() -> str:
    return _lib.facet_version().decode()


def _check(status: int, error: n.CError) -> None:
    if status != n.OK:
        raise FacetError(*(getattr(error, m).decode(errors="replace") for m in ("where", "what", "hint")))


def _handle(call: Callable[..., int], *arguments: object) -> c.c_void_p:
    error, handle = n.CError(), c.c_void_p()
    _check(call(*arguments, c.byref(handle), c.byref(error)), error)
    return handle


def _ids(ids: Sequence[int]) -> "c.Array[c.c_int32]":
    return (c.c_int32 * len(ids))(*ids)


@dataclass(frozen=True)
class Stats:
    """Tokens and seconds of an answer. cached: tokens of the prompt that were not computed again."""

    prompt: int
    cached: int
    generated: int
    steps: int
    drafted: int
    accepted: int
    queue_s: float
    prefill_s: float
    decode_s: float


class Answer(Iterator[str]):
    """An answer on its way: iterate over its pieces, or call read() for all of it. Leaving it half read and dropping it
    cancels it. `thought` and `tokens` grow while it is read."""

    def __init__(self, request: c.c_void_p, owner: object):
        self._request, self._owner = request, owner
        self._lock = threading.Lock()
        self._stop = n.RUNNING
        self.text, self.thought = "", ""
        self.tokens: list[int] = []

    @property
    def stop(self) -> str:
        """Why it ended: end, length, context, loop or cancelled; "running" until all is read."""
        return _STOPS[self._stop]

    def __iter__(self) -> "Answer":
        return self

    def __next__(self) -> str:
        while self._stop == n.RUNNING:
            piece = self._poll()
            if piece:
                return piece
        raise StopIteration

    def _poll(self) -> str:
        with self._lock:
            if not self._request:
                raise ValueError("the answer is closed")
            out, error = n.Output(), n.CError()
            # In pieces of time, so that Ctrl-C is heard.
            status = _lib.facet_poll(self._request, 200, c.byref(out), c.byref(error))
            self._stop = out.stop
            _check(status, error)
            if out.n_tokens:
                self.tokens += out.tokens[: out.n_tokens]
            self.thought += c.string_at(out.thought, out.thought_bytes).decode()
            piece = c.string_at(out.text, out.text_bytes).decode()
            self.text += piece
            return piece

    def read(self) -> str:
        """Waits for the end; the whole text."""
        for _ in self:
            pass
        return self.text

    def cancel(self) -> None:
        """Asks for the end; what was generated can still be read. Any thread."""
        if self._request:
            _lib.facet_cancel(self._request)

    @property
    def stats(self) -> Stats:
        """Once all is read."""
        s = n.CStats()
        if not self._request or _lib.facet_request_get_stats(self._request, c.byref(s)) != n.OK:
            raise ValueError("the answer is not read to its end")
        return Stats(**{name: getattr(s, name) for name, _ in n.CStats._fields_[1:]})

    def close(self) -> None:
        with self._lock:
            request, self._request = self._request, None
        if request:
            _lib.facet_request_free(request)

    def __del__(self) -> None:
        if getattr(self, "_request", None):
            self.close()


def _params(max_tokens: int, temperature: float, top_k: int, top_p: float, min_p: float, repeat_penalty: float,
            presence_penalty: float, frequency_penalty: float, seed: int, draft: bool, cache: bool, ignore_eos: bool,
            json_schema: Optional[str], max_loops: int) -> n.RequestParams:
    flags = (1 if ignore_eos else 0) | (0 if draft else 2) | (0 if cache else 4)
    return n.RequestParams(max_tokens=max_tokens, temperature=temperature, top_k=top_k, top_p=top_p, min_p=min_p,
                           repeat_penalty=repeat_penalty, presence_penalty=presence_penalty,
                           frequency_penalty=frequency_penalty, seed=seed, flags=flags, max_loops=max_loops,
                           json_schema=json_schema.encode() if json_schema is not None else None)


def _sampling(function):
    """Gives a function the options of sampling, as keywords, in one structure."""

    def wrapped(self, *arguments, max_tokens: int = 0, temperature: float = 1.0, top_k: int = 64, top_p: float = 0.95,
                min_p: float = 0.0, repeat_penalty: float = 1.0, presence_penalty: float = 0.0,
                frequency_penalty: float = 0.0, seed: Optional[int] = None, draft: bool = True, cache: bool = True,
                ignore_eos: bool = False, json_schema: Optional[str] = None,
                max_loops: int = 0, **others) -> Answer:
        drawn = int.from_bytes(os.urandom(8), "little") if seed is None else seed
        return function(self, *arguments, **others, params=_params(
            max_tokens, temperature, top_k, top_p, min_p, repeat_penalty, presence_penalty, frequency_penalty, drawn, draft,
            cache, ignore_eos, json_schema, max_loops))

    wrapped.__name__, wrapped.__doc__ = function.__name__, (function.__doc__ or "") + """

        max_tokens: 0: until the model ends its answer or the context is full. temperature: 0: always the likeliest token.
        seed: None: another one each time. draft: with the model's drafters. json_schema: the answer is JSON of it.
        max_loops: ends an answer that goes round in a loop so many times; 0: never."""
    return wrapped


class Session:
    """A conversation. Its rows stay in the cache: a turn computes what is new."""

    def __init__(self, model: "Model", system: Optional[str] = None, think: bool = False):
        self._model = model
        self._session = _handle(_lib.facet_session_create, model._open(), system.encode() if system is not None else None,
                                int(think))

    def add(self, role: str, text: str) -> None:
        """A message of "user" or "assistant" that was said before."""
        error = n.CError()
        _check(_lib.facet_session_add(self._session, role.encode(), text.encode(), c.byref(error)), error)

    @_sampling
    def ask(self, text: Optional[str] = None, *, params: n.RequestParams) -> Answer:
        """The answer to a text, or to the messages so far."""
        if text is not None:
            self.add("user", text)
        return Answer(_handle(_lib.facet_session_submit, self._session, c.byref(params)), self)

    def __del__(self) -> None:
        if getattr(self, "_session", None):
            _lib.facet_session_free(self._session)


class Model:
    """A loaded model and the thread that runs it; methods may be called from any thread.

    path: a GGUF file. context: tokens of a sequence, 0: as trained, halved until it fits. sequences: answers that are
    computed together. kv_type: f16, q8_0, q4_0, tq3_0 or f32. drafters: files; they change no text. on_note: told what
    there is to know about the files."""

    def __init__(self, path: Union[str, "os.PathLike[str]"], *, backend: Optional[str] = None, context: int = 0,
                 sequences: int = 0, threads: int = 0, gpu: int = 0, kv_type: Optional[str] = None,
                 drafters: Iterable[Union[str, "os.PathLike[str]"]] = (), memory: int = 0,
                 on_note: Optional[Callable[[str], None]] = None):
        files = [os.fsencode(d) for d in drafters]
        log = n.LogFn(lambda _, level, text: on_note(text.decode(errors="replace")) if on_note else None)
        self._model: Optional[c.c_void_p] = _handle(_lib.facet_model_open, c.byref(n.ModelParams(
            path=os.fsencode(path), backend=backend.encode() if backend else None, kv_type=kv_type.encode() if kv_type else None,
            drafters=(c.c_char_p * len(files))(*files) if files else None, n_drafters=len(files), context=context,
            sequences=sequences, threads=threads, gpu=gpu, memory=memory, log=log)))
        self._log = log  # a drafter may be lost later
        info = n.ModelInfo()
        _lib.facet_model_get_info(self._model, c.byref(info))
        self.n_vocab, self.n_layer, self.context = info.n_vocab, info.n_layer, info.context
        self.sequences, self.threads, self.backend = info.sequences, info.threads, info.backend.decode()

    def _open(self) -> c.c_void_p:
        if not self._model:
            raise ValueError("the model is closed")
        return self._model

    def tokenize(self, text: str, *, add_bos: bool = False, parse_special: bool = False) -> list[int]:
        raw, count, error = text.encode(), c.c_size_t(), n.CError()
        room = len(raw) + 1  # a token has at least a byte
        ids = (c.c_int32 * room)()
        _check(_lib.facet_tokenize(self._open(), raw, len(raw), int(add_bos) | 2 * int(parse_special), ids, room,
                                   c.byref(count), c.byref(error)), error)
        return ids[: count.value]

    def detokenize(self, ids: Sequence[int]) -> str:
        length, error = c.c_size_t(), n.CError()
        room = c.create_string_buffer(16 * len(ids) + 16)
        while True:
            status = _lib.facet_detokenize(self._open(), _ids(ids), len(ids), room, len(room), c.byref(length), c.byref(error))
            if status != n.TOO_SMALL:
                break
            room = c.create_string_buffer(length.value)
        _check(status, error)
        return room.raw[: length.value].decode()

    def session(self, system: Optional[str] = None, *, think: bool = False) -> Session:
        return Session(self, system, think)

    @_sampling
    def chat(self, messages: Messages, *, system: Optional[str] = None, think: bool = False,
             params: n.RequestParams) -> Answer:
        """The answer to a text, or to messages [{"role": ..., "content": ...}, ...], of which the first may be the system's."""
        if isinstance(messages, str):
            messages = [{"role": "user", "content": messages}]
        if system is None and messages and messages[0]["role"] in ("system", "developer"):
            system, messages = messages[0]["content"], messages[1:]
        session = Session(self, system, think)
        for m in messages:
            session.add(m["role"], m["content"])
        return Answer(_handle(_lib.facet_session_submit, session._session, c.byref(params)), session)

    @_sampling
    def generate(self, prompt: Union[str, Sequence[int]], *, params: n.RequestParams) -> Answer:
        """What follows a text, without turns, or token ids."""
        ids = self.tokenize(prompt, add_bos=True, parse_special=True) if isinstance(prompt, str) else prompt
        return Answer(_handle(_lib.facet_submit, self._open(), _ids(ids), len(ids), c.byref(params)), self)

    def score(self, ids: Sequence[int], start: int = 0) -> "list[array.array[float]]":
        """Logits of the tokens after positions start, start + 1, ... of the ids: a row of n_vocab for each."""
        rows: list[array.array[float]] = []

        def take(_, first, count, width, values):
            for row in range(count):
                at = c.addressof(values.contents) + 4 * row * width
                rows.append(array.array("f", c.string_at(at, 4 * width)))

        error = n.CError()
        _check(_lib.facet_score(self._open(), _ids(ids), len(ids), start, n.LogitsFn(take), None, c.byref(error)), error)
        return rows

    def close(self) -> None:
        """Frees the memory once its answers and sessions are gone, too."""
        model, self._model = self._model, None
        if model:
            _lib.facet_model_free(model)

    def __enter__(self) -> "Model":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __del__(self) -> None:
        if getattr(self, "_model", None):
            self.close()
