"""Gemma 4 models from GGUF files, in this process.

    import facet
    model = facet.Model("gemma-4-E4B-it-Q4_K_M.gguf")
    for piece in model.chat("Name three rivers"):
        print(piece, end="", flush=True)
"""
from __future__ import annotations

import array
import asyncio
import ctypes as c
import functools
import json
import os
import threading
from dataclasses import dataclass
from typing import Any, Callable, Iterable, Iterator, Mapping, Optional, Sequence, Union

from . import _media as media
from . import _native as n

__all__ = ["Answer", "FacetError", "Model", "Session", "Stats", "TokenLogprob", "version"]
_lib = n.load()
_STOPS = ["running", "end", "length", "context", "cancelled", "failed", "loop", "stop"]
Message = Mapping[str, Any]
Messages = Union[str, Sequence[Message]]
Path = Union[str, "os.PathLike[str]"]


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
    media: int = 0
    """Of the prompt: soft tokens of pictures and sounds."""


@dataclass(frozen=True)
class TokenLogprob:
    """A token of an answer, its log-probability before anything of sampling, and the likeliest ones at its place."""

    token: int
    logprob: float
    top: "tuple[tuple[int, float], ...]" = ()


class Answer(Iterator[str]):
    """An answer on its way: iterate over its pieces (`for` or `async for`), or call read() or str() for all of it. Leaving
    it half read and dropping it cancels it. `thought`, `tokens` and `logprobs` grow while it is read; `tool_calls` are
    there at its end, as OpenAI has them."""

    def __init__(self, request: c.c_void_p, owner: object, top_logprobs: int = 0):
        self._request, self._owner, self._top = request, owner, top_logprobs
        self._lock = threading.Lock()
        self._stop = n.RUNNING
        self.text, self.thought = "", ""
        self.tokens: list[int] = []
        self.logprobs: list[TokenLogprob] = []
        self.tool_calls: list[dict[str, Any]] = []

    @property
    def stop(self) -> str:
        """Why it ended: end, length, context, loop, cancelled, or stop (one of `stop`); "running" until all is read."""
        return _STOPS[self._stop]

    def __iter__(self) -> "Answer":
        return self

    def __next__(self) -> str:
        while self._stop == n.RUNNING:
            piece = self._poll()
            if piece:
                return piece
        raise StopIteration

    def __aiter__(self) -> "Answer":
        return self

    async def __anext__(self) -> str:
        # In a thread of the loop's: the library waits without Python's lock. A task that is cancelled cancels the answer.
        loop = asyncio.get_running_loop()
        while self._stop == n.RUNNING:
            try:
                piece = await loop.run_in_executor(None, self._poll)
            except asyncio.CancelledError:
                self.cancel()
                raise
            if piece:
                return piece
        raise StopAsyncIteration

    async def aread(self) -> str:
        """read(), awaited."""
        async for _ in self:
            pass
        return self.text

    def __str__(self) -> str:
        return self.read()

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
            each = 1 + self._top
            for at in range(0, out.n_logprobs, each):
                first, *rest = (out.logprobs[i] for i in range(at, at + each))
                self.logprobs.append(TokenLogprob(first.token, first.logprob,
                                                  tuple((r.token, r.logprob) for r in rest if r.token >= 0)))
            if out.stop != n.RUNNING and out.tool_calls_bytes:
                self.tool_calls = json.loads(c.string_at(out.tool_calls, out.tool_calls_bytes))
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


def _schema(schema: Any) -> str:
    """Of a pydantic model (its class), a dict, or text."""
    if hasattr(schema, "model_json_schema"):
        schema = schema.model_json_schema()
    return schema if isinstance(schema, str) else json.dumps(schema)


def _text(value: Optional[str]) -> Optional[bytes]:
    return None if value is None else value.encode()


