/* include/facet.h from C: what programs were compiled against stays where it is, and every function does what it says.
 *   abi_test FOLDER_OF_MODELS */
#include <facet.h>
#include <stdio.h>
#include <string.h>

/* A member moved or removed breaks programs that exist: these figures change with FACET_ABI_VERSION only. */
#define AT(type, member, offset) _Static_assert(offsetof(type, member) == (offset), #type "." #member)
AT(facet_error, status, 8);
AT(facet_error, where, 12);
AT(facet_error, hint, 1292);
AT(facet_model_params, path, 8);
AT(facet_model_params, drafters, 32);
AT(facet_model_params, context, 48);
AT(facet_model_params, memory, 64);
AT(facet_model_params, log_user, 80);
AT(facet_model_params, mmproj, 88);
AT(facet_model_params, flags, 100);
AT(facet_model_info, n_vocab, 8);
AT(facet_model_info, bos, 28);
AT(facet_model_info, backend, 32);
AT(facet_model_info, inputs, 48);
AT(facet_request_params, max_tokens, 8);
AT(facet_request_params, repeat_penalty, 28);
AT(facet_request_params, seed, 40);
AT(facet_request_params, max_loops, 52);
AT(facet_request_params, json_schema, 56);
AT(facet_request_params, stop, 64);
AT(facet_request_params, top_logprobs, 88);
AT(facet_logprob, logprob, 4);
AT(facet_output, tokens, 8);
AT(facet_output, text, 24);
AT(facet_output, thought_bytes, 48);
AT(facet_output, stop, 56);
AT(facet_output, logprobs, 64);
AT(facet_output, tool_calls_bytes, 88);
AT(facet_stats, prompt, 8);
AT(facet_stats, queue_s, 32);
AT(facet_stats, media, 56);
_Static_assert(FACET_ABI_VERSION == 1 && FACET_OK == 0 && FACET_BUSY == 4 && FACET_STOP_FAILED == 5, "values");

