/* Answers one question, streaming, and says how fast.
 *   cc examples/chat.c -Iinclude -Lbuild/release -lfacet -Wl,-rpath,build/release -o build/chat
 *   build/chat models/facet-nano-Q8_0.gguf "What is the capital of France?" */
#include <facet.h>
#include <stdio.h>

static int failed(const facet_error* e) {
  fprintf(stderr, "%s: %s (%s)\n", e->where, e->what, e->hint);
  return 1;
}

int main(int argc, char** argv) {
  if (argc != 3) return fprintf(stderr, "usage: chat MODEL.gguf QUESTION\n"), 2;
  facet_error error = {.struct_size = sizeof error};
  facet_model* model = NULL;
  facet_session* session = NULL;
  facet_request* request = NULL;
  facet_model_params params = {.struct_size = sizeof params, .path = argv[1]};
  facet_request_params how = {.struct_size = sizeof how, .max_tokens = 200}; /* the likeliest tokens */

  if (facet_model_open(&params, &model, &error) != FACET_OK) return failed(&error);
  if (facet_session_create(model, NULL, 0, &session, &error) != FACET_OK ||
      facet_session_add(session, "user", argv[2], &error) != FACET_OK ||
      facet_session_submit(session, &how, &request, &error) != FACET_OK)
    return failed(&error);

  facet_output out = {.struct_size = sizeof out};
  do {
    if (facet_poll(request, -1, &out, &error) != FACET_OK) return failed(&error);
    fwrite(out.text, 1, out.text_bytes, stdout);
    fflush(stdout);
  } while (out.stop == FACET_RUNNING);

  facet_stats stats = {.struct_size = sizeof stats};
  facet_request_get_stats(request, &stats);
  fprintf(stderr, "\n%d tokens after a prompt of %d, %.1f a second\n", stats.generated, stats.prompt,
          stats.decode_s > 0 ? stats.generated / stats.decode_s : 0.0);

  facet_request_free(request);
  facet_session_free(session);
  facet_model_free(model);
  return 0;
}