def _sampling(function):
    """Gives a function the options of sampling, as keywords, in one structure."""

    @functools.wraps(function)
    def wrapped(self, *arguments, max_tokens: int = 0, temperature: float = 1.0, top_k: int = 64, top_p: float = 0.95,
                min_p: float = 0.0, repeat_penalty: float = 1.0, presence_penalty: float = 0.0,
                frequency_penalty: float = 0.0, seed: Optional[int] = None, draft: bool = True, cache: bool = True,
                ignore_eos: bool = False, json_schema: Any = None, grammar: Optional[str] = None,
                stop: Union[str, Sequence[str]] = (), logprobs: Union[bool, int] = False, max_loops: int = 0,
                **others) -> Answer:
        if logprobs is not False and logprobs < 0:
            raise ValueError(f"logprobs: expected True, False or how many of the likeliest tokens, found {logprobs}")
        stops = [text.encode() for text in ([stop] if isinstance(stop, str) else stop)]
        flags = ((n.IGNORE_EOS if ignore_eos else 0) | (0 if draft else n.NO_DRAFT) | (0 if cache else n.NO_CACHE) |
                 (0 if logprobs is False else n.LOGPROBS))
        params = n.RequestParams(
            max_tokens=max_tokens, temperature=temperature, top_k=top_k, top_p=top_p, min_p=min_p,
            repeat_penalty=repeat_penalty, presence_penalty=presence_penalty, frequency_penalty=frequency_penalty,
            seed=int.from_bytes(os.urandom(8), "little") if seed is None else seed, flags=flags, max_loops=max_loops,
            json_schema=None if json_schema is None else _schema(json_schema).encode(), grammar=_text(grammar),
            stop=(c.c_char_p * len(stops))(*stops) if stops else None, n_stop=len(stops),
            top_logprobs=0 if isinstance(logprobs, bool) else logprobs)
        return function(self, *arguments, **others, params=params)

    wrapped.__doc__ = (function.__doc__ or "") + """

        max_tokens: 0: until the model ends its answer or the context is full. temperature: 0: always the likeliest token.
        seed: None: another one each time. draft: with the model's drafters. json_schema: the answer is JSON of it: a dict,
        its text, or a pydantic model. grammar: the answer follows it (GBNF). stop: texts that end the answer, before them.
        logprobs: True: of the tokens; k: and of the k likeliest at each place. max_loops: ends an answer that goes round
        in a loop so many times; 0: never."""
    return wrapped


class Session:
    """A conversation. Its rows stay in the cache: a turn computes what is new."""

    def __init__(self, model: "Model", system: Optional[str] = None, think: bool = False,
                 tools: Optional[Sequence[Mapping[str, Any]]] = None):
        self._model = model
        self._session = _handle(_lib.facet_session_create, model._open(), _text(system), int(think))
        if tools:
            self.set_tools(tools)

    def set_tools(self, tools: Optional[Sequence[Mapping[str, Any]]]) -> None:
        """Functions that the model may call, as OpenAI has them; None: none."""
        error = n.CError()
        text = json.dumps(list(tools)).encode() if tools else None
        _check(_lib.facet_session_set_tools(self._session, text, c.byref(error)), error)

    def add(self, role: str, text: str, *, images: Iterable[Any] = (), sounds: Iterable[Any] = ()) -> int:
        """A message of "user" or "assistant"; with pictures and sounds before its text, each a path, bytes or a PIL image.
        Returns their soft tokens."""
        tokens = 0
        for kind, files in ((n.IMAGE, images), (n.AUDIO, sounds)):
            for file in files:
                raw, count, error = media.file_bytes(file), c.c_int32(), n.CError()
                _check(_lib.facet_session_attach(self._session, kind, raw, len(raw), c.byref(count), c.byref(error)), error)
                tokens += count.value
        error = n.CError()
        _check(_lib.facet_session_add(self._session, role.encode(), text.encode(), c.byref(error)), error)
        return tokens

    def add_messages(self, messages: Sequence[Message]) -> None:
        """Messages as OpenAI has them: several parts of content, tool calls, results of tools. A part may also be
        {"type": "image", "image": ...} or {"type": "audio", "audio": ...} with a path, bytes or a PIL image."""
        error = n.CError()
        text = json.dumps([media.with_data(m) for m in messages]).encode()
        _check(_lib.facet_session_add_json(self._session, text, c.byref(error)), error)

    @_sampling
    def ask(self, text: Optional[str] = None, *, images: Iterable[Any] = (), sounds: Iterable[Any] = (),
            params: n.RequestParams) -> Answer:
        """The answer to a text, with pictures and sounds (paths, bytes, PIL images), or to the messages so far."""
        if text is not None:
            self.add("user", text, images=images, sounds=sounds)
        elif list(images) or list(sounds):
            raise ValueError("expected a text with pictures and sounds, found none")
        return Answer(_handle(_lib.facet_session_submit, self._session, c.byref(params)), self, params.top_logprobs)

    def __del__(self) -> None:
        if getattr(self, "_session", None):
            _lib.facet_session_free(self._session)


