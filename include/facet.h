/* facet in a program of C, C++ or any language that calls C: a Gemma 4 model, requests to it, their tokens and text.
 *
 *   facet_model   a loaded model with a thread that computes; requests run side by side
 *   facet_session a conversation; its rows stay in the cache, so that a turn costs what is new
 *   facet_request an answer on its way: poll it, cancel it
 *
 * Every function may be called from any thread, but two calls with the same session or request not at once. Handles may
 * be freed in any order: what a request needs of a model lives as long as the request. Strings are UTF-8.
 *
 * Functions that can fail return a facet_status and say why in a facet_error, which may be NULL. Structures begin with
 * their size in bytes, as the caller was compiled; members that a later version adds are at the end, and zero means the
 * default for every member. So a program may be used with any later version of the library of the same
 * FACET_ABI_VERSION, and with an earlier one as long as members that that one lacks are zero. */
#ifndef FACET_H
#define FACET_H

#include <stddef.h>
#include <stdint.h>

#if defined(__GNUC__)
#define FACET_API __attribute__((visibility("default")))
#else
#define FACET_API
#endif

#ifdef __cplusplus
extern "C" {
#endif

#define FACET_ABI_VERSION 1

typedef int32_t facet_status;
enum {
  FACET_OK = 0,
  FACET_BAD_ARGUMENT = 1, /* a NULL, a size, a token id, a structure of a later version */
  FACET_FAILED = 2,       /* a file, memory, a request that cannot be run: see facet_error */
  FACET_TOO_SMALL = 3,    /* the caller's buffer; the size that is needed was written */
  FACET_BUSY = 4          /* the session's last request is not done */
};

typedef struct facet_error {
  size_t struct_size;
  facet_status status;
  char where[256]; /* file, option or function */
  char what[1024]; /* expected X, found Y */
  char hint[256];  /* what to do about it; may be empty */
} facet_error;

typedef struct facet_model facet_model;
typedef struct facet_session facet_session;
typedef struct facet_request facet_request;

FACET_API uint32_t facet_abi_version(void); /* FACET_ABI_VERSION of the library */
FACET_API const char* facet_version(void);  /* "0.1.0" */

/* ---- models */

enum { FACET_LOG_NOTE = 0, FACET_LOG_WARNING = 1 };
typedef void (*facet_log_fn)(void* user, int32_t level, const char* text);

enum {
  FACET_FIND_DRAFTERS = 1, /* also those beside the model that fit it */
  FACET_OFFLINE = 2        /* "hf:..." is what the cache folder has; nothing is downloaded */
};
typedef struct facet_model_params {
  size_t struct_size;
  const char* path;            /* GGUF file, a part of a split one, or "hf:USER/REPO[:QUANT]", downloaded once */
  const char* backend;         /* "auto" (NULL), "cuda", "cpu", "ref" */
  const char* kv_type;         /* of cache rows: "f16" (NULL), "q8_0", "q4_0", "tq3_0", "f32" */
  const char* const* drafters; /* files of drafters, or "hf:..."; they change no text */
  size_t n_drafters;
  int32_t context;   /* tokens of a sequence; 0: as trained, halved until it fits */
  int32_t sequences; /* requests that run together; 0: 1 */
  int32_t threads;   /* 0: one per physical core */
  int32_t gpu;
  int64_t memory;   /* bytes that may be used; 0: what the system has available */
  facet_log_fn log; /* told what there is to know, on the thread that opens the model; NULL: nobody */
  void* log_user;
  const char* mmproj;   /* encoders of pictures and sound: a file, or "auto": one beside the model; NULL: none */
  int32_t image_tokens; /* most soft tokens of a picture: 70, 140, 280, 560 or 1120; 0: 280 */
  uint32_t flags;
} facet_model_params;

/* Reads the file and allocates everything. */
FACET_API facet_status facet_model_open(const facet_model_params* params, facet_model** model, facet_error* error);
FACET_API void facet_model_free(facet_model* model); /* NULL: nothing */

enum { FACET_IMAGE = 1, FACET_AUDIO = 2 };
typedef struct facet_model_info {
  size_t struct_size;
  int32_t n_vocab, n_layer, context, sequences, threads;
  int32_t bos; /* id of <bos>; -1: the file has no vocabulary, and only tokens go in and out */
  char backend[16];
  uint32_t inputs; /* FACET_IMAGE: it sees, FACET_AUDIO: it hears */
} facet_model_info;
FACET_API facet_status facet_model_get_info(const facet_model* model, facet_model_info* info);

enum {
  FACET_ADD_BOS = 1,      /* exactly one <bos> at the beginning */
  FACET_PARSE_SPECIAL = 2 /* "<turn|>" in the text is the token, not its characters */
};
/* Ids of a text; *count is how many there are, also with FACET_TOO_SMALL. */
FACET_API facet_status facet_tokenize(const facet_model* model, const char* text, size_t bytes, uint32_t flags,
                                      int32_t* ids, size_t capacity, size_t* count, facet_error* error);
/* Text of ids, without a terminating NUL; *bytes is its length, also with FACET_TOO_SMALL. */
FACET_API facet_status facet_detokenize(const facet_model* model, const int32_t* ids, size_t count, char* text,
                                        size_t capacity, size_t* bytes, facet_error* error);

/* Logits of the tokens after positions first_position, .. of the ids: rows [n_rows, n_vocab], valid during the call. */
typedef void (*facet_logits_fn)(void* user, size_t first_position, size_t n_rows, size_t n_vocab, const float* rows);
/* Calls f for the positions from `from` on, in pieces, on the model's thread; returns afterwards. Waits for requests
 * that run. f must not call functions of this header. */
FACET_API facet_status facet_score(facet_model* model, const int32_t* ids, size_t count, size_t from, facet_logits_fn f,
                                   void* user, facet_error* error);

/* ---- requests */

enum {
  FACET_IGNORE_EOS = 1,
  FACET_NO_DRAFT = 2,
  FACET_NO_CACHE = 4,
  FACET_LOGPROBS = 8 /* the tokens' log-probabilities are told, before anything of sampling */
};
typedef struct facet_request_params {
  size_t struct_size;
  int32_t max_tokens; /* 0: until the model ends its answer or the context is full */
  int32_t top_k;      /* 0: off */
  float temperature;  /* 0: always the likeliest token. Gemma 4 is meant for 1, top_k 64, top_p 0.95 */
  float top_p, min_p; /* 0: off */
  float repeat_penalty, presence_penalty, frequency_penalty; /* 0: none */
  uint64_t seed;
  uint32_t flags;
  int32_t max_loops;       /* ends an answer whose last tokens are one sequence so many times in a row; 0: never */
  const char* json_schema; /* the answer is JSON of this schema; NULL: anything */
  const char* const* stop; /* texts that end the answer, before them; not looked for in thoughts */
  size_t n_stop;
  const char* grammar;  /* the answer follows this grammar (GBNF); NULL: anything */
  int32_t top_logprobs; /* with FACET_LOGPROBS: also of so many of the likeliest tokens at each place, at most 20 */
} facet_request_params;

/* Continues a prompt of tokens. params may be NULL. */
FACET_API facet_status facet_submit(facet_model* model, const int32_t* ids, size_t count,
                                    const facet_request_params* params, facet_request** request, facet_error* error);

/* A conversation. system may be NULL; think: the model thinks before it answers. */
FACET_API facet_status facet_session_create(facet_model* model, const char* system, int32_t think,
                                            facet_session** session, facet_error* error);
/* Adds a message; role is "user" or, for conversations that were had before, "assistant". */
FACET_API facet_status facet_session_add(facet_session* session, const char* role, const char* text,
                                         facet_error* error);
/* A picture or a sound, as the bytes of its file, for the next message of facet_session_add, before its text: JPEG, PNG,
 * WebP, GIF, BMP; WAV, FLAC, MP3. It is encoded here, which takes time. *n_tokens, which may be NULL: the soft tokens
 * that it takes of the context. */
FACET_API facet_status facet_session_attach(facet_session* session, int32_t kind, const void* bytes, size_t n_bytes,
                                            int32_t* n_tokens, facet_error* error);
/* Adds messages as a JSON array in the form of OpenAI's chat completions: all roles, several parts of content (text,
 * image_url with a data: URL, input_audio), tool calls and the results of tools. */
FACET_API facet_status facet_session_add_json(facet_session* session, const char* messages, facet_error* error);
/* Functions that the model may call, as a JSON array in OpenAI's form; NULL: none. */
FACET_API facet_status facet_session_set_tools(facet_session* session, const char* tools, facet_error* error);
/* Asks for an answer to the messages so far; the answer becomes a message when it is done. */
FACET_API facet_status facet_session_submit(facet_session* session, const facet_request_params* params,
                                            facet_request** request, facet_error* error);
FACET_API void facet_session_free(facet_session* session);

enum {
  FACET_RUNNING = 0,
  FACET_STOP_END = 1,     /* the model ended its answer */
  FACET_STOP_LENGTH = 2,  /* max_tokens */
  FACET_STOP_CONTEXT = 3, /* the context is full */
  FACET_STOP_CANCELLED = 4,
  FACET_STOP_FAILED = 5,
  FACET_STOP_LOOP = 6, /* max_loops */
  FACET_STOP_TEXT = 7  /* one of `stop` */
};
typedef struct facet_logprob {
  int32_t token; /* -1: there are no more */
  float logprob; /* natural logarithm */
} facet_logprob;
typedef struct facet_output {
  size_t struct_size;
  const int32_t* tokens; /* new ones since the last poll */
  size_t n_tokens;
  const char* text; /* NUL-terminated, never cut inside a character; empty without a vocabulary */
  size_t text_bytes;
  const char* thought; /* the same of thoughts, in sessions */
  size_t thought_bytes;
  int32_t stop; /* FACET_RUNNING until nothing more comes */
  /* FACET_LOGPROBS: for each of the tokens 1 + top_logprobs, its own and those of the likeliest, best first */
  const facet_logprob* logprobs;
  size_t n_logprobs;
  const char* tool_calls; /* at the end, in sessions: a JSON array in OpenAI's form; empty: none */
  size_t tool_calls_bytes;
} facet_output;

/* What is new, after waiting up to timeout_ms for it (-1: as long as it takes). What output points at is valid until
 * the next call for this request. FACET_FAILED, with output filled, once nothing more comes of a request that failed.
 */
FACET_API facet_status facet_poll(facet_request* request, int32_t timeout_ms, facet_output* output, facet_error* error);
FACET_API void facet_cancel(facet_request* request); /* any thread, also while another polls */

typedef struct facet_stats {
  size_t struct_size;
  int32_t prompt, cached, generated; /* tokens; cached: of the prompt, not computed again */
  int32_t steps, drafted, accepted;  /* steps of the model; tokens proposed; of them, tokens of the answer */
  double queue_s, prefill_s, decode_s;
  int32_t media; /* of the prompt: soft tokens of pictures and sounds */
} facet_stats;
FACET_API facet_status facet_request_get_stats(const facet_request* request,
                                               facet_stats* stats); /* of one that is done */
FACET_API void facet_request_free(facet_request* request);          /* cancels it if it runs */

#ifdef __cplusplus
}
#endif
#endif