static int failures = 0;
#define EXPECT(condition)                                                 \
  do {                                                                    \
    if (!(condition)) {                                                   \
      fprintf(stderr, "%s:%d: %s\n", __FILE__, __LINE__, #condition);     \
      fprintf(stderr, "  last error: %s: %s\n", error.where, error.what); \
      ++failures;                                                         \
    }                                                                     \
  } while (0)

static facet_error error = {.struct_size = sizeof(facet_error)};

static void count_notes(void* user, int32_t level, const char* text) {
  (void)level, (void)text;
  ++*(int*)user;
}

struct Logits {
  size_t rows;
  int32_t best; /* of the last row */
};
static void take_logits(void* user, size_t first, size_t n_rows, size_t n_vocab, const float* rows) {
  struct Logits* l = user;
  (void)first;
  l->rows += n_rows;
  const float* last = rows + (n_rows - 1) * n_vocab;
  l->best = 0;
  for (size_t i = 1; i < n_vocab; ++i)
    if (last[i] > last[l->best]) l->best = (int32_t)i;
}

/* Reads an answer to its end. */
static int32_t read_all(facet_request* r, char* text, size_t room, int32_t* n_tokens) {
  facet_output out = {.struct_size = sizeof out};
  size_t used = 0;
  text[0] = 0, *n_tokens = 0;
  do {
    if (facet_poll(r, -1, &out, &error) != FACET_OK) return FACET_STOP_FAILED;
    if (used + out.text_bytes < room) memcpy(text + used, out.text, out.text_bytes + 1), used += out.text_bytes;
    *n_tokens += (int32_t)out.n_tokens;
  } while (out.stop == FACET_RUNNING);
  return out.stop;
}

static void refusals(const char* nano) {
  facet_model* m = NULL;
  facet_model_params p = {.struct_size = sizeof p, .path = "no/such.gguf"};
  EXPECT(facet_model_open(&p, &m, &error) == FACET_FAILED && m == NULL);
  EXPECT(strcmp(error.where, "no/such.gguf") == 0 && error.what[0] && error.status == FACET_FAILED);
  EXPECT(facet_model_open(&p, &m, NULL) == FACET_FAILED);
  EXPECT(facet_model_open(NULL, &m, &error) == FACET_BAD_ARGUMENT);
  p.path = NULL;
  EXPECT(facet_model_open(&p, &m, &error) == FACET_BAD_ARGUMENT);
  p.path = nano, p.kv_type = "q7";
  EXPECT(facet_model_open(&p, &m, &error) == FACET_BAD_ARGUMENT && strstr(error.what, "kv_type"));
  p.kv_type = NULL, p.backend = "abacus";
  EXPECT(facet_model_open(&p, &m, &error) == FACET_BAD_ARGUMENT && strstr(error.what, "backend"));
  p.backend = NULL, p.context = -1;
  EXPECT(facet_model_open(&p, &m, &error) == FACET_BAD_ARGUMENT);
  /* A structure of a later version: refused if what this library does not know is asked for. */
  struct {
    facet_model_params p;
    int64_t later;
  } newer = {.p = {.struct_size = sizeof newer, .path = "no/such.gguf"}, .later = 1};
  EXPECT(facet_model_open(&newer.p, &m, &error) == FACET_BAD_ARGUMENT);
  newer.later = 0;
  EXPECT(facet_model_open(&newer.p, &m, &error) == FACET_FAILED);
  /* A structure of an earlier version: only what it has is read or written. */
  newer.p.struct_size = offsetof(facet_model_params, backend);
  newer.p.backend = (const char*)1;
  EXPECT(facet_model_open(&newer.p, &m, &error) == FACET_FAILED);
  facet_error small = {.struct_size = offsetof(facet_error, what)};
  small.what[0] = 'x';
  EXPECT(facet_model_open(&p, &m, &small) == FACET_BAD_ARGUMENT && small.where[0] && small.what[0] == 'x');
  facet_model_free(NULL);
  facet_session_free(NULL);
  facet_request_free(NULL);
  facet_cancel(NULL);
}

/* Stop texts, log-probabilities, messages and tools as JSON, and pictures that this model does not take. */
static void forms_of_answers(facet_model* model) {
  facet_session* s = NULL;
  facet_request* r = NULL;
  facet_output out = {.struct_size = sizeof out};
  char text[4096];
  int32_t tokens = 0, soft = -1;
  EXPECT(facet_session_create(model, NULL, 0, &s, &error) == FACET_OK);
  EXPECT(facet_session_attach(s, FACET_IMAGE, "x", 1, &soft, &error) == FACET_FAILED && strstr(error.hint, "mmproj"));
  EXPECT(facet_session_attach(s, 7, "x", 1, &soft, &error) == FACET_BAD_ARGUMENT && soft == -1);
  EXPECT(facet_session_add_json(s, "[{\"role\": 1}]", &error) == FACET_BAD_ARGUMENT);
  EXPECT(facet_session_add_json(s, "[", &error) == FACET_BAD_ARGUMENT);
  EXPECT(facet_session_set_tools(s, "[{\"type\": \"function\"}]", &error) == FACET_BAD_ARGUMENT);
  EXPECT(facet_session_set_tools(s, NULL, &error) == FACET_OK);
  EXPECT(facet_session_add_json(s,
                                "[{\"role\": \"user\", \"content\": [{\"type\": \"text\", \"text\": \"What is the "
                                "capital of \"}, {\"type\": \"text\", \"text\": \"France?\"}]}]",
                                &error) == FACET_OK);
  const char* stop[] = {"nowhere", "Paris"};
  facet_request_params p = {.struct_size = sizeof p, .stop = stop, .n_stop = 2};
  EXPECT(facet_session_submit(s, &p, &r, &error) == FACET_OK);
  EXPECT(read_all(r, text, sizeof text, &tokens) == FACET_STOP_TEXT && text[0] && !strstr(text, "Paris"));
  facet_request_free(r);
  p.stop = NULL;
  EXPECT(facet_session_submit(s, &p, &r, &error) == FACET_BAD_ARGUMENT && strstr(error.what, "stop"));
  p.n_stop = 0, p.top_logprobs = 2;
  EXPECT(facet_session_submit(s, &p, &r, &error) == FACET_BAD_ARGUMENT && strstr(error.what, "FACET_LOGPROBS"));
  p.flags = FACET_LOGPROBS;
  EXPECT(facet_session_add(s, "user", "And of Italy?", &error) == FACET_OK);
  EXPECT(facet_session_submit(s, &p, &r, &error) == FACET_OK);
  do {
    EXPECT(facet_poll(r, -1, &out, &error) == FACET_OK && out.n_logprobs == 3 * out.n_tokens);
    for (size_t i = 0; i < out.n_tokens; ++i) {
      const facet_logprob* l = out.logprobs + 3 * i; /* greedy: the token is the likeliest */
      EXPECT(l[0].token == out.tokens[i] && l[1].token == l[0].token && l[0].logprob == l[1].logprob);
      EXPECT(l[0].logprob <= 0 && l[2].logprob <= l[1].logprob && l[2].token != l[1].token);
    }
  } while (out.stop == FACET_RUNNING);
  EXPECT(out.stop == FACET_STOP_END && out.tool_calls_bytes == 0);
  facet_request_free(r);
  p.json_schema = "{}", p.grammar = "root ::= \"a\"";
  EXPECT(facet_session_submit(s, &p, &r, &error) == FACET_BAD_ARGUMENT && strstr(error.what, "grammar"));
  p.json_schema = NULL;
  EXPECT(facet_session_add(s, "user", "Hello", &error) == FACET_OK);
  EXPECT(facet_session_submit(s, &p, &r, &error) == FACET_OK);
  EXPECT(read_all(r, text, sizeof text, &tokens) == FACET_STOP_END && strcmp(text, "a") == 0);
  facet_request_free(r);
  facet_session_free(s);
}

int main(int argc, char** argv) {
  if (argc != 2) return fprintf(stderr, "usage: abi_test FOLDER_OF_MODELS\n"), 2;
  char nano[1024], drafter[1024];
  snprintf(nano, sizeof nano, "%s/facet-nano-Q8_0.gguf", argv[1]);
  snprintf(drafter, sizeof drafter, "%s/facet-nano-dflash-Q8_0.gguf", argv[1]);
  EXPECT(facet_abi_version() == FACET_ABI_VERSION && facet_version()[0]);
  refusals(nano);

  int notes = 0;
  const char* drafters[] = {drafter};
  facet_model_params params = {.struct_size = sizeof params,
                               .path = nano,
                               .backend = "cpu",
                               .drafters = drafters,
                               .n_drafters = 1,
                               .context = 1024,
                               .sequences = 2,
                               .threads = 1,
                               .log = count_notes,
                               .log_user = &notes};
  facet_model* model = NULL;
  if (facet_model_open(&params, &model, &error) != FACET_OK) return fprintf(stderr, "%s\n", error.what), 1;
  facet_model_info info = {.struct_size = sizeof info};
  EXPECT(facet_model_get_info(model, &info) == FACET_OK && info.n_vocab > 1000 && info.context == 1024);
  EXPECT(strcmp(info.backend, "cpu") == 0 && info.bos >= 0 && info.threads == 1);

  int32_t ids[64];
  char text[4096];
  size_t n = 0, bytes = 0;
  const char* words = "The capital of France is";
  EXPECT(facet_tokenize(model, words, strlen(words), FACET_ADD_BOS, ids, 64, &n, &error) == FACET_OK &&
         ids[0] == info.bos);
  size_t need = 0;
  EXPECT(facet_tokenize(model, words, strlen(words), FACET_ADD_BOS, ids, 2, &need, &error) == FACET_TOO_SMALL &&
         need == n);
  EXPECT(facet_detokenize(model, ids + 1, n - 1, text, sizeof text, &bytes, &error) == FACET_OK);
  EXPECT(bytes == strlen(words) && memcmp(text, words, bytes) == 0);
  EXPECT(facet_detokenize(model, ids + 1, n - 1, text, 3, &bytes, &error) == FACET_TOO_SMALL && bytes == strlen(words));
  const int32_t bad = info.n_vocab;
  EXPECT(facet_detokenize(model, &bad, 1, text, sizeof text, &bytes, &error) == FACET_BAD_ARGUMENT);

  struct Logits logits = {0, -1};
  EXPECT(facet_score(model, ids, n, n - 3, take_logits, &logits, &error) == FACET_OK && logits.rows == 3);
  EXPECT(facet_score(model, &bad, 1, 0, take_logits, &logits, &error) == FACET_BAD_ARGUMENT);
  EXPECT(facet_score(model, ids, n, n, take_logits, &logits, &error) == FACET_BAD_ARGUMENT);

  facet_request* r = NULL;
  int32_t tokens = 0;
  facet_request_params one = {.struct_size = sizeof one, .max_tokens = 1, .flags = FACET_IGNORE_EOS};
  facet_output out = {.struct_size = sizeof out};
  EXPECT(facet_submit(model, ids, n, &one, &r, &error) == FACET_OK);
  EXPECT(facet_poll(r, 60000, &out, &error) == FACET_OK && out.n_tokens == 1 && out.tokens[0] == logits.best);
  EXPECT(read_all(r, text, sizeof text, &tokens) == FACET_STOP_LENGTH);
  facet_request_free(r);
  EXPECT(facet_submit(model, &bad, 1, &one, &r, &error) == FACET_FAILED && r == NULL);
  EXPECT(facet_submit(model, ids, 0, NULL, &r, &error) == FACET_FAILED);
  one.temperature = -1;
  EXPECT(facet_submit(model, ids, n, &one, &r, &error) == FACET_BAD_ARGUMENT);
  one.temperature = 0, one.json_schema = "{";
  EXPECT(facet_submit(model, ids, n, &one, &r, &error) == FACET_BAD_ARGUMENT);

  facet_session* s = NULL;
  EXPECT(facet_session_create(model, "Be brief.", 0, &s, &error) == FACET_OK);
  EXPECT(facet_session_add(s, "user", "What is the capital of France?", &error) == FACET_OK);
  EXPECT(facet_session_add(s, "nobody", "x", &error) == FACET_BAD_ARGUMENT);
  EXPECT(facet_session_submit(s, NULL, &r, &error) == FACET_OK);
  facet_stats stats = {.struct_size = sizeof stats};
  EXPECT(read_all(r, text, sizeof text, &tokens) == FACET_STOP_END && strstr(text, "Paris"));
  EXPECT(facet_request_get_stats(r, &stats) == FACET_OK && stats.generated == tokens &&
         stats.accepted <= stats.drafted);
  facet_request_free(r);
  EXPECT(facet_session_add(s, "user", "And of Italy?", &error) == FACET_OK);
  EXPECT(facet_session_submit(s, NULL, &r, &error) == FACET_OK);
  EXPECT(read_all(r, text, sizeof text, &tokens) == FACET_STOP_END);
  EXPECT(facet_request_get_stats(r, &stats) == FACET_OK && stats.cached > 10 && stats.cached < stats.prompt);
  facet_request_free(r);

  forms_of_answers(model);

  /* A long answer, ended; meanwhile the session takes nothing, and a poll comes back without anything. */
  facet_request_params longest = {.struct_size = sizeof longest, .flags = FACET_IGNORE_EOS};
  EXPECT(facet_session_add(s, "user", "Tell me a story", &error) == FACET_OK);
  EXPECT(facet_session_submit(s, &longest, &r, &error) == FACET_OK);
  facet_request* other = NULL;
  EXPECT(facet_session_submit(s, NULL, &other, &error) == FACET_BUSY && other == NULL);
  EXPECT(facet_session_add(s, "user", "x", &error) == FACET_BUSY);
  EXPECT(facet_request_get_stats(r, &stats) == FACET_BAD_ARGUMENT);
  facet_cancel(r);
  EXPECT(read_all(r, text, sizeof text, &tokens) == FACET_STOP_CANCELLED);
  facet_request_free(r);

  /* Handles in any order; an answer that nobody reads goes on until its handle is freed. */
  EXPECT(facet_submit(model, ids, n, &longest, &r, &error) == FACET_OK);
  facet_model_free(model);
  facet_session_free(s);
  EXPECT(facet_poll(r, 60000, &out, &error) == FACET_OK && out.n_tokens > 0);
  facet_request_free(r);
  EXPECT(notes >= 0);
  if (failures == 0) printf("the C interface: all is well\n");
  return failures > 0;
}