class Model:
    """A loaded model and the thread that runs it; methods may be called from any thread.

    path: a GGUF file, or "hf:USER/REPO[:QUANT]", which is downloaded once. context: tokens of a sequence, 0: as trained,
    halved until it fits. sequences: answers that are computed together. kv_type: f16, q8_0, q4_0, tq3_0 or f32. drafters:
    files or "hf:..." names, which change no text; None: those beside the model that fit it. mmproj: encoders of pictures
    and sound, a file; "auto": one beside the model; None: none. image_tokens: most soft tokens of a picture. offline:
    nothing is downloaded. on_note: told what there is to know about the files."""

    def __init__(self, path: Path, *, backend: Optional[str] = None, context: int = 0, sequences: int = 0, threads: int = 0,
                 gpu: int = 0, kv_type: Optional[str] = None, drafters: Optional[Iterable[Path]] = None, memory: int = 0,
                 mmproj: Optional[Path] = "auto", image_tokens: int = 0, offline: bool = False,
                 on_note: Optional[Callable[[str], None]] = None):
        files = [os.fsencode(d) for d in drafters or ()]
        log = n.LogFn(lambda _, level, text: on_note(text.decode(errors="replace")) if on_note else None)
        self._model: Optional[c.c_void_p] = _handle(_lib.facet_model_open, c.byref(n.ModelParams(
            path=os.fsencode(path), backend=_text(backend), kv_type=_text(kv_type),
            drafters=(c.c_char_p * len(files))(*files) if files else None, n_drafters=len(files), context=context,
            sequences=sequences, threads=threads, gpu=gpu, memory=memory, log=log,
            mmproj=None if mmproj is None else os.fsencode(mmproj), image_tokens=image_tokens,
            flags=(n.FIND_DRAFTERS if drafters is None else 0) | (n.OFFLINE if offline else 0))))
        self._log = log  # a drafter may be lost later
        info = n.ModelInfo()
        _lib.facet_model_get_info(self._model, c.byref(info))
        self.n_vocab, self.n_layer, self.context = info.n_vocab, info.n_layer, info.context
        self.sequences, self.threads, self.backend = info.sequences, info.threads, info.backend.decode()
        self.sees, self.hears = bool(info.inputs & n.IMAGE), bool(info.inputs & n.AUDIO)

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

    def session(self, system: Optional[str] = None, *, think: bool = False,
                tools: Optional[Sequence[Mapping[str, Any]]] = None) -> Session:
        return Session(self, system, think, tools)

    @_sampling
    def chat(self, messages: Messages, *, system: Optional[str] = None, think: bool = False,
             images: Iterable[Any] = (), sounds: Iterable[Any] = (), tools: Optional[Sequence[Mapping[str, Any]]] = None,
             params: n.RequestParams) -> Answer:
        """The answer to a text, with pictures and sounds (paths, bytes, PIL images), or to messages as OpenAI has them
        (Session.add_messages). tools: functions that the model may call: Answer.tool_calls."""
        session = Session(self, system, think, tools)
        if isinstance(messages, str):
            session.add("user", messages, images=images, sounds=sounds)
        elif list(images) or list(sounds):
            raise ValueError("images, sounds: expected a text beside them, found messages; make them parts of a message")
        else:
            session.add_messages(messages)
        return Answer(_handle(_lib.facet_session_submit, session._session, c.byref(params)), session, params.top_logprobs)

    @_sampling
    def generate(self, prompt: Union[str, Sequence[int]], *, params: n.RequestParams) -> Answer:
        """What follows a text, without turns, or token ids."""
        ids = self.tokenize(prompt, add_bos=True, parse_special=True) if isinstance(prompt, str) else prompt
        return Answer(_handle(_lib.facet_submit, self._open(), _ids(ids), len(ids), c.byref(params)), self,
                      params.top_logprobs)

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
